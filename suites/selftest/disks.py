"""Real volumes with log dirs, for tests of disk faults without Kafka.

A disk fault shows on the file system and on the process that uses it. In place of Kafka, an ordinary process of the
brokers' user has a file open in a log dir.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from harness.cluster.broker import Broker
from harness.cluster.nodes.node import ClusterContext, NodeSpec, Runtime
from harness.cluster.nodes.process import ProcessBackend, ProcessNode
from harness.host.broker_user import broker_user
from harness.host.undo import UndoLog, workspace
from harness.host.volume import Volume, VolumeKind, make_volumes
from harness.journal import Journal
from harness.waiting import await_until
from suites.selftest.fakes import fake, fake_distribution

# Appends to a file 20 times a second and ignores errors, as a broker does. Only this process has the file open.
_WRITER = 'exec 3>>"$0"; while :; do echo x >&3; sleep 0.05 3>&-; done 2>/dev/null'


class WriterNode(ProcessNode):
    """A node that runs no JVM, but a process that appends to a file; the kernel does not end it with the harness."""

    def __init__(self, undo_log: UndoLog, journal: Journal, file: Path) -> None:
        folder = undo_log.dir / "brokers"
        context = fake(
            ClusterContext,
            distribution=fake_distribution(),
            record_dir=folder,
            journal=journal,
            undo_log=undo_log,
            outlives_harness=True,
        )
        runtime = Runtime(java=(), java_version="", class_path=(), build="")
        backend = fake(ProcessBackend, context=context, runtime=runtime, user=broker_user())
        super().__init__(backend, NodeSpec(name="broker-1", main_class="", properties={}))
        self._file = file

    def prepare_start(self) -> list[str]:
        return ["sh", "-c", _WRITER, str(self._file)]

    def start(self) -> None:
        super().start()
        await_until(lambda: not self.is_alive() or self._is_open(), timeout_s=20.0, what="the file to be open")

    def _is_open(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            return str(self._file) in {opened.path for opened in psutil.Process(self.pid()).open_files()}
        return False


def broker_on(kind: VolumeKind) -> Broker:
    """A broker with two log dirs, each on a volume of its own, whose node is a :class:`WriterNode`."""
    undo_log = UndoLog(workspace().name)  # a name of its own: undoing a run ends all processes that carry its name
    journal = Journal(None)
    size_mb = {"ext4": 16, "xfs": 300, "tmpfs": 2}[kind]
    volumes = [Volume(undo_log.dir / f"volume-{n}", kind=kind, size_mb=size_mb, undo_log=undo_log) for n in (1, 2)]
    make_volumes(volumes)
    user = broker_user()
    log_dirs = {volume.path / f"log-dir-{n}": volume for n, volume in enumerate(volumes, 1)}
    for path in log_dirs:
        path.mkdir()
        os.chown(path, user.uid, user.gid)
    return Broker(
        id=1,
        node=WriterNode(undo_log, journal, next(iter(log_dirs)) / "open"),
        mbeans=None,
        port=1,
        log_dirs=log_dirs,
        journal=journal,
        undo_log=undo_log,
        registration_ttl_s=0.0,
    )


def traces() -> dict[str, list[str]]:
    """What a disk fault of this workspace may leave on the machine: mounts, loop devices, control groups, limits."""
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
    """Ctrl-C inside the block, once it has run ``count`` lines of a fault's ``apply``, ``proof`` and ``_will``."""
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
