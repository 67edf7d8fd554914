"""The shrinker finds the smallest failing part of a schedule in few rounds.

Schedules are drawn, written to files and read again as in a real night. A fake ``jbod run`` plays none of them: a
schedule fails if it has certain steps. The commands are tested on planted cases (:mod:`suites.selftest.planted`).
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.runner import shrinking
from harness.runner.shrinking import Shrunk, shrink_run, smallest_failing
from harness.runner.subrun import SubRun
from suites.schedules.schedule import Schedule, Step, draw, read
from suites.selftest.case_results import case_result
from suites.selftest.planted import Planted


@given(st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_it_finds_exactly_what_it_takes(case: tuple[int, set[int]]) -> None:
    """If a part fails exactly when it has all the culprits, these are what is left, in their order."""
    count, culprits = case
    asked: list[tuple[str, ...]] = []

    def failing(candidates: list[list[str]]) -> list[bool]:
        asked.extend(tuple(candidate) for candidate in candidates)
        return [{str(each) for each in culprits} <= set(candidate) for candidate in candidates]

    items = [str(number) for number in range(count)]
    assert smallest_failing(items, failing) == [str(each) for each in sorted(culprits)]
    assert len(set(asked)) == len(asked)
    assert tuple(items) not in asked


def test_what_fails_now_and_then_still_ends() -> None:
    """If no smaller part fails, the whole is returned, after one trial for each part."""
    rounds: list[int] = []
    items = list("abcdefghijkl")

    def failing(candidates: list[list[str]]) -> list[bool]:
        rounds.append(len(candidates))
        return [False] * len(candidates)

    assert smallest_failing(items, failing) == items
    assert sum(rounds) == 2 + 4 * 2 + 6 * 2 + 12 * 2


def test_any_part_of_a_schedule_is_one() -> None:
    """A schedule, and each part of it, is the same after it was written as JSON and read again."""
    schedule = draw(7)
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert draw(7) == schedule != draw(9)
    part = Schedule(steps=schedule.steps[3:5], seed=7, volumes=schedule.volumes)
    assert Schedule.from_json(part.to_json()) == part


# --- a schedule of a run --------------------------------------------------------------------------------------------

PART_S = 60.0
"""Seconds that a part takes to play, by the fake clock."""


class PlantedRuns:
    """Replaces ``jbod run``, and counts how often it got each schedule.

    :ivar verdict: gives the verdict of a schedule's n-th play, from 0
    """

    def __init__(self, verdict: Callable[[Schedule, int], str]) -> None:
        self.verdict = verdict
        self.plays: Counter[tuple[Step, ...]] = Counter()
        self.now_s = 0.0

    def run(self, *arguments: str, quiet: bool = False) -> SubRun:
        """Play the schedules of the files, one after another; begin none after the deadline."""
        options = [argument.partition("=") for argument in arguments]
        files = [Path(value) for name, _, value in options if name == "--schedule"]
        stop_at = next((self.now_s + float(value) for name, _, value in options if name == "--stop-after"), None)
        cases = []
        for number, file in enumerate(files):
            schedule, verdict = read(file), "skipped"
            if stop_at is None or self.now_s <= stop_at:
                verdict = self.verdict(schedule, self.plays[schedule.steps])
                self.plays[schedule.steps] += 1
                self.now_s += PART_S
            cases.append(case_result(f"schedules/random[kraft-{number}]", verdict))
        return SubRun(exit_code=0, cases=tuple(cases))


@pytest.fixture
def schedule(tmp_path: Path) -> Schedule:
    """Twelve different steps, drawn and stored in the run.json of a run."""
    firsts = (replace(found, steps=found.steps[:12]) for found in map(draw, range(100)))
    drawn = next(found for found in firsts if len(set(found.steps)) == 12)
    (tmp_path / "run.json").write_text(json.dumps({"schedule": drawn.to_json()}))
    return drawn


def shrunk(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, runs: PlantedRuns, until: float = float("inf")
) -> tuple[Shrunk, list[str]]:
    output: list[str] = []
    monkeypatch.setattr(shrinking, "run_apart", runs.run)
    monkeypatch.setattr(shrinking, "time", SimpleNamespace(monotonic=lambda: runs.now_s))
    return shrink_run(run_dir, ["--mode=kraft"], output.append, until), output


@pytest.mark.parametrize("culprits", [(0, 11), (3, 4), (1, 6, 10)], ids=str)
def test_two_or_three_steps_of_twelve_are_left(
    schedule: Schedule, culprits: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest part is stored as a schedule that can be played, with how often it fails."""
    wanted = {schedule.steps[each] for each in culprits}
    runs = PlantedRuns(lambda part, _: "invalid" if wanted <= set(part.steps) else "valid")
    found, output = shrunk(tmp_path, monkeypatch, runs)
    assert found.file is not None
    assert set(read(Path(found.file)).steps) == wanted
    assert read(Path(found.file)).volumes == schedule.volumes
    assert (found.steps_before, len(found.steps), found.fails, found.of) == (12, len(culprits), 3, 3)
    kept = json.loads(Path(found.file).read_text())
    assert (kept["fails"], kept["of"]) == (3, 3)
    assert f"{len(culprits)} of 12 steps are left and fail 3 of 3 times" in output[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "smallest.json"]


