"""Reads a run folder for the pages, and names in one line each what is damaged.

Reports are needed most when something went wrong. So a folder that was cut off, half copied or overwritten still gets
its row, and as much of its page as can be read. Only a folder that does not say what ran is :class:`Damaged`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import msgspec

from harness.errors import HarnessError
from harness.events import Event, from_json
from harness.explain.story import EXPLAINED_FILE
from harness.history.run_folder import VERDICT_FILE, AnomalyRecord, RunRecord, read_run_json
from harness.kafka.broker_log import BrokerLog, LogLine
from harness.measure.fault_costs import FaultCosts
from harness.runner.deviation import NotedDeviation

_FIRST_FILES = ("run.json", "events.jsonl")


class Damaged(HarnessError):
    """A run folder that does not say what ran."""


@dataclass(frozen=True, kw_only=True)
class StoryRecord:
    """The story of one record, as explained.json has it (:class:`harness.explain.story.Story`)."""

    producer: str
    seq: int
    kinds: Sequence[str] = ()
    summary: str = ""
    timeline: Sequence[object] = ()
    replicas: Sequence[object] | None = None


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The folder of one case.

    :ivar events: the journal, oldest first, up to the first line that cannot be read
    :ivar smallest: the smallest part of a failing random schedule that still fails
    :ivar notes: one sentence for each file that is missing or damaged
    """

    path: Path
    run: RunRecord
    events: tuple[Event, ...]
    smallest: Mapping[str, object] | None
    notes: tuple[str, ...]
    _verdict: Mapping[str, object]
    _explained: Mapping[str, object]

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    @cached_property
    def began(self) -> datetime:
        """When the case began: second 0 of its page."""
        return _instant(self.run.started_at)

    def at(self, instant: datetime) -> float:
        """Seconds since the case began, to the millisecond."""
        return round((instant - self.began).total_seconds(), 3)

    @cached_property
    def ended(self) -> float:
        """When the last event happened, in seconds since the case began."""
        return max((self.at(event.at) for event in self.events), default=0.0)

    @cached_property
    def faults(self) -> tuple[FaultCosts, ...]:
        """What each fault cost, in the order of injection."""
        return tuple(map(FaultCosts.from_json, self.run.faults))

    @cached_property
    def deviations(self) -> tuple[NotedDeviation, ...]:
        """The deviations that run.json names, with their states."""
        return tuple(map(NotedDeviation.from_json, self.run.deviations or ()))

    @property
    def outcome(self) -> tuple[str, str]:
        """Verdict and reason. A case that never ended is an error."""
        if self.run.outcome is None:
            return "error", f"the case was cut off: it never ended (last event in its journal: {self.ended:.1f} s)"
        return self.run.outcome.verdict, self.run.outcome.reason

    @cached_property
    def anomalies(self) -> tuple[AnomalyRecord, ...]:
        """The anomalies in verdict.json; empty if the case was not judged.

        :raises msgspec.ValidationError: verdict.json has another form
        """
        return msgspec.convert(self._verdict.get("anomalies", ()), tuple[AnomalyRecord, ...])

    @cached_property
    def stories(self) -> tuple[StoryRecord, ...]:
        """The stories of the worst records, from explained.json.

        :raises msgspec.ValidationError: explained.json has another form
        """
        return msgspec.convert(self._explained.get("stories", ()), tuple[StoryRecord, ...])

    @cached_property
    def log_dirs(self) -> Mapping[int, tuple[Path, ...]]:
        """The log dirs of each broker, from its server.properties."""
        found = {}
        for path in self.path.glob("brokers/*/server.properties"):
            if path.parent.name.isdigit():
                lines = path.read_text(errors="replace").splitlines()
                dirs = next((line.partition("=")[2] for line in lines if line.startswith("log.dirs=")), "")
                found[int(path.parent.name)] = tuple(Path(each) for each in dirs.split(",") if each)
        return dict(sorted(found.items()))

    @cached_property
    def logs(self) -> Mapping[str, tuple[LogLine, ...]]:
        """The lines of each node's log, by the node's name in the journal."""
        logs = {path.parent.name: path for path in self.path.glob("brokers/*/broker.log")}
        logs = {f"broker-{name}" if name.isdigit() else name: path for name, path in logs.items()}
        return {name: tuple(BrokerLog(logs[name]).lines()) for name in sorted(logs, key=node_order)}


def read_folder(path: Path) -> RunFolder:
    """Read a run folder.

    :raises Damaged: there is no run.json that says what ran and when
    """
    notes: list[str] = []
    try:
        folder = RunFolder(
            path=path,
            run=read_run_json(path),
            events=tuple(_events(path / "events.jsonl", notes)),
            smallest=_object(path / "smallest.json", notes),
            _verdict=_object(path / VERDICT_FILE, notes) or {},
            _explained=_object(path / EXPLAINED_FILE, notes) or {},
            notes=tuple(notes),
        )
        folder.began, folder.faults, folder.deviations  # noqa: B018  read here, so that the errors are raised here
    except (HarnessError, ValueError, msgspec.ValidationError) as error:
        raise Damaged(f"{path} is damaged: {error}") from error
    return folder


def run_folders(runs_dir: Path) -> list[Path]:
    """The run folders in a runs folder, oldest first, with the damaged ones."""
    return sorted(path for path in runs_dir.glob("*") if is_run_folder(path))


def is_run_folder(path: Path) -> bool:
    """Whether a folder has one of the files that a case writes first. It may have lost its run.json."""
    return any((path / name).exists() for name in _FIRST_FILES)


def node_order(node: str) -> tuple[bool, int, str]:
    """The sort key of nodes by name: brokers by number, then the others."""
    number = node.removeprefix("broker-")
    return not number.isdigit(), int(number) if number.isdigit() else 0, node


def _instant(text: str) -> datetime:
    """:raises ValueError: it is no instant, or has no time zone"""
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return instant


def _object(path: Path, notes: list[str]) -> Mapping[str, object] | None:
    """The JSON object in a file; None, with a note, if it cannot be read."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} can't be read: {error}")
        return None
    if not isinstance(content, dict):
        notes.append(f"{path.name} is no JSON object")
        return None
    return content


def _events(path: Path, notes: list[str]) -> list[Event]:
    """The events up to the first line that is none."""
    events: list[Event] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        notes.append(f"{path.name} can't be read: {error.strerror}")
        return events
    for number, line in enumerate(lines, 1):
        try:
            events.append(from_json(json.loads(line)))
        except (ValueError, TypeError):
            notes.append(f"{path.name} is cut off in line {number} of {len(lines)}")
            break
    return events
