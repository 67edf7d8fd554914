"""Checks of the files beside the segments in replicas' folders: leader epochs, producer snapshots, recovery points.

A broker reads them at its next start, at its next truncation, or as the next leader, so clients see an error late.

* ``leader-epoch-checkpoint``: epochs and offsets rise, and each batch is in the range of its epoch. An entry is written
  before the first batch of its epoch. No entry starts above the end of the log.
* No entry starts below the log start (``LeaderEpochFileCache.truncateFromStart``). Kafka writes this in the background.
  A broker that was killed in between, or swapped in a future replica, may keep such an entry: it is not checked then.
* With a segment goes its producer snapshot (``UnifiedLog.deleteSegments``).
* The recovery point is not above the end of the log, or records after a truncation would not be checked after a crash.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.log_dir import LOG_STARTS, RECOVERY_POINTS, LogDir
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.events import NodeKilled
from harness.kafka.connection import NoAnswer
from harness.kafka.stored_log import StoredLog
from harness.waiting import await_until

LEADER_EPOCHS = "leader-epoch-checkpoint"
# A batch's base offset and, after its length, its leader epoch.
_BATCH = struct.Struct(">q4xi")


def check_replica_files(*partitions: Partition) -> None:
    """The files of the replicas on live brokers fit the logs. Call it when no client writes any more.

    :raises PromiseBroken: they do not, also after a while
    """
    cluster = partitions[0].cluster

    def wrong() -> list[str]:
        return [
            f"{partition} in {log_dir} has {what}"
            for broker in cluster.live_brokers()
            for (topic, index), (log_dir, _) in broker.find_replicas().items()
            for partition in partitions
            if (topic, index) == (partition.topic, partition.index)
            for what in wrong_files(log_dir, str(partition), sure_of_start=_is_sure_of_start(broker, partition))
        ]

    await_until(
        wrong,
        lambda found: not found,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the files of {', '.join(map(str, partitions))} to fit the logs",
        retry_on=(NoAnswer, OSError),
        failure=PromiseBroken,
    )


def _is_sure_of_start(broker: Broker, partition: Partition) -> bool:
    """Whether no entry may start below the log start."""
    killed = any(event.node == broker.node.spec.name for event in broker.journal.of(NodeKilled))
    return not killed and not broker.log.first(
        rf"successfully replaced with the future replica for {re.escape(str(partition))}\b"
    )


def wrong_files(log_dir: LogDir, name: str, *, sure_of_start: bool) -> Iterator[str]:
    """Yield what is wrong in a replica's folder now, also what a running broker is about to change.

    :param name: the partition's
    :param sure_of_start: whether no entry may start below the log start
    :raises OSError: a file is gone
    """
    folder = log_dir.path / name
    segments = {int(path.stem): path for path in sorted(folder.glob("*.log"))}
    first, end = min(segments), StoredLog(folder).ends()
    start = _listed(log_dir, LOG_STARTS).get(name, first)  # a log that starts with its first segment is not listed
    yield from _wrong_epochs(leader_epochs(folder), start, end, segments, sure_of_start)
    for offset in sorted(int(path.stem) for path in folder.glob("*.snapshot")):
        if offset < first and log_dir.broker.log.first(_segment_deleted(log_dir, name, offset)):
            yield f"the producer snapshot {offset} of a segment that is deleted"
    point = _listed(log_dir, RECOVERY_POINTS).get(name, 0)
    if point > end and not log_dir.broker.log.first(_truncated(log_dir, name, point)):
        yield f"the recovery point {point}, and its log ends at {end}"


def _wrong_epochs(
    epochs: list[tuple[int, int]], start: int, end: int, segments: Mapping[int, Path], sure_of_start: bool
) -> Iterator[str]:
    has = f"the leader epochs {epochs}"
    if any(one[0] >= other[0] or one[1] >= other[1] for one, other in pairwise(epochs)):
        yield f"{has}, which do not rise"
    if epochs and epochs[-1][1] > end:
        yield f"{has}, and its log ends at {end}"
    if sure_of_start and epochs and epochs[0][1] < start:
        yield f"{has}, and its log starts at {start}"
    for path in segments.values():
        with path.open("rb") as file:
            head = file.read(_BATCH.size)
        if len(head) < _BATCH.size:
            continue
        base, epoch = _BATCH.unpack(head)
        begun = [each for each, offset in epochs if offset <= base]
        if base >= start and epoch >= 0 and (not begun or begun[-1] != epoch):
            yield f"{has}, and the batch at offset {base} is of epoch {epoch}"


def leader_epochs(folder: Path) -> list[tuple[int, int]]:
    """The epochs and start offsets in a replica's ``leader-epoch-checkpoint``, as they are; none without the file."""
    file = folder / LEADER_EPOCHS
    lines = file.read_text().splitlines()[2:] if file.exists() else []  # after the version and the count
    return [(int(epoch), int(offset)) for epoch, offset in map(str.split, lines)]


def _listed(log_dir: LogDir, checkpoint: str) -> dict[str, int]:
    """The offsets in a checkpoint file; none before it is first written."""
    return log_dir.offsets_in_checkpoint(checkpoint) if log_dir.written_at(checkpoint) else {}


def _segment_deleted(log_dir: LogDir, name: str, offset: int) -> str:
    """A pattern of the line about a segment that retention or the deletion of records takes away."""
    log = rf"partition={re.escape(name)}, dir={re.escape(str(log_dir.path))}\]"
    return rf"{log} Deleting segments? (?=.*due to).*\(baseOffset={offset},"


def _truncated(log_dir: LogDir, name: str, offset: int) -> str:
    return rf"partition={re.escape(name)}, dir={re.escape(str(log_dir.path))}\] Truncating to offset {offset}\b"
