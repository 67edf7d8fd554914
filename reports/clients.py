"""What the clients saw, from the history: throughput, latency, and the stretches in which they got nothing.

Instants are put into bins of equal width, so that a page stays small and quick however long the case was; a minute has
about a thousand points a line. Read with pyarrow alone, part by part: a part that is damaged is left out and named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.events import PairReady, PairStopping
from harness.history.tables import TableName, table_dir
from harness.measure.gaps import interruption_s
from reports.folder import RunFolder

_MOST_BINS = 6000
_LEAST_BIN_S = 0.1
_MICROSECONDS = 1e6

Span = tuple[float, float]
Name = tuple[str, int]
"""A record's: its producer and its seq."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart: a value for each bin, None where there is none."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Where one partition's clients got nothing though they asked, in seconds from the case's beginning.

    :ivar no_ack, no_read: as long as an interruption (:func:`harness.measure.gaps.interruption_s`)
    """

    topic: str
    partition: int
    no_ack: Sequence[Span]
    no_read: Sequence[Span]


@dataclass(frozen=True, kw_only=True)
class Clients:
    """What is drawn of the clients.

    :ivar middles: of the bins, in seconds from the case's beginning
    :ivar throughput: records a second
    :ivar latency: milliseconds, at the instant of sending
    :ivar sent: when a record was sent; of those asked for
    :ivar of_transactions: the records of each transaction asked for, in the order of their numbers
    """

    bin_s: float
    middles: Sequence[float]
    throughput: Sequence[Line]
    latency: Sequence[Line]
    silences: Sequence[Silence]
    sent: Mapping[Name, float]
    of_transactions: Mapping[str, Sequence[Name]]
    notes: Sequence[str]


def look_at_clients(folder: RunFolder, records: Iterable[Name] = (), transactions: Collection[str] = ()) -> Clients:
    """Read the history of a run folder; an absent one is empty.

    :param records: those whose instant of sending is wanted
    :param transactions: those whose records are wanted, with their instants of sending
    """
    notes: list[str] = []
    columns = ["producer", "seq", "topic", "partition", "outcome", "sent_at", "ended_at"]
    produced = _rows(folder, "produced", columns + (["transaction"] if transactions else []), notes)
    consumed = _rows(
        folder, "consumed", ["consumer", "role", "topic", "partition", "producer", "seq", "read_at"], notes
    )
    if consumed is not None:
        consumed = consumed.filter(pa.compute.equal(consumed["role"], "live"))
    # From the first sending on: what waited for the first ack of all waited for the longest, maybe.
    seen = ((produced, "sent_at"), (produced, "ended_at"), (consumed, "read_at"))
    times = [_seconds(folder, table, column) for table, column in seen if table is not None]
    known = np.concatenate([each[~np.isnan(each)] for each in times]) if times else np.empty(0)
    if produced is None or known.size == 0:
        nothing: dict[str, Any] = {"middles": (), "throughput": (), "latency": (), "silences": ()}
        return Clients(bin_s=_LEAST_BIN_S, **nothing, sent={}, of_transactions={}, notes=notes)
    first, last = float(known.min()), float(known.max())
    bin_s = max(_LEAST_BIN_S, (last - first) / _MOST_BINS)
    edges = first + bin_s * np.arange(int((last - first) / bin_s) + 2)
    sent, ended = _seconds(folder, produced, "sent_at"), _seconds(folder, produced, "ended_at")
    outcome = _text(produced, "outcome")
    latency = [
        Line(name=name, values=values)
        for name, values in zip(
            ("ack, median", "ack, longest"),
            _quantiles(edges, sent[outcome == "acked"], (ended - sent)[outcome == "acked"], (50, 100)),
            strict=True,
        )
    ]
    throughput = [Line(name="acked", values=_rate(edges, ended[outcome == "acked"]))]
    for word in ("failed", "indeterminate"):
        if (outcome == word).any():
            throughput.append(Line(name=word, values=_rate(edges, ended[outcome == word])))
    if consumed is not None and consumed.num_rows:
        read = _seconds(folder, consumed, "read_at")
        consumer = _text(consumed, "consumer")
        for name, which in _readers(consumer):
            throughput.append(Line(name=f"read, {name}", values=_rate(edges, read[which])))
        waited = read - _sent_at(produced, sent, consumed)
        pair = np.array([name.startswith("c") for name in consumer], dtype=bool)
        values = _quantiles(edges, (read - waited)[pair], waited[pair], (100,))
        latency.append(Line(name="read, longest", values=values[0]))
    of_transactions = _of_transactions(produced, transactions)
    return Clients(
        bin_s=round(bin_s, 4),
        middles=[round(float(each), 3) for each in edges[:-1] + bin_s / 2],
        throughput=throughput,
        latency=latency,
        silences=_silences(folder, produced, ended, outcome, consumed),
        sent=_of(produced, sent, {*records, *chain.from_iterable(of_transactions.values())}),
        of_transactions=of_transactions,
        notes=notes,
    )


# --- reading --------------------------------------------------------------------------------------------------------


def _rows(folder: RunFolder, table: TableName, columns: list[str], notes: list[str]) -> pa.Table | None:
    parts = sorted(table_dir(folder.path, table).glob("*.parquet"))
    tables = []
    for part in parts:
        try:
            tables.append(pq.read_table(part, columns=columns))
        except (OSError, pa.ArrowException) as error:
            notes.append(f"history/{table}/{part.name} can't be read: {str(error).splitlines()[0][:160]}")
    try:
        return pa.concat_tables(tables, promote_options="permissive") if tables else None
    except pa.ArrowException as error:
        notes.append(f"history/{table} can't be read: {str(error).splitlines()[0][:160]}")
        return None


def _seconds(folder: RunFolder, table: pa.Table, column: str) -> np.ndarray:
    """Instants as seconds from the case's beginning; not a number where there is none."""
    stamps = table[column].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values: np.ndarray = stamps.to_numpy(zero_copy_only=False).astype(float)
    return values / _MICROSECONDS - folder.began.timestamp()


