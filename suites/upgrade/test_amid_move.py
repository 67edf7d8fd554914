"""Shows a rolling upgrade while one replica moves between log dirs, and another one between brokers."""

from __future__ import annotations

from faults.targets import follower_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement
from harness.errors import PromiseBroken
from harness.kafka.distribution import Distribution
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.deviations import MOVED_BEFORE_THROTTLE
from suites.moves import SMALL_FETCHES, begin_move, finish_move, moves_held
from suites.observations import metadata_log
from suites.on_disk import check_no_leftovers, check_same_bytes
from suites.reassignments import AMPLE_RATE, check_reassigning, replicas_after, throttle_replication
from suites.state_check import HeldMovesEnded, StateCheck
from suites.steps import write_untracked_records
from suites.upgrade.nodes import Roll, protocol_of, upgrade_scenario

SLOW = 1000
"""The throttle of the reassignment in bytes a second; its topic has a thousand times more."""


@upgrade_scenario(
    "upgrade/amid-move",
    plan="rolling upgrade: a move and a reassignment are under way, and the controllers come last",
    deviations=(MOVED_BEFORE_THROTTLE,),
    floors=Floors(faults=3),
    overrides=SMALL_FETCHES,
    kraft={"controllers": 3},
)
def test_amid_move(cluster: Cluster, workload: CaseWorkload, build_under_test: Distribution) -> None:
    """Brokers are upgraded while a replica moves to another log dir, and one to another broker: both end, as asked.

    Throttles hold the move and the reassignment until all nodes are upgraded. The brokers of both come first, so an
    older leader serves them. In KRaft three controllers come last, so the quorum has two builds, too.
    """
    orders, ledger = cluster.create_topic("orders"), cluster.create_topic("ledger", replicas=2)
    write_untracked_records(ledger, 1000, size=1000)
    state = StateCheck(cluster, orders)
    mover = follower_of(orders[0])
    there = other_dir(orders[0].log_dir_on(mover))
    leader, before = ledger[0].leader(), ledger[0].describe().replicas
    [spare] = cluster.others(*map(cluster.broker, before))
    away = Placement(partition=ledger[0], on=(leader, spare))
    with workload.running(orders, record_bytes=1000) as pair:
        pair.await_count(500)
        roll = Roll(state, pair, build_under_test, keep=protocol_of(cluster.distribution))
        with moves_held(mover):
            begin_move(orders[0], there)
            state.move_held(orders[0], there)
            throttle_replication(ledger, rate=SLOW, replicas=f"0:{spare.id}")
            cluster.reassign(ledger[0], away.brokers)
            check_reassigning(cluster, ledger[0])
            for broker in dict.fromkeys((mover, spare, *cluster.brokers)):
                upgrade_amid_move(roll, state, broker)
            roll.controllers()
        finish_move(state, orders[0], there)
        throttle_replication(ledger, rate=AMPLE_RATE)
        check_reassigned(away, before)
        state.add_topic(ledger)
        state.check(also=[metadata_log])
    check_no_leftovers(cluster, ["orders", "ledger"])
    check_same_bytes(ledger[0])
    check_delivery(workload)


def upgrade_amid_move(roll: Roll, state: StateCheck, broker: Broker) -> None:
    """Upgrade a broker. If its held move ends as it starts, before it knows the throttle, the replica has moved."""
    try:
        roll.broker(broker)
    except HeldMovesEnded as ended:
        broker.journal.write("move.unheld", broker=broker.id, says=str(ended))
        state.check(timeouts.RECOVERY_S)


def check_reassigned(asked: Placement, before: tuple[int, ...]) -> None:
    """The reassignment ends, with the replicas that were asked for."""
    replicas = replicas_after(asked, before)
    if replicas != (wanted := tuple(broker.id for broker in asked.brokers)):
        raise PromiseBroken(f"the reassignment of {asked.partition} to {wanted} ended, and its replicas are {replicas}")
