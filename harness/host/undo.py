"""The undo log: what a run does to the machine, written down before it is done, so that any process can undo it.

It is a write-ahead log: one file for each run, in the workspace (:func:`workspace`). Before the harness starts a
process, takes a permission away or makes a folder, it writes how to undo that. When that is undone, it writes a second
line. The log of a run that was killed has steps without a second line; ``jbod clean``, or the next run, undoes them. A
run undoes its own steps with the same functions.

* The owner of a log holds an ``flock`` on it. If the lock is free, the owner is gone; no process id has to be trusted.
* Processes are found by a mark in their environment (:mod:`harness.host.marked_processes`).
* An undo is idempotent, and no error if nothing is left to undo.
* Steps are undone last first, with two exceptions. What holds processes in the kernel (a frozen file system, a
  throttle) comes first, since processes and containers could not end otherwise. Processes and containers come next,
  since they keep mounts busy.
* A step that can't be undone now, because the Docker engine doesn't run, keeps the log: all else is undone, and a
  later clean-up does the rest.
* A cluster that shall stay (``cluster up``, ``--keep-cluster``) is marked as kept: only ``cluster down`` removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from harness.errors import AwaitTimeout, EnvironmentLacks, HarnessError
from harness.host.marked_processes import kill_marked
from harness.host.scratch import sweep_scratch
from harness.waiting import await_until

_LOG_NAME = "undo.jsonl"
_KILL_WAIT_S = 10.0
_UNMOUNT_WAIT_S = 5.0

# linux/fs.h
FIFREEZE = 0xC0045877
FITHAW = 0xC0045878


def workspace() -> Path:
    """The folder that holds one folder for each cluster in use: ``$JBOD_WORK_DIR``, or ``jbod-<uid>`` in the temp dir.

    Brokers run as another user than a root harness, so every part of the path must be open to them.
    """
    base = Path(os.environ.get("JBOD_WORK_DIR") or Path(tempfile.gettempdir()) / f"jbod-{os.getuid()}")
    try:
        base.mkdir(mode=0o755, parents=True, exist_ok=True)
        if (owner := base.stat().st_uid) != os.getuid():
            raise HarnessError(f"the workspace {base} belongs to uid {owner}, not to you; set JBOD_WORK_DIR")
        base.chmod(0o755)
    except OSError as error:
        raise HarnessError(f"the workspace {base} can't be made: {error.strerror}; set JBOD_WORK_DIR") from error
    return base


def _undo_processes(mark: str) -> None:
    """Kill every process that carries the mark, and wait until it has ended."""
    mine = kill_marked(mark)
    await_until(
        lambda: [process.pid for process in mine if not _has_ended(process)],
        lambda alive: not alive,
        timeout_s=_KILL_WAIT_S,
        what="killed processes to end",
        for_kafka=False,
    )


def _has_ended(process: psutil.Process) -> bool:
    """Whether the process is gone or a zombie; in many containers init never reaps zombies."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _undo_chmod(path: str, mode: int) -> None:
    with suppress(FileNotFoundError):
        os.chmod(path, mode)  # noqa: PTH101 - a path that is data


def _undo_rename(now: str, then: str) -> None:
    """Give a moved folder its old name again; whatever has that name now is removed first."""
    if not Path(now).exists():
        return
    if Path(then).is_dir():
        _undo_tree(then)
    elif os.path.lexists(then):
        Path(then).unlink()
    Path(now).rename(then)


def _undo_bytes(path: str, at: int, hexadecimal: str) -> None:
    """Write bytes back where they were, if the file is there and long enough."""
    with suppress(FileNotFoundError), Path(path).open("r+b") as file:
        if file.seek(0, os.SEEK_END) > at:
            file.seek(at)
            file.write(bytes.fromhex(hexadecimal))


def _undo_tree(path: str) -> None:
    """Remove a folder, also if a fault has taken permissions from parts of it."""

    def open_up(_function: object, name: str, _error: object) -> None:
        parent = Path(name).parent
        for part in (parent, Path(name)):
            with suppress(OSError):
                if part.is_dir():
                    part.chmod(stat.S_IRWXU)
        with suppress(OSError):
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()

    for _ in range(2):  # the second pass removes what the first could only open
        if os.path.lexists(path):
            shutil.rmtree(path, onerror=open_up)


