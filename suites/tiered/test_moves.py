"""Shows tiered replicas (KIP-405) that move between log dirs (KIP-113) or brokers, also while a log dir fails.

A moved replica has the leader's local records only. It takes the state before them from remote storage, and retention
must go on in its new log dir (KAFKA-16711).
"""

from __future__ import annotations

from collections.abc import Callable

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_noticed, promised
from suites.deviations import CLEANING_STOPS_WITH_DESTINATION
from suites.leadership import lead
from suites.moves import SMALL_FETCHES, begin_move, finish_move, moves_held
from suites.observations import metadata_log
from suites.on_disk import check_no_leftovers
from suites.reassignments import AMPLE_RATE, await_no_reassignment, check_reassigning, throttle_replication
from suites.scenario import NO_FAULT, each_role
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing
from suites.tiered.remote import (
    LOAD,
    check_not_copied,
    check_read_from_start,
    check_tiered_delivery,
    check_tiers_on,
    create_tiered,
    place,
    stays_local,
    tiered_scenario,
)

SLOW = 1000
"""The throttle of the reassignment in bytes a second; clients write a thousand times more."""


@tiered_scenario("tiered/moved", kip=113, plan="a tiered replica moves between log dirs (KIP-405)", floors=NO_FAULT)
@each_role
def test_moved(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """A tiered replica moves to another log dir: local retention goes on there, and as the leader it goes on tiering.

    The move copies local records only. What is only remote stays readable.
    """
    orders = create_tiered(cluster)
    state = StateCheck(cluster, orders)
    mover = role(orders[0])
    there = other_dir(orders[0].log_dir_on(mover))
    with workload.running(orders, **LOAD) as pair:
        remote_only = check_tiers_on(orders[0])
        orders[0].move_to(there)
        finish_move(state, orders[0], there)
        state.check(also=[metadata_log])
        check_not_copied(orders[0], remote_only, on=mover)
        lead(orders[0], mover)
        state.led_by_preferred(orders[0], mover)
        check_read_from_start(orders[0], check_tiers_on(orders[0]))
        pair.await_progress(after=now())
    check_no_leftovers(cluster, ["orders"])
    check_tiered_delivery(workload, orders)


@tiered_scenario(
    "tiered/move-fails",
    kip=113,
    plan="movement will stop if either … becomes offline: destination, of a tiered replica (KIP-405)",
    deviations=(CLEANING_STOPS_WITH_DESTINATION,),
    overrides=SMALL_FETCHES,
)
@each_role
def test_move_fails(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """The log dir to which a tiered replica moves fails: the replica stays where it is, and local retention goes on.

    With the log dir back and its broker restarted, the move ends, and local retention goes on in any case.
    """
    orders, beside = create_tiered(cluster), cluster.create_topic("beside", partitions=4)
    state = StateCheck(cluster, orders, beside)
    mover = role(orders[0])
    first, second = mover.log_dirs
    place(state, orders[0], first)  # which also has what the broker knows of remote segments
    with workload.running(orders, **LOAD) as pair:
        remote_only = check_tiers_on(orders[0])
        with moves_held(mover):
            begin_move(orders[0], second)
            state.move_held(orders[0], second)
            with log_dirs_failed(state, Chmod000(second)):
                pair.await_progress(after=now())
                with promised(cluster, unless=CLEANING_STOPS_WITH_DESTINATION, seen=stays_local(mover)):
                    check_tiers_on(orders[0], timeout_s=timeouts.CLEANING_S)
                check_read_from_start(orders[0], remote_only)
                mover.stop()
                state.broker_gone(mover)
            mover.start()
            cluster.await_healthy(failure=PromiseBroken)
        state.log_dirs_healed(mover)
        finish_move(state, orders[0], second)
        state.check(timeouts.RECOVERY_S, also=[metadata_log])
        check_tiers_on(orders[0])
        pair.await_progress(after=now())
    check_no_leftovers(cluster, ["orders", "beside"])
    check_tiered_delivery(workload, orders)


@tiered_scenario(
    "tiered/reassigned",
    kip=112,
    plan="7. Partition reassignment, of a tiered topic whose leader's log directory fails meanwhile (KIP-405)",
    overrides=SMALL_FETCHES,
)
def test_reassigned(cluster: Cluster, workload: CaseWorkload) -> None:
    """A tiered partition is reassigned, and its leader's log dir fails half-way: the new replica gets all it needs.

    It takes the state before the local records from remote storage. Then it leads, and has what is only remote.
    """
    orders = create_tiered(cluster, replicas=2)
    state = StateCheck(cluster, orders)
    victim, follower = leader_of(orders[0]), follower_of(orders[0])
    [spare] = cluster.others(victim, follower)
    failing = orders[0].log_dir_on(victim)
    away = Placement(partition=orders[0], on=(follower, spare))
    with workload.running(orders, **LOAD) as pair:
        remote_only = check_tiers_on(orders[0])
        throttle_replication(orders, rate=SLOW, replicas=f"0:{spare.id}")
        cluster.reassign(orders[0], away.brokers)
        check_reassigning(cluster, orders[0])
        with injected(fault := Chmod000(failing)):
            state.log_dir_failed(failing)
            check_noticed(fault)
            pair.await_progress(after=now())
            throttle_replication(orders, rate=AMPLE_RATE)
            await_no_reassignment(cluster)
            state.reassigned(orders[0], [orders[0].log_dir_on(broker) for broker in away.brokers])
            state.check(also=[metadata_log])
            check_not_copied(orders[0], remote_only, on=spare)
            lead(orders[0], spare)
            state.led_by_preferred(orders[0], spare)
            check_read_from_start(orders[0], check_tiers_on(orders[0]))
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_tiered_delivery(workload, orders)
