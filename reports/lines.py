"""The marks on a case's timeline: the log lines that matter, and what the harness did.

A broker logs a thousand lines in half a minute. The page shows ERROR and FATAL lines, and WARN lines unless they are
routine. It shows INFO lines about a log, a replica, a leader or a controller. Lines within a second that differ only in
numbers are shown once, with their count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.events import Event, StateValidated
from harness.kafka.broker_log import LogLine
from reports.folder import RunFolder
from reports.lanes import short

_MOST = 250  # marks per node
_TOGETHER_S = 1.0
_STACK = 12  # lines of a stack trace
_ROUTINE = re.compile(
    r"Connection to node|connection to broker .* was unsuccessful|UNKNOWN_TOPIC|Unable to describe replica dirs"
    r"|running in standalone mode|maxCnxns|Close of session|has not been released|is deprecated|Closing socket"
    r"|was supplied but isn't a known config|Error in response for fetch request|Client requested|EndOfStreamException"
)
_TELLING = re.compile(
    r"(Leader|Follower) \S+ .*starts at|Truncating (partition|to offset)|Incremented log start offset"
    r"|Recovering unflushed segment|[Cc]orrupt|Stopping serving|marked offline|Handling log directory failure"
    r"|Shutdown broker because|Shrinking ISR|Expanding ISR|started \(kafka\.server|shut(ting)? down \(kafka\.server"
    r"|Successfully elected as the controller|became the (leader|controller)|Becoming the active controller"
    r"|Fenc(ed|ing) broker|The request from broker .* to unfence|Skipping recovery|Attempting recovery"
    r"|Current replica is (moved|being)|future replica|[Rr]eassign.* complete|Deleting segment .*due to"
    r"|was renamed|Found stray|Cannot create offset|cordoned"
)
_SHOWN_ELSEWHERE = frozenset(
    ["partition.changed", "brokers.changed", "phase", "mbeans.changed", "case.started", "case.ended", "trouble"]
)
_TOO_MANY = frozenset(["tool.called"])


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at an instant.

    :ivar at: seconds since the case began
    :ivar look: error, warn, info or jbod
    :ivar says: one line
    :ivar detail: the whole text
    """

    at: float
    who: str
    look: str
    says: str
    detail: str

    def to_json(self) -> list[object]:
        """The mark in the page's data; the detail only if it says more."""
        return [self.at, self.who, self.look, self.says, "" if self.detail == self.says else self.detail]


def log_lines(folder: RunFolder) -> tuple[list[Mark], list[str]]:
    """The lines that matter in all nodes' logs, oldest first.

    The second list has one sentence for each log of which only a part is shown.
    """
    found: list[Mark] = []
    notes = []
    for who, lines in folder.logs.items():
        marks = list(_together(folder, who, lines))
        if len(marks) > _MOST:
            notes.append(f"{who}'s log has {len(marks)} lines that matter; the {_MOST} most severe are shown")
            marks = sorted(marks, key=lambda mark: ("error", "warn", "info").index(mark.look))[:_MOST]
        found += marks
    return sorted(found, key=lambda mark: mark.at), notes


@dataclass
class _Alike:
    """Equal lines within a second."""

    at: float
    first: LogLine
    count: int = 1


def _together(folder: RunFolder, who: str, lines: Iterable[LogLine]) -> Iterator[Mark]:
    """A mark for each line that matters; one for all equal lines within a second."""
    newest: dict[str, _Alike] = {}
    for line in filter(_matters, lines):
        key, at = line.level + re.sub(r"\d+", "#", line.text.partition("\n")[0]), folder.at(line.at)
        known = newest.get(key)
        if known and at - known.at <= _TOGETHER_S:
            known.count += 1
            continue
        if known:
            yield _mark(who, known)
        newest[key] = _Alike(at=at, first=line)
    for each in newest.values():
        yield _mark(who, each)


def _mark(who: str, alike: _Alike) -> Mark:
    line = alike.first
    first, _, stack = line.text.partition("\n")
    times = f" (×{alike.count} within a second)" if alike.count > 1 else ""
    below = stack.splitlines()
    rest = [] if len(below) <= _STACK else [f"… {len(below) - _STACK} more lines"]
    return Mark(
        at=alike.at,
        who=who,
        look={"ERROR": "error", "FATAL": "error", "WARN": "warn"}.get(line.level, "info"),
        says=short(re.sub(r" ?\([\w.$]+\)$", "", first)) + times,
        detail="\n".join([f"{line.level} {first}{times}", *below[:_STACK], *rest]),
    )


def _matters(line: LogLine) -> bool:
    if line.level in ("ERROR", "FATAL"):
        return True
    first = line.text.partition("\n")[0]
    if line.level == "WARN":
        return not _ROUTINE.search(first)
    return line.level == "INFO" and bool(_TELLING.search(first)) and not first.startswith("KafkaConfig values")


def harness_events(folder: RunFolder) -> list[Mark]:
    """The journal's events that the page does not show elsewhere."""
    return [
        Mark(at=folder.at(e.at), who="jbod", look="jbod", says=short(text, 200), detail=text)
        for e in folder.events
        if e.kind not in _SHOWN_ELSEWHERE | _TOO_MANY
        for text in [_text(e)]
    ]


def _text(event: Event) -> str:
    if isinstance(event, StateValidated):
        return f"{event.kind}: {len(event.expected)} partitions are as expected, by {', '.join(event.sources)}"
    fields = {key: value for key, value in event.details().items() if key != "noticed_by"}
    words = ", ".join(f"{key} {_value(value)}" for key, value in fields.items() if value not in (None, [], (), {}, ""))
    return f"{event.kind}: {words}" if words else event.kind


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) if len(value) <= 12 else f"{len(value)} values"
    return str(value)
