"""Checks of the files beside the segments in replicas' folders: leader epochs, producer snapshots, recovery points.

A broker reads them at its next start, at its next truncation, or as the next leader, so clients see an error late.

* ``leader-epoch-checkpoint``: epochs and offsets rise, and no entry starts above the end of the log. The first batch of
  each segment is in the range of its epoch, since an entry is written before the batches. A batch below the first entry
  may be one of deleted records.
* No entry starts below the log start to which the broker has advanced the log since its start
  (``LeaderEpochFileCache.truncateFromStart``, ``clearAndFlush``). Kafka writes this in the background, so a crash or
  the swap of a future replica may leave older entries: these are not looked at.
* Offsets rise from batch to batch, also from one segment to the next. No segment is left that the cleaner has replaced,
  so that the log has no record twice (``LocalLog.replaceSegments``).
* No segment has only records below the log start, on a broker that deletes segments more than once a second
  (``UnifiedLog.deleteLogStartOffsetBreachedSegments``). These records would fill the disk for ever.
* With a segment go its indexes (``LocalLog.deleteSegmentFiles``) and its producer snapshot
  (``UnifiedLog.deleteSegments``, ``UnifiedLog.replaceSegments``).
* The recovery point is not above the end of the log, or records after a truncation would not be checked after a crash.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.log_dir import CLEANED, LOG_STARTS, RECOVERY_POINTS, LogDir
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.stored_log import StoredLog, batches
from harness.waiting import await_until

LEADER_EPOCHS = "leader-epoch-checkpoint"
# A batch's base offset and, after its length, its leader epoch.
_BATCH = struct.Struct(">q4xi")
_INDEXES = (".index", ".timeindex", ".txnindex")
_METADATA = "partition.metadata"


def check_replica_files(*partitions: Partition) -> None:
    """The files of the replicas on live brokers fit the logs. Call it when no client writes any more.

    :raises PromiseBroken: they do not, also after a while
    """
    cluster = partitions[0].cluster
    wanted = {(each.topic, each.index): str(each) for each in partitions}

    def wrong() -> list[str]:
        found = defaultdict[LogDir, list[str]](list)
        for broker in cluster.live_brokers():
            for key, (log_dir, _) in broker.find_replicas().items():
                if key in wanted:
                    found[log_dir].append(wanted[key])
        return [what for log_dir, names in found.items() for what in wrong_files(log_dir, names)]

    await_until(
        wrong,
        lambda found: not found,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the files of {', '.join(map(str, partitions))} to fit the logs",
        retry_on=(NoAnswer, OSError),
        failure=PromiseBroken,
    )


def wrong_files(log_dir: LogDir, partitions: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong in folders of replicas now, also what a running broker is about to change.

    :raises OSError: a file is gone
    """
    points, starts, cleaned = (_listed(log_dir, file) for file in (RECOVERY_POINTS, LOG_STARTS, CLEANED))
    deletes = _deletes_often(log_dir.broker)
    if log_dir.written_at(RECOVERY_POINTS) < log_dir.broker.started_at.timestamp():
        points = {}  # they are those of folders that may have been replaced while the broker was down
    for name in partitions:
        replaced = _replaced(log_dir, name) if name in cleaned else set()
        for what in _wrong_in(log_dir, name, points.get(name, 0), starts.get(name), replaced):
            yield f"{name} in {log_dir} has {what}"
        if deletes and name in starts and (left := _below(log_dir, name, starts[name])):
            yield f"{name} in {log_dir} has {left}"


def _deletes_often(broker: Broker) -> bool:
    """Whether retention and the cleaner, one of which deletes a log's segments, run more than once a second.

    Before ``log.initial.task.delay.ms``, retention first runs 30 s after a start.
    """
    names = "log.retention.check.interval.ms", "log.cleaner.backoff.ms"
    often = all(int(broker.node.spec.properties.get(name, "60000")) < 1000 for name in names)
    return often and broker.build.version.has_initial_task_delay


def _below(log_dir: LogDir, name: str, start: int) -> str | None:
    """The first segment of a log, if it has only records below the log start."""
    first, *others = sorted(int(path.stem) for path in (log_dir.path / name).glob("*.log"))
    if others and others[0] <= start:
        return f"the segment {first}, though its log starts at {start} and the next segment is {others[0]}"
    return None