def _undo_mount(path: str) -> None:
    """Unmount all that is mounted there; a loop device under it goes with it (``autoclear``).

    A mount that another process (such as a shell) keeps busy is detached (``--lazy``) and ends with its last user.
    """
    while is_mounted(Path(path)):
        with suppress(AwaitTimeout):
            await_until(
                lambda: unmount(Path(path)), timeout_s=_UNMOUNT_WAIT_S, what=f"{path} to be unmounted", for_kafka=False
            )
            continue
        subprocess.run(["umount", "--lazy", path], check=True, capture_output=True, text=True)


def _undo_freeze(path: str) -> None:
    """Thaw a file system, if it is there and frozen."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, FITHAW, 0)
        finally:
            os.close(folder)


def _undo_group(path: str) -> None:
    """Give a control group's processes back to its parent and remove it, with its limits."""
    group = Path(path)
    while group.is_dir():
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(pid)
        with suppress(OSError):  # a process has forked meanwhile: the loop runs again
            group.rmdir()


def _undo_setting(path: str, text: str) -> None:
    """Write the text back into a file of the kernel, if it is there."""
    with suppress(OSError):
        Path(path).write_text(text)


def _undo_containers(run: str, engine: str | None = None) -> None:
    """Remove the containers, networks and volumes that carry the run's id, from the engine that made them.

    :param engine: its address; old logs have none, which means the engine in use now
    """
    from harness.host.engine import remove_run  # loads Docker's SDK, which most runs don't need

    remove_run(run, engine)


def _undo_share(path: str) -> None:
    """Unmount a folder that was mounted over itself, whoever uses it."""
    while is_mounted(Path(path)):
        subprocess.run(["umount", "--lazy", path], check=True, capture_output=True, text=True)


_WAYS: dict[str, Callable[..., None]] = {
    "freeze": _undo_freeze,
    "setting": _undo_setting,
    "group": _undo_group,
    "containers": _undo_containers,
    "processes": _undo_processes,
    "share": _undo_share,
    "mount": _undo_mount,
    "chmod": _undo_chmod,
    "rename": _undo_rename,
    "bytes": _undo_bytes,
    "tree": _undo_tree,
}

_FIRST = ("freeze", "setting", "group", "containers", "processes")


@dataclass(frozen=True)
class _Step:
    """One thing to undo: a name in :data:`_WAYS`, and the arguments of that function."""

    way: str
    data: Mapping[str, object]

    def undo(self) -> None:
        _WAYS[self.way](**self.data)


def _in_order(steps: Mapping[int, _Step]) -> list[int]:
    """The tokens in the order in which they are undone; see the module's docstring."""

    def rank(token: int) -> tuple[int, int]:
        way = steps[token].way
        return (_FIRST.index(way) if way in _FIRST else len(_FIRST)), -token

    return sorted(steps, key=rank)


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at this path, by the kernel's list: a dead file system may not answer."""
    wanted = re.sub(r"[ \t\n\\]", lambda match: f"\\{ord(match[0]):03o}", os.path.realpath(path))
    return any(line.split()[1] == wanted for line in Path("/proc/self/mounts").read_text().splitlines())


def unmount(path: Path) -> bool:
    """Unmount what is mounted there; False where it is busy.

    :raises HarnessError: it can't be unmounted for another reason
    """
    environment = {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}
    done = subprocess.run(["umount", str(path)], check=False, capture_output=True, text=True, env=environment)
    if done.returncode and "busy" not in done.stderr and is_mounted(path):
        raise HarnessError(f"{path} can't be unmounted: {done.stderr.strip()}")
    return done.returncode == 0


