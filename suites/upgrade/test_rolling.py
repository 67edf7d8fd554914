"""Shows rolling upgrades, and their way back, while log dirs fail and come back.

Each log dir fails on a broker of one build, and its broker starts on the other build with the bad log dir. So leaders
and followers have different builds all the while.
"""

from __future__ import annotations

from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.journal import now
from harness.kafka.distribution import Distribution
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE
from suites.leadership import lead
from suites.observations import metadata_log
from suites.on_disk import check_no_leftovers
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, one_partition_per_log_dir, restart_after_healing
from suites.upgrade.nodes import Roll, protocol_of, upgrade_scenario


@upgrade_scenario(
    "upgrade/rolling",
    plan="rolling upgrade: a log dir fails on a broker that is not yet upgraded, and comes back once it is",
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE,),
    floors=Floors(faults=4),
)
def test_rolling(cluster: Cluster, workload: CaseWorkload, build_under_test: Distribution) -> None:
    """Controllers and then brokers are upgraded one by one; a log dir fails half-way and comes back: nothing is lost.

    The log dir of an older leader fails, with a newer follower. Its broker starts upgraded while the log dir is bad,
    and again when it is healed. The last broker is older all the while.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    first, last = cluster.others(victim)
    with workload.running(orders) as pair:
        roll = Roll(state, pair, build_under_test, keep=protocol_of(cluster.distribution))
        roll.controllers()
        roll.broker(first)
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim)), ahead=orders):
            pair.await_progress(after=now())
            roll.broker(victim)
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
        roll.broker(last)
        state.check(also=[metadata_log])
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)


@upgrade_scenario(
    "upgrade/rolled-back",
    plan="rolling upgrade, and back before its features are finalized",
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE,),
    floors=Floors(faults=4),
)
def test_rolled_back(cluster: Cluster, workload: CaseWorkload, build_under_test: Distribution) -> None:
    """Two brokers and the controllers are upgraded, and go back to the earlier build one by one: nothing is lost.

    The log dir of a newer leader fails, with a newer and an older follower. Its broker goes back while the log dir is
    bad.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim, other = orders[0].followers()
    earlier = cluster.distribution
    with workload.running(orders) as pair:
        roll = Roll(state, pair, build_under_test, keep=protocol_of(earlier))
        roll.controllers()
        roll.brokers(victim, other)
        lead(orders[0], victim)
        state.led_by_preferred(orders[0], victim)
        state.check()
        back = Roll(state, pair, earlier, keep=protocol_of(earlier))
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim)), ahead=orders):
            pair.await_progress(after=now())
            back.broker(victim)
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
        back.broker(other)
        back.controllers()
        state.check(also=[metadata_log])
    check_no_leftovers(cluster, ["orders"])
    check_delivery(workload)
