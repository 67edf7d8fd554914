"""Makes lines: a line stands for the rows of one stream in one window.

* A *stream* is all that one producer had acked, or all that one consumer was handed with one isolation.
* A *window* is a range of offsets of one partition.
* A *line* is what one stream has in one window: the number of rows, the sum of their fingerprints, the lowest and the
  highest offset, and so on. Streams with equal sums in a window have the same rows there. So comparing lines replaces
  a join of rows.

Lines are columns with the names of :data:`NO_LINES`. A row is a line with a count of one. So :func:`lines_of` makes
lines of rows, and also joins lines of the same window, or of windows that become one wider window.

A fingerprint is 64 bits, computed from (producer, seq, offset, CRC-32) with a key that is drawn for each judgement. Two
different sets of rows have equal sums with a chance of about 2^-64, far below that of equal CRC-32s. A stored history
cannot be made to fit a key that is drawn later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.checkers.columns import Ints, alike, order_of, run_starts

Columns = dict[str, npt.NDArray[Any]]
"""Columns of one length, of integers and flags."""

_SUMS: Mapping[str, np.ufunc] = {
    "low": np.minimum,  # offset
    "high": np.maximum,
    "first": np.minimum,  # of acks the seq, which must grow with the offset; of reads the offset again
    "last": np.maximum,
    "count": np.add,
    "prints": np.add,
    "aborted_count": np.add,  # only the rows of aborted transactions, which read_committed hides
    "aborted_prints": np.add,
    "odd": np.logical_or,
    "chunk": np.minimum,  # where the rows are stored
    "last_chunk": np.maximum,
}

NO_LINES: Columns = {
    name: np.zeros(0, np.bool_ if name == "odd" else np.int64) for name in ("who", "tp", "window", *_SUMS)
}


def lines_of(rows: Columns, window: int) -> Columns:
    """One line for each stream and window of these rows or lines.

    A line is ``odd`` if one of its rows is, or if offset and seq do not both grow from row to row.

    :param rows: all columns but ``window``; ``chunk`` and ``last_chunk`` may be absent
    :param window: offsets in a window; to join lines, a multiple of the window with which they were made
    """
    order = order_of(rows["who"], rows["tp"], rows["low"])
    if order is not None:
        rows = {name: column[order] for name, column in rows.items()}
    rows = rows | {"window": rows["low"] // window}
    stream = rows["who"], rows["tp"], rows["window"]
    starts = run_starts(*stream)
    astray = alike(*stream)
    astray &= (rows["low"][1:] <= rows["high"][:-1]) | (rows["first"][1:] <= rows["last"][:-1])
    rows["odd"] = rows["odd"] | np.r_[False, astray][: length(rows)]
    lines = {name: rows[name][starts] for name in ("who", "tp", "window")}
    for name, add_up in _SUMS.items():
        if name in rows:
            lines[name] = add_up.reduceat(rows[name], starts) if len(starts) else rows[name]
    return lines


def joined(tables: Sequence[Columns]) -> Columns:
    """Tables of the same columns, one after the other; at least one."""
    some = [table for table in tables if length(table)] or tables[:1]
    return {name: np.concatenate([table[name] for table in some]) for name in some[0]}


def length(table: Columns) -> int:
    """How many rows it has."""
    return len(next(iter(table.values())))


def fingerprints(
    key: bytes, names: Sequence[str], pid: Ints, seq: Ints, off: Ints, crc: Ints
) -> npt.NDArray[np.uint64]:
    """The fingerprint of each row.

    :param key: of any length; fingerprints of different keys cannot be compared
    :param pid: indices into `names`, NONE for a row without a producer
    """
    digest = hashlib.blake2b(b"", key=key, digest_size=24).digest()
    by_seq, by_off, by_crc = np.frombuffer(digest, np.uint64) | np.uint64(1)
    value: npt.NDArray[np.uint64] = np.append(hashes_of(names, key), np.uint64(0))[pid]
    value += seq.astype(np.uint64) * by_seq
    _mix(value)
    value += off.astype(np.uint64) * by_off
    value += crc.astype(np.uint64) * by_crc
    _mix(value)
    return value


def hashes_of(names: Sequence[str], key: bytes = b"") -> npt.NDArray[np.uint64]:
    """A hash of 64 bits for each name; two names rarely share one."""
    digests = [hashlib.blake2b(name.encode(), key=key, digest_size=8).digest() for name in names]
    return np.frombuffer(b"".join(digests), np.uint64)


def _mix(value: npt.NDArray[np.uint64]) -> None:
    """Mix in place, by Stafford's mixer 13: every bit of the result depends on every bit of `value`."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
