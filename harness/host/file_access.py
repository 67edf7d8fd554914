"""Shows which files of a folder are in use: those that a process has open, and those that processes read or write."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# The events of inotify(7) that show a use of a file, by the bit in the mask.
_USES = {
    0x001: "read",
    0x002: "written",
    0x004: "changed",
    0x020: "opened",
    0x040: "renamed",
    0x080: "renamed",
    0x100: "created",
    0x200: "deleted",
}
_ON_FOLDER = 0x40000000
_EVENT = struct.Struct("iIII")


@contextmanager
def watched(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Watch a folder and the folders in it; yields a function that returns the uses so far, such as "x/y was read".

    The kernel reports the uses by all processes, also those of other users and in containers. Folders that are opened
    or listed are left out. So is access to a file that a process mapped before; :func:`in_use` returns such files.

    :raises OSError: a folder can't be watched
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        watches: dict[int, Path] = {}
        for path in (folder, *(each for each in folder.rglob("*") if each.is_dir())):
            watch = libc.inotify_add_watch(fd, os.fsencode(path), sum(_USES))
            if watch < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(path))
            watches[watch] = path.relative_to(folder)
        seen: list[str] = []

        def uses() -> list[str]:
            with suppress(BlockingIOError):
                while data := os.read(fd, 1 << 16):
                    seen.extend(_read(data, watches))
            return list(dict.fromkeys(seen))

        yield uses
    finally:
        os.close(fd)


def _read(data: bytes, watches: dict[int, Path]) -> Iterator[str]:
    at = 0
    while at < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        name = data[at : at + length].rstrip(b"\0").decode()
        at += length
        uses = [use for bit, use in _USES.items() if mask & bit]
        if uses and not (mask & _ON_FOLDER and uses[0] in ("opened", "read")):
            yield f"{watches[watch] / name} was {uses[0]}"


def in_use(folder: Path, pid: int) -> list[str]:
    """The files below a folder that a process has open, or mapped into its memory.

    Files are compared by device and inode, since a process in a container sees other paths.
    """
    held = {_identity(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        _, _, _, device, inode, *_ = line.split()
        major, minor = (int(number, 16) for number in device.split(":"))
        held.add((os.makedev(major, minor), int(inode)))
    held.discard(None)
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in files if _identity(path) in held)


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and the inode of a file, also behind a link; None if it is gone."""
    with suppress(FileNotFoundError):
        stat = path.stat()
        return stat.st_dev, stat.st_ino
    return None
