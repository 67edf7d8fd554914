"""Shows the way back to ZooKeeper mode, from each phase that allows it, with a failed log dir.

"Reverting to ZooKeeper mode During the Migration" (Kafka's documentation) has a table with the steps.
"""

from __future__ import annotations

from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.migration import Role
from harness.journal import now
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.deviations import DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES
from suites.migration.failing import broker_ended
from suites.migration.roll import Roll, migration_scenario
from suites.on_disk import check_no_leftovers
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, one_partition_per_log_dir, restart_after_healing

CONTROLLER, MIGRATION = "/controller", "/migration"


@migration_scenario(
    "migration/back-from-dual-write",
    plan="back to ZooKeeper: after all brokers have entered the migration, with a failed log dir",
    deviations=(DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES),
    floors=Floors(faults=6),
)
def test_back_from_dual_write(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker has ended since its log dir failed; then all go back, and it starts with the log dir failed.

    A broker is the controller again, and knows the leaders that the KRaft controller elected.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.enter(*cluster.brokers)
        victim = leader_of(orders[0])
        log_dir = orders[0].log_dir_on(victim)
        with broker_ended(roll, state, Chmod000(log_dir), ahead=orders):
            roll.give_up(CONTROLLER, MIGRATION)
            roll.to_zookeeper(*cluster.others(victim))
            roll.migration.use_role(victim, Role.ZK)
            victim.start()
            state.log_dir_failed(log_dir)
            state.broker_back(victim)
            state.check(timeouts.RECOVERY_S)
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
        roll.check_metadata()
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)


@migration_scenario(
    "migration/back-from-kraft",
    plan="back to ZooKeeper: after all brokers have become KRaft brokers, with a failed log dir",
    deviations=(DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES),
    floors=Floors(faults=14),
)
def test_back_from_kraft(cluster: Cluster, workload: CaseWorkload) -> None:
    """A KRaft broker's log dir has failed while the others go back one by one. Healed, this broker goes back, too.

    A broker is the controller again, and knows the leaders that the KRaft controller elected. Then a log dir fails.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.enter(*cluster.brokers)
        roll.to_kraft(*cluster.brokers)
        victim = leader_of(orders[0])
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim)), ahead=orders):
            pair.await_progress(after=now())
            roll.restart(Role.MIGRATING, *cluster.others(victim))
        restart_after_healing(state, victim)
        roll.restart(Role.MIGRATING, victim)
        roll.give_up(CONTROLLER)
        roll.to_zookeeper(*cluster.brokers)
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(leader_of(orders[0]))), ahead=orders) as fault:
            pair.await_progress(after=now())
        restart_after_healing(state, fault.broker)
        pair.await_progress(after=now())
        roll.check_metadata()
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)
