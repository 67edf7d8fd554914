"""Measures how crowded this machine is while something is awaited.

Time-outs are several times what a step takes on idle cores. On a crowded machine a broker, a tool or a client may not
run at all for that long, which says nothing about Kafka. So a wait gets longer by the measured crowding
(:func:`harness.waiting.await_until`).

Two measurements, both without root: the threads that are ready to run, from ``/proc/stat``, and how late a sleep ends.
The second one also shows time that a hypervisor or a CPU quota takes away. ``/proc/pressure/cpu`` is no use: it is
near 100 % as soon as one thread more than there are cores is ready, and says no more at twenty.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_STAT = Path("/proc/stat")
_READY = re.compile(rb"^procs_running (\d+)$", re.MULTILINE)

EASY = 2.0
"""Threads ready to run per core that the time-outs allow for."""
PATIENCE = 4.0
"""The longest that a crowded wait may take, as a multiple of its time-out."""


class Crowding:
    """The crowding during one wait: the mean of what :meth:`sample` saw, and the sleeps that ended late."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self._ready = 0
        self._samples = 0
        self._asked_s = 0.0
        self._slept_s = 0.0

    def sample(self) -> None:
        """Count the threads that are ready to run now. Without ``/proc``, none are counted."""
        try:
            found = _READY.search(_STAT.read_bytes())
        except OSError:
            return
        if found is not None:
            self._ready += int(found[1])
            self._samples += 1

    def slept(self, asked_s: float, took_s: float) -> None:
        """Note a sleep of ``asked_s`` seconds that took ``took_s``."""
        self._asked_s += asked_s
        self._slept_s += took_s

    @property
    def per_core(self) -> float:
        """The mean number of threads that were ready to run, per core."""
        return self._ready / self._samples / self._cores if self._samples else 0.0

    @property
    def stretch(self) -> float:
        """How many times its time-out a wait may take: 1 on a machine that is not crowded, at most :data:`PATIENCE`."""
        late = self._slept_s / self._asked_s if self._asked_s else 1.0
        return min(PATIENCE, max(1.0, self.per_core / EASY, late / EASY))

    def __str__(self) -> str:
        late = max(0.0, self._slept_s - self._asked_s)
        return f"{self.per_core:.1f} threads per core were ready to run, and sleeps ended {late:.1f} s late in all"
