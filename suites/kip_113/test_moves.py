"""KIP-113's moves that don't go to plan: each is hit while it is under way, and must come to the end that the KIP says.

So that none of this is a race, a move is held by its own throttle after one small fetch
(:func:`~suites.steps.moves_held`) until the thing has happened; that it was under way then is seen at the broker and
noted in the journal, or else the case is inconclusive. Afterwards there is one copy on each broker, in the log dir that
it should be in, no folder and no line in a checkpoint file that nobody needs, and nothing was lost or doubled.

What a broker finds that dies while it swaps the copies is made while it is down, out of a finished move: the last
rename is taken back ("3. Handle failure that happens when broker is moving data or swapping replica"). Out of a
finished one, because in KRaft a broker tells the controller where the replica will be before it swaps, and believes the
controller when it is back (KIP-858; ``LogManager.recoverAbandonedFutureLogs``).
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.base import injected
from faults.broker import BrokerKilled, BrokerStopped
from faults.file_system import FullTmpfs
from faults.log_dir import Chmod000, LogDirFault
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.doors.broker_log import LogLine
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.log_dir import LogDir
from harness.pipeline.pair import Pair
from harness.reassign import Placement, execute
from harness.releases.versions import Mode
from harness.runs.measure import Floors
from harness.topic import Partition
from harness.workload import CaseWorkload
from suites.checks import check_delivery, check_says, promised
from suites.deviations import COPY_PASSED_OVER
from suites.model import World
from suites.on_disk import (
    check_checkpoints,
    check_gone,
    check_kept,
    check_no_remains,
    check_same_bytes,
    leaders_logs,
    log_in,
)
from suites.scenario import each_fault, scenario
from suites.sources import registrations
from suites.steps import (
    HOLDS_MOVES,
    MOVE_THROTTLE,
    await_checkpoints,
    await_reassigned,
    begin_move,
    check_under_way,
    copy_of,
    failed,
    finish_move,
    moves_held,
    write_as_a_stranger,
)

NO_FAULT = Floors(faults=0)
a_move = functools.partial(scenario, kip=113, overrides=HOLDS_MOVES)
each_role = pytest.mark.parametrize("role", [leader_of, follower_of], ids=["leader", "follower"])


@dataclass(kw_only=True)
class Move:
    """A replica that is on its way from ``here`` to ``there``, held until the block ends, while a pair is at work.

    :ivar ends: where it is to be afterwards; a scenario may say otherwise, and of other replicas of the broker too
    """

    world: World
    pair: Pair
    partition: Partition
    here: LogDir
    there: LogDir
    ends: dict[Partition, LogDir]

    @property
    def broker(self) -> Broker:
        """Whose replica it is."""
        return self.here.broker

    @contextmanager
    def broker_down(self) -> Iterator[None]:
        """Its broker is killed, and down inside the block; back, and in all ISRs, after it."""
        with injected(BrokerKilled(self.broker)):
            self.world.broker_gone(self.broker)
            self.world.check()
            self.pair.await_progress(after=now())
            yield
        self.world.broker_back(self.broker)

    @property
    def folder(self) -> Path:
        """Of the replica, where the move has brought it."""
        return self.there.replica_dir(self.partition.topic, self.partition.index)

    def leave_copy_alone(self) -> Path:
        """While the broker is down: as if it had died amid the swap, with a copy (returned) and no replica."""
        copy = self.folder.rename(self.there.path / self.marked("future"))
        self.broker.journal.write("move.copy_left_alone", partition=str(self.partition), copy=str(copy))
        return copy

    def marked(self, suffix: str) -> str:
        """The folder's name with one of Kafka's suffixes (``LocalLog.logDeleteDirName``, ``logFutureDirName``)."""
        return f"{self.folder.name}.{uuid.uuid4().hex}-{suffix}"


@contextmanager
def moving(
    cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker] = follower_of, *, held: bool = True
) -> Iterator[Move]:
    """A move under way inside the block; afterwards it comes to its end, and all is as it should be.

    Beside what is moved there are replicas in every log dir, so that the failure of one shows. All have more in them
    than the few fetches with which a held move may begin.

    :param held: else it is done when the block begins
    """
    orders, beside = cluster.create_topic("orders"), cluster.create_topic("beside", partitions=4)
    write_as_a_stranger(beside, 800, size=1000)
    kept = leaders_logs(beside.partitions)
    world = World(cluster, orders, beside)
    mover = role(orders[0])
    here = orders[0].log_dir_on(mover)
    there = other_dir(here)
    with workload.running(orders, record_bytes=1000) as pair:
        pair.await_count(500)
        move = Move(world=world, pair=pair, partition=orders[0], here=here, there=there, ends={orders[0]: there})
        with moves_held(mover) if held else nullcontext():
            if held:
                begin_move(orders[0], there)
                world.moving(orders[0], there)
            else:
                orders[0].move_to(there)
                finish_move(world, orders[0], there)
            yield move
            pair.await_progress(after=now())
        for partition, log_dir in move.ends.items():
            finish_move(world, partition, log_dir)
        world.check(timeouts.RECOVERY_S, also=[registrations])
        check_no_remains(cluster, {"orders", "beside", "refunds"})
        check_checkpoints(cluster, {"orders", "beside", "refunds"})
        pair.await_progress(after=now())
    check_same_bytes(*orders.partitions, *beside.partitions)
    check_kept(kept)
    check_delivery(workload)


@a_move("kip-113/under-load", plan="2. Complete replica data movement", floors=NO_FAULT)
@each_role
def test_under_load(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """The leader's replica, or a follower's, moves to the other log dir while the pair is at work."""
    with moving(cluster, workload, role) as move:
        move.world.check()
        move.pair.await_progress(after=now())


@a_move("kip-113/called-off", plan="cancel an existing movement of the replica", floors=NO_FAULT)
def test_called_off(cluster: Cluster, workload: CaseWorkload) -> None:
    """A move is called off: the replica stays where it is, and its copy is gone."""
    with moving(cluster, workload) as move:
        move.partition.move_to(move.here)
        move.ends[move.partition] = move.here


@a_move(
    "kip-113/pointed-elsewhere",
    plan="a move is given another log dir",
    floors=NO_FAULT,
    log_dirs=3,
)
def test_pointed_elsewhere(cluster: Cluster, workload: CaseWorkload) -> None:
    """A move is pointed to a third log dir midway: the replica ends there, and its first copy is gone."""
    with moving(cluster, workload) as move:
        third = next(each for each in move.broker.log_dirs if each not in (move.here, move.there))
        begin_move(move.partition, third, waits=True)
        move.world.moving(move.partition, third)
        move.world.check()
        move.ends[move.partition] = third


@a_move(
    "kip-113/source-fails",
    plan="movement will stop if either … becomes offline: source",
)
def test_source_fails(cluster: Cluster, workload: CaseWorkload) -> None:
    """The log dir that a replica is leaving fails: it is offline, its move stops; with the dir back, it goes on."""
    with moving(cluster, workload) as move:
        with failed(move.world, Chmod000(move.here)) as fault:
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
        with failed(move.world, fail_log_dir(move.there)) as fault:
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


@contextmanager
def moves_let_go(broker: Broker) -> Iterator[None]:
    """Moves that are held are not, inside the block."""
    broker.configure({MOVE_THROTTLE: str(1 << 40)})
    yield
    broker.configure({MOVE_THROTTLE: "1"})


def healed(cluster: Cluster, move: Move) -> None:
    """The broker is started on its healed log dir, and finds the move where it was."""
    move.broker.start()
    cluster.await_healthy(failure=PromiseBroken)
    move.world.log_dirs_back(move.broker)
    move.world.check()
    check_under_way(move.partition, move.there)


@a_move("kip-113/restart-with-both", plan="3. both … exist on good log directories")
def test_restart_with_both(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker dies amid a move: it finds both copies, and the move goes on by itself."""
    with moving(cluster, workload) as move:
        with move.broker_down():
            pass
        move.world.check(timeouts.RECOVERY_S)
        check_under_way(move.partition, move.there)


