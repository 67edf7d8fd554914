"""Selects the rows of a large history that must be judged.

The judge of small histories (:func:`harness.checkers.judge.judge_tables`) holds all rows in memory, 250 bytes each.
Here, tasks read every row once and keep sums (:mod:`.summarise`). The sums show that most windows are clean
(:mod:`.clean_windows`). The rows of the other windows, the rest, are read again and given to that judge.

Memory: a task holds a batch of rows and its summary. The driver holds all summaries, one bit for each record, and the
rest. The rest may be the whole history: if its topics are compacted or its transactions indeterminate, if every window
has an anomaly, if no drain read it, or if its rows are shuffled. A rest of more than :data:`MOST_ROWS` is not judged.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import pyarrow as pa

from harness.checkers.columns import NONE, Flags, Ints, as_codes, as_numbers, joint_keys
from harness.checkers.drain_extent import HIGHEST, NOWHERE, Reach, survey_drains
from harness.checkers.encoded_history import (
    ISOLATIONS,
    JUDGED,
    check_consumed,
    check_produced,
    drained_rows,
    encode,
    places_in,
)
from harness.checkers.large_history.clean_windows import Windows
from harness.checkers.large_history.fingerprints import hashes_of
from harness.checkers.large_history.seen_seqs import Seqs
from harness.checkers.large_history.summarise import (
    COLUMNS,
    NO_TRANSACTIONS,
    Pile,
    Summary,
    add_consumed,
    add_produced,
    transactions_merged,
)
from harness.checkers.ordering import first_offsets
from harness.checkers.settings import RunSettings, refuse_unpromised
from harness.checkers.verdict import Counts
from harness.errors import HistoryError, Inconclusive
from harness.history.tables import DRAINED, SCHEMAS, Piece, TableName, load_batches
from harness.spark.spark_map import SparkMap

MOST_ROWS = 8_000_000
"""The largest rest that is judged, in rows; it takes about 2 GB."""

_Batch = tuple[int, TableName, pa.Table]
"""Rows of one table, and the number of their chunk."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that change the cost, but never the verdict.

    :ivar window: offsets in a window at the start; windows become wider if there are too many
    :ivar batch_rows: rows in memory together
    :ivar chunk_rows: rows that are read again together
    """

    window: int = 1 << 5
    batch_rows: int = 1 << 18
    chunk_rows: int = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Row groups of one table that are read together."""

    table: TableName
    pieces: tuple[Piece, ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The rows that must be judged, and what else the whole history shows.

    :ivar drained: the stored table, one more row for each partition, and one for each drain and partition that it read
    :ivar counts: of the whole history, without `indeterminate_present`, which the rest shows
    :ivar unrecorded: of the whole history, how many promised rows are missing
    :ivar windows: how many windows there are
    :ivar left: how many windows are in the rest
    """

    produced: pa.Table
    consumed: pa.Table
    drained: pa.Table
    counts: Counts
    unrecorded: int
    windows: int
    left: int


def find_rest(
    stored: Mapping[TableName, Sequence[Piece]],
    drained: pa.Table | None,
    settings: RunSettings,
    spread: SparkMap,
    lots: int,
    sizes: Sizes,
) -> Rest:
    """Take all clean windows out of a history and return the rest.

    :param stored: ``produced`` and ``consumed``
    :param drained: the stored table; None if there is none
    :param lots: how many tasks read the history
    :raises HistoryError: as :func:`harness.checkers.judge.judge`
    :raises Inconclusive: the rest or the summaries are too large
    """
    search = _Search(_chunks(stored, sizes.chunk_rows), settings, spread, lots, sizes)
    summaries = search.summaries()
    unrecorded = search.refuse(summaries)
    windows = Windows(summaries, settings)
    placeless = {chunk: rows for summary in summaries for chunk, rows in summary.placeless.items()}
    outcomes = np.sum([summary.outcomes for summary in summaries], axis=0)
    counts = Counts.of(outcomes, sum(summary.read for summary in summaries))
    del summaries  # With a large history, they take a good part of the memory.

    handed = windows.reaches()
    windows.mark_by_lines(survey_drains([*handed, *drained_rows(drained)]))
    search.read_again(windows, placeless)
    for producer, seqs in search.sent_elsewhere():
        windows.mark_seqs(producer, seqs)
    search.read_again(windows)
    known = _drained(windows, handed, drained)
    search.mark_reordered(windows, known)
    search.read_again(windows)
    return Rest(
        **search.tables,
        drained=known,
        counts=counts,
        unrecorded=unrecorded,
        windows=len(windows.rest),
        left=int(windows.rest.sum()),
    )


class _Search:
    """One search for the rest of one history.

    :ivar tables: the rows that were read again
    """

    def __init__(
        self, chunks: Sequence[Chunk], settings: RunSettings, spread: SparkMap, lots: int, sizes: Sizes
    ) -> None:
        self._chunks, self._settings, self._sizes = chunks, settings, sizes
        self._spread, self._lots = spread, lots
        self._read: Flags | None = None
        self.tables: dict[TableName, pa.Table] = {name: _no_rows(name) for name in ("produced", "consumed")}

    def _in_tasks(
        self, work: Callable[[Iterator[_Batch]], T], numbers: Sequence[int], columns: Mapping[TableName, Sequence[str]]
    ) -> list[T]:
        """Apply `work` to the rows of the chunks with these numbers, in several tasks."""
        chunks, batch_rows = self._chunks, self._sizes.batch_rows

        def batches(some: Sequence[int]) -> Iterator[_Batch]:
            for number in some:
                name = chunks[number].table
                for table in load_batches(chunks[number].pieces, name, columns[name], batch_rows):
                    if len(table):
                        yield number, name, table

        return self._spread(lambda some: work(batches(some)), _shares(numbers, chunks, self._lots))

    def summaries(self) -> list[Summary]:
        """Summarise the whole history."""
        key, window = secrets.token_bytes(32), self._sizes.window

        def summarise(batches: Iterator[_Batch]) -> Summary:
            summary = Summary(window)
            for number, name, table in batches:
                (add_produced if name == "produced" else add_consumed)(summary, table, key, number)
            summary.settle()
            return summary

        return self._in_tasks(summarise, range(len(self._chunks)), COLUMNS) or [Summary(window)]

    def refuse(self, summaries: Sequence[Summary]) -> int:
        """Check for errors that no single row shows.

        :returns: how many promised rows are missing
        :raises HistoryError: two rows for one record, a missing promise, or a transaction with two outcomes; worded as
            by the judge of small histories
        """
        seqs, transactions = Seqs(), Pile(NO_TRANSACTIONS, transactions_merged)
        for summary in summaries:
            seqs.update(summary.seqs)
            transactions.add(summary.transactions.merged())
        seqs.refuse_twice()
        merged = transactions.merged()
        suspects = merged["name"][np.bitwise_count(merged["outcomes"]) > 1]
        refuse_unpromised(seqs.senders(), self._settings)

        def outcomes(batches: Iterator[_Batch]) -> set[tuple[str, str]]:
            found = set()
            for _, _, table in batches:
                names, (code,) = as_codes(table["transaction"])
                chosen = (code != NONE) & np.append(np.isin(hashes_of(names), suspects), False)[code]
                some = table.filter(pa.array(chosen)).to_pydict()
                found |= set(zip(some["transaction"], some["transaction_outcome"], strict=True))
            return found

        if len(suspects):  # They are hashes, and two names may share one.
            produced = [number for number, chunk in enumerate(self._chunks) if chunk.table == "produced"]
            pairs = self._in_tasks(outcomes, produced, {"produced": ("transaction", "transaction_outcome")})
            times = Counter(name for name, _ in set().union(*pairs))
            if two := sorted(name for name in times if times[name] > 1):
                raise HistoryError(f"history/produced has {len(two)} transactions of two outcomes, e.g. {two[0]}")
        return sum(below - seqs.below(name, below) for name, below in self._settings.promised.items())

    def read_again(self, windows: Windows, placeless: Mapping[int, int] | None = None) -> None:
        """Read the rows of all windows of the rest that were not read yet.

        :param placeless: by chunk, how many rows have no known place; read them too
        :raises Inconclusive: there are too many rows
        """
        new = windows.rest if self._read is None else windows.rest & ~self._read
        self._read = windows.rest.copy()
        rows = sum(len(table) for table in self.tables.values()) + sum((placeless or {}).values())
        begin_or_end = np.zeros(len(self._chunks) + 1, np.int64)
        for lines, of_window in ((windows.acks, windows.of_ack), (windows.reads, windows.of_read)):
            chosen = new[of_window]
            rows += int(lines["count"][chosen].sum())
            np.add.at(begin_or_end, lines["chunk"][chosen], 1)
            np.add.at(begin_or_end, lines["last_chunk"][chosen] + 1, -1)
        if rows > MOST_ROWS:
            raise Inconclusive(
                f"{rows:,} rows, in {int(windows.rest.sum()):,} of {len(new):,} windows of {windows.size:,} "
                f"offsets, would have to be judged together, and {MOST_ROWS:,} fit into memory"
            )
        numbers = sorted({*np.flatnonzero(np.cumsum(begin_or_end)[:-1]).tolist(), *(placeless or ())})
        places, size, with_placeless = windows.places, windows.size, placeless is not None
        wanted_tp, wanted_at = windows.tp[new], windows.at[new]

        def pick(batches: Iterator[_Batch]) -> list[tuple[TableName, pa.Table]]:
            found = []
            for _, name, table in batches:
                *_, partition, off = check_produced(table) if name == "produced" else check_consumed(table)
                tp = places.numbers_of(*places_in(table, partition))
                key, wanted = joint_keys((tp, wanted_tp), (off // size, wanted_at))
                chosen = np.where(off == NONE, with_placeless, np.isin(key, wanted))
                if chosen.any():
                    found.append((name, table.filter(pa.array(chosen))))
            return found

        columns = {name: table.column_names for name, table in self.tables.items()}
        found = [each for of_task in self._in_tasks(pick, numbers, columns) for each in of_task]
        for name, table in self.tables.items():
            tables = [table, *(more for of, more in found if of == name)]
            self.tables[name] = pa.concat_tables(tables).unify_dictionaries()

    def sent_elsewhere(self) -> list[tuple[str, Ints]]:
        """By producer, the sorted seqs of records that were read in the rest and have no row of ``produced`` there."""
        produced, consumed = self.tables["produced"], self.tables["consumed"]
        producers, (sent_pid, pid) = as_codes(produced["producer"], consumed["producer"])
        seq = as_numbers(consumed["seq"])
        sent_key, key = joint_keys((sent_pid, pid), (as_numbers(produced["seq"]), seq))
        missing = (pid != NONE) & consumed["seq"].is_valid().to_numpy() & ~np.isin(key, sent_key)
        return [(producers[each], np.sort(seq[missing & (pid == each)])) for each in np.unique(pid[missing]).tolist()]

    def mark_reordered(self, windows: Windows, drained: pa.Table) -> None:
        """Mark the windows that take part in a reordering, given what is in the rest so far."""
        rows = encode(self.tables["produced"], self.tables["consumed"], drained, self._settings)
        _, record, tp, off = first_offsets(rows)
        producers, places = windows.producers.numbers(rows.producers), windows.places.numbers(rows.places)
        windows.mark_reordered(producers[rows.sent.pid[record]], places[tp], rows.sent.seq[record], off)


def _chunks(stored: Mapping[TableName, Sequence[Piece]], rows: int) -> list[Chunk]:
    """All row groups in their order, in chunks of about `rows`."""
    result = []
    for table, pieces in stored.items():
        gathered: list[Piece] = []
        for number, piece in enumerate(pieces):
            gathered.append(piece)
            size = sum(each.rows for each in gathered)
            if size >= rows or number == len(pieces) - 1:
                result.append(Chunk(table=table, pieces=tuple(gathered), rows=size))
                gathered = []
    return result


def _shares(numbers: Sequence[int], chunks: Sequence[Chunk], count: int) -> list[list[int]]:
    """The numbers of these chunks, in at most `count` lots of neighbours with similar numbers of rows."""
    before = list(accumulate((chunks[number].rows for number in numbers), initial=0))
    lots: dict[int, list[int]] = defaultdict(list)
    for number, rows in zip(numbers, before, strict=False):
        lots[min(count - 1, rows * count // max(1, before[-1]))].append(number)
    return list(lots.values())


def _drained(windows: Windows, handed: Sequence[Reach], stored: pa.Table | None) -> pa.Table:
    """``drained``, with rows for what else the whole history shows about partitions and drains."""
    # A nameless drain that read nothing makes each partition known.
    known = [
        Reach(consumer="", place=place, past=0, read_committed=False)
        for place in windows.places.all
        if place[1] != NOWHERE
    ]
    rows = [
        {
            "consumer": each.consumer,
            "isolation": ISOLATIONS[each.read_committed],
            "topic": each.place[0],
            "partition": each.place[1],
            "end_offset": HIGHEST,  # above every position, so that no row says that a drain got to the end
            "position": min(each.past, HIGHEST - 1),
        }
        for each in (*known, *handed)
    ]
    return pa.Table.from_pylist(([] if stored is None else stored.to_pylist()) + rows, DRAINED)


def _no_rows(name: TableName) -> pa.Table:
    """A table without rows, of the columns that the judge needs and of the types that :func:`load_batches` gives."""
    fields, words = [SCHEMAS[name].field(each) for each in JUDGED[name]], pa.dictionary(pa.int32(), pa.string())
    return pa.table(
        {each.name: pa.array([], words if pa.types.is_string(each.type) else pa.int64()) for each in fields}
    )
