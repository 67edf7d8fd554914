"""A run folder as the reports see it: what is there is read once, and what is damaged is said in one line.

A report is asked for most urgently when something went wrong, so a folder that was cut off, copied by half or scribbled
on still gets its row and, as far as it goes, its page. Only a folder that doesn't even say what ran is
:class:`Damaged`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import HarnessError
from harness.events import Event, from_json
from harness.explain.story import EXPLAINED_FILE
from harness.history.run_folder import read_run_json
from harness.kafka.broker_log import BrokerLog, LogLine
from harness.measure.fault_costs import FaultCosts

_FIRST_FILES = ("run.json", "events.jsonl")
NOT_ENDED = "it was cut off: the case began and never ended"


class Damaged(HarnessError):
    """A run folder that doesn't say what ran."""


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One case's folder.

    :ivar run: run.json
    :ivar events: the journal, as far as it can be read, oldest first
    :ivar verdict: verdict.json; None where the case was not judged, or it can't be read
    :ivar stories: of the worst records, as explained.json has them
    :ivar smallest: of a random schedule that failed, the smallest part of it that still does
    :ivar notes: what is missing or damaged, a sentence each
    """

    path: Path
    run: Mapping[str, Any]
    events: tuple[Event, ...]
    verdict: Mapping[str, Any] | None
    stories: tuple[Mapping[str, Any], ...]
    smallest: Mapping[str, Any] | None
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    @cached_property
    def began(self) -> datetime:
        """When the case began: second 0 of its page."""
        return _instant(self.run["started_at"])

    def at(self, instant: str | datetime) -> float:
        """Seconds from the case's beginning, to the millisecond."""
        then = _instant(instant) if isinstance(instant, str) else instant
        return round((then - self.began).total_seconds(), 3)

    @cached_property
    def ended(self) -> float:
        """When the last thing happened, in seconds from the beginning."""
        return max((self.at(event.at) for event in self.events), default=0.0)

    @cached_property
    def faults(self) -> tuple[FaultCosts, ...]:
        """What each fault cost, in the order of injection."""
        return tuple(map(FaultCosts.from_json, self.run.get("faults") or ()))

    @property
    def outcome(self) -> tuple[str, str]:
        """Verdict and reason; a case that never ended is an error."""
        outcome = self.run.get("outcome")
        if isinstance(outcome, Mapping):
            return str(outcome.get("verdict", "error")), str(outcome.get("reason", ""))
        return "error", f"{NOT_ENDED} (the last thing in its journal is at {self.ended:.1f} s)"

    @cached_property
    def log_dirs(self) -> Mapping[int, tuple[Path, ...]]:
        """Each broker's log dirs, from its server.properties."""
        found = {}
        for path in self.path.glob("brokers/*/server.properties"):
            if path.parent.name.isdigit():
                lines = path.read_text(errors="replace").splitlines()
                dirs = next((line.partition("=")[2] for line in lines if line.startswith("log.dirs=")), "")
                found[int(path.parent.name)] = tuple(Path(each) for each in dirs.split(",") if each)
        return dict(sorted(found.items()))

    @cached_property
    def logs(self) -> Mapping[str, tuple[LogLine, ...]]:
        """The lines of each node's log, by the name that the journal has for the node."""
        paths = {path.parent.name: path for path in self.path.glob("brokers/*/broker.log")}
        names = sorted(paths, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
        return {f"broker-{n}" if n.isdigit() else n: tuple(BrokerLog(paths[n]).lines()) for n in names}


def read_folder(path: Path) -> RunFolder:
    """Read a run folder.

    :raises UsageError: there is no such folder
    :raises Damaged: it has no run.json that says what ran and when
    """
    try:
        run = read_run_json(path)
        run["case"], run["kip"], run["mode"], _instant(run["started_at"])
        for fault in run.get("faults") or ():
            FaultCosts.from_json(fault)
    except (HarnessError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        said = f"run.json lacks {error}" if isinstance(error, KeyError) else str(error)
        raise Damaged(f"{path} is damaged: {said}") from error
    notes: list[str] = []
    stored = _json(path / EXPLAINED_FILE, notes)
    stories = stored.get("stories", []) if stored else []
    return RunFolder(
        path=path,
        run=run,
        events=tuple(_events(path / "events.jsonl", notes)),
        verdict=_json(path / "verdict.json", notes),
        stories=tuple(stories) if isinstance(stories, list) else (),
        smallest=_json(path / "smallest.json", notes),
        notes=tuple(notes),
    )


def run_folders(runs_dir: Path) -> list[Path]:
    """The run folders in a runs folder, oldest first, damaged ones among them."""
    return sorted(path for path in runs_dir.glob("*") if is_run_folder(path))


def is_run_folder(path: Path) -> bool:
    """Whether a folder is one by what a case writes first, so that one that lost its run.json is not passed over."""
    return any((path / name).exists() for name in _FIRST_FILES)


def _instant(text: str) -> datetime:
    """:raises ValueError: it is none, or in nobody knows which time zone"""
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return instant


def _json(path: Path, notes: list[str]) -> Mapping[str, Any] | None:
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
    """As far as each line is an event."""
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
