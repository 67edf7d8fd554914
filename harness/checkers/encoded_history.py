"""A history as the checkers need it: one numpy array per column, and small numbers for names.

Checkers compute on whole columns with numpy. Row-by-row Python is slower, and so is Spark SQL. A plan that finds all
kinds of anomaly has some hundred operators. For a history of 1,000 records, Spark took 4 to 8 s (the first time 15 s)
to plan and compile it. numpy judges 100,000 records in 0.2 s.

Columns have short names: ``pid`` is the producer (not Kafka's producer id), ``tp`` the partition and ``cid`` the
consumer, each as an index into the sorted names of :class:`EncodedHistory`. ``off`` is the offset, ``txo`` the
outcome of the record's transaction; ``rc`` stands for read_committed. A drain *passed* an offset if its position is
higher, or if it read the partition to the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.checkers.columns import (
    NONE,
    Flags,
    Ints,
    as_codes,
    as_numbers,
    as_words,
    distinct,
    is_valid,
    joint_key,
    joint_keys,
    refuse_nulls,
)
from harness.checkers.drain_extent import (
    NOWHERE,
    Drain,
    Log,
    Place,
    Reach,
    Stream,
    handed_to_drains,
    survey_drains,
    survey_partitions,
)
from harness.checkers.settings import Group, RunSettings
from harness.errors import HistoryError
from harness.history.tables import SCHEMAS, TableName

ACKED, FAILED, INDETERMINATE = 0, 1, 2
OUTCOMES = ("acked", "failed", "indeterminate")

NO_TRANSACTION, COMMITTED, ABORTED, IN_DOUBT = NONE, 0, 1, 2
TRANSACTION_OUTCOMES = ("committed", "aborted", "indeterminate")

ISOLATIONS = ("read_uncommitted", "read_committed")

JUDGED: Mapping[TableName, Sequence[str]] = {
    name: [column for column in schema.names if column not in ("error", "sent_at", "ended_at", "read_at")]
    for name, schema in SCHEMAS.items()
}
"""The columns on which a verdict depends; the others are for people."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One entry per row of ``produced``.

    :ivar tp: where it was sent to
    :ivar off: the offset at which it was acked; NONE if it was not, or if offset or partition are unknown
    :ivar transaction: an index into :attr:`EncodedHistory.transactions`
    :ivar key: a number, equal for equal keys; only for records of compacted topics
    """

    pid: Ints
    seq: Ints
    tp: Ints
    off: Ints
    outcome: Ints
    txo: Ints
    crc: Ints
    transaction: Ints
    key: Ints

    def __len__(self) -> int:
        return len(self.pid)

    @cached_property
    def written(self) -> Flags:
        """Which records count as written: acked outside a transaction or in a committed one."""
        written: Flags = (self.outcome == ACKED) & (self.txo <= COMMITTED)
        return written


@dataclass(frozen=True, kw_only=True)
class Reads:
    """One entry per row of ``consumed``.

    :ivar named: the record has a producer and a seq
    :ivar drain: a drain read it, not a live consumer
    """

    pid: Ints
    seq: Ints
    named: Flags
    tp: Ints
    off: Ints
    crc: Ints
    cid: Ints
    session: Ints
    position: Ints
    drain: Flags
    rc: Flags

    def __len__(self) -> int:
        return len(self.pid)


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """One consumer in one role: a name that appears in both roles is two consumers.

    :ivar group: as :meth:`harness.checkers.settings.RunSettings.group_of`
    :ivar read_committed: it read with read_committed at least once; only what that shows is expected of it
    """

    name: str
    live: bool
    group: Group
    read_committed: bool


@dataclass(frozen=True, kw_only=True)
class EncodedHistory:
    """A history as numpy columns, with the names that their numbers stand for.

    :ivar places: topic and partition, sorted
    :ivar consumers: sorted by name and role; including drains that were handed nothing
    :ivar reached: how far each drain got, by its number and by tp, as :class:`harness.checkers.drain_extent.Drain`
    :ivar promised: by producer, the seq below which it promised a row for each record; 0 if it promised nothing
    """

    sent: Sent
    reads: Reads
    producers: Sequence[str]
    places: Sequence[Place]
    log: Log
    consumers: Sequence[Consumer]
    reached: Mapping[int, Mapping[int, int]]
    transactions: Sequence[str]
    promised: Ints

    @cached_property
    def unrecorded(self) -> Flags:
        """The reads of records whose promised row in ``produced`` is missing; nothing else is known of these."""
        found: Flags = self.reads.named & (self.record == NONE) & (self.reads.seq >= 0)
        found[found] &= self.reads.seq[found] < self.promised[self.reads.pid[found]]
        return found

    @cached_property
    def record(self) -> Ints:
        """For every read, the index of its record in ``sent``; NONE if the record has no row.

        :raises HistoryError: a record has two rows in ``produced``
        """
        sent_key, read_key = joint_keys((self.sent.pid, self.reads.pid), (self.sent.seq, self.reads.seq))
        order = np.argsort(sent_key, kind="stable")
        ordered = sent_key[order]
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            row = order[twice[0]]
            name = f"{self.producers[self.sent.pid[row]]} #{self.sent.seq[row]}"
            raise HistoryError(f"history/produced has two rows for one record {len(twice)} times, e.g. for {name}")
        if not len(order):
            return np.full(len(self.reads), NONE)
        at = np.minimum(np.searchsorted(ordered, read_key), len(order) - 1)
        return np.where(self.reads.named & (ordered[at] == read_key), order[at], NONE)


def check_produced(table: pa.Table) -> tuple[Ints, Ints, Ints, Ints]:
    """Read the columns of ``produced`` that decide whether its rows are valid.

    :returns: outcome, txo, partition and off, as in :class:`Sent`
    :raises HistoryError: a null or a word that the column does not allow, or half a transaction
    """
    refuse_nulls(table, "produced", ("producer", "seq", "topic", "outcome", "crc32"))
    outcome = as_words(table, "produced", "outcome", OUTCOMES)
    txo = as_words(table, "produced", "transaction_outcome", TRANSACTION_OUTCOMES)
    if (is_valid(table["transaction"]) != (txo != NO_TRANSACTION)).any():
        raise HistoryError(
            "history/produced has a transaction without transaction_outcome, or an outcome without its transaction"
        )
    partition = np.maximum(as_numbers(table["partition"]), NOWHERE)
    placed = (outcome == ACKED) & (partition != NOWHERE)
    return outcome, txo, partition, np.where(placed, np.maximum(as_numbers(table["offset"]), NONE), NONE)


def check_consumed(table: pa.Table) -> tuple[Flags, Flags, Flags, Ints, Ints]:
    """Read the columns of ``consumed`` that decide whether its rows are valid.

    :returns: drain, rc, named, partition and off, as in :class:`Reads`
    :raises HistoryError: a null or a word that the column does not allow, a partition or an offset below zero, or a
        named record without CRC-32
    """
    refuse_nulls(
        table, "consumed", ("consumer", "role", "position", "session", "topic", "partition", "offset", "isolation")
    )
    drain = as_words(table, "consumed", "role", ("live", "drain")) == 1
    rc = as_words(table, "consumed", "isolation", ISOLATIONS) == 1
    partition, off = as_numbers(table["partition"]), as_numbers(table["offset"])
    if len(table) and min(partition.min(), off.min()) < 0:
        raise HistoryError("history/consumed has a partition or an offset below zero")
    named = is_valid(table["producer"]) & is_valid(table["seq"])
    if table["crc32"].null_count and (named & ~is_valid(table["crc32"])).any():
        raise HistoryError("history/consumed has a record with producer and seq, but without crc32")
    return drain, rc, named, partition, off


def places_in(table: pa.Table, partition: Ints) -> tuple[list[Place], Ints]:
    """The distinct places of the rows, and the index of each row's place."""
    topics, (topic,) = as_codes(table["topic"])
    rows, number = distinct(joint_key(topic, partition))
    return [(topics[topic[row]], int(partition[row])) for row in rows.tolist()], number


