"""A log dir fails: the ways that need no privilege beyond owning it.

All act on the dir itself, as KIP-112's test plan does; what a broker has open goes on working, and it notices at the
next file that it makes there (a checkpoint, a rolled segment). The proof is that the broker's own user can no longer
write a file in the dir. :mod:`faults.file_system` has those that break the file system under it.
"""

from __future__ import annotations

import re
import stat
import uuid
from pathlib import Path
from typing import ClassVar

from faults.base import Fault
from harness.cluster.log_dir import LogDir
from harness.errors import FaultNotProven

LOG_DIR_STOPPED = (
    r"(?:Stopping serving logs in dir|Failed to create or validate data directory|Error while loading log dir)"
    r" {path}(?![\w.-])"
)
"""The log line by which a broker says that it takes the log dir ``{path}`` (escaped) offline, or starts without it."""


class LogDirFault(Fault):
    """A way in which one log dir fails.

    ``noticed_by`` is LogManager's own line (``kafka.log.LogManager.handleLogDirFailure``), or, where a broker finds the
    dir bad while it starts, that of ``createAndValidateLogDirs`` or of loading.
    """

    expected_error: ClassVar[str]
    undo_unmounts: ClassVar[bool] = False
    """Only when nobody has a file open in it: its broker must be down."""
    explains = (
        r"Error while (writing|reading|flushing|loading|appending|locking|renaming|deleting|checking)",
        r"Failed to (create|clean|lock|flush|write|read|append|load|delete|rename|create or validate)",
        r"Stopping serving",
        r"Disk error",
        r"Error processing (append|fetch)",
        r"KafkaStorageException|kafka storage",
        r"Could not open|Uncaught exception in scheduled task|offline",
    )

    def __init__(self, log_dir: LogDir) -> None:
        super().__init__(log_dir.broker)
        self.log_dir = log_dir
        self.noticed_by = LOG_DIR_STOPPED.format(path=re.escape(str(log_dir.path)))
        self._tokens: list[int] = []
        self._probes: list[Path] = []

    @property
    def target(self) -> str:
        """Such as "log-dir-1 of broker 2"."""
        return str(self.log_dir)

    def inject(self) -> None:
        """Break it and prove it; a dir that was broken before proves nothing.

        :raises FaultNotProven: it does not show, or showed before
        """
        if (error := self.write_error()) is not None:
            raise FaultNotProven(f"{self.log_dir} could not be written before {self.name} was injected: {error}")
        super().inject()

    def proof(self) -> str | None:
        """The error that the broker's own user gets for writing a file in the dir."""
        error = self.write_error()
        told = rf"dd: ([a-z' ]+ ')?{re.escape(str(self.log_dir.path))}/\.jbod-probe-"
        return error if error is not None and re.match(told, error) and self.expected_error in error else None

    def write_error(self) -> str | None:
        """What the broker's own user is told who writes a small file in the dir, to the disk; None where he can."""
        probe = self.log_dir.path / f".jbod-probe-{uuid.uuid4().hex}"
        self._probes.append(probe)
        done = self.broker.node.run_as_user(
            ["dd", "if=/dev/zero", f"of={probe}", "bs=4096", "count=1", "conv=fsync", "status=none"]
        )
        self.broker.node.run_as_user(["rm", "-f", str(probe)])
        said = done.stderr.strip().replace(": I/O error", ": Input/output error")  # musl's word, in images on Alpine
        return (said or f"exit code {done.returncode}") if done.returncode else None

    def undo(self) -> None:
        """Take it back, and with it the probes that could be made, but not removed."""
        super().undo()
        while self._probes:
            self._probes.pop().unlink(missing_ok=True)

    def revert(self) -> None:
        """Undo every step taken, the last first."""
        while self._tokens:
            self.broker.undo_log.undo(self._tokens[-1])
            self._tokens.pop()

    def _will(self, way: str, **data: object) -> None:
        self._tokens.append(self.broker.undo_log.will(way, **data))


class _Chmod(LogDirFault):
    """Permissions are taken away from the dir itself."""

    expected_error = "Permission denied"
    takes_away: ClassVar[int]

    def apply(self) -> None:
        """Take the permissions away."""
        path = self.log_dir.path
        mode = stat.S_IMODE(path.stat().st_mode)
        self._will("chmod", path=str(path), mode=mode)
        path.chmod(mode & ~self.takes_away)


class Chmod000(_Chmod):
    """``chmod 000``, as KIP-112's test plan has it: nobody may look into it or make anything in it."""

    name = "chmod_000"
    takes_away = 0o777


class ChmodNoWrite(_Chmod):
    """``chmod a-w``, as kafkatest's log_dir_failure_test has it: it can be read, and nothing can be made in it."""

    name = "chmod_a-w"
    takes_away = 0o222


class Removed(LogDirFault):
    """The dir is no longer there: moved aside, so that it can come back; to a broker that is as good as ``rm -r``."""

    name = "removed"
    expected_error = "No such file or directory"

    def apply(self) -> None:
        """Move it aside."""
        path = self.log_dir.path
        aside = path.with_name(path.name + ".jbod-aside")
        self._will("rename", now=str(aside), then=str(path))
        path.rename(aside)


class ReplacedByFile(Removed):
    """The dir is moved aside and a plain file stands in its place (the plan's older wording)."""

    name = "replaced_by_file"
    expected_error = "Not a directory"

    def apply(self) -> None:
        """Move it aside, put a file in its place."""
        super().apply()
        self.log_dir.path.write_bytes(b"")


PLAN_FAULTS: tuple[type[LogDirFault], ...] = (Chmod000, ReplacedByFile, ChmodNoWrite)
"""Those that KIP-112's test plan and kafkatest use."""
LOG_DIR_FAULTS: tuple[type[LogDirFault], ...] = (*PLAN_FAULTS, Removed)
