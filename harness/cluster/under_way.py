"""What a cluster still has under way. At the end of a case there must be nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.errors import BuildLacks, Inconclusive, PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.waiting import await_until


class UnderWay(StrEnum):
    """What a scenario may leave under way on purpose."""

    MOVE = "move"
    REASSIGNMENT = "reassignment"


def journal_under_way(cluster: Cluster, leaves: Collection[UnderWay] = ()) -> bool:
    """Wait until nothing is under way in a cluster, and write the outcome into the journal.

    ``cluster.settled`` names the brokers whose queue of log dirs was read: only KRaft has it, a build may lack the
    MBean, and a spec may have no MBeans. ``cluster.unsettled`` makes the case invalid, or unknown where brokers of a
    crowded machine do not answer. Without a live broker, nothing is checked.

    :param leaves: what the scenario leaves on purpose
    :returns: False if something was still under way
    """
    if not cluster.live_brokers():
        return True
    try:
        queues_read = await_nothing_under_way(cluster, leaves)
    except (PromiseBroken, Inconclusive) as error:
        cluster.journal.write("cluster.unsettled", error=type(error).__name__, says=str(error))
        return False
    cluster.journal.write("cluster.settled", queues_read=queues_read)
    return True


def await_nothing_under_way(cluster: Cluster, leaves: Collection[UnderWay] = ()) -> list[int]:
    """Wait until nothing is under way in a cluster; returns the ids of the brokers whose queue was read.

    :param leaves: what may be left
    :raises PromiseBroken: something is still under way
    :raises Inconclusive: brokers of a crowded machine do not answer
    """
    queues: dict[int, int] = {}
    await_until(
        lambda: list(_under_way(cluster, leaves, queues)),
        lambda found: not found,
        timeout_s=timeouts.SETTLED_S,
        what="the cluster to have nothing under way",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )
    return [*queues]


def _under_way(cluster: Cluster, leaves: Collection[UnderWay], queues: dict[int, int]) -> Iterator[str]:
    """Yield a phrase for each thing under way: log dirs to report, moves between log dirs, reassignments.

    :param queues: gets the length of each queue of log dirs that was read, by broker id
    :raises NoAnswer: a live broker does not answer
    """
    queues.clear()
    for broker in cluster.live_brokers():
        if cluster.spec.mode is Mode.KRAFT and (queued := _queued(broker)) is not None:
            queues[broker.id] = queued
            if queued:
                yield f"{broker} has yet to report the log dirs of {queued} replicas: QueuedReplicaToDirAssignments"
        if UnderWay.MOVE not in leaves:
            for (topic, partition), (log_dir, _) in sorted(broker.find_replicas(is_future=True).items()):
                yield f"{broker} has a future replica of {topic}-{partition} in {log_dir}"
    if UnderWay.REASSIGNMENT not in leaves:
        yield from (f"{each.topic}-{each.partition} is being reassigned: {each}" for each in cluster.reassignments())


def _queued(broker: Broker) -> int | None:
    """The replicas whose log dir the broker has yet to report; None if no MBean shows it."""
    if broker.mbeans is None:
        return None
    try:
        return broker.mbeans.unassigned()
    except BuildLacks:
        return None
