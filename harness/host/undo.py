"""What a run does to the machine, written down before it is done, so that anybody can take it back.

A write-ahead log, one file a run, in the workspace (:func:`workspace`). Before the harness starts a process, takes a
permission away or makes a folder, it writes a line that says how to undo that; when it has undone it, a second line
says so. A run that was killed leaves lines without their second half, and ``jbod clean``, or the next run by
itself, carries them out, last first. Ordinary undoing goes through the same functions: one path, not two.

Decisions:

* The owner of a log holds an ``flock`` on it. A log whose lock can be had belongs to nobody alive; there is no
  process id to mistake for another's.
* Processes are found by a mark in their environment (``JBOD_RUN``), not by id: a process that was killed between
  "started" and "written down" is found too, and a reused id never is.
* An undo is idempotent and says nothing when there is nothing left to undo.
* Last first, but for two kinds: what holds processes in the kernel (a frozen file system, a throttle) goes before
  the processes and containers, which could not end otherwise; and these before the mounts that they keep busy.
* What can't be undone at the moment, since the Docker engine doesn't run, keeps the log and no more: all else is
  undone, and the rest by a later clean-up.
* A cluster that was meant to stay (``cluster up``, ``--keep-cluster``) is marked as kept: only its own
  ``cluster down`` takes it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import psutil

from harness.errors import AwaitTimeout, EnvironmentLacks, HarnessError
from harness.host.marked_processes import kill_marked
from harness.host.scratch import sweep_scratch
from harness.waiting import await_until

_LOG_NAME = "undo.jsonl"
_KILL_WAIT_S = 10.0
_UNMOUNT_WAIT_S = 5.0
_PATH = {"PATH": os.environ.get("PATH", os.defpath)}

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
        if base.stat().st_uid != os.getuid():
            raise HarnessError(
                f"the workspace {base} belongs to uid {base.stat().st_uid}, not to you; set JBOD_WORK_DIR"
            )
        base.chmod(0o755)
    except OSError as error:
        raise HarnessError(f"the workspace {base} can't be made: {error.strerror}; set JBOD_WORK_DIR") from error
    return base


# --- the ways to undo: plain data in, nothing out, idempotent ------------------------------------------------


def _undo_processes(mark: str) -> None:
    """Kill every process that carries the mark, and wait until the kernel has let go of it."""
    mine = kill_marked(mark)
    await_until(
        lambda: [process.pid for process in mine if not _has_ended(process)],
        lambda alive: not alive,
        timeout_s=_KILL_WAIT_S,
        what="killed processes to end",
    )


def _has_ended(process: psutil.Process) -> bool:
    """A zombie has: an init that never reaps, as in many containers, is no reason to wait."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _undo_chmod(path: str, mode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.chmod(path, mode)  # noqa: PTH101 - a path that is data


def _undo_rename(now: str, then: str) -> None:
    """Give a moved folder its old name again; whatever stands in its place goes first."""
    if not Path(now).exists():
        return
    if Path(then).is_dir():
        _undo_tree(then)
    elif os.path.lexists(then):
        Path(then).unlink()
    Path(now).rename(then)


def _undo_bytes(path: str, at: int, hexadecimal: str) -> None:
    """Write bytes back where they were; a file that is gone or shorter by now needs nothing."""
    with contextlib.suppress(FileNotFoundError), Path(path).open("r+b") as file:
        if file.seek(0, os.SEEK_END) > at:
            file.seek(at)
            file.write(bytes.fromhex(hexadecimal))


def _undo_tree(path: str) -> None:
    """Remove a folder whole, also where a fault has left parts of it without permissions."""

    def open_up(_function: object, name: str, _error: object) -> None:
        parent = Path(name).parent
        for part in (parent, Path(name)):
            with contextlib.suppress(OSError):
                if part.is_dir():
                    part.chmod(stat.S_IRWXU)
        with contextlib.suppress(OSError):
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()

    for _ in range(2):  # a second pass takes what the first could only open
        if os.path.lexists(path):
            shutil.rmtree(path, onerror=open_up)


def _undo_mount(path: str) -> None:
    """Unmount whatever is mounted there, how often ever; a loop device under it goes with it (``autoclear``).

    What somebody else keeps busy (a shell that stands in it) is taken out of sight at once and ends with its last user.
    """
    while is_mounted(Path(path)):
        with contextlib.suppress(AwaitTimeout):
            await_until(lambda: unmount(Path(path)), timeout_s=_UNMOUNT_WAIT_S, what=f"{path} to be unmounted")
            continue
        subprocess.run(["umount", "--lazy", path], check=True, capture_output=True, text=True)


def _undo_freeze(path: str) -> None:
    """Thaw a file system; one that isn't frozen, or isn't there any more, needs nothing."""
    with contextlib.suppress(OSError):
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
            with contextlib.suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):  # a process that forked meanwhile: once more
            group.rmdir()


def _undo_setting(path: str, text: str) -> None:
    """Write the text into a file of the kernel's again; one that is gone needs nothing."""
    with contextlib.suppress(OSError):
        Path(path).write_text(text)


def _undo_containers(run: str, engine: str | None = None) -> None:
    """Remove the containers, networks and volumes that carry the run's id, from the engine in which they were made.

    :param engine: where that listens; None in logs of old: whoever is asked now
    """
    from harness.host.engine import remove_run  # most runs have none, and need no SDK

    remove_run(run, engine)


def _undo_share(path: str) -> None:
    """Take a folder's mount over itself away; its users are gone or go with it."""
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


