"""The judge: a stored history in, a verdict out; no cluster in sight.

What each kind of anomaly is, is defined in the contract and found by the checkers beside this file, one a family.
This module only puts them together, and has them work in Spark tasks, beside the files. A usual history is judged in
one task, and nothing but the verdict comes back to the driver. Of one that is too large for that, what is clean is
taken out first, in as many tasks as there are cores (:mod:`harness.checkers.large_history.select`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from harness.checkers.columns import NONE
from harness.checkers.delivery import Delivery, check_delivery
from harness.checkers.encoded_history import ACKED, FAILED, INDETERMINATE, EncodedHistory, encode
from harness.checkers.findings import Findings
from harness.checkers.large_history.select import Sizes, find_rest
from harness.checkers.offsets import check_places
from harness.checkers.ordering import check_ordering
from harness.checkers.reads import check_reads
from harness.checkers.settings import RunSettings, read_settings, refuse_unpromised
from harness.checkers.transactions import check_transactions
from harness.checkers.verdict import (
    KINDS,
    MAX_EXAMPLES,
    Anomaly,
    Counts,
    Verdict,
    VerdictWord,
    conclude,
    could_not_decide,
)
from harness.errors import HistoryError, JbodError
from harness.history.tables import SCHEMAS, Piece, TableName, load_table, pieces, table_dir
from harness.history.write_ahead import promised
from harness.host.atomic_write import write_atomically
from harness.spark.spark_map import SparkMap, cores, spark_map_over

VERDICT_FILE = "verdict.json"

AT_ONCE = 1_000_000
"""So many rows are judged in memory, in one task: some 250 MB, and as quick as any way up to there."""

SIZES = Sizes()

_WITH_ROWS: tuple[TableName, ...] = ("produced", "consumed")

_NOT_JUDGED_BY = ("error", "sent_at", "ended_at", "read_at")
"""Columns that are for people: no kind depends on them."""


def judge(spark: SparkSession, run_dir: Path) -> Verdict:
    """The verdict on the run in `run_dir`, from its history and run.json alone; writes nothing.

    A judge that fails answers `unknown` with the reason, never `valid`.

    :raises HistoryError: run.json or the history is missing, cut off, of other columns, or has rows that no history
        has (a null or a word that the column doesn't allow, a record sent twice, a read told twice, a transaction of
        two outcomes)
    """
    settings = replace(read_settings(run_dir), promised=promised(run_dir))
    run_dir = run_dir.absolute()
    stored = {name: pieces(run_dir, name) for name in _WITH_ROWS}
    rows = {name: sum(piece.rows for piece in of_table) for name, of_table in stored.items()}
    try:
        if sum(rows.values()) > AT_ONCE:
            return judge_large(run_dir, stored, settings, spark_map_over(spark), cores(spark), SIZES)
        [verdict] = spark_map_over(spark)(lambda where: _judged(where, settings), [run_dir])
        return verdict
    except HistoryError as error:
        raise error if str(run_dir) in str(error) else HistoryError(f"{run_dir}: {error}") from error
    except JbodError as error:
        why = str(error)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    counts = Counts(sent=rows["produced"], read=rows["consumed"])
    return could_not_decide(settings.run_id, counts, next(iter(why.splitlines()), ""))


def write_verdict(run_dir: Path, verdict: Verdict) -> Path:
    """Write verdict.json into `run_dir`, whole or not at all, and return its path."""
    return write_atomically(run_dir / VERDICT_FILE, verdict.text())


def _judged(run_dir: Path, settings: RunSettings) -> Verdict:
    """What a task does: read the tables and judge them."""

    def load(table: TableName) -> pa.Table:
        return load_table(run_dir, table, [name for name in SCHEMAS[table].names if name not in _NOT_JUDGED_BY])

    drained = load("drained") if table_dir(run_dir, "drained").exists() else None
    return judge_tables(load("produced"), load("consumed"), drained, settings)


def judge_large(
    run_dir: Path,
    stored: Mapping[TableName, Sequence[Piece]],
    settings: RunSettings,
    spread: SparkMap,
    lots: int,
    sizes: Sizes,
) -> Verdict:
    """The verdict of :func:`judge`, to the byte, in memory that hardly grows with the history.

    :param stored: ``produced`` and ``consumed``
    :param spread: how work is given to tasks
    :param lots: how many tasks read the history
    :raises HistoryError: as :func:`judge`
    :raises Inconclusive: too much of it has something to look into
    """
    drained = load_table(run_dir, "drained") if table_dir(run_dir, "drained").exists() else None
    rest = find_rest(stored, drained, settings, spread, lots, sizes)
    return judge_tables(rest.produced, rest.consumed, rest.drained, settings, (rest.counts, rest.unrecorded))


def _counts(rows: EncodedHistory) -> Counts:
    def of(outcome: int) -> int:
        return int((rows.sent.outcome == outcome).sum())

    return Counts(
        sent=len(rows.sent),
        acked=of(ACKED),
        failed=of(FAILED),
        indeterminate=of(INDETERMINATE),
        read=len(rows.reads),
    )


def _unrecorded(rows: EncodedHistory, settings: RunSettings) -> int:
    """How many records were promised a row in ``produced`` and have none."""
    sent, number = rows.sent, {name: pid for pid, name in enumerate(rows.producers)}
    refuse_unpromised((rows.producers[pid] for pid in np.unique(sent.pid)), settings)
    return sum(
        below - int(((sent.pid == number.get(name, NONE)) & (sent.seq >= 0) & (sent.seq < below)).sum())
        for name, below in settings.promised.items()
    )


def judge_tables(
    produced: pa.Table,
    consumed: pa.Table,
    drained: pa.Table | None,
    settings: RunSettings,
    known: tuple[Counts, int] | None = None,
) -> Verdict:
    """The verdict on a history that is in memory; columns as the contract has them, times and errors left out or not.

    :param known: of the whole history, where the tables are only what is left to judge of it: the counts, and how many
        records were promised a row in ``produced`` and have none
    :raises HistoryError: a row that no history has, as :func:`judge`
    """
    rows = encode(produced, consumed, drained, settings)
    del produced, consumed, drained  # Of a large history, a good part of the memory.
    delivery = Delivery(rows=rows, sessions=settings.producer_sessions)
    counts, unrecorded = known or (_counts(rows), _unrecorded(rows, settings))
    counts = replace(counts, indeterminate_present=delivery.indeterminate_present)
    found: dict[str, list[Findings]] = {}
    for findings in _checks(delivery):
        found.setdefault(findings.kind, []).append(findings)
    anomalies = [
        Anomaly(
            kind=kind,
            count=sum(findings.count for findings in of_kind),
            leads_to=_leads_to(kind, settings, sure=not all(findings.unsure for findings in of_kind)),
            examples=tuple(example for findings in of_kind for example in findings.examples)[:MAX_EXAMPLES],
        )
        for kind, of_kind in found.items()
    ]
    if unrecorded:
        anomalies.append(Anomaly(kind="unrecorded", count=unrecorded, leads_to="unknown"))
    if counts.acked == 0:
        anomalies.append(Anomaly(kind="no_load", count=0, leads_to="unknown"))
    return conclude(settings.run_id, counts, anomalies)


def _checks(delivery: Delivery) -> Iterator[Findings]:
    yield from check_delivery(delivery)
    yield from check_places(delivery)
    yield from check_ordering(delivery.rows)
    yield from check_reads(delivery.rows)
    yield from check_transactions(delivery)


def _leads_to(kind: str, settings: RunSettings, *, sure: bool) -> VerdictWord:
    if (kind == "duplicated" and settings.allow_duplicates) or (kind == "reordered" and settings.allow_reordering):
        return "valid"
    if kind == "partial_transaction" and not sure:
        return "unknown"
    return KINDS[kind].leads_to
