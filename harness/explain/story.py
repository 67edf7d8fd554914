"""Tells the story of a record: what happened to it, in order of time and from all sources, and where it is now.

The sources are in the run folder. The history has sends, acks and reads. The journal has faults, restarts, and leaders
and ISRs as the watcher saw them. The brokers' logs have the few lines about what Kafka did to a partition. All
clocks are those of one machine, so times of different sources can be compared to the millisecond.

The stories of the worst records of a verdict are stored as ``explained.json``, because the segments disappear with the
cluster. The story of any other record can be told later from the run folder (:func:`tell`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from harness import events
from harness.explain.records import Facts, ReadRow, SentRow
from harness.explain.whereabouts import Replica
from harness.host.atomic_write import write_atomically
from harness.journal import read_journal
from harness.kafka.broker_log import BrokerLog, LogLine

EXPLAINED_FILE = "explained.json"
_LONGEST = 220
_BEFORE = timedelta(seconds=1)
_EVER = datetime.min.replace(tzinfo=UTC)

_JOURNAL_SAYS: Mapping[str, str] = {
    "fault.injecting": "{fault} on {target} begins",
    "fault.injected": "{fault} on {target} is in force: {evidence}",
    "fault.undone": "{fault} on {target} is undone",
    "fault.noticed": "broker {broker} has noticed",
    "node.goes_on": "{node} keeps running from the case before",
    "node.started": "{node} is started",
    "node.stopping": "{node} is asked to stop",
    "node.stopped": "{node} has ended, exit code {exit_code}",
    "node.killed": "{node} is killed",
    "node.ended_by_itself": "{node} ended by itself, exit code {exit_code}",
    "node.paused": "{node} is paused",
    "node.resumed": "{node} is resumed",
    "broker.silent": "broker {broker} has a slow disk and does not answer: {says}",
    "producer.died": "producer {producer} died: {error}",
    "consumer.died": "consumer {consumer} died: {error}",
    "consumer.restarted": "consumer {consumer} is started again",
    "group.assigned": "{consumer} is assigned partitions {partitions}",
    "group.revoked": "{consumer} gives up partitions {partitions}",
    "group.lost": "{consumer} lost partitions {partitions}: the group went on without it",
    "stream.died": "stream {consumer} died: {error}",
    "stream.restarted": "stream {consumer} is started again",
    "stream.stalled": "stream {consumer} received nothing for {for_s} s",
    "cluster.healthy": "all brokers are registered, and every partition has a leader and its full ISR",
    "drain.ended": "drain {consumer} has read all there is, {isolation}",
    "partition.changed": "{topic}-{partition}: leader {leader}, epoch {leader_epoch}, ISR {isr}, "
    "offline {offline_replicas}",
}
"""The journal's events that may matter to a record, and their sentences. Changes of other partitions are left out."""

_LOG_SAYS = (
    r"(Leader|Follower) {tp} .*starts at",
    r"Truncating (partition {tp}|to offset)",
    r"Truncating to \d+ has no effect",
    r"Incremented log start offset",
    r"Out of order sequence number .* in partition {tp}:",
    r"Recovering unflushed segment",
    r"[Cc]orrupt",
    r"Deleting segment",
    r"Stopping serving (logs|replicas) in dir",
    r"Directories \[.*marked offline",
)
"""Patterns of the lines with which a broker logs what it does to a log; ``{tp}`` is the record's partition."""
_OF_A_DIR = re.compile(r"Stopping serving|marked offline")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One thing that happened; ``at`` is None if the time is unknown."""

    at: datetime | None
    source: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Story:
    """The story of one record.

    :ivar replicas: None if the segments could not be read
    """

    producer: str
    seq: int
    kinds: tuple[str, ...]
    summary: str
    timeline: tuple[Moment, ...]
    replicas: tuple[Replica, ...] | None

    def to_json(self) -> dict[str, object]:
        """Return the story as explained.json has it."""
        return json.loads(json.dumps(asdict(self), default=str))  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The sources besides the history; read once, for all stories.

    :ivar journal: the events up to the verdict
    :ivar logs: the lines of each node's log, by the node's name
    """

    journal: Sequence[events.Event]
    logs: Mapping[str, Sequence[LogLine]]


def read_sources(run_dir: Path) -> Sources:
    """Read the journal and the logs of a run folder; a missing source is empty."""
    logs = {
        f"broker {log.parent.name}" if log.parent.name.isdigit() else log.parent.name: tuple(BrokerLog(log).lines())
        for log in sorted(run_dir.glob("brokers/*/broker.log"))
    }
    return Sources(journal=tuple(_journal(run_dir)), logs=logs)


