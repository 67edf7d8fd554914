"""Finds floods in the logs of nodes: one kind of line again and again, without a pause.

A node that floods its log repeats a step that can't succeed. It uses a whole core and keeps a disk busy; clients may
notice nothing. In 5,176 logs of the suites, one kind of line came at most 350 times in 10 s. A loop without a pause
logged 14,267 (KAFKA-20961). A line about each of 2,000 partitions is no flood, though: after a failover, a follower
logged 3 or 4 about each. Lines at DEBUG and TRACE do not count, since suites switch them on. Lines without a time
are not seen, such as a stack trace or what the JVM prints.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.measure.line_kinds import kind_of

LIMIT = 2_500
"""More lines of one kind than this in an interval of ten seconds are a flood."""
PER_PARTITION = 25
"""They are none if they name so many partitions that there are no more lines than this about each."""
_PARTITION = re.compile(r"[Pp]artition[ =]([\w.-]+-\d+)")
_TEN_SECONDS = slice(1, 19)
"""Where a line has its time without the last digit, by :data:`harness.kafka.broker_log.LAYOUT`."""
_LEVEL = slice(26, 31)
_FINE = (b"DEBUG", b"TRACE")
_KIND_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class LogFlood:
    """A flood.

    :ivar node: the node, by its folder in ``brokers/``
    :ivar count: the lines of the kind in the worst interval
    :ivar line: the first of them
    """

    node: str
    count: int
    line: str

    def __str__(self) -> str:
        return f"the node {self.node} logged {self.count:,} lines of this kind in 10 s: {self.line[:200]}"


def log_floods(run_dir: Path, known: Sequence[str] = ()) -> list[LogFlood]:
    """Return the worst flood of each node's log in a run folder.

    :param known: patterns of lines that do not count
    """
    logs = sorted(run_dir.glob("brokers/*/broker.log"))
    return [flood for path in logs if (flood := _worst(path, [re.compile(pattern) for pattern in known]))]


def _worst(path: Path, known: Sequence[re.Pattern[str]]) -> LogFlood | None:
    busy = {interval for interval, count in Counter(at for at, _ in _lines(path)).items() if count > LIMIT}
    counts: Counter[tuple[bytes, str]] = Counter()
    first: dict[tuple[bytes, str], str] = {}
    partitions: defaultdict[tuple[bytes, str], set[str]] = defaultdict(set)
    for interval, text in _texts(path, busy):
        if not any(pattern.search(text) for pattern in known):
            kind = (interval, kind_of(text[:_KIND_CHARS]))
            counts[kind] += 1
            first.setdefault(kind, text)
            partitions[kind].update(_PARTITION.findall(text))
    for kind, count in counts.most_common():
        if count > max(LIMIT, PER_PARTITION * len(partitions[kind])):
            return LogFlood(node=path.parent.name, count=count, line=first[kind])
    return None


def _lines(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The lines with a time, each with its interval; one at a time, since a flooded log is large."""
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b"[2") and line[_LEVEL] not in _FINE:
                yield line[_TEN_SECONDS], line


def _texts(path: Path, intervals: Collection[bytes]) -> Iterator[tuple[bytes, str]]:
    """The text of each line in these intervals."""
    if intervals:
        for interval, line in _lines(path):
            if interval in intervals:
                yield interval, line[_LEVEL.start :].decode(errors="replace").partition(" ")[2].rstrip("\n")
