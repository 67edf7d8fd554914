"""A night runs the fixed suites, then random schedules until its budget is used up, and reports what did not run.

One night really runs, on planted cases (:mod:`suites.selftest.planted`). Tests that would need hours have a fake
``jbod run``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.journal import now
from harness.runner import ledger, nightly
from harness.runner.ledger import Planned
from harness.runner.nightly import Fixed, Night, Plan, run_night
from harness.runner.shrinking import Shrunk
from harness.runner.subrun import SubRun, jbod_command, run_apart
from reports.rows import read_runs_dir
from suites.selftest.case_results import case_result
from suites.selftest.planted import Planted

BUDGET_S = 1800
FIXED = [f"kip-112/planted[kraft-{letter}]" for letter in "abc"]


def test_a_night(planted: Planted) -> None:
    """A green night and then a red one: exit codes, JSON, JUnit, ledger, and the cases that cannot run here."""
    kafka = planted.kafka("4.3.1")
    asked = ("nightly", "--budget=10m", "--seed=7", "--backend=planted", f"--kafka-home={kafka}", "--json=night.json")

    def night() -> tuple[int, str, dict[str, Any]]:
        code, output = planted.jbod(*asked)
        return code, output, json.loads((planted.folder / "night.json").read_text())

    code, output, result = night()
    assert code == result["exit_code"] == 0
    assert [case.partition(" ")[0] for case in planted.played()[:4]] == [*FIXED, "schedules/random[kraft-0]"]
    ids = [case["id"] for case in result["scenarios"]]
    assert ids == [*FIXED, *(f"schedules/random[kraft-{number}]" for number in range(len(ids) - 3))]
    assert (result["left"], result["overdue"], result["shrunk"]) == ({}, [], [])
    count = len(ids) - 3
    assert f"random schedules: {count} played, 0 skipped; {count * 23} of {count * 24} steps done" in output
    [(unable, why)] = result["unable"].items()
    assert (unable, why.partition(":")[0]) == ("network/planted[kraft]", "own networks")
    assert f"cannot run here, because {why}: network/planted[kraft]" in " ".join(output.split())
    assert junit(planted, "junit-fixed.xml") == (3, 0)
    assert junit(planted, "junit-random.xml") == (count, 0)
    assert len(list((planted.runs_dir.parent / "allure-results").glob("*-result.json"))) == count  # of the last run
    entries = ledger.read(planted.runs_dir)
    assert [entry.id for entry in entries] == ids
    assert {(entry.kafka, entry.backend, len(entry.sha256)) for entry in entries} == {("4.3.1", "planted", 64)}

    # Each case now took a minute, as real ones do, and the last fixed one never ran.
    lines = [line for line in (planted.runs_dir / ledger.NAME).read_text().splitlines() if FIXED[2] not in line]
    told_to_take = [re.sub(r'"duration_s": [\d.]+', '"duration_s": 60.0', line) for line in lines]
    (planted.runs_dir / ledger.NAME).write_text("".join(f"{line}\n" for line in told_to_take))
    before = len(planted.played())
    planted.plays({FIXED[1]: "invalid", "schedules/random[kraft-0]": "valid invalid valid"})
    code, output, result = night()
    assert code == result["exit_code"] == 1
    order = [case.partition(" ")[0] for case in planted.played()[before:]]
    assert order[:4] == [FIXED[2], FIXED[0], FIXED[1], "schedules/random[kraft-0]"]
    assert {case["id"] for case in result["scenarios"] if case["verdict"] == "invalid"} == {
        FIXED[1],
        "schedules/random[kraft-0]",
    }
    assert junit(planted, "junit-fixed.xml") == (3, 1)
    assert [(each["fails"], each["of"], each["file"]) for each in result["shrunk"]] == [(0, 3, None)]
    assert "the schedule did not fail again" in output


def junit(planted: Planted, name: str) -> tuple[int, int]:
    """The number of cases in the file, and of those that failed."""
    root = ElementTree.parse(planted.runs_dir.parent / name).getroot()
    return len(list(root.iter("testcase"))), len(list(root.iter("failure")))


# --- a night with a fake `jbod run` ---------------------------------------------------------------------------------

Answer = Callable[[tuple[str, ...]], SubRun]
PLANNED = Planned(kip=112, plan="1)", mode="kraft", kafka="4.3.1")


def a_night(
    runs_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Answer],
    fixed: list[str],
    lacking: Sequence[str] = (),
) -> tuple[Night, list[str], list[tuple[str, ...]]]:
    """A night, its output, and the arguments of its runs."""
    asked: list[tuple[str, ...]] = []
    output: list[str] = []

    def run(*arguments: str, quiet: bool = False) -> SubRun:
        asked.append(arguments)
        return answers[len(asked) - 1](arguments)

    monkeypatch.setattr(nightly, "run_apart", run)
    plan = Plan(
        fixed=Fixed(
            planned=dict.fromkeys(fixed, PLANNED),
            unable=dict.fromkeys(lacking, "no loop mounts"),
            lacking=dict.fromkeys(lacking, PLANNED),
        ),
        backend="process",
        budget_s=BUDGET_S,
        seed=7,
        runs_dir=runs_dir,
        every=timedelta(days=7),
        jobs="auto",
        at_once=1,
        options=[],
    )
    return run_night(plan, output.append), output, asked


def came_out(**verdicts: str) -> SubRun:
    """The result of a run of these cases."""
    return SubRun(exit_code=0, cases=tuple(case_result(id, verdict) for id, verdict in verdicts.items()))


def test_what_was_not_begun_in_time_is_reported_and_has_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names fixed cases that did not begin, and counts schedules."""
    answers: list[Answer] = [
        lambda _: came_out(a="valid", b="skipped"),
        lambda _: came_out(x="valid", y="skipped", z="skipped"),
    ]
    night, output, [fixed, random] = a_night(tmp_path, monkeypatch, answers, ["a", "b"])
    assert fixed[:2] == ("a", "b")
    assert {"--seed=7", "--stop-after=900", "--backend=process"} <= set(fixed)
    assert random[0] == "schedules/random"
    [for_s] = [float(option.partition("=")[2]) for option in random if option.startswith("--stop-after")]
    assert for_s == pytest.approx(1800 * 0.75, abs=5)  # the rest is kept for shrinking
    assert (night.left, night.overdue, night.exit_code()) == ({"b": None}, ["b"], 2)
    assert "random schedules: 1 played, 2 skipped" in output