def streams_in(consumed: pa.Table, drain: Flags, rc: Flags) -> tuple[list[Stream], Ints]:
    """The distinct streams of the rows, and the index of each row's stream."""
    names, (name,) = as_codes(consumed["consumer"])
    rows, number = distinct(name.astype(np.int64) * 4 + drain * 2 + rc)
    return [(names[name[row]], not drain[row], bool(rc[row])) for row in rows.tolist()], number


def drained_rows(table: pa.Table | None) -> list[Reach]:
    """How far drains got, from the rows of ``drained``; empty if there is no table.

    :raises HistoryError: a null, a number below zero, or an unknown isolation
    """
    if table is None:
        return []
    refuse_nulls(table, "drained", tuple(table.column_names))
    for column in ("partition", "end_offset", "position"):
        # Kafka's clients return -1 and -1001 for an unknown offset.
        if pc.any(pc.less(table[column], 0)).as_py():
            raise HistoryError(f"history/drained: {column} is below zero, e.g. {pc.min(table[column]).as_py()}")
    committed = as_words(table, "drained", "isolation", ISOLATIONS) == 1
    return [
        Reach(
            consumer=row["consumer"],
            place=(row["topic"], row["partition"]),
            past=row["position"],
            read_committed=bool(read_committed),
            to_end=row["position"] >= row["end_offset"],
        )
        for row, read_committed in zip(table.to_pylist(), committed, strict=True)
    ]


