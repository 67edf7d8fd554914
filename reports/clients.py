"""What the clients saw, from the history: throughput, latency, and where they got no acks or no records.

The instants are counted in bins of equal width, so that the page of a long case stays small. A minute has about 600
bins. The tables are read part by part with pyarrow. A part that cannot be read is left out, with a note.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

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

Stretch = tuple[float, float]
"""From one instant to another, in seconds since the case began."""
Name = tuple[str, int]
"""Identifies a record: its producer and its seq."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart: for each bin a value, or None."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class Silence:
    """The interruptions of one partition (:func:`harness.measure.gaps.interruption_s`) while a pair ran."""

    topic: str
    partition: int
    no_ack: Sequence[Stretch]
    no_read: Sequence[Stretch]


@dataclass(frozen=True, kw_only=True)
class Clients:
    """What a case's page draws of the clients.

    :ivar middles: the middle of each bin, in seconds since the case began
    :ivar throughput: records per second
    :ivar latency: milliseconds, in the bin of the instant of sending
    :ivar sent: when each record that was asked for was sent, in seconds since the case began
    :ivar of_transactions: the records of each transaction that was asked for, by producer and seq
    """

    bin_s: float = _LEAST_BIN_S
    middles: Sequence[float] = ()
    throughput: Sequence[Line] = ()
    latency: Sequence[Line] = ()
    silences: Sequence[Silence] = ()
    sent: Mapping[Name, float] = field(default_factory=dict)
    of_transactions: Mapping[str, Sequence[Name]] = field(default_factory=dict)
    notes: Sequence[str] = ()


