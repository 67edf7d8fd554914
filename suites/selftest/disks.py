"""Real volumes under a stand-in for a broker: an ordinary process of the broker's user that keeps a file open there.

What a fault of a disk does shows on the file system and the process; no Kafka is needed for that.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import psutil

from harness.cluster.log_dir import LogDir
from harness.host.broker_user import broker_user
from harness.host.control_group import SlowGroup
from harness.host.marked_processes import MARK
from harness.host.undo import UndoLog, workspace
from harness.host.volume import Volume, VolumeKind, make_volumes
from harness.journal import Journal
from harness.waiting import await_until

# Appends to a file every now and then, as brokers do, whatever comes of it.
_WRITER = 'exec 3>>"$0"; while :; do echo x >&3; sleep 0.05; done 2>/dev/null'


class StandIn:
    """A broker and its node in one, as far as faults know them."""

    id = 1

    def __init__(self, undo_log: UndoLog, journal: Journal) -> None:
        self.undo_log, self.journal, self.node = undo_log, journal, self
        self.log_dirs: tuple[LogDir, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {"PATH": os.environ["PATH"], MARK: self.undo_log.run_id}
        argv = [*broker_user().command(), "sh", "-c", _WRITER, str(self.log_dirs[0].path / "open")]
        process = self._process = subprocess.Popen(
            argv, env=environment, cwd="/", stdout=subprocess.DEVNULL, start_new_session=True
        )
        opened = Path(f"/proc/{process.pid}/fd/3")
        await_until(lambda: opened.exists() or process.poll() is not None, timeout_s=20.0, what="the file to be open")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_alive else None

    def slow_group(self, device: str) -> SlowGroup:
        return SlowGroup.make(device, self.undo_log, broker_user().command(), self.pid())

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, 9) if self.is_alive else None
            self._process.wait()

    def pause(self) -> None:
        psutil.Process(self.pid()).suspend()

    def is_paused(self) -> bool:
        return psutil.Process(self.pid()).status() == psutil.STATUS_STOPPED

    def run_as_user(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        environment = {"LC_ALL": "C", "PATH": os.environ["PATH"]}
        command = [*broker_user().command(), *argv]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd="/", timeout=30
        )

    def __str__(self) -> str:
        return "broker 1"


def broker_on(kind: VolumeKind) -> StandIn:
    """A stand-in with two log dirs, each on a volume of its own, in a workspace that everybody may enter."""
    undo_log = UndoLog(workspace().name)  # nobody else's: what bears the name of a run is ended with it
    broker = StandIn(undo_log, Journal(None))
    size_mb = {"ext4": 16, "xfs": 300, "tmpfs": 2}[kind]
    volumes = [Volume(undo_log.dir / f"volume-{n}", kind=kind, size_mb=size_mb, undo_log=undo_log) for n in (1, 2)]
    make_volumes(volumes)
    user = broker_user()
    for n, volume in enumerate(volumes, 1):
        path = volume.path / f"log-dir-{n}"
        path.mkdir()
        os.chown(path, user.uid, user.gid)
    broker.log_dirs = tuple(
        LogDir(cast(Any, broker), volume.path / f"log-dir-{n}", volume) for n, volume in enumerate(volumes, 1)
    )
    return broker


def traces() -> dict[str, list[str]]:
    """What a disk fault may leave on the machine: mounts, loop devices, control groups and their limits.

    Only those of this workspace: others on this machine have theirs, with a loop device that is in use.
    """
    ours = f"{workspace()}/"
    files = {path.parts[3]: path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")}
    others = {Path(f"/sys/block/{name}/dev").read_text().strip() for name, file in files.items() if ours not in file}
    root = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device")
    limits = root.read_text().splitlines() if root.exists() else []
    return {
        "mounts": sorted(line for line in Path("/proc/self/mounts").read_text().splitlines() if ours in line),
        "loops": sorted(file for file in files.values() if ours in file),
        "groups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob(f"*/jbod-{workspace().name}-*")),
        "limits": sorted(line for line in limits if line.split()[0] not in others),
    }


@contextmanager
def interrupted_after(count: int) -> Iterator[None]:
    """Ctrl-C, inside the block, after so many lines of what breaks a log dir and proves that it is broken."""
    left = itertools.count(count, -1)

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_name not in ("apply", "proof", "_will"):
            return None
        if event == "line" and next(left) == 0:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
