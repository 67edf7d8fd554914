"""Shows with which error Kafka refuses each request that a cordon forbids (KIP-1066, "Error handling").

Each request is also made where no cordon forbids it, and succeeds there. So a refusal is due to the cordon. If
requests name brokers or log dirs, 4.3 gives other answers than the KIP. Each has its own scenario, with a deviation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial

from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement, execute
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.runner.deviation import Deviation, Expectation
from harness.waiting import await_until
from suites.checks import check_logged, check_promised_or_known
from suites.deviations import (
    CANCEL_REFUSED,
    EXPLICIT_PARTITIONS_ACCEPTED,
    EXPLICIT_TOPIC_ACCEPTED,
    MOVE_ANSWERED_OTHERWISE,
    REASSIGNMENT_ACCEPTED,
    REASSIGNMENT_ANSWERED_OTHERWISE,
)
from suites.kip_1066.cordons import cordon, cordon_scenario
from suites.kip_1066.refused import answer_of, check_only_replicas, check_refused_without_effect
from suites.moves import SMALL_FETCHES, begin_move, finish_move, moves_held
from suites.observing import expectation_of
from suites.reassignments import await_no_reassignment, check_reassigning
from suites.state_check import StateCheck
from suites.steps import write_untracked_records

TOO_FEW = r"because only 2 broker\(s\) are registered or some brokers have all their log directories cordoned"
NONE = r"All brokers are currently fenced, or have all their log directories cordoned"


@cordon_scenario(
    "kip-1066/automatic-placement",
    plan="Error handling: CreateTopics/CreatePartitions requests without explicit partition assignments",
    judged=False,
)
def test_automatic_placement(cluster: Cluster) -> None:
    """All log dirs of a broker are cordoned: new topics and partitions must fit on the others, or are refused."""
    admin = cluster.brokers[0].admin
    state = StateCheck(cluster, cluster.create_topic("wide", replicas=3), cluster.create_topic("narrow", replicas=2))
    broker = cluster.brokers[2]
    cordon(state, broker, *broker.log_dirs, value="*")
    refused = partial(check_refused_without_effect, cluster, error="INVALID_REPLICATION_FACTOR")
    refused("wider", lambda: admin.create_topics([NewTopic(name="wider")]), saying=TOO_FEW)
    refused("wide", lambda: admin.create_partitions("wide", 2), saying=TOO_FEW, there=[state.expected("wide").replicas])
    state.add_topic(cluster.create_topic("narrower", partitions=6, replicas=2))
    state.add_topic(cluster.create_partitions({"narrow": 6})[0])
    cordon(state, broker, broker.log_dirs[0])  # one uncordoned log dir is enough
    state.add_topic(cluster.create_topic("wider", partitions=6, replicas=3))
    state.add_topic(cluster.create_partitions({"wide": 6})[0])
    state.add_topic(cluster.create_topic("lone", replicas=1))
    for each in cluster.brokers:
        cordon(state, each, *each.log_dirs)
    refused("none", lambda: admin.create_topics([NewTopic(name="none", replicas=1)]), saying=NONE)
    refused("lone", lambda: admin.create_partitions("lone", 2), saying=NONE, there=[state.expected("lone").replicas])
    state.check()


# --- explicit placement -----------------------------------------------------------------------------------------------

explicit = partial(cordon_scenario, judged=False, mbeans=False)
MADE = "done, and in a cordoned log dir"
UNREGISTERED = 99
"""The id of a broker that does not exist."""


def check_explicit(
    cluster: Cluster,
    ask: Callable[[Admin, str, list[int]], Partition],
    known: Mapping[str, Deviation],
    *,
    promised: str,
    added_to: bool,
) -> None:
    """A replica that is assigned to a broker is placed on an uncordoned log dir; if all are cordoned, it is refused.

    The KIP refuses "if any of the specified brokers" is wholly cordoned, so also if that is the second one.

    :param ask: requests a partition of a topic of this name on these brokers
    :param known: the deviation for each other answer that builds give
    :param promised: the KIP's error
    :param added_to: the topic exists before, with a partition of as many replicas on the other two brokers
    """
    state = StateCheck(cluster, cluster.create_topic("orders", partitions=2, replicas=2))
    first, second, broker = cluster.brokers

    def answer(name: str, *ids: int) -> LogDir | str:
        there = [(first.id, second.id)[: len(ids)]] if added_to else []
        for assigned in there:
            cluster.create_topics(NewTopic(name=name, assignment={0: assigned}))
        try:
            partition = ask(first.admin, name, [*ids])
        except Refused as refusal:
            check_only_replicas(cluster, name, there)
            return answer_of(refusal)
        return await_made(partition, broker)

    cordon(state, broker, broker.log_dirs[0])
    if (place := answer("half", broker.id)) != broker.log_dirs[1]:
        raise PromiseBroken(f"with {broker.log_dirs[0]} cordoned alone, a new replica on {broker} is in {place}")
    cordon(state, broker, *broker.log_dirs)
    for name, ids in {"wholly": [broker.id], "second-wholly": [first.id, broker.id]}.items():
        place = answer(name, *ids)
        seen = (MADE if place in state.cordoned else f"done, in {place}") if isinstance(place, LogDir) else place
        does = next(
            (does for does, each in known.items() if expectation_of(each, cluster) is not Expectation.NONE), MADE
        )
        check_promised_or_known(known[does], cluster, seen, promised=promised, known=does)
    state.check()


def check_impossible_refused(
    cluster: Cluster, ask: Callable[[Admin, str, list[int]], object], *, added_to: bool
) -> None:
    """Kafka refuses an assignment that names a broker twice, or one that does not exist; no cordon is in force.

    :param ask: requests replicas of a topic of this name on these brokers
    :param added_to: the topic exists before, with as many replicas on two brokers
    """
    first, second, _ = cluster.brokers
    there = [(first.id, second.id)] if added_to else []
    for name, ids in {"twice": [second.id, second.id], "unregistered": [first.id, UNREGISTERED]}.items():
        for assigned in there:
            cluster.create_topics(NewTopic(name=name, assignment={0: assigned}))
        asked = partial(ask, first.admin, name, ids)
        check_refused_without_effect(cluster, name, asked, "INVALID_REPLICA_ASSIGNMENT", "", there=there)


def await_made(partition: Partition, broker: Broker) -> LogDir:
    """Wait until the broker's replica is in the ISR; returns its log dir."""
    place = await_until(
        lambda: broker.id in partition.describe().isr and broker.log_dir_of(partition.topic, partition.index),
        timeout_s=timeouts.RECOVERY_S,
        what=f"{partition} to be on {broker}",
        retry_on=(NoAnswer, KeyError),  # the broker may not know the partition yet
        failure=PromiseBroken,
    )
    assert isinstance(place, LogDir)
    return place


