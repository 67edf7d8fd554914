"""Control groups, v1 or v2: one that makes a block device slow for the processes in it (blkio, io), and whether the
one that a process is in is frozen.

Writes per second are limited and not bytes: what a slow or dying disk gives a broker is seconds of latency for each
sync. Limits reach what a process writes itself (fsync, direct I/O); on v2 also what the kernel writes back for it, on
v1 not, where that is done in the root group, which is therefore limited as well, for that one device.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EnvironmentLacks
from harness.host.undo import UndoLog

_V1 = "blkio.throttle.write_iops_device"
_V2 = "io.max"
FROZEN = ("freezer.state: FROZEN", "cgroup.events: frozen 1")
"""What :func:`freezer_state` is of a process that is frozen, by cgroup v1 and v2."""
# The kind of file system, the controller (all of them are one in v2), the file in a group, and what of it is told. In
# this order: where there are both, an engine's groups have their freezer in v1.
_FREEZERS = (("cgroup", "freezer", "freezer.state", r"\w+"), ("cgroup2", "", "cgroup.events", r"frozen \d"))


@dataclass(frozen=True, kw_only=True)
class Controller:
    """Where groups with the block-I/O controller are made on this machine."""

    root: Path
    version: int

    @property
    def limit_file(self) -> str:
        """The file in a group that holds its limits."""
        return _V1 if self.version == 1 else _V2

    def limit(self, device: str, writes_per_s: int | None) -> str:
        """What to write into it; None for no limit."""
        if self.version == 1:
            return f"{device} {writes_per_s or 0}"
        return f"{device} wiops={writes_per_s or 'max'}"


def controller() -> Controller:
    """The block-I/O controller, found by making a group and looking into it.

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
    """The group that a process is in, of this controller.

    :raises EnvironmentLacks: the machine doesn't say
    """
    group = _group(Path("/proc"), pid, found.root, "blkio" if found.version == 1 else "")
    if group is None:
        raise EnvironmentLacks(f"process {pid} is in no group of {found.root}")
    return group


def _group(proc: Path, pid: int, root: Path, controller: str) -> Path | None:
    """The group of a process below the root of a controller; of v2, whose controllers are not named there, ""."""
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return root / path.lstrip("/")
    return None


def freezer_state(pid: int, proc: Path = Path("/proc"), *, of: str = "") -> str | None:
    """What the kernel says of the freezer of the group that a process is in, such as one of :data:`FROZEN`; None where
    it shows none, or there is no such process.

    :param of: what the group's name has in it; of another group nothing is said: the id may be another process's here
    :param proc: where the kernel tells of processes and mounts
    """
    mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
    for kind, controller, file, told in _FREEZERS:
        for _, where, type, options, *_ in mounts:
            if type != kind or (controller and controller not in options.split(",")):
                continue
            with contextlib.suppress(OSError):
                group = _group(proc, pid, Path(where), controller)
                if group is not None and of in str(group) and (found := re.search(told, (group / file).read_text())):
                    return f"{file}: {found[0]}"
    return None


class SlowGroup:
    """A group whose processes write to one device no more than so often a second; written into the undo log before.

    :param path: of the group
    :param device: ``major:minor``
    :param run: runs a command in it, as the user of the processes that are to be slow
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
        self._run = run
        self._tokens: list[int] = []

    @classmethod
    def make(cls, device: str, undo_log: UndoLog, user: Sequence[str], pid: int | None) -> SlowGroup:
        """A new group.

        :param user: what to put before a command so that it runs as that user
        :param pid: a process to take in, with all its threads
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
        """Limit the writes to the device from now on."""
        groups = [self._path] + ([self._controller.root] if self._controller.version == 1 else [])
        for group in groups:
            file = group / self._controller.limit_file
            none = self._controller.limit(self._device, None)
            self._tokens.append(self._undo_log.will("setting", path=str(file), text=none))
            file.write_text(self._controller.limit(self._device, writes_per_s))

    def run(self, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a small command in the group, as the user of its processes.

        :raises subprocess.TimeoutExpired: it took longer
        """
        return self._run(argv, timeout_s)

    def remove(self) -> None:
        """No limit any more; a group that was made for it goes, and its processes go back to the parent."""
        while self._tokens:
            self._undo_log.undo(self._tokens[-1])
            self._tokens.pop()
