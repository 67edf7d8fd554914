"""KIP-112's system-test plan, in its own three items and its own order.

"Validated client/cluster state" is, each time: brokers run and the wounded one logged the expected message
(:func:`~suites.checks.check_noticed`), topic description and log dirs are as the model of the cluster says
(:meth:`~suites.state_check.World.check`), the pair gets through (``await_progress``), and in the end, all healed,
nothing was lost or doubled (:func:`~suites.checks.check_delivery`).

Beside the partition in the log dir that fails there is one in the other, which must keep its leader all the while.
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
from suites.checks import check_delivery, check_noticed
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE, UNWRITABLE_ENDS_START
from suites.scenario import each_fault, scenario
from suites.state_check import World
from suites.steps import check_serves_alone, ends_unwritable, log_dirs_failed, restart_after_healing, two_dirs


@scenario(
    "kip-112/leader-at-bootstrap",
    kip=112,
    plan="1) Log directory failure discovered during bootstrap",
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE, UNWRITABLE_ENDS_START),
)
@each_fault("fail_log_dir", PLAN_FAULTS)
def test_leader_at_bootstrap(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """A killed leader comes back to a failed log dir: it starts, leads nothing there, and the others serve on.

    Builds with :data:`UNWRITABLE_ENDS_START` end on one that they can read; the others serve on until it is good again.
    """
    orders = two_dirs(cluster)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with injected(BrokerKilled(victim)):
            world.broker_gone(victim)
            world.check()
            pair.await_progress(after=now())
            with injected(fail_log_dir(log_dir)) as fault:
                world.log_dir_failed(log_dir)
                victim.start()
                if not (fail_log_dir is ChmodNoWrite and ends_unwritable(cluster, victim)):
                    world.broker_back(victim)
                    world.check()
                    check_noticed(fault)
                pair.await_progress(after=now())
        restart_after_healing(world, victim)
    check_delivery(workload)


@scenario("kip-112/leader-at-runtime", kip=112, plan="2) Log directory failure discovered on leader during runtime")
@each_fault("fail_log_dir", PLAN_FAULTS)
def test_leader_at_runtime(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The leader's log dir fails: another leads, and the wounded broker alone still serves its good log dir."""
    fails_at_runtime(cluster, workload, fail_log_dir, leader_of)


@scenario("kip-112/follower-at-runtime", kip=112, plan="3) Log directory failure discovered on follower during runtime")
@each_fault("fail_log_dir", PLAN_FAULTS)
def test_follower_at_runtime(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """A follower's log dir fails: the leader stays, and the wounded broker alone still serves its good log dir."""
    fails_at_runtime(cluster, workload, fail_log_dir, follower_of)


def fails_at_runtime(
    cluster: Cluster,
    workload: CaseWorkload,
    fail_log_dir: type[LogDirFault],
    role: Callable[[Partition], Broker],
) -> None:
    """Items 2 and 3 of the plan, which differ only in whose log dir fails."""
    orders = two_dirs(cluster)
    world = World(cluster, orders)
    victim = role(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, log_dirs_failed(world, fail_log_dir(log_dir), told_all=False):
        pair.await_progress(after=now())
        pair.stop()
        refunds = cluster.create_topic("refunds", partitions=1, replicas=3, failure=PromiseBroken)
        world.learn(refunds)
        check_serves_alone(cluster, workload, world, victim, refunds)
    victim.restart()
    world.recovered()
    check_delivery(workload)