def tell(sources: Sources, facts: Facts, kinds: Sequence[str], replicas: Sequence[Replica] | None) -> Story:
    """Tell the story of one record."""
    leader_at = _leader_at(sources.journal)
    timeline = [
        *_history(facts, leader_at),
        *_journal_events(sources.journal, facts),
        *_log_events(sources.logs, facts),
    ]
    timeline.sort(key=lambda event: event.at or datetime.max.replace(tzinfo=UTC))
    return Story(
        producer=facts.name[0],
        seq=facts.name[1],
        kinds=tuple(kinds),
        summary=_summary(facts, leader_at, replicas),
        timeline=tuple(_from_when_it_mattered(timeline, facts)),
        replicas=None if replicas is None else tuple(replicas),
    )


# --- the sources ----------------------------------------------------------------------------------------------------


def _journal(run_dir: Path) -> Iterator[events.Event]:
    """Yield the journal's events up to the verdict; the end of the cluster is not part of a story."""
    for event in read_journal(run_dir):
        if isinstance(event, events.Judged):
            return
        yield event


def _history(facts: Facts, leader_at: Callable[[SentRow], str]) -> Iterator[Moment]:
    if (sent := facts.sent) is not None:
        group = f" in transaction {sent['transaction']}" if sent["transaction"] else ""
        yield Moment(at=sent["sent_at"], source=sent["producer"], says=f"sent to {_place(sent, False)}{group}")
        if sent["outcome"] == "acked":
            says = f"acked at {_place(sent)}{leader_at(sent)}"
        else:
            says = f"{sent['outcome']}: {sent['error']}"
        if sent["transaction"]:
            says += f"; the transaction: {sent['transaction_outcome']}"
        yield Moment(at=sent["ended_at"], source=sent["producer"], says=says)
    for row in facts.reads:
        other = " WITH ANOTHER CRC-32" if sent is not None and row["crc32"] != sent["crc32"] else ""
        says = f"read at {_place(row)} by {row['role']} consumer {row['consumer']}, session {row['session']}{other}"
        yield Moment(at=row["read_at"], source=row["consumer"], says=says)
    for seen in facts.others:
        who = f"{seen['producer']} #{seen['seq']}" if seen["producer"] else "a record of no producer of the run"
        if "outcome" in seen:
            says = f"{who} is acked at {_place(seen)}{leader_at(seen)}"
            yield Moment(at=seen["ended_at"], source=seen["producer"], says=says)
        else:
            yield Moment(at=seen["read_at"], source=seen["consumer"], says=f"{who} is read at {_place(seen)}")


def _journal_events(journal: Iterable[events.Event], facts: Facts) -> Iterator[Moment]:
    partitions = {place[:2] for place in facts.places}
    for event in journal:
        pattern = _JOURNAL_SAYS.get(event.kind)
        if pattern is None:
            continue
        if isinstance(event, events.PartitionChanged) and event.key not in partitions:
            continue
        says = pattern.format_map(_Lenient(event.details()))
        yield Moment(at=event.at, source="jbod", says=_short(says))


def _log_events(logs: Mapping[str, Sequence[LogLine]], facts: Facts) -> Iterator[Moment]:
    names = {f"{place[0]}-{place[1]}" for place in facts.places}
    if not names:
        return
    pattern = re.compile("|".join(_LOG_SAYS).replace("{tp}", f"({'|'.join(map(re.escape, names))})"))
    own = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, names))})(?![\w-])")
    for who, lines in logs.items():
        for line in lines:
            first = line.text.splitlines()[0]
            if pattern.search(first) and (own.search(first) or _OF_A_DIR.search(first)):
                yield Moment(at=line.at, source=who, says=_plain(first))


def _from_when_it_mattered(timeline: Sequence[Moment], facts: Facts) -> Iterator[Moment]:
    """Yield the events since shortly before the send, and the last earlier one that names the partition's leader."""
    seen = [facts.sent["sent_at"]] if facts.sent else [row["read_at"] for row in facts.reads]
    begin = min((at - _BEFORE for at in seen if at is not None), default=_EVER)
    before = [event for event in timeline if event.at is not None and event.at < begin]
    yield from [event for event in before if ": leader " in event.says][-1:]
    yield from [event for event in timeline if event.at is None or event.at >= begin]


