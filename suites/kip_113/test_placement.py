"""Shows that a broker places a replica as requested before it exists, and refuses what it cannot do (KIP-113, 1.).

"If broker doesn't not have already replica created for the specified topicParition when it receives
AlterReplicaDirRequest, it will reply ReplicaNotAvailableException AND remember (replica, destination log directory)
pair in memory to create the replica in the specified log directory when it receives LeaderAndIsrRequest later."
"""

from __future__ import annotations

from pathlib import Path

from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery, check_promised_or_known, promised
from suites.deviations import ANY_REFUSED, UNKNOWN_TOPIC_ANSWERED
from suites.moves import SMALL_FETCHES, begin_move, check_under_way, finish_move, moves_held
from suites.on_disk import check_no_leftovers, check_topic_gone
from suites.reassignments import reassign_by_request
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing, write_untracked_records


def check_move_refused(partition: Partition, log_dir: LogDir, error: str) -> None:
    """The broker refuses to move the replica into this log dir, with this error."""
    if (refusal := move_refusal(partition, log_dir)) != error:
        raise PromiseBroken(f"a move of {partition} to {log_dir} is answered with {refusal} instead of {error}")


def move_refusal(partition: Partition, log_dir: LogDir) -> str | None:
    """The error with which the broker refuses to move the replica into this log dir; None if it accepts."""
    try:
        partition.move_to(log_dir)
    except Refused as refusal:
        log_dir.broker.journal.write("move.refused", partition=str(partition), to=str(log_dir), error=refusal.error)
        return refusal.error
    return None


def fuller_of(state: StateCheck, broker: Broker) -> LogDir:
    """A good log dir that the broker would not choose itself, since it has more replicas than another one.

    Replicas of internal topics count, too. If all log dirs have equally many, create one more topic.

    :raises Inconclusive: all log dirs have equally many replicas even then
    """
    for more in (True, False):
        paths = {str(log_dir.path): log_dir for log_dir in broker.log_dirs}
        described = [each for each in broker.describe_log_dirs() if not each.offline]
        counts = {paths[each.path]: len(each.replicas) for each in described}
        fullest = max(counts, key=lambda log_dir: counts[log_dir])
        if counts[fullest] > min(counts.values()):
            return fullest
        if more:
            state.add_topic(state.cluster.create_topic("one-more", replicas=len(state.cluster.brokers)))
    raise Inconclusive(f"the log dirs of {broker} have equally many replicas, also after one more topic: {counts}")


