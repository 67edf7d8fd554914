"""KIP-113's moves that don't go to plan: each is hit while it is under way, and must come to the end that the KIP says.

How a move is hit surely, and what must hold after each: :mod:`suites.kip_113.moving`. What becomes of one that ends
amid the swap of the copies: ``test_swaps.py``.
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
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery, check_says
from suites.kip_113.moving import Move, a_move, each_role, let_meet, moves_let_go, moving
from suites.on_disk import check_checkpoints, check_gone
from suites.scenario import each_fault
from suites.state_check import Unheld, World
from suites.steps import (
    await_checkpoints,
    await_reassigned,
    begin_move,
    check_under_way,
    copy_of,
    log_dirs_failed,
    moves_held,
    write_untracked_records,
)

NO_FAULT = Floors(faults=0)


@a_move("kip-113/under-load", plan="2. Complete replica data movement", floors=NO_FAULT)
@each_role
def test_under_load(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """The leader's replica, or a follower's, moves to the other log dir while the pair is at work."""
    with moving(cluster, workload, role) as move:
        move.world.check()
        move.pair.await_progress(after=now())


@a_move("kip-113/called-off", plan="cancel an existing movement of the replica", floors=NO_FAULT)
def test_called_off(cluster: Cluster, workload: CaseWorkload) -> None:
    """The move of the leader's replica is called off: it stays where it is, and its copy is gone."""
    with moving(cluster, workload, leader_of) as move:
        move.partition.move_to(move.here)
        move.ends[move.partition] = move.here


