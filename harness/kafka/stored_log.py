"""Reads and compares replicas' logs on disk in pieces, since whole ones may not fit into memory.

Three replicas of half a gigabyte would take 1.5 GB in each worker of a run.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

PIECE = 1 << 20
# A batch's base offset, its length after these two, its attributes, and its last offset's delta.
_BATCH = struct.Struct(">qi9xhi")
_CODEC = 0b111  # in the attributes
Fingerprint = tuple[int, str]
"""The size in bytes and the BLAKE2 digest of a log."""


class StoredLog:
    """All segments in a replica's folder, one after the other, with the sizes that they had when this was created.

    :ivar size: bytes of all segments
    """

    def __init__(self, folder: Path) -> None:
        self._segments = [(path, path.stat().st_size) for path in sorted(folder.glob("*.log"))]
        self.size = sum(size for _, size in self._segments)

    def __str__(self) -> str:
        if not self._segments:
            return "no segment"
        return f"{self.size} bytes in segments from offset {int(self._segments[0][0].stem)} on"

    def begins(self) -> int:
        """The base offset of the first batch; 0 for an empty log."""
        return int.from_bytes(next(self.pieces(), b"")[:8])

    def ends(self) -> int:
        """The log end offset: the offset after the last batch of the last segment.

        :raises OSError: a segment is gone, or there is none
        """
        if not self._segments:
            raise FileNotFoundError("no segment")
        path, size = self._segments[-1]
        end = int(path.stem)
        for base, last, _ in batches(path, size):
            end = base + last + 1
        return end

    def codecs(self) -> set[int]:
        """The ids of the compression types of its batches, 0 for none.

        :raises OSError: a segment is gone
        """
        return {attributes & _CODEC for path, size in self._segments for *_, attributes in batches(path, size)}

    def pieces(self, skip: int = 0) -> Iterator[bytes]:
        """The bytes of the log in order, in pieces of at most 1 MiB.

        :param skip: leave out so many bytes at the beginning
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
        """The size and digest of the log; reads all of it."""
        digest = hashlib.blake2b(digest_size=16)
        for piece in self.pieces():
            digest.update(piece)
        return self.size, digest.hexdigest()

    def first_difference(self, other: StoredLog, skip: int = 0) -> int | None:
        """The first byte in which this log differs from the end of ``other``; None if they are the same.

        :param skip: leave out so many bytes at the beginning of ``other``
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


def batches(segment: Path, size: int) -> Iterator[tuple[int, int, int]]:
    """The base offset, the last offset's delta and the attributes of each batch of a segment.

    :raises ValueError: a batch has no possible length
    """
    at = 0
    with segment.open("rb") as file:
        while at + _BATCH.size <= size:
            file.seek(at)
            base, length, attributes, last = _BATCH.unpack(file.read(_BATCH.size))
            yield base, last, attributes
            if length < 0:
                raise ValueError(f"{segment} has a batch of {length} bytes at byte {at}")
            at += 12 + length