class UndoLog:
    """The undo log of one run; the module's docstring has its guarantees."""

    def __init__(self, run_id: str) -> None:
        """Make the run's folder in the workspace, open a new log in it, and hold the log's lock."""
        self.run_id = run_id
        self.dir = workspace() / run_id
        self.dir.mkdir(mode=0o755)
        self.dir.chmod(0o755)
        self._file: IO[str] = (self.dir / _LOG_NAME).open("a+")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._open: dict[int, _Step] = {}
        self._next = 0
        self.will("processes", mark=run_id)

    def _write(self, **line: object) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def will(self, way: str, **data: object) -> int:
        """Write down how to undo what is about to be done.

        :param way: a name in :data:`_WAYS`
        :param data: the arguments of that function, as values that JSON can hold
        :return: the token for :meth:`undo`
        """
        token = self._next
        self._next += 1
        self._open[token] = _Step(way, data)
        self._write(token=token, way=way, **data)
        return token

    def undo(self, token: int) -> None:
        """Undo one step now; a second call does nothing."""
        if token in self._open:
            self._open[token].undo()
            self.settle(token)

    def settle(self, token: int) -> None:
        """Record that nothing is left to undo of a step; a second call does nothing."""
        if self._open.pop(token, None) is not None:
            self._write(done=token)

    def due(self) -> frozenset[int]:
        """The tokens of the steps that are not undone yet."""
        return frozenset(self._open)

    def keep(self) -> None:
        """Let the cluster stay when this process ends; from then on only :func:`take_down` undoes this log."""
        self._write(kept=True)
        self._file.close()

    def close(self) -> None:
        """Undo all that is still open, last first, then remove the run's folder in the workspace.

        :raises EnvironmentLacks: something can't be undone at the moment
        """
        try:
            _undo_all(self.dir, dict(self._open), self.undo)
        finally:
            self._file.close()


def _undo_all(folder: Path, steps: Mapping[int, _Step], undo: Callable[[int], None]) -> None:
    """Undo these steps in their order, then remove the run's folder, or all but the log in it if a step must wait.

    :raises EnvironmentLacks: the error of the first step that must wait
    """
    lacking: EnvironmentLacks | None = None
    for token in _in_order(steps):
        try:
            undo(token)
        except EnvironmentLacks as error:
            lacking = lacking or error
    for path in folder.glob("*"):  # the log goes last: without it, no clean-up would find what is left
        if path.name != _LOG_NAME:
            _undo_tree(str(path))
    if lacking:
        raise lacking
    _undo_tree(str(folder))


def _take_back(log: Path) -> bool:
    """Undo the open steps of a log; False if its owner is alive."""
    with log.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        steps = _open_steps(file)
        _undo_all(log.parent, steps, lambda token: steps[token].undo())
        return True


def _open_steps(lines: Iterable[str]) -> dict[int, _Step]:
    """The steps of a log that have no second line, by token."""
    steps: dict[int, _Step] = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # a line cut off in the middle: what it announced had not begun
        if "token" in entry:
            steps[entry.pop("token")] = _Step(entry.pop("way"), entry)
        steps.pop(entry.get("done"), None)
    return steps


def is_kept(log: Path) -> bool:
    """Whether this log's cluster was kept (:meth:`UndoLog.keep`)."""
    return any('"kept"' in line for line in log.read_text().splitlines())


def logs() -> list[Path]:
    """All undo logs in the workspace, whether their owners are alive or not."""
    return sorted(workspace().glob(f"*/{_LOG_NAME}"))


def clean(say: Callable[[str], None] = lambda _line: None) -> int:
    """Undo what interrupted runs left; skips kept clusters and live runs.

    :param say: called with one line for each log, except those of live runs
    :return: how many runs it cleaned up after
    """
    sweep_scratch()
    count = 0
    for log in logs():
        try:
            if is_kept(log):
                say(f"{log.parent.name}: kept on purpose; take it down with: jbod cluster down {log.parent.name}")
            elif _take_back(log):
                say(f"{log.parent.name}: cleaned up")
                count += 1
        except FileNotFoundError:
            continue  # removed by another clean-up
        except EnvironmentLacks as error:
            say(f"{log.parent.name}: can't be cleaned up yet: {error}")
    return count


def take_down(run_id: str) -> bool:
    """Undo a kept cluster; False if there is none of that name."""
    log = workspace() / run_id / _LOG_NAME
    return log.exists() and is_kept(log) and _take_back(log)