def _wrong_in(log_dir: LogDir, name: str, point: int, start: int | None, replaced: set[int]) -> Iterator[str]:
    folder = log_dir.path / name
    segments = {int(path.stem): path for path in sorted(folder.glob("*.log"))}
    end = StoredLog(folder).ends()
    first = min(segments)
    start = first if start is None else start  # a log that starts with its first segment is not listed
    epochs = leader_epochs(folder)
    yield from _wrong_epochs(epochs, start, end, segments)
    yield from _wrong_offsets(segments)
    for offset in sorted(replaced & segments.keys()):
        yield f"the segment {offset}, which the cleaner has replaced"
    for path in sorted(folder.iterdir()):
        if path.suffix in _INDEXES and int(path.stem) not in segments:
            yield f"{path.name} without its segment"
    if epochs and epochs[0][1] < start and epochs[0][1] < (advanced := min(start, _advanced_to(log_dir, name))):
        yield f"the leader epochs {epochs}, and its log was made to start at {advanced}"
    for offset in sorted(int(path.stem) for path in folder.glob("*.snapshot")):
        deleted = offset < first and log_dir.broker.log.first(_segment_deleted(log_dir, name, offset))
        if deleted or (offset in replaced - segments.keys() and offset != end):
            yield f"the producer snapshot {offset} of a segment that is deleted"
    if point > end and not log_dir.broker.log.first(_truncated(log_dir, name, point)):
        yield f"the recovery point {point}, and its log ends at {end}"


def _wrong_epochs(epochs: list[tuple[int, int]], start: int, end: int, segments: Mapping[int, Path]) -> Iterator[str]:
    has = f"the leader epochs {epochs}"
    if any(one[0] >= other[0] or one[1] >= other[1] for one, other in pairwise(epochs)):
        yield f"{has}, which do not rise"
    if epochs and epochs[-1][1] > end:
        yield f"{has}, and its log ends at {end}"
    for path in segments.values():
        with path.open("rb") as file:
            head = file.read(_BATCH.size)
        if len(head) < _BATCH.size:
            continue
        base, epoch = _BATCH.unpack(head)
        begun = [each for each, offset in epochs if offset <= base]
        if base >= start and epoch >= 0 and begun and begun[-1] != epoch:
            yield f"{has}, and the batch at offset {base} is of epoch {epoch}"


def _wrong_offsets(segments: Mapping[int, Path]) -> Iterator[str]:
    last, before = -1, None
    for path in segments.values():
        for base, delta, _ in batches(path, path.stat().st_size):
            if base <= last:
                yield f"the offset {base} in {path.name} after {last} in {before}"
                return
            last, before = base + delta, path.name


def _replaced(log_dir: LogDir, name: str) -> set[int]:
    """The base offsets of the segments that the cleaner has replaced by others, since the start of broker and log.

    A crash amid the replacement may undo it.
    """
    broker, folder = log_dir.broker, log_dir.path / name
    metadata = folder / _METADATA
    created = datetime.fromtimestamp(metadata.stat().st_mtime, UTC) if metadata.exists() else broker.started_at
    swapped = rf"Swapping in cleaned segment (.*) for segment\(s\) (.*) in log .*dir={re.escape(str(folder))},"
    lines = broker.log.matching(swapped, since=max(created, broker.started_at))
    found = (re.search(swapped, line.text) for line in lines)
    return {offset for told in found if told for offset in _base_offsets(told[2]) - _base_offsets(told[1])}


def _base_offsets(segments: str) -> set[int]:
    return set(map(int, re.findall(r"LogSegment\(baseOffset=(\d+),", segments)))


def _advanced_to(log_dir: LogDir, name: str) -> int:
    """The highest log start that the broker gave the log since its start; 0 if it gave it none, or swapped it in."""
    broker = log_dir.broker
    escaped = re.escape(name)
    if broker.log.first(rf"successfully replaced with the future replica for {escaped}\b", since=broker.started_at):
        return 0
    advanced = (
        rf"partition={escaped}, dir={re.escape(str(log_dir.path))}\] Incremented log start offset to (\d+)"
        rf"|^.*Truncate fully and reset fetch offset for partition {escaped} from .* leader's start offset (\d+) "
    )
    found = (re.search(advanced, line.text) for line in broker.log.matching(advanced, since=broker.started_at))
    return max((int(told[1] or told[2]) for told in found if told), default=0)


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