def test_one_that_fails_two_times_of_three_is_found_all_the_same(
    schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part passes at first, and fails when it is played again; the report has the true counts."""
    wanted = {schedule.steps[2], schedule.steps[9]}
    runs = PlantedRuns(lambda part, play: "invalid" if wanted <= set(part.steps) and play % 3 else "valid")
    found, _ = shrunk(tmp_path, monkeypatch, runs)
    assert {msgspec.convert(step, Step) for step in found.steps} == wanted
    assert (found.fails, found.of) == (2, 3)


def test_one_that_never_fails_again_is_not_looked_through(
    schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the whole schedule does not fail again, no part is tried and none is stored."""
    runs = PlantedRuns(lambda _part, _play: "valid")
    found, output = shrunk(tmp_path, monkeypatch, runs)
    assert (found.file, found.fails, found.of) == (None, 0, 3)
    assert runs.plays == {schedule.steps: 3}
    assert "did not fail again" in output[-1]
    assert not (tmp_path / "smallest.json").exists()


@pytest.mark.parametrize(("parts", "left"), [(0, 12), (3, 9), (5, 9), (13, 6)])
def test_the_budget_ends_midway(
    schedule: Schedule, parts: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the budget, no part is begun, also within a round; the stored part is one that failed once.

    The culprits are the first and the last step. Both halves pass then, which is the hardest case.
    """
    wanted = {schedule.steps[0], schedule.steps[11]}
    runs = PlantedRuns(lambda part, _: "invalid" if wanted <= set(part.steps) else "valid")
    found, output = shrunk(tmp_path, monkeypatch, runs, until=PART_S * parts + 1)
    assert wanted <= {msgspec.convert(step, Step) for step in found.steps}
    assert (len(found.steps), found.fails, found.of) == (left, 1, 1)
    assert json.loads((tmp_path / "smallest.json").read_text())["of"] == 1
    [line] = [line for line in output if "no time left, and" in line]
    assert line.endswith(f": jbod shrink {tmp_path}")
    assert sum(runs.plays.values()) <= parts + 1
    assert schedule.steps not in runs.plays


def test_within_a_budget_that_is_enough(schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is played once, and the smallest one as often as without a budget; the whole is not played again."""
    wanted = {schedule.steps[0], schedule.steps[11]}
    runs = PlantedRuns(lambda part, _: "invalid" if wanted <= set(part.steps) else "valid")
    found, output = shrunk(tmp_path, monkeypatch, runs, until=PART_S * 100)
    assert {msgspec.convert(step, Step) for step in found.steps} == wanted
    assert (found.fails, found.of) == (3, 3)
    [(_, plays)] = [(steps, count) for steps, count in runs.plays.items() if count > 1]
    assert plays == 1 + 3
    assert schedule.steps not in runs.plays
    assert not any("no time" in line for line in output)


def test_within_a_budget_one_that_never_fails_again(
    schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is known not to fail is not stored."""
    found, output = shrunk(tmp_path, monkeypatch, PlantedRuns(lambda _part, _play: "valid"), until=PART_S * 100)
    assert (found.file, found.fails, found.of) == (None, 0, 3)
    assert "did not fail again in 3 plays" in output[-1]
    assert not (tmp_path / "smallest.json").exists()


@pytest.mark.parametrize("verdict", ["error", "skipped"])
def test_a_part_that_cannot_be_played_is_none_that_holds(
    schedule: Schedule, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the machine cannot play a part, the error says so, and the part does not count as passed."""
    with pytest.raises(HarnessError, match="could not be played: planted"):
        shrunk(tmp_path, monkeypatch, PlantedRuns(lambda _part, _play: verdict))


# --- the commands ---------------------------------------------------------------------------------------------------


def test_a_schedule_of_a_run_is_played_again_and_shrunk(planted: Planted) -> None:
    """Its run folder is enough; the stored part fails, too, when the printed command runs it."""
    kafka, whole = planted.kafka("4.3.1"), draw(8)
    culprits = [asdict(whole.steps[each]) for each in (0, 1)]  # these are found in the fewest rounds
    planted.culprits(culprits)

    def played(*arguments: str) -> Path:
        """The run folder of the one case that came out invalid."""
        code, _ = planted.jbod(*arguments, "--json=told.json")
        result = json.loads((planted.folder / "told.json").read_text())
        [invalid] = [case["run_dir"] for case in result["scenarios"] if case["verdict"] == "invalid"]
        assert code == 1
        return Path(invalid)

    run_dir = played(
        "run", "schedules", "--seed=7", "--schedules=2", "--backend=planted", f"--kafka-home={kafka}", "--mode=kraft"
    )
    assert read(run_dir / "run.json") == whole  # of the second schedule, which failed

    again = played("repro", str(run_dir))
    assert again != run_dir
    assert read(again / "run.json") == whole

    code, output = planted.jbod("shrink", run_dir)
    assert code == 0
    smallest = run_dir / "smallest.json"
    kept = json.loads(smallest.read_text())
    assert (kept["steps"], kept["fails"], kept["of"]) == (culprits, 3, 3)
    chosen = ("--kafka-home", str(kafka)), ("--mode", "kraft"), ("--backend", "planted"), ("--schedule", str(smallest))
    command = output.splitlines()[-1]
    assert command == shlex.join(["jbod", "run", "schedules", *("=".join(each) for each in chosen)])
    part = played(*shlex.split(command)[1:])
    assert read(part / "run.json") == read(smallest)
    assert not list(planted.runs_dir.glob("*/candidate-*"))


def test_a_schedule_that_does_not_fail_again_is_inconclusive(planted: Planted) -> None:
    """Nothing is stored, and no command is printed."""
    planted.plays({"schedules/random[kraft-0]": "invalid valid"})
    kafka = planted.kafka("4.3.1")
    assert planted.jbod("run", "schedules", "--backend=planted", f"--kafka-home={kafka}")[0] == 1
    [run_dir] = [path.parent for path in planted.runs_dir.glob("*/run.json")]
    code, output = planted.jbod("shrink", run_dir)
    assert code == 2
    assert "the schedule did not fail again in 3 plays" in output.splitlines()[-1]
    assert not (run_dir / "smallest.json").exists()
