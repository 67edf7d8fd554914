"""The ledger has a line for each case that ran; a night starts with the cases that ran longest ago."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.journal import now
from harness.kafka.versions import DEFAULT_BUILDS, Mode
from harness.measure.fault_costs import FaultCosts
from harness.runner import ledger
from harness.runner.case import CaseId, Outcome
from harness.runner.case_result import CaseResult
from harness.runner.nightly import Fixed, Night, fitting
from harness.runner.qualifying import Wanted, cases_of, due, side
from harness.runner.results import write_json
from harness.runner.suite_kinds import not_asked
from suites.selftest.case_results import listed_scenario

KRAFT = str(DEFAULT_BUILDS[Mode.KRAFT])


def ended(
    runs_dir: Path,
    name: str,
    verdict: Outcome = "valid",
    duration_s: float = 10.0,
    backend: str = "process",
    number: int = 1,
) -> None:
    """Let a case end."""
    runs_dir.mkdir(exist_ok=True)
    case = CaseId(id=name, kip=112, plan="1)", mode="kraft", seed=7, nodeid=f"suites/x.py::{name}")
    fault = FaultCosts(
        name="chmod_000",
        target="log-dir-1 of broker 2",
        proven=True,
        role="leader",
        also=("coordinator",),
        acked_during=700,
        read_during=600,
    )
    ledger.note(
        runs_dir,
        CaseResult(
            case=case,
            kafka=KRAFT,
            backend=backend,
            verdict=verdict,
            reason="",
            duration_s=duration_s,
            run_dir=runs_dir / f"{name}-{number}",
            phases_s={},
            faults=[fault, replace(fault, proven=False)],
            rerun="",
        ),
    )


def planned(*names: str, kafka: str = KRAFT) -> dict[str, ledger.Planned]:
    """These cases can be run."""
    return {name: ledger.Planned(kip=112, plan="1)", mode="kraft", kafka=kafka) for name in names}


def test_what_ran_is_remembered(tmp_path: Path) -> None:
    """Each case that ran has a line, with its proven faults; a skipped case has none."""
    assert ledger.read(tmp_path) == []
    before = now()
    ended(tmp_path, "a")
    after = now()
    ended(tmp_path, "b", "skipped")
    [entry] = ledger.read(tmp_path)
    assert (entry.id, entry.verdict, entry.run_id) == ("a", "valid", "a-1")
    assert entry.faults == ("chmod_000 on log-dir-1 of broker 2",)
    struck = ledger.Struck(fault="chmod_000", role="leader", also=("coordinator",), acked=700, read=600)
    assert entry.struck == (struck,)
    assert before <= entry.at <= after


def test_those_first_that_ran_longest_ago(tmp_path: Path) -> None:
    """Cases that never ran come first; an error of the harness does not count as a run."""
    for name in ("b", "c", "a", "b"):
        ended(tmp_path, name)
    ended(tmp_path, "d", "error")
    assert ledger.longest_ago(["a", "b", "c", "d", "e"], ledger.read(tmp_path)) == ["d", "e", "c", "a", "b"]


def test_as_many_as_there_is_time_for(tmp_path: Path) -> None:
    """A case is expected to take its median; at least one case runs, whatever the budget."""
    for seconds in (10.0, 11.0, 300.0):
        ended(tmp_path, "a", duration_s=seconds)
    entries = ledger.read(tmp_path)
    assert ledger.usual_s("a", entries) == 11.0
    assert fitting(["a", "b", "c"], entries, 11.0 + ledger.UNKNOWN_S) == ["a", "b"]
    assert fitting(["a", "b"], entries, 1.0) == ["a"]


def test_a_cell_is_a_case_on_a_build(tmp_path: Path) -> None:
    """A run on another build, or an error of the harness, does not count for this build."""
    ended(tmp_path, "a", "invalid")
    ended(tmp_path, "a")
    ended(tmp_path, "b", "error")
    found = ledger.cells(planned("a", "b", "c"), "process", ledger.read(tmp_path), timedelta(days=7))
    assert [(cell.id, cell.runs, cell.valid, cell.is_overdue) for cell in found] == [
        ("a", 2, 1, False),
        ("b", 0, 0, True),
        ("c", 0, 0, True),
    ]
    [late] = ledger.cells(planned("a"), "process", ledger.read(tmp_path), timedelta(0))
    [elsewhere] = ledger.cells(planned("a", kafka="4.2.0"), "process", ledger.read(tmp_path), timedelta(days=7))
    assert (late.is_overdue, elsewhere.is_overdue, elsewhere.last) == (True, True, None)


def test_what_ran_in_containers_did_not_run_as_processes(tmp_path: Path) -> None:
    """The ledger, nights and qualifications keep runs in containers and runs as processes apart."""
    ended(tmp_path, "a", backend="docker")
    cases, entries = planned("a"), ledger.read(tmp_path)
    cells = [ledger.cells(planned("a"), backend, entries, timedelta(days=7))[0] for backend in ("process", "docker")]
    assert [(cell.backend, cell.runs, cell.is_overdue) for cell in cells] == [
        ("process", 0, True),
        ("docker", 1, False),
    ]
    sides = [side("candidate", KRAFT, tmp_path, "kraft", backend) for backend in ("process", "docker")]
    assert [due(cases, each.ran(), 1) for each in sides] == [["a"], []]
    assert ledger.alike(entries, cases, "process") == []


def test_what_can_not_be_run_any_more_is_owed(tmp_path: Path) -> None:
    """A case that ran here before and is now skipped is overdue; one that never ran here is not."""
    ended(tmp_path, "eio")
    fixed = Fixed(planned=planned("a"), unable={}, lacking=planned("eio", "never"))
    owed = fixed.owed(ledger.read(tmp_path), "process")
    cells = ledger.cells(owed, "process", ledger.read(tmp_path), timedelta(0))
    assert [(cell.id, cell.is_overdue) for cell in cells] == [("a", True), ("eio", True)]
    assert [*fixed.owed(ledger.read(tmp_path), "docker")] == ["a"]


def test_a_line_of_a_clock_that_was_ahead_is_none(tmp_path: Path) -> None:
    """A line from the future does not count; otherwise the case would not be due for a year."""
    ended(tmp_path, "a")
    line = json.loads((tmp_path / ledger.NAME).read_text())
    ahead = datetime.fromisoformat(line["at"]) + timedelta(days=365)
    (tmp_path / ledger.NAME).write_text(json.dumps(line | {"at": ahead.isoformat()}) + "\n")
    assert ledger.read(tmp_path) == []


def test_what_showed_nothing_has_to_run_again(tmp_path: Path) -> None:
    """An unknown verdict, such as for an unproven fault or too little load, leaves a case as overdue as it was."""
    ended(tmp_path, "a")
    ended(tmp_path, "b")
    ended(tmp_path, "a", "unknown")
    ended(tmp_path, "c", "unknown")
    entries = ledger.read(tmp_path)
    assert ledger.longest_ago(["a", "b", "c"], entries) == ["c", "a", "b"]
    cells = ledger.cells(planned("a", "b", "c"), "process", entries, timedelta(days=7))
    assert [(cell.id, cell.runs) for cell in cells] == [("a", 2), ("b", 1), ("c", 1)]
    assert [cell.id for cell in cells if cell.is_overdue] == ["c"]


def test_a_build_is_not_asked_for_what_it_does_not_have(tmp_path: Path) -> None:
    """KIP-1066 came with 4.3: an older candidate can qualify, and the answer names what was left out."""
    old, new = (cases_of(side("candidate", build, tmp_path, "kraft"), ["kip-1066"]) for build in ("3.9.2", KRAFT))
    [(why, count)] = old.unfit.items()
    assert (old.cases, count, new.unfit) == ((), len(new.cases), {})
    assert "and this is 3.9.2" in why


def test_the_ledger_is_shown_and_what_is_overdue_is_an_exit_code(tmp_path: Path) -> None:
    """``jbod ledger`` ends with exit code 5 if nothing ever ran, and 2 if a case is overdue."""
    jbod = Path(sys.executable).with_name("jbod")

    def shown() -> tuple[int, list[dict[str, Any]]]:
        done = subprocess.run([jbod, "ledger", tmp_path, "--json"], capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)["cells"]

    code, cells = shown()
    assert (code, {cell["runs"] for cell in cells}) == (5, {0})
    ended(tmp_path, "kip-112/no-fault[kraft]")
    code, cells = shown()
    assert code == 2
    assert [cell["id"] for cell in cells if not cell["is_overdue"]] == ["kip-112/no-fault[kraft]"]


def test_what_was_struck_by_role(tmp_path: Path) -> None:
    """A broker with two roles counts for both, once in each run; errors and runs in another backend do not count."""
    case = "kip-112/no-fault[kraft]"
    verdicts: tuple[Outcome, ...] = ("valid", "invalid", "error")
    for number, verdict in enumerate(verdicts):
        ended(tmp_path, case, verdict, number=number)
    ended(tmp_path, case, backend="docker")
    found = ledger.strikes(planned(case), "process", ledger.read(tmp_path))
    assert {each.role: (each.fault, each.runs, each.valid, each.acked, each.read) for each in found} == {
        "leader": ("chmod_000", 2, 1, 700, 600),
        "coordinator": ("chmod_000", 2, 1, 700, 600),
    }
    argv = [str(Path(sys.executable).with_name("jbod")), "ledger", str(tmp_path), "--by-role"]
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=False)
    assert (done.returncode, {each["role"] for each in json.loads(done.stdout)["strikes"]}) == (
        0,
        {"leader", "coordinator"},
    )
    assert "1 on a leader, 1 on a coordinator" in subprocess.run(argv, capture_output=True, text=True).stdout
    assert subprocess.run([*argv, "--backend", "docker", "--kafka", "4.0.0"], capture_output=True).returncode == 5


def test_what_random_schedules_struck_counts(tmp_path: Path) -> None:
    """Faults of random schedules count by role on the build that was asked for; those of controls do not."""
    for name in ("schedules/random[kraft-0]", "schedules/random[kraft-1]", "control/rack-fails[kraft-green]"):
        ended(tmp_path, name)
    case = "kip-112/no-fault[kraft]"
    found = ledger.strikes(planned(case), "process", ledger.read(tmp_path))
    assert {(each.plan, each.kafka, each.role, each.runs) for each in found} == {
        ("1)", KRAFT, "leader", 2),
        ("1)", KRAFT, "coordinator", 2),
    }
    assert ledger.strikes(planned(case, kafka="4.2.0"), "process", ledger.read(tmp_path)) == []
    assert ledger.strikes(planned(case), "docker", ledger.read(tmp_path)) == []


def test_a_line_cut_off(tmp_path: Path) -> None:
    """A line that a full disk or a kill cut off is ignored; the lines before and after it count."""
    ended(tmp_path, "a")
    file = tmp_path / ledger.NAME
    file.write_text(file.read_text() + file.read_text()[:30])
    ended(tmp_path, "b")
    assert [entry.id for entry in ledger.read(tmp_path)] == ["a", "b"]


def test_a_full_disk_ends_no_run(tmp_path: Path) -> None:
    """If the ledger cannot be written, the case is missing there, and the run goes on."""
    (tmp_path / ledger.NAME).symlink_to("/dev/full")
    ended(tmp_path, "a")


def test_what_a_qualification_still_has_to_run(tmp_path: Path) -> None:
    """Each case must run as often as wanted, and three times if a run was not valid; harness errors do not count."""
    for name, verdict in (("a", "valid"), ("b", "invalid"), ("c", "error"), ("d", "unknown"), ("d", "valid")):
        ended(tmp_path, name, verdict)  # type: ignore[arg-type]
    cases = ["a", "b", "c", "d", "e"]
    assert due(cases, ledger.read(tmp_path), 1) == ["b", "c", "d", "e"]
    assert due(cases, ledger.read(tmp_path), 2) == cases
    ended(tmp_path, "d", "valid")
    assert due(cases, ledger.read(tmp_path), 1) == ["b", "c", "e"]


def test_what_a_qualification_is_made_of() -> None:
    """Cases that the candidate does not have, such as those in ZooKeeper mode, are left out and counted."""

    def wanted(*cases: str, unfit: dict[str, int]) -> Wanted:
        return Wanted(scenarios={case: listed_scenario(case) for case in cases}, unfit=unfit)

    ours = wanted("disks/a[kraft]", "known-bugs/b[kraft]", unfit={"too old": 2})
    theirs = wanted("disks/a[kraft]", "disks/a[zk]", "disks/c[zk]", unfit={"too new": 1})
    assert ours.without(not_asked("process")).cases == ("disks/a[kraft]",)
    assert theirs.beside(ours).cases == ("disks/a[kraft]",)
    assert theirs.beside(ours).unfit == {"too new": 1, "the candidate lacks what they check": 2}
    assert ours.beside(ours) == ours


@pytest.mark.parametrize(
    ("code", "comes_to"),
    [(0, 3), (1, 1), (2, 3), (5, 3)],
)
def test_results_that_cannot_be_written_are_no_pass_and_hide_no_failure(
    tmp_path: Path, code: int, comes_to: int
) -> None:
    output: list[str] = []
    assert write_json(None, {"exit_code": code}, output.append) == code
    assert write_json(tmp_path / "out.json", {"exit_code": code}, output.append) == code
    assert output == []
    assert write_json(tmp_path / "gone" / "out.json", {"exit_code": code}, output.append) == comes_to
    assert output == [f"cannot write --json {tmp_path}/gone/out.json: No such file or directory"]


@pytest.mark.parametrize(
    ("codes", "overdue", "code"),
    [
        ([0, 0], [], 0),
        ([0, 0], ["a"], 2),
        ([1, 0], ["a"], 1),
        ([5, 5], [], 5),
        ([3], [], 3),
        ([0, 5], [], 2),  # half of them ran
        ([1, 5], [], 1),
    ],
)
def test_a_night_is_green_only_if_all_ran_that_had_to(codes: list[int], overdue: list[str], code: int) -> None:
    """A night is inconclusive if a due case did not run; its exit code is 5 if no case ran."""
    night = Night(codes=codes, overdue=overdue, left=dict.fromkeys(overdue, datetime(2026, 1, 1)))
    assert night.exit_code() == code
    assert json.loads(json.dumps(night.to_json()))["exit_code"] == code