@pytest.mark.parametrize(
    ("entry", "overdue"),
    [
        ({}, True),
        ({"at": now().isoformat()}, False),
        ({"verdict": "unknown"}, False),
        ({"kafka": "4.3.0"}, False),
        ({"backend": "docker"}, False),
    ],
    ids=["it did", "it did of late", "it showed nothing", "another build", "in containers"],
)
def test_what_this_machine_could_do_once_has_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, str], overdue: bool
) -> None:
    """A case that was valid here must run again, although root rights may be gone; one that never ran need not."""
    ran = {"id": "eio", "kip": 112, "plan": "", "mode": "zk", "kafka": "4.3.1", "backend": "process", "seed": 1}
    came = {"at": "2026-01-01T00:00:00+00:00", "verdict": "valid", "duration_s": 9.0, "run_id": "r", "faults": []}
    (tmp_path / ledger.NAME).write_text(json.dumps({**ran, **came, **entry}) + "\n")
    answers: list[Answer] = [lambda _: came_out(a="valid"), lambda _: came_out(x="valid")]
    night, _, _ = a_night(tmp_path, monkeypatch, answers, ["a"], ["eio", "never"])
    assert (night.overdue, night.exit_code()) == ((["eio"], 2) if overdue else ([], 0))
    skipped = {"id": "eio", "kip": 112, "plan": "", "mode": "zk", "kafka": "4.3.1", "backend": "process"}
    result = {"scenarios": [{**skipped, "verdict": "skipped", "reason": "no loop mounts"}], "started_at": "2999"}
    (tmp_path / "results-later.json").write_text(json.dumps(result))  # from a run without this case
    notes = read_runs_dir(tmp_path).notes
    assert notes == (("eio was due and did not run; last run: 2026-01-01T00:00",) if overdue else ())


