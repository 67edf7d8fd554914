"""The processes of a run, found by a mark in their environment and not by id.

So a process is found even if the harness was killed before it could write the id down, and a reused id does no harm.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import psutil

from harness.errors import AwaitTimeout
from harness.host.freezer import thaw
from harness.waiting import await_until

MARK = "JBOD_RUN"
_EXEC_S = 1.0


def marked_processes(mark: str) -> Iterator[psutil.Process]:
    """Every process but this one whose environment has ``JBOD_RUN=mark``.

    It avoids ``psutil.process_iter``, which caches processes: a new process would pass for an old one with the same id.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if pid != os.getpid() and _environment(process).get(MARK) == mark:
                yield process


def kill_marked(mark: str) -> list[psutil.Process]:
    """Kill every process but this one that carries the mark; returns them, and does not wait for their end."""
    mine = list(marked_processes(mark))
    for process in mine:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            thaw(process.pid)  # in a container that is paused it would not end
    return mine


def _environment(process: psutil.Process) -> Mapping[str, str]:
    """A process's environment; a child spawned just now has none until its program begins (``execve``)."""
    environment = process.environ()
    if not environment and process.ppid() == os.getpid():
        with contextlib.suppress(AwaitTimeout):
            environment = await_until(process.environ, timeout_s=_EXEC_S, what="a program to begin", for_kafka=False)
    return environment
