"""What one task makes of its part of a large history: lines (:mod:`harness.checkers.large_history.fingerprints`), and
not the rows.

Rows are read a batch at a time, in whatever order they are stored. Where they are stored about as they happened, what
is kept grows with the windows and not with the rows; where they are not, it is refused when there is too much of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.checkers.drain_extent import NOWHERE
from harness.checkers.encoded_history import (
    ABORTED,
    ACKED,
    IN_DOUBT,
    ISOLATIONS,
    NONE,
    OUTCOMES,
    ROLES,
    TRANSACTION_OUTCOMES,
    Flags,
    Ints,
    as_codes,
    as_numbers,
    as_words,
    joint_key,
    refuse_nulls,
)
from harness.checkers.large_history.fingerprints import (
    NO_LINES,
    Columns,
    Fingerprints,
    alike,
    distinct,
    joined,
    length,
    lines_of,
    order_of,
)
from harness.checkers.large_history.seen_seqs import Seqs
from harness.errors import HistoryError, Inconclusive
from harness.history.tables import TableName

COLUMNS: Mapping[TableName, tuple[str, ...]] = {
    "produced": (
        *("producer", "seq", "topic", "partition", "offset", "outcome", "crc32"),
        *("transaction", "transaction_outcome"),
    ),
    "consumed": (
        *("consumer", "role", "position", "session", "topic", "partition", "offset"),
        *("producer", "seq", "crc32", "isolation"),
    ),
}
"""What is read of each table."""

MOST_LINES = 1 << 20
"""So many lines are kept of each table; where there would be more, windows are made wider."""
MOST_BYTES = 1 << 28
"""So much is kept of lines, of runs and of transactions; it is enough for 10^7 transactions."""

_WIDEST = 1 << 40

NO_RUNS: Mapping[str, Ints] = dict.fromkeys(
    ("who", "tp", "session", "first_position", "first_off", "last_position", "last_off"), np.zeros(0, np.int64)
)
NO_TRANSACTIONS: Mapping[str, Ints] = {"name": np.zeros(0, np.uint64), "outcomes": np.zeros(0, np.int64)}


class Names:
    """Numbers for names, in the order in which they come."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._number: dict[Any, int] = {}

    def numbers(self, names: Sequence[Any]) -> Ints:
        """The number of each name, a new one where it is new."""
        for name in names:
            if self._number.setdefault(name, len(self.all)) == len(self.all):
                self.all.append(name)
        return np.array([self._number[name] for name in names], np.int64)


class Pile:
    """Columns that `merge` makes fewer, whenever they have doubled."""

    def __init__(self, empty: Mapping[str, Ints], merge: Callable[[Columns], Columns]) -> None:
        self._merge = merge
        self._tables = [dict(empty)]
        self._waiting = self._merged = 0

    def add(self, table: Columns) -> None:
        """:raises Inconclusive: it is too much, even when merged"""
        self._tables.append(table)
        self._waiting += length(table)
        if self._waiting > self._merged + (1 << 18):
            self.merged()

    def merged(self) -> Columns:
        """All as one.

        :raises Inconclusive: as :meth:`add`
        """
        [self._tables[0]] = [self._merge(joined(self._tables))]
        del self._tables[1:]
        self._waiting, self._merged = 0, length(self._tables[0])
        if sum(column.nbytes for column in self._tables[0].values()) > MOST_BYTES:
            raise Inconclusive("its rows lie too far from the order in which they happened to be summed up in memory")
        return self._tables[0]


