"""Shows that the voters of a dynamic quorum change (KIP-853) while log dirs of brokers fail."""

from __future__ import annotations

from contextlib import ExitStack

from faults.base import injected
from faults.log_dir import Chmod000, Removed
from faults.quorum import ControllerKilled
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import MetadataDir
from harness.cluster.nodes.node import Node
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.versions import Mode, VersionRange
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery, check_noticed
from suites.controllers import check_controller_acts, check_refuses_start, metadata_dir, standbys_of
from suites.deviations import VOTES_ASKED_WITHOUT_PAUSE
from suites.quorum.voters import (
    add_voter,
    check_none_active,
    check_refuses_votes,
    check_succeeded,
    check_voters,
    remove_voter,
    replica_of,
    replicas_of,
)
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import replace_by_empty_disk, restart_after_healing

UNREADABLE = r"No readable meta\.properties files found"
"""The log line of a controller that refuses to start because none of its log dirs is formatted and can be read."""


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


@scenario(
    "quorum/controller-replaced",
    kip=853,
    plan="replace a controller whose disk died",
    modes=(Mode.KRAFT,),
    deviations=(VOTES_ASKED_WITHOUT_PAUSE,),
    builds=VersionRange.parse(">=3.9"),  # older builds cannot add or remove controllers
    controllers=3,
    dynamic_quorum=True,
)
def test_controller_replaced(cluster: Cluster, workload: CaseWorkload) -> None:
    """A controller with a new, empty disk has no vote until it is added again, also while a log dir fails.

    It has another ``directory.id``, so it is not the voter that it was. If it were, a record that this voter had acked
    could be lost, and it could vote twice in one epoch. With another voter killed there is no majority, although two of
    three controllers run.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    replaced, other = standbys_of(cluster)
    disk, old = metadata_dir(cluster, replaced), replica_of(cluster, replaced)
    stay = replicas_of(cluster, cluster.quorum_nodes) - {old}
    with workload.running(orders) as pair:
        replaced.kill()
        check_needs_its_disk(cluster, replaced, disk)
        cluster.format_observer(replaced)
        replaced.start()
        new = replica_of(cluster, replaced)
        check_voters(cluster, stay | {old}, new)
        with ExitStack() as failed:
            since = now()
            other.kill()
            check_none_active(cluster)
            fault = failed.enter_context(injected(Chmod000(orders[0].log_dir_on(victim))))
            check_noticed(fault)
            check_refuses_votes(cluster, replaced, since)
            check_none_active(cluster)
            if (leader := leader_of(orders[0])) != victim:
                raise PromiseBroken(f"{leader} leads {orders[0]} instead of {victim}, without a majority of the voters")
            other.start()
            state.log_dir_failed(fault.log_dir)
            state.check()
            pair.await_progress(after=now())
            remove_voter(cluster, old)
            check_voters(cluster, stay, new)
            add_voter(cluster, replaced)
            check_voters(cluster, stay | {new})
            with injected(ControllerKilled(cluster, victim)):
                check_controller_acts(state, pair)
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_needs_its_disk(cluster: Cluster, controller: Node, disk: MetadataDir) -> None:
    """A controller does not start without its disk, with one that it cannot read, or with an empty one."""
    for dies in (Removed, Chmod000):
        with injected(dies(disk)):
            check_refuses_start(cluster, controller, saying=UNREADABLE)
    replace_by_empty_disk(disk)
    check_refuses_start(cluster, controller, saying=UNREADABLE)
