"""Collects the errors in node logs that no fault of the case explains. They never affect the verdict.

Kafka also logs errors in normal operation, such as a request for a topic that is just being created. The messages
change with each release, so a list of harmless errors would soon be outdated. Instead the errors are grouped, counted
and stored as ``errors_logged`` in run.json. There a reader can see that a thread died, for example, even if no check
failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.kafka.broker_log import BrokerLog

KEPT = 20
"""The number of groups that are kept. Rare errors come first, because frequent ones are seldom the cause of a
failure."""
_VARYING = (
    (re.compile(r"(?<![\w.])/\S+"), "…"),
    (re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])"), "ID"),
    (re.compile(r"\d+"), "N"),
)


def errors_logged(events: Sequence[Mapping[str, Any]], run_dir: Path) -> list[dict[str, Any]]:
    """Return the groups, each with its number of lines, its nodes, and its first line with the exception below it.

    :param events: the journal's events; each fault there names the lines that it explains (:class:`faults.base.Fault`)
    """
    explained = [pattern for event in events if event["kind"] == "fault.injecting" for pattern in event["explains"]]
    expected = re.compile("|".join(explained)) if explained else None
    groups: dict[str, dict[str, Any]] = {}
    for log in sorted(run_dir.glob("brokers/*/broker.log")):
        for line in BrokerLog(log).lines():
            if line.level not in ("ERROR", "FATAL") or (expected and expected.search(line.text)):
                continue
            text = " | ".join(line.text.splitlines()[:2])[:300]
            group = groups.setdefault(_kind(text), {"count": 0, "nodes": [], "at": line.at.isoformat(), "line": text})
            group["count"] += 1
            if log.parent.name not in group["nodes"]:
                group["nodes"].append(log.parent.name)
    return sorted(groups.values(), key=lambda group: int(group["count"]))[:KEPT]


def _kind(line: str) -> str:
    """Return the line with paths, ids and numbers replaced, so that lines of one kind are equal."""
    for pattern, by in _VARYING:
        line = pattern.sub(by, line)
    return line
