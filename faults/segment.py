"""Bytes of a log segment or its indexes are changed on disk, as bit rot, a firmware bug or a stray write would.

Few bytes, far from what is checked, so that brokers go on serving the segment and readers get something else than was
written. They change in the page cache, from which a broker serves what was written lately.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from faults.base import Fault
from harness.cluster.log_dir import LogDir

# org.apache.kafka.storage.internals.log.AbortedTxn: version (2 bytes), producer id (8), three offsets (8 each).
_ABORTED_BYTES = 34
_ABORTED_PRODUCER_END = 10
_ABORTED_FIRST_END = 18


class BitsFlipped(Fault):
    """One bit, the lowest unless said otherwise, of some bytes of a file of a replica's first segment."""

    bit: ClassVar[int] = 1

    def __init__(self, log_dir: LogDir, topic: str, partition: int, suffix: str) -> None:
        super().__init__(log_dir.broker)
        self._file = log_dir.replica_dir(topic, partition) / f"{0:020d}.{suffix}"
        self._was = b""
        self._at: Sequence[int] = ()
        self._token: int | None = None

    @abstractmethod
    def find(self, content: bytes) -> Sequence[int]:
        """Which bytes, rising; none where the file isn't as it should be."""

    def is_possible(self) -> bool:
        """Whether there is by now in the file what is to be flipped."""
        return self._file.exists() and bool(self.find(self._file.read_bytes()))

    @property
    def target(self) -> str:
        """The file and the broker."""
        return f"{self._file.parent.name}/{self._file.name} of {self.broker}"

    def apply(self) -> None:
        """Flip the bits."""
        content = self._file.read_bytes() if self._file.exists() else b""
        self._at = self.find(content)
        if not self._at:
            return
        first = self._at[0]
        self._was = content[first : self._at[-1] + 1]
        flipped = bytearray(self._was)
        for at in self._at:
            flipped[at - first] ^= self.bit
        self._token = self.broker.undo_log.will("bytes", path=str(self._file), at=first, hexadecimal=self._was.hex())
        with self._file.open("r+b") as file:
            file.seek(first)
            file.write(flipped)

    def proof(self) -> str | None:
        """The file reads otherwise in each of these places, to the broker's own user."""
        if not self._at:
            return None
        first = self._at[0]
        argv = ["od", "-An", "-v", "-tx1", f"-j{first}", f"-N{len(self._was)}", str(self._file)]
        seen = bytes.fromhex(self.broker.node.run_as_user(argv).stdout)
        if len(seen) != len(self._was) or any(seen[at - first] == self._was[at - first] for at in self._at):
            return None
        more = f", and {len(self._at) - 1} more" if len(self._at) > 1 else ""
        return f"byte {first} is 0x{seen[0]:02x}, was 0x{self._was[0]:02x}{more}"

    def still_flipped(self) -> bool:
        """Whether the first of the bytes still is what the injection made of it."""
        with contextlib.suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(self._at[0])
            return file.read(1) == bytes([self._was[0] ^ self.bit])
        return False

    def revert(self) -> None:
        """Write the bytes back, unless Kafka has made the file anew meanwhile."""
        if self._token is None:
            return
        if self.still_flipped():
            self.broker.undo_log.undo(self._token)
        else:
            self.broker.undo_log.settle(self._token)


class ByteFlipped(BitsFlipped):
    """One bit in the value of one record of a replica's first segment.

    Far from the record's header, so that the record can still be told apart and its own checksum no longer fits.
    Kafka's brokers don't look at a batch's CRC when they serve it; consumers may.

    :param text: what the record's value begins with; must be in the segment once
    """

    name = "byte_flipped"

    def __init__(self, log_dir: LogDir, topic: str, partition: int, *, text: bytes) -> None:
        super().__init__(log_dir, topic, partition, "log")
        self._text = text

    def find(self, content: bytes) -> Sequence[int]:
        """One byte of the padding behind the text."""
        return [content.index(self._text) + len(self._text) + 8] if content.count(self._text) == 1 else []


class AbortsMisattributed(BitsFlipped):
    """The index of aborted transactions of a replica's first segment names other producers than those that aborted.

    A read_committed consumer drops what is aborted by this index alone, which the leader sends along with the records;
    it has no checksum.
    """

    name = "aborts_misattributed"

    def __init__(self, log_dir: LogDir, topic: str, partition: int) -> None:
        super().__init__(log_dir, topic, partition, "txnindex")

    def find(self, content: bytes) -> Sequence[int]:
        """The last byte of each entry's producer id."""
        return range(_ABORTED_PRODUCER_END - 1, len(content), _ABORTED_BYTES)


class AbortsBackdated(BitsFlipped):
    """Some entries of that index have their transaction begin 64 offsets earlier, in one that was committed.

    A read_committed consumer drops what the producer wrote from there on, up to where it aborted.
    """

    name = "aborts_backdated"
    bit = 64

    def __init__(self, log_dir: LogDir, topic: str, partition: int) -> None:
        super().__init__(log_dir, topic, partition, "txnindex")

    def find(self, content: bytes) -> Sequence[int]:
        """The last byte of the first offset, of each entry where the bit is set."""
        return [at for at in range(_ABORTED_FIRST_END - 1, len(content), _ABORTED_BYTES) if content[at] & self.bit]


class IndexByteFlipped(BitsFlipped):
    """A bit of a file position in the offset index of a replica's first segment: it points 16 MiB away, behind the end.

    The middle one of its entries, as Kafka looks at the last when it opens an index; there must be at least three. An
    index is only safe to touch while its broker doesn't run: it is mapped into the broker's memory.
    """

    name = "index_byte_flipped"

    def __init__(self, log_dir: LogDir, topic: str, partition: int) -> None:
        super().__init__(log_dir, topic, partition, "index")

    def find(self, content: bytes) -> Sequence[int]:
        """The highest byte of the position; an entry is eight bytes, offset above the base and position."""
        # What follows the last entry is zero.
        entries = next((n for n in range(len(content) // 8) if not any(content[8 * n : 8 * n + 8])), len(content) // 8)
        return [] if entries < 3 else [8 * (entries // 2) + 4]
