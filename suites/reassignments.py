"""Steps that reassign partitions by tool or request, throttle that, and check how it ends."""

from __future__ import annotations

from collections.abc import Sequence

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement, execute, verify
from harness.cluster.topic import Partition, Topic
from harness.errors import JbodError, PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.checks import (
    check_settings,
    promised,
)
from suites.deviations import CANCELLED_REPLICA_STAYS
from suites.moves import not_moved
from suites.observations import metadata_log
from suites.on_disk import check_no_leftovers
from suites.state_check import StateCheck


def reassign(cluster: Cluster, state: StateCheck, *placements: Placement, timeout_s: float = timeouts.MOVE_S) -> None:
    """Run kafka-reassign-partitions with ``--execute``, and ``--verify`` until it reports that all is done.

    Then all sources must agree, and no broker may have leftovers or a replica twice.

    :raises PromiseBroken: the reassignment does not end in time; the error has the tool's answer
    """
    execute(cluster, *placements)
    await_reassigned(cluster, state, *placements, timeout_s=timeout_s)


def await_reassigned(cluster: Cluster, state: StateCheck, *placements: Placement, timeout_s: float) -> None:
    """Wait until a reassignment of :func:`harness.cluster.reassign.execute` ended; check it like :func:`reassign`."""
    await_verified(cluster, *placements, timeout_s=timeout_s)
    check_in_named_log_dirs(placements)
    for placement in placements:
        partition = placement.partition
        chosen = [place if isinstance(place, LogDir) else partition.log_dir_on(place) for place in placement.on]
        state.reassigned(partition, chosen)
    state.check(also=[metadata_log])
    check_no_leftovers(cluster, {placement.partition.topic for placement in placements})


def await_verified(
    cluster: Cluster, *placements: Placement, timeout_s: float = timeouts.MOVE_S, preserve_throttles: bool = False
) -> None:
    """Run kafka-reassign-partitions with ``--verify`` until it reports that all is done.

    :raises PromiseBroken: it does not report this in time
    """
    await_until(
        lambda: verify(cluster, *placements, preserve_throttles=preserve_throttles),
        lambda unfinished: not unfinished,
        timeout_s=timeout_s,
        what=f"kafka-reassign-partitions --verify to report that all is done: {'; '.join(map(str, placements))}",
        failure=PromiseBroken,
    )


def check_in_named_log_dirs(placements: Sequence[Placement]) -> None:
    """Right after the tool reported the end, the replicas are in the named log dirs, without future replicas."""
    for partition, log_dir in ((each.partition, place) for each in placements for place in each.on):
        if isinstance(log_dir, LogDir) and (differs := not_moved(partition, log_dir)):
            raise PromiseBroken(
                f"kafka-reassign-partitions reported {partition} as moved into {log_dir}, but {differs}"
            )


def reassign_by_request(state: StateCheck, partition: Partition, *brokers: Broker) -> None:
    """Reassign a partition to these brokers by an AlterPartitionReassignments request (KIP-455), and check the end."""
    reassign_together(state, Placement(partition=partition, on=brokers))


def reassign_together(state: StateCheck, *placements: Placement) -> None:
    """Reassign several partitions in parallel by requests, and wait until all sources agree.

    A replica that is offline stays in its log dir.
    """
    for placement in placements:
        state.cluster.reassign(placement.partition, placement.brokers)
    await_no_reassignment(state.cluster)
    for placement in placements:
        partition = placement.partition
        offline = state.expected(partition.topic, partition.index).offline
        chosen = [
            state.log_dir_of(partition, broker) if broker.id in offline else partition.log_dir_on(broker)
            for broker in placement.brokers
        ]
        state.reassigned(partition, chosen)
    state.check(also=[metadata_log])


