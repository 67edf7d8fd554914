"""Faults of a log dir that need no privilege except ownership.

They change the dir itself, as KIP-112's test plan does. Files that the broker has open still work, so it notices the
fault when it next creates a file there (a checkpoint, a rolled segment). The proof is that the broker's own user can no
longer write a file in the dir. :mod:`faults.file_system` has the faults of the file system below.
"""

from __future__ import annotations

import re
import stat
import uuid
from pathlib import Path
from typing import ClassVar

from faults.base import Fault
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import FaultNotProven

LOG_DIR_STOPPED = (
    r"(?:Stopping serving logs in dir|Failed to create or validate data directory|Error while loading log dir)"
    r" {path}(?![\w.-])"
)
"""The line that a broker logs when it takes the log dir ``{path}`` (escaped) offline, or starts without it."""


_OPERATIONS = (
    r"Error while (?:writing|reading|flushing|loading|appending|locking|renaming|deleting|checking|rolling|truncating"
    r"|creating|fetching offset|changing replica dir|describing|processing data)",
    r"Exception while reading from",
    r"Error processing (?:append|fetch|delete records)",
    r"Failed to (?:create|clean|lock|flush|write|read|append|load|delete|rename|truncate|access|acquire)",
    r"Stopping serving",
    r"Disk error",
    r"Could not open",
    r"due to a? ?(?:disk|storage) error",
    r"Uncaught exception in scheduled task",
    r"Unexpected exception thrown when cleaning log",
    r"Encountered (?!fatal )[\w ]+ fault: ",
)
_ON_LOG_DIR = rf"^(?=[^\n]*(?:{'|'.join(_OPERATIONS)}))(?s:.*){{path}}(?![\w.-])"
"""An error of an operation on the log dir ``{path}`` (escaped): its path is in the line or in the stack trace."""
_ON_ITS_REPLICAS = (
    r"^[^\n]*(?:Error for partition|Could not fetch offset for|Error processing (?:append|fetch))"
    r"(?s:.*)KafkaStorageException: Disk error when trying to access log file on the disk",
    r"the local replica for the partition is in an offline log directory",
)
"""Errors of operations on a replica in a failed log dir that name no log dir. The first is the text of an answer with
KAFKA_STORAGE_ERROR."""


class LogDirFault(Fault):
    """A fault of one log dir.

    :ivar path: the folder that it breaks: the log dir itself, unless a fault sets another one

    ``noticed_by`` is the line of ``kafka.log.LogManager.handleLogDirFailure``, or, if the broker notices the fault
    during its start, that of ``createAndValidateLogDirs`` or of loading the logs.
    """

    expected_error: ClassVar[str]
    undo_unmounts: ClassVar[bool] = False
    """Undoing it unmounts the file system, so no process may have a file open in it: the broker must be down."""
    explains: ClassVar[tuple[str, ...]] = (_ON_LOG_DIR, *_ON_ITS_REPLICAS)

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir.broker)
        self.log_dir = log_dir
        self.path = log_dir.path
        self.noticed_by = LOG_DIR_STOPPED.format(path=re.escape(str(log_dir.path)))
        self._tokens: list[int] = []
        self._probes: list[Path] = []

    def explained(self) -> tuple[str, ...]:
        """See :meth:`faults.base.Fault.explained`; the fault explains no errors of other log dirs."""
        return tuple(pattern.format(path=re.escape(str(self.log_dir.path))) for pattern in self.explains)

    @property
    def target(self) -> str:
        """The log dir, such as "log-dir-1 of broker 2"."""
        return str(self.log_dir)

    @property
    def node(self) -> str:
        """The name of the node that has the log dir: a broker, or a controller with its metadata log dir."""
        return self.log_dir.node.spec.name

    def inject(self) -> None:
        """Apply the fault and prove its effect; the dir must have been writable before.

        :raises FaultNotProven: the dir was not writable before, or the effect is not proven
        """
        if (error := self.write_error()) is not None:
            raise FaultNotProven(f"{self.log_dir} could not be written before {self.name} was injected: {error}")
        super().inject()

    def proof(self) -> str | None:
        """The expected error when the broker's own user writes a file in the dir."""
        error = self.write_error()
        by_dd = rf"dd: ([a-z' ]+ ')?{re.escape(str(self.path))}/\.jbod-probe-"
        return error if error is not None and re.match(by_dd, error) and self.expected_error in error else None

    def write_error(self) -> str | None:
        """The error when the broker's own user writes and syncs a small file in the dir; None if that works."""
        probe = self.path / f".jbod-probe-{uuid.uuid4().hex}"
        self._probes.append(probe)
        done = self.broker.node.run_as_user(
            ["dd", "if=/dev/zero", f"of={probe}", "bs=4096", "count=1", "conv=fsync", "status=none"]
        )
        self.broker.node.run_as_user(["rm", "-f", str(probe)])
        error = done.stderr.strip().replace(": I/O error", ": Input/output error")  # musl's text, in Alpine images
        return (error or f"exit code {done.returncode}") if done.returncode else None

    def undo(self) -> None:
        """Revert the fault, and remove probe files that could not be removed before."""
        super().undo()
        while self._probes:
            self._probes.pop().unlink(missing_ok=True)

    def revert(self) -> None:
        """Undo every step, the last one first."""
        while self._tokens:
            self.broker.undo_log.undo(self._tokens[-1])
            self._tokens.pop()

    def _will(self, way: str, **data: object) -> None:
        self._tokens.append(self.broker.undo_log.will(way, **data))


