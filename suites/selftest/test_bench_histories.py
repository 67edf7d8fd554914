"""The histories that measure the judge's speed have exactly the wanted anomalies."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness.bench.histories as histories
from harness.bench.histories import Load, generate
from harness.checkers.judge import judge_large, judge_tables
from harness.checkers.large_history.select import Sizes
from harness.checkers.settings import read_settings
from harness.checkers.verdict import Verdict
from harness.history.tables import load_table, pieces
from suites.selftest.histories import anomaly_counts
from suites.selftest.planted_anomalies import PLANTS
from suites.selftest.test_judge_windows import NAMES, here

SIZES = Sizes(window=64, batch_rows=5_000, chunk_rows=10_000)


def judged(run_dir: Path, load: Load) -> Verdict:
    """The verdict of the small judge and of the one that reads by windows."""
    rows = generate(run_dir, load)
    produced, consumed, drained = (load_table(run_dir, name) for name in (*NAMES, "drained"))
    assert rows == len(produced) + len(consumed) + len(drained)
    settings = read_settings(run_dir)
    verdict = judge_tables(produced, consumed, drained, settings)
    stored = {name: pieces(run_dir, name) for name in NAMES}
    assert judge_large(run_dir, stored, settings, here, 2, SIZES).text() == verdict.text()
    return verdict


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "SLICE", 5_000)


@pytest.mark.parametrize(
    ("load", "found"),
    [
        (Load(records=12_000), {}),
        (Load(records=12_000, producers=3, partitions=1), {}),
        (Load(records=12_000, transaction_of=100), {}),
        (Load(records=12_000, storm=0.2), {}),
        (Load(records=12_000, scattered=3), {}),
        (Load(records=12_000, lost_one_in=100), {"lost": 120}),
    ],
    ids=str,
)
def test_what_is_asked_for(load: Load, found: dict[str, int], tmp_path: Path) -> None:
    verdict = judged(tmp_path / "run", load)
    assert anomaly_counts(verdict) == found
    assert verdict.counts.sent == load.records
    assert verdict.counts.indeterminate == load.storm * load.records


@pytest.mark.parametrize("kind", PLANTS)
def test_what_is_planted_shows(kind: str, tmp_path: Path) -> None:
    verdict = judged(tmp_path / "run", Load(records=12_000, transaction_of=100, planted=[PLANTS[kind]]))
    assert kind in {anomaly.kind for anomaly in verdict.anomalies}
