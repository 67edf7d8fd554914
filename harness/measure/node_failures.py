"""Finds the failures of nodes that break a promise, by the nodes' logs.

Kafka goes on after each of them, and what failed stays undone:

* a thread died;
* Kafka met a fault that it logs as such;
* the log cleaner gave up a log for good;
* a periodic task failed at least twice since the node's start;
* Kafka logged an exception that only a mistake in its code throws. Of 1,549 cases on unchanged builds, 3 in 100 had
  one, of six kinds: these are known deviations.

No fault of the case explains a dead thread. The others are explained by a fault that hit the same node, names such
lines (:class:`faults.base.Fault`) and was in force. It is in force until the node's first start after its end, since a
log dir stays offline until then. What a node logs after the request to stop does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.events import Event, FaultInjecting, FaultUndone, NodeStarted, NodeStopping
from harness.kafka.broker_log import BrokerLog, LogLine

THREAD_DIED = r"^\[.+\]:? Error due to \(|^Uncaught exception in thread '"
"""The line of a thread that died; its stack trace has the reason. ``ShutdownableThread.run`` logs the first text, with
the name of the thread or of a fetcher in brackets; ``KafkaThread`` logs the second (a request handler, say)."""
FAULT_LOGGED = r"^Encountered (?!fatal )[\w ]+ fault: "
"""The line of ``LoggingFaultHandler``, such as for a change of metadata that was not applied to its end. A fatal fault
ends the node, which is noticed as such."""
TASK_FAILED = (
    r"^Uncaught exception in scheduled task '(highwatermark-checkpoint|kafka-log-flusher|kafka-log-retention"
    r"|kafka-log-start-offset-checkpoint|kafka-recovery-point-checkpoint|shutdown-idle-replica-alter-log-dirs-thread)'"
    r"(?!(?s:.*)The log for \S+ is already closed)"
)
"""The line of ``KafkaScheduler`` for a periodic task of the log dirs. Other tasks run once, such as ``flush-log``
(KAFKA-19571), or wait for ZooKeeper. A move or a deletion may close a log that such a task is about to use."""
CLEANING_FAILED = r"Unexpected exception thrown when cleaning log (?s:.*)Marking its partition \((\S+)\) as uncleanable"
"""The line of ``LogCleaner`` for a log that it does not clean any more (``uncleanable-partitions-count``)."""
MISTAKE_THROWN = (
    r"\n(?:Caused by: )?(?:java\.\w+\.(?:NullPointer|ClassCast|IllegalState|IllegalArgument|ConcurrentModification"
    r"|NegativeArraySize|Arithmetic|UnsupportedOperation|BufferUnderflow|BufferOverflow|(?:\w+)?IndexOutOfBounds"
    r"|NoSuchElement|IllegalMonitorState)Exception|java\.lang\.(?:NoSuchMethod|NoSuchField|AbstractMethod|NoClassDefFound"
    r"|IncompatibleClassChange|IllegalAccess|ExceptionInInitializer|StackOverflow|Assertion)Error|scala\.MatchError)\b"
    r"(?!: (?:Duplicate log directories |requirement failed: ))"
)
"""The line of a stack trace with an exception that a mistake in the code throws, and not what the code has to expect.
Left out are the messages with which a node refuses its log dirs or its settings, and errors that a machine causes."""
_ANY = f"{THREAD_DIED}|{FAULT_LOGGED}|{TASK_FAILED}|{CLEANING_FAILED}|{MISTAKE_THROWN}"


@dataclass(frozen=True, kw_only=True)
class NodeFailure:
    """A failure of a node.

    :ivar node: the node, by its folder in ``brokers/``
    :ivar what: what failed
    :ivar lines: the log lines, with their stack traces
    """

    node: str
    what: str
    lines: tuple[LogLine, ...]

    def __str__(self) -> str:
        return f"{self.what}: {beginning(self.lines[0])}"


def node_failures(events: Sequence[Event], run_dir: Path) -> list[NodeFailure]:
    """Return the failures in the logs of a run folder; for each node the dead threads first.

    :param events: the journal's
    """
    return [
        failure
        for path in sorted(run_dir.glob("brokers/*/broker.log"))
        if (log := BrokerLog(path)).first(_ANY) is not None  # much faster than lines(), and nearly always None
        for failure in _failures(events, path.parent.name, [*log.lines()])
    ]


def beginning(line: LogLine) -> str:
    """Return the line with the first line of its stack trace."""
    return " | ".join(line.text.splitlines()[:2])[:300]


def _failures(events: Sequence[Event], node: str, lines: Sequence[LogLine]) -> Iterator[NodeFailure]:
    for line in lines:
        if re.search(THREAD_DIED, line.text):
            yield NodeFailure(node=node, what=f"a thread of the node {node} died", lines=(line,))
    failed: dict[tuple[str, int], list[LogLine]] = {}  # by task and start of the node
    for line in lines:
        fault, task = re.search(FAULT_LOGGED, line.text), re.search(TASK_FAILED, line.text)
        cleaning, mistake = re.search(CLEANING_FAILED, line.text), re.search(MISTAKE_THROWN, line.text)
        if not (fault or task or cleaning or mistake) or re.search(THREAD_DIED, line.text):
            continue
        if (start := _start(events, node, line.at)) is None or _explained(events, node, line):
            continue
        if fault:
            yield NodeFailure(node=node, what=f"the node {node} met a fault of its own", lines=(line,))
        elif cleaning:
            yield NodeFailure(node=node, what=f"the node {node} cleans {cleaning[1]} no more", lines=(line,))
        elif mistake:
            yield NodeFailure(node=node, what=f"the node {node} met a mistake in its own code", lines=(line,))
        elif task:
            failed.setdefault((task[1], start), []).append(line)
    for (name, _), found in failed.items():
        if len(found) > 1:
            what = f"the task {name} of the node {node} failed {len(found)} times"
            yield NodeFailure(node=node, what=what, lines=tuple(found))


def _start(events: Sequence[Event], node: str, at: datetime) -> int | None:
    """Return how often the node had been started by then; None if it was asked to stop since."""
    steps = [
        event
        for event in events
        if isinstance(event, NodeStarted | NodeStopping) and _folder(event.node) == node and event.at <= at
    ]
    return None if steps and isinstance(steps[-1], NodeStopping) else len(steps)


def _explained(events: Sequence[Event], node: str, line: LogLine) -> bool:
    """Whether a fault of this node explains the line and was in force."""
    return any(
        re.search(pattern, line.text)
        for index, event in enumerate(events)
        if isinstance(event, FaultInjecting) and _folder(event.struck) == node and _milliseconds(event.at) <= line.at
        if (end := _end(event, events[index:])) is None or line.at < end
        for pattern in event.explains
    )


def _end(fault: FaultInjecting, later: Sequence[Event]) -> datetime | None:
    """Return when the fault's node was first started after the fault was undone; None if it was not."""
    undone = False
    for event in later:
        if isinstance(event, FaultUndone) and (event.fault, event.target) == (fault.fault, fault.target):
            undone = True
        if undone and isinstance(event, NodeStarted) and event.node == fault.struck:
            return event.at
    return None


def _milliseconds(at: datetime) -> datetime:
    """Return the time as a log has it."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def _folder(node: str) -> str:
    """Return the name of a node's folder in ``brokers/``."""
    return node.removeprefix("broker-")
