"""A replica on its way from one log dir of its broker to another, while a pair is at work; scenarios of moves share it.

So that none of this is a race, a move is held by its own throttle after one small fetch
(:func:`~suites.steps.moves_held`) until the thing has happened; that it was under way then is seen at the broker and
noted in the journal, or else the case is inconclusive. Afterwards there is one copy on each broker, in the log dir that
it should be in, no folder and no line in a checkpoint file that nobody needs, and nothing was lost or doubled.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import LogDirFault
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import Inconclusive
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from harness.workload.pair import Pair
from suites.checks import check_delivery, check_noticed
from suites.observations import metadata_log
from suites.on_disk import check_checkpoints, check_kept, check_no_remains, check_same_bytes, leaders_logs
from suites.scenario import scenario
from suites.state_check import World
from suites.steps import (
    FREE,
    HELD,
    HOLDS_MOVES,
    begin_move,
    finish_move,
    moves_held,
    restart_after_healing,
    write_untracked_records,
)

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
    def third(self) -> LogDir:
        """A log dir of its broker that it has nothing to do with."""
        return next(each for each in self.broker.log_dirs if each not in (self.here, self.there))

    @property
    def folder(self) -> Path:
        """Of the replica, where the move has brought it."""
        return self.there.replica_dir(self.partition.topic, self.partition.index)

    def leave_copy_alone(self) -> Path:
        """While the broker is down: there is the copy (returned) and no replica, as if its disk had been replaced."""
        copy = self.folder.rename(self.there.path / self.marked("future"))
        self.broker.journal.write("move.copy_left_alone", partition=str(self.partition), copy=str(copy))
        return copy

    def marked(self, suffix: str) -> str:
        """The folder's name with one of Kafka's suffixes (``LocalLog.logDeleteDirName``, ``logFutureDirName``)."""
        return f"{self.folder.name}.{uuid.uuid4().hex}-{suffix}"


@contextmanager
def moving(
    cluster: Cluster,
    workload: CaseWorkload,
    role: Callable[[Partition], Broker] = follower_of,
    *,
    held: bool = True,
    looks_late: bool = False,
) -> Iterator[Move]:
    """A move under way inside the block; afterwards it comes to its end, and all is as it should be.

    Beside what is moved there are replicas in every log dir, so that the failure of one shows. All have more in them
    than the few fetches with which a held move may begin.

    :param held: else it is done when the block begins
    :param looks_late: brokers write their checkpoint files only when they stop, which the mover then does for it
    """
    orders, beside = cluster.create_topic("orders"), cluster.create_topic("beside", partitions=4)
    write_untracked_records(beside, 800, size=1000)
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
                world.check()  # the broker says that it is there some milliseconds before the disk does
            yield move
            pair.await_progress(after=now())
        for partition, log_dir in move.ends.items():
            finish_move(world, partition, log_dir)
        world.check(timeouts.RECOVERY_S, also=[metadata_log])
        check_no_remains(cluster, {"orders", "beside", "refunds"})
        if looks_late:
            restart_after_healing(world, mover)
        check_checkpoints(cluster, {"orders", "beside", "refunds"}, on=[mover] if looks_late else None)
        pair.await_progress(after=now())
    check_same_bytes(*orders.partitions, *beside.partitions)
    check_kept(kept)
    check_delivery(workload)


def let_meet(move: Move, fault: LogDirFault, saying: str) -> None:
    """The move, held so far, goes on, until its broker takes the log dir offline: it is the move that meets the fault.

    :param saying: a regular expression of how the broker's error then begins; it ends with the log dir's path
    :raises Inconclusive: something else met it
    """
    with moves_let_go(move.broker):
        check_noticed(fault)
    met = f"{saying} {re.escape(str(fault.log_dir.path))}"
    if move.broker.log.first(met, since=fault.injected_at) is None:
        raise Inconclusive(f"{fault} was met, and not by the move of {move.partition}: nobody logged /{met}/")


@contextmanager
def moves_let_go(broker: Broker) -> Iterator[None]:
    """Moves that are held are not, inside the block."""
    broker.configure(FREE)
    yield
    broker.configure(HELD)