def look_at_clients(folder: RunFolder, records: Iterable[Name] = (), transactions: Collection[str] = ()) -> Clients:
    """Read the history of a run folder; without one, nothing was seen.

    :param records: look up when these records were sent
    :param transactions: look up when the records of these transactions were sent
    """
    notes: list[str] = []
    columns = ["producer", "seq", "topic", "partition", "outcome", "sent_at", "ended_at"]
    produced = _rows(folder, "produced", columns + (["transaction"] if transactions else []), notes)
    consumed = _rows(
        folder, "consumed", ["consumer", "role", "topic", "partition", "producer", "seq", "read_at"], notes
    )
    if consumed is not None:
        consumed = consumed.filter(pa.compute.equal(consumed["role"], "live"))
    # From the first send on, because the first records often wait longest for their acks.
    seen = ((produced, "sent_at"), (produced, "ended_at"), (consumed, "read_at"))
    times = [_seconds(folder, table, column) for table, column in seen if table is not None]
    known = np.concatenate([each[~np.isnan(each)] for each in times]) if times else np.empty(0)
    if produced is None or known.size == 0:
        return Clients(notes=notes)
    first, last = float(known.min()), float(known.max())
    bin_s = max(_LEAST_BIN_S, (last - first) / _MOST_BINS)
    edges = first + bin_s * np.arange(int((last - first) / bin_s) + 2)
    sent, ended = _seconds(folder, produced, "sent_at"), _seconds(folder, produced, "ended_at")
    outcome = _text(produced, "outcome")
    acked = outcome == "acked"
    middle, longest = _quantiles(edges, sent[acked], (ended - sent)[acked], (50, 100))
    latency = [Line(name="ack, median", values=middle), Line(name="ack, longest", values=longest)]
    throughput = [Line(name="acked", values=_rate(edges, ended[acked]))]
    for word in ("failed", "indeterminate"):
        if (outcome == word).any():
            throughput.append(Line(name=word, values=_rate(edges, ended[outcome == word])))
    if consumed is not None and consumed.num_rows:
        read = _seconds(folder, consumed, "read_at")
        consumer = _text(consumed, "consumer")
        for name, which in _readers(consumer):
            throughput.append(Line(name=f"read, {name}", values=_rate(edges, read[which])))
        pair = _of_pair(consumer)
        sent_then = _sent_at(produced, sent, consumed)[pair]
        [values] = _quantiles(edges, sent_then, read[pair] - sent_then, (100,))
        latency.append(Line(name="read, longest", values=values))
    of_transactions = _of_transactions(produced, transactions)
    return Clients(
        bin_s=round(bin_s, 4),
        middles=[round(float(each), 3) for each in edges[:-1] + bin_s / 2],
        throughput=throughput,
        latency=latency,
        silences=_silences(folder, produced, ended, outcome, consumed),
        sent=_sent_of(produced, sent, {*records, *chain.from_iterable(of_transactions.values())}),
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
    """Instants in seconds since the case began; NaN for null."""
    stamps = table[column].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values: np.ndarray = stamps.to_numpy(zero_copy_only=False).astype(float)
    return values / _MICROSECONDS - folder.began.timestamp()


def _text(table: pa.Table, column: str) -> np.ndarray:
    values: np.ndarray = table[column].to_numpy(zero_copy_only=False)
    return values


def _of_pair(consumer: np.ndarray) -> np.ndarray:
    """Which rows are of the pair's own consumers."""
    return np.array([name.startswith("c") for name in consumer], dtype=bool)


def _readers(consumer: np.ndarray) -> Iterable[tuple[str, np.ndarray]]:
    """The rows of each of the pair's own consumers (at most four), of all streams, and of all groups."""
    names = sorted(set(consumer))
    for name in [name for name in names if name.startswith("c")][:4]:
        yield name, consumer == name
    for letter, what in (("s", "stream"), ("g", "group")):
        if found := [name for name in names if name.startswith(letter)]:
            yield what, np.isin(consumer, found)


def _sent_at(produced: pa.Table, sent: np.ndarray, consumed: pa.Table) -> np.ndarray:
    """For each row of ``consumed``, when its record was sent; NaN if it never was."""
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


def _sent_of(produced: pa.Table, sent: np.ndarray, records: set[Name]) -> dict[Name, float]:
    if not records:
        return {}
    wanted = np.isin(produced["seq"].to_numpy(), [seq for _, seq in records])
    rows = zip(_text(produced, "producer")[wanted], produced["seq"].to_numpy()[wanted], sent[wanted], strict=True)
    return {(p, int(s)): round(float(at), 3) for p, s, at in rows if (p, int(s)) in records and not np.isnan(at)}


# --- calculating ----------------------------------------------------------------------------------------------------


def _rate(edges: np.ndarray, instants: np.ndarray) -> list[float | None]:
    """How many of the instants are in each bin, per second; None before the first and after the last."""
    counts, _ = np.histogram(instants[~np.isnan(instants)], edges)
    there = np.flatnonzero(counts)
    if not there.size:
        return [None] * len(counts)
    rates = [round(float(each), 1) for each in counts / (edges[1] - edges[0])]
    return [rate if there[0] <= index <= there[-1] else None for index, rate in enumerate(rates)]


def _quantiles(
    edges: np.ndarray, instants: np.ndarray, seconds: np.ndarray, percents: Sequence[int]
) -> list[list[float | None]]:
    """For each percentile, its value in each bin, in milliseconds; None for an empty bin."""
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
        read = _by_partition(consumed, _seconds(folder, consumed, "read_at"), _of_pair(_text(consumed, "consumer")))
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
    """All partitions that records were sent to, whatever their outcome."""
    rows = table.select(["topic", "partition"]).filter(pa.compute.is_valid(table["partition"]))
    return {(row["topic"], row["partition"]) for row in rows.group_by(["topic", "partition"]).aggregate([]).to_pylist()}


def _windows(folder: RunFolder) -> dict[str, list[Stretch]]:
    """When a pair ran, by topic."""
    found: dict[str, list[Stretch]] = {}
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


def _pauses(times: np.ndarray, windows: Sequence[Stretch]) -> list[Stretch]:
    """The stretches of the windows without any of the times that are long enough to be interruptions."""
    least = interruption_s(times)
    found = []
    for start, end in windows:
        inside = times[np.searchsorted(times, start) : np.searchsorted(times, end, "right")]
        edges = np.concatenate([[start], inside, [end]])
        for index in np.flatnonzero(np.diff(edges) >= least):
            found.append((round(float(edges[index]), 3), round(float(edges[index + 1]), 3)))
    return found
