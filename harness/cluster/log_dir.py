"""A log dir: one of a broker's ``log.dirs``, or a controller's metadata log dir."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.host.volume import Volume
from harness.kafka.stored_log import StoredLog

if TYPE_CHECKING:
    from harness.cluster.broker import Broker
    from harness.cluster.nodes.node import Node


RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
"""The checkpoint files of a log dir."""
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
"""The mark of a clean shutdown; a broker that finds none at its start recovers the logs of the log dir."""
_FUTURE = re.compile(r"\.[0-9a-f]{32}-future$")


class LogDir:
    """A log dir, identified by its absolute path.

    :ivar volume: its own file system; None if it shares one with other log dirs
    """

    def __init__(self, broker: Broker, path: Path, volume: Volume | None = None) -> None:
        self.broker = broker
        self.path = path
        self.volume = volume

    @property
    def node(self) -> Node:
        """The node that has the log dir."""
        return self.broker.node

    def replica_dir(self, topic: str, partition: int) -> Path:
        """The folder of a replica in this log dir."""
        return self.path / f"{topic}-{partition}"

    def partitions_in_checkpoint(self, checkpoint: str) -> set[str]:
        """The partitions that a checkpoint file lists (``CheckpointFile``), such as "orders-0".

        The cleaner's file may be absent; then it lists none.

        :raises OSError: the file can't be read
        """
        if checkpoint == CLEANED and not (self.path / checkpoint).exists():
            return set()
        return set(self.offsets_in_checkpoint(checkpoint))

    def offsets_in_checkpoint(self, checkpoint: str) -> dict[str, int]:
        """The offset of each partition that a checkpoint file lists.

        :raises OSError: the file can't be read
        """
        lines = (self.path / checkpoint).read_text().splitlines()[2:]  # after the version and the count
        return {f"{topic}-{index}": int(offset) for topic, index, offset in map(str.split, lines)}

    def replicas_on_disk(self) -> dict[str, int]:
        """The replicas whose folders are here, and the high watermark of each by the log dir's checkpoint.

        The high watermark is 0 if the checkpoint is older than the replica, or does not list it. A replica without a
        topic id is left out, since a KRaft broker does not take it for one. So is every replica of a log dir that
        can't be read.
        """
        try:
            checkpoint = self.path / HIGH_WATERMARKS
            offsets = self.offsets_in_checkpoint(HIGH_WATERMARKS) if checkpoint.exists() else {}
            files = {folder.name: folder / "partition.metadata" for folder in self.path.iterdir()}
            made = {
                name: file.stat().st_mtime_ns
                for name, file in files.items()
                if not name.endswith(("-future", "-delete", "-stray"))
                and file.exists()
                and "topic_id" in file.read_text()
            }
            written = checkpoint.stat().st_mtime_ns if offsets else 0
        except (OSError, ValueError):
            return {}
        return {name: offsets.get(name, 0) if at <= written else 0 for name, at in sorted(made.items())}

    def is_marked_clean(self) -> bool:
        """Whether it has the mark of a clean shutdown; False if it can't be read."""
        try:
            return (self.path / CLEAN_SHUTDOWN).exists()
        except OSError:
            return False

    def written_at(self, checkpoint: str) -> float:
        """When a checkpoint file was last written, in seconds since the epoch; 0.0 if there is none.

        :raises OSError: the log dir can't be read
        """
        file = self.path / checkpoint
        return file.stat().st_mtime if file.exists() else 0.0

    def recovery_points(self) -> dict[str, tuple[int, int]]:
        """The checkpointed recovery point of each replica and future replica here, and the end of its log on disk.

        Replicas that the checkpoint does not list are left out, and deleted and stray ones.

        :raises OSError: something can't be read, or is gone
        :raises ValueError: a log is damaged
        """
        if not self.written_at(RECOVERY_POINTS):
            return {}
        folders = {_FUTURE.sub("", folder.name): folder for folder in self.path.iterdir()}
        points = self.offsets_in_checkpoint(RECOVERY_POINTS)
        return {name: (at, StoredLog(folders[name]).ends()) for name, at in points.items() if name in folders}

    def directory_id(self) -> str:
        """The ``directory.id`` in its ``meta.properties`` (KIP-858)."""
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


class MetadataDir(LogDir):
    """The log dir of a dedicated KRaft controller, which has the metadata log.

    :param witness: any broker: its user is the controller's, and its journal and undo log are the cluster's
    """

    def __init__(self, witness: Broker, controller: Node, path: Path, volume: Volume | None) -> None:
        super().__init__(witness, path, volume)
        self._controller = controller

    @property
    def node(self) -> Node:
        """The controller."""
        return self._controller

    def __str__(self) -> str:
        return f"{self.path.name} of {self._controller.spec.name}"
