"""Shows what becomes of moves that are disturbed while they are under way (KIP-113, 1. to 3. of "Proposed Changes").

:mod:`suites.kip_113.moving` holds each move until it is disturbed, and checks what must hold afterwards. Moves that
are interrupted during the swap of a replica with its future replica are in ``test_swaps.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from faults.base import injected
from faults.broker import BrokerStopped
from faults.file_system import FullTmpfs, NearlyFull
from faults.log_dir import Chmod000, LogDirFault
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement, execute
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.broker_log import LogLine
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery, check_logged
from suites.deviations import MOVED_BEFORE_THROTTLE, OFFLINE_REPLICAS_COUNTED_LATE
from suites.kip_113.log_metrics import check_log_measured, check_not_measured
from suites.kip_113.moving import Move, let_move_hit_fault, move_scenario, moves_released, moving
from suites.kip_113.tool_requests import execution_error
from suites.leadership import lead
from suites.moves import await_moved, begin_move, check_under_way, future_log_bytes, moves_held
from suites.on_disk import check_checkpoints, check_indexes_trimmed, check_topic_gone
from suites.reassignments import await_reassigned
from suites.scenario import NO_FAULT, each_fault, each_role
from suites.state_check import HeldMovesEnded, StateCheck
from suites.steps import await_checkpoints, log_dirs_failed, write_untracked_records

ROUND_TRIPS = 2
"""If a swap does not wait for an append, the record is lost. That need not happen each time."""


@move_scenario("kip-113/under-load", plan="2. Complete replica data movement", floors=NO_FAULT)
@each_role
def test_under_load(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """The leader's replica, or a follower's, moves to its broker's other log dir under load, and no record is lost.

    It moves back and forth a few times. The broker's MBeans show the future replica and then the moved one.
    """
    with moving(cluster, workload, role) as move:
        move.state.check()
        check_log_measured(move.partition, move.there, is_future=True)
        with moves_released(move.broker):
            await_moved(move.partition, move.there)
            for log_dir in (move.here, move.there) * ROUND_TRIPS:
                move.partition.move_to(log_dir)
                await_moved(move.partition, log_dir)
        move.pair.await_progress(after=now())
    check_log_measured(move.partition, move.there)


@move_scenario("kip-113/called-off", plan="cancel an existing movement of the replica", floors=NO_FAULT)
def test_called_off(cluster: Cluster, workload: CaseWorkload) -> None:
    """The move of the leader's replica is cancelled: the replica stays where it is, and the future replica is gone."""
    with moving(cluster, workload, leader_of) as move:
        move.partition.move_to(move.here)
        move.ends[move.partition] = move.here


@move_scenario(
    "kip-113/pointed-elsewhere",
    plan="a move is given another log dir",
    floors=NO_FAULT,
    log_dirs=3,
)
def test_pointed_elsewhere(cluster: Cluster, workload: CaseWorkload) -> None:
    """A move is redirected to a third log dir: it ends there, and the first future replica is gone."""
    with moving(cluster, workload, leader_of) as move:
        begin_move(move.partition, move.third, waits=True)
        move.state.move_held(move.partition, move.third)
        move.state.check()
        move.ends[move.partition] = move.third


@move_scenario(
    "kip-113/source-fails",
    plan="movement will stop if either … becomes offline: source",
    deviations=(MOVED_BEFORE_THROTTLE,),
)
def test_source_fails(cluster: Cluster, workload: CaseWorkload) -> None:
    """The source log dir of a move fails: the move stops, another broker leads; with the log dir back, it goes on."""
    with moving(cluster, workload, leader_of) as move:
        with log_dirs_failed(move.state, Chmod000(move.here)) as fault:
            check_stopped(move, fault, working=move.there)
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.state.broker_gone(move.broker)
        start_healed(cluster, move)


