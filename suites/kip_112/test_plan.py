"""Shows KIP-112's system-test plan: its three items, in its order.

The plan's "validated client/cluster state" has four parts. All sources agree on brokers, topics and log dirs
(:meth:`~suites.state_check.StateCheck.check`). The broker logged the expected message
(:func:`~suites.checks.check_noticed`). Producer and consumer get through (``await_progress``). After healing, nothing
was lost or duplicated (:func:`~suites.checks.check_delivery`).

A second partition is in the broker's other log dir. It must keep its leader all the while.
"""

from __future__ import annotations

from collections.abc import Callable

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import PLAN_FAULTS, ChmodNoWrite, LogDirFault
from faults.targets import follower_of, leader_of
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Expectation
from harness.workload.pair import Pair
from suites.checks import check_delivery, check_noticed
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE, UNWRITABLE_ENDS_START
from suites.observing import expectation_of
from suites.scenario import each_fault, scenario
from suites.state_check import StateCheck
from suites.steps import (
    UNWRITABLE,
    check_serves_alone,
    ends_as_known,
    log_dirs_failed,
    one_partition_per_log_dir,
    rack_killed,
    restart_after_healing,
)


@scenario(
    "kip-112/leader-at-bootstrap",
    kip=112,
    plan="1) Log directory failure discovered during bootstrap",
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE, UNWRITABLE_ENDS_START),
)
@each_fault("fail_log_dir", PLAN_FAULTS)
def test_leader_at_bootstrap(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """A killed leader starts with a failed log dir: it goes on with the good one, and the other brokers lead.

    Brokers of builds with :data:`UNWRITABLE_ENDS_START` end if the log dir is readable; the others then serve on.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with injected(BrokerKilled(victim)):
            state.broker_gone(victim)
            state.check()
            pair.await_progress(after=now())
            with injected(fail_log_dir(log_dir)) as fault:
                state.log_dir_failed(log_dir)
                victim.start()
                readable = fail_log_dir is ChmodNoWrite
                if not (readable and ends_as_known(cluster, victim, UNWRITABLE_ENDS_START, saying=UNWRITABLE)):
                    state.broker_back(victim)
                    state.check()
                    check_noticed(fault)
                    check_counted_after_change(state, pair, cluster.others(victim)[0])
                pair.await_progress(after=now())
        restart_after_healing(state, victim)
    check_delivery(workload)


def check_counted_after_change(state: StateCheck, pair: Pair, other: Broker) -> None:
    """Builds with :data:`OFFLINE_REPLICAS_COUNTED_LATE` count an offline replica once its partition has changed.

    Another broker is killed and comes back, which changes every ISR. On other builds the replica is counted already.
    """
    if expectation_of(OFFLINE_REPLICAS_COUNTED_LATE, state.cluster) is not Expectation.NONE:
        with rack_killed(state, [other]):
            pair.await_progress(after=now())


@scenario("kip-112/leader-at-runtime", kip=112, plan="2) Log directory failure discovered on leader during runtime")
@each_fault("fail_log_dir", PLAN_FAULTS)
def test_leader_at_runtime(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The leader's log dir fails: another broker leads, and this one, alone, still serves its good log dir."""
    fails_at_runtime(cluster, workload, fail_log_dir, leader_of)


@scenario("kip-112/follower-at-runtime", kip=112, plan="3) Log directory failure discovered on follower during runtime")
@each_fault("fail_log_dir", PLAN_FAULTS)
def test_follower_at_runtime(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """A follower's log dir fails: the leader stays, and the follower's broker, alone, still serves its good log dir."""
    fails_at_runtime(cluster, workload, fail_log_dir, follower_of)


def fails_at_runtime(
    cluster: Cluster,
    workload: CaseWorkload,
    fail_log_dir: type[LogDirFault],
    role: Callable[[Partition], Broker],
) -> None:
    """Run item 2 or 3 of the plan; they differ only in the broker whose log dir fails."""
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = role(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, log_dirs_failed(state, fail_log_dir(log_dir), check_at_end=False):
        pair.await_progress(after=now())
        pair.stop()
        refunds = cluster.create_topic("refunds", partitions=1, replicas=3, failure=PromiseBroken)
        state.add_topic(refunds)
        check_serves_alone(cluster, workload, state, victim, refunds)
    victim.restart()
    state.recovered()
    check_delivery(workload)
