"""run.json names the jbod that ran and says how crowded the machine was; pages and commands show both."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import click.testing
import pytest

from harness.cli.main import cli
from harness.crowding import EASY, CrowdedTime, CrowdingWatch
from harness.history.run_folder import OwnVersion, read_run_json
from harness.host.own_version import own_revision, own_version
from harness.runner.case import Case, CaseId
from harness.waiting import let_pass
from reports.allure import write_result
from reports.command import write_case, write_report
from reports.folder import read_folder
from reports.rows import read_runs_dir, row_of
from suites.selftest.run_folders import write_run_folder

CROWDING = {"per_core_max": 17.25, "lateness_max": 3.5, "crowded_share": 0.4}
SAYS = (
    "crowded for 40% of the time: at most 17.2 threads per core were ready to run, and a sleep took up to 3.5 times "
    "as long"
)
JBOD = {"version": "0.1.0", "revision": "abc1234-dirty"}


def test_a_case_records_jbod_and_crowding_and_has_its_outcome_first(tmp_path: Path) -> None:
    case = Case.begin(
        CaseId(id="kip-0/x[zk]", kip=0, plan="", mode="zk", seed=1, nodeid="x"), tmp_path, ["jbod", "run"]
    )
    let_pass(0.6)  # two samples
    case.enter("judge")
    case.end("valid", "", (), (), ())
    content = json.loads((case.run_dir / "run.json").read_text())
    assert content["jbod"] == {"version": own_version(), "revision": own_revision()}
    assert content["crowding"]["per_core_max"] >= content["crowding"]["per_core_mean"] > 0
    assert content["crowding"]["lateness_max"] >= content["crowding"]["lateness_mean"] > 0
    assert content["jobs"] == 1
    assert 0.59 < content["awaited_s"]["boot"] <= content["phases_s"]["boot"]
    assert content["awaited_s"]["judge"] == 0
    names = list(content)
    assert names.index("outcome") < min(names.index(other) for other in ("argv", "host", "seed"))


def test_a_share_of_crowded_samples_needs_a_crowded_sample() -> None:
    watch = CrowdingWatch()
    let_pass(0.6)
    found = watch.so_far()
    crowded = max(found.per_core_max, found.lateness_max) > EASY
    assert (found.crowded_share > 0) == crowded
    assert 0 <= found.crowded_share <= 1


def test_explain_and_the_page_show_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write_run_folder(
        tmp_path, jbod=JBOD, crowding=CROWDING, outcome={"verdict": "invalid", "reason": "broker 2 went on"}
    )
    run = read_run_json(run_dir)
    assert (run.jbod, run.crowding) == (OwnVersion(**JBOD), CrowdedTime(**CROWDING))
    folder = read_folder(run_dir)
    page = write_case(folder, row_of(folder), tmp_path / "out", "").read_text()
    (run_dir / "verdict.json").unlink()
    cli.main(["explain", str(run_dir)], standalone_mode=False)
    told = capsys.readouterr().out
    for shown in ("0.1.0 (revision abc1234-dirty)", SAYS):
        assert shown in page
        assert shown in told


@pytest.mark.parametrize(("share", "marked"), [(0.4, False), (0.6, True)])
def test_pages_mark_times_of_a_crowded_machine(tmp_path: Path, share: float, marked: bool) -> None:
    run_dir = write_run_folder(tmp_path / "runs", crowding=CROWDING | {"crowded_share": share})
    folder = read_folder(run_dir)
    row = row_of(folder)
    mark = f'title="{row.crowding}">crowded</small>'
    assert write_case(folder, row, tmp_path / "out", "").read_text().count(mark) == (2 if marked else 0)
    index = write_report(read_runs_dir(tmp_path / "runs"), tmp_path / "out", None, allure=False)
    assert index.read_text().count(mark) == (1 if marked else 0)
    write_result(tmp_path, row, folder)
    [result] = tmp_path.glob("*-result.json")
    assert ("Its times were measured on a crowded machine" in result.read_text()) == marked


def test_an_older_run_folder_has_neither(tmp_path: Path) -> None:
    run_dir = write_run_folder(tmp_path)
    run = read_run_json(run_dir)
    assert (run.jbod, run.crowding) == (None, None)
    folder = read_folder(run_dir)
    page = write_case(folder, row_of(folder), tmp_path / "out", "").read_text()
    assert "<dt>jbod</dt>" not in page
    assert "<dt>machine</dt>" not in page


def test_the_version_of_a_checkout_has_its_revision() -> None:
    root = Path(__file__).parents[2]
    shown = click.testing.CliRunner().invoke(cli, ["--version"]).output.strip()
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    argv = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    revision = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    assert shown.removesuffix(")").removesuffix("-dirty") == f"jbod {own_version()} (revision {revision}"