@explicit(
    "kip-1066/explicit-topic",
    plan="Error handling: CreateTopics with explicit partition assignments",
    deviations=(EXPLICIT_TOPIC_ACCEPTED,),
)
def test_explicit_topic(cluster: Cluster) -> None:
    """CreateTopics with an assignment to a broker whose log dirs are all cordoned is refused."""

    def ask(admin: Admin, name: str, ids: list[int]) -> Partition:
        admin.create_topics([NewTopic(name=name, assignment={0: ids})])
        return Partition(cluster, name, 0)

    check_impossible_refused(cluster, ask, added_to=False)
    check_explicit(cluster, ask, {MADE: EXPLICIT_TOPIC_ACCEPTED}, promised="INVALID_REPLICA_ASSIGNMENT", added_to=False)


@explicit(
    "kip-1066/explicit-partitions",
    plan="Error handling: CreatePartitions with explicit partition assignments",
    deviations=(EXPLICIT_PARTITIONS_ACCEPTED,),
)
def test_explicit_partitions(cluster: Cluster) -> None:
    """CreatePartitions with an assignment to a broker whose log dirs are all cordoned is refused."""

    def ask(admin: Admin, name: str, ids: list[int]) -> Partition:
        admin.create_partitions(name, 2, [ids])
        return Partition(cluster, name, 1)

    check_impossible_refused(cluster, ask, added_to=True)
    check_explicit(
        cluster, ask, {MADE: EXPLICIT_PARTITIONS_ACCEPTED}, promised="INVALID_REPLICA_ASSIGNMENT", added_to=True
    )


@explicit(
    "kip-1066/reassigned-onto",
    plan="Error handling: AlterPartitionReassignments request",
    deviations=(REASSIGNMENT_ACCEPTED, REASSIGNMENT_ANSWERED_OTHERWISE),
)
def test_reassigned_onto(cluster: Cluster) -> None:
    """AlterPartitionReassignments onto a broker whose log dirs are all cordoned is refused, with a logged reason."""

    def reassign(admin: Admin, name: str, ids: list[int]) -> None:
        admin.alter_partition_reassignment(name, 0, ids)

    def ask(admin: Admin, name: str, ids: list[int]) -> Partition:
        since = now()
        try:
            reassign(admin, name, ids)
        except Refused:
            check_reason_logged(cluster, name, since)
            raise
        return Partition(cluster, name, 0)

    check_impossible_refused(cluster, reassign, added_to=True)
    known = {MADE: REASSIGNMENT_ACCEPTED, "INVALID_REPLICA_ASSIGNMENT": REASSIGNMENT_ANSWERED_OTHERWISE}
    check_explicit(cluster, ask, known, promised="INELIGIBLE_REPLICA", added_to=True)


