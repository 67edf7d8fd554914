"""The judge: reads a stored history and returns a verdict, without a cluster.

:mod:`.verdict` lists the kinds of anomaly; the modules beside this one find them, one family each. An ordinary history
is judged in this process, which takes less time than a Spark session takes to start. If a history is too large for
that, Spark tasks, one for each core, first take out what is clean (:mod:`harness.checkers.large_history`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from harness.checkers.delivery import Delivery, check_delivery
from harness.checkers.encoded_history import JUDGED, OUTCOMES, EncodedHistory, encode
from harness.checkers.large_history.select import Sizes, find_rest
from harness.checkers.offsets import check_places
from harness.checkers.ordering import check_ordering, check_reads
from harness.checkers.settings import RunSettings, read_settings, refuse_unpromised
from harness.checkers.transactions import check_transactions
from harness.checkers.verdict import Anomaly, Counts, Verdict, conclude, could_not_decide
from harness.errors import HistoryError, JbodError
from harness.history.run_folder import VERDICT_FILE
from harness.history.tables import Piece, TableName, load_table, pieces, table_dir
from harness.history.write_ahead import promised
from harness.host.atomic_write import write_atomically
from harness.spark.session import SessionSource
from harness.spark.spark_map import SparkMap, cores, spark_map_over

AT_ONCE = 1_000_000
"""Up to this many rows are judged in this process. That takes about 250 MB, and is the fastest way for so few."""

SIZES = Sizes()


def judge(spark: SessionSource, run_dir: Path) -> Verdict:
    """The verdict on the run in `run_dir`, by its history and run.json alone; writes nothing.

    If the judge fails, the verdict is unknown with the reason.

    :param spark: returns a Spark session; called only for a history of more than :data:`AT_ONCE` rows
    :raises HistoryError: run.json or the history is missing, cut off or has other columns, or has invalid rows: a null
        or a word that the column does not allow, two rows for one record or one read, or a transaction with two
        outcomes
    """
    settings = replace(read_settings(run_dir), promised=promised(run_dir))
    run_dir = run_dir.absolute()
    stored: dict[TableName, list[Piece]] = {name: pieces(run_dir, name) for name in ("produced", "consumed")}
    rows = {name: sum(piece.rows for piece in of_table) for name, of_table in stored.items()}
    try:
        if sum(rows.values()) <= AT_ONCE:
            return _judged(run_dir, settings)
        session = spark()
        return judge_large(run_dir, stored, settings, spark_map_over(session), cores(session), SIZES)
    except HistoryError as error:
        raise error if str(run_dir) in str(error) else HistoryError(f"{run_dir}: {error}") from error
    except JbodError as error:
        why = str(error)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    counts = Counts(sent=rows["produced"], read=rows["consumed"])
    return could_not_decide(settings.run_id, counts, next(iter(why.splitlines()), ""))


def write_verdict(run_dir: Path, verdict: Verdict) -> Path:
    """Write verdict.json into `run_dir`, whole or not at all; returns its path."""
    return write_atomically(run_dir / VERDICT_FILE, verdict.text())


def _judged(run_dir: Path, settings: RunSettings) -> Verdict:
    produced, consumed = (load_table(run_dir, name, JUDGED[name]) for name in ("produced", "consumed"))
    return judge_tables(produced, consumed, _drained(run_dir), settings)


def _drained(run_dir: Path) -> pa.Table | None:
    return load_table(run_dir, "drained") if table_dir(run_dir, "drained").exists() else None


def judge_large(
    run_dir: Path,
    stored: Mapping[TableName, Sequence[Piece]],
    settings: RunSettings,
    spread: SparkMap,
    lots: int,
    sizes: Sizes,
) -> Verdict:
    """The same verdict as :func:`judge`, to the byte, in memory that hardly grows with the history.

    :param stored: ``produced`` and ``consumed``
    :param spread: runs a function in tasks
    :param lots: how many tasks read the history
    :raises HistoryError: as :func:`judge`
    :raises Inconclusive: too many rows are not clean
    """
    rest = find_rest(stored, _drained(run_dir), settings, spread, lots, sizes)
    return judge_tables(rest.produced, rest.consumed, rest.drained, settings, (rest.counts, rest.unrecorded))


def judge_tables(
    produced: pa.Table,
    consumed: pa.Table,
    drained: pa.Table | None,
    settings: RunSettings,
    known: tuple[Counts, int] | None = None,
) -> Verdict:
    """The verdict on a history in memory; the columns of times and errors may be absent.

    :param known: if the tables are only the rest of a large history: the counts of the whole history, and how many
        promised rows its ``produced`` lacks
    :raises HistoryError: an invalid row, as :func:`judge`
    """
    rows = encode(produced, consumed, drained, settings)
    del produced, consumed, drained  # With a large history, they take a good part of the memory.
    delivery = Delivery(rows=rows, sessions=settings.producer_sessions)
    counts, unrecorded = known or (
        Counts.of(np.bincount(rows.sent.outcome, minlength=len(OUTCOMES)), len(rows.reads)),
        _unrecorded(rows, settings),
    )
    allowed = {"duplicated": settings.allow_duplicates, "reordered": settings.allow_reordering}
    checks = (
        check_delivery(delivery),
        check_places(delivery),
        check_ordering(rows),
        check_reads(rows),
        check_transactions(delivery),
    )
    anomalies = [
        replace(anomaly, leads_to="valid") if allowed.get(anomaly.kind) else anomaly for anomaly in chain(*checks)
    ]
    if unrecorded:
        anomalies.append(Anomaly(kind="unrecorded", count=unrecorded, leads_to="unknown"))
    if counts.acked == 0:
        anomalies.append(Anomaly(kind="no_load", count=0, leads_to="unknown"))
    return conclude(settings.run_id, replace(counts, indeterminate_present=delivery.indeterminate_present), anomalies)


def _unrecorded(rows: EncodedHistory, settings: RunSettings) -> int:
    """How many promised rows ``produced`` lacks."""
    sent = rows.sent
    refuse_unpromised((rows.producers[pid] for pid in np.unique(sent.pid)), settings)
    with_row = (sent.seq >= 0) & (sent.seq < rows.promised[sent.pid])
    return sum(settings.promised.values()) - int(with_row.sum())
