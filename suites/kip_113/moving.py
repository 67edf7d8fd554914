"""A move between two log dirs of a broker under load, which KIP-113's scenarios share.

To avoid races, the move's throttle holds it after one small fetch (:func:`~suites.moves.moves_held`) until the scenario
has done its part. The broker must show the move under way then; else the case is inconclusive. Afterwards each broker
has one replica, in the right log dir. No folder and no checkpoint line is left over, and no record is lost or
duplicated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import LogDirFault
from faults.targets import follower_of, other_dir
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
from suites.moves import (
    MOVES_FREE,
    MOVES_HELD,
    SMALL_FETCHES,
    begin_move,
    check_high_watermark_kept,
    finish_move,
    moves_held,
)
from suites.observations import metadata_log
from suites.on_disk import check_checkpoints, check_logs_unchanged, check_no_leftovers, check_same_bytes, leaders_logs
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import restart_after_healing, write_untracked_records

move_scenario = functools.partial(scenario, kip=113, overrides=SMALL_FETCHES)


@dataclass(kw_only=True)
class Move:
    """A move of a replica from ``here`` to ``there``, held until the block ends, while a pair runs.

    :ivar ends: the log dir of each moved replica after the block; a scenario may change it, or add other replicas
    """

    state: StateCheck
    pair: Pair
    partition: Partition
    here: LogDir
    there: LogDir
    ends: dict[Partition, LogDir]

    @property
    def broker(self) -> Broker:
        """The broker whose replica moves."""
        return self.here.broker

    @contextmanager
    def broker_down(self) -> Iterator[None]:
        """Kill the broker; inside the block it is down. After it, the broker is back and in all ISRs."""
        with injected(BrokerKilled(self.broker)):
            self.state.broker_gone(self.broker)
            self.state.check()
            self.pair.await_progress(after=now())
            yield
        self.state.broker_back(self.broker)

    @property
    def third(self) -> LogDir:
        """Another log dir of the broker."""
        return next(each for each in self.broker.log_dirs if each not in (self.here, self.there))

    @property
    def folder(self) -> Path:
        """The replica's folder in the new log dir."""
        return self.there.replica_dir(self.partition.topic, self.partition.index)


@contextmanager
def moving(
    cluster: Cluster,
    workload: CaseWorkload,
    role: Callable[[Partition], Broker] = follower_of,
    *,
    held: bool = True,
    rare_checkpoints: bool = False,
) -> Iterator[Move]:
    """Inside the block a move is under way; after it, the move ends and everything is checked.

    Every log dir has other replicas, too, so that its failure shows. All replicas have more records than a held move
    copies with its first fetches.

    :param held: False: the move has ended when the block begins
    :param rare_checkpoints: brokers write checkpoint files only when they stop, so restart the broker before the check
    """
    orders, beside = cluster.create_topic("orders"), cluster.create_topic("beside", partitions=4)
    write_untracked_records(beside, 800, size=1000)
    kept = leaders_logs(beside.partitions)
    state = StateCheck(cluster, orders, beside)
    mover = role(orders[0])
    here = orders[0].log_dir_on(mover)
    there = other_dir(here)
    with workload.running(orders, record_bytes=1000) as pair:
        pair.await_count(500)
        move = Move(state=state, pair=pair, partition=orders[0], here=here, there=there, ends={orders[0]: there})
        with moves_held(mover) if held else nullcontext():
            if held:
                begin_move(orders[0], there)
                state.move_held(orders[0], there)
                if not rare_checkpoints:
                    check_high_watermark_kept(orders[0], there)
            else:
                orders[0].move_to(there)
                finish_move(state, orders[0], there)
                state.check()  # the broker shows the replica some milliseconds before the disk does
            yield move
            pair.await_progress(after=now())
        for partition, log_dir in move.ends.items():
            finish_move(state, partition, log_dir)
        state.check(timeouts.RECOVERY_S, also=[metadata_log])
        check_no_leftovers(cluster, {"orders", "beside", "refunds"})
        if rare_checkpoints:
            restart_after_healing(state, mover)
        check_checkpoints(cluster, {"orders", "beside", "refunds"}, on=[mover] if rare_checkpoints else None)
        pair.await_progress(after=now())
    check_same_bytes(*orders.partitions, *beside.partitions)
    check_logs_unchanged(kept)
    check_delivery(workload)


def let_move_hit_fault(move: Move, fault: LogDirFault, saying: str) -> None:
    """Release the move until the broker takes the log dir offline, and check that the move itself hit the fault.

    :param saying: a regular expression of the broker's error up to the log dir's path
    :raises Inconclusive: something else hit the fault
    """
    with moves_released(move.broker):
        check_noticed(fault)
    met = f"{saying} {re.escape(str(fault.log_dir.path))}"
    if move.broker.log.first(met, since=fault.injected_at) is None:
        raise Inconclusive(
            f"{move.broker} noticed {fault}, but not by the move of {move.partition}: its log has no line /{met}/"
        )


@contextmanager
def moves_released(broker: Broker) -> Iterator[None]:
    """Inside the block, held moves of the broker go on."""
    broker.configure(MOVES_FREE)
    yield
    broker.configure(MOVES_HELD)
