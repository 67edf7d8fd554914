"""Finds what brokers that stopped cleanly left undone on their disks, and starts that should have recovered logs.

A broker that stops cleanly flushes each log, and writes its recovery points, log starts and high watermarks into each
good log dir. Then it marks the log dir (``LogManager.shutdown``). The next start loads the logs of a marked log dir as
they are, and recovers those of each other log dir. If something is missing, clients may see nothing: other replicas
have the records, and a power cut must come at the wrong time.

After each stop, the journal gets the marks, the times of the checkpoint files, the recovery points, and the ends of the
logs (``log_dirs.left``). :func:`incomplete_stops` looks at these, :func:`wrong_recoveries` at the logs of the starts,
:func:`stale_marks` at the marks after a kill.

A stop proves nothing of a log dir that was offline in that life of the broker, or that a fault may have touched: one
whose target is the log dir, something in it, or another file of the broker. It proves nothing of a broker that had not
loaded its logs, of one that logged an error as it stopped, and after a fault that harms logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.events import Event, FaultInjecting, FaultUndone, LogDirsLeft, NodeKilled, NodeStarted, ReplicasFound
from harness.kafka.broker_log import BrokerLog, LogLine
from harness.measure.discarded_logs import DIR_STOPPED, LOG_LOADED, LOG_TRUNCATED
from harness.measure.early_unfencing import LOGS_LOADED

STOPS_REPLICAS = r"^\[ReplicaManager broker=\d+\] Shutting down"
"""A line of a broker that stops. Afterwards no checkpoint is written on schedule: the scheduler has ended."""
STOP_DISTURBED = (
    r"^There was an error in one of the threads during LogManager shutdown"
    r"|^Fatal error during (?:broker|KafkaServer) shutdown"
)
"""Lines of a broker that does not stop cleanly."""
RECOVERS = r"^(?:(Skipping recovery)|Recovering|Attempting recovery) .*(?:from|in) (\S+) since "
"""A line of ``LogManager.loadLogs`` for each log dir; before 3.0 with other words."""
_ORDERLY = (0, 143)  # 143: after SIGTERM
_HIGH_WATERMARKS = "replication-offset-checkpoint"
_COARSE_S = 0.02  # the kernel's clock for files is up to 10 ms behind
_SPARE_DISKS = ("broker_killed", "broker_stopped", "broker_paused", "controller_killed", "held")
"""The faults that touch no log dir."""
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Incomplete:
    """What a broker left undone as it stopped, or as it started."""

    broker: int
    what: str

    def __str__(self) -> str:
        return f"broker {self.broker} {self.what}"


def incomplete_stops(events: Sequence[Event], run_dir: Path) -> list[Incomplete]:
    """Return what clean stops left undone, by the journal and the brokers' logs in a run folder.

    :raises OSError: a log can't be read
    """
    if any(isinstance(event, FaultInjecting) and event.harms_logs for event in events):
        return []
    return [
        Incomplete(broker=event.broker, what=f"stopped at {event.at.isoformat()}, {what}")
        for event in events
        if isinstance(event, LogDirsLeft) and event.exit_code in _ORDERLY
        for what in _Stop.of(event, events, _log_of(event.broker, run_dir)).left_undone()
    ]


def wrong_recoveries(events: Sequence[Event], run_dir: Path) -> list[Incomplete]:
    """Return the log dirs whose logs were recovered in spite of the mark, or not recovered without it.

    :raises OSError: a log can't be read
    """
    found = []
    for event in events:
        if not isinstance(event, ReplicasFound) or event.marked_clean is None:
            continue
        next_found = [each.at for each in events if isinstance(each, ReplicasFound) and each.broker == event.broker]
        starts = [each.at for each in _starts(events, event.broker) if each.at >= event.at]
        until = min([*(at for at in next_found if at > event.at), *starts[1:], _NEVER])
        seen = set[str]()
        for line in _log_of(event.broker, run_dir).matching(RECOVERS, since=event.at):
            told = re.search(RECOVERS, line.text)
            if told is None or line.at >= until or told[2] in seen or told[2] not in event.log_dirs:
                continue
            seen.add(told[2])
            if (told[1] is not None) != (told[2] in event.marked_clean):
                marked = "had" if told[2] in event.marked_clean else "did not have"
                what = f"started, and {Path(told[2]).name} {marked} the mark of a clean shutdown: {line.text}"
                found.append(Incomplete(broker=event.broker, what=what))
    return found


def stale_marks(events: Sequence[Event], run_dir: Path) -> list[Incomplete]:
    """Return the log dirs with the mark of a clean shutdown after their broker was killed.

    A broker removes the mark as it loads the logs. If it stays, the start after a crash recovers nothing there. A mark
    proves nothing in a case with a fault that may touch a log dir.

    :raises OSError: a log can't be read
    """
    if any(isinstance(event, FaultInjecting) and event.fault not in _SPARE_DISKS for event in events):
        return []
    return [
        Incomplete(
            broker=event.broker,
            what=f"was killed, and {Path(path).name} still had the mark of an earlier clean shutdown",
        )
        for event in events
        if isinstance(event, ReplicasFound) and event.marked_clean
        for path in _marked_in_vain(event, event.marked_clean, events, run_dir)
    ]


def _marked_in_vain(found: ReplicasFound, marked: Sequence[str], events: Sequence[Event], run_dir: Path) -> list[str]:
    """The marked log dirs of a broker that had loaded their logs, and was killed and not stopped since."""
    start = _last_start(events, found.broker, found.at)
    life = [event for event in events if event.at <= found.at and (start is None or event.at >= start)]
    stopped = any(isinstance(event, LogDirsLeft) and event.broker == found.broker for event in life)
    killed = any(isinstance(event, NodeKilled) and event.node == f"broker-{found.broker}" for event in life)
    if stopped or not killed:
        return []
    if start is None:
        return [*marked]
    loaded = _log_dirs_loaded(_log_of(found.broker, run_dir), start, found.at)
    return [path for path in marked if path in loaded]


def _log_dirs_loaded(log: BrokerLog, start: datetime, until: datetime) -> set[str]:
    """The log dirs whose logs a broker has loaded in a life; none before it has loaded all."""
    lines = [line for line in log.matching(f"{RECOVERS}|{LOGS_LOADED}", since=start) if line.at <= until]
    if not any(re.search(LOGS_LOADED, line.text) for line in lines):
        return set()
    return {told[2] for line in lines if (told := re.search(RECOVERS, line.text))}


def _log_of(broker: int, run_dir: Path) -> BrokerLog:
    return BrokerLog(run_dir / "brokers" / str(broker) / "broker.log")


def _starts(events: Sequence[Event], broker: int) -> list[NodeStarted]:
    return [event for event in events if isinstance(event, NodeStarted) and event.node == f"broker-{broker}"]


def _last_start(events: Sequence[Event], broker: int, until: datetime) -> datetime | None:
    """When the broker's life at this time began; None if it was in an earlier case."""
    return max((each.at for each in _starts(events, broker) if each.at <= until), default=None)