class _Chmod(LogDirFault):
    """The dir loses permissions."""

    expected_error = "Permission denied"
    takes_away: ClassVar[int]

    def apply(self) -> None:
        """Remove the permissions."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        self._will("chmod", path=str(self.path), mode=mode)
        self.path.chmod(mode & ~self.takes_away)


class Chmod000(_Chmod):
    """``chmod 000``, as in KIP-112's test plan: the dir can be neither read nor written."""

    name = "chmod_000"
    takes_away = 0o777


class ReplicaChmod000(Chmod000):
    """``chmod 000`` of one replica's folder: the rest of its log dir works."""

    name = "replica_chmod_000"

    def __init__(self, log_dir: LogDir, partition: Partition) -> None:
        super().__init__(log_dir)
        self._partition = partition
        self.path = log_dir.replica_dir(partition.topic, partition.index)

    @property
    def target(self) -> str:
        """The replica, such as "orders-0 in log-dir-1 of broker 2"."""
        return f"{self._partition} in {self.log_dir}"


class ChmodNoWrite(_Chmod):
    """``chmod a-w``, as in kafkatest's log_dir_failure_test: the dir can be read and not written."""

    name = "chmod_a-w"
    takes_away = 0o222


class Removed(LogDirFault):
    """The dir is moved aside, so that it can come back; to a broker this is the same as ``rm -r``."""

    name = "removed"
    expected_error = "No such file or directory"

    def apply(self) -> None:
        """Move the dir aside."""
        path = self.log_dir.path
        aside = path.with_name(path.name + ".jbod-aside")
        self._will("rename", now=str(aside), then=str(path))
        path.rename(aside)


class ReplacedByFile(Removed):
    """The dir is moved aside and a file takes its place (the test plan's older wording)."""

    name = "replaced_by_file"
    expected_error = "Not a directory"

    def apply(self) -> None:
        """Move the dir aside and create the file."""
        super().apply()
        self.log_dir.path.write_bytes(b"")


PLAN_FAULTS: tuple[type[LogDirFault], ...] = (Chmod000, ReplacedByFile, ChmodNoWrite)
"""The faults in KIP-112's test plan and in kafkatest."""
LOG_DIR_FAULTS: tuple[type[LogDirFault], ...] = (*PLAN_FAULTS, Removed)
