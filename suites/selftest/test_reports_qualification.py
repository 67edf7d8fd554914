"""The report of a candidate beside its baseline: the answer, and the differences that are more than noise."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.runner.qualifying import Wanted
from reports.command import report
from reports.noise import Runs, beyond_chance, holm, signed_rank
from reports.pages import write_page
from reports.qualification import OWN_FIGURES, ComparedCase, Measure, Qualification, _overall, qualify
from reports.qualify import _to_json, _with_missing
from reports.rows import read_runs_dir
from suites.selftest.case_results import listed_scenario
from suites.selftest.run_folders import COSTS, write_run_folder

# --- noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differences", [[1.0, 2.0, 3.0], [1.0, -2.0, 3.0, 3.0], [-1.0, -1.0], [0.0, 2.0]])
def test_the_signed_rank_test_by_counting_every_sign(differences: list[float]) -> None:
    told = [each for each in differences if each]
    sizes = sorted(map(abs, told))
    ranks = [np.mean([place + 1 for place, size in enumerate(sizes) if size == abs(each)]) for each in told]
    seen = sum(rank for rank, each in zip(ranks, told, strict=True) if each > 0)
    sums = [sum(rank for rank, up in zip(ranks, ups, strict=True) if up) for ups in product([0, 1], repeat=len(told))]
    tails = [np.mean([s <= seen for s in sums]), np.mean([s >= seen for s in sums])]
    assert signed_rank(differences) == pytest.approx(min(1.0, 2 * min(tails)))


def test_no_differences_are_no_difference() -> None:
    assert signed_rank([]) == signed_rank([0.0]) == 1.0


def cases(dice: np.random.Generator, repeats: int, factor: float = 1.0, count: int = 30) -> list[Runs]:
    """Cases with three times each; the candidate's first case takes so many times longer."""
    found = []
    for number in range(count):
        ours, theirs = (np.exp(dice.normal(0, 0.3, (repeats, 3))) for _ in range(2))
        found.append(Runs(ours=ours * (factor if number == 0 else 1), theirs=theirs, kinds=("a", "b", "c")))
    return found


