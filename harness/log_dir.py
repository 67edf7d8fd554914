"""A log dir: one of a broker's ``log.dirs``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.machine.volume import Volume

if TYPE_CHECKING:
    from harness.broker import Broker


class LogDir:
    """One of a broker's log dirs, by its absolute path.

    :ivar volume: the file system of its own that it lies on; None where it shares one with the others
    """

    def __init__(self, broker: Broker, path: Path, volume: Volume | None = None) -> None:
        self.broker = broker
        self.path = path
        self.volume = volume

    def replica_dir(self, topic: str, partition: int) -> Path:
        """The folder of a replica in it."""
        return self.path / f"{topic}-{partition}"

    def directory_id(self) -> str:
        """Its ``directory.id`` (KIP-858), as its ``meta.properties`` has it."""
        lines = (self.path / "meta.properties").read_text().splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith("directory.id="))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogDir) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __str__(self) -> str:
        return f"{self.path.name} of broker {self.broker.id}"

    def __repr__(self) -> str:
        return f"<log dir {self.path}>"