def encode(produced: pa.Table, consumed: pa.Table, drained: pa.Table | None, settings: RunSettings) -> EncodedHistory:
    """Encode the three tables.

    :param drained: None if the history has no such table
    :raises HistoryError: an invalid row, as the functions above
    """
    outcome, txo, sent_partition, acked_off = check_produced(produced)
    drain, rc, named, read_partition, read_off = check_consumed(consumed)
    drained_to = drained_rows(drained)
    producers, (sent_pid, read_pid) = as_codes(produced["producer"], consumed["producer"])
    transactions, (transaction,) = as_codes(produced["transaction"])

    sent_places, sent_place = places_in(produced, sent_partition)
    read_places, read_place = places_in(consumed, read_partition)
    known = {*sent_places, *read_places, *(each.place for each in drained_to)}
    places = sorted(known | {(topic, NOWHERE) for topic, _ in known})
    tp_of = {place: tp for tp, place in enumerate(places)}
    sent_tp = np.array([tp_of[place] for place in sent_places], np.int32)[sent_place]
    read_tp = np.array([tp_of[place] for place in read_places], np.int32)[read_place]

    streams, stream = streams_in(consumed, drain, rc)
    reaches = [*handed_to_drains(streams, places, stream, read_tp, read_off), *drained_to]
    drains, log = survey_drains(reaches), survey_partitions(tp_of, reaches, settings)
    consumers = _consumers(streams, drains, settings)
    cid_of = {(consumer.name, consumer.live): cid for cid, consumer in enumerate(consumers)}

    key = np.full(len(produced), NONE)
    if log.compacted.any():
        key = np.where(log.compacted[sent_tp], as_codes(produced["key"])[1][0], NONE)
    return EncodedHistory(
        sent=Sent(
            pid=sent_pid,
            seq=as_numbers(produced["seq"]),
            tp=sent_tp,
            off=acked_off,
            outcome=outcome,
            txo=txo,
            crc=as_numbers(produced["crc32"]),
            transaction=transaction,
            key=key,
        ),
        reads=Reads(
            pid=read_pid,
            seq=as_numbers(consumed["seq"]),
            named=named,
            tp=read_tp,
            off=read_off,
            crc=as_numbers(consumed["crc32"]),
            cid=np.array([cid_of[name, live] for name, live, _ in streams], np.int32)[stream],
            session=as_numbers(consumed["session"], np.int32),
            position=as_numbers(consumed["position"]),
            drain=drain,
            rc=rc,
        ),
        producers=producers,
        places=places,
        log=log,
        consumers=consumers,
        reached={
            cid_of[name, False]: {tp_of[place]: past for place, past in of_drain.past.items()}
            for name, of_drain in drains.items()
        },
        transactions=transactions,
        promised=np.array([settings.promised.get(name, 0) for name in producers], np.int64),
    )


def _consumers(streams: Sequence[Stream], drains: Mapping[str, Drain], settings: RunSettings) -> list[Consumer]:
    roles = {(name, live) for name, live, _ in streams} | {(name, False) for name in drains}
    committed = {(name, live) for name, live, rc in streams if rc}
    committed |= {(name, False) for name, drain in drains.items() if drain.read_committed}
    return [
        Consumer(name=name, live=live, group=settings.group_of(name), read_committed=(name, live) in committed)
        for name, live in sorted(roles)
    ]
