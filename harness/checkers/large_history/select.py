"""What is left to judge of a history that is too large to be judged at once.

The judge of small histories (:func:`harness.checkers.judge.judge_tables`) holds all rows in memory, 250 bytes each.
Here tasks read every row once and keep sums (:mod:`harness.checkers.large_history.summarise`), which say of most
windows that nothing can be found there (:mod:`harness.checkers.large_history.clean_windows`); the rows of the others
are read again, and handed to that judge.
A join or a sort of all rows by Spark would have been simpler to say, and costs a shuffle of every row, and memory for
it; and there would have been two definitions of each kind of anomaly.

Memory: a task holds a batch and its sums; this process, all sums, a bit for each record, and the rest. A history may be
all rest: one of compacted topics or of indeterminate transactions, with an anomaly in every window, shuffled, drained
by nobody. Where that is more than :data:`MOST_ROWS`, nobody decides.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness.checkers.drain_extent import NOWHERE, Handed, survey_drains
from harness.checkers.encoded_history import (
    ACKED,
    ISOLATIONS,
    NONE,
    OUTCOMES,
    Ints,
    as_codes,
    as_numbers,
    as_words,
    drained_rows,
    encode,
    joint_keys,
)
from harness.checkers.large_history.clean_windows import Windows
from harness.checkers.large_history.fingerprints import Fingerprints
from harness.checkers.large_history.seen_seqs import Seqs
from harness.checkers.large_history.summarise import (
    COLUMNS,
    NO_TRANSACTIONS,
    Names,
    Pile,
    Summary,
    add_consumed,
    add_produced,
    hashes_of,
    places_of,
    transactions_merged,
)
from harness.checkers.ordering import first_offsets
from harness.checkers.settings import RunSettings, refuse_unpromised
from harness.checkers.verdict import Counts
from harness.errors import HistoryError, Inconclusive
from harness.history.tables import DRAINED, SCHEMAS, Piece, TableName, load_batches
from harness.spark.spark_map import SparkMap

MOST_ROWS = 8_000_000
"""So many rows of rest are judged, in some 2 GB."""

_HIGHEST = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What changes the cost, and never what is found."""

    window: int = 1 << 5
    """Offsets in a window, at first; wider ones are taken where there would be too many."""
    batch_rows: int = 1 << 18
    chunk_rows: int = 1 << 20
    """Rows that are read again together."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Row groups of one table that are read together."""

    table: TableName
    pieces: tuple[Piece, ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What is left to judge, and what the whole history says beside it."""

    produced: pa.Table
    consumed: pa.Table
    drained: pa.Table
    """With a row for each partition, and for each one that a drain was handed records of: how far it got, no end."""
    counts: Counts
    """Of the whole history, but for indeterminate_present, which the rest says."""
    unrecorded: int
    """Of the whole history: records that were promised a row, and have none."""
    windows: int
    left: int
    """How many windows there are, and how many of them in the rest."""


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Rows to bring: those of some windows, and those without a place."""

    places: Names
    size: int
    tp: Ints
    at: Ints
    """The windows: places in `places`, and numbers in them."""
    placeless: bool


def find_rest(
    stored: Mapping[TableName, Sequence[Piece]],
    drained: pa.Table | None,
    settings: RunSettings,
    spread: SparkMap,
    lots: int,
    sizes: Sizes,
) -> Rest:
    """What is left of a history when all clean windows are taken out.

    :param stored: ``produced`` and ``consumed``
    :param drained: the table as it is stored, None where there is none
    :param lots: in how many tasks to read everything
    :raises HistoryError: as :func:`harness.checkers.judge.judge`
    :raises Inconclusive: it is too much
    """
    return _Search(stored, settings, spread, lots, sizes).find(drained)


class _Search:
    """One search for the rest of one history."""

    def __init__(
        self,
        stored: Mapping[TableName, Sequence[Piece]],
        settings: RunSettings,
        spread: SparkMap,
        lots: int,
        sizes: Sizes,
    ) -> None:
        self.settings, self.sizes = settings, sizes
        self.spread, self.lots = spread, lots
        self.chunks = _chunks(stored, sizes.chunk_rows)
        self.tables: dict[TableName, pa.Table] = {name: _no_rows(name) for name in ("produced", "consumed")}

    def find(self, drained: pa.Table | None) -> Rest:
        summaries = self._summaries()
        unrecorded = self._refuse(summaries)
        windows = Windows(summaries, self.settings)
        placeless = {chunk: rows for summary in summaries for chunk, rows in summary.placeless.items()}
        acked, failed, indeterminate = np.sum([summary.outcomes for summary in summaries], axis=0).tolist()
        counts = Counts(
            sent=acked + failed + indeterminate,
            acked=acked,
            failed=failed,
            indeterminate=indeterminate,
            read=sum(summary.read for summary in summaries),
        )
        summaries.clear()  # Of a large history, a good part of the memory.

        handed = windows.handed()
        windows.look(survey_drains(handed, [] if drained is None else drained_rows(drained)))
        self._bring(windows, np.zeros_like(windows.rest), placeless)
        brought = windows.rest.copy()
        for producer, seqs in self._sent_elsewhere():
            windows.close(producer, seqs)
        self._bring(windows, brought)
        brought = windows.rest.copy()
        said = _said(windows, handed, drained)
        self._order(windows, said)
        self._bring(windows, brought)
        left = int(windows.rest.sum())
        return Rest(
            **self.tables, drained=said, counts=counts, unrecorded=unrecorded, windows=len(windows.rest), left=left
        )

    def _summaries(self) -> list[Summary]:
        secret = secrets.token_bytes(32)
        chunks, sizes = self.chunks, self.sizes

        def summary(numbers: Sequence[int]) -> Summary:
            result, prints = Summary(sizes.window), Fingerprints(secret)
            for number in numbers:
                add = add_produced if chunks[number].table == "produced" else add_consumed
                for table in _batches(chunks[number], COLUMNS[chunks[number].table], sizes):
                    add(result, table, prints, number)
            result.settle()
            return result

        return self.spread(summary, _shares(range(len(chunks)), chunks, self.lots) or [[]])

    def _refuse(self, summaries: Sequence[Summary]) -> int:
        """What the judge of small histories refuses in several rows, in its words.

        :returns: how many records were promised a row, and have none
        """
        seqs, transactions = Seqs(), Pile(NO_TRANSACTIONS, transactions_merged)
        for summary in summaries:
            seqs.update(summary.seqs)
            transactions.add(summary.transactions.merged())
        seqs.refuse_twice()
        every = transactions.merged()
        suspects = every["name"][np.bitwise_count(every["outcomes"]) > 1]
        refuse_unpromised(seqs.senders(), self.settings)
        unrecorded = sum(below - seqs.below(name, below) for name, below in self.settings.promised.items())
        if not len(suspects):
            return unrecorded
        chunks, sizes = self.chunks, self.sizes
        produced = [number for number, chunk in enumerate(chunks) if chunk.table == "produced"]

        def outcomes(numbers: Sequence[int]) -> set[tuple[str, str]]:
            found = set()
            for number in numbers:
                for table in _batches(chunks[number], ("transaction", "transaction_outcome"), sizes):
                    names, (code,) = as_codes(table["transaction"])
                    chosen = (code != NONE) & np.append(np.isin(hashes_of(names), suspects), False)[code]
                    some = table.filter(pa.array(chosen)).to_pydict()
                    found |= set(zip(some["transaction"], some["transaction_outcome"], strict=True))
            return found

        pairs = set().union(*self.spread(outcomes, _shares(produced, chunks, self.lots)))
        times = Counter(name for name, _ in pairs)
        if two := sorted(name for name in times if times[name] > 1):
            raise HistoryError(f"history/produced has {len(two)} transactions of two outcomes, e.g. {two[0]}")
        return unrecorded

    def _bring(self, windows: Windows, brought: Ints, placeless: dict[int, int] | None = None) -> None:
        """Read the rows of all windows of the rest that are not `brought`; the first time, those without a place too.

        :raises Inconclusive: there are too many
        """
        new = windows.rest & ~brought
        if not new.any() and not placeless:
            return
        rows = sum(len(table) for table in self.tables.values()) + sum((placeless or {}).values())
        wanted_chunks = np.zeros(len(self.chunks) + 1, np.int64)
        for lines, of_window in ((windows.acks, windows.of_ack), (windows.reads, windows.of_read)):
            chosen = new[of_window]
            rows += int(lines["count"][chosen].sum())
            np.add.at(wanted_chunks, lines["chunk"][chosen], 1)
            np.add.at(wanted_chunks, lines["last_chunk"][chosen] + 1, -1)
        if rows > MOST_ROWS:
            raise Inconclusive(
                f"{rows:,} rows, in {int(windows.rest.sum()):,} of {len(new):,} windows of {windows.size:,} "
                f"offsets, would have to be looked into together, and {MOST_ROWS:,} fit into memory"
            )
        numbers = set(np.flatnonzero(np.cumsum(wanted_chunks)[:-1]).tolist()) | set(placeless or {})
        wanted = _Wanted(
            places=windows.places,
            size=windows.size,
            tp=windows.tp[new],
            at=windows.at[new],
            placeless=placeless is not None,
        )
        chunks, sizes = self.chunks, self.sizes

        def pick(some: Sequence[int]) -> list[tuple[TableName, pa.Table]]:
            return [(chunks[number].table, _pick(chunks[number], wanted, sizes)) for number in some]

        for found in self.spread(pick, _shares(sorted(numbers), chunks, self.lots)):
            for name, table in found:
                self.tables[name] = pa.concat_tables([self.tables[name], table])
        for name, table in self.tables.items():
            self.tables[name] = table.unify_dictionaries()

    def _sent_elsewhere(self) -> list[tuple[str, Ints]]:
        """By producer, the seqs, in order, of what was read in the rest and has no row of ``produced`` there."""
        produced, consumed = self.tables["produced"], self.tables["consumed"]
        producers, (sent_pid, read_pid) = as_codes(produced["producer"], consumed["producer"])
        named = np.flatnonzero((read_pid != NONE) & consumed["seq"].is_valid().to_numpy())
        pid, seq = read_pid[named], as_numbers(consumed["seq"])[named]
        sent_key, read_key = joint_keys((sent_pid, pid), (as_numbers(produced["seq"]), seq))
        missing = ~np.isin(read_key, sent_key)
        pid, seq = pid[missing], seq[missing]
        return [(producers[each], np.sort(seq[pid == each])) for each in np.unique(pid).tolist()]

    def _order(self, windows: Windows, said: pa.Table) -> None:
        rows = encode(self.tables["produced"], self.tables["consumed"], said, self.settings)
        _, record, tp, off = first_offsets(rows)
        producers = windows.producers.numbers(rows.producers)
        places = windows.places.numbers([(each.topic, each.partition) for each in rows.partitions])
        windows.order(producers[rows.sent.pid[record]], places[tp], rows.sent.seq[record], off)


def _chunks(stored: Mapping[TableName, Sequence[Piece]], rows: int) -> list[Chunk]:
    """All row groups in their order, in chunks of about `rows`."""
    result = []
    for table, pieces in stored.items():
        gathered: list[Piece] = []
        size = 0
        for number, piece in enumerate(pieces):
            gathered.append(piece)
            size += piece.rows
            if size >= rows or number == len(pieces) - 1:
                result.append(Chunk(table=table, pieces=tuple(gathered), rows=size))
                gathered, size = [], 0
    return result


def _shares(numbers: Sequence[int], chunks: Sequence[Chunk], count: int) -> list[list[int]]:
    """These chunks' numbers in at most `count` lots of neighbours, of about as many rows."""
    total = sum(chunks[number].rows for number in numbers) or 1
    lots: list[list[int]] = [[] for _ in range(count)]
    before = 0
    for number in numbers:
        lots[min(count - 1, before * count // total)].append(number)
        before += chunks[number].rows
    return [lot for lot in lots if lot]


def _batches(chunk: Chunk, columns: Sequence[str], sizes: Sizes) -> Iterable[pa.Table]:
    return load_batches(chunk.pieces, chunk.table, columns, sizes.batch_rows)


def _pick(chunk: Chunk, wanted: _Wanted, sizes: Sizes) -> pa.Table:
    """The rows of a chunk that are wanted."""
    found = [_no_rows(chunk.table)]
    for table in _batches(chunk, found[0].column_names, sizes):
        partition = np.maximum(as_numbers(table["partition"]), NOWHERE)
        off = as_numbers(table["offset"])
        if chunk.table == "produced":
            acked = as_words(table, "produced", "outcome", OUTCOMES) == ACKED
            off = np.where(acked & (partition != NOWHERE), np.maximum(off, NONE), NONE)
        tp = places_of(wanted.places, table, partition)
        keys, wanted_keys = joint_keys((tp, wanted.tp), (off // wanted.size, wanted.at))
        chosen = np.where(off == NONE, wanted.placeless, np.isin(keys, wanted_keys))
        if chosen.any():
            found.append(table.filter(pa.array(chosen)))
    return pa.concat_tables(found).unify_dictionaries()


def _said(windows: Windows, handed: Sequence[Handed], stored: pa.Table | None) -> pa.Table:
    """``drained``, and what else the whole history says of drains and of partitions, in rows of the same form."""
    # That there is such a partition is said by a drain without a name, which was asked for nothing of it.
    known = [("", False, topic, partition, 0) for topic, partition in windows.places.all if partition != NOWHERE]
    known += [
        (each.consumer, each.read_committed, each.topic, each.partition, min(each.highest, _HIGHEST - 2) + 1)
        for each in handed
    ]
    said = pa.table(
        [
            pa.array([consumer for consumer, *_ in known], pa.string()),
            pa.array([ISOLATIONS[committed] for _, committed, *_ in known], pa.string()),
            pa.array([topic for *_, topic, _, _ in known], pa.string()),
            pa.array([partition for *_, partition, _ in known], pa.int64()),
            pa.array([_HIGHEST] * len(known), pa.int64()),
            pa.array([past for *_, past in known], pa.int64()),
        ],
        DRAINED.names,
    )
    return said if stored is None else pa.concat_tables([stored.cast(said.schema), said])


def _no_rows(name: TableName) -> pa.Table:
    """A table without rows, of the columns that the judge needs and of the types that :func:`load_batches` gives."""
    words = pa.dictionary(pa.int32(), pa.string())
    columns = [*COLUMNS[name], "key"] if name == "produced" else COLUMNS[name]
    return pa.table(
        {
            each: pa.array([], words if pa.types.is_string(SCHEMAS[name].field(each).type) else pa.int64())
            for each in columns
        }
    )
