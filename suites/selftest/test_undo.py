"""A run's changes to the machine are undone by itself, by the next run, or by ``jbod clean``."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.errors import EXIT_HARNESS, HarnessError
from harness.host import undo
from harness.host.marked_processes import MARK
from harness.host.undo import UndoLog
from harness.waiting import await_until
from suites.selftest.processes import JBOD

# A harness that makes every kind of change, and then waits to be killed.
VICTIM = """
import os, subprocess, sys
from pathlib import Path
from harness.host.undo import UndoLog
from harness.host.marked_processes import MARK
log = UndoLog("doomed")
child = subprocess.Popen(["sleep", "1000"], env=dict(os.environ, **{MARK: "doomed"}), start_new_session=True)
outside = Path(sys.argv[1])
log.will("chmod", path=str(outside / "a"), mode=0o755); (outside / "a").chmod(0)
log.will("rename", now=str(outside / "b.aside"), then=str(outside / "b")); (outside / "b").rename(outside / "b.aside")
(outside / "b").write_text("stands in")
(log.dir / "data").mkdir(); (log.dir / "data" / "x").write_text("x"); (log.dir / "data").chmod(0)
if sys.argv[2:] == ["keep"]:
    log.keep()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JBOD_WORK_DIR", str(tmp_path / "work"))
    return tmp_path / "work"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    for name in "ab":
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o755)
    return folder


def doomed_harness(outside: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A harness process that has made its changes, and the id of its child."""
    harness = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(outside), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert harness.stdout is not None
    return harness, int(harness.stdout.readline())


@pytest.fixture
def killed(workspace: Path, outside: Path) -> Iterator[int]:
    """A harness was killed by SIGKILL; yields the id of the child that it left."""
    harness, child = doomed_harness(outside)
    harness.kill()
    harness.wait()
    yield child
    if psutil.pid_exists(child):
        os.kill(child, signal.SIGKILL)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_clean_undoes_what_a_killed_harness_left(killed: int, workspace: Path, outside: Path) -> None:
    assert not gone(killed)
    assert undo.clean() == 1
    assert gone(killed)
    assert stat.S_IMODE((outside / "a").stat().st_mode) == 0o755
    assert (outside / "b").is_dir()
    assert not (outside / "b.aside").exists()
    assert list(workspace.iterdir()) == []


def test_clean_twice_is_as_good_as_once(killed: int, workspace: Path) -> None:
    assert (undo.clean(), undo.clean()) == (1, 0)


def test_a_run_at_work_is_left_alone(workspace: Path, outside: Path) -> None:
    harness, child = doomed_harness(outside)
    assert undo.clean() == 0
    assert not gone(child)
    harness.kill()
    harness.wait()
    assert undo.clean() == 1
    await_until(lambda: gone(child), timeout_s=5, what="the child to go")


def test_a_kept_cluster_goes_only_when_taken_down(workspace: Path, outside: Path) -> None:
    harness, child = doomed_harness(outside, "keep")
    harness.kill()
    harness.wait()
    said: list[str] = []
    assert undo.clean(said.append) == 0
    assert "jbod cluster down doomed" in said[0]
    assert not gone(child)
    assert undo.take_down("doomed")
    assert gone(child)


def test_one_that_another_process_is_at_work_on_is_not_called_down(workspace: Path, outside: Path) -> None:
    harness, child = doomed_harness(outside, "keep")
    harness.kill()
    harness.wait()
    down = [str(JBOD), "cluster", "down"]
    with next(iter(undo.logs())).open("r+") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        done = subprocess.run(down, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (EXIT_HARNESS, "")
    assert "not taken down: doomed: another process uses it" in done.stderr
    assert not gone(child)
    assert subprocess.run(down, capture_output=True, text=True, check=True).stdout == "doomed: down\n"
    assert gone(child)


def test_a_line_cut_off_in_the_middle_is_no_obstacle(killed: int, workspace: Path) -> None:
    log = next(iter(undo.logs()))
    with log.open("a") as file:
        file.write('{"token": 99, "way": "chm')
    assert undo.clean() == 1


def test_closing_undoes_the_last_first_and_leaves_no_folder(workspace: Path, outside: Path) -> None:
    log = UndoLog("r")
    target = outside / "a"
    for mode in (0o755, 0o700):
        log.will("chmod", path=str(target), mode=mode)
    target.chmod(0)
    log.close()
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert not (workspace / "r").exists()


def test_a_harness_killed_as_it_removes_its_folder_leaves_the_log(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = UndoLog("run-1")
    for name in ("broker-1", "zookeeper"):
        (log.dir / name).mkdir()
    removed: list[str] = []

    def remove_one(path: str) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(path)

    with monkeypatch.context() as patched:
        patched.setattr(undo, "_undo_tree", remove_one)
        with pytest.raises(KeyboardInterrupt):
            log.close()
    assert undo.logs() == [log.dir / "undo.jsonl"]
    assert undo.clean() == 1
    assert list(workspace.iterdir()) == []


def test_a_folder_that_is_gone_is_no_obstacle(workspace: Path) -> None:
    log = UndoLog("run-1")
    (log.dir / "undo.jsonl").unlink()
    log.dir.rmdir()
    log.close()
    assert list(workspace.iterdir()) == []


def test_one_step_undone_twice_happens_once(workspace: Path, outside: Path) -> None:
    log = UndoLog("r")
    token = log.will("chmod", path=str(outside / "a"), mode=0o711)
    log.undo(token)
    (outside / "a").chmod(0o700)
    log.undo(token)
    assert stat.S_IMODE((outside / "a").stat().st_mode) == 0o700
    log.close()


def test_only_marked_processes_are_ended(workspace: Path) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: "somebody-else"})
    try:
        UndoLog("r").close()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_holds_processes_goes_before_them_and_mounts_after_them(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    ways = ("mount", "freeze", "tree", "group", "setting")
    for way in (*ways, "processes"):
        monkeypatch.setitem(undo._WAYS, way, lambda way=way, **_data: done.append(way))
    log = UndoLog("r")
    for way in ways:
        log.will(way)
    log.close()
    assert done == ["freeze", "setting", "group", "processes", "tree", "mount"]


def test_a_process_that_was_spawned_just_now_is_no_hiding_place(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has its environment only once its program begins; the clean-up finds it all the same."""
    child = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: "r"})
    looks, really = iter(range(2)), psutil.Process.environ

    def environ(process: psutil.Process) -> dict[str, str]:
        return {} if process.pid == child.pid and next(looks, None) is not None else really(process)

    monkeypatch.setattr(psutil.Process, "environ", environ)
    UndoLog("r").close()
    assert child.wait(5) == -signal.SIGKILL


def test_a_process_id_used_anew_is_no_hiding_place(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil's list would return the remembered process of that id, which has ended."""
    child = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: "r"})
    stale = psutil.Process(child.pid)
    monkeypatch.setattr(stale, "_pid_reused", True)
    monkeypatch.setattr(psutil, "process_iter", lambda *_: iter([stale]))
    UndoLog("r").close()
    assert child.wait(5) == -signal.SIGKILL


def test_a_workspace_that_cannot_be_made_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JBOD_WORK_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(HarnessError, match=r"workspace .* can't be made.*JBOD_WORK_DIR"):
        undo.workspace()