def test_what_ran_before_on_another_build_did_not_run_tonight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on another build does not count, so ``eio`` is not due; ``b`` is, since its last run showed nothing."""
    ran = {"kip": 112, "plan": "", "mode": "kraft", "backend": "process", "seed": 1, "duration_s": 9.0, "faults": []}
    lines = [
        {"id": "eio", "kafka": "4.3.0", "at": "2026-01-01T00:00:00+00:00", "verdict": "valid", "run_id": "1"},
        {"id": "b", "kafka": "4.3.1", "at": "2026-01-02T00:00:00+00:00", "verdict": "valid", "run_id": "2"},
        {"id": "b", "kafka": "4.3.1", "at": "2026-01-03T00:00:00+00:00", "verdict": "unknown", "run_id": "3"},
    ]
    (tmp_path / ledger.NAME).write_text("".join(json.dumps(ran | line) + "\n" for line in lines))
    answers: list[Answer] = [lambda _: came_out(a="valid", b="skipped"), lambda _: came_out(x="valid")]
    night, _, _ = a_night(tmp_path, monkeypatch, answers, ["a", "b"], ["eio"])
    assert (night.overdue, night.exit_code()) == (["b"], 2)


def test_what_this_machine_cannot_do_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of the night selects such a case, and the page of a green night names it all the same, once."""
    for _ in range(2):
        answers: list[Answer] = [lambda _: came_out(a="valid"), lambda _: came_out(x="valid")]
        a_night(tmp_path, monkeypatch, answers, ["a"], ["eio"])
    [row] = read_runs_dir(tmp_path).rows
    assert (row.id, row.kafka, row.verdict, row.reason) == ("eio", "4.3.1", "skipped", "no loop mounts")


def test_a_full_disk_while_shrinking_is_no_reason_to_forget_the_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fills_up(*_: object, until: float) -> Shrunk:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nightly, "shrink_run", fills_up)
    failed = case_result("x", "invalid", mode="zk", run_dir="runs/x", duration_s=6.0)
    answers: list[Answer] = [lambda _: came_out(a="valid"), lambda _: SubRun(exit_code=1, cases=(failed,))]
    night, output, _ = a_night(tmp_path, monkeypatch, answers, ["a"])
    assert (night.exit_code(), night.shrunk) == (1, [])
    assert "No space left on device; again: jbod shrink runs/x" in output[-1]


def test_a_night_without_a_random_schedule_is_not_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The night is inconclusive without a random schedule, although the fixed suites ran."""
    answers: list[Answer] = [
        lambda _: came_out(a="valid"),
        lambda _: SubRun(exit_code=5, cases=(case_result("x", "skipped", reason="too late"),)),
    ]
    night, _, _ = a_night(tmp_path, monkeypatch, answers, ["a"])
    assert night.exit_code() == 2


def test_what_there_is_no_time_to_shrink_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two schedules fail, and shrinking the first one uses up the budget."""
    clock = [0.0]

    def takes_long(run_dir: Path, options: object, say: object, until: float) -> Shrunk:
        clock[0] = until
        return Shrunk(run_dir=str(run_dir), steps_before=1, steps=[], file=None, fails=0, of=3)

    monkeypatch.setattr(nightly, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(nightly, "shrink_run", takes_long)
    failed = tuple(case_result(id, "invalid", mode="zk", run_dir=f"runs/{id}", duration_s=60.0) for id in "xy")
    answers: list[Answer] = [lambda _: came_out(a="valid"), lambda _: SubRun(exit_code=1, cases=failed)]
    night, output, _ = a_night(tmp_path, monkeypatch, answers, ["a"])
    assert [each.run_dir for each in night.shrunk] == ["runs/x"]
    assert clock[0] == BUDGET_S - 60.0 - nightly.START_S  # a part that begins then ends with the night
    assert "not shrunk, no time left: y: jbod shrink runs/y" in output


def test_a_run_that_is_killed_does_not_end_the_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may kill it when memory is short: an error of the environment; the schedules still run."""
    monkeypatch.setattr("harness.runner.subrun.jbod_command", lambda *_: ["sh", "-c", "kill -9 $$"])
    answers: list[Answer] = [lambda arguments: run_apart(*arguments), lambda _: came_out(x="valid")]
    night, output, _ = a_night(tmp_path, monkeypatch, answers, ["a"])
    assert (night.codes, night.exit_code(), [*night.left]) == ([3, 0], 3, ["a"])
    assert any("ended with exit code 3" in line for line in output)


def test_a_working_directory_with_other_modules_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the working directory may have the name of one of jbod's or Python's modules."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert run_apart("nobody", quiet=True).exit_code == 4
    assert jbod_command()[1] == "-P"


def test_a_night_that_is_stopped_stops_its_run(tmp_path: Path) -> None:
    """``kill`` signals only the night, unlike Ctrl-C; the night ends its run, and waits for the run's clean-up."""
    body = """
from harness.runner import subrun
does = "trap 'touch cleaned-up; exit 3' TERM; kill $PPID; sleep 20 >&- 2>&- & wait"
subrun.jbod_command = lambda *_: ["sh", "-c", does]
try:
    subrun.run_apart("kip-112")
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", body], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert (tmp_path / "cleaned-up").exists()
