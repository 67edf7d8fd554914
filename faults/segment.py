"""Changes bytes of a segment, its indexes or a metadata snapshot, as bit rot, a firmware bug or a stray write would.

The bytes are few, and a running broker does not check them. It keeps serving the segment, and readers get other data
than was written. The bytes change in the page cache, from which a broker serves recent data. One fault makes an index
unreadable instead.
"""

from __future__ import annotations

import contextlib
import stat
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from faults.base import Fault
from faults.log_dir import LogDirFault
from harness.cluster.log_dir import LogDir, MetadataDir
from harness.errors import FaultNotProven

# Fields of org.apache.kafka.storage.internals.log.AbortedTxn: version (2 bytes), producer id (8), three offsets (8).
_ABORTED_BYTES = 34
_ABORTED_PRODUCER_END = 10
_ABORTED_FIRST_END = 18  # where the last offset begins
# Fields of a snapshot of producers: version (2 bytes), CRC (4), count (4); of each producer: id (8), epoch (2),
# last sequence number (4).
_LAST_SEQUENCE_END = 24


class BitsFlipped(Fault):
    """Flips one bit of some bytes in a file of a replica's first segment.

    :cvar suffix: the ending of the file's name
    :cvar bit: the mask of the bit; the lowest by default
    """

    harms_logs = True
    suffix: ClassVar[str] = ""
    bit: ClassVar[int] = 1

    def __init__(self, log_dir: LogDir, topic: str, partition: int) -> None:
        super().__init__(log_dir.broker)
        self._file = log_dir.replica_dir(topic, partition) / f"{0:020d}.{self.suffix}"
        self._was = b""
        self._at: Sequence[int] = ()
        self._token: int | None = None

    @abstractmethod
    def find(self, content: bytes) -> Sequence[int]:
        """The positions of the bytes in ascending order; empty if the file does not have the expected content."""

    def is_possible(self) -> bool:
        """Whether the file has the bytes to flip by now."""
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
        """The broker's own user reads another value at each position."""
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
        """Whether the first of the bytes still has the flipped value."""
        with contextlib.suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(self._at[0])
            return file.read(1) == bytes([self._was[0] ^ self.bit])
        return False

    def revert(self) -> None:
        """Restore the bytes, unless Kafka has replaced the file."""
        if self._token is None:
            return
        if self.still_flipped():
            self.broker.undo_log.undo(self._token)
        else:
            self.broker.undo_log.settle(self._token)


class ByteFlipped(BitsFlipped):
    """Flips one bit in the value of one record of a replica's first segment.

    The bit is far from the record's header, so the record can be identified, but its own checksum no longer matches.
    Brokers do not check a batch's CRC when they serve it; consumers may.

    :param text: the beginning of the record's value; must occur once in the segment
    """

    name = "byte_flipped"
    suffix = "log"

    def __init__(self, log_dir: LogDir, topic: str, partition: int, *, text: bytes) -> None:
        super().__init__(log_dir, topic, partition)
        self._text = text

    def find(self, content: bytes) -> Sequence[int]:
        """A byte of the padding after the text."""
        return [content.index(self._text) + len(self._text) + 8] if content.count(self._text) == 1 else []


class SnapshotByteFlipped(BitsFlipped):
    """Flips one bit of a text in the newest snapshot of a controller, such as of a topic's name.

    The controller must be down. Each batch of a snapshot has a CRC, which a controller checks as it loads the snapshot.
    """

    name = "snapshot_byte_flipped"
    harms_logs = False

    def __init__(self, metadata_dir: MetadataDir, *, text: bytes) -> None:
        super().__init__(metadata_dir, "__cluster_metadata", 0)
        self._file = max(self._file.parent.glob("*.checkpoint"))
        self._controller = metadata_dir.node.spec.name
        self._text = text

    @property
    def target(self) -> str:
        """The file and the controller."""
        return f"{self._file.name} of {self._controller}"

    @property
    def node(self) -> str:
        """The controller's name."""
        return self._controller

    def find(self, content: bytes) -> Sequence[int]:
        """The first byte of the text, where it occurs first."""
        at = content.find(self._text)
        return [] if at < 0 else [at]


