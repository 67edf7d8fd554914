"""Measures the effect and the load of each fault from the run folder.

Figures are in seconds and, except ``recovered_s``, count from the injection (``fault.injecting`` in the journal). A
figure is None if it does not apply.

* ``noticed_s``: until the broker logs the failure of its log dir, counted from the broker's start if it was down; for a
  killed broker, until another broker's metadata no longer has it.
* ``other_leader_s``: until every partition that lost its leader by this fault had another one, as the first broker saw
  it. ``no_other_leader`` counts those that had none until the fault ended, or until the next fault on or stop of the
  same broker. A broker that was stopped or killed loses all partitions that it led. By any other fault it loses those
  that then had no leader, or had another one while the broker was among the offline replicas. A requested move or
  election does not make it offline. ``other_leader_s`` is None if no partition was lost; then ``no_other_leader`` is
  0. It is also None if one of them never had another leader, unless its topic was deleted.
* ``controller_told_s``: until a controller logs that it knows of the failed log dir or broker, counted as
  ``noticed_s``. All builds log this at INFO: ``KafkaController`` since 2.0, KRaft's ``ReplicationControlManager`` since
  3.7.
* ``first_ack_s``: until the ack that ended the longest period without one, if the period was an interruption
  (:func:`harness.measure.gaps.interruption_s`). None also if no ack came while the fault was in force.
* ``produce_gap_s``, ``consume_gap_s``: the longest period in which producers got no ack, or consumers no record, while
  the fault was in force and a pair was running. Measured at the clients, because metadata does not show it.
* ``recovered_s``: from the fault's end, or the next start of its broker, until the broker was back in every ISR that it
  had left. None also if it never was: another fault was still in force, or a replica was moved away.
  A fault that ends its broker lasts until the broker's next start. Deleted topics do not count.
* ``reader_gaps_s``: only if independent readers ran beside the pair; for each reader, its longest period without a
  record of some partition. The other figures do not include these readers, because a stream reads in batches.

``role`` and ``also`` say whom the fault hit (:mod:`harness.measure.roles`).

The load is the number of records acked before the fault, and acked and read while it was in force and noticed. It
counts the partition with the fewest records, over the pairs that ran at the injection. A fault without load shows
nothing (:mod:`harness.measure.floors`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.kafka.broker_log import BrokerLog
from harness.measure.gaps import ClientTimes
from harness.measure.roles import in_sync, led_by, roles

Event = Mapping[str, Any]
_ENDS = ("node.stopping", "node.killed")
_STRIKES = ("fault.injecting", "node.paused", *_ENDS)


def measure_faults(events: Sequence[Event], run_dir: Path) -> list[dict[str, Any]]:
    """Return one entry for each fault, as ``--json`` has them. The counts are None if no pair ran at the injection.

    :param events: the journal's events
    """
    entries, times = [], ClientTimes(run_dir)
    for index, event in enumerate(events):
        if event["kind"] != "fault.injecting":
            continue
        before, later = events[:index], events[index:]
        at = _at(event)
        proven = _next(later, "fault.injected", event)
        undone = _next(later, "fault.undone", event)
        entry = {"name": event["fault"], "target": event["target"], "proven": proven is not None}
        entry |= {"may_hold_up_clients": True} if event.get("may_hold_up_clients") else {}
        if proven is not None:
            entry |= roles(event, before)
            end = _at(undone) if undone else _at(events[-1])
            noticed_at = _noticed_at(event, before, later, at, end, run_dir)
            noticed_s = None if noticed_at is None else _noticed_s(event, later, at, noticed_at)
            lost = _lost_leaderships(
                event, before, later[: later.index(proven)], _afterwards(event, proven, later, end)
            )
            moved_at = [when for when in lost.values() if when is not None]
            # Clients are not affected before the fault is noticed, so these records are no load under the fault.
            load_from = max([noticed_at or at, *moved_at])
            validated = (_at(e) for e in later if e["kind"] == "state.validated")
            load_from = min(
                load_from, next(validated, load_from)
            )  # the watcher may see the fault later than the scenario
            told_s = _controller_told_s(event, later, at, end, run_dir)
            entry |= {"noticed_s": noticed_s, "controller_told_s": told_s}
            entry |= {"other_leader_s": _since(at, max(moved_at)) if moved_at and None not in lost.values() else None}
            entry |= {"no_other_leader": sum(when is None for when in lost.values())}
            entry |= {"recovered_s": _recovered_s(event, before, later, end) if undone else None}
            entry |= _felt_by_clients(events, times, at, load_from, end)
        entries.append(entry)
    return entries


def _at(event: Event) -> datetime:
    return datetime.fromisoformat(event["at"])


def _next(events: Sequence[Event], kind: str, like: Event) -> Event | None:
    """Return the next event of this kind for the fault that ``like`` began, before the same fault is injected again.

    :param like: the first of ``events``
    """
    for event in events[1:]:
        if all(event.get(key) == like[key] for key in ("fault", "target")):
            if event["kind"] == kind:
                return event
            if event["kind"] == "fault.injecting":
                return None
    return None


def _noticed_at(
    event: Event, before: Sequence[Event], later: Sequence[Event], at: datetime, end: datetime, run_dir: Path
) -> datetime | None:
    if event["noticed_by"] is None:
        known = [e["brokers"] for e in before if e["kind"] == "brokers.changed"]
        if known and event["broker"] not in known[-1]:
            return None  # the broker was down before: no broker can notice what happens to its disk
        seen = (_at(e) for e in later if e["kind"] == "brokers.changed" and event["broker"] not in e["brokers"])
        return next((when for when in seen if when <= end), None)  # later changes belong to another fault
    line = BrokerLog(run_dir / "brokers" / str(event["broker"]) / "broker.log").first(event["noticed_by"], since=at)
    return None if line is None else line.at


def _noticed_s(event: Event, later: Sequence[Event], at: datetime, noticed_at: datetime) -> float:
    """Count from the start of the broker for its own log, and from the fault for metadata of other brokers."""
    return _since(at, noticed_at) if event["noticed_by"] is None else _since_it_ran(event, later, at, noticed_at)


def _since_it_ran(event: Event, later: Sequence[Event], at: datetime, then: datetime) -> float:
    """Return the seconds from the fault, or from the start of its broker if that came later."""
    node = f"broker-{event['broker']}"
    starts = [_at(e) for e in later if e["kind"] == "node.started" and e["node"] == node and _at(e) <= then]
    return _since(starts[-1] if starts else at, then)


TOLD_OF_LOG_DIR = (
    r"Handling log directory failure for brokers (?:\d+,)*{broker}\b"
    r"|Directories \[.*\] in broker {broker} marked offline"
)
_TOLD_OF_BROKER = (
    r"deleted brokers: (?:\d+,)*{broker}\b|Shutting down broker {broker}\b|Fencing broker {broker} at epoch"
    r"|[Bb]roker {broker} has requested and been granted"
)


def _controller_told_s(
    event: Event, later: Sequence[Event], at: datetime, end: datetime, run_dir: Path
) -> float | None:
    """Search the logs of all nodes, because each may have been the controller."""
    pattern = (_TOLD_OF_BROKER if event["noticed_by"] is None else TOLD_OF_LOG_DIR).format(broker=event["broker"])
    lines = (BrokerLog(log).first(pattern, since=at) for log in run_dir.glob("brokers/*/broker.log"))
    logged_at = min((line.at for line in lines if line is not None and line.at <= end), default=None)
    return None if logged_at is None else _since_it_ran(event, later, at, logged_at)


def never_came(fault: Mapping[str, Any], figure: str) -> bool:
    """Return whether a figure of :func:`measure_faults` is None because the event never happened.

    Otherwise a figure of None does not apply.
    """
    return figure == "other_leader_s" and bool(fault.get("no_other_leader"))


def _afterwards(event: Event, proven: Event, later: Sequence[Event], end: datetime) -> list[Event]:
    """Return the events until the fault's end, or until the next fault on or stop of its broker."""
    since = later.index(proven) + 1
    strikes = (_at(e) for e in later[since:] if e["kind"] in _STRIKES and _node(e) == f"broker-{event['broker']}")
    until = min(end, next(strikes, end))
    return [e for e in later if _at(e) <= until]