# --- the summary ----------------------------------------------------------------------------------------------------


def _leader_at(journal: Iterable[events.Event]) -> Callable[[SentRow], str]:
    """Return a function that names the leader at the time of an ack: ", when broker 3 led in epoch 0"."""
    changes = [event for event in journal if isinstance(event, events.PartitionChanged)]

    def words(row: SentRow) -> str:
        if (acked_at := row["ended_at"]) is None:
            return ""
        known = [event for event in changes if event.key == (row["topic"], row["partition"])]
        before = [event for event in known if event.at <= acked_at] or known[:1]
        return f", when broker {before[-1].leader} led in epoch {before[-1].leader_epoch}" if before else ""

    return words


def _summary(facts: Facts, leader_at: Callable[[SentRow], str], replicas: Sequence[Replica] | None) -> str:
    sent = facts.sent
    if sent is None:
        clauses = ["no producer sent it"]
    elif sent["outcome"] == "acked":
        clauses = [f"acked at {_place(sent)}{leader_at(sent)}"]
    else:
        clauses = [f"{sent['outcome']} ({sent['error']})"]
    for role in ("live", "drain"):
        places = sorted({row["offset"] for row in facts.reads if row["role"] == role})
        clauses.append(f"read by {role} consumers at {_listed(places)}" if places else f"read by no {role} consumer")
    if replicas is None:
        clauses.append("its segments were not read: the cluster is gone (--keep-cluster keeps one)")
    else:
        clauses.append(_now(replicas))
    return "; ".join(clauses)


def _now(replicas: Sequence[Replica]) -> str:
    """Where the record is now, as a clause."""
    holding = [replica for replica in replicas if replica.held]
    if holding:
        offsets = sorted({copy.offset for replica in holding for copy in replica.held})
        text = f"now on {_brokers(holding)} at {_listed(offsets)}"
        spoilt = [replica for replica in holding if not all(copy.crc_fits for copy in replica.held)]
        return text + (f", with a wrong checksum on {_brokers(spoilt)}" if spoilt else "")
    text = "now on no replica"
    for replica in replicas:
        if replica.copies:
            text += f" ({replica.folder} on broker {replica.broker} has it, but does not count: {replica.why_not_held})"
    instead: dict[tuple[int, str], list[Replica]] = {}
    for replica in replicas:
        for what in replica.instead if replica.serves else ():
            instead.setdefault(what, []).append(replica)
    for (offset, who), having in instead.items():
        text += f", and {who} is at {offset} on {_brokers(having)}"
    return text


def _brokers(replicas: Sequence[Replica]) -> str:
    ids = sorted({replica.broker for replica in replicas})
    return f"broker{'s' if len(ids) > 1 else ''} {_listed(ids)}"


def _place(row: SentRow | ReadRow, with_offset: bool = True) -> str:
    partition = f"{row['topic']}-{row['partition']}" if row["partition"] is not None else row["topic"]
    return f"{partition}@{row['offset']}" if with_offset and row["offset"] is not None else str(partition)


def _listed(items: Iterable[object]) -> str:
    words = [str(item) for item in dict.fromkeys(items)]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _plain(line: str) -> str:
    """A log line without its logger and without the path above a log dir."""
    return _short(re.sub(r"(?<=dir=)/[^\s,\]]*/", "", re.sub(r" ?\([\w.$]+\)$", "", line)))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class _Lenient(dict[str, object]):
    """The fields of an event; one that an older version's journal lacks is "?"."""

    def __missing__(self, key: str) -> str:
        return "?"


# --- stored ---------------------------------------------------------------------------------------------------------


def write_stories(run_dir: Path, stories: Iterable[Story]) -> Path:
    """Write explained.json atomically; returns its path."""
    content = {"schema": 1, "run_id": run_dir.name, "stories": [story.to_json() for story in stories]}
    return write_atomically(run_dir / EXPLAINED_FILE, json.dumps(content, indent=1) + "\n")


def stored_replicas(run_dir: Path) -> dict[tuple[str, int], list[Replica]]:
    """Return where the records of explained.json were when their segments were read; empty if they were not read."""
    try:
        stories = json.loads((run_dir / EXPLAINED_FILE).read_text())["stories"]
        return {
            (story["producer"], story["seq"]): msgspec.convert(story["replicas"], list[Replica])
            for story in stories
            if story["replicas"] is not None
        }
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError):
        return {}
