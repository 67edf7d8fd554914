"""The JVM of a Spark driver: one of this process's own, or one that another process started and shares."""

from __future__ import annotations

import os
import select
import subprocess
from contextlib import suppress
from typing import Protocol


class DriverJvm(Protocol):
    """A driver's JVM."""

    is_shared: bool
    """Whether other processes use it, too, so that this one must not end it."""

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended; waits for its end for at most this time."""

    def end(self, timeout_s: float) -> None:
        """Let go of it; a JVM of our own ends, and is killed after this time."""


class OwnJvm:
    """A JVM that this process has started."""

    is_shared = False

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        return self._process.poll() is not None

    def end(self, timeout_s: float) -> None:
        """End it; kill it after this time."""
        if self._process.stdin is not None:
            self._process.stdin.close()  # the gateway server ends with its stdin
        try:
            self._process.wait(timeout=timeout_s)
        except Exception:
            self._process.kill()
            self._process.wait()


class SharedJvm:
    """A JVM that another process has started.

    :raises ProcessLookupError: it has ended
    """

    is_shared = True

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended."""
        return bool(select.select([self._fd], [], [], within_s)[0])

    def end(self, timeout_s: float) -> None:
        """Let go of it."""
        os.close(self._fd)
