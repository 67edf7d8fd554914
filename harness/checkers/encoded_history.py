"""A history as the checkers need it: one numpy array per column, and small numbers for names.

Checkers compute on whole columns with numpy, inside a Spark task. Python row by row is slower, and so is Spark SQL: a
plan that finds all kinds has some hundred operators, and Spark took 4 to 8 s (the first time 15 s) to plan and compile
it for a history of 1,000 records. numpy judges a history of 100,000 records in 0.2 s.

The checkers share these short names of columns. All numbers that stand for names follow the order of the names.

==========  ===========================================================================================
``pid``     the producer, as an index into :attr:`EncodedHistory.producers`; not Kafka's producer id
``tp``      the partition, as an index into :attr:`EncodedHistory.places` and into the columns of ``log``
``off``     the offset
``txo``     the outcome of the record's transaction, e.g. :data:`COMMITTED`
``cid``     the consumer, as an index into :attr:`EncodedHistory.consumers`
``rc``      the isolation is read_committed
==========  ===========================================================================================

A drain "passed" an offset if its position is higher, or if it read the partition to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
    HIGHEST,
    NOWHERE,
    Drain,
    Log,
    Place,
    Reach,
    survey_drains,
    survey_partitions,
)
from harness.checkers.settings import Group, RunSettings
from harness.errors import HistoryError

ACKED, FAILED, INDETERMINATE = 0, 1, 2
OUTCOMES = ("acked", "failed", "indeterminate")

NO_TRANSACTION, COMMITTED, ABORTED, IN_DOUBT = NONE, 0, 1, 2
TRANSACTION_OUTCOMES = ("committed", "aborted", "indeterminate")

ISOLATIONS = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One entry per row of ``produced``.

    :ivar tp: where it was sent to
    :ivar off: where it was acked; NONE unless it was, at a known offset of a known partition
    :ivar transaction: an index into :attr:`EncodedHistory.transactions`
    :ivar key: of records of compacted topics only; equal for equal keys
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
        """Counts as written: acked outside a transaction or in a committed one."""
        written: Flags = (self.outcome == ACKED) & (self.txo <= COMMITTED)
        return written


@dataclass(frozen=True, kw_only=True)
class Reads:
    """One entry per row of ``consumed``.

    :ivar named: it has a producer and a seq
    :ivar drain: by a drain, not by a live consumer
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
    :ivar read_committed: it read so at least once; no more is expected of it than read_committed shows
    """

    name: str
    live: bool
    group: Group
    read_committed: bool


@dataclass(frozen=True, kw_only=True)
class Reached:
    """One entry per drain and partition that it went through: how far it got, as in :class:`Drain`."""

    cid: Ints
    tp: Ints
    past: Ints


@dataclass(frozen=True, kw_only=True)
class EncodedHistory:
    """A history, encoded.

    :ivar places: topic and partition, sorted
    :ivar consumers: sorted by name and role; with the drains that were handed nothing
    :ivar promised: by producer, the seq below which it promised a row for each record; 0 if it promised nothing
    """

    sent: Sent
    reads: Reads
    producers: Sequence[str]
    places: Sequence[Place]
    log: Log
    consumers: Sequence[Consumer]
    reached: Reached
    transactions: Sequence[str]
    promised: Ints

    @cached_property
    def unrecorded(self) -> Flags:
        """The reads of records that were sent and whose row is missing: nothing else is known of these records."""
        found: Flags = self.reads.named & (self.record == NONE) & (self.reads.seq >= 0)
        found[found] &= self.reads.seq[found] < self.promised[self.reads.pid[found]]
        return found

    @cached_property
    def record(self) -> Ints:
        """For every read, the index in ``sent`` of its record; NONE if there is no such row.

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


class ProducedRows(NamedTuple):
    """The columns of ``produced`` that need no names; `off` as in :class:`Sent`."""

    outcome: Ints
    txo: Ints
    partition: Ints
    off: Ints


class ConsumedRows(NamedTuple):
    """The columns of ``consumed`` that need no names."""

    drain: Flags
    rc: Flags
    partition: Ints
    off: Ints
    named: Flags


def check_produced(table: pa.Table) -> ProducedRows:
    """Read the columns of rows of ``produced`` that decide whether they are valid.

    :raises HistoryError: a null or a word that the column does not allow, or half a transaction
    """
    refuse_nulls(table, "produced", ("producer", "seq", "topic", "outcome", "crc32"))
    outcome = as_words(table, "produced", "outcome", OUTCOMES)
    txo = as_words(table, "produced", "transaction_outcome", TRANSACTION_OUTCOMES)
    if (is_valid(table["transaction"]) != (txo != NO_TRANSACTION)).any():
        raise HistoryError("history/produced has a transaction without transaction_outcome, or the other way round")
    partition = np.maximum(as_numbers(table["partition"]), NOWHERE)
    placed = (outcome == ACKED) & (partition != NOWHERE)
    off = np.where(placed, np.maximum(as_numbers(table["offset"]), NONE), NONE)
    return ProducedRows(outcome, txo, partition, off)