class ProducerSnapshotFlipped(BitsFlipped):
    """Flips one bit of the last sequence number of a producer, in the newest snapshot of a log's producers.

    The broker must be down: a clean stop writes a snapshot. A snapshot has a CRC, which a broker checks as it loads it.
    """

    name = "producer_snapshot_byte_flipped"
    suffix = "snapshot"

    def __init__(self, log_dir: LogDir, topic: str, partition: int) -> None:
        super().__init__(log_dir, topic, partition)
        self._file = max(self._file.parent.glob("*.snapshot"), default=self._file)

    def find(self, content: bytes) -> Sequence[int]:
        """The last byte of the sequence number of the first producer."""
        return [_LAST_SEQUENCE_END - 1] if len(content) >= _LAST_SEQUENCE_END else []


class AbortsMisattributed(BitsFlipped):
    """The index of aborted transactions of a replica's first segment names other producers.

    A read_committed consumer drops the records of aborted transactions by this index, which the leader sends with the
    records. The index has no checksum.
    """

    name = "aborts_misattributed"
    suffix = "txnindex"

    def find(self, content: bytes) -> Sequence[int]:
        """The last byte of each entry's producer id."""
        return range(_ABORTED_PRODUCER_END - 1, len(content), _ABORTED_BYTES)


class AbortsBackdated(BitsFlipped):
    """Some transactions in the index of aborted transactions begin 64 offsets earlier, in a committed transaction.

    A read_committed consumer then drops the producer's records from there on, until the abort.
    """

    name = "aborts_backdated"
    suffix = "txnindex"
    bit = 64

    def find(self, content: bytes) -> Sequence[int]:
        """The last byte of the first offset, for each entry in which the bit is set."""
        return [at for at in range(_ABORTED_FIRST_END - 1, len(content), _ABORTED_BYTES) if content[at] & self.bit]


class AbortsForgotten(BitsFlipped):
    """The transactions in the index of aborted transactions end before the log begins, so a reader is given none.

    The sign bit of each last offset flips. Kafka checks this field when it loads a segment. The broker must be down.
    """

    name = "aborts_forgotten"
    suffix = "txnindex"
    bit = 0x80

    def find(self, content: bytes) -> Sequence[int]:
        """The first byte of each entry's last offset."""
        return range(_ABORTED_FIRST_END, len(content), _ABORTED_BYTES)


class IndexByteFlipped(BitsFlipped):
    """Flips a bit of a file position in the offset index of a replica's first segment: it points 16 MiB too far.

    The entry is the middle one of at least three, since Kafka checks the last one when it opens an index. The broker
    must be down, because it maps the index into memory.
    """

    name = "index_byte_flipped"
    suffix = "index"

    def find(self, content: bytes) -> Sequence[int]:
        """The highest byte of the position. An entry has eight bytes: relative offset and position."""
        # After the last entry, the file has zeros only.
        entries = next((n for n in range(len(content) // 8) if not any(content[8 * n : 8 * n + 8])), len(content) // 8)
        return [] if entries < 3 else [8 * (entries // 2) + 4]


class IndexUnreadable(LogDirFault):
    """The offset index of a replica's first segment loses its permissions; everything else in the log dir works.

    A broker opens the index of an old segment when a read first needs it after the broker's start. So it notices the
    fault when it reads, and never when it writes.
    """

    name = "index_unreadable"
    expected_error = "Permission denied"

    def __init__(self, log_dir: LogDir, topic: str, partition: int) -> None:
        super().__init__(log_dir)
        self._file = log_dir.replica_dir(topic, partition) / f"{0:020d}.index"

    @property
    def target(self) -> str:
        """The file and the broker."""
        return f"{self._file.parent.name}/{self._file.name} of {self.broker}"

    def inject(self) -> None:
        """Apply the fault and prove its effect; the index must have been readable before.

        :raises FaultNotProven: the index was not readable before, or the effect is not proven
        """
        if error := self._read_error():
            raise FaultNotProven(f"{self.target} could not be read before {self.name} was injected: {error}")
        super().inject()

    def apply(self) -> None:
        """Remove the permissions of the file."""
        mode = stat.S_IMODE(self._file.stat().st_mode)
        self._will("chmod", path=str(self._file), mode=mode)
        self._file.chmod(0)

    def proof(self) -> str | None:
        """The expected error when the broker's own user reads the file."""
        error = self._read_error()
        return error if self.expected_error in error else None

    def _read_error(self) -> str:
        argv = ["dd", f"if={self._file}", "of=/dev/null", "bs=4096", "count=1", "status=none"]
        return self.broker.node.run_as_user(argv).stderr.strip()
