"""Finds the errors that a case's nodes logged and no fault of the case explains, and the threads that died.

A thread that died breaks a promise, unless the environment ended it (:mod:`harness.runner.case_outcome`). Other errors
never decide the verdict.

Kafka logs errors in normal operation too, such as a request for a topic that is being created, and changes their
wording between releases. A list of harmless errors would be wrong for the next release. So they are grouped, counted
and kept with the run (``errors_logged`` in run.json).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.events import Event, FaultInjecting
from harness.kafka.broker_log import BrokerLog, LogLine

KEPT = 20
"""How many groups are kept, rare ones first: an error that was logged hundreds of times is seldom the cause."""
THREAD_DIED = r"^\[.+\]:? Error due to \(|^Uncaught exception in thread '"
"""The log line of a thread that died; its stack trace has the reason. ``ShutdownableThread.run`` logs the first text,
with the name of the thread or of a fetcher in brackets; ``KafkaThread`` logs the second (a request handler, say). No
fault explains it: what a dead thread did is never done again."""
_VARYING = (
    (re.compile(r"(?<![\w.])/\S+"), "…"),
    (re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])"), "ID"),
    (re.compile(r"\d+"), "N"),
)


@dataclass(kw_only=True)
class ErrorGroup:
    """Lines that differ in names and numbers only.

    :ivar nodes: the nodes that logged them, by their folder in ``brokers/``
    :ivar at: when the first was logged: UTC, ISO 8601
    :ivar line: the first of them, with the first line of its stack trace
    """

    count: int
    nodes: list[str]
    at: str
    line: str


def errors_logged(events: Sequence[Event], run_dir: Path) -> list[ErrorGroup]:
    """Return the groups of errors in the logs of a run folder, at most :data:`KEPT`.

    :param events: the journal's; each fault names the lines that it explains (:class:`faults.base.Fault`)
    """
    explained = [pattern for event in events if isinstance(event, FaultInjecting) for pattern in event.explains]
    harmless = re.compile("|".join(explained)) if explained else None
    died = re.compile(THREAD_DIED)
    groups: dict[str, ErrorGroup] = {}
    for log in sorted(run_dir.glob("brokers/*/broker.log")):
        node = log.parent.name
        for line in BrokerLog(log).lines():
            if line.level not in ("ERROR", "FATAL"):
                continue
            if harmless and harmless.search(line.text) and not died.search(line.text):
                continue
            text = _beginning(line)
            new = ErrorGroup(count=0, nodes=[], at=line.at.isoformat(), line=text)
            group = groups.setdefault(_kind(text), new)
            group.count += 1
            if node not in group.nodes:
                group.nodes.append(node)
    return sorted(groups.values(), key=lambda group: group.count)[:KEPT]


@dataclass(frozen=True, kw_only=True)
class DeadThread:
    """A thread that died.

    :ivar node: its node, by the folder in ``brokers/``
    :ivar line: the log line, with its stack trace
    """

    node: str
    line: LogLine

    def __str__(self) -> str:
        return f"a thread of the node {self.node} died: {_beginning(self.line)}"


def dead_threads(run_dir: Path) -> list[DeadThread]:
    """Return the threads that died, by the logs of a run folder; for each node the oldest first."""
    logs = {path.parent.name: BrokerLog(path) for path in sorted(run_dir.glob("brokers/*/broker.log"))}
    return [
        DeadThread(node=node, line=line)
        for node, log in logs.items()
        if log.first(THREAD_DIED) is not None  # much faster than lines(), and nearly always None
        for line in log.lines()
        if re.search(THREAD_DIED, line.text)
    ]


def _beginning(line: LogLine) -> str:
    """Return the line with the first line of its stack trace."""
    return " | ".join(line.text.splitlines()[:2])[:300]


def _kind(line: str) -> str:
    """Return the line with paths, ids and numbers replaced, so that lines of one kind are equal."""
    for pattern, by in _VARYING:
        line = pattern.sub(by, line)
    return line