def _in_order(steps: Mapping[int, tuple[str, Mapping[str, Any]]]) -> list[int]:
    """The tokens in the order in which they are undone; see the module's text."""

    def rank(token: int) -> tuple[int, int]:
        way = steps[token][0]
        return (_FIRST.index(way) if way in _FIRST else len(_FIRST)), -token

    return sorted(steps, key=rank)


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at this path; asks the kernel's list, as a dead file system may not answer."""
    wanted = re.sub(r"[ \t\n\\]", lambda match: f"\\{ord(match[0]):03o}", os.path.realpath(path))
    return any(line.split()[1] == wanted for line in Path("/proc/self/mounts").read_text().splitlines())


def unmount(path: Path) -> bool:
    """Unmount what is mounted there; False where it is busy.

    :raises HarnessError: it can't be unmounted for another reason
    """
    done = subprocess.run(
        ["umount", str(path)], check=False, capture_output=True, text=True, env={"LC_ALL": "C"} | _PATH
    )
    if done.returncode and "busy" not in done.stderr and is_mounted(path):
        raise HarnessError(f"{path} can't be unmounted: {done.stderr.strip()}")
    return done.returncode == 0


# --- the log ---------------------------------------------------------------------------------------------------


class UndoLog:
    """The write-ahead log of one run; see the module's text for its guarantees."""

    def __init__(self, run_id: str) -> None:
        """Open a new log for ``run_id`` and hold its lock; the run's folder in the workspace is made."""
        self.run_id = run_id
        self.dir = workspace() / run_id
        self.dir.mkdir(mode=0o755)
        self.dir.chmod(0o755)
        self._file: IO[str] = (self.dir / _LOG_NAME).open("a+")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._open: dict[int, tuple[str, dict[str, Any]]] = {}
        self._next = 0
        self.will("processes", mark=run_id)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def will(self, way: str, **data: Any) -> int:
        """Write down how to undo what is about to be done; returns the token for :meth:`undo`."""
        token = self._next
        self._next += 1
        self._open[token] = (way, data)
        self._write({"token": token, "way": way, **data})
        return token

    def undo(self, token: int) -> None:
        """Undo one thing now; a second call does nothing."""
        if token in self._open:
            way, data = self._open[token]
            _WAYS[way](**data)
            del self._open[token]
            self._write({"done": token})

    def settle(self, token: int) -> None:
        """There is nothing left to undo of it, since what it was done to is gone; a second call does nothing."""
        if self._open.pop(token, None) is not None:
            self._write({"done": token})

    def due(self) -> frozenset[int]:
        """The tokens of all that has yet to be undone."""
        return frozenset(self._open)

    def keep(self) -> None:
        """The cluster stays when this process ends: nobody but :func:`take_down` undoes this log."""
        self._write({"kept": True})
        self._file.close()

    def close(self) -> None:
        """Undo all that is still open, last first, then remove the run's folder in the workspace.

        :raises EnvironmentLacks: something can't be undone at the moment
        """
        try:
            _undo_all(self.dir, dict(self._open), self.undo)
        finally:
            self._file.close()


def _undo_all(folder: Path, steps: Mapping[int, tuple[str, Mapping[str, Any]]], undo: Callable[[int], None]) -> None:
    """Undo these steps in their order, then remove the run's folder, or all but the log in it where a step must wait.

    :raises EnvironmentLacks: what the first of those steps lacks
    """
    lacking: EnvironmentLacks | None = None
    for token in _in_order(steps):
        try:
            undo(token)
        except EnvironmentLacks as error:
            lacking = lacking or error
    for path in folder.iterdir() if lacking else (folder,):
        if path.name != _LOG_NAME:
            _undo_tree(str(path))
    if lacking:
        raise lacking


def _take_back(log: Path) -> bool:
    """Carry out what a log whose owner is gone still has open; False where the owner lives."""
    with log.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        steps: dict[int, tuple[str, dict[str, Any]]] = {}
        for line in file:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # a line cut off in the middle: what it announced had not begun
            if "token" in entry:
                steps[entry.pop("token")] = (entry.pop("way"), entry)
            steps.pop(entry.get("done"), None)

        def undo(token: int) -> None:
            way, data = steps[token]
            _WAYS[way](**data)

        _undo_all(log.parent, steps, undo)
        return True


def is_kept(log: Path) -> bool:
    """Whether this log's cluster was meant to stay."""
    return any('"kept"' in line for line in log.read_text().splitlines())


def logs() -> list[Path]:
    """The undo logs in the workspace, of the living and of the dead."""
    return sorted(workspace().glob(f"*/{_LOG_NAME}"))


def clean(say: Callable[[str], None] = lambda _line: None) -> int:
    """Undo what interrupted runs left; kept clusters and runs at work are left alone. Returns how many it undid."""
    sweep_scratch()
    count = 0
    for log in logs():
        try:
            if is_kept(log):
                say(f"{log.parent.name}: kept on purpose; take it down with: jbod cluster down {log.parent.name}")
            elif _take_back(log):
                say(f"{log.parent.name}: cleaned up after")
                count += 1
        except FileNotFoundError:
            continue  # another clean was faster
        except EnvironmentLacks as error:
            say(f"{log.parent.name}: can't be cleaned up after as yet: {error}")
    return count


def take_down(run_id: str) -> bool:
    """Undo a kept cluster; False where there is none of that name."""
    log = workspace() / run_id / _LOG_NAME
    return log.exists() and is_kept(log) and _take_back(log)
