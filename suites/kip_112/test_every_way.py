"""KIP-112's promise, for every way in which a log dir fails and not only for those of its test plan.

"Broker should … stop serving the log directory after IOException": whatever the error is called, the outcome is to be
the same as for ``chmod 000``.
"""

from __future__ import annotations

from faults.file_system import VOLUME_FAULTS
from faults.log_dir import LOG_DIR_FAULTS, LogDirFault
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.scenario import each_fault, scenario
from suites.state_check import World
from suites.steps import log_dirs_failed, restart_after_healing, started_healed, stays_offline, two_dirs


@scenario("kip-112/every-way-to-fail", kip=112, plan="one failed log dir, in every way that we have")
@each_fault("fail_log_dir", (*LOG_DIR_FAULTS, *VOLUME_FAULTS))
def test_every_way_to_fail(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """However the leader's log dir fails, it goes offline, another leads, the pair goes on, and it comes back whole.

    The partition in the other log dir keeps its leader all the while. What can be healed under a running broker is: the
    log dir stays offline until the broker is restarted.
    """
    orders = two_dirs(cluster)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(world, fail_log_dir(log_dir)):
            world.check()
            pair.await_progress(after=now())
            if fail_log_dir.heals_unmounted:
                victim.stop()
                world.broker_gone(victim)
        if fail_log_dir.heals_unmounted:
            started_healed(world, victim)
        else:
            stays_offline(world, log_dir)
            restart_after_healing(world, victim)
        pair.await_progress(after=now())
    check_delivery(workload)
