"""A history's rows as the checkers want them: one numpy array a column, names as small numbers.

The checkers compute on whole columns with numpy inside a Spark task, not row by row in Python and not as Spark SQL:
a plan that finds all kinds has some hundred operators, and Spark needed 4 to 8 s (15 s the first time) to plan and
compile it, for a history of 1,000 records; numpy judges one of 100,000 in a fifth of a second.

Ids follow the order of the names, so sorting by id sorts by name. "Passed" means that some drain was past that
offset, or at the end of that partition, so that a record which was there would have been seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.checkers.drain_extent import (
    NOWHERE,
    Consumer,
    DrainedTo,
    Handed,
    PartitionExtent,
    survey_consumers,
    survey_drains,
    survey_partitions,
)
from harness.checkers.settings import RunSettings
from harness.errors import HistoryError

# Columns of few values are stored in less than 64 bits; the checkers widen what they compute with.
Ints = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

ACKED, FAILED, INDETERMINATE = 0, 1, 2
OUTCOMES = ("acked", "failed", "indeterminate")

NO_TRANSACTION, COMMITTED, ABORTED, IN_DOUBT = -1, 0, 1, 2
TRANSACTION_OUTCOMES = ("committed", "aborted", "indeterminate")

ROLES = ("live", "drain")
ISOLATIONS = ("read_uncommitted", "read_committed")

NONE = -1
"""Stands for null in every column of numbers, where no value below zero has a meaning."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One entry per record that was sent."""

    pid: Ints
    seq: Ints
    tp: Ints
    off: Ints
    """Where it was acked; NONE unless it was, at a known place."""
    outcome: Ints
    txo: Ints
    crc: Ints
    transaction: Ints
    key: Ints
    """Of records of compacted topics only."""

    def __len__(self) -> int:
        return len(self.pid)

    @cached_property
    def written(self) -> Flags:
        """Counts as written: acked outside a transaction or in a committed one."""
        written: Flags = (self.outcome == ACKED) & (self.txo <= COMMITTED)
        return written


