"""Shows KIP-112's scenario 7, "Partition reassignment": partitions are reassigned while a log dir has failed.

They go away from the failed log dir, go to its broker, and are cancelled half-way. Clients work all the while.
Afterwards nothing is lost or duplicated, and no broker has a replica twice.
"""

from __future__ import annotations

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement, cancel, execute, verify
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery, check_noticed, check_records_deleted, promised
from suites.deviations import CANCELLED_REPLICA_STAYS, FAILED_REPLICA_BLOCKS
from suites.kip_112.test_behaviours import answers_to_clients
from suites.on_disk import check_no_leftovers, check_no_replica_twice
from suites.reassignments import await_no_reassignment, check_not_added, reassign_by_request
from suites.replica_mbeans import check_no_idle_fetchers
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing, write_untracked_records

SLOW = 1000
"""The throttle of a reassignment in bytes a second; clients write thousands of times more to its topic."""
WRITTEN = 100  # records


def spare_of(cluster: Cluster, partition: Partition) -> Broker:
    """The broker that has no replica of the partition."""
    [spare] = cluster.others(partition.leader(), *partition.followers())
    return spare


@scenario(
    "kip-112/reassigned-away",
    kip=112,
    plan="7. Partition reassignment, away from a failed log directory",
)
def test_reassigned_away(cluster: Cluster, workload: CaseWorkload) -> None:
    """A partition is reassigned away from a failed log dir; the disk comes back, and its old replica does not serve.

    The old log stays: in ZooKeeper mode as it was, in KRaft renamed to ``-stray``
    (:class:`suites.expected_state.ExpectedState`).
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=2)
    state = StateCheck(cluster, orders)
    victim, follower, spare = leader_of(orders[0]), orders[0].followers()[0], spare_of(cluster, orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Chmod000(log_dir)):
            pair.await_progress(after=now())
            reassign_by_request(state, orders[0], spare, follower)
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_no_replica_here(victim, orders[0])
    check_no_idle_fetchers(cluster)
    check_no_replica_twice(orders)
    check_delivery(workload)


def check_no_replica_here(broker: Broker, partition: Partition) -> None:
    """A client that takes a broker without a replica for the leader gets an error that makes it look for the leader.

    Kafka's protocol guide: NOT_LEADER_OR_FOLLOWER, if "the broker is not a replica of the topic partition".
    """
    answers = answers_to_clients(broker, partition)
    if wrong := {kind: error for kind, error in answers.items() if error != "NOT_LEADER_OR_FOLLOWER"}:
        raise PromiseBroken(
            f"{broker} has no replica of {partition}, and answers clients with {wrong}, not NOT_LEADER_OR_FOLLOWER"
        )


@scenario(
    "kip-112/reassigned-onto",
    kip=112,
    plan="7. Partition reassignment, onto a broker with a failed log directory",
)
def test_reassigned_onto(cluster: Cluster, workload: CaseWorkload) -> None:
    """A partition is reassigned to a broker with a failed log dir: its replica is created on the good one.

    The good log dir has more replicas, so the broker would choose the other one if both were good (KAFKA-10314).
    """
    refunds = cluster.create_topic("refunds", partitions=1, replicas=2)
    target, first = spare_of(cluster, refunds[0]), leader_of(refunds[0])
    orders = cluster.create_topic("orders", partitions=3, replicas=3)
    state = StateCheck(cluster, orders, refunds)
    emptier = min(target.log_dirs, key=lambda log_dir: len(state.replicas_in(log_dir)))
    with workload.running(refunds) as pair:
        with log_dirs_failed(state, Chmod000(emptier)):
            pair.await_progress(after=now())
            reassign_by_request(state, refunds[0], target, first)
            pair.await_progress(after=now())
        restart_after_healing(state, target)
        pair.await_progress(after=now())
    check_no_leftovers(cluster, ["refunds"])
    check_delivery(workload)


@scenario(
    "kip-112/reassignment-cancelled",
    kip=112,
    plan="7. Partition reassignment, away from a failed log directory, cancelled",
    deviations=(CANCELLED_REPLICA_STAYS,),
)
def test_reassignment_cancelled(cluster: Cluster, workload: CaseWorkload) -> None:
    """A reassignment away from a failed log dir is cancelled half-way: all is as before, and the new replica is gone.

    ``kafka-reassign-partitions`` begins, shows and cancels it; the other scenarios here send requests.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=2)
    state = StateCheck(cluster, orders)
    victim, follower, spare = leader_of(orders[0]), orders[0].followers()[0], spare_of(cluster, orders[0])
    log_dir = orders[0].log_dir_on(victim)
    away = Placement(partition=orders[0], on=(spare, follower))
    with workload.running(orders, record_bytes=4000) as pair:
        with log_dirs_failed(state, Chmod000(log_dir)):
            pair.await_progress(after=now(), records=1000)  # more than the spare may fetch at once
            execute(cluster, away, throttle=SLOW)
            pair.await_progress(after=now())
            check_reassignment_under_way(cluster, away, adding=spare, removing=victim)
            cancel(cluster, away)
            await_no_reassignment(cluster)
            state.reassignment_cancelled(orders[0], away.brokers)
            check_not_added(state, orders[0], spare)
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)