def _node(event: Event) -> str:
    return str(event.get("node", f"broker-{event.get('broker')}"))


def _lost_leaderships(
    event: Event, before: Sequence[Event], while_injected: Sequence[Event], afterwards: Sequence[Event]
) -> dict[tuple[str, int], datetime | None]:
    """Return the partitions that lost the broker as leader, and when each had another; None if it never had."""
    broker = event["broker"]
    gone = _deleted(before)
    led = {partition for partition in led_by(broker, before) if partition[0] not in gone}
    ended = any(e["kind"] in _ENDS and _node(e) == f"broker-{broker}" for e in while_injected)
    lost: dict[tuple[str, int], datetime | None] = dict.fromkeys(led) if ended else {}
    for e in afterwards:
        partition = (e.get("topic"), e.get("partition"))
        if e["kind"] != "partition.changed" or partition not in led or e["leader"] == broker:
            continue
        if ended or e["leader"] is None or broker in e["offline_replicas"]:
            lost.setdefault(partition)
        if e["leader"] is not None:
            led.remove(partition)  # later changes concern another leader
            if partition in lost:
                lost[partition] = _at(e)
    gone = _deleted(afterwards)
    return {partition: when for partition, when in lost.items() if when is not None or partition[0] not in gone}


def _deleted(events: Sequence[Event]) -> set[str]:
    return {e["topic"] for e in events if e["kind"] == "topic.deleted"}