@dataclass(frozen=True, kw_only=True)
class Reads:
    """One entry per record that a consumer was handed."""

    pid: Ints
    seq: Ints
    named: Flags
    """It has a producer and a seq."""
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
class Log:
    """The facts of :class:`PartitionExtent` as columns, indexed by tp."""

    tid: Ints
    known: Flags
    past: Ints
    to_end: Flags
    rc_past: Ints
    rc_to_end: Flags
    below: Ints
    compacted: Flags


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far each drain got in each partition that it went through, as
    :class:`harness.checkers.drain_extent.Drain`.
    """

    cid: Ints
    tp: Ints
    past: Ints


@dataclass(frozen=True, kw_only=True)
class EncodedHistory:
    """A history, encoded."""

    sent: Sent
    reads: Reads
    producers: Sequence[str]
    partitions: Sequence[PartitionExtent]
    consumers: Sequence[Consumer]
    """With the drains that were handed nothing."""
    reached: Reached
    transactions: Sequence[str]
    promised: Ints
    """By producer, below which seq each of its records has a row, or had; 0 where nobody promised."""

    @cached_property
    def unrecorded(self) -> Flags:
        """The reads of records whose row is missing: they were sent, and nobody knows more."""
        found: Flags = self.reads.named & (self.record == NONE) & (self.reads.seq >= 0)
        found[found] &= self.reads.seq[found] < self.promised[self.reads.pid[found]]
        return found

    @cached_property
    def log(self) -> Log:
        """The partitions' facts as columns."""

        def column(name: str, kind: Any) -> Any:
            return np.array([getattr(partition, name) for partition in self.partitions], kind)

        return Log(
            tid=column("topic_id", np.int64),
            known=np.array([partition.partition != NOWHERE for partition in self.partitions], np.bool_),
            past=column("past", np.int64),
            to_end=column("to_end", np.bool_),
            rc_past=column("rc_past", np.int64),
            rc_to_end=column("rc_to_end", np.bool_),
            below=column("below", np.int64),
            compacted=column("compacted", np.bool_),
        )

    @cached_property
    def record(self) -> Ints:
        """For every read, the index in ``sent`` of the record that was read; NONE where nobody sent it.

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


def encode(produced: pa.Table, consumed: pa.Table, drained: pa.Table | None, settings: RunSettings) -> EncodedHistory:
    """The three tables, columns as the contract has them, as :class:`EncodedHistory`.

    :raises HistoryError: a row that no history has: a null or a word that the column doesn't allow, a partition or
        offset below zero where one was read
    """
    refuse_nulls(produced, "produced", ("producer", "seq", "topic", "outcome", "crc32"))
    refuse_nulls(
        consumed, "consumed", ("consumer", "role", "position", "session", "topic", "partition", "offset", "isolation")
    )
    ends = [] if drained is None else drained_rows(drained)

    outcome = as_words(produced, "produced", "outcome", OUTCOMES)
    txo = as_words(produced, "produced", "transaction_outcome", TRANSACTION_OUTCOMES)
    if not pc.all(
        pc.equal(pc.is_null(produced["transaction"]), pc.is_null(produced["transaction_outcome"]))
    ).as_py() and len(produced):
        raise HistoryError("history/produced has a transaction without transaction_outcome, or the other way round")
    role = as_words(consumed, "consumed", "role", ROLES)
    rc = as_words(consumed, "consumed", "isolation", ISOLATIONS) == 1

    producers, (sent_pid, read_pid) = as_codes(produced["producer"], consumed["producer"])
    drained_topics = pa.chunked_array([pa.array([row.topic for row in ends], pa.string())])
    topics, topic_codes = as_codes(produced["topic"], consumed["topic"], drained_topics)
    numbers = [as_numbers(table["partition"]) for table in (produced, consumed)]
    numbers[0] = np.maximum(numbers[0], NOWHERE)
    numbers.append(np.array([row.partition for row in ends], np.int64))
    off = as_numbers(consumed["offset"])
    if len(off) and (off.min() < 0 or numbers[1].min() < 0):
        raise HistoryError("history/consumed has a partition or an offset below zero")

    joint = [codes.astype(np.int64) << 32 | (number + 1) for codes, number in zip(topic_codes, numbers, strict=True)]
    found = np.unique(np.concatenate([np.unique(codes) for codes in (*joint, np.arange(len(topics)) << 32)]))
    sent_tp, read_tp, _ = (np.searchsorted(found, codes).astype(np.int32) for codes in joint)
    del joint
    places = [(topics[int(code) >> 32], (int(code) & 0xFFFFFFFF) - 1) for code in found]

    drain = role == 1
    names, (name_codes,) = as_codes(consumed["consumer"])
    handed = [
        Handed(
            consumer=names[who], topic=places[tp][0], partition=places[tp][1], highest=highest, read_committed=committed
        )
        for who, committed, tp, highest in _highest(name_codes[drain], rc[drain], read_tp[drain], off[drain])
    ]
    partitions = survey_partitions(places, handed, ends, settings)
    drains = survey_drains(handed, ends)

    roles = name_codes * 2 + (role == 0)  # drain before live, as False before True
    seen = [(names[int(code) // 2], bool(code % 2)) for code in np.unique(roles)]
    committed_too = {(names[int(code) // 2], bool(code % 2)) for code in np.unique(roles[rc])}
    committed_too |= {(name, False) for name, each in drains.items() if each.read_committed}
    consumers = survey_consumers([*seen, *((name, False) for name in drains)], committed_too, settings.groups)
    number = {(consumer.name, consumer.live): cid for cid, consumer in enumerate(consumers)}
    cid_of = np.full(2 * len(names), NONE, np.int32)
    for name, live in seen:
        cid_of[names.index(name) * 2 + live] = number[name, live]
    tp_of = {place: tp for tp, place in enumerate(places)}
    reached = [
        (number[name, False], tp_of[where], past) for name, each in drains.items() for where, past in each.past.items()
    ]

    known = numbers[0] != NOWHERE
    acked_off = np.where((outcome == ACKED) & known, np.maximum(as_numbers(produced["offset"]), NONE), NONE)
    transactions, (transaction,) = as_codes(produced["transaction"])
    compacted = np.array([partition.compacted for partition in partitions], np.bool_)
    key = np.full(len(produced), NONE)
    if compacted.any():
        key = np.where(compacted[sent_tp], as_codes(produced["key"])[1][0], NONE)
    named = (read_pid != NONE) & consumed["seq"].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    crc_null = consumed["crc32"].combine_chunks().is_null().to_numpy(zero_copy_only=False)
    if (named & crc_null).any():
        raise HistoryError("history/consumed has a record of ours without crc32")
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
            off=off,
            crc=as_numbers(consumed["crc32"]),
            cid=cid_of[roles],
            session=as_numbers(consumed["session"]).astype(np.int32),
            position=as_numbers(consumed["position"]),
            drain=drain,
            rc=rc,
        ),
        producers=producers,
        partitions=partitions,
        consumers=consumers,
        reached=Reached(**dict(zip(("cid", "tp", "past"), np.array(reached, np.int64).reshape(-1, 3).T, strict=True))),
        transactions=transactions,
        promised=np.array([settings.promised.get(name, 0) for name in producers], np.int64),
    )


def drained_rows(table: pa.Table) -> list[DrainedTo]:
    """The table ``drained``, row by row.

    :raises HistoryError: a null, or an isolation that there isn't
    """
    refuse_nulls(table, "drained", tuple(table.column_names))
    for column in ("partition", "end_offset", "position"):
        # Kafka's clients say "not known" by -1 and -1001.
        if pc.any(pc.less(table[column], 0)).as_py():
            raise HistoryError(f"history/drained: {column} is below zero, e.g. {pc.min(table[column]).as_py()}")
    committed = as_words(table, "drained", "isolation", ISOLATIONS) == 1
    return [
        DrainedTo(**row, read_committed=bool(read_committed))
        for row, read_committed in zip(table.drop_columns("isolation").to_pylist(), committed, strict=True)
    ]


def _highest(who: Ints, committed: Flags, tp: Ints, off: Ints) -> Iterator[tuple[int, bool, int, int]]:
    """By reader, isolation and partition, the highest offset."""
    kinds, number = np.unique(who * 2 + committed, return_inverse=True)
    highest = np.full((len(kinds), int(tp.max(initial=-1)) + 1), NONE)
    np.maximum.at(highest, (number, tp), off)
    for at, tp_at in zip(*np.nonzero(highest > NONE), strict=True):
        yield int(kinds[at]) // 2, bool(kinds[at] % 2), int(tp_at), int(highest[at, tp_at])


def joint_keys(*columns: Sequence[Ints]) -> Iterator[Ints]:
    """One number for each row of several tables, equal where all columns are, and ordered as the columns are.

    `columns` has, for each column, its values in every table. Values of any size: where they don't fit into one
    number together, their ranks do.
    """
    keys: list[Ints] | None = None
    room = 1
    for narrow in columns:
        tables = [np.asarray(values, np.int64) for values in narrow]
        low = min((int(values.min()) for values in tables if len(values)), default=0)
        span = max((int(values.max()) for values in tables if len(values)), default=0) - low + 1
        if keys is None:
            keys, room = [values - low if span < 1 << 62 else values for values in tables], span
            if span >= 1 << 62:
                keys, room = _ranks(keys)
            continue
        shifted: Sequence[Ints] = tables
        if span >= 1 << 62 or room * span >= 1 << 62:
            keys, room = _ranks(keys)
            shifted, span = _ranks(tables)
            low = 0
        keys = [key * span + (values - low) for key, values in zip(keys, shifted, strict=True)]
        room *= span
    return iter(keys or [])


def joint_key(*columns: Ints) -> Ints:
    """:func:`joint_keys` of one table."""
    return next(joint_keys(*((column,) for column in columns)))


def _ranks(tables: Sequence[Ints]) -> tuple[list[Ints], int]:
    values, ranks = np.unique(np.concatenate(tables), return_inverse=True)
    ends = np.cumsum([len(table) for table in tables])[:-1]
    return np.split(ranks.astype(np.int64), ends), max(1, len(values))


def as_numbers(column: pa.ChunkedArray, kind: Any = np.int64) -> Ints:
    """A column of numbers, NONE for null."""
    filled = pc.fill_null(column, pa.scalar(NONE, column.type)) if column.null_count else column
    return np.asarray(filled.to_numpy(), kind)


def as_codes(*columns: pa.ChunkedArray) -> tuple[list[str], list[Ints]]:
    """The names in all columns, sorted, and for each column its names' places among them; NONE for null."""
    encoded = [
        (column if pa.types.is_dictionary(column.type) else column.dictionary_encode()).unify_dictionaries()
        for column in columns
    ]
    words = [column.chunk(0).dictionary.to_pylist() if column.num_chunks else [] for column in encoded]
    names = sorted({name for of_column in words for name in of_column})
    place = {name: number for number, name in enumerate(names)}
    codes = []
    for column, of_column in zip(encoded, words, strict=True):
        places = np.array([*(place[name] for name in of_column), NONE], np.int32)
        indices = [chunk.indices for chunk in column.chunks]
        codes.append(places[as_numbers(pa.chunked_array(indices, pa.int32()), np.int32)])
    return names, codes


def as_words(table: pa.Table, name: str, column: str, words: Sequence[str]) -> Ints:
    """A column of a table `name`, as places in `words`; NONE for null.

    :raises HistoryError: another word
    """
    names, (codes,) = as_codes(table[column])
    strange = [found for found in names if found not in words]
    if strange:
        raise HistoryError(f"history/{name}: {column} is {strange[0]!r}, not one of {', '.join(words)}")
    return np.array([*(words.index(found) for found in names), NONE], np.int8)[codes]


def refuse_nulls(table: pa.Table, name: str, columns: Sequence[str]) -> None:
    """:raises HistoryError: one of these columns of a table `name` has a null"""
    for column in columns:
        if table[column].null_count:
            raise HistoryError(f"history/{name}: {column} is null in {table[column].null_count} rows; it never may be")
