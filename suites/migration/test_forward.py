"""Shows the migration from ZooKeeper to KRaft, with a log dir that fails in each of its phases.

"During the migration, if a ZK broker is running with multiple log directories, any directory failure will cause the
broker to shutdown" (Kafka 3.9's documentation, "ZooKeeper to KRaft Migration", Limitations). Other brokers do as
KIP-112 says.
"""

from __future__ import annotations

from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.cluster.migration import Role
from harness.journal import now
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.deviations import DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES
from suites.leadership import lead
from suites.migration.failing import broker_ended
from suites.migration.roll import Roll, migration_scenario
from suites.observations import metadata_log
from suites.on_disk import check_no_leftovers
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, one_partition_per_log_dir, restart_after_healing, start_after_healing


@migration_scenario(
    "migration/forward",
    plan="ZooKeeper to KRaft: all phases, without a failed log dir",
    deviations=(DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES),
    floors=Floors(faults=6),
)
def test_forward(cluster: Cluster, workload: CaseWorkload) -> None:
    """Controllers are added, and brokers restarted twice, one by one: nothing is lost, and the metadata stays as it is.

    At the end ZooKeeper is stopped.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.enter(*cluster.brokers)
        roll.to_kraft(*cluster.brokers)
        roll.finalize()
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)


@migration_scenario(
    "migration/entering",
    plan="ZooKeeper to KRaft: log dirs fail while brokers enter the migration",
    deviations=(DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES),
    floors=Floors(faults=8),
)
def test_entering(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir fails on a broker in ZooKeeper mode, and then one on a broker in migration mode, which ends.

    The other brokers enter the migration without the first one, and the KRaft controller takes over.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    other, last = cluster.others(victim)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.restart(Role.MIGRATING, other)
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim)), ahead=orders):
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        with broker_ended(roll, state, Chmod000(orders[0].log_dir_on(other)), ahead=orders):
            roll.enter(victim, last)
        start_after_healing(state, other)
        pair.await_progress(after=now())
        roll.check_metadata()
        roll.to_kraft(*cluster.brokers)
        roll.finalize()
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)


@migration_scenario(
    "migration/dual-write",
    plan="ZooKeeper to KRaft: a log dir fails while the KRaft controller writes to ZooKeeper, too",
    deviations=(DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES),
    floors=Floors(faults=7),
)
def test_dual_write(cluster: Cluster, workload: CaseWorkload) -> None:
    """A leader's log dir fails, and its broker ends: another broker leads, and nothing is lost or duplicated.

    The broker comes back with the log dir healed, and the migration goes on to its end.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.enter(*cluster.brokers)
        victim = leader_of(orders[0])
        with broker_ended(roll, state, Chmod000(orders[0].log_dir_on(victim)), ahead=orders):
            pair.await_progress(after=now())
        start_after_healing(state, victim)
        pair.await_progress(after=now())
        roll.check_metadata()
        roll.to_kraft(*cluster.brokers)
        roll.finalize()
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)


@migration_scenario(
    "migration/to-kraft",
    plan="ZooKeeper to KRaft: log dirs fail while some brokers are KRaft brokers, and some not yet",
    deviations=(DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES),
    floors=Floors(faults=8),
)
def test_to_kraft(cluster: Cluster, workload: CaseWorkload) -> None:
    """A KRaft broker's log dir fails, and the broker serves on. One of a broker in migration mode fails, and ends it.

    Another broker leads each time, and nothing is lost or duplicated.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.enter(*cluster.brokers)
        migrating = leader_of(orders[0])
        first, last = cluster.others(migrating)
        roll.to_kraft(first)
        with broker_ended(roll, state, Chmod000(orders[0].log_dir_on(migrating)), ahead=orders):
            pair.await_progress(after=now())
        start_after_healing(state, migrating)
        pair.await_progress(after=now())
        lead(orders[0], first)
        state.led_by_preferred(orders[0], first)
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(first)), ahead=orders):
            pair.await_progress(after=now())
            roll.to_kraft(last)
        restart_after_healing(state, first)
        roll.to_kraft(migrating)
        roll.finalize()
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)


@migration_scenario(
    "migration/finalized",
    plan="ZooKeeper to KRaft: a log dir fails after the migration",
    deviations=(DEAD_SHOWN_ALIVE, ISR_CHANGE_LOST_AT_TIMES),
    floors=Floors(faults=7),
)
def test_finalized(cluster: Cluster, workload: CaseWorkload) -> None:
    """A leader's log dir fails after the migration, without ZooKeeper: another broker leads, and nothing is lost.

    Until then no replica has moved, so all replicas are those of ZooKeeper mode.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, orders)
        roll.enter(*cluster.brokers)
        roll.to_kraft(*cluster.brokers)
        roll.finalize()
        victim = leader_of(orders[0])
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim)), ahead=orders):
            state.check(also=[metadata_log])
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)