@a_move(
    "kip-113/restart-with-copy",
    plan="3. topicPartition.move exists but topicPartition doesn't … no bad log directory",
    deviations=(COPY_PASSED_OVER,),
)
def test_restart_with_copy(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker dies while it swaps the copies: the new one alone is there, and becomes the replica."""
    with moving(cluster, workload, held=False) as move:
        with move.broker_down():
            files = _files(move.leave_copy_alone())
        move.world.check(timeouts.RECOVERY_S)
        with promised(cluster, unless=COPY_PASSED_OVER, seen=f"^{move.broker} made {move.partition} anew"):
            check_not_made_anew(move, files)


def _files(folder: Path) -> set[tuple[str, int]]:
    """The segments in a replica's folder, with what makes each the same file under another path."""
    return {(path.name, path.stat().st_ino) for path in folder.glob("*.log")}


def check_not_made_anew(move: Move, files: set[tuple[str, int]]) -> None:
    """The broker has made no replica of the partition since its start: what it found is what it serves.

    :param files: what it found
    :raises PromiseBroken: it has
    """
    made = rf"Created log for partition {re.escape(str(move.partition))} in"
    if (line := move.broker.log.first(made, since=move.broker.started_at)) is not None:
        raise PromiseBroken(f"{move.broker} made {move.partition} anew, though there was a copy of it: {line.text}")
    if not files <= _files(move.folder):
        raise PromiseBroken(f"{move.broker} serves {move.partition} from other files than those of the copy: {files}")


@a_move(
    "kip-113/restart-with-copy-and-bad-dir",
    plan="3. topicPartition.move exists but topicPartition doesn't … and if there is bad log directory",
    log_dirs=3,
)
def test_restart_with_copy_and_bad_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """As before, but another log dir is bad, where the replica might be: it is offline, and its copy not touched.

    In KRaft the controller knows that the replica is not there, and it is online.
    """
    with moving(cluster, workload, held=False) as move:
        bad = next(each for each in move.broker.log_dirs if each not in (move.here, move.there))
        with move.broker_down(), injected(Chmod000(bad)):
            copy = move.leave_copy_alone()
            log = log_in(copy)
            move.world.log_dir_failed(bad)
            unknown = cluster.spec.mode is Mode.ZK
            if unknown:
                move.world.taken_for_lost(move.partition, bad)
            move.broker.start()
            move.world.broker_back(move.broker)
            move.world.check(timeouts.RECOVERY_S)
            if unknown and log_in(copy) != log:
                raise PromiseBroken(f"{copy.name} in {move.there} was touched while {bad} was bad")
            move.pair.await_progress(after=now())
            move.broker.stop()
            move.world.broker_gone(move.broker)
        move.world.moved(move.partition, move.there)
        move.world.log_dirs_back(move.broker)
        move.world.check(timeouts.RECOVERY_S)


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
        move.world.check(timeouts.RECOVERY_S)
        check_under_way(move.partition, move.there)


@a_move("kip-113/restart-with-deleted", plan="3. If topicPartition.delete exists")
def test_restart_with_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker dies before it has deleted what a finished move left: it does when it is back."""
    with moving(cluster, workload, held=False) as move:
        with move.broker_down():
            left = move.here.path / move.marked("delete")
            move.broker.node.run_as_user(["cp", "-r", str(move.folder), str(left)])
            if not left.is_dir():
                raise Inconclusive(f"{left} could not be made")
        move.world.check(timeouts.RECOVERY_S)


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
        move.world.check(timeouts.RECOVERY_S)
        check_under_way(move.partition, move.there)


@a_move(
    "kip-113/topic-deleted",
    plan="a topic is deleted while a replica is moved",
    floors=NO_FAULT,
)
def test_topic_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """A topic is deleted amid a move of one of its replicas: nothing of it stays, and others are not disturbed."""
    with moving(cluster, workload) as move:
        refunds = cluster.create_topic("refunds")
        write_as_a_stranger(refunds, 800, size=1000)
        begin_move(refunds[0], other_dir(refunds[0].log_dir_on(move.broker)), waits=True)
        cluster.delete_topic(refunds)
        check_gone(cluster, "refunds")


@a_move(
    "kip-113/crosswise",
    plan="two moves at once, each into the log dir that the other leaves",
    floors=NO_FAULT,
)
def test_crosswise(cluster: Cluster, workload: CaseWorkload) -> None:
    """Two replicas of a broker change places: both get there."""
    with moving(cluster, workload) as move:
        beside = [Partition(cluster, "beside", index) for index in range(4)]
        other = next(each for each in beside if each.log_dir_on(move.broker) == move.there)
        begin_move(other, move.here, waits=True)
        move.ends[other] = move.here


@a_move(
    "kip-113/reassigned-amid-move",
    plan="a partition is reassigned while a replica is moved",
    floors=NO_FAULT,
    brokers=4,
)
def test_reassigned_amid_move(cluster: Cluster, workload: CaseWorkload) -> None:
    """A replica goes to another broker amid a move: neither it nor its copy stays on the broker that it left."""
    orders = cluster.create_topic("orders")
    world = World(cluster, orders)
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
        pair.await_progress(after=now())
    check_delivery(workload)
