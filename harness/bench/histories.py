"""Generates histories of any length at disk speed, to measure the judge with.

A run of 10^8 records takes hours, and a verdict depends on the rows only. The rows are as the PySpark clients write
them: producers send round-robin and are acked by batch, a live consumer is handed records by fetch, and a drain reads
one partition after the other. They are generated in slices, so that memory does not grow with the history. A history is
valid by construction, except for what :class:`Load` asks for.

The CRC-32s are hashes of the records' names, since the judge compares them and sees no values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from harness.checkers.columns import Ints
from harness.checkers.large_history.fingerprints import Columns
from harness.history.tables import SCHEMAS, HistoryWriter, TableName

SLICE = 1 << 20
_BATCH, _FETCH = 200, 500
_STARTED_US, _EVERY_US = 1_700_000_000_000_000, 10
ABORTED_OF, ABORTED = 50, 7
"""Of every ``ABORTED_OF`` successive transactions, the one at index ``ABORTED`` is aborted."""
_OUTCOMES = np.array(["acked", "failed", "indeterminate"])

Plant = Callable[[Columns, Columns, Columns, Ints], None]
"""Changes the last slice of a history: what was sent, the reads of the live consumer and of the drain, and how far the
drain read in each partition."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The records of a generated history, and what becomes of them.

    :ivar transaction_of: records in each transaction; 0: no transactions. One transaction in 50 is aborted
    :ivar storm: this fraction of all records, in the middle, is indeterminate; every second one of them was written
    :ivar lost_one_in: one in so many offsets reaches neither the consumer nor the drain; 0: all reach them
    :ivar planted: called at the end, to plant anomalies
    :ivar scattered: each slice is shuffled and split into so many parts, which are read one after the other
    """

    records: int
    producers: int = 2
    partitions: int = 6
    transaction_of: int = 0
    storm: float = 0.0
    lost_one_in: int = 0
    planted: Collection[Plant] = ()
    scattered: int = 1


def generate(run_dir: Path, load: Load) -> int:
    """Write a run folder with a history and run.json; the same load gives the same history.

    :returns: how many rows it has
    """
    run_dir.mkdir(parents=True)
    (run_dir / "run.json").write_text(json.dumps({"run_id": f"made-up-{load.records}"}))
    return _Cluster(run_dir, load).run()


class _Cluster:
    """Carries the state of a history from slice to slice."""

    def __init__(self, run_dir: Path, load: Load) -> None:
        self.run_dir, self.load = run_dir, load
        self.writers: dict[str, HistoryWriter] = {}
        self.dice = np.random.default_rng(0)
        self.producers = np.array([f"p{number}" for number in range(load.producers)])
        self.sent = np.zeros(load.producers, np.int64)
        self.ends = np.zeros(load.partitions, np.int64)
        self.handed = {who: np.zeros(load.partitions, np.int64) for who in ("c0", "drain")}
        self.rows = 0

    def run(self) -> int:
        records = self.load.records
        for start in range(0, records, SLICE):
            sent = self._send(start, min(SLICE, records - start))
            reads = {who: self._hand(who, sent) for who in self.handed}
            ends = self.ends.copy()
            if start + SLICE >= records:
                for plant in self.load.planted:
                    plant(sent, reads["c0"], reads["drain"], ends)
            for number, name in enumerate(self.producers):
                self._write_sent(str(name), {each: column[sent["pid"] == number] for each, column in sent.items()})
            for who, columns in reads.items():
                self._write_reads(who, columns)
        drained = {"partition": np.arange(len(ends)), "end_offset": np.maximum(ends, self.ends), "position": ends}
        self._write("ends", "drained", drained, consumer="drain", isolation=self._isolation("drain"))
        return self.rows

    def _send(self, start: int, count: int) -> Columns:
        """Send the next records; they are in the order of the log."""
        load = self.load
        number = np.arange(start, start + count)
        pid = number % load.producers
        seq = self.sent[pid] + (number - start) // load.producers
        np.add.at(self.sent, pid, 1)
        partition = seq % load.partitions
        batch = seq // load.partitions // _BATCH
        order = np.lexsort((seq, pid, batch, partition))
        pid, seq, partition, number = pid[order], seq[order], partition[order], number[order]
        transaction = seq // load.transaction_of if load.transaction_of else np.full(count, -1)
        # A transaction ends with a marker, which takes an offset and is handed to no consumer.
        marker = (seq + load.partitions) // (load.transaction_of or 1) != transaction
        width = 1 + (marker & (transaction >= 0))
        total = np.r_[0, np.cumsum(width)]
        starts = np.searchsorted(partition, np.arange(load.partitions + 1))
        off = total[:-1] - total[starts[partition]] + self.ends[partition]
        self.ends += total[starts[1:]] - total[starts[:-1]]
        middle = load.records // 2
        storm = (number >= middle) & (number < middle + load.storm * load.records)
        return {
            "pid": pid,
            "seq": seq,
            "partition": partition,
            "offset": off,
            "crc32": crc_of(pid, seq),
            "outcome": np.where(storm, 2, 0),
            "written": ~(storm & (seq % 2 == 1)),
            "transaction": transaction,
            "at": number,
        }

    def _hand(self, who: str, sent: Columns) -> Columns:
        """The reads of these records by a consumer, in the order of the log."""
        chosen = sent["written"].copy()
        if self._isolation(who) == "read_committed":
            chosen &= sent["transaction"] % ABORTED_OF != ABORTED
        if self.load.lost_one_in:
            chosen &= sent["offset"] % self.load.lost_one_in != 17
        columns = {name: sent[name][chosen] for name in ("pid", "seq", "partition", "offset", "crc32", "at")}
        starts = np.searchsorted(columns["partition"], np.arange(self.load.partitions + 1))
        within = np.arange(len(columns["seq"])) - starts[columns["partition"]]
        columns["position"] = within + self.handed[who][columns["partition"]]
        columns["session"] = np.zeros(len(within), np.int64)
        self.handed[who] += np.diff(starts)
        return columns

    def _isolation(self, who: str) -> str:
        return "read_committed" if who == "c0" and self.load.transaction_of else "read_uncommitted"

    def _write_sent(self, name: str, sent: Columns) -> None:
        acks = np.lexsort((sent["seq"], sent["partition"], sent["seq"] // self.load.partitions // _BATCH))
        sent = {each: column[acks] for each, column in sent.items()}
        acked, number = sent["outcome"] == 0, sent["transaction"]
        named = [None if each < 0 else f"{name}-{each}" for each in number.tolist()]
        ends = np.where(number % ABORTED_OF == ABORTED, "aborted", "committed")
        columns = {
            **{each: sent[each] for each in ("seq", "partition", "crc32")},
            "offset": pa.array(sent["offset"], mask=~acked),
            "outcome": pa.array(_OUTCOMES[sent["outcome"]]),
            "error": pa.array(np.where(acked, "", "_TIMED_OUT"), mask=acked),
            "sent_at": _time(sent["at"]),
            "ended_at": _time(sent["at"] + 500),
            "transaction": pa.array(named, pa.string()),
            "transaction_outcome": pa.array(ends, mask=number < 0),
        }
        self._write(name, "produced", columns, producer=name, key=None)

    def _write_reads(self, who: str, reads: Columns) -> None:
        if who == "c0":
            fetches = np.lexsort((reads["position"], reads["partition"], reads["position"] // _FETCH, reads["session"]))
            reads = {each: column[fetches] for each, column in reads.items()}
        columns = {
            **{each: reads[each] for each in ("position", "session", "partition", "offset")},
            **{each: pa.array(reads[each], mask=reads["pid"] < 0) for each in ("seq", "crc32")},
            "producer": pa.array(self.producers[reads["pid"]], mask=reads["pid"] < 0),
            "read_at": _time(reads["at"] + 1000),
        }
        role = "drain" if who == "drain" else "live"
        self._write(who, "consumed", columns, consumer=who, role=role, isolation=self._isolation(who))

    def _write(self, stem: str, table: TableName, columns: Mapping[str, Ints | pa.Array], **same: str | None) -> None:
        length = len(next(iter(columns.values())))
        schema = SCHEMAS[table]
        filled = [
            pa.array(columns[name])
            if name in columns
            else pa.repeat(pa.scalar({"topic": "orders", **same}[name], schema.field(name).type), length)
            for name in schema.names
        ]
        whole = pa.table(filled, schema.names)
        self.rows += length
        if self.load.scattered > 1:
            whole = whole.take(pa.array(self.dice.permutation(length)))
        bounds = [length * deal // self.load.scattered for deal in range(self.load.scattered + 1)]
        for deal, (start, end) in enumerate(pairwise(bounds)):
            name = f"{deal:03d}-{stem}" if self.load.scattered > 1 else stem
            cards = whole.slice(start, end - start)
            self.writers.setdefault(name, HistoryWriter(self.run_dir, table, name)).write(cards)


def crc_of(pid: Ints, seq: Ints) -> Ints:
    """A hash of 32 bits of the record `seq` of producer number `pid`."""
    mixed = (pid.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + seq.astype(np.uint64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(32)).astype(np.int64)


def _time(number: Ints) -> pa.Array:
    return pa.array(_STARTED_US + number * _EVERY_US).cast(pa.timestamp("us", tz="UTC"))
