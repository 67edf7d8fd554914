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
* A cluster that was meant to stay (``cluster up``, ``--keep-cluster``) is marked as kept: only its own
  ``cluster down`` takes it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from harness.errors import HarnessError
from harness.waiting import await_until

MARK = "JBOD_RUN"
_LOG_NAME = "undo.jsonl"
_KILL_WAIT_S = 10.0


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
    mine = list(marked_processes(mark))
    for process in mine:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
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
    """Give a moved folder its old name again; whatever stands in its place (a stand-in file) goes first."""
    if not Path(now).exists():
        return
    if os.path.lexists(then) and not Path(then).is_dir():
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


_WAYS: dict[str, Callable[..., None]] = {
    "processes": _undo_processes,
    "chmod": _undo_chmod,
    "rename": _undo_rename,
    "bytes": _undo_bytes,
    "tree": _undo_tree,
}


def marked_processes(mark: str) -> Iterator[psutil.Process]:
    """Every process whose environment carries ``JBOD_RUN=mark`` (this one excepted)."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                yield process


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

    def keep(self) -> None:
        """The cluster stays when this process ends: nobody but :func:`take_down` undoes this log."""
        self._write({"kept": True})
        self._file.close()

    def close(self) -> None:
        """Undo all that is still open, last first, then remove the run's folder in the workspace."""
        for token in sorted(self._open, reverse=True):
            self.undo(token)
        _undo_tree(str(self.dir))
        self._file.close()


def _take_back(log: Path) -> bool:
    """Carry out what a log whose owner is gone still has open; False where the owner lives."""
    with log.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        steps: dict[int, dict[str, Any]] = {}
        for line in file:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # a line cut off in the middle: what it announced had not begun
            if "token" in entry:
                steps[entry.pop("token")] = entry
            steps.pop(entry.get("done"), None)
        for token in sorted(steps, reverse=True):
            step = steps[token]
            _WAYS[step.pop("way")](**step)
        _undo_tree(str(log.parent))
        return True


def is_kept(log: Path) -> bool:
    """Whether this log's cluster was meant to stay."""
    return any('"kept"' in line for line in log.read_text().splitlines())


def logs() -> list[Path]:
    """The undo logs in the workspace, of the living and of the dead."""
    return sorted(workspace().glob(f"*/{_LOG_NAME}"))


def clean(say: Callable[[str], None] = lambda _line: None) -> int:
    """Undo what interrupted runs left; kept clusters and runs at work are left alone. Returns how many it undid."""
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
    return count


def take_down(run_id: str) -> bool:
    """Undo a kept cluster; False where there is none of that name."""
    log = workspace() / run_id / _LOG_NAME
    return log.exists() and is_kept(log) and _take_back(log)