def test_chances_allow_for_how_many_are_looked_at() -> None:
    assert holm([0.04, 0.01, 0.03, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def paired_cases(dice: np.random.Generator, shift: float = 1.0) -> list[ComparedCase]:
    """Twenty cases in each mode that ran once on both sides; the three faults of a case are slow or fast together."""

    def measure(cost: str, ours: float, theirs: float) -> Measure:
        return Measure(name=cost, candidate=(shift * ours,), baseline=(theirs,))

    def case(number: int, mode: str) -> ComparedCase:
        luck = {cost: dice.lognormal(0, 0.3, 2) for cost in COSTS if cost.endswith("_s")}
        faults = {fault: tuple(measure(cost, *both) for cost, both in luck.items()) for fault in ("a", "a 2", "a 3")}
        known: dict[str, Any] = {"kip": 112, "change": "held", "candidate": (), "baseline": (), "backend": "process"}
        return ComparedCase(id=f"kip-112/{number}[{mode}]", mode=mode, faults=faults, **known)

    return [case(number, mode) for mode in ("kraft", "zk") for number in range(20)]


def test_over_all_cases_equal_builds_seldom_differ() -> None:
    """On 60 pages of equal builds, at most 3 name a row; a case counts once, however many faults it has."""
    pages = [_overall(paired_cases(np.random.default_rng(seed))) for seed in range(60)]
    assert {each.cases for page in pages for each in page} == {20}
    assert sum(any(each.chance <= 0.05 for each in page) for page in pages) <= 6


def test_over_all_cases_a_shift_is_found() -> None:
    page = _overall(paired_cases(np.random.default_rng(1), shift=1.6))
    assert len(page) == 14
    assert all(each.chance <= 0.05 and each.ratio > 1.2 and each.difference_s > 0 for each in page)


def test_over_all_cases_a_case_in_each_backend_is_one() -> None:
    """A case in two backends is two cases; faults that one side lacks do not count."""
    there = Measure(name="noticed_s", candidate=(2.0,), baseline=(1.0,))
    lacks = Measure(name="noticed_s", candidate=(9.0,), baseline=())
    [case, *_] = paired_cases(np.random.default_rng(1))
    case = replace(case, faults={"a": (there,), "b": (lacks,)})
    [found] = _overall([case, replace(case, backend="docker")])
    assert (found.cases, found.difference_s, found.chance) == (2, 1.0, 0.5)


def test_what_takes_four_times_as_long_is_found_among_ninety_times() -> None:
    first, *others = beyond_chance(cases(np.random.default_rng(1), repeats=5, factor=4.0))
    assert (first <= 0.05).all()
    assert (np.concatenate(others) > 0.05).all()


def test_noise_is_seldom_named() -> None:
    """At a level of 5 %, about 2 of 40 sets of ninety random times name a difference."""
    named = sum((np.concatenate(beyond_chance(cases(np.random.default_rng(n), 5))) <= 0.05).any() for n in range(40))
    assert named <= 6


def test_three_runs_beside_three_can_show_nothing() -> None:
    assert np.isnan(np.concatenate(beyond_chance(cases(np.random.default_rng(1), repeats=3, factor=100.0)))).all()


def test_a_time_that_some_runs_lack_is_compared_by_the_others() -> None:
    runs = cases(np.random.default_rng(1), repeats=6, factor=4.0)
    runs[0].ours[0, 0] = runs[0].theirs[0, 0] = np.nan
    runs[0].ours[:3, 1] = np.nan
    chances = beyond_chance(runs)[0]
    assert chances[0] <= 0.05
    assert np.isnan(chances[1])


def test_times_that_are_all_alike_do_not_differ() -> None:
    alike = Runs(ours=np.ones((5, 1)), theirs=np.ones((5, 1)), kinds=("a",))
    assert beyond_chance([alike])[0].tolist() == [1.0]
    assert beyond_chance([]) == []


# --- the answer -----------------------------------------------------------------------------------------------------


def lay_down(runs_dir: Path, verdicts: str, factor: float = 1.0, case: str = "kip-112/a[zk]") -> None:
    """Write a run of the case for each verdict, each a little slower than the one before."""
    runs_dir.mkdir(exist_ok=True)
    for number, verdict in enumerate(verdicts.split()):
        name = f"{case.partition('/')[2]}{number}"
        costs = {k: v * factor * (1 + number / 50) if k.endswith("_s") else v for k, v in COSTS.items()}  # type: ignore[operator]
        outcome = {"verdict": verdict, "reason": "" if verdict == "valid" else "because"}
        write_run_folder(runs_dir, name, case=case, mode="zk", outcome=outcome, faults=[costs])


def compared(tmp_path: Path, ours: str, theirs: str, factor: float = 1.0) -> Qualification:
    lay_down(tmp_path / "ours", ours, factor)
    lay_down(tmp_path / "theirs", theirs)
    return qualify(read_runs_dir(tmp_path / "ours"), read_runs_dir(tmp_path / "theirs"))


@pytest.mark.parametrize(
    ("ours", "theirs", "change", "verdict"),
    [
        ("valid", "valid", "held", "valid"),
        ("valid valid invalid", "valid valid", "broke", "invalid"),
        ("invalid", "", "uncompared", "invalid"),
        ("invalid", "skipped", "uncompared", "invalid"),
        ("invalid", "unknown error", "uncompared", "invalid"),
        ("invalid", "unknown valid", "broke", "invalid"),
        ("invalid", "valid invalid", "broken", "invalid"),
        ("valid", "invalid", "mended", "valid"),
        ("valid unknown", "valid", "wavers", "unknown"),
        ("error", "valid", "unshown", "unknown"),
        ("error valid", "valid", "held", "valid"),
        ("error invalid", "valid error", "broke", "invalid"),
        ("unknown error", "valid", "unshown", "unknown"),
        ("skipped", "valid", "unshown", "unknown"),
        ("", "valid", "only baseline's", "unknown"),
        ("valid", "", "held", "valid"),
    ],
)
def test_what_a_case_comes_to(tmp_path: Path, ours: str, theirs: str, change: str, verdict: str) -> None:
    found = compared(tmp_path, ours, theirs)
    assert [case.change for case in found.cases] == [change]
    assert found.answer.verdict == verdict


def test_the_json_distinguishes_backends(tmp_path: Path) -> None:
    """A case that fails in containers is reported, although it is valid as processes."""
    lay_down(tmp_path / "ours", "valid")
    broken = {"verdict": "invalid", "reason": "because"}
    write_run_folder(tmp_path / "ours", "b", case="kip-112/a[zk]", mode="zk", backend="docker", outcome=broken)
    told = _to_json(qualify(read_runs_dir(tmp_path / "ours"), read_runs_dir(tmp_path / "theirs")), 1)
    assert told["cases"] == {"kip-112/a[zk] (process)": "held", "kip-112/a[zk] (docker)": "uncompared"}
    assert told["reasons"] == {"kip-112/a[zk] (docker)": "because"}


@pytest.mark.parametrize(
    ("theirs", "where"),
    [
        ({"a": "valid", "b": "valid"}, "in 2 cases where baseline 4.3.1 keeps it"),
        (
            {"a": "valid", "b": "error"},
            "in 1 case where baseline 4.3.1 keeps it, and in 1 case for which baseline 4.3.1 has no result",
        ),
        ({"a": "unknown"}, "in 2 cases for which baseline 4.3.1 has no result"),
        ({"a": "invalid"}, "in 1 case for which baseline 4.3.1 has no result"),
        ({"a": "invalid", "b": "invalid"}, "in 2 cases, as baseline 4.3.1 does"),
    ],
    ids=str,
)
def test_only_what_the_baseline_was_seen_to_keep_counts_as_kept(
    tmp_path: Path, theirs: dict[str, str], where: str
) -> None:
    for case in "ab":
        lay_down(tmp_path / "ours", "invalid", case=f"kip-112/{case}[zk]")
        lay_down(tmp_path / "theirs", theirs.get(case, ""), case=f"kip-112/{case}[zk]")
    found = qualify(read_runs_dir(tmp_path / "ours"), read_runs_dir(tmp_path / "theirs"))
    assert found.answer.headline == f"Not qualified: candidate 4.3.1 breaks a guarantee {where}"
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("ours", "code"),
    [
        ("valid", 0),
        ("valid error", 0),
        ("valid skipped", 0),
        ("invalid", 1),
        ("unknown", 2),
        ("valid unknown", 2),
        ("unknown error", 2),
        ("error", 3),
        ("skipped", 5),
    ],
)
def test_exit_codes_show_what_the_harness_failed_in(tmp_path: Path, ours: str, code: int) -> None:
    assert compared(tmp_path, ours, "valid").exit_code == code


@pytest.mark.parametrize(
    ("theirs", "shows_nothing"),
    [("", True), ("error", True), ("unknown error", True), ("valid", False), ("error invalid", False)],
)
def test_a_baseline_that_shows_nothing_is_reported(tmp_path: Path, theirs: str, shows_nothing: bool) -> None:
    """The report says that a baseline without results allows no comparison."""
    missing = [("the baseline has no result to compare with", ["kip-112/a[zk]"])]
    found = compared(tmp_path, "valid", theirs)
    assert found.missing == (missing if shows_nothing else [])
    assert found.answer.headline.endswith("has no result for 1 of them") is shows_nothing


def test_the_reason_is_the_worst_runs(tmp_path: Path) -> None:
    """The reason is that of the invalid run, and not of a later run in which Spark died."""
    lay_down(tmp_path / "ours", "valid invalid error")
    [case] = qualify(read_runs_dir(tmp_path / "ours"), None).cases
    assert case.rerun.endswith("a[zk]1'")


def test_schedules_that_ran_had_their_turn(tmp_path: Path) -> None:
    """Rows of schedules are named after the schedule, not after the case; the case does not count as missing."""
    played = {"schedule": {"seed": 7, "steps": []}, "mode": "kraft", "kip": 112}
    write_run_folder(tmp_path, "s", case="schedules/random[kraft-0]", **played)
    run = read_runs_dir(tmp_path)
    assert run.rows[0].id != "schedules/random[kraft-0]"
    ids = {case: listed_scenario(case) for case in ("schedules/random[kraft-0]", "schedules/random[kraft-1]")}
    told = _with_missing(run, Wanted(scenarios=ids, unfit={}), "process")
    assert [row.id for row in told.rows if row.run_id is None] == ["schedules/random[kraft-1]"]
    in_containers = _with_missing(run, Wanted(scenarios=ids, unfit={}), "docker")
    assert [row.id for row in in_containers.rows if row.run_id is None] == [*ids]


def test_a_candidate_alone(tmp_path: Path) -> None:
    """Without a baseline, a broken promise is no regression."""
    lay_down(tmp_path, "valid invalid")
    found = qualify(read_runs_dir(tmp_path), None)
    assert found.answer.headline == "Not qualified: Kafka 4.3.1 breaks a guarantee in 1 case"
    assert (found.answer.says, found.exit_code) == ("1 broken", 1)


def test_nothing_is_no_qualification(tmp_path: Path) -> None:
    found = compared(tmp_path, "", "")
    assert (found.answer.verdict, found.answer.headline, found.exit_code) == ("unknown", "Nothing ran", 5)


def test_a_deviation_that_the_candidate_alone_shows_comes_first(tmp_path: Path) -> None:
    def deviation(issue: str) -> dict[str, object]:
        return {"kip": 113, "says": "it stops", "does": f"it goes on ({issue})", "issue": issue, "builds": ">=3"}

    for side, case, issues in (("ours", "a", "OLD-1 NEW-1"), ("theirs", "a", "OLD-1 GONE-1"), ("theirs", "b", "OLD-1")):
        outcome = {"verdict": "valid", "reason": ""}
        more = {"case": f"kip-113/{case}[zk]", "outcome": outcome, "deviations": [*map(deviation, issues.split())]}
        write_run_folder(tmp_path / side, f"{case}1", **more)
    found = qualify(read_runs_dir(tmp_path / "ours"), read_runs_dir(tmp_path / "theirs"))
    a, b = "kip-113/a[zk]", "kip-113/b[zk]"
    seen = [(each.issue, each.candidate, each.baseline) for each in found.deviations]
    assert seen == [("NEW-1", [a], []), ("OLD-1", [a], [a, b]), ("GONE-1", [], [a])]


def deviating(runs_dir: Path, case: str, *told: str, verdict: str = "valid", version: str = "4.4.0") -> None:
    """Write a run of a case with these deviations: an issue and a state, or only an issue, as an old jbod wrote it."""
    deviations = []
    for issue, _, state in (each.partition(" ") for each in told):
        what = {"kip": 113, "says": "it stops", "does": f"it goes on ({issue})", "issue": issue, "builds": ">=3"}
        now_and_then = {"always": False} if issue.startswith("RARE") else {}
        deviations.append(what | now_and_then | ({"state": state} if state else {}))
    more = {"outcome": {"verdict": verdict, "reason": ""}, "deviations": deviations, "kafka": {"version": version}}
    write_run_folder(runs_dir, f"{case}-{len(list(runs_dir.glob('*')))}", case=f"kip-113/{case}[zk]", **more)


OURS = {
    "newer": ("NEWER-1 mended",),
    "half": ("HALF-1 seen", "BOTH-1 mended"),
    "half-b": ("HALF-1 mended",),
    "declared-until": (),
    "rare": (),
    "red": (),
    "apart": ("APART-1 undeclared",),
}
THEIRS = {
    "newer": ("NEWER-1",),
    "half": ("HALF-1 seen",),
    "half-b": ("HALF-1 seen",),
    "declared-until": ("UNTIL-1 seen",),
    "rare": ("RARE-1 seen",),
    "red": ("RED-1 seen",),
    "apart": ("APART-1 undeclared",),
}
STATES = {
    "NEWER-1": "mended",
    "BOTH-1": "mended",  # mended, but not since the baseline, which shows nothing of it
    "UNTIL-1": "mended",  # the declaration ends before this build, so the promise was checked
    "HALF-1": "seen",
    "APART-1": "undeclared",
    "RARE-1": "unseen",  # it does not show in every run
    "RED-1": "unseen",  # a case that is not valid shows nothing
}


def both_sides(tmp_path: Path) -> tuple[Path, Path]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for case, told in OURS.items():
        deviating(ours, case, *told, verdict="unknown" if case == "red" else "valid")
    for case, told in THEIRS.items():
        deviating(theirs, case, *told, version="4.3.1")
    return ours, theirs


def test_a_deviation_that_the_candidate_no_longer_shows_is_mended_since_the_baseline(tmp_path: Path) -> None:
    found = qualify(*map(read_runs_dir, both_sides(tmp_path)))
    assert {each.issue: each.state for each in found.deviations} == STATES
    assert [(each.issue, each.mended, each.baseline) for each in found.mended] == [
        ("NEWER-1", ["kip-113/newer[zk]"], ["kip-113/newer[zk]"]),
        ("UNTIL-1", ["kip-113/declared-until[zk]"], ["kip-113/declared-until[zk]"]),
    ]
    assert found.answer.says.endswith("; 2 known deviations mended; 1 undeclared deviation")


def test_without_a_baseline_what_the_runs_themselves_found_mended_is(tmp_path: Path) -> None:
    ours, _ = both_sides(tmp_path)
    found = qualify(read_runs_dir(ours), None)
    assert sorted(each.issue for each in found.mended) == ["BOTH-1", "NEWER-1"]


def test_the_page_has_what_is_mended_apart_from_what_is_seen(tmp_path: Path) -> None:
    ours, theirs = both_sides(tmp_path)
    CliRunner().invoke(report, [str(ours), "--baseline", str(theirs), "--no-allure"], catch_exceptions=False)
    page = (ours / "report" / "qualification.html").read_text()
    mended = page[page.index("<h2>Mended since the baseline</h2>") : page.index("<h2>Known deviations</h2>")]
    known = page[page.index("<h2>Known deviations</h2>") : page.index("<h2>Times that differ")]
    assert re.findall(r"<td>([A-Z]+-1)</td>", mended) == ["NEWER-1", "UNTIL-1"]
    assert re.findall(r"<td>([A-Z]+-1)</td>", known) == ["APART-1", "HALF-1", "BOTH-1", "RARE-1", "RED-1"]
    assert known.count("undeclared in 1 of 1") == 1
    assert "**mended** KIP-113, NEWER-1: it goes on" in (ours / "report" / "summary.md").read_text()


def test_a_slower_candidate_is_named_and_not_called_broken(tmp_path: Path) -> None:
    found = compared(tmp_path, "valid " * 5, "valid " * 5, factor=3.0)
    assert {measure.name for _, _, measure in found.differing} == {k for k in COSTS if k.endswith("_s")}
    assert found.answer.headline.endswith("7 times are longer than baseline 4.3.1's")
    assert found.answer.verdict == "valid"


def test_a_difference_without_an_effect_is_not_named(tmp_path: Path) -> None:
    assert compared(tmp_path, "valid " * 5, "valid " * 5, factor=1.15).differing == []


def test_a_slower_figure_of_a_scenario_is_named_and_its_curve_drawn(tmp_path: Path) -> None:
    """A time in seconds that differs at one point of its curve is named; ratios are drawn only."""
    for side, factor in (("ours", 3.0), ("theirs", 1.0)):
        for number, partitions in product(range(5), (100, 500)):
            took = partitions / 100 * (1 + number / 50) * (factor if partitions == 500 else 1.0)
            measured = {"until others lead, s": took, "to cp": took}
            run = {
                "case": f"scale/failover[zk-{partitions}]",
                "mode": "zk",
                "outcome": {"verdict": "valid", "reason": ""},
            }
            write_run_folder(tmp_path / side, f"{partitions}-{number}", **run, faults=[], measured=measured)
    found = qualify(read_runs_dir(tmp_path / "ours"), read_runs_dir(tmp_path / "theirs"))
    [(case, fault, measure)] = found.differing
    assert (case.id, fault, measure.name) == ("scale/failover[zk-500]", OWN_FIGURES, "until others lead, s")
    curve = found.curves[0]
    assert dict(curve.lines["candidate 4.3.1"]) == pytest.approx({100: 1.04, 500: 15.6})
    assert (curve.points("candidate 4.3.1"), curve.numbers) == ("0.0,102.7 240.0,0.0", [100, 500])
    page = write_page(tmp_path / "page.html", "qualification.html", q=found).read_text()
    assert page.count("<polyline") == 4
    assert page.count("until others lead, s <svg") == 2


def test_the_page_is_made(tmp_path: Path) -> None:
    lay_down(tmp_path / "ours", "valid invalid")
    lay_down(tmp_path / "theirs", "valid")
    lay_down(tmp_path / "theirs", "valid", case="kip-112/only-there[zk]")
    arguments = [str(tmp_path / "ours"), "--baseline", str(tmp_path / "theirs"), "--no-allure"]
    done = CliRunner().invoke(report, arguments, catch_exceptions=False)
    assert "Not qualified: candidate 4.3.1 breaks a guarantee in 1 case" in done.output
    page = (tmp_path / "ours" / "report" / "qualification.html").read_text()
    assert "kip-112/only-there[zk]" in page
    linked = re.findall(r'href="((?:baseline/)?cases/[^"]+)"', page)
    assert {*linked} == {
        *("cases/a[zk]0.html", "cases/a[zk]1.html", "baseline/cases/a[zk]0.html"),
        "baseline/cases/only-there[zk]0.html",
    }
    assert all((tmp_path / "ours" / "report" / link).is_file() for link in linked)
    assert "Not qualified" in (tmp_path / "ours" / "report" / "summary.md").read_text()


def test_a_case_of_which_the_baseline_shows_nothing_is_on_the_page(tmp_path: Path) -> None:
    """It has a heading of its own, and the command that repeats it."""
    lay_down(tmp_path / "ours", "invalid")
    lay_down(tmp_path / "theirs", "error")
    arguments = [str(tmp_path / "ours"), "--baseline", str(tmp_path / "theirs"), "--no-allure"]
    assert CliRunner().invoke(report, arguments, catch_exceptions=False).exit_code == 0
    page = (tmp_path / "ours" / "report" / "qualification.html").read_text()
    heading = "<h2>Broken by the candidate, with no result for the baseline</h2>"
    assert "jbod repro" in page.partition(heading)[2].partition("<h2>")[0]
