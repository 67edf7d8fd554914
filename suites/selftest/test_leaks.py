"""The monitor of long runs finds what a run leaves, and which processes grow."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.host.marked_processes import MARK
from suites.selftest import leaks
from suites.selftest.leaks import Life, left, main


@pytest.mark.parametrize(
    ("handles", "mb", "grew"),
    [
        (lambda at: 50, lambda at: 200.0, None),
        (lambda at: 50 + at, lambda at: 200.0, "50 more handles"),
        (lambda at: 50, lambda at: 200.0 + 10 * at, "2.1 times the memory"),
        (lambda at: 50, lambda at: 200.0 + 10 * min(at, 40), None),
        (lambda at: 500 if 80 < at < 90 else 50, lambda at: 2000.0 if at > 90 else 200.0, None),
        (lambda at: 50 if at % 5 == 0 else 500 if at > 75 else 100, lambda at: 200.0, None),
        (lambda at: 75 if at % 5 == 0 and at > 75 else 50 if at % 5 == 0 else 500, lambda at: 200.0, "25 more handles"),
    ],
    ids=[
        "steady",
        "handles",
        "memory",
        "warms-up",
        "one large case",
        "large cases in the end",
        "between them",
    ],
)
def test_what_grows_is_seen(handles: object, mb: object, grew: str | None) -> None:
    life = Life("java", [(float(at), handles(at), mb(at)) for at in range(101)])  # type: ignore[operator]
    assert life.grew() == grew


def test_what_is_left_is_seen_and_nothing_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds processes with the mark of the run's clusters or in its workspace, and folders; none of other runs."""
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("JBOD_WORK_DIR", str(tmp_path / "work"))
    assert not any(left(tmp_path, {"mine"}).values())
    for name in ("spark-1", "jbod-ports", "pytest-of-somebody"):  # the others belong to all runs
        (tmp_path / "tmp" / name).mkdir()
    environments = ({MARK: "mine"}, {"JBOD_WORK_DIR": str(tmp_path / "work")}, {MARK: "another's"})
    others = {name: value for name, value in os.environ.items() if name != "JBOD_WORK_DIR"}
    started = [subprocess.Popen(["sleep", "60"], env=others | each) for each in environments]
    try:
        found = left(tmp_path, {"mine"})
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert found.pop("folders") == [str(tmp_path / "tmp" / "spark-1")]
    assert sorted(int(each.split()[0]) for each in found.pop("processes")) == sorted(p.pid for p in started[:2])
    assert not any(found.values())


def test_a_run_that_left_something_or_was_none_is_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leaks, "EVERY_S", 0.1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    litters = "import os, pathlib; pathlib.Path(os.environ['TMPDIR'], 'litter').touch()"
    with monkeypatch.context() as environment:
        for name in ("JBOD_WORK_DIR", "TMPDIR"):
            environment.setenv(name, "")
        assert main([sys.executable, "-c", litters]) == 1
        assert main([sys.executable, "-c", "pass"]) == 2  # too short to compare its quarters
    assert "litter" in capsys.readouterr().out
