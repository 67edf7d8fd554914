"""Shows what KRaft's controller does with a replica that its broker reports in a failed log dir (KIP-858)."""

from __future__ import annotations

from faults.base import injected
from faults.held import Held
from faults.log_dir import Chmod000
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.kafka.versions import Mode, VersionRange
from suites.broker_epochs import report_replica_in
from suites.deviations import FAILED_REPLICA_IN_ISR_AT_TIMES
from suites.leadership import await_state
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, one_partition_per_log_dir, restart_after_healing

KNOWN_S = 1.0
"""The broker corrects the report since it knows the controller's decision, and a hold may not last long."""


@scenario(
    "kip-112/assigned-to-failed",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: a replica was assigned to it at the same time",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    holds=True,
    deviations=(FAILED_REPLICA_IN_ISR_AT_TIMES,),
)
def test_assigned_to_failed(cluster: Cluster) -> None:
    """The controller hears that the leader's replica is in a log dir that has failed: another broker leads.

    A broker reports this if a log dir fails as a move into it ends. Here the harness does. So the broker corrects it,
    and is in the ISR again. Its correction is held meanwhile, as it would elect another leader, too.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    leader = leader_of(orders[0])
    failed = other_dir(orders[0].log_dir_on(leader))
    with log_dirs_failed(state, Chmod000(failed), check_at_end=False):
        corrected = Held(cluster, leader, "assignments-sent", by=lambda: report_replica_in(failed, orders[0]))
        with injected(corrected):
            await_state(
                orders[0],
                lambda seen: seen.leader not in (None, leader.id),
                f"another broker than {leader} to lead {orders[0]}, which it reported in {failed}",
                KNOWN_S,
                via=leader,
            )
        await_state(
            orders[0],
            lambda seen: leader.id in seen.isr and leader.id not in seen.offline_replicas,
            f"{leader} to be in the ISR of {orders[0]} again, since its replica is in a good log dir",
            timeouts.RECOVERY_S,
        )
    restart_after_healing(state, leader)