@a_move(
    "kip-113/pointed-elsewhere",
    plan="a move is given another log dir",
    floors=NO_FAULT,
    log_dirs=3,
)
def test_pointed_elsewhere(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader's replica is on its way, and told to go to a third log dir: it ends there, its first copy is gone."""
    with moving(cluster, workload, leader_of) as move:
        begin_move(move.partition, move.third, waits=True)
        move.world.moving(move.partition, move.third)
        move.world.check()
        move.ends[move.partition] = move.third


@a_move(
    "kip-113/source-fails",
    plan="movement will stop if either … becomes offline: source",
)
def test_source_fails(cluster: Cluster, workload: CaseWorkload) -> None:
    """The log dir that the leader's replica is leaving fails: the move stops; with the dir back, it goes on."""
    with moving(cluster, workload, leader_of) as move:
        with log_dirs_failed(move.world, Chmod000(move.here)) as fault:
            check_stopped(move, fault, working=move.there)
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.world.broker_gone(move.broker)
        healed(cluster, move)


@a_move(
    "kip-113/destination-fails",
    plan="movement will stop if either … becomes offline: destination",
)
@each_fault("fail_log_dir", (Chmod000, FullTmpfs))
def test_destination_fails(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The log dir that a replica is going to fails or is full: the move stops; with the dir back, it gets there."""
    with moving(cluster, workload) as move:
        with log_dirs_failed(move.world, fail_log_dir(move.there)) as fault:
            check_stopped(move, fault, working=move.here)
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.world.broker_gone(move.broker)
        healed(cluster, move)


@a_move(
    "kip-113/destination-fills",
    plan="movement will stop if either … becomes offline: destination, filled by the move itself",
    needs=NearlyFull.needs,
    **NearlyFull.cluster,
)
def test_destination_fills(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir has less room left than is yet to be copied into it: the leader's replica stays, and its pair goes on.

    It is the move's own write that meets the end; what was in that log dir is offline until there is room again.
    """
    with moving(cluster, workload, leader_of) as move:
        with injected(NearlyFull(move.there)) as fault:
            let_meet(move, fault, f"Error while appending records to {move.partition} in dir")
            move.world.log_dir_failed(move.there)
            move.world.check()
            check_stopped(move, fault, working=move.here)
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.world.broker_gone(move.broker)
        healed(cluster, move)


def check_stopped(move: Move, fault: LogDirFault, *, working: LogDir) -> None:
    """The broker stops the move, and it stands still though nothing holds it: no byte is copied, nor does it try to.

    :param working: a log dir of the broker in which it goes on working, which shows that it had the time
    :raises PromiseBroken: it goes on
    """
    stops = rf"ReplicaAlterLogDirsManager on broker \d+\] Removed fetcher for partitions .*\b{move.partition}\b"
    check_says(move.broker, stops, fault.injected_at)
    before = len(copy_of(move.partition, move.there))
    with moves_let_go(move.broker):
        since = now()
        await_checkpoints(working, 5)
        after = len(copy_of(move.partition, move.there))
        tries = tries_to_move(move.partition, move.broker.log.lines(since=since))
    move.broker.journal.write("move.stopped", partition=str(move.partition), bytes=after, tries=tries)
    if after != before or tries:
        raise PromiseBroken(
            f"the move of {move.partition} into {move.there} should have stopped: of its copy there were {before} "
            f"bytes, and now {after}; {move.broker} says {tries[:1] or 'nothing of it'}"
        )


def tries_to_move(partition: Partition, lines: Iterable[LogLine]) -> list[str]:
    """What the thread that moves replicas complains of while it can't move this one."""
    return [
        line.text[:300]
        for line in lines
        if line.level in ("WARN", "ERROR") and "ReplicaAlterLogDirsThread" in line.text and str(partition) in line.text
    ]


def healed(cluster: Cluster, move: Move) -> None:
    """The broker is started on its healed log dir, and goes on with the move."""
    move.broker.start()
    cluster.await_healthy(failure=PromiseBroken)
    move.world.log_dirs_back(move.broker)
    check_goes_on(move)


def check_goes_on(move: Move) -> None:
    """With its broker back the move is where it was, or on its way to the end.

    In KRaft nothing holds it for as long as the broker is not told the throttle, and it may be at its end by then: by
    itself, as it is to be.
    """
    try:
        move.world.check(timeouts.RECOVERY_S)
        check_under_way(move.partition, move.there)
    except Unheld as ended:
        move.broker.journal.write("move.unheld", partition=str(move.partition), to=str(move.there), says=str(ended))
        move.world.check(timeouts.RECOVERY_S)


@a_move("kip-113/restart-with-both", plan="3. both … exist on good log directories")
def test_restart_with_both(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker dies amid a move: it finds both copies, and the move goes on by itself."""
    with moving(cluster, workload) as move:
        with move.broker_down():
            pass
        check_goes_on(move)


@a_move(
    "kip-113/restart-with-both-and-bad-source",
    plan="3. topicPartition.move exists but topicPartition doesn't …, and if there is bad log directory: its own",
)
def test_restart_with_both_and_bad_source(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker dies amid a move, and finds the replica's log dir bad: it is offline, and its copy not touched.

    With the log dir good again the move goes on where it was.
    """
    with moving(cluster, workload) as move:
        with move.broker_down(), injected(Chmod000(move.here)):
            copied = copy_of(move.partition, move.there)
            move.world.log_dir_failed(move.here)
            move.broker.start()
            move.world.broker_back(move.broker)
            move.world.check(timeouts.RECOVERY_S)
            move.pair.await_progress(after=now())
            if copy_of(move.partition, move.there) != copied:
                raise PromiseBroken(
                    f"the copy of {move.partition} in {move.there} was touched while {move.here} was bad"
                )
            move.broker.stop()
            move.world.broker_gone(move.broker)
        move.world.log_dirs_back(move.broker)
        check_goes_on(move)


@a_move("kip-113/new-leader", plan="a leader changes while a replica is moved")
@each_role
def test_new_leader(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """The partition's leader is stopped amid a move of another replica, or of its own: the move gets to its end."""
    with moving(cluster, workload, role) as move:
        leader = leader_of(move.partition)
        with injected(BrokerStopped(leader)):
            move.world.broker_gone(leader)
            move.world.check()
            move.pair.await_progress(after=now())
        move.world.broker_back(leader)
        check_goes_on(move)


@a_move(
    "kip-113/topic-deleted",
    plan="a topic is deleted while a replica is moved",
    floors=NO_FAULT,
)
def test_topic_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """A topic is deleted amid moves of its replicas, of which one has begun to copy and another waits for the broker's
    other move: nothing of it stays, and that other move is not disturbed.
    """
    with moving(cluster, workload) as move:
        refunds = cluster.create_topic("refunds")
        write_untracked_records(refunds, 800, size=1000)
        another, *_ = cluster.others(move.broker)
        with moves_held(another):
            begin_move(refunds[0], other_dir(refunds[0].log_dir_on(another)))
            begin_move(refunds[0], other_dir(refunds[0].log_dir_on(move.broker)), waits=True)
            cluster.delete_topic(refunds)
            check_gone(cluster, "refunds")
        check_under_way(move.partition, move.there)


@a_move(
    "kip-113/crosswise",
    plan="two moves at once, each into the log dir that the other leaves",
    floors=NO_FAULT,
)
def test_crosswise(cluster: Cluster, workload: CaseWorkload) -> None:
    """Two replicas of a broker change places: both get there."""
    with moving(cluster, workload) as move:
        go_round(move, move.there, move.here)


@a_move(
    "kip-113/in-a-circle",
    plan="three moves at once, each into the log dir that the next one leaves",
    floors=NO_FAULT,
    log_dirs=3,
)
def test_in_a_circle(cluster: Cluster, workload: CaseWorkload) -> None:
    """Three replicas of a broker go round its log dirs: all get there."""
    with moving(cluster, workload, leader_of) as move:
        go_round(move, move.there, move.third, move.here)


def go_round(move: Move, *log_dirs: LogDir) -> None:
    """Begin to move a replica beside from each of these log dirs into the next."""
    for here, there in pairwise(log_dirs):
        [one, *_] = (Partition(move.world.cluster, *key) for key in sorted(move.world.replicas_in(here)))
        begin_move(one, there, waits=True)
        move.ends[one] = there


@a_move(
    "kip-113/reassigned-amid-move",
    plan="a partition is reassigned while a replica is moved",
    floors=NO_FAULT,
    brokers=4,
)
def test_reassigned_amid_move(cluster: Cluster, workload: CaseWorkload) -> None:
    """A replica goes to another broker amid a move: neither it nor its copy stays on the broker that it left."""
    # With something beside it in each log dir: of one that was emptied, checkpoint files go on naming what left it.
    orders, beside = cluster.create_topic("orders"), cluster.create_topic("beside", partitions=4, replicas=4)
    world = World(cluster, orders, beside)
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
        await_reassigned(cluster, world, placement, timeout_s=timeouts.MOVE_S)
        check_checkpoints(cluster, {"orders", "beside"})
        pair.await_progress(after=now())
    check_delivery(workload)