def _last(lines: Sequence[LogLine], *, saying: str) -> LogLine | None:
    return next((line for line in reversed(lines) if re.search(saying, line.text)), None)


@dataclass(frozen=True, kw_only=True)
class _Stop:
    """One stop of a broker.

    :ivar lines: what it logged from its start to its stop, of the lines that matter here
    :ivar loaded: whether it had loaded its logs
    :ivar struck: the targets of the faults on this broker that were in force in that life
    """

    left: LogDirsLeft
    lines: Sequence[LogLine]
    loaded: bool
    struck: frozenset[str]

    @classmethod
    def of(cls, left: LogDirsLeft, events: Sequence[Event], log: BrokerLog) -> _Stop:
        """Collect what belongs to a stop. A broker of an earlier case has no start in this one, and was healthy."""
        start = _last_start(events, left.broker, left.at)
        kinds = (DIR_STOPPED, LOG_LOADED, LOG_TRUNCATED, LOGS_LOADED, STOPS_REPLICAS, STOP_DISTURBED)
        lines = [line for line in log.matching("|".join(kinds), since=start) if line.at <= left.at]
        undone = {
            (event.fault, event.target)
            for event in events
            if isinstance(event, FaultUndone) and start is not None and event.at < start
        }
        struck = {
            event.target
            for event in events
            if isinstance(event, FaultInjecting) and event.broker == left.broker and event.at <= left.at
            if (event.fault, event.target) not in undone or (start is not None and event.at >= start)
        }
        loaded = start is None or any(re.search(LOGS_LOADED, line.text) for line in lines)
        return cls(left=left, lines=lines, loaded=loaded, struck=frozenset(struck))

    def left_undone(self) -> Iterator[str]:
        """Yield what is missing in the log dirs."""
        began = _last(self.lines, saying=STOPS_REPLICAS)
        if not self.loaded or began is None or _last(self.lines, saying=STOP_DISTURBED):
            return
        offline = {told[1] for line in self.lines if (told := re.search(DIR_STOPPED, line.text))}
        for path, points in self.left.recovery_points.items():
            if path in offline or self._is_struck(path):
                continue
            name = Path(path).name
            if path not in self.left.marked_clean:
                yield f"and did not mark {name}, a good log dir, as cleanly shut down"
            for file, at in self.left.written[path].items():
                must = file != _HIGH_WATERMARKS or points.keys() & self._partitions()
                if must and at < began.at.timestamp() - _COARSE_S:
                    yield f"and did not write {file} in {name} as it stopped"
            for partition, (point, end) in points.items():
                if point < end or (point > end and not self._truncated_to(partition, point)):
                    yield f"and left {partition} in {name} with the recovery point {point}, and its log ends at {end}"

    def _is_struck(self, path: str) -> bool:
        """Whether a fault may have touched a log dir: one that is not on the whole broker or on another log dir."""
        here = f"{Path(path).name} of broker {self.left.broker}"
        others = {f"{Path(other).name} of broker {self.left.broker}" for other in self.left.written} - {here}
        return bool(self.struck - others - {f"broker {self.left.broker}"})

    def _partitions(self) -> set[str]:
        """The partitions whose logs it had taken over from its disks, or had created."""
        return {told[1] for line in self.lines if (told := re.search(LOG_LOADED, line.text))}

    def _truncated_to(self, partition: str, offset: int) -> bool:
        """Whether the log was truncated to an offset; in a compacted log, the last record may be far below it."""
        told = [found for line in self.lines if (found := re.search(LOG_TRUNCATED, line.text))]
        return any(found[1] == partition and int(found[3]) == offset for found in told)
