"""Reads the rows of single records, and picks the records of a verdict that get a story.

pyarrow's filters read only the row groups that can hold the record, also in a large history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from harness.checkers.verdict import KINDS
from harness.explain.segments import Name
from harness.history.tables import TableName, table_dir

WORST = 20

Place = tuple[str, int, int | None]
"""Topic, partition and offset; None if the offset is unknown."""
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The rows of one record.

    :ivar sent: its row of ``produced``; None if no producer sent it
    :ivar reads: its rows of ``consumed``
    :ivar others: rows of other records that were acked or read at one of its places
    """

    name: Name
    sent: Row | None
    reads: tuple[Row, ...]
    others: tuple[Row, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it was acked (or, if it was not, sent to), and where it was read."""
        rows = ([] if self.sent is None or self.sent["partition"] is None else [self.sent]) + list(self.reads)
        return tuple(dict.fromkeys((row["topic"], row["partition"], row["offset"]) for row in rows))


def gather(run_dir: Path, name: Name) -> Facts | None:
    """Read the rows of one record; None if there are none.

    :raises HistoryError: there is no history
    """
    this = (pc.field("producer") == name[0]) & (pc.field("seq") == name[1])
    sent, reads = _rows(run_dir, "produced", this), _rows(run_dir, "consumed", this)
    if not sent and not reads:
        return None
    facts = Facts(name=name, sent=sent[0] if sent else None, reads=tuple(reads), others=())
    others = [
        row
        for topic, partition, offset in facts.places
        if offset is not None
        for table in ("produced", "consumed")
        for row in _rows(run_dir, table, _at(topic, partition, offset))
        if (row["producer"], row["seq"]) != name
    ]
    return Facts(name=name, sent=facts.sent, reads=facts.reads, others=tuple(others))


def worst_records(run_dir: Path, verdict: Row) -> dict[Name, list[str]]:
    """The records in the examples of a verdict, at most :data:`WORST`, each with the kinds that it shows.

    :param verdict: the content of verdict.json
    """
    found: dict[Name, list[str]] = {}
    told = [anomaly for anomaly in verdict["anomalies"] if KINDS[anomaly["kind"]].leads_to != "valid"]
    told.sort(key=lambda anomaly: list(KINDS).index(anomaly["kind"]))
    # One example of each kind in turn, the worst kind first, so that every kind gets a story.
    by_turns = zip_longest(*([(anomaly["kind"], example) for example in anomaly["examples"]] for anomaly in told))
    for kind, example in (shown for turn in by_turns for shown in turn if shown is not None):
        for name in _names(run_dir, example):
            if name in found or len(found) < WORST:
                kinds = found.setdefault(name, [])
                kinds += [kind] if kind not in kinds else []
    return found


def _names(run_dir: Path, example: Row) -> list[Name]:
    """The records that an example names, and the record that was acked at its place."""
    if "transaction" in example:
        rows = _rows(run_dir, "produced", pc.field("transaction") == example["transaction"])[:3]
    elif example.get("producer") is not None and example.get("seq") is not None:
        rows = [example]
        if example.get("offset") is not None:
            rows += _rows(run_dir, "produced", _at(example["topic"], example["partition"], example["offset"]))
    else:
        return []
    return list(dict.fromkeys((row["producer"], row["seq"]) for row in rows))


def _at(topic: str, partition: int, offset: int) -> pc.Expression:
    return (pc.field("topic") == topic) & (pc.field("partition") == partition) & (pc.field("offset") == offset)


def _rows(run_dir: Path, table: TableName, which: pc.Expression) -> list[Row]:
    parts = sorted(str(path) for path in table_dir(run_dir, table).glob("*.parquet"))
    return ds.dataset(parts, format="parquet").to_table(filter=which).to_pylist() if parts else []
