"""Summarises a task's part of a large history: keeps lines (:mod:`.fingerprints`) instead of rows.

The task reads rows in batches, in the order in which they are stored. If that is roughly the order in which they
happened, the summary grows with the number of windows, not with the number of rows. If it is not, and the summary gets
too large, the task raises :class:`Inconclusive`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from harness.checkers.columns import (
    NONE,
    Flags,
    Ints,
    alike,
    as_codes,
    as_numbers,
    distinct,
    order_of,
    run_starts,
)
from harness.checkers.drain_extent import Place, Stream
from harness.checkers.encoded_history import (
    ABORTED,
    IN_DOUBT,
    JUDGED,
    OUTCOMES,
    TRANSACTION_OUTCOMES,
    check_consumed,
    check_produced,
    places_in,
    streams_in,
)
from harness.checkers.large_history.fingerprints import (
    NO_LINES,
    Columns,
    fingerprints,
    hashes_of,
    joined,
    length,
    lines_of,
)
from harness.checkers.large_history.seen_seqs import Seqs
from harness.errors import Inconclusive
from harness.history.tables import TableName

COLUMNS: Mapping[TableName, Sequence[str]] = {
    name: [column for column in columns if column != "key"] for name, columns in JUDGED.items()
}
"""The columns of each table that a summary needs."""

MOST_LINES = 1 << 20
"""The most lines that are kept of each table; if there are more, the windows become wider."""
MOST_BYTES = 1 << 28
"""The most memory that each pile may take; enough for 10^7 transactions."""

_WIDEST = 1 << 40

NO_RUNS: Columns = dict.fromkeys(
    ("who", "tp", "session", "first_position", "first_off", "last_position", "last_off"), np.zeros(0, np.int64)
)
NO_TRANSACTIONS: Columns = {"name": np.zeros(0, np.uint64), "outcomes": np.zeros(0, np.int64)}

T = TypeVar("T", bound=Hashable)


class Names(Generic[T]):
    """Gives names numbers, in the order in which the names come."""

    def __init__(self) -> None:
        self.all: list[T] = []
        self._number: dict[T, int] = {}

    def numbers(self, names: Sequence[T]) -> Ints:
        """The number of each name; a new name gets the next number."""
        for name in names:
            if self._number.setdefault(name, len(self.all)) == len(self.all):
                self.all.append(name)
        return np.array([self._number[name] for name in names], np.int64)

    def numbers_of(self, names: Sequence[T], indices: Ints) -> Ints:
        """The number of each row's name; `indices` point into `names`."""
        return self.numbers(names)[indices]


class Pile:
    """Columns to which more rows are added; `merge` makes them fewer whenever they have doubled."""

    def __init__(self, empty: Columns, merge: Callable[[Columns], Columns]) -> None:
        self._merge = merge
        self._tables = [empty]
        self._waiting = self._merged = 0

    def add(self, table: Columns) -> None:
        """Add rows.

        :raises Inconclusive: the rows take too much memory, even when merged
        """
        self._tables.append(table)
        self._waiting += length(table)
        if self._waiting > self._merged + (1 << 18):
            self.merged()

    def merged(self) -> Columns:
        """All rows, merged.

        :raises Inconclusive: as :meth:`add`
        """
        table = self._merge(joined(self._tables))
        self._tables = [table]
        self._waiting, self._merged = 0, length(table)
        if sum(column.nbytes for column in table.values()) > MOST_BYTES:
            raise Inconclusive("its rows are stored too far out of order: their summary does not fit into memory")
        return table


class Summary:
    """What a task found in its rows. Numbers in columns are indices into the summary's own names.

    :ivar window: offsets in a window: as given, and doubled whenever there are too many lines. Narrow windows are
        better, since the whole window around an anomaly is read again and judged
    :ivar acks: the lines of producers
    :ivar reads: the lines of streams
    :ivar runs: successive reads of one session, within a batch, whose offsets grow
    :ivar transactions: hashes of names, and the set of outcomes of each as bits
    :ivar outcomes: how many rows of ``produced`` have each outcome
    :ivar read: how many rows ``consumed`` has
    :ivar placeless: by chunk, how many records were not acked at a known place
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.producers, self.streams, self.places = Names[str](), Names[Stream](), Names[Place]()
        self.acks, self.reads = Pile(NO_LINES, self._lines_of), Pile(NO_LINES, self._lines_of)
        self.runs = Pile(NO_RUNS, dict)
        self.transactions = Pile(NO_TRANSACTIONS, transactions_merged)
        self.seqs = Seqs()
        self.outcomes, self.read = np.zeros(len(OUTCOMES), np.int64), 0
        self.placeless: dict[int, int] = {}

    def settle(self) -> None:
        """Merge all that was added.

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


