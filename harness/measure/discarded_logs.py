"""Finds good logs that restarted brokers threw away. Such a broker copies them again, so nothing else shows it.

Before each restart, the journal gets the replicas on the broker's disks and their checkpointed high watermarks
(``replicas.found``). After it, the broker's log must not show that it did one of these to such a replica:

* It truncated the replica below that high watermark. A follower shares all records below it with every leader
  (KIP-101, KIP-279). The checkpoint of a killed broker is older, so its high watermark is lower.
* It created the replica anew.
* It took the replica for a stray one.
* It loaded the replica with a lower high watermark. Only the first line of a partition after a start counts: the later
  ones are about future replicas, or about replicas that were deleted since.

A broker may do so to a replica that moved or was deleted since the start, or whose log dir went offline since then. It
may create a replica anew, or take it for a stray one, if the case deletes the topic or reassigns the partition. It may
truncate a replica if the log dir went offline before, after an unclean election of the partition, and after a fault
that takes records from logs (``harms_logs`` in :class:`faults.base.Fault`). Any of these reasons excuses a lower high
watermark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.events import (
    Event,
    FaultInjecting,
    PartitionChanged,
    ReassignmentAsked,
    ReassignmentExecuting,
    ReplicasFound,
    TopicDeleted,
)
from harness.kafka.broker_log import BrokerLog, LogLine

LOG_TRUNCATED = r"partition=(\S+), dir=([^\]]+)\] Truncating to offset (\d+)"
LOG_CREATED = r"^Created log for partition (\S+) in"
LOG_STRAY = r"^Log in \S+/(\S+) marked stray|^Log for partition (\S+) is marked as stray"
LOG_LOADED = r"Log loaded for partition (\S+) with initial high watermark (\d+)"
LOG_GONE = (
    r"^Log for partition (\S+) is renamed to|^Created log for partition (\S+) in \S+-future "
    r"|successfully replaced with the future replica for (\S+)|Successfully recovered abandoned future log for (\S+)"
)
DIR_STOPPED = (
    r"^(?:Stopping serving logs in dir|Failed to create or validate data directory|Error while loading log dir) (\S+)"
)
"""Lines of ``UnifiedLog`` (before 3.0 ``Log``), ``LogManager``, ``Partition`` and ``LogDirFailureChannel``.

