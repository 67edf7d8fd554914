"""``jbod bench`` prints a row for each figure, with its goal and the load, and says what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from harness.bench import holds, judging
from harness.bench.figures import Figure, LoadWatch, Part, at_least, at_most, exit_code, tally
from harness.bench.histories import Load, generate
from harness.bench.holds import ClusterCost, hold_figures, measure_holds
from harness.bench.holds import Round as HoldRound
from harness.bench.in_duckdb import QUERIES, find
from harness.bench.judging import WITHOUT_DUCKDB, Judged, duckdb_seconds, measure_judge
from harness.bench.parts import pair_figures
from harness.bench.suite_speed import PARITY_GOALS, SpeedGoals, SuiteRun
from harness.bench.throughput import Round
from harness.checkers.judge import judge
from harness.cli.measure_harness import tell_figures
from harness.errors import EXIT_INCONCLUSIVE, EXIT_NOTHING_RAN, EXIT_VALID, EnvironmentLacks, HarnessError
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode
from harness.runner.case_result import CaseResult
from suites.selftest.case_results import case_result
from suites.selftest.fakes import fake_distribution
from suites.selftest.histories import anomaly_counts
from suites.selftest.planted_anomalies import PLANTS

FAST = Figure(part=Part.SUITE, name="wall", unit="s", value=70.0, goal=at_most(75.0))
SLOW = replace(FAST, value=75.5)
SKIPPED = Figure(part=Part.JUDGE, name="ratio", unit="×", goal=at_least(1.2), why="no DuckDB", skipped=True)
NOT_SHOWN = replace(SKIPPED, why="no case ended", skipped=False)


def no_spark() -> NoReturn:
    raise AssertionError("so short a history needs no Spark")


@pytest.mark.parametrize(
    ("figure", "state"),
    [
        (FAST, "reached"),
        (replace(FAST, value=75.0), "reached"),
        (SLOW, "missed"),
        (replace(SKIPPED, value=1.2), "reached"),
        (replace(SKIPPED, value=1.19), "missed"),
        (replace(SLOW, goal=None), "no goal"),
        (SKIPPED, "skipped"),
        (NOT_SHOWN, "not shown"),
    ],
)
def test_the_state_of_a_figure(figure: Figure, state: str) -> None:
    assert (figure.state, figure.to_json()["state"]) == (state, state)


@pytest.mark.parametrize(
    ("figures", "code", "says"),
    [
        ([FAST, SLOW, replace(SLOW, goal=None)], EXIT_VALID, "1 of 2 goals reached"),
        ([FAST, SKIPPED], EXIT_VALID, "1 of 1 goals reached, 1 skipped"),
        ([FAST, SKIPPED, NOT_SHOWN], EXIT_INCONCLUSIVE, "1 of 1 goals reached, 1 skipped, 1 not shown"),
        ([SKIPPED], EXIT_NOTHING_RAN, "0 of 0 goals reached, 1 skipped"),
        ([], EXIT_NOTHING_RAN, "0 of 0 goals reached"),
    ],
)
def test_the_exit_code_and_the_last_line(figures: list[Figure], code: int, says: str) -> None:
    assert (exit_code(figures), tally(figures)) == (code, says)


def test_one_table_has_the_goal_and_the_load_beside_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    (measured,) = LoadWatch().marked([SLOW])
    tell_figures([measured, SKIPPED])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"suite: wall 75.50 s ≤ 75.00 s {measured.load} missed" in said
    assert "judge: ratio no DuckDB ≥ 1.20 × skipped" in said
    assert measured.to_json()["goal"] == {"at_most": 75.0}


def test_the_pair_has_the_median_of_its_rounds() -> None:
    found = pair_figures([Round(kafkas=10.0, ours=each) for each in (9.0, 16.0, 90.0)], LoadWatch())
    assert [(each.value, each.state) for each in found.figures] == [(1.6, "reached"), (10, "no goal"), (16, "no goal")]


def timed(verdict: str, boot_s: float, awaited_s: float) -> CaseResult:
    result = case_result("kafkatest-parity/x[kraft]", verdict)
    return replace(result, phases_s={"boot": boot_s, "judge": 1.0}, awaited_s={"boot": awaited_s, "judge": 0.0})


def test_a_suite_has_its_times_and_the_harnesss_own_share_of_its_cases() -> None:
    cases = [timed("valid", 9.0, 8.0), timed("unknown", 9.0, 6.0), case_result("skips", "skipped")]
    run = SuiteRun(wall_s=80.0, cpu_s=150.0, cases=cases, first_s=20.0)
    assert [(each.value, each.state) for each in run.figures(Part.SUITE, PARITY_GOALS)] == [
        (80.0, "missed"),
        (20.0, "reached"),
        (150.0, "no goal"),
        (70.0, "no goal"),
        (30.0, "missed"),
        (1, "missed"),
    ]
    assert run.figures(Part.SUITE, PARITY_GOALS)[-1].name == "not valid, of 2 cases, 1 more skipped"
    assert [each.state for each in run.figures(Part.SUITE, SpeedGoals())[:5]] == ["no goal"] * 5


def test_a_suite_without_a_case_shows_nothing() -> None:
    (figure,) = SuiteRun(wall_s=3.0, cpu_s=1.0, cases=[case_result("skips", "skipped")]).figures(
        Part.SUITE, SpeedGoals()
    )
    assert (figure.state, figure.why) == ("not shown", "no case ended")


def test_the_judges_goals_depend_on_the_size() -> None:
    """Below 2 × 10⁷ records the start of Spark is most of the time."""
    judged = Judged(records=10_000_000, rows=1, seconds=10.0, peak_mb=3073, duckdb_s=7.5)
    large = Judged(records=100_000_000, rows=1, seconds=64.0, peak_mb=3072, duckdb_s=80.0)
    usual = Judged(records=10_000, rows=1, seconds=3.1, peak_mb=100)
    assert [[(each.value, each.state) for each in of.figures()] for of in (judged, large, usual)] == [
        [(0.75, "no goal"), (1_000_000, "no goal"), (3073, "missed")],
        [(1.25, "reached"), (1_562_500, "reached"), (3072, "reached")],
        [(3.1, "missed")],
    ]


def test_without_duckdb_the_ratio_is_skipped_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "find_spec", lambda _: None)
    found = measure_judge(tmp_path, [10_001], lambda _: None)
    assert [each.state for each in found.figures[1:]] == ["skipped", "no goal", "reached"]
    assert found.figures[1].why == WITHOUT_DUCKDB
    assert "pip install -e '.[bench]'" in WITHOUT_DUCKDB
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("load", [Load(records=12_000), Load(records=12_000, transaction_of=100, storm=0.2)], ids=str)
def test_duckdb_finds_nothing_in_a_valid_history(load: Load, tmp_path: Path) -> None:
    generate(tmp_path / "run", load)
    assert find(tmp_path / "run", tmp_path) == {"lost": 0, "duplicated": 0, "reordered": 0}


@pytest.mark.parametrize("kind", QUERIES)
def test_duckdb_counts_what_the_judge_counts(kind: str, tmp_path: Path) -> None:
    generate(tmp_path / "run", Load(records=12_000, planted=[PLANTS[kind]]))
    counts = anomaly_counts(judge(no_spark, tmp_path / "run"))
    found = find(tmp_path / "run", tmp_path)
    assert found[kind] > 0
    assert found == {each: counts.get(each, 0) for each in QUERIES}


def test_anomalies_that_duckdb_finds_are_an_error_of_the_bench(tmp_path: Path) -> None:
    generate(tmp_path / "run", Load(records=12_000, lost_one_in=100))
    with pytest.raises(HarnessError, match=r'in a history without any: \{"lost": 120,'):
        duckdb_seconds(tmp_path / "run")


def test_a_cluster_with_points_is_compared_round_by_round() -> None:
    plain = ClusterCost(start_s=4.0, start_cpu_s=8.0, records_cpu_s=2.0)
    rounds = [
        HoldRound(without=plain, with_points=replace(plain, start_s=start_s, records_cpu_s=cpu_s))
        for start_s, cpu_s in ((4.2, 2.0), (4.0, 3.0), (9.0, 2.5))
    ]
    found = hold_figures(rounds, LoadWatch())
    assert [(each.value, each.state) for each in found.figures] == [
        (1.05, "reached"),
        (1.0, "reached"),
        (1.25, "missed"),
    ]
    written = found.details["holds"]
    assert isinstance(written, dict)
    assert written["rounds"][0]["without"] == {"start_s": 4.0, "start_cpu_s": 8.0, "records_cpu_s": 2.0}


def test_both_clusters_of_a_round_get_the_plain_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with ``holds`` adds the points by itself; to a build that has them it would add them again."""
    given: list[tuple[str, bool]] = []

    def cost(build: Distribution, points: bool, *_: object) -> ClusterCost:
        given.append((build.sha256, points))
        return ClusterCost(start_s=1.0, start_cpu_s=1.0, records_cpu_s=1.0)

    plain = fake_distribution()
    monkeypatch.setattr(holds, "with_points", lambda build, *_: replace(build, sha256="pointed"))
    monkeypatch.setattr(holds, "missing_points", lambda _: {})
    monkeypatch.setattr(holds, "prepare_fast_starts", lambda *_: True)
    monkeypatch.setattr(holds, "_cost", cost)
    measure_holds(plain, Mode.KRAFT, tmp_path, 2, 1, lambda _: None)
    assert given == [("", False), ("", True), ("", True), ("", False)]


@pytest.mark.parametrize("lacks", ["no JDK", "points", "fast starts"])
def test_clusters_that_cannot_be_compared_are_a_skipped_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    def pointed(build: Distribution, *_: object) -> Distribution:
        if lacks == "no JDK":
            raise EnvironmentLacks("there is no JDK")
        return build

    fast = iter([True, lacks != "fast starts"])
    monkeypatch.setattr(holds, "with_points", pointed)
    monkeypatch.setattr(holds, "missing_points", lambda _: {"a": "why"} if lacks == "points" else {})
    monkeypatch.setattr(holds, "prepare_fast_starts", lambda *_: next(fast))
    figures = measure_holds(fake_distribution(), Mode.KRAFT, tmp_path, 1, 1, lambda _: None).figures
    assert [each.state for each in figures] == ["skipped"] * 3
    assert all(lacks in each.why for each in figures)
