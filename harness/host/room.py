"""The cores and the memory that this machine has left for further processes of this user."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.host.freezer import group_below
from harness.waiting import let_pass

LOOK_S, LOOKS = 1.0, 3
"""How long, and how often, other programs' use of the cores is measured. The median counts, so one second of much or
little work does not decide. The kernel's average covers a minute, with work that has ended."""
_GROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is left on this machine.

    :ivar cores: the cores that this process may use, by its affinity mask and its control groups' quotas
    :ivar busy: the cores of these that other programs keep busy now
    :ivar memory: bytes that are available, also within the limits of its control groups
    """

    cores: float
    busy: int
    memory: int

    def __str__(self) -> str:
        busy = f", {self.busy} of them busy" if self.busy else ""
        return f"{self.cores:g} core{'' if self.cores == 1 else 's'}{busy}, {self.memory / (1 << 30):.0f} GiB free"


def room() -> Room:
    """Measure what is left now. This takes :data:`LOOKS` times :data:`LOOK_S`."""
    mask = os.sched_getaffinity(0)
    seen = [_times(mask)]
    for _ in range(LOOKS):
        let_pass(LOOK_S)
        seen.append(_times(mask))
    busy = round(statistics.median(map(busy_cores, seen, seen[1:])))
    memory, _ = memory_left()
    cores = min([float(len(mask)), *quotas()])
    # Cores outside of the quota may be busy without taking any from this process.
    return Room(cores=cores, busy=max(0, round(cores - (len(mask) - busy))), memory=memory)


def _times(mask: set[int]) -> dict[str, list[int]]:
    """The kernel's tick counts of each core of the mask, by its name; none if ``/proc`` does not have them."""
    names = {f"cpu{core}" for core in mask}
    with suppress(OSError):
        lines = (line.split() for line in (_PROC / "stat").read_text().splitlines())
        return {line[0]: [int(ticks) for ticks in line[1:9]] for line in lines if line and line[0] in names}
    return {}


def busy_cores(before: dict[str, list[int]], after: dict[str, list[int]]) -> float:
    """Return how many cores were busy between two counts of ticks.

    :param before: for each core: user, nice, system, idle, iowait, irq, softirq, steal
    """
    busy = 0.0
    for core in before.keys() & after.keys():
        spent = [late - early for early, late in zip(before[core], after[core], strict=True)]
        idle = spent[3] + spent[4]
        busy += 1 - idle / sum(spent) if sum(spent) > 0 else 0
    return busy


def quotas(groups: Path = _GROUPS, proc: Path = _PROC) -> list[float]:
    """Return the cores that the quotas of this process's control groups allow; none if there is no quota."""
    found: list[float] = []
    for group in _own_groups("cpu", groups, proc):
        with suppress(OSError, ValueError):  # "max", or no such file: no quota
            quota, period = (group / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:  # -1: no quota
                found.append(int(quota) / int(period))
    return found


def memory_left(groups: Path = _GROUPS, proc: Path = _PROC) -> tuple[int, str]:
    """Return the bytes of memory that are available to this process, and which limit decides that."""
    available, where = psutil.virtual_memory().available, "available"
    for group in _own_groups("memory", groups, proc):
        for limit, usage, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # "max", or no such file: no limit
                used = int((group / usage).read_text()) - _stat(group, cache)
                left = int((group / limit).read_text()) - used
                if left < available:
                    available, where = left, "left in this cgroup"
    return available, where


def _stat(group: Path, name: str) -> int:
    """A figure of a group's ``memory.stat``; 0 if it has none. The kernel frees inactive pages of files when needed."""
    with suppress(OSError, ValueError):
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        return next((int(figure) for key, figure in lines if key == name), 0)
    return 0


def _own_groups(controller: str, groups: Path, proc: Path) -> Iterator[Path]:
    """This process's groups of a controller, v1 or v2, and the groups around them.

    A container without a cgroup namespace sees only its own group, at the root; deeper paths do not exist there.
    """
    for root, name in ((groups, ""), (groups / controller, controller)):
        with suppress(OSError):
            group = group_below(proc, os.getpid(), root, name)
            while group is not None and group.is_relative_to(root):
                yield group
                group = group.parent
