"""KIP-112's behaviour 7, "Partition reassignment": replica sets change while a log dir is failed.

Away from the failed dir, onto the broker that has it, and cancelled half-way. Clients work all the while; afterwards
nothing is lost or doubled, and no broker has a partition twice.
"""

from __future__ import annotations

from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement, cancel, execute, verify
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.deviations import CANCELLED_COPY_STAYS
from suites.on_disk import check_no_remains, check_one_copy
from suites.scenario import scenario
from suites.state_check import World
from suites.steps import (
    await_no_reassignment,
    check_not_added,
    log_dirs_failed,
    reassign_over_the_wire,
    restart_after_healing,
)

SLOW = 1000
"""Bytes a second that a throttled reassignment may copy, of which its topic gets thousands of times more."""


def spare_of(cluster: Cluster, partition: Partition) -> Broker:
    """The broker that has no replica of it."""
    [spare] = cluster.others(partition.leader(), *partition.followers())
    return spare


@scenario(
    "kip-112/reassigned-away",
    kip=112,
    plan="7. Partition reassignment, away from a failed log directory",
)
def test_reassigned_away(cluster: Cluster, workload: CaseWorkload) -> None:
    """A partition is moved off a failed log dir to a third broker; the disk comes back, and its replica serves nobody.

    Its log stays: in ZooKeeper mode as it was, in KRaft set aside as ``-stray`` (:class:`suites.state_check.World`).
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=2)
    world = World(cluster, orders)
    victim, follower, spare = leader_of(orders[0]), orders[0].followers()[0], spare_of(cluster, orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(world, Chmod000(log_dir)):
            pair.await_progress(after=now())
            reassign_over_the_wire(world, orders[0], spare, follower)
            pair.await_progress(after=now())
        restart_after_healing(world, victim)
        pair.await_progress(after=now())
    check_one_copy(orders)
    check_delivery(workload)


@scenario(
    "kip-112/reassigned-onto",
    kip=112,
    plan="7. Partition reassignment, onto a broker with a failed log directory",
)
def test_reassigned_onto(cluster: Cluster, workload: CaseWorkload) -> None:
    """A partition is moved onto the wounded broker: its replica is made there, on the good log dir (KAFKA-10314).

    The good one is the fuller one, where none would be made were the other good too.
    """
    refunds = cluster.create_topic("refunds", partitions=1, replicas=2)
    wounded, first = spare_of(cluster, refunds[0]), leader_of(refunds[0])
    orders = cluster.create_topic("orders", partitions=3, replicas=3)
    world = World(cluster, orders, refunds)
    emptier = min(wounded.log_dirs, key=lambda log_dir: len(world.replicas_in(log_dir)))
    with workload.running(refunds) as pair:
        with log_dirs_failed(world, Chmod000(emptier)):
            pair.await_progress(after=now())
            reassign_over_the_wire(world, refunds[0], wounded, first)
            pair.await_progress(after=now())
        restart_after_healing(world, wounded)
        pair.await_progress(after=now())
    check_no_remains(cluster, ["refunds"])
    check_delivery(workload)


@scenario(
    "kip-112/reassignment-cancelled",
    kip=112,
    plan="7. Partition reassignment, away from a failed log directory, cancelled",
    deviations=(CANCELLED_COPY_STAYS,),
)
def test_reassignment_cancelled(cluster: Cluster, workload: CaseWorkload) -> None:
    """A move off a failed log dir is cancelled while it copies: all is where it was, and the half copy is gone.

    Begun, looked at and cancelled with ``kafka-reassign-partitions``; the others are asked for over the wire.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=2)
    world = World(cluster, orders)
    victim, follower, spare = leader_of(orders[0]), orders[0].followers()[0], spare_of(cluster, orders[0])
    log_dir = orders[0].log_dir_on(victim)
    away = Placement(partition=orders[0], on=(spare, follower))
    with workload.running(orders, record_bytes=4000) as pair:
        with log_dirs_failed(world, Chmod000(log_dir)):
            pair.await_progress(after=now(), records=1000)  # more than the spare may fetch at once
            execute(cluster, away, throttle=SLOW)
            pair.await_progress(after=now())
            check_reassignment_under_way(cluster, away, adding=spare, removing=victim)
            cancel(cluster, away)
            await_no_reassignment(cluster)
            world.reassignment_cancelled(orders[0], away.brokers)
            check_not_added(world, orders[0], spare)
            pair.await_progress(after=now())
        restart_after_healing(world, victim)
        pair.await_progress(after=now())
    check_no_remains(cluster, ["orders"])
    check_delivery(workload)


def check_reassignment_under_way(cluster: Cluster, placement: Placement, *, adding: Broker, removing: Broker) -> None:
    """The tool and the wire both say that the one move is under way.

    :raises Inconclusive: it has ended; there is nothing to cancel
    :raises PromiseBroken: they disagree on it
    """
    said, under_way = verify(cluster, placement), cluster.reassignments()
    if not under_way:
        raise Inconclusive(f"the move ended before it could be cancelled: {said}")
    if said != [f"Reassignment of partition {placement.partition} is still in progress."]:
        raise PromiseBroken(f"kafka-reassign-partitions --verify says {said} of {under_way}")
    if [(move.adding, move.removing) for move in under_way] != [((adding.id,), (removing.id,))]:
        raise PromiseBroken(f"{removing} should go and {adding} come, and under way is {under_way}")