def _text(table: pa.Table, column: str) -> np.ndarray:
    values: np.ndarray = table[column].to_numpy(zero_copy_only=False)
    return values


def _readers(consumer: np.ndarray) -> Iterable[tuple[str, np.ndarray]]:
    """The pair's own consumers one by one, streams and groups each together."""
    names = sorted(set(consumer))
    for name in [name for name in names if name.startswith("c")][:4]:
        yield name, consumer == name
    for letter, what in (("s", "stream"), ("g", "group")):
        if found := [name for name in names if name.startswith(letter)]:
            yield what, np.isin(consumer, found)


def _sent_at(produced: pa.Table, sent: np.ndarray, consumed: pa.Table) -> np.ndarray:
    """When each record that was read had been sent; not a number where nobody sent it."""
    producer, seq = _text(produced, "producer"), produced["seq"].to_numpy()
    whose, which = _text(consumed, "producer"), consumed["seq"].to_numpy(zero_copy_only=False).astype(float)
    found = np.full(len(whose), np.nan)
    for name in set(producer):
        own, theirs = producer == name, whose == name
        by_seq = np.full(int(seq[own].max()) + 1, np.nan)
        by_seq[seq[own]] = sent[own]
        wanted = which[theirs].astype(np.int64)
        inside = (wanted >= 0) & (wanted < len(by_seq))
        values = np.full(len(wanted), np.nan)
        values[inside] = by_seq[wanted[inside]]
        found[theirs] = values
    return found


def _of_transactions(produced: pa.Table, transactions: Collection[str]) -> dict[str, list[Name]]:
    found: dict[str, list[Name]] = {}
    if transactions:
        rows = produced.select(["transaction", "producer", "seq"])
        rows = rows.filter(pa.compute.is_in(rows["transaction"], pa.array(transactions, pa.string())))
        for row in rows.sort_by([("producer", "ascending"), ("seq", "ascending")]).to_pylist():
            found.setdefault(row["transaction"], []).append((row["producer"], row["seq"]))
    return found


def _of(produced: pa.Table, sent: np.ndarray, records: set[Name]) -> dict[Name, float]:
    if not records:
        return {}
    wanted = np.isin(produced["seq"].to_numpy(), [seq for _, seq in records])
    rows = zip(_text(produced, "producer")[wanted], produced["seq"].to_numpy()[wanted], sent[wanted], strict=True)
    return {(p, int(s)): round(float(at), 3) for p, s, at in rows if (p, int(s)) in records and not np.isnan(at)}


# --- reckoning ------------------------------------------------------------------------------------------------------


