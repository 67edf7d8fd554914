"""Shows that the voters of a dynamic quorum change (KIP-853) while log dirs of brokers fail."""

from __future__ import annotations

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.journal import now
from harness.kafka.versions import Mode, VersionRange
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery, check_noticed
from suites.controllers import check_controller_acts
from suites.quorum.voters import (
    add_voter,
    check_succeeded,
    check_voters,
    remove_voter,
    replica_of,
    replicas_of,
)
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import restart_after_healing


@scenario(
    "quorum/controller-added-and-removed",
    kip=853,
    plan="add a controller, then remove the active one",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9"),  # older builds cannot add or remove controllers
    controllers=3,
    dynamic_quorum=True,
)
def test_controller_added_and_removed(cluster: Cluster, workload: CaseWorkload) -> None:
    """A fourth controller becomes a voter, and the active one is removed as a log dir fails: another one takes over.

    The fourth one has no vote until it is added. The new active controller knows of the failed log dir.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    first = replicas_of(cluster, cluster.quorum_nodes)
    with workload.running(orders) as pair:
        fourth = replica_of(cluster, cluster.add_controller())
        check_voters(cluster, first, fourth)
        add_voter(cluster, cluster.quorum_nodes[-1])
        check_voters(cluster, first | {fourth})
        state.check()
        removed = cluster.active_controller()
        gone = replica_of(cluster, removed)
        with injected(Chmod000(orders[0].log_dir_on(victim))) as fault:
            remove_voter(cluster, gone)
            check_succeeded(cluster, removed)
            check_voters(cluster, (first | {fourth}) - {gone}, gone)
            state.log_dir_failed(fault.log_dir)
            state.check()
            check_noticed(fault)
            cluster.remove_controller(removed)
            check_controller_acts(state, pair)
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)