@move_scenario(
    "kip-113/destination-fails",
    plan="movement will stop if either … becomes offline: destination",
    deviations=(MOVED_BEFORE_THROTTLE,),
)
@each_fault("fail_log_dir", (Chmod000, FullTmpfs))
def test_destination_fails(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The destination log dir of a move fails or is full: the move stops; with the log dir back, it ends.

    It does not start again with a new leader, whose followers look for their moves.
    """
    with moving(cluster, workload) as move:
        another = next(each for each in move.partition.followers() if each != move.broker)
        with log_dirs_failed(move.state, fail_log_dir(move.there)) as fault:
            check_stopped(move, fault, working=move.here)
            lead(move.partition, another)
            move.state.led_by_preferred(move.partition, another)
            move.state.check()
            check_stopped(move, fault, working=move.here)
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.state.broker_gone(move.broker)
        start_healed(cluster, move)


@move_scenario(
    "kip-113/destination-fills",
    plan="movement will stop if either … becomes offline: destination, filled by the move itself",
    deviations=(MOVED_BEFORE_THROTTLE,),
    needs=NearlyFull.needs,
    **NearlyFull.cluster,
)
def test_destination_fills(cluster: Cluster, workload: CaseWorkload) -> None:
    """A move fills its destination log dir: that goes offline, the leader's replica stays, and clients go on.

    The move's own write gets the error. The log dir's replicas are offline until there is room again.
    """
    with moving(cluster, workload, leader_of) as move:
        with injected(NearlyFull(move.there)) as fault:
            let_move_hit_fault(move, fault, f"Error while appending records to {move.partition} in dir")
            move.state.log_dir_failed(move.there)
            move.state.check()
            check_stopped(move, fault, working=move.here)
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.state.broker_gone(move.broker)
        start_healed(cluster, move)


def check_stopped(move: Move, fault: LogDirFault, *, working: LogDir) -> None:
    """The broker stops the move: with the throttle released, it copies no byte and does not try to.

    :param working: a good log dir of the broker; its checkpoints show that enough time has passed
    """
    stops = rf"ReplicaAlterLogDirsManager on broker \d+\] Removed fetcher for partitions .*\b{move.partition}\b"
    check_logged(move.broker, stops, fault.injected_at)
    before = len(future_log_bytes(move.partition, move.there))
    with moves_released(move.broker):
        since = now()
        await_checkpoints(working, 5)
        after = len(future_log_bytes(move.partition, move.there))
        tries = tries_to_move(move.partition, move.broker.log.lines(since=since))
    move.broker.journal.write("move.stopped", partition=str(move.partition), bytes=after, tries=tries)
    if after != before or tries:
        raise PromiseBroken(
            f"the move of {move.partition} into {move.there} should have stopped: its future replica had {before} "
            f"bytes, and now has {after}; {move.broker} logs {tries[:1] or 'nothing of it'}"
        )


def tries_to_move(partition: Partition, lines: Iterable[LogLine]) -> list[str]:
    """The warnings and errors of ReplicaAlterLogDirsThread about this partition."""
    return [
        line.text[:300]
        for line in lines
        if line.level in ("WARN", "ERROR") and "ReplicaAlterLogDirsThread" in line.text and str(partition) in line.text
    ]


def start_healed(cluster: Cluster, move: Move) -> None:
    """Start the broker with its healed log dir, and check that it goes on with the move."""
    move.broker.start()
    cluster.await_healthy(failure=PromiseBroken)
    move.state.log_dirs_healed(move.broker)
    check_goes_on(move)


def check_goes_on(move: Move) -> None:
    """With its broker back, the move is still held, or it ended before its broker knew the throttle.

    The latter is :data:`suites.deviations.MOVED_BEFORE_THROTTLE`.

    :raises PromiseBroken: it ended later (:mod:`suites.held_moves`)
    """
    try:
        move.state.check(timeouts.RECOVERY_S)
        check_under_way(move.partition, move.there)
    except HeldMovesEnded as ended:
        move.broker.journal.write("move.unheld", partition=str(move.partition), to=str(move.there), says=str(ended))
        move.state.check(timeouts.RECOVERY_S)


@move_scenario(
    "kip-113/restart-with-both",
    plan="3. both … exist on good log directories",
    deviations=(MOVED_BEFORE_THROTTLE,),
)
def test_restart_with_both(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker is killed during a move: it finds both the replica and the future replica, and the move goes on.

    While it is down, kafka-reassign-partitions refuses to begin a move there.
    """
    with moving(cluster, workload) as move:
        with move.broker_down():
            check_tool_needs_broker(move)
        check_goes_on(move)


def check_tool_needs_broker(move: Move) -> None:
    """kafka-reassign-partitions ends with an error if the broker to which it must send a request is down."""
    cluster, partition = move.state.cluster, move.partition
    brokers = map(cluster.broker, partition.describe().replicas)
    on = tuple(move.there if broker == move.broker else broker for broker in brokers)
    said = execution_error(cluster, Placement(partition=partition, on=on))
    if said is None or f"Unknown broker id {move.broker.id}" not in said:
        raise PromiseBroken(f"{move.broker} is down, and kafka-reassign-partitions prints: {said or 'no error'}")
    move.state.check()


@move_scenario(
    "kip-113/restart-with-both-and-bad-source",
    plan="3. topicPartition.move exists but topicPartition doesn't …, and if there is bad log directory: its own",
    deviations=(MOVED_BEFORE_THROTTLE, OFFLINE_REPLICAS_COUNTED_LATE),
)
def test_restart_with_both_and_bad_source(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker is killed during a move, and its source log dir fails: the replica is offline, its future replica stays.

    With the log dir good again, the move goes on where it was.
    """
    with moving(cluster, workload) as move:
        with move.broker_down(), injected(Chmod000(move.here)):
            before = future_log_bytes(move.partition, move.there)
            move.state.log_dir_failed(move.here)
            move.broker.start()
            move.state.broker_back(move.broker)
            move.state.check(timeouts.RECOVERY_S)
            move.pair.await_progress(after=now())
            if future_log_bytes(move.partition, move.there) != before:
                raise PromiseBroken(
                    f"the future replica of {move.partition} in {move.there} changed while {move.here} was bad"
                )
            move.broker.stop()
            move.state.broker_gone(move.broker)
        move.state.log_dirs_healed(move.broker)
        check_goes_on(move)


@move_scenario(
    "kip-113/new-leader",
    plan="a leader changes while a replica is moved",
    deviations=(MOVED_BEFORE_THROTTLE,),
)
@each_role
def test_new_leader(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """The partition's leader is stopped during a move of its own replica, or of a follower's: the move ends.

    The stopped broker has closed its future replicas like its replicas.
    """
    with moving(cluster, workload, role) as move:
        leader = leader_of(move.partition)
        with injected(BrokerStopped(leader)):
            check_indexes_trimmed(leader)
            move.state.broker_gone(leader)
            move.state.check()
            move.pair.await_progress(after=now())
        move.state.broker_back(leader)
        check_goes_on(move)


@move_scenario(
    "kip-113/topic-deleted",
    plan="a topic is deleted while a replica is moved",
    floors=NO_FAULT,
)
def test_topic_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """A topic is deleted while two of its replicas move: nothing of it stays, and another topic's move is untouched.

    One of the two moves is copying. The other waits for the other topic's move on the same broker.
    """
    with moving(cluster, workload) as move:
        refunds = cluster.create_topic("refunds")
        write_untracked_records(refunds, 800, size=1000)
        another, *_ = cluster.others(move.broker)
        with moves_held(another):
            begin_move(refunds[0], other_dir(refunds[0].log_dir_on(another)))
            begin_move(refunds[0], other_dir(refunds[0].log_dir_on(move.broker)), waits=True)
            cluster.delete_topics(refunds)
            check_topic_gone(cluster, "refunds")
            check_not_measured(refunds[0], *cluster.brokers)
        check_under_way(move.partition, move.there)


@move_scenario(
    "kip-113/crosswise",
    plan="two moves at once, each into the log dir that the other leaves",
    floors=NO_FAULT,
)
def test_crosswise(cluster: Cluster, workload: CaseWorkload) -> None:
    """Two replicas of a broker move at once, each into the other's log dir: both moves end."""
    with moving(cluster, workload) as move:
        move_round(move, move.there, move.here)


@move_scenario(
    "kip-113/in-a-circle",
    plan="three moves at once, each into the log dir that the next one leaves",
    floors=NO_FAULT,
    log_dirs=3,
)
def test_in_a_circle(cluster: Cluster, workload: CaseWorkload) -> None:
    """Three replicas of a broker move at once, each into the next one's log dir: all moves end."""
    with moving(cluster, workload, leader_of) as move:
        move_round(move, move.there, move.third, move.here)


def move_round(move: Move, *log_dirs: LogDir) -> None:
    """Begin to move one replica from each of these log dirs into the next one."""
    for here, there in pairwise(log_dirs):
        [one, *_] = (Partition(move.state.cluster, *key) for key in sorted(move.state.replicas_in(here)))
        begin_move(one, there, waits=True)
        move.ends[one] = there


@move_scenario(
    "kip-113/reassigned-amid-move",
    plan="a partition is reassigned while a replica is moved",
    floors=NO_FAULT,
    brokers=4,
)
def test_reassigned_amid_move(cluster: Cluster, workload: CaseWorkload) -> None:
    """A moving replica is reassigned to another broker: neither it nor its future replica stays on the old one."""
    # Other replicas are in each log dir: the checkpoint files of an empty log dir still name the replicas that left.
    orders, beside = cluster.create_topic("orders"), cluster.create_topic("beside", partitions=4, replicas=4)
    state = StateCheck(cluster, orders, beside)
    leaving = follower_of(orders[0])
    assigned = orders[0].describe().replicas
    coming = next(broker for broker in cluster.brokers if broker.id not in assigned)
    placement = Placement(
        partition=orders[0], on=tuple(coming if id == leaving.id else cluster.broker(id) for id in assigned)
    )
    with workload.running(orders, record_bytes=1000) as pair, moves_held(leaving):
        pair.await_count(500)
        begin_move(orders[0], other_dir(orders[0].log_dir_on(leaving)))
        execute(cluster, placement)
        await_reassigned(cluster, state, placement, timeout_s=timeouts.MOVE_S)
        check_checkpoints(cluster, {"orders", "beside"})
        pair.await_progress(after=now())
    check_delivery(workload)