def add_produced(summary: Summary, table: pa.Table, key: bytes, chunk: int) -> None:
    """Add a batch of ``produced``.

    :param key: of the fingerprints
    :param chunk: the number of the batch's chunk
    :raises HistoryError: as :func:`harness.checkers.encoded_history.check_produced`
    :raises Inconclusive: as :meth:`Pile.add`
    """
    outcome, txo, partition, off = check_produced(table)
    summary.outcomes += np.bincount(outcome, minlength=len(OUTCOMES))
    names, (pid,) = as_codes(table["producer"])
    seq, crc = as_numbers(table["seq"]), as_numbers(table["crc32"])
    summary.seqs.add(names, pid, seq)
    _add_transactions(summary, table, txo)
    tp = summary.places.numbers_of(*places_in(table, partition))
    placed = off != NONE
    if not placed.all():
        summary.placeless[chunk] = summary.placeless.get(chunk, 0) + int((~placed).sum())
        pid, seq, tp, off, crc, txo = (column[placed] for column in (pid, seq, tp, off, crc, txo))
    who = summary.producers.numbers(names)[pid]
    aborted, in_doubt = txo == ABORTED, txo == IN_DOUBT
    fingerprint = fingerprints(key, names, pid, seq, off, crc)
    summary.acks.add(_lines(who, tp, off, seq, fingerprint, aborted, in_doubt, chunk, summary.window))


def add_consumed(summary: Summary, table: pa.Table, key: bytes, chunk: int) -> None:
    """Add a batch of ``consumed``; parameters as :func:`add_produced`.

    :raises HistoryError: as :func:`harness.checkers.encoded_history.check_consumed`
    :raises Inconclusive: as :meth:`Pile.add`
    """
    drain, rc, named, partition, off = check_consumed(table)
    summary.read += len(table)
    names, (pid,) = as_codes(table["producer"])
    seq, crc = as_numbers(table["seq"]), as_numbers(table["crc32"])
    who = summary.streams.numbers_of(*streams_in(table, drain, rc))
    tp = summary.places.numbers_of(*places_in(table, partition))
    session, position = as_numbers(table["session"]), as_numbers(table["position"])
    fingerprint, odd = fingerprints(key, names, pid, seq, off, crc), ~named
    # Usually this is the order of the offsets too, so that lines_of need not sort again.
    order = order_of(who, tp, session, position)
    if order is not None:
        who, tp, session, position = who[order], tp[order], session[order], position[order]
        off, fingerprint, odd = off[order], fingerprint[order], odd[order]
    _add_runs(summary.runs, who, tp, session, position, off)
    aborted = np.zeros(len(off), np.bool_)
    summary.reads.add(_lines(who, tp, off, off, fingerprint, aborted, odd, chunk, summary.window))


def _lines(
    who: Ints, tp: Ints, off: Ints, grows: Ints, prints: Ints, aborted: Flags, odd: Flags, chunk: int, window: int
) -> Columns:
    """The lines of rows.

    :param grows: the column that must grow with the offset
    :param odd: marks the rows that no sum can show to be clean
    """
    rows: Columns = {"who": who, "tp": tp, "low": off, "high": off, "first": grows, "last": grows}
    rows |= {"count": np.ones(len(off), np.int64), "prints": prints, "odd": odd}
    rows |= {"aborted_count": aborted.astype(np.int64), "aborted_prints": np.where(aborted, prints, 0)}
    lines = lines_of(rows, window)
    number = np.full(length(lines), chunk)
    return lines | {"chunk": number, "last_chunk": number}


def _add_runs(pile: Pile, who: Ints, tp: Ints, session: Ints, position: Ints, off: Ints) -> None:
    """Add the runs of rows that are sorted by session and position.

    Two rows of one position may be in the wrong order. Then their runs touch, and the order of the two is ignored.
    """
    goes_on = alike(who, tp, session) & (off[1:] > off[:-1])
    first, last = np.flatnonzero(np.r_[True, ~goes_on]), np.flatnonzero(np.r_[~goes_on, True])
    found = (who[first], tp[first], session[first], position[first], off[first], position[last], off[last])
    pile.add(dict(zip(NO_RUNS, found, strict=True)))


def _add_transactions(summary: Summary, table: pa.Table, txo: Ints) -> None:
    names, (code,) = as_codes(table["transaction"])
    if names:
        inside = np.flatnonzero(code != NONE)
        rows, _ = distinct(code[inside].astype(np.int64) * len(TRANSACTION_OUTCOMES) + txo[inside])
        found = inside[rows]
        summary.transactions.add({"name": hashes_of(names)[code[found]], "outcomes": 1 << txo[found].astype(np.int64)})


def transactions_merged(table: Columns) -> Columns:
    """One row for each name, with all outcomes."""
    order = np.argsort(table["name"], kind="stable")
    name, outcomes = table["name"][order], table["outcomes"][order]
    starts = run_starts(name)
    return {"name": name[starts], "outcomes": np.bitwise_or.reduceat(outcomes, starts) if len(starts) else outcomes}
