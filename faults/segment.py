"""Bytes of a log segment are changed on disk, as bit rot, a firmware bug or a stray write would.

One byte of one record's value, far from its header, so that the record can still be told apart and its own checksum no
longer fits. Kafka's brokers don't look at a batch's CRC when they serve it; consumers may. The bytes change in the page
cache, from which a broker serves what was written lately.
"""

from __future__ import annotations

from pathlib import Path

from faults.base import Fault
from harness.log_dir import LogDir


class ByteFlipped(Fault):
    """One bit in the value of one record of a replica's first segment.

    :param text: what the record's value begins with; must be in the segment once
    :param into: how many bytes behind that the flipped byte lies
    """

    name = "byte_flipped"

    def __init__(self, log_dir: LogDir, topic: str, partition: int, *, text: bytes, into: int = 8) -> None:
        super().__init__(log_dir.broker)
        self._segment = log_dir.replica_dir(topic, partition) / f"{0:020d}.log"
        self._text = text
        self._into = into
        self._at: int | None = None
        self._token: int | None = None
        self._was = b""

    @property
    def target(self) -> str:
        """The segment and the broker."""
        return f"{self._segment.parent.name}/{self._segment.name} of {self.broker}"

    def break_it(self) -> None:
        """Flip the lowest bit."""
        content = self._segment.read_bytes()
        if content.count(self._text) == 1:
            self._at = content.index(self._text) + len(self._text) + self._into
            self._was = content[self._at : self._at + 1]
            self._token = self.broker.undo_log.will(
                "bytes", path=str(self._segment), at=self._at, hexadecimal=self._was.hex()
            )
            _write(self._segment, self._at, bytes([self._was[0] ^ 1]))

    def proof(self) -> str | None:
        """The file reads otherwise, to the broker's own user."""
        if self._at is None:
            return None
        argv = ["od", "-An", "-tx1", f"-j{self._at}", "-N1", str(self._segment)]
        seen = self.broker.node.run_as_user(argv).stdout.strip()
        return f"byte {self._at} is 0x{seen}, was 0x{self._was.hex()}" if seen and seen != self._was.hex() else None

    def mend(self) -> None:
        """Write the byte back."""
        if self._token is not None:
            self.broker.undo_log.undo(self._token)


def _write(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)