def await_no_reassignment(cluster: Cluster, *, timeout_s: float = timeouts.MOVE_S) -> None:
    """Wait until no reassignment is under way.

    :raises PromiseBroken: one takes longer than a replica may take to catch up
    """
    await_until(
        cluster.reassignments,
        lambda under_way: not under_way,
        timeout_s=timeout_s,
        what="all reassignments to end",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def replicas_after(placement: Placement, before: Sequence[int]) -> tuple[int, ...]:
    """The replicas of a partition once no reassignment is under way: those from before, or those of the placement.

    All brokers are asked, since some hear later of the end.

    :raises PromiseBroken: brokers name other replicas, or disagree, for too long
    """
    cluster, partition = placement.partition.cluster, placement.partition
    await_no_reassignment(cluster)
    ends = [{tuple(before)}, {tuple(broker.id for broker in placement.brokers)}]
    [replicas] = await_until(
        lambda: {partition.describe(broker).replicas for broker in cluster.live_brokers()},
        lambda seen: seen in ends,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"all brokers to name the replicas of {partition}: {before}, or those of {placement}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    return replicas


def check_reassigning(cluster: Cluster, partition: Partition, *, failure: type[JbodError] = PromiseBroken) -> None:
    """A reassignment of the partition is under way, and its leader counts it in ReassigningPartitions.

    :param failure: the error if it has ended though its replicas could hardly be copied; Inconclusive where nothing
        proves that a throttle was in force before it began
    """
    under_way = cluster.reassignments()
    if (partition.topic, partition.index) not in {(each.topic, each.partition) for each in under_way}:
        raise failure(f"the reassignment of {partition} ended, though its new replicas could hardly be copied")
    leader = partition.leader()
    if leader.mbeans is not None:
        await_until(
            leader.mbeans.reassigning,
            timeout_s=timeouts.REQUEST_S,
            what=f"{leader} to count the reassignment of {partition} in ReassigningPartitions",
            retry_on=(NoAnswer,),
            failure=failure,
        )
    cluster.journal.write("reassignment.under_way", partition=str(partition))


OF_LEADER, OF_FOLLOWER = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
"""Configs of topics: the replicas that are throttled (KIP-73)."""

RATES = LEADER_RATE, FOLLOWER_RATE = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Configs of brokers, in bytes a second."""


def throttle_replication(*topics: Topic, rate: int, replicas: str = "*") -> None:
    """Throttle replicas of these topics to so many bytes a second on each broker, and wait until that is in force.

    A broker may apply a config together with a reassignment, and the config last. So this waits before one begins.

    :param replicas: the throttled replicas of each topic: all, or a list of ``partition:broker``
    """
    brokers = topics[0].cluster.brokers
    for topic in topics:  # first: a broker that knows its rate then knows this, too
        topic.configure(dict.fromkeys((OF_LEADER, OF_FOLLOWER), replicas))
    for broker in brokers:
        broker.configure(dict.fromkeys(RATES, str(rate)))
    for broker in brokers:
        check_settings(broker, dict.fromkeys(RATES, str(rate)))


def check_not_added(state: StateCheck, partition: Partition, broker: Broker) -> None:
    """A reassignment that was adding a replica on this broker was cancelled: the replica is gone.

    On builds with :data:`CANCELLED_REPLICA_STAYS`, only the broker and the disk still have it, and it is expected from
    here on.
    """
    has_it = f"has a {partition} in"
    counted = rf"the MBeans of {broker} say PartitionCount \d+ instead of \d+"
    besides = rf"the disk {has_it} \1 of {broker}(?:; {counted})?"
    stays = rf"last seen: \['{broker} {has_it} (\S+) of {broker}'\]; besides: {besides}$"
    with promised(state.cluster, unless=CANCELLED_REPLICA_STAYS, seen=stays) as outcome:
        state.check()
    if outcome.deviates:
        kept = broker.log_dir_of(partition.topic, partition.index)
        assert kept is not None, "all sources have just shown that it is there"
        state.replica_kept(partition, kept)
        state.check()


AMPLE_RATE = 1 << 30
"""Bytes a second: a throttle that holds nothing up."""
