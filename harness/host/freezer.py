"""The freezer of control groups, v1 or v2: whether a process is frozen, and how it goes on.

An engine pauses a container by it. The kernel keeps even SIGKILL from a frozen process on v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FROZEN = ("freezer.state: FROZEN", "cgroup.events: frozen 1")
"""The values of :func:`freezer_state` for a frozen process, by cgroup v1 and v2."""
_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class _Freezer:
    """A kind of freezer.

    :ivar kind: of file system
    :ivar controller: v2 has one for all
    :ivar shown_in, pattern: the file in a group that has the state, and the state's pattern
    :ivar thaw: the file to write, and the text
    """

    kind: str
    controller: str
    shown_in: str
    pattern: str
    thaw: tuple[str, str]


# v1 first: on a machine with both, an engine's groups have their freezer there.
_FREEZERS = (
    _Freezer(
        kind="cgroup",
        controller="freezer",
        shown_in="freezer.state",
        pattern=r"\w+",
        thaw=("freezer.state", "THAWED"),
    ),
    _Freezer(
        kind="cgroup2", controller="", shown_in="cgroup.events", pattern=r"frozen \d", thaw=("cgroup.freeze", "0")
    ),
)


def freezer_state(pid: int, proc: Path = _PROC, *, of: str = "") -> str | None:
    """The freezer's state of a process's group, such as one of :data:`FROZEN`; None if there is none, or no process.

    :param of: the group's path must contain this, else the result is None: another process may have reused the id
    :param proc: the kernel's proc file system
    """
    return next((state for _, group, state in _states(pid, proc) if of in str(group)), None)


def thaw(pid: int) -> None:
    """Let a process's group go on, if it is frozen and may be thawed by us."""
    with suppress(OSError):
        for freezer, group, state in _states(pid, _PROC):
            if state in FROZEN:
                file, text = freezer.thaw
                (group / file).write_text(text)


def group_below(proc: Path, pid: int, root: Path, controller: str) -> Path | None:
    """A process's group of a controller ("" for v2), below the controller's root; None if it has none."""
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return root / path.lstrip("/")
    return None


def _states(pid: int, proc: Path) -> Iterator[tuple[_Freezer, Path, str]]:
    """Each freezer that the process is in, with the group and its state."""
    mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
    for freezer in _FREEZERS:
        for _, where, kind, options, *_ in mounts:
            if kind != freezer.kind or (freezer.controller and freezer.controller not in options.split(",")):
                continue
            with suppress(OSError):
                group = group_below(proc, pid, Path(where), freezer.controller)
                if group is not None and (found := re.search(freezer.pattern, (group / freezer.shown_in).read_text())):
                    yield freezer, group, f"{freezer.shown_in}: {found[0]}"
