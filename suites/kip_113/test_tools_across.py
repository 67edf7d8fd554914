"""Shows kafka-reassign-partitions across brokers (KIP-113, "Scripts"; KIP-455 for ``--cancel``).

Replicas go to a named log dir of another broker, to any, or as the tool proposes, with ``--timeout 0``, or are refused.
The tool's answers are compared with what brokers and disks show.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement, cancel, execute, generate, list_under_way
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import VersionRange
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.background import in_background
from suites.checks import check_delivery, check_settings, promised
from suites.deviations import CANCELLED_REPLICA_STAYS, GROWTH_NOT_CANCELLED, REASSIGNED_BEFORE_REFUSAL
from suites.kip_113.tool_requests import execution_error, refused_requests
from suites.moves import MOVE_THROTTLE, SMALL_FETCHES
from suites.on_disk import check_no_leftovers
from suites.reassignments import (
    AMPLE_RATE,
    OF_FOLLOWER,
    OF_LEADER,
    RATES,
    await_reassigned,
    await_verified,
    check_not_added,
    check_reassigning,
    reassign,
    replicas_after,
    throttle_replication,
)
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck

THROTTLES = (MOVE_THROTTLE, *RATES)
KEEPS_FACTOR = VersionRange.parse(">=4.1")
"""Builds that can be asked to keep the replication factor (KIP-860)."""
TRIES = 10
PARTITIONS_AT_ONCE = 50  # partitions of each topic that keeps a broker busy creating replicas


@scenario(
    "kip-113/tools-across",
    kip=113,
    plan='Scripts: kafka-reassign-partitions with log_dirs and "any"; across brokers',
    brokers=4,
    floors=NO_FAULT,
    deviations=(REASSIGNED_BEFORE_REFUSAL,),
    overrides=SMALL_FETCHES,  # as similar scenarios, so that they share a cluster
)
def test_tools_across(cluster: Cluster, workload: CaseWorkload) -> None:
    """Replicas go to another broker, a named log dir or any, or as the tool proposes; a refusal changes nothing."""
    orders, beside = cluster.create_topic("orders"), cluster.create_topic("beside", partitions=2)
    state = StateCheck(cluster, orders, beside)
    with workload.running(orders) as pair:
        coming, staying = broker_without_replica(cluster, orders[0])
        for place in coming.log_dirs:  # one of them is not the one that the broker would choose
            placement = Placement(partition=orders[0], on=(place, *staying))
            before = orders[0].describe().replicas
            current = execute(cluster, placement, throttle=AMPLE_RATE, log_dirs_throttle=AMPLE_RATE)
            check_current(state, orders, current)
            check_settings(coming, dict.fromkeys(THROTTLES, str(AMPLE_RATE)))
            check_throttled(orders, listed(before), listed({coming.id} - {*before}))
            if place == coming.log_dirs[0]:
                check_throttles_preserved(cluster, orders, placement)
            await_reassigned(cluster, state, placement, timeout_s=timeouts.MOVE_S)
            for broker in cluster.brokers:
                check_settings(broker, dict.fromkeys(THROTTLES))
            check_throttled(orders, None, None)
        pair.await_progress(after=now())
        if cluster.distribution.version in KEEPS_FACTOR:
            check_factor_kept(orders[0])
        chosen = cluster.brokers[1:]
        current, proposed = generate(cluster, [beside], chosen)
        check_current(state, beside, current)
        if len(proposed) != len(beside):
            raise PromiseBroken(f"--generate proposes {len(proposed)} of {len(beside)} partitions")
        if any(len(set(placement.brokers) & set(chosen)) != 3 for placement in proposed):
            raise PromiseBroken(f"--generate proposes {', '.join(map(str, proposed))} for 3 replicas on {chosen}")
        reassign(cluster, state, *proposed)
        check_timeout_zero(cluster, state, beside[0])
        coming, staying = broker_without_replica(cluster, beside[0])
        nowhere = LogDir(coming, Path("/nowhere"))
        now_on = map(cluster.broker, check_not_executed(Placement(partition=beside[0], on=(nowhere, *staying))))
        state.reassigned(beside[0], [beside[0].log_dir_on(broker) for broker in now_on])
        state.check()
        pair.await_progress(after=now())
    check_no_leftovers(cluster, {"orders", "beside"})
    check_delivery(workload)


def check_throttles_preserved(cluster: Cluster, topic: Topic, placement: Placement) -> None:
    """``--verify --preserve-throttles`` reports the end of a reassignment, and leaves its throttles as they are.

    Another change of configs follows: once a broker knows it, the broker knows what the tool changed, too.
    """
    throttled = [
        topic.cluster.brokers[0].admin.topic_configs(topic.name).get(name) for name in (OF_LEADER, OF_FOLLOWER)
    ]
    await_verified(cluster, placement, preserve_throttles=True)
    moving = {place.broker for place in placement.on if isinstance(place, LogDir)}
    for broker in placement.brokers:
        broker.configure({"jbod.preserved": topic.name})
        check_settings(broker, dict.fromkeys(THROTTLES if broker in moving else RATES, str(AMPLE_RATE)))
    check_throttled(topic, *throttled)


def broker_without_replica(cluster: Cluster, partition: Partition) -> tuple[Broker, list[Broker]]:
    """The broker that has no replica of the partition, and the brokers that have one, except the first."""
    replicas = [cluster.broker(id) for id in partition.describe().replicas]
    [coming] = cluster.others(*replicas)
    return coming, replicas[1:]


def check_timeout_zero(cluster: Cluster, state: StateCheck, partition: Partition) -> None:
    """With ``--timeout 0``, the tool requests a log dir once, and gives up if the replica does not exist yet.

    The broker remembers the request: the replica is created in this log dir. The broker is kept busy
    with other replicas, so that it creates this one late. Its log shows a request that came too early.

    :raises Inconclusive: the replica existed each time before the tool asked
    """
    for _ in range(TRIES):
        coming, staying = broker_without_replica(cluster, partition)
        placement = Placement(partition=partition, on=(coming.log_dirs[-1], *staying))
        since = now()
        with busy_creating_replicas(cluster, coming):
            said = execution_error(cluster, placement, timeout_ms=0)
        await_reassigned(cluster, state, placement, timeout_s=timeouts.MOVE_S)
        too_early = len(refused_requests(partition, coming, since))
        cluster.journal.write("reassignment.impatient", partition=str(partition), too_early=too_early, said=said)
        if check_gave_up(said, too_early):
            return
    raise Inconclusive(f"{TRIES} times, {partition} existed when kafka-reassign-partitions requested its log dir")


def check_gave_up(said: str | None, too_early: int) -> bool:
    """Whether the tool with ``--timeout 0`` asked too early and gave up.

    :param said: the tool's error
    :param too_early: how often the broker answered that the replica does not exist yet
    :raises PromiseBroken: it asked too early and did not give up at once; or it ended with another error
    """
    gave_up = said is not None and "Timed out before log directory move" in said
    if too_early > 1 or gave_up != bool(too_early) or (said and not gave_up):
        raise PromiseBroken(
            f"kafka-reassign-partitions --timeout 0 asked {too_early} times before the replica existed, and should "
            f"give up at the first; its error is: {said or 'none'}"
        )
    return gave_up


@contextmanager
def busy_creating_replicas(cluster: Cluster, broker: Broker) -> Iterator[None]:
    """Inside the block, the broker is busy creating replicas, so that it creates others later.

    Meanwhile it answers a request to move a replica only between two batches
    (``ReplicaManager.replicaStateChangeLock``).
    """

    def one_more() -> None:
        new = NewTopic(
            name=f"crowd-{uuid.uuid4().hex[:8]}",
            replicas=1,
            assignment={index: [broker.id] for index in range(PARTITIONS_AT_ONCE)},
        )
        cluster.create_topics(new)

    with in_background(*[one_more] * 3, every_s=0) as errors:
        yield
    if errors:
        raise errors[0]


def check_current(state: StateCheck, topic: Topic, shown: Sequence[Placement]) -> None:
    """The current placement that the tool shows of a topic is the expected one; some builds do not show log dirs."""
    if len(shown) != len(topic):
        raise PromiseBroken(f"kafka-reassign-partitions shows the current placement of {len(shown)} of {len(topic)}")
    for placement in shown:
        partition = placement.partition
        wanted = state.expected(partition.topic, partition.index).replicas
        wrong = [
            place
            for place in placement.on
            if isinstance(place, LogDir) and (partition.topic, partition.index) not in state.replicas_in(place)
        ]
        if tuple(broker.id for broker in placement.brokers) != wanted or wrong:
            named = f"; not in these log dirs: {', '.join(map(str, wrong))}" if wrong else ""
            raise PromiseBroken(
                f"kafka-reassign-partitions shows {placement} as the current placement instead of {wanted}{named}"
            )


def check_throttled(topic: Topic, leaders: str | None, followers: str | None) -> None:
    """The topic's configs list exactly these replicas as throttled (KIP-73).

    :param leaders: the replicas that it had, as the tool lists them; None: the config is not set
    :param followers: the new ones
    """
    admin = topic.cluster.live_brokers()[0].admin
    await_until(
        lambda: [admin.topic_configs(topic.name).get(name) for name in (OF_LEADER, OF_FOLLOWER)],
        lambda seen: seen == [leaders, followers],
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{OF_LEADER} and {OF_FOLLOWER} of {topic} to be {leaders} and {followers}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def listed(brokers: Iterable[int]) -> str:
    """The replicas of partition 0 on these brokers, as kafka-reassign-partitions lists throttled replicas."""
    return ",".join(f"0:{id}" for id in sorted(brokers))


def check_not_executed(placement: Placement) -> tuple[int, ...]:
    """A reassignment that a broker refuses is not carried out in part; returns the broker ids of the replicas.

    :raises PromiseBroken: the tool shows no error; or part of it is carried out, except on builds known for that
    """
    cluster, before = placement.partition.cluster, placement.partition.describe().replicas
    said = execution_error(cluster, placement)
    if said is None or "Failed to alter dir" not in said:
        raise PromiseBroken(f"{placement} must be refused; the error of kafka-reassign-partitions is: {said or 'none'}")
    after = replicas_after(placement, before)
    half = f"went from {before} to {tuple(broker.id for broker in placement.brokers)}"
    with promised(cluster, unless=REASSIGNED_BEFORE_REFUSAL, seen=f"{re.escape(half)}$"):
        if after != before:
            raise PromiseBroken(f"{placement} was refused, and the replicas went from {before} to {after}")
    return after


def check_factor_kept(partition: Partition) -> None:
    """Whoever asks to keep the number of replicas is refused to change it, and nothing is reassigned (KIP-860)."""
    cluster, before = partition.cluster, partition.describe().replicas
    fewer = Placement(partition=partition, on=tuple(cluster.broker(id) for id in before[:-1]))
    said = execution_error(cluster, fewer, keep_factor=True)
    if said is None or "replication factor" not in said:
        raise PromiseBroken(f"{fewer} changes the replication factor, and must be refused; the error is {said}")
    if (after := replicas_after(fewer, before)) != before:
        raise PromiseBroken(f"{fewer} was refused, and the replicas went from {before} to {after}")


def check_listed(cluster: Cluster) -> None:
    """``--list`` prints the reassignments that are under way, each with its replicas."""
    under_way, shown = cluster.reassignments(), list_under_way(cluster)
    if shown != [*under_way]:
        raise PromiseBroken(f"--list prints {shown}, and the controller has {list(under_way)}")


def check_not_additional(placement: Placement) -> None:
    """While a reassignment is under way, ``--execute`` is refused, unless ``--additional`` is given (KIP-455)."""
    said = execution_error(placement.partition.cluster, placement)
    if said is None or "--additional" not in said:
        raise PromiseBroken(
            f"kafka-reassign-partitions --execute of {placement}, which is under way, must be refused without "
            f"--additional; its error is: {said or 'none'}"
        )


@scenario(
    "kip-113/growth-cancelled",
    kip=455,
    plan="kafka-reassign-partitions --cancel",
    floors=NO_FAULT,
    deviations=(GROWTH_NOT_CANCELLED, CANCELLED_REPLICA_STAYS),
    overrides=SMALL_FETCHES,
)
def test_growth_cancelled(cluster: Cluster, workload: CaseWorkload) -> None:
    """kafka-reassign-partitions cancels a throttled reassignment that adds a replica: no replica is added."""
    orders = cluster.create_topic("orders", replicas=2)
    state = StateCheck(cluster, orders)
    has = [cluster.broker(id) for id in orders[0].describe().replicas]
    [more] = cluster.others(*has)
    placement = Placement(partition=orders[0], on=(*has, more))
    with workload.running(orders, record_bytes=1000) as pair:
        pair.await_count(500)
        throttle_replication(orders, rate=1)  # the tool does not wait until brokers know its throttle
        execute(cluster, placement, throttle=1)
        check_reassigning(cluster, orders[0])
        check_listed(cluster)
        check_not_additional(placement)
        cancel(cluster, placement)
        before = tuple(broker.id for broker in has)
        on = replicas_after(placement, before)
        grown = f"on {tuple(broker.id for broker in placement.brokers)}"
        with promised(cluster, unless=GROWTH_NOT_CANCELLED, seen=f"{re.escape(grown)}$"):
            if on != before:
                raise PromiseBroken(f"{placement} was cancelled, and the replicas are on {on}")
        pair.await_progress(after=now())
    state.reassigned(orders[0], [orders[0].log_dir_on(cluster.broker(id)) for id in on])
    check_not_added(state, orders[0], more)
    check_no_leftovers(cluster, {"orders"})
    check_delivery(workload)
