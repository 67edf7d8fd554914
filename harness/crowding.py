"""Measures how crowded this machine is while something is awaited.

Time-outs are several times what a step takes on idle cores. On a crowded machine a broker, a tool or a client may not
run at all for that long, which says nothing about Kafka. So a wait gets longer by the measured crowding
(:func:`harness.waiting.await_until`).

Two measurements, both without root: the threads that are ready to run, from ``/proc/stat``, and how late a sleep ends.
The second one also shows time that a hypervisor or a CPU quota takes away. ``/proc/pressure/cpu`` does not help: it is
near 100 % as soon as there are more ready threads than cores, and rises no further. A separate thread measures, since
what is awaited may block until its time-out.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

_STAT = Path("/proc/stat")
_READY = re.compile(rb"^procs_running (\d+)$", re.MULTILINE)
_EVERY_S = 0.25
_KEPT = 4096
"""Samples that are kept: 17 minutes."""

EASY = 2.0
"""The crowding that the time-outs allow for: threads ready to run per core, and the lateness of sleeps."""
PATIENCE = 4.0
"""The longest that a wait may take on a crowded machine, as a multiple of its time-out."""
MOSTLY = 0.5
"""If the share of crowded samples is above this, the times of a case are marked as those of a crowded machine."""


@dataclass(frozen=True, kw_only=True)
class Crowding:
    """The crowding of this machine during some time.

    :ivar per_core: the mean number of threads that were ready to run, per core
    :ivar lateness: the seconds that sleeps took, as a multiple of the seconds asked for
    """

    per_core: float = 0.0
    lateness: float = 1.0

    @property
    def stretch(self) -> float:
        """How many times its time-out a wait may take: 1 on a machine that is not crowded, at most :data:`PATIENCE`."""
        return min(PATIENCE, max(1.0, self.per_core / EASY, self.lateness / EASY))

    def __str__(self) -> str:
        return (
            f"{self.per_core:.1f} threads per core were ready to run, and sleeps took {self.lateness:.1f} times as long"
        )


@dataclass(frozen=True, kw_only=True)
class CrowdedTime:
    """How crowded this machine was during a case.

    :ivar per_core_max: the most threads that were ready to run, per core
    :ivar lateness_max: the seconds that the latest sleep took, as a multiple of the seconds asked for
    :ivar crowded_share: the share of samples in which one of them exceeds :data:`EASY`, from 0 to 1
    :ivar per_core_mean: the mean number of threads that were ready to run, per core; 0 in older files
    :ivar lateness_mean: the seconds that sleeps took, as a multiple of the seconds asked for; 1 in older files
    """

    per_core_max: float = 0.0
    lateness_max: float = 1.0
    crowded_share: float = 0.0
    per_core_mean: float = 0.0
    lateness_mean: float = 1.0

    @property
    def marks_times(self) -> bool:
        """Whether the machine was crowded for most of the case, so that the case's times are marked."""
        return self.crowded_share > MOSTLY

    @property
    def mean(self) -> Crowding:
        """The mean crowding."""
        return Crowding(per_core=self.per_core_mean, lateness=self.lateness_mean)

    def __str__(self) -> str:
        return (
            f"crowded for {self.crowded_share:.0%} of the time: at most {self.per_core_max:.1f} threads per core were "
            f"ready to run, and a sleep took up to {self.lateness_max:.1f} times as long"
        )


class _Sampler(threading.Thread):
    """Samples the crowding of this machine until the process ends."""

    def __init__(self) -> None:
        super().__init__(name="crowding", daemon=True)
        self._cores = len(os.sched_getaffinity(0))
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=_KEPT)  # time, threads per core, lateness

    def run(self) -> None:
        began = time.monotonic()
        while True:
            time.sleep(_EVERY_S)
            ended = time.monotonic()
            self._samples.append((ended, _ready() / self._cores, (ended - began) / _EVERY_S))
            began = ended

    def _after(self, start: float) -> list[tuple[float, float, float]]:
        return [*takewhile(lambda sample: sample[0] >= start, reversed([*self._samples]))]

    def crowded_time(self, start: float) -> CrowdedTime:
        found = self._after(start)
        if not found:
            return CrowdedTime()
        crowded, mean = sum(max(per_core, lateness) > EASY for _, per_core, lateness in found), _mean(found)
        return CrowdedTime(
            per_core_max=round(max(each[1] for each in found), 2),
            lateness_max=round(max(each[2] for each in found), 2),
            crowded_share=round(crowded / len(found), 3),
            per_core_mean=round(mean.per_core, 2),
            lateness_mean=round(mean.lateness, 2),
        )

    def since(self, start: float) -> Crowding:
        return _mean(self._after(start))


def _mean(samples: Sequence[tuple[float, float, float]]) -> Crowding:
    if not samples:
        return Crowding()
    count = len(samples)
    return Crowding(
        per_core=sum(each[1] for each in samples) / count, lateness=sum(each[2] for each in samples) / count
    )


def _ready() -> int:
    """Return the number of threads that are ready to run now; 0 if ``/proc`` does not have it."""
    try:
        found = _READY.search(_STAT.read_bytes())
    except OSError:
        return 0
    return int(found[1]) if found else 0


_sampler = _Sampler()
_starting = threading.Lock()


def _running_sampler() -> _Sampler:
    global _sampler
    with _starting:
        if not _sampler.is_alive():  # not started yet, or not in this fork of the process
            _sampler = _Sampler()
            _sampler.start()
    return _sampler


class CrowdingWatch:
    """Measures the crowding from now on, for at most the last 17 minutes."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        _running_sampler()

    def so_far(self) -> CrowdedTime:
        """Return the crowding since the watch began."""
        return _running_sampler().crowded_time(self._start)


class Deadline:
    """The end of a wait that begins now. On a crowded machine it is later (:attr:`Crowding.stretch`)."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._start = time.monotonic()
        _running_sampler()  # measures from here on, also if what is awaited blocks

    def passed(self) -> Crowding | None:
        """Return the crowding during the wait if the deadline has passed; None if it has not."""
        if self.waited_s < self._timeout_s:
            return None
        crowding = self.crowding
        return crowding if self.waited_s >= self._timeout_s * crowding.stretch else None

    @property
    def crowding(self) -> Crowding:
        """The crowding since the wait began."""
        return _running_sampler().since(self._start)

    @property
    def waited_s(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._start
