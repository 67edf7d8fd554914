"""What the nodes of a case logged as errors that no fault of it explains: told, and never decisive.

Kafka logs errors for much that is as it should be, such as a request about a topic that is just being made, and in
other words in each release: a list of those that are fine would be wrong by the next one. So they are grouped, counted
and kept with the run (``errors_logged`` in run.json), where a reader sees that a thread died although nobody missed it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.kafka.broker_log import BrokerLog

KEPT = 20
"""Groups, those that are seldom first: what happens hundreds of times is seldom what went wrong."""
_VARYING = (
    (re.compile(r"(?<![\w.])/\S+"), "…"),
    (re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])"), "ID"),
    (re.compile(r"\d+"), "N"),
)


def errors_logged(events: Sequence[Mapping[str, Any]], run_dir: Path) -> list[dict[str, Any]]:
    """The groups: how many lines, of which nodes, the first of them, and the exception below it.

    :param events: the journal's; each fault there names the lines that it explains (:class:`faults.base.Fault`)
    """
    explained = [pattern for event in events if event["kind"] == "fault.injecting" for pattern in event["explains"]]
    fine = re.compile("|".join(explained)) if explained else None
    groups: dict[str, dict[str, Any]] = {}
    for log in sorted(run_dir.glob("brokers/*/broker.log")):
        for line in BrokerLog(log).lines():
            if line.level not in ("ERROR", "FATAL") or (fine and fine.search(line.text)):
                continue
            said = " | ".join(line.text.splitlines()[:2])[:300]
            group = groups.setdefault(_kind(said), {"count": 0, "nodes": [], "at": line.at.isoformat(), "line": said})
            group["count"] += 1
            if log.parent.name not in group["nodes"]:
                group["nodes"].append(log.parent.name)
    return sorted(groups.values(), key=lambda group: int(group["count"]))[:KEPT]


def _kind(line: str) -> str:
    """What is the same in lines that differ in names and numbers only."""
    for pattern, by in _VARYING:
        line = pattern.sub(by, line)
    return line