def _recovered_s(event: Event, before: Sequence[Event], later: Sequence[Event], end: datetime) -> float | None:
    starts = (_at(e) for e in later if e["kind"] == "node.started" and e["node"] == f"broker-{event['broker']}")
    if event["noticed_by"] is None:  # the fault ended the broker
        end = min(end, next(starts, end))
    had = in_sync(event["broker"], before)
    has = in_sync(event["broker"], [*before, *(e for e in later if _at(e) <= end)])
    deleted = _deleted(later)
    missing = {partition for partition in had - has if partition[0] not in deleted}
    back: dict[tuple[str, int], datetime] = {}
    for e in later:
        if e["kind"] == "partition.changed" and _at(e) > end and event["broker"] in e["isr"]:
            back.setdefault((e["topic"], e["partition"]), _at(e))
    if not missing or not missing <= back.keys():
        return None
    last = max(back[partition] for partition in missing)
    return _since_it_ran(event, [e for e in later if _at(e) >= end], end, last)


def _felt_by_clients(
    events: Sequence[Event], times: ClientTimes, start: datetime, load_from: datetime, end: datetime
) -> dict[str, Any]:
    """Return gaps and counts until ``end``, over the pairs that ran at ``start``.

    :param start: of the gaps
    :param load_from: start of the counts
    """
    felt: list[dict[str, Any]] = []
    stalled: dict[str, float] = {}
    for index, event in enumerate(events):
        if event["kind"] != "pair.ready" or _at(event) > start:
            continue
        stops = (e for e in events[index:] if e["kind"] == "pair.stopping" and e["topic"] == event["topic"])
        until = min(end, _at(next(stops, events[-1])))
        if until <= start:
            continue
        topic, own = event["topic"], event.get("consumers")
        gap = times.worst_gap(topic, start, until, consumers=own)
        acked, read = times.passed(topic, load_from, until, consumers=own) if load_from < until else (0, 0)
        for name, consumers in event.get("readers", {}).items():
            stalled[name] = round(times.reader_gap_s(topic, start, until, consumers), 3)
        felt.append(
            {
                "first_ack_s": None if gap is None or gap.acked_again_s is None else round(gap.acked_again_s, 3),
                "produce_gap_s": None if gap is None else round(gap.produce_s, 3),
                "consume_gap_s": None if gap is None else round(gap.consume_s, 3),
                "acked_before": times.passed(topic, _at(events[0]), start)[0],
                "acked_during": acked,
                "read_during": read,
            }
        )
    longest = {
        name: max((each[name] for each in felt if each[name] is not None), default=None)
        for name in ("first_ack_s", "produce_gap_s", "consume_gap_s")
    }
    least = {
        name: min((each[name] for each in felt), default=None)
        for name in ("acked_before", "acked_during", "read_during")
    }
    return longest | least | ({"reader_gaps_s": stalled} if stalled else {})


def _since(start: datetime, then: datetime) -> float:
    return round(max((then - start).total_seconds(), 0.0), 3)
