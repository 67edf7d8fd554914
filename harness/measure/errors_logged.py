"""Finds the errors that a case's nodes logged and no fault of the case explains.

Of these, only failures of nodes decide the verdict (:mod:`harness.measure.node_failures`). Kafka logs errors in normal
operation too, such as a request for a topic that is being created, and changes their wording between releases. A list
of harmless errors would be wrong for the next release. So they are grouped, counted and kept with the run
(``errors_logged`` in run.json).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.events import Event, FaultInjecting
from harness.kafka.broker_log import BrokerLog
from harness.measure.line_kinds import kind_of
from harness.measure.node_failures import beginning, node_failures

KEPT = 20
"""How many groups are kept, rare ones first: an error that was logged hundreds of times is seldom the cause."""


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
    failures = {(failure.node, line) for failure in node_failures(events, run_dir) for line in failure.lines}
    groups: dict[str, ErrorGroup] = {}
    for log in sorted(run_dir.glob("brokers/*/broker.log")):
        node = log.parent.name
        for line in BrokerLog(log).lines():
            if line.level not in ("ERROR", "FATAL"):
                continue
            if harmless and harmless.search(line.text) and (node, line) not in failures:
                continue
            text = beginning(line)
            new = ErrorGroup(count=0, nodes=[], at=line.at.isoformat(), line=text)
            group = groups.setdefault(kind_of(text), new)
            group.count += 1
            if node not in group.nodes:
                group.nodes.append(node)
    return sorted(groups.values(), key=lambda group: group.count)[:KEPT]
