"""Shows a leader that changes an ISR as the KRaft controller takes over from ZooKeeper's controller.

From then on the leader's requests go to the KRaft controller, on another connection.
"""

from __future__ import annotations

from contextlib import ExitStack

from faults.base import injected
from faults.held import Held
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.holds import Hold, Who
from harness.cluster.migration import Role
from harness.cluster.quorum.kraft import node_id
from harness.errors import Inconclusive
from harness.journal import now
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery, check_logged
from suites.deviations import ISR_CHANGE_LOST
from suites.migration.roll import Roll, migration_scenario
from suites.on_disk import check_no_leftovers
from suites.state_check import StateCheck
from suites.steps import one_partition_per_log_dir

CONTROLLER_HEARD_OF = r"in response to UpdateMetadata request sent by controller {controller} "
"""The log line of a broker in ZooKeeper or migration mode that knows this controller."""


@migration_scenario(
    "migration/isr-change-lost",
    plan="ZooKeeper to KRaft: the KRaft controller takes over while a leader's change of its ISRs is under way",
    deviations=(ISR_CHANGE_LOST,),
    floors=Floors(faults=4),
    holds=True,
)
def test_isr_change_lost(cluster: Cluster, workload: CaseWorkload) -> None:
    """A leader has asked ZooKeeper's controller for a follower's return to the ISR, and KRaft's takes over: it returns.

    Where it does not, the leader restarts. Then all replicas are in sync, and nothing is lost.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    *first, last = cluster.brokers
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.restart(Role.MIGRATING, *first)
        with roll.down(last, Role.MIGRATING):
            take_over_amid_isr_change(roll, cluster, leader_of(orders[0]), last)
            roll.await_rejoined(last, unless=ISR_CHANGE_LOST)
        pair.await_progress(after=now())
        roll.check_metadata()
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)


def take_over_amid_isr_change(roll: Roll, cluster: Cluster, leader: Broker, last: Broker) -> None:
    """Start the last broker; the KRaft controller takes over after the leader has asked for its return to the ISR.

    The leader's thread is held until its broker knows the KRaft controller. Then it could get the answer.
    """
    [controller] = roll.migration.controllers
    takes_over = Hold(cluster, controller, "controller-takes-over", Who())
    asked = Held(cluster, leader, "isr-change-in-flight", by=last.start)
    with ExitStack() as held:
        held.callback(takes_over.release)
        takes_over.begin()
        with injected(asked):
            let_go_at = now()
            takes_over.release()
            roll.await_dual_write()
            heard = CONTROLLER_HEARD_OF.format(controller=node_id(controller))
            check_logged(leader, heard, let_go_at, timeouts.REQUEST_S, failure=Inconclusive)
