"""The processes of a run, found by a mark in their environment and not by id.

A process that was killed between "started" and "written down" is found too, and a reused id never is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import psutil

from harness.errors import AwaitTimeout
from harness.waiting import await_until

MARK = "JBOD_RUN"
_EXEC_S = 1.0


def marked_processes(mark: str) -> Iterator[psutil.Process]:
    """Every process whose environment carries ``JBOD_RUN=mark`` (this one excepted).

    Not by ``psutil.process_iter``, which remembers processes: one whose id has been used anew since would be taken for
    the old one, so "gone", and be left alive.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if pid != os.getpid() and _environment(process).get(MARK) == mark:
                yield process


def kill_marked(mark: str) -> list[psutil.Process]:
    """Kill every process that carries the mark (this one excepted); returns them, of which some may yet have to end."""
    mine = list(marked_processes(mark))
    for process in mine:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return mine


def _environment(process: psutil.Process) -> Mapping[str, str]:
    """Its environment; a child of ours that was spawned just now has none until its program begins (``execve``)."""
    environment = process.environ()
    if not environment and process.ppid() == os.getpid():
        with contextlib.suppress(AwaitTimeout):
            environment = await_until(process.environ, timeout_s=_EXEC_S, what="a program to begin")
    return environment