def check_consumed(table: pa.Table) -> ConsumedRows:
    """Read the columns of rows of ``consumed`` that decide whether they are valid.

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
        raise HistoryError("history/consumed has a record of ours without crc32")
    return ConsumedRows(drain, rc, partition, off, named)


def drained_rows(table: pa.Table | None) -> list[Reach]:
    """How far drains got by the table ``drained``, row by row; nothing without a table.

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
    :raises HistoryError: a row that no history has, as the three functions above
    """
    sent, reads, at_end = check_produced(produced), check_consumed(consumed), drained_rows(drained)
    producers, (sent_pid, read_pid) = as_codes(produced["producer"], consumed["producer"])
    transactions, (transaction,) = as_codes(produced["transaction"])
    names, (name,) = as_codes(consumed["consumer"])
    places, (sent_tp, read_tp) = _places(produced, sent.partition, consumed, reads.partition, at_end)

    handed = _handed(names, places, name[reads.drain], *(each[reads.drain] for each in (reads.rc, read_tp, reads.off)))
    reaches = [*handed, *at_end]
    drains, log = survey_drains(reaches), survey_partitions(places, reaches, settings)
    consumers = _consumers(names, name[~reads.drain], reads.rc[~reads.drain], drains, settings)
    number = {(consumer.name, consumer.live): cid for cid, consumer in enumerate(consumers)}
    by_role = np.array([[number.get((each, live), NONE) for live in (False, True)] for each in names], np.int32)

    key = np.full(len(produced), NONE)
    if log.compacted.any():
        key = np.where(log.compacted[sent_tp], as_codes(produced["key"])[1][0], NONE)
    return EncodedHistory(
        sent=Sent(
            pid=sent_pid,
            seq=as_numbers(produced["seq"]),
            tp=sent_tp,
            off=sent.off,
            outcome=sent.outcome,
            txo=sent.txo,
            crc=as_numbers(produced["crc32"]),
            transaction=transaction,
            key=key,
        ),
        reads=Reads(
            pid=read_pid,
            seq=as_numbers(consumed["seq"]),
            named=reads.named,
            tp=read_tp,
            off=reads.off,
            crc=as_numbers(consumed["crc32"]),
            cid=by_role.ravel()[name * 2 + ~reads.drain],
            session=as_numbers(consumed["session"], np.int32),
            position=as_numbers(consumed["position"]),
            drain=reads.drain,
            rc=reads.rc,
        ),
        producers=producers,
        places=places,
        log=log,
        consumers=consumers,
        reached=_reached(drains, number, places),
        transactions=transactions,
        promised=np.array([settings.promised.get(each, 0) for each in producers], np.int64),
    )


def _places(
    produced: pa.Table, sent_partition: Ints, consumed: pa.Table, read_partition: Ints, at_end: Sequence[Reach]
) -> tuple[list[Place], list[Ints]]:
    """All places, with each topic's unknown partition; and for each row of both tables the index of its place."""
    topic_of_drained = pa.chunked_array([pa.array([each.place[0] for each in at_end], pa.string())])
    partition_of_drained = np.array([each.place[1] for each in at_end], np.int64)
    topics, codes = as_codes(produced["topic"], consumed["topic"], topic_of_drained)
    # Topic and partition in one number; the unknown partition, -1, comes first.
    joint = [
        topic.astype(np.int64) << 32 | (partition + 1)
        for topic, partition in zip(codes, (sent_partition, read_partition, partition_of_drained), strict=True)
    ]
    found = np.unique(np.concatenate([np.unique(each) for each in (*joint, np.arange(len(topics)) << 32)]))
    places = [(topics[each >> 32], (each & 0xFFFFFFFF) - 1) for each in found.tolist()]
    return places, [np.searchsorted(found, each).astype(np.int32) for each in joint[:2]]


def _handed(
    names: Sequence[str], places: Sequence[Place], name: Ints, rc: Flags, tp: Ints, off: Ints
) -> Iterator[Reach]:
    """How far drains got by the records that they were handed: one entry per drain, isolation and partition."""
    reader = name * 2 + rc
    rows, number = distinct(joint_key(reader, tp))
    highest = np.zeros(len(rows), np.int64)
    np.maximum.at(highest, number, off)
    for who, at, offset in zip(reader[rows].tolist(), tp[rows].tolist(), highest.tolist(), strict=True):
        past = min(offset + 1, HIGHEST)
        yield Reach(consumer=names[who // 2], place=places[at], past=past, read_committed=bool(who % 2))


def _consumers(
    names: Sequence[str], name: Ints, rc: Flags, drains: Mapping[str, Drain], settings: RunSettings
) -> list[Consumer]:
    """All consumers; `name` and `rc` are of the reads of live ones."""
    found = {(each, False): drain.read_committed for each, drain in drains.items()}
    for reader in np.unique(name * 2 + rc).tolist():  # read_committed comes second, and counts
        found[names[reader // 2], True] = bool(reader % 2)
    return [
        Consumer(name=each, live=live, group=settings.group_of(each), read_committed=read_committed)
        for (each, live), read_committed in sorted(found.items())
    ]


def _reached(drains: Mapping[str, Drain], number: Mapping[tuple[str, bool], int], places: Sequence[Place]) -> Reached:
    tp_of = {place: tp for tp, place in enumerate(places)}
    rows = [
        (number[name, False], tp_of[place], past)
        for name, drain in drains.items()
        for place, past in drain.past.items()
    ]
    cid, tp, past = np.array(rows, np.int64).reshape(-1, 3).T
    return Reached(cid=cid, tp=tp, past=past)