class Summary:
    """What a task found in its rows; the ids in columns are places in its own lists of names."""

    def __init__(self, window: int) -> None:
        self.window = window
        """Offsets in a window: at first as given, then as many times two as it takes to have few enough lines.

        Narrow ones are better: what is around an anomaly has to be read again, and judged.
        """
        self.producers, self.streams, self.places = Names(), Names(), Names()
        """Streams of reads are named (consumer, live, read_committed), places (topic, partition)."""
        self.acks, self.reads = Pile(NO_LINES, self._lines_of), Pile(NO_LINES, self._lines_of)
        self.runs = Pile(NO_RUNS, dict)
        """Reads of one session that follow each other, as far as the batch goes, upwards without a step back."""
        self.transactions = Pile(NO_TRANSACTIONS, transactions_merged)
        """Hashes of names, each with all outcomes that it had, as bits."""
        self.seqs = Seqs()
        self.outcomes, self.read = np.zeros(len(OUTCOMES), np.int64), 0
        self.placeless: dict[int, int] = {}
        """By chunk, how many records nobody acked at a known place."""

    def settle(self) -> None:
        """What was counted in so far is merged.

        :raises Inconclusive: as :meth:`Pile.add`
        """
        for pile in (self.acks, self.reads, self.runs, self.transactions):
            pile.merged()

    def _lines_of(self, table: Columns) -> Columns:
        lines = lines_of(table, self.window)
        while length(lines) > MOST_LINES and self.window < _WIDEST:
            self.window *= 2
            lines = lines_of(lines, self.window)
        return lines


def add_produced(summary: Summary, table: pa.Table, prints: Fingerprints, chunk: int) -> None:
    """Count a batch of ``produced`` in.

    :raises HistoryError: as :func:`harness.checkers.encoded_history.encode`
    :raises Inconclusive: as :meth:`Pile.add`
    """
    if not len(table):
        return
    refuse_nulls(table, "produced", ("producer", "seq", "topic", "outcome", "crc32"))
    outcome = as_words(table, "produced", "outcome", OUTCOMES)
    txo = as_words(table, "produced", "transaction_outcome", TRANSACTION_OUTCOMES)
    summary.outcomes += np.bincount(outcome, minlength=len(OUTCOMES))
    names, (pid,) = as_codes(table["producer"])
    seq, crc = as_numbers(table["seq"]), as_numbers(table["crc32"])
    summary.seqs.add(names, pid, seq)
    _add_transactions(summary, table, txo)

    partition = np.maximum(as_numbers(table["partition"]), NOWHERE)
    tp = places_of(summary.places, table, partition)
    known = (outcome == ACKED) & (partition != NOWHERE)
    off = np.where(known, np.maximum(as_numbers(table["offset"]), NONE), NONE)
    placed = off != NONE
    if not placed.all():
        summary.placeless[chunk] = summary.placeless.get(chunk, 0) + int((~placed).sum())
        pid, seq, tp, off, crc, txo = pid[placed], seq[placed], tp[placed], off[placed], crc[placed], txo[placed]
    if not len(off):
        return
    who = summary.producers.numbers(names)[pid]
    lines = _lines(who, tp, off, seq, prints.of_rows(names, pid, seq, off, crc), txo, chunk, summary.window)
    summary.acks.add(lines)


