"""Histories to judge: some written by hand, with planted anomalies; others random, and right by construction."""

from __future__ import annotations

import json
import random
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.checkers.judge import judge_tables
from harness.checkers.settings import read_settings
from harness.checkers.verdict import Verdict
from harness.history.tables import CONSUMED, DRAINED, PRODUCED, HistoryWriter

Row = dict[str, Any]


def stored_rows(run_dir: Path, table: str, **where: object) -> list[Row]:
    """The rows of a table in a run folder, file by file, that have these values."""
    parts = sorted((run_dir / "history" / table).glob("*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    return [row for row in rows if all(row[name] == value for name, value in where.items())]


def anomaly_counts(verdict: Verdict) -> dict[str, int]:
    """How many anomalies of each kind a verdict has."""
    return {anomaly.kind: anomaly.count for anomaly in verdict.anomalies}


@dataclass
class Story:
    """A history as rows of its tables, and its run.json."""

    produced: list[Row] = field(default_factory=list)
    consumed: list[Row] = field(default_factory=list)
    drained: list[Row] | None = field(default_factory=list)
    run: Row = field(default_factory=dict)

    def send(self, seq: int, offset: int | None = None, **other: object) -> Row:
        """Add a record of producer p to t-0: acked at `offset`, or indeterminate without one."""
        row = dict.fromkeys(PRODUCED.names) | {
            "producer": "p",
            "seq": seq,
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "outcome": "indeterminate" if offset is None else "acked",
            "crc32": crc("p", seq),
        }
        self.produced.append(row | other)
        return self.produced[-1]

    def read(self, offset: int, seq: int | None = None, by: str = "live", **other: object) -> Row:
        """Add a read of t-0 by a consumer, whose name says its role and isolation; seq is the offset by default."""
        seq = offset if seq is None else seq
        position = sum(row["consumer"] == by for row in self.consumed)
        row = dict.fromkeys(CONSUMED.names) | {
            "consumer": by,
            "role": "drain" if by.startswith("drain") else "live",
            "position": position,
            "session": 0,
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "producer": "p",
            "seq": seq,
            "crc32": crc("p", seq),
            "isolation": "read_committed" if by.endswith("-rc") else "read_uncommitted",
        }
        self.consumed.append(row | other)
        return self.consumed[-1]

    def drain(self, *offsets: int, by: str = "drain", end: int | None = None, position: int | None = None) -> None:
        """Reads of t-0 by a drain, each offset's seq its number; to the end, unless `position` says otherwise."""
        for offset in offsets:
            self.read(offset, by=by)
        self.end(by=by, end=max(offsets, default=-1) + 1 if end is None else end, position=position)

    def end(self, end: int, by: str = "drain", position: int | None = None, partition: int = 0) -> None:
        """A row of drained."""
        assert self.drained is not None
        isolation = "read_committed" if by.endswith("-rc") else "read_uncommitted"
        row = {"consumer": by, "isolation": isolation, "topic": "t", "partition": partition}
        self.drained.append(row | {"end_offset": end, "position": end if position is None else position})

    def tables(self) -> tuple[pa.Table, pa.Table, pa.Table | None]:
        """The three tables."""
        produced = pa.Table.from_pylist(self.produced, PRODUCED)
        consumed = pa.Table.from_pylist(self.consumed, CONSUMED)
        return produced, consumed, None if self.drained is None else pa.Table.from_pylist(self.drained, DRAINED)

    def write(self, run_dir: Path) -> Path:
        """A run folder with this history."""
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "run.json").write_text(json.dumps(self.run))
        for name, table in zip(("produced", "consumed", "drained"), self.tables(), strict=True):
            if table is not None:
                HistoryWriter(run_dir, name, "part").write(table)  # type: ignore[arg-type]
        return run_dir

    def judged(self, scratch: Path) -> Verdict:
        """The verdict, without Spark; run.json goes through a file, as it always does."""
        (scratch / "run.json").write_text(json.dumps(self.run))
        return judge_tables(*self.tables(), read_settings(scratch))


def story_of(count: int = 3) -> Story:
    """A valid history: all records were acked, read and drained."""
    story = Story(run={"run_id": "a run"})
    for seq in range(count):
        story.send(seq, seq)
        story.read(seq)
    story.drain(*range(count))
    return story


def without_twins(rows: list[Row]) -> list[Row]:
    """Rows of ``consumed``, but for those that say of a read what another one says: no history has such."""
    names = ("consumer", "role", "topic", "partition", "session", "position", "offset")
    return list({tuple(row[name] for name in names): row for row in reversed(rows)}.values())[::-1]


def crc(producer: str, seq: int) -> int:
    return zlib.crc32(f"{producer} {seq}".encode())


@dataclass
class _Entry:
    """An offset of a log: a record, or a transaction's marker."""

    record: Row | None
    committed: bool
    open: bool = False
    """Of a transaction that never ended: from here on, read_committed readers are shown nothing."""


def right_story(dice: random.Random, *, drains_to_end: bool = True) -> Story:
    """A history of a cluster that broke nothing: any number of topics, partitions, producers, consumers, drains."""
    return _Cluster(dice, drains_to_end).story


class _Cluster:
    """A small simulated cluster that keeps all promises, and its clients."""

    def __init__(self, dice: random.Random, drains_to_end: bool) -> None:
        self.dice = dice
        self.story = Story()
        self.drains_to_end = drains_to_end
        self.topics = [f"topic-{n}" for n in range(dice.choice((1, 1, 2)))]
        self.logs: dict[tuple[str, int], list[_Entry]] = {
            (topic, partition): [] for topic in self.topics for partition in range(dice.randint(1, 3))
        }
        self.produce()
        self.delete()
        self.live()
        self.drain()
        for rows in (self.story.produced, self.story.consumed, self.story.drained or []):
            dice.shuffle(rows)

    def sometimes(self, chance: float) -> bool:
        return self.dice.random() < chance

    def produce(self) -> None:
        if self.sometimes(0.3):
            self.story.run["compacted"] = [self.dice.choice(self.topics)]
        transactional = self.sometimes(0.5)
        names = [f"p{number}" for number in range(self.dice.randint(1, 3))]
        in_transactions = {name for name in names if transactional and self.sometimes(0.7)}
        sent = dict.fromkeys(names, 0)
        for number in range(self.dice.randint(0, 10)):
            name = self.dice.choice(names)
            count = self.dice.randint(1, 6)
            transaction = f"{name}-{number}" if name in in_transactions else None
            self.batch(name, range(sent[name], sent[name] + count), transaction)
            sent[name] += count

    def batch(self, name: str, seqs: range, transaction: str | None) -> None:
        outcome = self.dice.choices(("committed", "aborted", "indeterminate"), (6, 2, 2))[0] if transaction else None
        committed = outcome in (None, "committed") or (outcome == "indeterminate" and self.sometimes(0.5))
        stays_open = outcome == "indeterminate" and not committed and not self.drains_to_end and self.sometimes(0.5)
        touched = set()
        for seq in seqs:
            where = self.dice.choice(sorted(self.logs))
            key = self.dice.choice((None, "a", "b", "c"))
            row = dict.fromkeys(PRODUCED.names) | {"producer": name, "seq": seq, "topic": where[0], "key": key}
            row |= {"partition": where[1], "crc32": crc(name, seq), "transaction": transaction}
            row |= {"transaction_outcome": outcome, "offset": None}
            row["outcome"] = self.dice.choices(("acked", "failed", "indeterminate"), (8, 1, 1))[0]
            present = row["outcome"] == "acked" or (row["outcome"] == "indeterminate" and self.sometimes(0.5))
            if outcome == "indeterminate" and committed and row["outcome"] == "indeterminate":
                present = True  # A transaction that was committed is there as a whole.
            if present:
                if row["outcome"] == "acked":
                    row["offset"] = len(self.logs[where])
                self.logs[where].append(_Entry(record=row, committed=committed, open=stays_open))
                touched.add(where)
            if row["outcome"] != "acked" and self.sometimes(0.5):
                row["partition"] = None
            self.story.produced.append(row)
        if transaction and not stays_open:
            for where in touched:
                self.logs[where].append(_Entry(record=None, committed=True))

    def end(self, where: tuple[str, int], isolation: str) -> int:
        """How far a reader can get: to the end, or to the last stable offset."""
        log = self.logs[where]
        opened = (offset for offset, entry in enumerate(log) if entry.open)
        return next(opened, len(log)) if isolation == "read_committed" else len(log)

    def delete(self) -> None:
        self.gone: dict[tuple[str, int], int] = defaultdict(int)
        for where, log in self.logs.items():
            if log and self.sometimes(0.15):
                below = self.dice.randint(1, len(log))
                self.story.run.setdefault("deleted_below", {}).setdefault(where[0], {})[str(where[1])] = below
                self.gone[where] = self.dice.randint(0, below)
        self.compacted_away: dict[tuple[str, int], set[int]] = defaultdict(set)
        for where, log in self.logs.items():
            if where[0] not in self.story.run.get("compacted", []):
                continue
            last: dict[str, int] = {}
            for offset in reversed(range(len(log))):
                record = log[offset].record
                if record is None or record["key"] is None or not log[offset].committed:
                    continue
                if record["key"] in last and self.sometimes(0.7):
                    self.compacted_away[where].add(offset)
                elif record["outcome"] == "acked" and record["transaction_outcome"] != "indeterminate":
                    last.setdefault(record["key"], offset)

    def hand(self, consumer: str, role: str, isolation: str, session: int, where: tuple[str, int], offset: int) -> bool:
        """Give a consumer the record at an offset, if there is one that it may see."""
        entry = self.logs[where][offset]
        if entry.record is None or (isolation == "read_committed" and not entry.committed):
            return False
        key = (consumer, where)
        self.positions[key] += 1
        self.story.consumed.append(
            dict.fromkeys(CONSUMED.names)
            | {"consumer": consumer, "role": role, "isolation": isolation, "session": session, "offset": offset}
            | {"topic": where[0], "partition": where[1], "position": self.positions[key] - 1}
            | {name: entry.record[name] for name in ("producer", "seq", "crc32")}
        )
        return True

    def live(self) -> None:
        self.positions: dict[Any, int] = defaultdict(int)
        for group in range(self.dice.randint(0, 3)):
            members = [f"c{group}-{number}" for number in range(self.dice.choice((1, 1, 2, 3)))]
            isolation = self.dice.choice(("read_committed", "read_uncommitted"))
            if len(members) > 1:
                self.story.run.setdefault("groups", {}).update(dict.fromkeys(members, f"g{group}"))
            for where in self.logs:
                sessions: dict[str, int] = defaultdict(int)
                end = self.end(where, isolation)
                at = self.dice.choice((0, 0, self.dice.randint(0, end)))
                for _ in range(self.dice.randint(1, 3)):
                    member = self.dice.choice(members)
                    stop = self.dice.randint(at, end)
                    for offset in range(at, stop):
                        self.hand(member, "live", isolation, sessions[member], where, offset)
                    for name in members:
                        sessions[name] += 1
                    at = self.dice.randint(at, stop)  # The committed offset may be behind the reads.

    def drain(self) -> None:
        assert self.story.drained is not None
        for number in range(self.dice.choice((1, 1, 2))):
            isolation = self.dice.choice(("read_committed", "read_uncommitted"))
            for where, log in self.logs.items():
                stop = len(log) if self.drains_to_end else self.dice.randint(0, self.end(where, isolation))
                for offset in range(self.gone[where], stop):
                    if offset not in self.compacted_away[where]:
                        self.hand(f"drain-{number}", "drain", isolation, 0, where, offset)
                row = {"consumer": f"drain-{number}", "isolation": isolation, "topic": where[0], "partition": where[1]}
                if self.drains_to_end or self.sometimes(0.7):
                    self.story.drained.append(row | {"end_offset": len(log), "position": stop})
        if not self.drains_to_end and self.sometimes(0.3):
            self.story.drained = None
