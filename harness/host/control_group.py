"""Control groups, v1 or v2, that limit writes to a block device (blkio, io).

Writes per second are limited, not bytes, since a slow or dying disk costs a broker seconds for each sync. A limit holds
for a process's own writes (fsync, direct I/O). On v2 it also holds for the data that the kernel writes back for the
process. On v1 the kernel writes back in the root group, so the root group gets the same limit for that device.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EnvironmentLacks
from harness.host.freezer import group_below
from harness.host.undo import UndoLog

_V1 = "blkio.throttle.write_iops_device"
_V2 = "io.max"


@dataclass(frozen=True, kw_only=True)
class Controller:
    """The block-I/O controller of this machine: the folder in which to make groups, and the cgroup version."""

    root: Path
    version: int

    @property
    def limit_file(self) -> str:
        """The file in a group that holds its limits."""
        return _V1 if self.version == 1 else _V2

    def limit(self, device: str, writes_per_s: int | None) -> str:
        """The text to write into :attr:`limit_file`; ``writes_per_s`` None removes the limit."""
        if self.version == 1:
            return f"{device} {writes_per_s or 0}"
        return f"{device} wiops={writes_per_s or 'max'}"


def controller() -> Controller:
    """Find the block-I/O controller by making a group for a moment.

    :raises EnvironmentLacks: there is none, or no group may be made
    """
    seen = "no cgroup file system has the block-I/O controller"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        root = Path(where)
        if kind == "cgroup" and "blkio" in options.split(","):
            found = Controller(root=root, version=1)
        elif kind == "cgroup2" and "io" in (root / "cgroup.controllers").read_text().split():
            found = Controller(root=root, version=2)
        else:
            continue
        probe = root / f"jbod-probe-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError as error:
            seen = f"cgroup v{found.version} at {root}: {error.strerror}"
            continue
        try:
            if os.access(probe / found.limit_file, os.W_OK):
                return found
        finally:
            probe.rmdir()
        enabled = found.version == 1 or "io" in (root / "cgroup.subtree_control").read_text().split()
        seen = f"cgroup v{found.version} at {root} has no {found.limit_file} in new groups" + (
            "" if enabled else ": io is not in cgroup.subtree_control"
        )
    raise EnvironmentLacks(seen)


def group_of(found: Controller, pid: int) -> Path:
    """A process's group of this controller.

    :raises EnvironmentLacks: it has none
    """
    group = group_below(Path("/proc"), pid, found.root, "blkio" if found.version == 1 else "")
    if group is None:
        raise EnvironmentLacks(f"process {pid} is in no group of {found.root}")
    return group


class SlowGroup:
    """A control group that limits its processes' writes to one device; each step is in the undo log first.

    :param path: of the group
    :param device: ``major:minor``
    :ivar run: runs a small command in the group, as the user of its processes; its second argument is a time-out in
        seconds; raises subprocess.TimeoutExpired
    """

    def __init__(
        self,
        path: Path,
        device: str,
        undo_log: UndoLog,
        run: Callable[[Sequence[str], float], subprocess.CompletedProcess[str]],
    ) -> None:
        self._controller = controller()
        self._path = path
        self._device = device
        self._undo_log = undo_log
        self.run = run
        self._tokens: list[int] = []

    @classmethod
    def make(cls, device: str, undo_log: UndoLog, user: Sequence[str], pid: int | None) -> SlowGroup:
        """Make a new group.

        :param user: the prefix of a command that makes it run as the group's user
        :param pid: a process to move into it
        """
        path = controller().root / f"jbod-{undo_log.run_id}-{secrets.token_hex(3)}"

        def run(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
            command = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(path), *user, *argv]
            environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
            return subprocess.run(
                command, cwd="/", env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )

        group = cls(path, device, undo_log, run)
        group._tokens.append(undo_log.will("group", path=str(path)))
        path.mkdir()
        if pid is not None:
            (path / "cgroup.procs").write_text(str(pid))
        return group

    def limit(self, writes_per_s: int) -> None:
        """Limit the number of writes to the device."""
        groups = [self._path] + ([self._controller.root] if self._controller.version == 1 else [])
        for group in groups:
            file = group / self._controller.limit_file
            none = self._controller.limit(self._device, None)
            self._tokens.append(self._undo_log.will("setting", path=str(file), text=none))
            file.write_text(self._controller.limit(self._device, writes_per_s))

    def remove(self) -> None:
        """Remove the limit, and the group if it was made for it; its processes go back to the parent."""
        while self._tokens:
            self._undo_log.undo(self._tokens[-1])
            self._tokens.pop()
