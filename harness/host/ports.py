"""Loopback ports for one cluster, reserved among all harnesses on the machine.

A free port found by binding port 0 may be taken before its broker starts, and a client socket may take a port of the
kernel's ephemeral range while its broker restarts. So each cluster has a block of ports below that range, held by a
file lock while the harness lives. A block with a port in use is skipped.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import IO

from harness.errors import HarnessError

HOST = "127.0.0.1"
_FIRST, _LAST, _BLOCK = 20_000, 32_000, 40


class PortBlock:
    """The ports of one cluster.

    :ivar number: the block's number: 0, 1, 2 …; no other block in use on this machine has it
    :raises HarnessError: no block is free
    """

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / "jbod-ports"
        folder.mkdir(exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o1777)
        for first in range(_FIRST, _LAST, _BLOCK):
            lock = self._lock(folder / str(first))
            if lock is None:
                continue
            if all(_is_free(port) for port in range(first, first + _BLOCK)):
                self.number = (first - _FIRST) // _BLOCK
                self._lock_file, self._ports = lock, iter(range(first, first + _BLOCK))
                return
            lock.close()
        raise HarnessError(
            f"no free block of {_BLOCK} ports between {_FIRST} and {_LAST}; jbod clean ends brokers of interrupted runs"
        )

    @staticmethod
    def _lock(path: Path) -> IO[bytes] | None:
        try:
            file = path.open("ab")
        except PermissionError:  # the file of another user
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        return file

    def take(self) -> int:
        """The next port of the block.

        :raises HarnessError: there is none left
        """
        try:
            return next(self._ports)
        except StopIteration:
            raise HarnessError(f"a cluster needs more than the {_BLOCK} ports of its block") from None

    def release(self) -> None:
        """Give the block back, after the cluster's last process has ended."""
        self._lock_file.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the JVM does; TIME_WAIT counts as free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