def check_reason_logged(cluster: Cluster, topic: str, since: datetime) -> None:
    """The controller logs at INFO that it refuses to reassign the topic's first partition because of cordons."""
    saying = rf"Unable to alter partition reassignment for {topic}:0 because of an \w+ error: .*cordoned"
    log = cluster.active_controller().log
    line = await_until(
        lambda: log.first(saying, since=since),
        timeout_s=timeouts.REQUEST_S,
        what=f"the controller to log /{saying}/",
        failure=PromiseBroken,
        hint=log.tail,
    )
    if line is None or line.level != "INFO":
        raise PromiseBroken(f"the controller does not log the refusal at INFO: {line}")


@explicit(
    "kip-1066/moved-onto",
    plan="Error handling: AlterReplicaLogDirs request",
    deviations=(MOVE_ANSWERED_OTHERWISE,),
    brokers=2,
)
def test_moved_onto(cluster: Cluster) -> None:
    """A move onto a cordoned log dir is refused, and the broker logs why; a move away from it succeeds.

    A request for a replica that does not exist yet is refused, too, and the broker does not remember it.
    """
    orders = cluster.create_topic("orders", replicas=2)
    state = StateCheck(cluster, orders)
    broker = cluster.brokers[1]
    here = orders[0].log_dir_on(broker)
    there = other_dir(here)
    cordon(state, broker, there)
    seen = {str(each): answer_to_move(each, there) for each in (orders[0], Partition(cluster, "later", 0))}
    check_promised_or_known(
        MOVE_ANSWERED_OTHERWISE,
        cluster,
        seen,
        promised=dict.fromkeys(seen, "KAFKA_STORAGE_ERROR"),
        known=dict.fromkeys(seen, "INVALID_REPLICA_ASSIGNMENT"),
    )
    said = rf"Log directory {re.escape(str(there.path))} is cordoned"  # AlterReplicaLogDirs has no field for a message
    check_logged(broker, said, since=broker.started_at)
    if future := broker.find_replica(orders.name, 0, is_future=True):
        raise PromiseBroken(f"{broker} refused the move, and has a future replica in {future[0]}")
    state.add_topic(cluster.create_topic("later", replicas=2))
    state.check()
    cordon(state, broker, here)
    orders[0].move_to(there)
    finish_move(state, orders[0], there)
    state.check()


def answer_to_move(partition: Partition, log_dir: LogDir) -> str:
    """The error of a request to move a replica into this log dir, or "accepted"."""
    try:
        partition.move_to(log_dir)
    except Refused as refusal:
        return refusal.error
    return "accepted"


@cordon_scenario(
    "kip-1066/move-cancelled",
    plan="Error handling: AlterReplicaLogDirs request, onto the log dir that the replica is in",
    judged=False,
    deviations=(CANCEL_REFUSED,),
    brokers=2,
    overrides=SMALL_FETCHES,
)
def test_move_cancelled(cluster: Cluster) -> None:
    """A move away from a cordoned log dir is cancelled: the replica stays there, since a cancel places no replica."""
    orders = cluster.create_topic("orders", replicas=2)
    write_untracked_records(orders, 800, size=1000)
    state = StateCheck(cluster, orders)
    broker = cluster.brokers[1]
    here = orders[0].log_dir_on(broker)
    there = other_dir(here)
    cordon(state, broker, here)
    with moves_held(broker):
        begin_move(orders[0], there)
        state.move_held(orders[0], there)
        try:
            orders[0].move_to(here)
            seen = "done"
        except Refused as refusal:
            seen = refusal.error
        refused = check_promised_or_known(
            CANCEL_REFUSED, cluster, seen, promised="done", known="INVALID_REPLICA_ASSIGNMENT"
        )
        if not refused:
            finish_move(state, orders[0], here)
    if refused:
        finish_move(state, orders[0], there)
    state.check()


@cordon_scenario(
    "kip-1066/reassignment-cancelled",
    plan="Error handling: AlterPartitionReassignments request, which cancels a reassignment away from the broker",
    judged=False,
    overrides=SMALL_FETCHES,
)
def test_reassignment_cancelled(cluster: Cluster) -> None:
    """A reassignment away from a wholly cordoned broker is cancelled: the replica stays, as no new one is placed."""
    orders = cluster.create_topic("orders", replicas=2)
    write_untracked_records(orders, 800, size=1000)
    state = StateCheck(cluster, orders)
    broker, stays = leader_of(orders[0]), follower_of(orders[0])
    away = Placement(partition=orders[0], on=(*cluster.others(broker, stays), stays))
    cordon(state, broker, *broker.log_dirs)
    execute(cluster, away, throttle=1)
    check_reassigning(cluster, orders[0])
    cluster.cancel_reassignment(orders[0])
    await_no_reassignment(cluster)
    state.reassignment_cancelled(orders[0], away.brokers)
    state.check()
