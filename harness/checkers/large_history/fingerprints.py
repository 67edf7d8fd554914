"""Sums over rows: what is kept of a stream of rows in one window of a partition, instead of the rows.

A *stream* is what one producer had acked, or what one consumer was handed. A *window* is a run of offsets. A *line*
is what one stream has in one window: how many rows, the sum of their fingerprints, the lowest and highest offset. Two
streams with equal sums are of the same rows; so lines can be compared, where comparing rows would need a join.

Lines are columns under the names of :data:`NO_LINES`. A row is a line of one, so that what makes lines of rows also
makes one line of two, of the same window or of a wider one.

A fingerprint is 64 bits made of (producer, seq, offset, CRC-32) with a key that is drawn anew for every judgement.
Sums of fingerprints are equal, for two different sets of rows, with a chance of about 2^-64, far below that of the
CRC-32 itself; and no history can be made to fit a key that is drawn after it was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.checkers.encoded_history import Flags, Ints, joint_key

Columns = dict[str, Ints]

_SUMS: Mapping[str, Any] = {
    "low": np.minimum,  # offset
    "high": np.maximum,
    "first": np.minimum,  # seq, where it has to grow with the offsets; elsewhere the offset once more
    "last": np.maximum,
    "count": np.add,
    "prints": np.add,
    "aborted_count": np.add,  # of these rows, the ones of aborted transactions, which not everybody is shown
    "aborted_prints": np.add,
    "odd": np.logical_or,
    "chunk": np.minimum,  # where the rows are stored
    "last_chunk": np.maximum,
}

NO_LINES: Mapping[str, Ints] = {
    name: np.zeros(0, np.bool_ if name == "odd" else np.int64) for name in ("who", "tp", "window", *_SUMS)
}


def lines_of(rows: Columns, window: int) -> Columns:
    """One line for each stream and window of these rows or lines.

    ``odd`` is true of a line if it is of one of its rows, or if not both offset and seq grow from row to row.

    :param rows: all columns but ``window``; those of ``chunk`` may be left out
    :param window: offsets in a window; of lines, a multiple of what they were made with
    """
    order = order_of(rows["who"], rows["tp"], rows["low"])
    if order is not None:
        rows = {name: column[order] for name, column in rows.items()}
    rows = rows | {"window": rows["low"] // window}
    follows = alike(rows["who"], rows["tp"], rows["window"])
    starts = np.flatnonzero(np.r_[True, ~follows][: length(rows)])
    lines = {name: rows[name][starts] for name in ("who", "tp", "window")}
    astray = follows & ((rows["low"][1:] <= rows["high"][:-1]) | (rows["first"][1:] <= rows["last"][:-1]))
    columns = rows | {"odd": rows["odd"] | np.r_[False, astray][: length(rows)]}
    for name, add_up in _SUMS.items():
        if name in rows:
            lines[name] = add_up.reduceat(columns[name], starts) if len(starts) else columns[name]
    return lines


def joined(tables: Sequence[Mapping[str, Ints]]) -> Columns:
    """Tables of the same columns one behind the other; of at least one."""
    some = [table for table in tables if length(table)] or tables[:1]
    return {name: np.concatenate([table[name] for table in some]) for name in some[0]}


def length(table: Mapping[str, Ints]) -> int:
    """How many rows it has."""
    return len(next(iter(table.values())))


def alike(*columns: Ints) -> Flags:
    """For every row but the first, whether it is like the one before in all columns."""
    result = np.ones(max(0, len(columns[0]) - 1), np.bool_)
    for column in columns:
        result &= column[1:] == column[:-1]
    return result


def order_of(*columns: Ints) -> Ints | None:
    """What sorts the rows by `columns`, equal ones as they were; None where they are in order."""
    key = joint_key(*columns)
    return None if (key[1:] >= key[:-1]).all() else np.argsort(key, kind="stable")  # quick with runs in order


def distinct(key: Ints) -> tuple[Ints, Ints]:
    """For every different value a row that has it, and for every row which of these is its own.

    ``np.unique`` for numbers from 0, without a sort where they are small, as those of names are.
    """
    span = int(key.max(initial=0)) + 1
    if span > max(len(key), 1 << 16):
        _, row, number = np.unique(key, return_index=True, return_inverse=True)
        return row, number
    row_of = np.full(span, -1)
    row_of[key] = np.arange(len(key))
    found = row_of >= 0
    return row_of[found], (np.cumsum(found) - 1)[key]


class Fingerprints:
    """Numbers for rows, under one key.

    :param secret: of any length; the same for all numbers that are to be compared
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._by = np.frombuffer(hashlib.blake2b(b"", key=secret, digest_size=24).digest(), np.uint64) | np.uint64(1)

    def of_names(self, names: Sequence[str]) -> Ints:
        """A number for each name, the same one whenever it comes."""
        digests = [hashlib.blake2b(name.encode(), key=self._secret, digest_size=8).digest() for name in names]
        return np.frombuffer(b"".join(digests), np.uint64)

    def of_rows(self, names: Sequence[str], pid: Ints, seq: Ints, off: Ints, crc: Ints) -> Ints:
        """A number for each row; `pid` are places in `names`, below zero for none."""
        by_seq, by_off, by_crc = self._by
        value = np.append(self.of_names(names), np.uint64(0))[pid]
        value += seq.astype(np.uint64) * by_seq
        _mix(value)
        value += off.astype(np.uint64) * by_off
        value += crc.astype(np.uint64) * by_crc
        _mix(value)
        return value


def _mix(value: Ints) -> None:
    """Stafford's thirteenth mixer, in place: every bit of the result depends on every bit of `value`."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
