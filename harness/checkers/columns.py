"""Converts columns of tables to numpy arrays, and has the operations on them that all checkers share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import HistoryError

Ints = npt.NDArray[np.integer]
"""Integers of any width: a column of few values takes less than 64 bits. Checkers widen what they compute with."""
Flags = npt.NDArray[np.bool_]

NONE = -1
"""Stands for null in columns of numbers, in which no negative value has a meaning."""

_ROOM = 1 << 62
"""Joint keys stay below this, so that they fit into 64 bits with a sign."""


def as_numbers(column: pa.ChunkedArray, kind: type[np.integer] = np.int64) -> Ints:
    """A column of numbers, NONE for null."""
    filled = pc.fill_null(column, pa.scalar(NONE, column.type)) if column.null_count else column
    return np.asarray(filled.to_numpy(), kind)


def as_codes(*columns: pa.ChunkedArray) -> tuple[list[str], list[Ints]]:
    """The distinct strings of all columns, sorted, and for each column the index of each row's string.

    The index is NONE for null.
    """
    encoded = [
        (column if pa.types.is_dictionary(column.type) else column.dictionary_encode()).unify_dictionaries()
        for column in columns
    ]
    words = [column.chunk(0).dictionary.to_pylist() if column.num_chunks else [] for column in encoded]
    names = sorted({name for of_column in words for name in of_column})
    place = {name: number for number, name in enumerate(names)}
    codes: list[Ints] = []
    for column, of_column in zip(encoded, words, strict=True):
        places = np.array([*(place[name] for name in of_column), NONE], np.int32)
        indices = [chunk.indices for chunk in column.chunks]
        codes.append(places[as_numbers(pa.chunked_array(indices, pa.int32()), np.int32)])
    return names, codes


def as_words(table: pa.Table, name: str, column: str, words: Sequence[str]) -> Ints:
    """A column of the table `name` as indices into `words`; NONE for null.

    :raises HistoryError: the column has another word
    """
    names, (codes,) = as_codes(table[column])
    strange = [found for found in names if found not in words]
    if strange:
        raise HistoryError(f"history/{name}: {column} is {strange[0]!r}, not one of {', '.join(words)}")
    return np.array([*(words.index(found) for found in names), NONE], np.int8)[codes]


def is_valid(column: pa.ChunkedArray) -> Flags:
    """Which rows are not null."""
    valid: Flags = pc.is_valid(column).to_numpy()
    return valid


def refuse_nulls(table: pa.Table, name: str, columns: Sequence[str]) -> None:
    """Check that these columns of the table `name` have no null.

    :raises HistoryError: one of them has
    """
    for column in columns:
        if table[column].null_count:
            raise HistoryError(f"history/{name}: {column} is null in {table[column].null_count} rows; it must not be")


def joint_keys(*columns: Sequence[Ints]) -> list[Ints]:
    """For each of several tables, one key per row. Keys are equal if and only if the rows are, and sort alike.

    :param columns: the most significant first; for each column, its values in each table, of any size
    """
    keys, room = _from_zero(columns[0])
    for column in columns[1:]:
        values, span = _from_zero(column)
        if room * span >= _ROOM:
            (keys, room), (values, span) = _ranks(keys), _ranks(values)
        keys = [key * span + value for key, value in zip(keys, values, strict=True)]
        room *= span
    return keys


def joint_key(*columns: Ints) -> Ints:
    """:func:`joint_keys` of one table."""
    [key] = joint_keys(*((column,) for column in columns))
    return key


def _from_zero(column: Sequence[Ints]) -> tuple[list[Ints], int]:
    """The values counted from the lowest one, or their ranks if they are too far apart; and a bound above them all."""
    tables: list[Ints] = [np.asarray(values, np.int64) for values in column]
    low = min((int(values.min()) for values in tables if len(values)), default=0)
    span = max((int(values.max()) for values in tables if len(values)), default=0) - low + 1
    if span >= _ROOM:
        return _ranks(tables)
    return [values - low for values in tables] if low else tables, span


def _ranks(tables: Sequence[Ints]) -> tuple[list[Ints], int]:
    values, ranks = np.unique(np.concatenate(tables), return_inverse=True)
    ends = np.cumsum([len(table) for table in tables])[:-1]
    return list(np.split(ranks.astype(np.int64), ends)), max(1, len(values))


def order_of(*columns: Ints) -> Ints | None:
    """The stable order that sorts the rows by `columns`; None if they are in order."""
    key = joint_key(*columns)
    return None if (key[1:] >= key[:-1]).all() else np.argsort(key, kind="stable")  # fast, if long runs are in order


def alike(*columns: Ints) -> Flags:
    """For every row but the first, whether it equals the row before in all columns."""
    result = np.ones(max(0, len(columns[0]) - 1), np.bool_)
    for column in columns:
        result &= column[1:] == column[:-1]
    return result


def run_starts(*columns: Ints) -> Ints:
    """The rows that differ from the row before in some column, with the first row."""
    return np.flatnonzero(np.r_[True, ~alike(*columns)][: len(columns[0])])


def run_bounds(*columns: Ints) -> tuple[Ints, Ints]:
    """The first and the last row of each run of rows that are equal in all columns."""
    first = run_starts(*columns)
    return first, np.append(first[1:], len(columns[0]))[: len(first)] - 1


def distinct(key: Ints) -> tuple[Ints, Ints]:
    """One row for every distinct key, and for every row the index of its key among these.

    It is like ``np.unique``, but does not sort if the keys are small numbers from 0.
    """
    span = int(key.max(initial=0)) + 1
    if span > max(len(key), 1 << 16):
        _, row, number = np.unique(key, return_index=True, return_inverse=True)
        return row, number
    row_of = np.full(span, NONE)
    row_of[key] = np.arange(len(key))
    found = row_of != NONE
    return row_of[found], (np.cumsum(found) - 1)[key]
