"""How long each fault was felt, from the run folder alone.

Four numbers a fault, in seconds from its injection (``fault.injecting`` in the journal), None where they don't apply:

* ``noticed_s``: until the broker's log says so (a log dir; counted from the broker's start where it was down), or
  until another broker's metadata no longer has it (a killed broker);
* ``other_leader_s``: until every partition that the broker led and lost had another leader, as the first broker saw it;
* ``produce_gap_s``, ``consume_gap_s``: the longest that producers went without an ack, consumers without a record,
  while the fault was in force and a pair was running. What clients go without is not what the metadata says, so it is
  measured at the clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.broker_log import BrokerLog
from harness.pipeline.gaps import worst_gap

Event = Mapping[str, Any]


def measure_faults(events: Sequence[Event], run_dir: Path) -> list[dict[str, Any]]:
    """One entry a fault, as the contract's ``--json`` has them."""
    entries = []
    for index, event in enumerate(events):
        if event["kind"] != "fault.injecting":
            continue
        later = events[index:]
        at = _at(event)
        proven = _next(later, "fault.injected", event)
        undone = _next(later, "fault.undone", event)
        entry = {"name": event["fault"], "target": event["target"], "proven": proven is not None}
        if proven is not None:
            end = _at(undone) if undone else _at(events[-1])
            produce_gap_s, consume_gap_s = _gaps_s(events, run_dir, at, end)
            entry |= {
                "noticed_s": _noticed_s(event, later, at, run_dir),
                "other_leader_s": _other_leader_s(event, events[:index], later, at, end),
                "produce_gap_s": produce_gap_s,
                "consume_gap_s": consume_gap_s,
            }
        entries.append(entry)
    return entries


def _at(event: Event) -> datetime:
    return datetime.fromisoformat(event["at"])


def _next(events: Sequence[Event], kind: str, like: Event) -> Event | None:
    same = ("fault", "target")
    return next((e for e in events if e["kind"] == kind and all(e[key] == like[key] for key in same)), None)


def _noticed_s(event: Event, later: Sequence[Event], at: datetime, run_dir: Path) -> float | None:
    if event["noticed_by"] is None:
        seen = [e for e in later if e["kind"] == "brokers.changed" and event["broker"] not in e["brokers"]]
        return _since(at, _at(seen[0])) if seen else None
    line = BrokerLog(run_dir / "brokers" / str(event["broker"]) / "broker.log").first(event["noticed_by"], since=at)
    if line is None:
        return None
    node = f"broker-{event['broker']}"
    starts = [_at(e) for e in later if e["kind"] == "node.started" and e["node"] == node and _at(e) <= line.at]
    return _since(starts[-1] if starts else at, line.at)


def _other_leader_s(
    event: Event, before: Sequence[Event], later: Sequence[Event], at: datetime, end: datetime
) -> float | None:
    leaders = {(e["topic"], e["partition"]): e["leader"] for e in before if e["kind"] == "partition.changed"}
    led = {partition for partition, leader in leaders.items() if leader == event["broker"]}
    moved: dict[tuple[str, int], datetime] = {}
    for e in later:
        if e["kind"] == "partition.changed" and _at(e) <= end:
            partition = (e["topic"], e["partition"])
            if partition in led and partition not in moved and e["leader"] not in (None, event["broker"]):
                moved[partition] = _at(e)
    return _since(at, max(moved.values())) if moved else None


def _gaps_s(
    events: Sequence[Event], run_dir: Path, start: datetime, end: datetime
) -> tuple[float | None, float | None]:
    """The longest gaps between two instants, over the pairs that were running at the first, until they stopped."""
    found = []
    for index, event in enumerate(events):
        if event["kind"] != "pair.ready" or _at(event) > start:
            continue
        stops = (e for e in events[index:] if e["kind"] == "pair.stopping" and e["topic"] == event["topic"])
        until = min(end, _at(next(stops, events[-1])))
        gap = worst_gap(run_dir, event["topic"], start, until) if start < until else None
        if gap is not None:
            found.append(gap)
    if not found:
        return None, None
    return round(max(gap.produce_s for gap in found), 3), round(max(gap.consume_s for gap in found), 3)


def _since(start: datetime, then: datetime) -> float:
    return round(max((then - start).total_seconds(), 0.0), 3)
