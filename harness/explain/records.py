"""Reads the rows of single records, and picks the records of a verdict that get a story.

pyarrow's filters read only the row groups that can hold the record, also in a large history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import TypedDict, final

import pyarrow.compute as pc
import pyarrow.dataset as ds

from harness.checkers.verdict import KINDS
from harness.explain.segments import Name
from harness.history.run_folder import Example, VerdictRecord
from harness.history.tables import TableName, table_dir

WORST = 20

Place = tuple[str, int, int | None]
"""Topic, partition and offset; None if the offset is unknown."""


@final
class SentRow(TypedDict):
    """A row of ``produced``, as :mod:`harness.history.tables` describes it."""

    producer: str
    seq: int
    topic: str
    partition: int | None
    offset: int | None
    outcome: str
    error: str | None
    crc32: int
    sent_at: datetime | None
    ended_at: datetime | None
    transaction: str | None
    transaction_outcome: str | None


@final
class ReadRow(TypedDict):
    """A row of ``consumed``; producer and seq are None if no producer of the run sent the record."""

    consumer: str
    role: str
    session: int
    topic: str
    partition: int
    offset: int
    producer: str | None
    seq: int | None
    crc32: int | None
    read_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The rows of one record.

    :ivar sent: its row of ``produced``; None if no producer sent it
    :ivar reads: its rows of ``consumed``
    :ivar others: rows of other records that were acked or read at one of its places
    """

    name: Name
    sent: SentRow | None
    reads: tuple[ReadRow, ...]
    others: tuple[SentRow | ReadRow, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it was acked (or, if it was not, sent to), and where it was read."""
        read = [(row["topic"], row["partition"], row["offset"]) for row in self.reads]
        if self.sent is None or self.sent["partition"] is None:
            return tuple(dict.fromkeys(read))
        return tuple(dict.fromkeys([(self.sent["topic"], self.sent["partition"], self.sent["offset"]), *read]))


def gather(run_dir: Path, name: Name) -> Facts | None:
    """Read the rows of one record; None if there are none.

    :raises HistoryError: there is no history
    """
    this = (pc.field("producer") == name[0]) & (pc.field("seq") == name[1])
    sent, reads = _sent(run_dir, this), _read(run_dir, this)
    if not sent and not reads:
        return None
    facts = Facts(name=name, sent=sent[0] if sent else None, reads=tuple(reads))
    rows: list[SentRow | ReadRow] = []
    for here in (_at(*place) for place in facts.places if place[2] is not None):
        rows += _sent(run_dir, here)
        rows += _read(run_dir, here)
    return replace(facts, others=tuple(row for row in rows if (row["producer"], row["seq"]) != name))


def worst_records(run_dir: Path, verdict: VerdictRecord) -> dict[Name, list[str]]:
    """Return the records in a verdict's examples, at most :data:`WORST`, each with the kinds of its anomalies."""
    found: dict[Name, list[str]] = {}
    bad = [anomaly for anomaly in verdict.anomalies if KINDS[anomaly.kind].leads_to != "valid"]
    bad.sort(key=lambda anomaly: list(KINDS).index(anomaly.kind))
    # One example of each kind in turn, the worst kind first, so that every kind gets a story.
    by_turns = zip_longest(*([(anomaly.kind, example) for example in anomaly.examples] for anomaly in bad))
    for kind, example in (shown for turn in by_turns for shown in turn if shown is not None):
        for name in _names(run_dir, example):
            if name in found or len(found) < WORST:
                kinds = found.setdefault(name, [])
                kinds += [kind] if kind not in kinds else []
    return found


def _names(run_dir: Path, example: Example) -> list[Name]:
    """Return the records that an example names, and the record that was acked at its place."""
    if "transaction" in example:
        return _named(_sent(run_dir, pc.field("transaction") == example["transaction"])[:3])
    producer, seq = example.get("producer"), example.get("seq")
    if producer is None or seq is None:
        return []
    names = [(str(producer), int(seq))]
    if example.get("offset") is not None:
        names += _named(_sent(run_dir, _at(example["topic"], example["partition"], example["offset"])))
    return list(dict.fromkeys(names))


def _named(rows: Iterable[SentRow]) -> list[Name]:
    return list(dict.fromkeys((row["producer"], row["seq"]) for row in rows))


def _at(topic: object, partition: object, offset: object) -> pc.Expression:
    return (pc.field("topic") == topic) & (pc.field("partition") == partition) & (pc.field("offset") == offset)


def _sent(run_dir: Path, which: pc.Expression) -> list[SentRow]:
    return _rows(run_dir, "produced", which)  # type: ignore[return-value]


def _read(run_dir: Path, which: pc.Expression) -> list[ReadRow]:
    return _rows(run_dir, "consumed", which)  # type: ignore[return-value]


def _rows(run_dir: Path, table: TableName, which: pc.Expression) -> list[dict[str, object]]:
    parts = sorted(str(path) for path in table_dir(run_dir, table).glob("*.parquet"))
    return ds.dataset(parts, format="parquet").to_table(filter=which).to_pylist() if parts else []
