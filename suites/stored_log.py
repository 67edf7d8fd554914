"""A replica's log as it lies on a disk, compared by the piece: it may be longer than anybody has memory for.

Three replicas of half a gigabyte, read whole, are 1.5 GB in each worker of a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

PIECE = 1 << 20
Fingerprint = tuple[int, str]
"""What two logs have in common only if they are the same: size in bytes and BLAKE2 digest."""


class StoredLog:
    """All segments in a replica's folder, one after the other, as long as they were when it was looked at.

    :ivar size: bytes
    """

    def __init__(self, folder: Path) -> None:
        self._segments = [(path, path.stat().st_size) for path in sorted(folder.glob("*.log"))]
        self.size = sum(size for _, size in self._segments)

    def begins(self) -> int:
        """The offset with which its first batch begins, which is its first field; 0 where there is none."""
        return int.from_bytes(next(self.pieces(), b"")[:8])

    def pieces(self, skip: int = 0) -> Iterator[bytes]:
        """Its bytes in order, from the so-manieth on, some at a time.

        :raises OSError: a segment is gone, or shorter than it was
        """
        for path, size in self._segments:
            if skip >= size:
                skip -= size
                continue
            with path.open("rb") as segment:
                segment.seek(skip)
                left, skip = size - skip, 0
                while left:
                    piece = segment.read(min(PIECE, left))
                    if not piece:
                        raise OSError(f"{path} is {left} bytes shorter than it was")
                    left -= len(piece)
                    yield piece

    def fingerprint(self) -> Fingerprint:
        """Read it all, once."""
        digest = hashlib.blake2b(digest_size=16)
        for piece in self.pieces():
            digest.update(piece)
        return self.size, digest.hexdigest()

    def first_difference(self, other: StoredLog, skip: int = 0) -> int | None:
        """From which byte on it is another log than the end of ``other``; None: it is the same.

        :param skip: so many bytes of the other are none of its end
        """
        ours, theirs = self.pieces(), other.pieces(skip)
        at, our, their = 0, b"", b""
        while True:
            our, their = our or next(ours, b""), their or next(theirs, b"")
            length = min(len(our), len(their))
            if our[:length] != their[:length]:
                return at + next(n for n, (one, another) in enumerate(zip(our, their, strict=False)) if one != another)
            if not length:
                return at if our or their else None
            at, our, their = at + length, our[length:], their[length:]