:data:`LOG_GONE`: the replica was deleted, begins to move, or has moved. A cancelled move deletes the future replica.
"""


@dataclass(frozen=True, kw_only=True)
class DiscardedLog:
    """A good log that a restarted broker threw away.

    :ivar how: what the broker did to it, for people
    :ivar line: the line of the broker's log that shows it
    """

    broker: int
    how: str
    line: LogLine

    def __str__(self) -> str:
        return f"broker {self.broker} was restarted, and then {self.how}: {self.line.text.splitlines()[0]}"


def discarded_logs(events: Sequence[Event], run_dir: Path) -> list[DiscardedLog]:
    """Return the good logs that were thrown away, by the journal and the brokers' logs in a run folder.

    :raises OSError: a log can't be read
    """
    starts: dict[int, list[ReplicasFound]] = {}
    for event in events:
        if isinstance(event, ReplicasFound):
            starts.setdefault(event.broker, []).append(event)
    excuses = _Excuses.of(events)
    found = []
    for broker, its_starts in starts.items():
        log = BrokerLog(run_dir / "brokers" / str(broker) / "broker.log")
        discarded = _Restarts(its_starts, excuses).discarded(log)
        found += [DiscardedLog(broker=broker, how=how, line=line) for line, how in discarded]
    return found


@dataclass(frozen=True, kw_only=True)
class _Excuses:
    """Why brokers may throw logs away.

    :ivar topics: those that the case deletes
    :ivar partitions: those that it reassigns
    :ivar led_uncleanly: the partitions that got a leader from outside the ISR, as the watcher saw it
    :ivar harmed_at: when the first fault that takes records from logs was injected; None if none was
    """

    topics: frozenset[str]
    partitions: frozenset[str]
    led_uncleanly: frozenset[str]
    harmed_at: datetime | None

    @classmethod
    def of(cls, events: Sequence[Event]) -> _Excuses:
        """Those in a journal."""
        reassigned, led_uncleanly = set[str](), set[str]()
        isrs: dict[tuple[str, int], tuple[int, ...]] = {}
        for event in events:
            if isinstance(event, ReassignmentAsked):
                reassigned.add(event.partition)
            elif isinstance(event, ReassignmentExecuting):
                reassigned.update(placement.partition(" on ")[0] for placement in event.placements)
            elif isinstance(event, PartitionChanged):
                if event.leader is not None and event.leader not in isrs.get(event.key, (event.leader,)):
                    led_uncleanly.add(f"{event.topic}-{event.partition}")
                isrs[event.key] = event.isr
        harmed = (event.at for event in events if isinstance(event, FaultInjecting) and event.harms_logs)
        return cls(
            topics=frozenset(event.topic for event in events if isinstance(event, TopicDeleted)),
            partitions=frozenset(reassigned),
            led_uncleanly=frozenset(led_uncleanly),
            harmed_at=min(harmed, default=None),
        )

    def replaces(self, partition: str) -> bool:
        """Whether the partition may be created anew, or be a stray replica."""
        return partition in self.partitions or partition.rpartition("-")[0] in self.topics

    def truncates(self, partition: str, at: datetime) -> bool:
        """Whether the partition may be truncated below a high watermark then."""
        return partition in self.led_uncleanly or (self.harmed_at is not None and self.harmed_at <= at)


class _Restarts:
    """The restarts of one broker, and what it has of the replicas that it found at the latest one."""

    def __init__(self, starts: Sequence[ReplicasFound], excuses: _Excuses) -> None:
        self._starts = list(starts)
        self._excuses = excuses
        self._found: dict[str, tuple[str, int]] = {}
        self._ever_offline = set[str]()
        self._loaded = set[str]()

    def discarded(self, log: BrokerLog) -> Iterator[tuple[LogLine, str]]:
        """Yield each line that shows that a good log was thrown away, and how."""
        lines = (LOG_TRUNCATED, LOG_CREATED, LOG_STRAY, LOG_LOADED, LOG_GONE, DIR_STOPPED)
        for line in log.matching("|".join(lines)):
            while self._starts and self._starts[0].at <= line.at:
                found = self._starts.pop(0).log_dirs.items()
                self._found = {name: (path, mark) for path, those in found for name, mark in those.items()}
                self._loaded = set()
            if offline := re.search(DIR_STOPPED, line.text):
                self._ever_offline.add(offline[1])
                self._found = {name: it for name, it in self._found.items() if it[0] != offline[1]}
            elif gone := re.search(LOG_GONE, line.text):
                self._found.pop(gone[gone.lastindex or 0], None)
            elif how := self._truncated(line) or self._replaced(line) or self._loaded_lower(line):
                yield line, how

    def _truncated(self, line: LogLine) -> str | None:
        if (told := re.search(LOG_TRUNCATED, line.text)) is None or told[1] not in self._found:
            return None
        path, mark = self._found[told[1]]
        if told[2] != path or int(told[3]) >= mark or path in self._ever_offline:
            return None
        if self._excuses.truncates(told[1], line.at):
            return None
        return f"truncated {told[1]} in {Path(path).name} to offset {told[3]}, below its own high watermark {mark}"

    def _replaced(self, line: LogLine) -> str | None:
        if told := re.search(LOG_CREATED, line.text):
            name, did = told[1], f"created {told[1]} anew"
        elif told := re.search(LOG_STRAY, line.text):
            name = told[1] or told[2]
            did = f"took {name} for a stray replica"
        else:
            return None
        if name not in self._found or self._excuses.replaces(name):
            return None
        return f"{did}, though it had it in {Path(self._found[name][0]).name}"

    def _loaded_lower(self, line: LogLine) -> str | None:
        told = re.search(LOG_LOADED, line.text)
        if told is None or told[1] not in self._found or told[1] in self._loaded:
            return None
        self._loaded.add(told[1])
        path, mark = self._found[told[1]]
        if int(told[2]) >= mark or path in self._ever_offline:
            return None
        if self._excuses.replaces(told[1]) or self._excuses.truncates(told[1], line.at):
            return None
        return f"loaded {told[1]} in {Path(path).name} with {told[2]}, below its own high watermark {mark}"
