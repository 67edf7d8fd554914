"""How long each fault was felt, and under what load, from the run folder alone.

Of each fault, in seconds from its injection (``fault.injecting`` in the journal) but for ``recovered_s``, None where
it doesn't apply:

* ``noticed_s``: until the broker's log says so (a log dir; counted from the broker's start where it was down), or
  until another broker's metadata no longer has it (a killed broker);
* ``other_leader_s``: until every partition that the broker led and lost by this fault had another leader, as the first
  broker saw it, and ``no_other_leader``: how many had none, until the fault's end, or the next fault on or stop of the
  same broker. A broker that was stopped or killed loses all that it led; by any other fault it loses those that then
  had none, or another while it was among the offline replicas (a move or an election that was asked for leaves it
  online). None where it lost nothing (``no_other_leader`` is 0 then) or one of them never had another leader, unless
  its topic was deleted;
* ``controller_told_s``: until the log of a controller says that it has been told, of the log dir or of the broker
  (counted as ``noticed_s``); what it says is told at INFO by all builds since 2.0 (``KafkaController``) and since 3.7
  (KRaft's ``ReplicationControlManager``);
* ``first_ack_s``: until the ack that ended the longest stretch without one, if that was an interruption at all
  (:func:`harness.measure.gaps.interruption_s`); None too where none came while the fault was in force;
* ``produce_gap_s``, ``consume_gap_s``: the longest that producers went without an ack, consumers without a record,
  while the fault was in force and a pair was running. What clients go without is not what the metadata says, so it is
  measured at the clients.
* ``recovered_s``: from the fault's end, or its broker's start after that, until the broker was back in the ISR of every
  partition that had it there before and no more at the fault's end; None too where it never was (a fault that was taken
  back while another was in force, a replica that was moved away). A fault that ends its broker is over when that is
  started again, and topics that were deleted count no more.

* ``reader_gaps_s``: only where independent readers ran beside the pair; by reader, the longest without a record of some
  partition. The figures above are the pair's own, which is read in milliseconds; a stream's batches are not.

Who was hit: ``role`` and ``also`` (:mod:`harness.measure.roles`).

And how many records were acked before it, and acked and read while it was in force and had been noticed, in each
partition of the pairs that ran when it struck: a fault that met no load has shown nothing
(:mod:`harness.measure.floors`).
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
_BLOWS = ("fault.injecting", "node.paused", *_ENDS)


def measure_faults(events: Sequence[Event], run_dir: Path) -> list[dict[str, Any]]:
    """One entry a fault, as ``--json`` has them; the counts are None where no pair ran when it struck."""
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
            # Before it is noticed, clients get through as if nothing were; that is no load under the fault.
            bites = max([noticed_at or at, *moved_at])
            validated = (_at(e) for e in later if e["kind"] == "state.validated")
            bites = min(bites, next(validated, bites))  # the cluster's watcher may be told later than the scenario is
            told_s = _controller_told_s(event, later, at, end, run_dir)
            entry |= {"noticed_s": noticed_s, "controller_told_s": told_s}
            entry |= {"other_leader_s": _since(at, max(moved_at)) if moved_at and None not in lost.values() else None}
            entry |= {"no_other_leader": sum(when is None for when in lost.values())}
            entry |= {"recovered_s": _recovered_s(event, before, later, end) if undone else None}
            entry |= _felt_by_clients(events, times, at, bites, end)
        entries.append(entry)
    return entries


def _at(event: Event) -> datetime:
    return datetime.fromisoformat(event["at"])


def _next(events: Sequence[Event], kind: str, like: Event) -> Event | None:
    """The next event of a kind of the fault that ``like``, the first of ``events``, began; not one of its next time."""
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
            return None  # it was gone before: what rots on its disk is noticed by nobody
        seen = (_at(e) for e in later if e["kind"] == "brokers.changed" and event["broker"] not in e["brokers"])
        return next((when for when in seen if when <= end), None)  # what comes after it is another fault's
    line = BrokerLog(run_dir / "brokers" / str(event["broker"]) / "broker.log").first(event["noticed_by"], since=at)
    return None if line is None else line.at


def _noticed_s(event: Event, later: Sequence[Event], at: datetime, noticed_at: datetime) -> float:
    """Its own word counts from its start, where that came after the fault; others' that it is gone, from the fault."""
    return _since(at, noticed_at) if event["noticed_by"] is None else _since_it_ran(event, later, at, noticed_at)


def _since_it_ran(event: Event, later: Sequence[Event], at: datetime, then: datetime) -> float:
    """Seconds from the fault, or from the start of its broker where that was down."""
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
    """As the logs of all nodes have it: any of them may have been the controller."""
    pattern = (_TOLD_OF_BROKER if event["noticed_by"] is None else TOLD_OF_LOG_DIR).format(broker=event["broker"])
    lines = (BrokerLog(log).first(pattern, since=at) for log in run_dir.glob("brokers/*/broker.log"))
    told = min((line.at for line in lines if line is not None and line.at <= end), default=None)
    return None if told is None else _since_it_ran(event, later, at, told)


def never_came(fault: Mapping[str, Any], figure: str) -> bool:
    """Whether a figure of :func:`measure_faults` is None since what it waits for never was, and not since it doesn't
    apply.
    """
    return figure == "other_leader_s" and bool(fault.get("no_other_leader"))


def _afterwards(event: Event, proven: Event, later: Sequence[Event], end: datetime) -> list[Event]:
    """The events from a fault to its end, or to the next blow to its broker: what comes of that is not this fault's."""
    since = later.index(proven) + 1
    blows = (_at(e) for e in later[since:] if e["kind"] in _BLOWS and _node(e) == f"broker-{event['broker']}")
    until = min(end, next(blows, end))
    return [e for e in later if _at(e) <= until]


def _node(event: Event) -> str:
    return str(event.get("node", f"broker-{event.get('broker')}"))


def _lost_leaderships(
    event: Event, before: Sequence[Event], while_injected: Sequence[Event], afterwards: Sequence[Event]
) -> dict[tuple[str, int], datetime | None]:
    """The partitions that the broker lost as their leader, and when each had another; None where none came."""
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
            led.remove(partition)  # what comes after that is another leader's affair
            if partition in lost:
                lost[partition] = _at(e)
    gone = _deleted(afterwards)
    return {partition: when for partition, when in lost.items() if when is not None or partition[0] not in gone}


def _deleted(events: Sequence[Event]) -> set[str]:
    return {e["topic"] for e in events if e["kind"] == "topic.deleted"}


def _recovered_s(event: Event, before: Sequence[Event], later: Sequence[Event], end: datetime) -> float | None:
    starts = (_at(e) for e in later if e["kind"] == "node.started" and e["node"] == f"broker-{event['broker']}")
    if event["noticed_by"] is None:  # it was the broker's own end
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
    events: Sequence[Event], times: ClientTimes, start: datetime, bites: datetime, end: datetime
) -> dict[str, Any]:
    """Gaps from ``start`` and counts from ``bites`` on, over the pairs that ran at ``start``, until they stopped."""
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
        acked, read = times.passed(topic, bites, until, consumers=own) if bites < until else (0, 0)
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
