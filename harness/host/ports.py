"""Loopback ports that nobody else has.

Binding port 0 and closing it again is a race that a second harness on the machine wins now and then, and a port from
the kernel's ephemeral range may be taken by any client socket while its broker restarts. So ports come from below
that range, one block for each cluster, held by a file lock for as long as the harness lives; a block with a port
that somebody has bound is passed over.
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
    """Ports of one cluster; :meth:`take` hands out the next one, :meth:`release` gives the block back.

    :ivar number: 0, 1, 2 …, nobody else's on this machine meanwhile
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
        raise HarnessError(f"no free block of {_BLOCK} ports between {_FIRST} and {_LAST}; is `jbod clean` due?")

    @staticmethod
    def _lock(path: Path) -> IO[bytes] | None:
        try:
            file = path.open("ab")
        except PermissionError:  # another user's
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        return file

    def take(self) -> int:
        """The next port of the block."""
        try:
            return next(self._ports)
        except StopIteration:
            raise HarnessError(f"one cluster wants more than {_BLOCK} ports") from None

    def release(self) -> None:
        """Give the block back; called when the cluster's last process is gone."""
        self._lock_file.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the JVM does: TIME_WAIT is no obstacle
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
