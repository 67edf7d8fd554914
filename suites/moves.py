"""Steps that move replicas between log dirs, hold such moves by KIP-113's throttle, and check how far they are."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.log_dir import HIGH_WATERMARKS, LogDir
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.deviations import MOVE_NEVER_ENDS
from suites.observing import observe
from suites.state_check import StateCheck

MOVE_THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"

MOVES_FREE = {MOVE_THROTTLE: str(1 << 40)}

MOVES_HELD = {MOVE_THROTTLE: "1"}

# Broker settings for cases that hold moves. The throttle applies after the first fetch, which is up to 1 MB by default.
# A throttled move waits for the backoff, a second by default, and would fall behind its rate.
SMALL_FETCHES = {"replica.fetch.max.bytes": "65536", "replica.fetch.backoff.ms": "100"}


@contextmanager
def moves_held(*brokers: Broker, rate: int = 1) -> Iterator[None]:
    """Inside the block, KIP-113's throttle holds moves between the brokers' log dirs.

    :param rate: bytes a second for each broker; with 1 a move stands still after one fetch
    """
    for broker in brokers:
        broker.configure({MOVE_THROTTLE: str(rate)})
    yield
    for broker in brokers:
        broker.configure(MOVES_FREE)


def begin_move(partition: Partition, log_dir: LogDir, *, copying: int | None = None, waits: bool = False) -> None:
    """Begin to move a replica into another log dir of its broker, and check that the move is under way.

    The future replica then has some of the log and not all of it.

    :param copying: see :func:`check_under_way`
    :param waits: the future replica may be empty, since another move is held or earlier moves have used up the rate. A
        thread moves one partition at a time (``LocalLeaderEndPoint.nextReadyPartition``)
    :raises PromiseBroken: the broker accepted the move and does not begin it
    :raises Inconclusive: the move has already ended, or no record was copied
    """
    partition.move_to(log_dir)
    await_begun(partition, log_dir)
    if not waits:
        await_copied(partition, log_dir)
    check_under_way(partition, log_dir, copying=copying)


def await_begun(partition: Partition, log_dir: LogDir) -> None:
    """Wait until the broker has the future replica in this log dir, or already the replica.

    :raises PromiseBroken: it has neither
    """
    find = functools.partial(log_dir.broker.find_replica, partition.topic, partition.index)

    def found() -> list[LogDir]:
        return [each[0] for each in (find(is_future=True), find()) if each is not None]

    await_until(
        found,
        lambda places: log_dir in places,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{log_dir.broker} to begin the move of {partition} into {log_dir}, which it accepted",
        retry_on=(NoAnswer,),
        watch=log_dir.broker.node.check_alive,
        failure=PromiseBroken,
    )


def await_copied(partition: Partition, log_dir: LogDir) -> None:
    """Wait until the future replica in this log dir has some records, or the move has ended.

    :raises PromiseBroken: nothing is copied
    """
    broker = log_dir.broker

    def copied() -> int | None:
        there = broker.log_dir_of(partition.topic, partition.index) == log_dir
        return len(future_log_bytes(partition, log_dir)) or (0 if there else None)

    seen = await_until(
        copied,
        lambda seen: seen is not None,
        timeout_s=timeouts.MOVE_S,
        what=f"some of {partition} to be copied into {log_dir}",
        retry_on=(NoAnswer, FileNotFoundError),
        watch=broker.node.check_alive,
        failure=PromiseBroken,
    )
    broker.journal.write("move.copied", partition=str(partition), to=str(log_dir), bytes=seen)


def check_under_way(partition: Partition, log_dir: LogDir, *, copying: int | None = None) -> None:
    """The move into the log dir has begun and has not ended.

    :param copying: the future replica must be fewer than so many records behind (default: any number)
    :raises Inconclusive: the move has not begun, has ended, or has copied less
    """

    def lag() -> int | None:
        future = log_dir.broker.find_replica(partition.topic, partition.index, is_future=True)
        return future[1].offset_lag if future is not None and future[0] == log_dir else None

    records = await_until(
        lag,
        lambda behind: behind is not None and 0 < behind < (copying or math.inf),
        timeout_s=timeouts.REQUEST_S,
        what=f"the move of {partition} into {log_dir} to be under way",
        retry_on=(NoAnswer,),
        failure=Inconclusive,
    )
    log_dir.broker.journal.write("move.under_way", partition=str(partition), to=str(log_dir), lag=records)


def check_high_watermark_kept(partition: Partition, log_dir: LogDir) -> None:
    """The broker writes the high watermark of a held future replica into the checkpoint of its log dir.

    A future replica that becomes current at a start begins at this offset (KIP-113, 3.).

    :raises PromiseBroken: it does not, though it must write the file twice a second
    """
    await_until(
        lambda: log_dir.offsets_in_checkpoint(HIGH_WATERMARKS),
        lambda offsets: str(partition) in offsets,
        timeout_s=timeouts.QUESTION_S,
        what=f"{HIGH_WATERMARKS} in {log_dir} to name {partition}, whose future replica is there",
        retry_on=(OSError, ValueError),  # the broker replaces the file meanwhile
        watch=log_dir.broker.node.check_alive,
        failure=PromiseBroken,
    )
    log_dir.broker.journal.write("move.high_watermark_kept", partition=str(partition), log_dir=str(log_dir))


def future_log_bytes(partition: Partition, log_dir: LogDir) -> bytes:
    """The bytes of the future replica's log in this log dir, as they are on disk."""
    return b"".join(path.read_bytes() for path in sorted(log_dir.path.glob(f"{partition}.*-future/*.log")))


ACKNOWLEDGEMENT_FAILED = r"Unexpected error handling \S*AssignmentResponseEvent(?s:.*)updateReassignmentState"
"""The log line of a KRaft broker that fails to handle the controller's acknowledgement of moves."""


def await_moved(partition: Partition, log_dir: LogDir, timeout_s: float = timeouts.MOVE_S) -> None:
    """Wait until the replica is in this log dir and the broker has no future replica of it (KIP-113).

    On builds whose broker loses an acknowledgement, this requests the move again, as an operator would.

    :raises PromiseBroken: the move does not end
    """
    broker = log_dir.broker
    wait = functools.partial(
        await_until,
        lambda: not_moved(partition, log_dir),
        lambda what: what is None,
        timeout_s=timeout_s,
        what=f"{partition} to be in {log_dir}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    try:
        wait()
    except PromiseBroken as error:
        if (line := broker.log.first(ACKNOWLEDGEMENT_FAILED)) is None:
            raise
        observe(MOVE_NEVER_ENDS, partition.cluster, deviates=True, seen=line.text, broken=error)
        partition.move_to(log_dir)
        wait()
    broker.journal.write("move.done", partition=str(partition), to=str(log_dir))


def not_moved(partition: Partition, log_dir: LogDir) -> str | None:
    """Why the move into this log dir has not ended; None if the replica is there and has no future replica."""
    find = functools.partial(log_dir.broker.find_replica, partition.topic, partition.index)
    here, coming = find(), find(is_future=True)
    if coming is not None:
        return f"its future replica in {coming[0]} is {coming[1].offset_lag} records behind"
    return None if here is not None and here[0] == log_dir else f"it is in {here and here[0]}"


def finish_move(state: StateCheck, partition: Partition, log_dir: LogDir) -> None:
    """Wait until a move has ended, and report it to ``state``.

    :raises PromiseBroken: it does not end
    """
    await_moved(partition, log_dir)
    state.moved(partition, log_dir)