def check_reassignment_under_way(cluster: Cluster, placement: Placement, *, adding: Broker, removing: Broker) -> None:
    """The tool and ListPartitionReassignments both show that this reassignment is under way.

    :raises Inconclusive: it has ended, so there is nothing to cancel
    """
    said, under_way = verify(cluster, placement), cluster.reassignments()
    if not under_way:
        raise Inconclusive(f"the reassignment ended before it could be cancelled: {said}")
    if said != [f"Reassignment of partition {placement.partition} is still in progress."]:
        raise PromiseBroken(f"kafka-reassign-partitions --verify shows {said} for the reassignment {under_way}")
    if [(move.adding, move.removing) for move in under_way] != [((adding.id,), (removing.id,))]:
        raise PromiseBroken(
            f"{removing} should be removed and {adding} added, but ListPartitionReassignments shows {under_way}"
        )


@scenario(
    "kip-112/reassigned-back",
    kip=112,
    plan="7. Partition reassignment, away from a failed log directory, and back to its broker",
    judged=False,
    deviations=(FAILED_REPLICA_BLOCKS,),
    brokers=4,
)
def test_reassigned_back(cluster: Cluster) -> None:
    """A partition is reassigned away from a failed log dir, and back to its broker: the good log dir gets it.

    In between, its leader does not wait for the replica that it no longer has, which DeleteRecords shows (KIP-107).
    On builds where the second reassignment does not end, it ends once the log dir is healed and the broker has
    restarted.
    """
    orders = cluster.create_topic("orders", replicas=3)
    write_untracked_records(orders, WRITTEN)
    victim, spare = follower_of(orders[0]), spare_of(cluster, orders[0])
    staying = [orders[0].leader(), *(each for each in orders[0].followers() if each != victim)]
    failed = orders[0].log_dir_on(victim)
    with injected(fault := Chmod000(failed)):
        check_noticed(fault)
        cluster.reassign(orders[0], [*staying, spare])
        await_no_reassignment(cluster)
        check_records_deleted(orders[0], before=WRITTEN // 2)
        cluster.reassign(orders[0], [*staying, victim])
        adding = rf"all reassignments to end; .*adding=\({victim.id},\)"
        with promised(cluster, unless=FAILED_REPLICA_BLOCKS, seen=adding) as outcome:
            await_no_reassignment(cluster, timeout_s=timeouts.RECOVERY_S / 2)
        if outcome.deviates and (place := victim.log_dir_of("orders", 0)) is not None:
            raise PromiseBroken(f"{victim} has created {orders[0]} in {place}, and the reassignment does not end")
    if outcome.deviates:
        victim.restart()
        await_no_reassignment(cluster)