def add_consumed(summary: Summary, table: pa.Table, prints: Fingerprints, chunk: int) -> None:
    """Count a batch of ``consumed`` in.

    :raises HistoryError: as :func:`harness.checkers.encoded_history.encode`
    :raises Inconclusive: as :meth:`Pile.add`
    """
    if not len(table):
        return
    refuse_nulls(
        table, "consumed", ("consumer", "role", "position", "session", "topic", "partition", "offset", "isolation")
    )
    live = as_words(table, "consumed", "role", ROLES) == 0
    rc = as_words(table, "consumed", "isolation", ISOLATIONS)
    off, partition = as_numbers(table["offset"]), as_numbers(table["partition"])
    if off.min() < 0 or partition.min() < 0:
        raise HistoryError("history/consumed has a partition or an offset below zero")
    summary.read += len(table)
    names, (pid,) = as_codes(table["producer"])
    seq, crc = as_numbers(table["seq"]), as_numbers(table["crc32"])
    named = (pid != NONE) & _valid(table["seq"])
    if (named & ~_valid(table["crc32"])).any():
        raise HistoryError("history/consumed has a record of ours without crc32")

    consumers, (consumer,) = as_codes(table["consumer"])
    code = consumer.astype(np.int64) * 4 + live * 2 + rc
    rows, number = distinct(code)
    found = [(consumers[each // 4], bool(each & 2), bool(each & 1)) for each in code[rows].tolist()]
    who = summary.streams.numbers(found)[number]
    tp = places_of(summary.places, table, partition)
    session, position = as_numbers(table["session"]), as_numbers(table["position"])
    fingerprint, txo = prints.of_rows(names, pid, seq, off, crc), np.where(named, NONE, IN_DOUBT)
    # As a rule in the order of offsets too, so that nothing is sorted twice.
    order = order_of(who, tp, session, position)
    if order is not None:
        who, tp, session, position, off, fingerprint, txo = (
            column[order] for column in (who, tp, session, position, off, fingerprint, txo)
        )
    _add_runs(summary.runs, who, tp, session, position, off)
    summary.reads.add(_lines(who, tp, off, off, fingerprint, txo, chunk, summary.window))


def _lines(
    who: Ints, tp: Ints, off: Ints, grows: Ints, fingerprint: Ints, txo: Ints, chunk: int, window: int
) -> Columns:
    """:param txo: of the records' transactions; IN_DOUBT for whatever no sum can settle"""
    aborted = txo == ABORTED
    rows = {"who": who, "tp": tp, "low": off, "high": off, "first": grows, "last": grows}
    rows |= {"count": np.ones(len(off), np.int64), "prints": fingerprint, "odd": txo == IN_DOUBT}
    rows |= {"aborted_count": aborted.astype(np.int64), "aborted_prints": np.where(aborted, fingerprint, 0)}
    lines = lines_of(rows, window)
    number = np.full(length(lines), chunk)
    return lines | {"chunk": number, "last_chunk": number}


def _add_runs(pile: Pile, who: Ints, tp: Ints, session: Ints, position: Ints, off: Ints) -> None:
    """Of rows in the order of sessions and positions.

    Two of one position may be in the wrong order; the runs that they are in then touch, and their order counts for
    nothing.
    """
    goes_on = alike(who, tp, session) & (off[1:] > off[:-1])
    first, last = np.flatnonzero(np.r_[True, ~goes_on]), np.flatnonzero(np.r_[~goes_on, True])
    found = (who[first], tp[first], session[first], position[first], off[first], position[last], off[last])
    pile.add(dict(zip(NO_RUNS, found, strict=True)))


def _add_transactions(summary: Summary, table: pa.Table, txo: Ints) -> None:
    names, (code,) = as_codes(table["transaction"])
    if ((code == NONE) != (txo == NONE)).any():
        raise HistoryError("history/produced has a transaction without transaction_outcome, or the other way round")
    if names:
        inside = np.flatnonzero(code != NONE)
        rows, _ = distinct(code[inside].astype(np.int64) * len(TRANSACTION_OUTCOMES) + txo[inside])
        found = inside[rows]
        summary.transactions.add({"name": hashes_of(names)[code[found]], "outcomes": 1 << txo[found].astype(np.int64)})


def hashes_of(names: Sequence[str]) -> Ints:
    """64 bits for each name; not quite surely different ones."""
    return np.frombuffer(b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names), np.uint64)


def transactions_merged(table: Columns) -> Columns:
    """One row for each name, with all outcomes."""
    if not length(table):
        return table
    order = np.argsort(table["name"], kind="stable")
    name, outcomes = table["name"][order], table["outcomes"][order]
    starts = np.flatnonzero(np.r_[True, ~alike(name)])
    return {"name": name[starts], "outcomes": np.bitwise_or.reduceat(outcomes, starts)}


def places_of(places: Names, table: pa.Table, partition: Ints) -> Ints:
    """For every row the number, in `places`, of its (topic, partition)."""
    topics, (topic,) = as_codes(table["topic"])
    rows, number = distinct(joint_key(topic, partition))
    found = [(topics[topic[row]], int(partition[row])) for row in rows.tolist()]
    return places.numbers(found)[number]


def _valid(column: pa.ChunkedArray) -> Flags:
    """Where it is not null."""
    valid: Flags = pc.is_valid(column).to_numpy()
    return valid