@scenario(
    "kip-113/placed-before",
    kip=113,
    plan="remember (replica, destination log directory) pair … to create the replica in the specified log directory",
    brokers=4,
    floors=NO_FAULT,
    deviations=(UNKNOWN_TOPIC_ANSWERED,),
    overrides=SMALL_FETCHES,  # as similar scenarios, so that they share a cluster
)
def test_placed_before(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir is requested for a replica that does not exist yet: a reassignment or a new topic places it there.

    The request counts once. If the topic is deleted and created again, the broker places the replica itself.
    """
    orders, everywhere = cluster.create_topic("orders"), cluster.create_topic("everywhere", replicas=4)
    state = StateCheck(cluster, orders, everywhere)
    staying = orders[0].followers()
    [coming] = cluster.others(leader_of(orders[0]), *staying)
    with workload.running(orders) as pair:
        place = fuller_of(state, coming)
        check_move_refused(orders[0], LogDir(coming, Path("/nowhere")), "LOG_DIR_NOT_FOUND")
        check_move_refused(orders[0], place, "REPLICA_NOT_AVAILABLE")
        reassign_by_request(state, orders[0], coming, *staying)
        check_in(orders[0], place)
        check_placed(state, place)
        state.check()
        check_placed_by_rule(state, Partition(cluster, "refunds", 0), coming)
        pair.await_progress(after=now())
    check_no_leftovers(cluster, {"orders", "everywhere", "refunds", "one-more"})
    check_delivery(workload)


def check_placed(state: StateCheck, log_dir: LogDir) -> None:
    """A log dir is requested for a replica of a topic that does not exist yet; the topic's replica is created there."""
    refunds = Partition(state.cluster, "refunds", 0)
    check_promised_or_known(
        UNKNOWN_TOPIC_ANSWERED,
        state.cluster,
        move_refusal(refunds, log_dir),
        promised="REPLICA_NOT_AVAILABLE",
        known="UNKNOWN_TOPIC_OR_PARTITION",
    )
    state.add_topic(state.cluster.create_topic(refunds.topic, replicas=len(state.cluster.brokers)))
    check_in(refunds, log_dir)


def check_placed_by_rule(state: StateCheck, partition: Partition, broker: Broker) -> None:
    """A topic is deleted and created again: the broker creates the replica in the log dir with the fewest replicas.

    :raises Inconclusive: the log dir that was requested for the first topic has the fewest now
    """
    cluster, topic = state.cluster, state.cluster.topics[partition.topic]
    requested = partition.log_dir_on(broker)
    cluster.delete_topics(topic)
    state.remove_topic(topic)
    check_topic_gone(cluster, topic.name)
    counts = {log_dir: len(state.replicas_in(log_dir)) for log_dir in broker.log_dirs}
    if counts[requested] == min(counts.values()):
        raise Inconclusive(f"{requested}, which was requested, has the fewest replicas: {counts}")
    state.add_topic(cluster.create_topic(topic.name, replicas=len(cluster.brokers)))
    place = partition.log_dir_on(broker)
    if counts[place] > min(counts.values()):
        raise PromiseBroken(f"{partition} was created in {place}, which does not have the fewest replicas: {counts}")


def check_in(partition: Partition, log_dir: LogDir) -> None:
    """The broker's replica is in this log dir."""
    place = partition.log_dir_on(log_dir.broker)
    if place != log_dir:
        raise PromiseBroken(f"{partition} was created in {place}, but {log_dir} had been requested")


@scenario(
    "kip-113/placed-beside-moves",
    kip=113,
    plan="1. How to move replicas between log dirs: a replica that moves into a log dir counts there for new replicas",
    judged=False,
    overrides=SMALL_FETCHES,
)
def test_placed_beside_moves(cluster: Cluster) -> None:
    """Replicas move into the log dir with fewer replicas until it has more: a new replica is created in the other one.

    Before, a broker would have created the new replica where the others move to.
    """
    mover = cluster.brokers[0]
    [moving] = cluster.create_topics(NewTopic(name="moving", assignment={index: [mover.id] for index in range(3)}))
    write_untracked_records(moving, 2400, size=1000)
    state = StateCheck(cluster, moving)
    before = replicas_by_log_dir(mover)
    here, there = sorted(mover.log_dirs, key=lambda log_dir: before[log_dir], reverse=True)
    leaving = [partition for partition in moving.partitions if partition.log_dir_on(mover) == here]
    with moves_held(mover):
        for number, partition in enumerate(leaving):
            begin_move(partition, there, waits=number > 0)
        held = replicas_by_log_dir(mover)
        if not (before[there] < before[here] == held[here] < held[there]):
            raise Inconclusive(f"the moves change nothing about where a new replica belongs: {before}, then {held}")
        [refunds] = cluster.create_topics(NewTopic(name="refunds", assignment={0: [mover.id]}))
        place = refunds[0].log_dir_on(mover)
        for partition in leaving:
            check_under_way(partition, there)
    if place != here:
        raise PromiseBroken(f"{refunds[0]} was created in {place}, which does not have the fewest replicas: {held}")
    state.add_topic(refunds)
    for partition in leaving:
        finish_move(state, partition, there)
    state.check()


def replicas_by_log_dir(broker: Broker) -> dict[LogDir, int]:
    """How many replicas, with future replicas, the broker describes in each of its log dirs."""
    described = {each.path: len(each.replicas) for each in broker.describe_log_dirs()}
    return {log_dir: described[str(log_dir.path)] for log_dir in broker.log_dirs}


@scenario(
    "kip-113/refused",
    kip=113,
    plan="AlterReplicaDirResponse … error_code",
    log_dirs=3,
    deviations=(ANY_REFUSED, UNKNOWN_TOPIC_ANSWERED),
    overrides=SMALL_FETCHES,
)
def test_refused(cluster: Cluster, workload: CaseWorkload) -> None:
    """Moves that a broker cannot carry out are refused with the KIP's errors, and none of them begins."""
    orders, long_name = cluster.create_topic("orders"), cluster.create_topic("o" * 220, replicas=1)
    beside = cluster.create_topic("beside", partitions=3)
    state = StateCheck(cluster, orders, long_name, beside)
    victim = follower_of(orders[0])
    here = orders[0].log_dir_on(victim)
    bad, good = (log_dir for log_dir in victim.log_dirs if log_dir != here)
    with workload.running(orders, record_bytes=1000) as pair:
        pair.await_count(500)  # more than the first fetch of a held move
        check_move_refused(orders[0], LogDir(victim, Path("/nowhere")), "LOG_DIR_NOT_FOUND")
        # "topicPartition.<uuid>-future" would be longer than a file's name may be (KAFKA-4893).
        alone = leader_of(long_name[0])
        away = next(each for each in alone.log_dirs if each != long_name[0].log_dir_on(alone))
        check_move_refused(long_name[0], away, "INVALID_TOPIC")
        with moves_held(victim):
            begin_move(orders[0], good)
            with promised(cluster, unless=ANY_REFUSED, seen=": LOG_DIR_NOT_FOUND") as cancelled:
                cancel_with_any(orders[0], victim)
        # If the broker refused to cancel it, the move goes on.
        finish_move(state, orders[0], good if cancelled.deviates else here)
        orders[0].move_to(here)
        finish_move(state, orders[0], here)
        with log_dirs_failed(state, Chmod000(bad)):
            [lost] = {key for key in state.replicas_in(bad) if key[0] == "beside"}
            check_move_refused(orders[0], bad, "KAFKA_STORAGE_ERROR")
            check_move_refused(orders[0], good, "KAFKA_STORAGE_ERROR")
            check_move_refused(beside[lost[1]], good, "KAFKA_STORAGE_ERROR")
            # A request for a replica that does not exist yet is refused in the same way, or remembered.
            check_move_refused(Partition(cluster, "refunds", 0), bad, "KAFKA_STORAGE_ERROR")
            check_placed(state, fuller_of(state, victim))
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        check_no_leftovers(cluster, {"orders", "beside", "refunds", "one-more", long_name.name})
    check_delivery(workload)


def cancel_with_any(partition: Partition, broker: Broker) -> None:
    """Cancel a move with the destination "any" (KIP-113, notes of 1.).

    "Broker will cancel existing movement of the replica if "any" is specified as destination".

    :raises PromiseBroken: the broker refuses
    """
    try:
        broker.admin.alter_replica_log_dir(partition.topic, partition.index, "any")
    except Refused as refusal:
        raise PromiseBroken(str(refusal)) from refusal
