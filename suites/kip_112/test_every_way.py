"""Shows KIP-112's promise for every fault that makes a log dir fail, not only for those of its test plan.

"Broker should … stop serving the log directory after IOException": the outcome must be that of ``chmod 000``, whatever
the error is.
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
from suites.state_check import StateCheck
from suites.steps import (
    check_stays_offline,
    log_dirs_failed,
    one_partition_per_log_dir,
    restart_after_healing,
    start_after_healing,
)


@scenario("kip-112/every-way-to-fail", kip=112, plan="one failed log dir, in every way that we have")
@each_fault("fail_log_dir", (*LOG_DIR_FAULTS, *VOLUME_FAULTS))
def test_every_way_to_fail(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The leader's log dir fails in every way: it goes offline, another broker leads; once healed, it has every record.

    The partition in the other log dir keeps its leader all the while. Where the fault can be undone under a running
    broker, the log dir must stay offline until the broker is restarted.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(state, fail_log_dir(log_dir), ahead=orders):
            state.check()
            pair.await_progress(after=now())
            if fail_log_dir.undo_unmounts:
                victim.stop()
                state.broker_gone(victim)
        if fail_log_dir.undo_unmounts:
            start_after_healing(state, victim)
        else:
            check_stays_offline(state, log_dir)
            restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)
