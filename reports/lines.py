"""The log lines that matter, and what the harness did, as marks on the timeline.

A broker writes a thousand lines in half a minute. What is shown is what it says at ERROR and FATAL, what it warns of
beside the small talk of starting and losing connections, and the few lines at INFO by which it says what became of a
log, a replica, a leader, a controller. The same line again, but for its numbers, is shown once with how often it came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.events import Event, StateValidated
from harness.kafka.broker_log import LogLine
from reports.folder import RunFolder
from reports.lanes import short

_MOST = 250
_TOGETHER_S = 1.0
_STACK = 12
_SMALL_TALK = re.compile(
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
_NOT_TOLD = ("partition.changed", "brokers.changed", "phase", "mbeans.changed", "case.started", "case.ended", "trouble")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at an instant, in seconds from the case's beginning.

    :ivar look: error, warn, info, jbod
    :ivar says: in one line; ``detail`` is all of it
    """

    at: float
    who: str
    look: str
    says: str
    detail: str

    def to_json(self) -> list[Any]:
        """As the page has it."""
        return [self.at, self.who, self.look, self.says, "" if self.detail == self.says else self.detail]


def log_lines(folder: RunFolder) -> tuple[list[Mark], list[str]]:
    """The lines that matter of all nodes, in order of time; and which nodes had more than are shown."""
    found: list[Mark] = []
    notes = []
    for who, lines in folder.logs.items():
        marks = list(_together(folder, who, lines))
        if len(marks) > _MOST:
            notes.append(f"{who}'s log has {len(marks)} lines that matter; the gravest {_MOST} are shown")
            marks = sorted(marks, key=lambda mark: ("error", "warn", "info").index(mark.look))[:_MOST]
        found += marks
    return sorted(found, key=lambda mark: mark.at), notes


def _together(folder: RunFolder, who: str, lines: tuple[LogLine, ...]) -> Iterator[Mark]:
    """Each line that matters; a run of the same within a second as its first, with how many there were."""
    alike: dict[str, list[Any]] = {}
    for line in lines:
        if not _matters(line):
            continue
        first = line.text.partition("\n")[0]
        key, at = line.level + re.sub(r"\d+", "#", first), folder.at(line.at)
        if key in alike and at - alike[key][0] <= _TOGETHER_S:
            alike[key][2] += 1
            continue
        if key in alike:
            yield _mark(who, *alike[key])
        alike[key] = [at, line, 1]
    for entry in alike.values():
        yield _mark(who, *entry)


def _mark(who: str, at: float, line: LogLine, count: int) -> Mark:
    first, _, stack = line.text.partition("\n")
    times = f" (×{count} within a second)" if count > 1 else ""
    below = stack.splitlines()
    rest = [] if len(below) <= _STACK else [f"… {len(below) - _STACK} lines more"]
    return Mark(
        at=at,
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
        return not _SMALL_TALK.search(first)
    return line.level == "INFO" and bool(_TELLING.search(first)) and not first.startswith("KafkaConfig values")


def harness_events(folder: RunFolder) -> list[Mark]:
    """What the harness did and saw, but for what has a lane of its own."""
    return [
        Mark(at=folder.at(e.at), who="jbod", look="jbod", says=short(_told(e), 200), detail=_told(e))
        for e in folder.events
        if e.kind not in _NOT_TOLD
    ]


def _told(event: Event) -> str:
    if isinstance(event, StateValidated):
        sources, many = ", ".join(event.sources), len(event.expected)
        return f"state.validated: {many} partitions are as the model has them, says each of {sources}"
    fields = {key: value for key, value in event.details().items() if key != "noticed_by"}
    words = ", ".join(f"{key} {_value(value)}" for key, value in fields.items() if not _is_empty(value))
    return f"{event.kind}: {words}" if words else event.kind


def _is_empty(value: object) -> bool:
    return value in (None, [], (), {}, "")


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) if len(value) <= 12 else f"{len(value)} of them"
    return str(value)
