"""Measures how crowded this machine is while something is awaited.

Time-outs are several times what a step takes on idle cores. On a crowded machine a broker, a tool or a client may not
run at all for that long, which says nothing about Kafka. So a wait gets longer by the measured crowding
(:func:`harness.waiting.await_until`).

Two measurements, both without root: the threads that are ready to run, from ``/proc/stat``, and how late a sleep ends.
The second one also shows time that a hypervisor or a CPU quota takes away. ``/proc/pressure/cpu`` does not help: it is
near 100 % as soon as there are more ready threads than cores, and rises no further. A separate thread measures, since
what is awaited may block until its time-out.

A machine can also stall for some seconds, because it is suspended or its disk is busy (:class:`Stall`). The share of
time in which threads waited for a disk is from ``/proc/pressure/io``, where the kernel has it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

_STAT = Path("/proc/stat")
_READY = re.compile(rb"^procs_running (\d+)$", re.MULTILINE)
_IO_PRESSURE = Path("/proc/pressure/io")
_WAITED_US = re.compile(rb"^some .*total=(\d+)$", re.MULTILINE)
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
class Stall:
    """How much this machine kept processes from running during some seconds.

    :ivar per_core: the mean number of threads that were ready to run, per core
    :ivar longest_s: the seconds that the latest of its sleeps of 0.25 s took
    :ivar waited_for_disk: the share of the time in which a thread waited for a disk, from 0 to 1
    """

    per_core: float
    longest_s: float
    waited_for_disk: float

    @property
    def holds_back(self) -> bool:
        """Whether a process may not have got to run for some of the time."""
        return self.per_core > EASY or self.longest_s > EASY * _EVERY_S or self.waited_for_disk > MOSTLY

    def __str__(self) -> str:
        return (
            f"{self.per_core:.1f} threads per core were ready to run, a sleep of {_EVERY_S} s took up to "
            f"{self.longest_s:.2f} s, and threads waited for a disk {self.waited_for_disk:.0%} of the time"
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


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """What was measured at the end of one sleep.

    :ivar at: seconds on the monotonic clock
    :ivar per_core: the threads that were ready to run, per core
    :ivar slept_s: the seconds that the sleep took
    :ivar waited_us: the microseconds since boot in which a thread waited for a disk
    """

    at: float
    per_core: float
    slept_s: float
    waited_us: int

    @property
    def lateness(self) -> float:
        return self.slept_s / _EVERY_S


class _Sampler(threading.Thread):
    """Samples the crowding of this machine until the process ends."""

    def __init__(self) -> None:
        super().__init__(name="crowding", daemon=True)
        self._cores = len(os.sched_getaffinity(0))
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)

    def run(self) -> None:
        began = time.monotonic()
        while True:
            time.sleep(_EVERY_S)
            ended = time.monotonic()
            per_core, waited_us = _read(_STAT, _READY) / self._cores, _read(_IO_PRESSURE, _WAITED_US)
            self._samples.append(_Sample(at=ended, per_core=per_core, slept_s=ended - began, waited_us=waited_us))
            began = ended

    def _after(self, start: float) -> list[_Sample]:
        """Return the samples since then, newest first."""
        return [*takewhile(lambda sample: sample.at >= start, reversed([*self._samples]))]

    def crowded_time(self, start: float) -> CrowdedTime:
        found = self._after(start)
        if not found:
            return CrowdedTime()
        crowded, mean = sum(max(each.per_core, each.lateness) > EASY for each in found), _mean(found)
        return CrowdedTime(
            per_core_max=round(max(each.per_core for each in found), 2),
            lateness_max=round(max(each.lateness for each in found), 2),
            crowded_share=round(crowded / len(found), 3),
            per_core_mean=round(mean.per_core, 2),
            lateness_mean=round(mean.lateness, 2),
        )

    def since(self, start: float) -> Crowding:
        return _mean(self._after(start))

    def stall(self, start: float, end: float) -> Stall | None:
        found = [sample for sample in self._after(start) if sample.at - sample.slept_s <= end]
        if len(found) < 2:
            return None
        newest, oldest = found[0], found[-1]
        return Stall(
            per_core=_mean(found).per_core,
            longest_s=max(sample.slept_s for sample in found),
            waited_for_disk=(newest.waited_us - oldest.waited_us) / 1e6 / (newest.at - oldest.at),
        )


def _mean(samples: Sequence[_Sample]) -> Crowding:
    if not samples:
        return Crowding()
    count = len(samples)
    return Crowding(
        per_core=sum(each.per_core for each in samples) / count, lateness=sum(each.lateness for each in samples) / count
    )


def _read(file: Path, number: re.Pattern[bytes]) -> int:
    """Return the number in this file of the kernel; 0 if the kernel does not have it."""
    try:
        found = number.search(file.read_bytes())
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


def stall_before(at: datetime, seconds: float) -> Stall | None:
    """Return how much this machine held processes back in the seconds before ``at``; None if nothing measured it."""
    end = time.monotonic() - (datetime.now(UTC) - at).total_seconds()
    return _running_sampler().stall(end - seconds, end)


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
