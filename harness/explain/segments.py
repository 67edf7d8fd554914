"""Reads a replica's segments with Kafka's own ``DumpLogSegments``, so that no bug in a parser of jbod's can mislead.

One JVM reads all segments (0.6 s of CPU to start, then about 100 MB a second). Kafka 2.0 to 4.3 print the same::

    Dumping /…/orders-0/00000000000000000000.log
    baseOffset: 0 lastOffset: 34 count: 35 … partitionLeaderEpoch: 0 … isvalid: true
    | offset: 0 CreateTime: 1795255472863 keySize: -1 valueSize: 100 sequence: -1 headerKeys: [] payload: jbod 44a2d2 …
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.checkers.settings import Session
from harness.errors import HarnessError
from harness.history.record_format import header_pattern
from harness.kafka.distribution import Distribution
from harness.kafka.tools import tool_output
from harness.kafka.versions import Tool

LOOK_S = 120.0
"""Time-out of the tool in seconds; enough for logs of some gigabytes."""

_BATCH = re.compile(r"baseOffset: \d+ .*partitionLeaderEpoch: (?P<epoch>-?\d+) .*isvalid: (?P<valid>\w+)")
_SESSION = re.compile(
    r"baseOffset: (?P<first>\d+) lastOffset: (?P<last>\d+) .*producerId: (?P<id>\d+) producerEpoch: (?P<epoch>\d+) "
)
_RECORD = re.compile(r"\|? ?offset: (?P<offset>\d+) .*?(?:payload: (?P<payload>.*))?$")

Name = tuple[str, int]
"""Producer and seq."""


@dataclass(frozen=True, kw_only=True)
class StoredRecord:
    """A record in a segment.

    :ivar crc_fits: whether Kafka reports the checksum of its batch as valid
    """

    offset: int
    leader_epoch: int
    segment: str
    crc_fits: bool


@dataclass(kw_only=True)
class Contents:
    """What was found in one replica's folder.

    :ivar copies: for each wanted record, by its name, where it was found
    :ivar at: the name of the record at each wanted offset that exists; None if no producer of the run sent it
    :ivar first: the first offset of the log; None if it is empty
    :ivar last: the last offset of the log; None if it is empty
    """

    copies: dict[Name, list[StoredRecord]] = field(default_factory=dict)
    at: dict[int, Name | None] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None


def read_contents(
    distribution: Distribution,
    folders: Collection[Path],
    run_token: str,
    names: Collection[Name],
    offsets: Collection[int],
) -> dict[Path, Contents]:
    """Search all segments of some folders for records by name and by offset.

    :param run_token: marks the records of this run
    :raises HarnessError: the tool failed, or took longer than :data:`LOOK_S`
    """
    found = {folder: Contents() for folder in folders}
    segments = [str(segment) for folder in folders for segment in sorted(folder.glob("*.log"))]
    if not segments:
        return found
    with tool_output(
        distribution, Tool.DUMP_LOG, "--print-data-log", "--files", ",".join(segments), timeout_s=LOOK_S
    ) as lines:
        for segment, epoch, valid, offset, name in _records(lines, run_token):
            contents = found[segment.parent]
            contents.first = offset if contents.first is None else min(contents.first, offset)
            contents.last = offset if contents.last is None else max(contents.last, offset)
            if offset in offsets:
                contents.at[offset] = name
            if name is not None and name in names:
                copy = StoredRecord(offset=offset, leader_epoch=epoch, segment=segment.name, crc_fits=valid)
                contents.copies.setdefault(name, []).append(copy)
    return found


def read_sessions(distribution: Distribution, folder: Path) -> list[Session]:
    """Return the producer sessions of a replica's batches, ascending by offset, without invalid and control batches.

    :raises HarnessError: the tool failed, or took longer than :data:`LOOK_S`, or batches overlap
    """
    sessions: list[Session] = []
    segments = sorted(folder.glob("*.log"))
    if not segments:
        return sessions
    with tool_output(distribution, Tool.DUMP_LOG, "--files", ",".join(map(str, segments)), timeout_s=LOOK_S) as lines:
        for line in lines:
            if (batch := _SESSION.match(line)) is None or "isControl: true" in line or "isvalid: true" not in line:
                continue
            each = Session(int(batch["first"]), int(batch["last"]), int(batch["id"]), int(batch["epoch"]))
            if sessions and each.first <= sessions[-1].last:
                raise HarnessError(f"{folder}: a batch begins before the previous one ends: {line.strip()}")
            if sessions and sessions[-1][1:] == (each.first - 1, *each[2:]):
                each = sessions.pop()._replace(last=each.last)
            sessions.append(each)
    return sessions


def _records(lines: Iterable[str], run_token: str) -> Iterator[tuple[Path, int, bool, int, Name | None]]:
    """Every record of a dump: segment, leader epoch and validity of its batch, offset, and name."""
    ours = re.compile(header_pattern(run_token))
    segment, epoch, valid = Path(), -1, True
    for line in lines:
        if line.startswith("Dumping "):
            segment = Path(line.removeprefix("Dumping ").rstrip("\n"))
        elif batch := _BATCH.match(line):
            epoch, valid = int(batch["epoch"]), batch["valid"] == "true"
        elif record := _RECORD.match(line):
            head = ours.match(record["payload"] or "")
            name = (head["producer"], int(head["seq"])) if head else None
            yield segment, epoch, valid, int(record["offset"]), name