def _rate(edges: np.ndarray, instants: np.ndarray) -> list[float | None]:
    """From the first of the instants to the last; before and after, nobody was at it."""
    counts, _ = np.histogram(instants[~np.isnan(instants)], edges)
    there = np.flatnonzero(counts)
    if not there.size:
        return [None] * len(counts)
    rates = [round(float(each), 1) for each in counts / (edges[1] - edges[0])]
    return [rate if there[0] <= index <= there[-1] else None for index, rate in enumerate(rates)]


def _quantiles(
    edges: np.ndarray, instants: np.ndarray, seconds: np.ndarray, percents: Sequence[int]
) -> list[list[float | None]]:
    """Quantiles of the seconds in each bin, in milliseconds."""
    there = ~np.isnan(seconds) & ~np.isnan(instants)
    bins = np.searchsorted(edges, instants[there], "right") - 1
    order = np.argsort(bins, kind="stable")
    bins, values = bins[order], seconds[there][order] * 1000
    bounds = np.searchsorted(bins, np.arange(len(edges)))
    found: list[list[float | None]] = [[None] * (len(edges) - 1) for _ in percents]
    for index in np.unique(bins[(bins >= 0) & (bins < len(edges) - 1)]):
        inside = values[bounds[index] : bounds[index + 1]]
        for line, value in zip(found, np.percentile(inside, percents), strict=True):
            line[index] = round(float(value), 2)
    return found


def _silences(
    folder: RunFolder, produced: pa.Table, ended: np.ndarray, outcome: np.ndarray, consumed: pa.Table | None
) -> list[Silence]:
    windows = _windows(folder)
    acked = _by_partition(produced, ended, outcome == "acked")
    read: dict[tuple[str, int], np.ndarray] = {}
    if consumed is not None and consumed.num_rows:
        pair = np.array([name.startswith("c") for name in _text(consumed, "consumer")], dtype=bool)
        read = _by_partition(consumed, _seconds(folder, consumed, "read_at"), pair)
    nothing = np.empty(0)
    return [
        Silence(
            topic=key[0],
            partition=key[1],
            no_ack=_pauses(acked.get(key, nothing), windows.get(key[0], ())),
            no_read=_pauses(read.get(key, nothing), windows.get(key[0], ())),
        )
        for key in sorted({*_partitions(produced), *read})
    ]


def _partitions(table: pa.Table) -> set[tuple[str, int]]:
    """All that a row names, whatever came of it."""
    rows = table.select(["topic", "partition"]).filter(pa.compute.is_valid(table["partition"]))
    return {(row["topic"], row["partition"]) for row in rows.group_by(["topic", "partition"]).aggregate([]).to_pylist()}


def _windows(folder: RunFolder) -> dict[str, list[Span]]:
    """While a pair was running, by topic."""
    found: dict[str, list[Span]] = {}
    for index, event in enumerate(folder.events):
        if isinstance(event, PairReady):
            stops = (e for e in folder.events[index:] if isinstance(e, PairStopping) and e.topic == event.topic)
            end = next((folder.at(stop.at) for stop in stops), folder.ended)
            found.setdefault(event.topic, []).append((folder.at(event.at), end))
    return found


def _by_partition(table: pa.Table, instants: np.ndarray, which: np.ndarray) -> dict[tuple[str, int], np.ndarray]:
    which = which & ~np.isnan(instants)
    topics, partitions = _text(table, "topic")[which], table["partition"].to_numpy(zero_copy_only=False)[which]
    times, found = instants[which], {}
    for topic in set(topics):
        own = topics == topic
        for partition in np.unique(partitions[own]):
            found[topic, int(partition)] = np.sort(times[own][partitions[own] == partition])
    return found


def _pauses(times: np.ndarray, windows: Sequence[Span]) -> list[Span]:
    """The stretches of the windows that hold none of the times, where they are interruptions."""
    least = interruption_s(times)
    found = []
    for start, end in windows:
        inside = times[np.searchsorted(times, start) : np.searchsorted(times, end, "right")]
        edges = np.concatenate([[start], inside, [end]])
        for index in np.flatnonzero(np.diff(edges) >= least):
            found.append((round(float(edges[index]), 3), round(float(edges[index + 1]), 3)))
    return found


def to_json(line: Line) -> dict[str, Any]:
    """As the page has it."""
    return {"name": line.name, "values": list(line.values)}
