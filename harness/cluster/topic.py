"""A topic and its partitions: handles that ask a broker each time and cache nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.cluster.own_part import OwnPart
from harness.errors import AwaitTimeout

if TYPE_CHECKING:
    from harness.cluster.broker import Broker
    from harness.cluster.cluster import Cluster
    from harness.cluster.log_dir import LogDir
    from harness.kafka.metadata import PartitionState


class Partition:
    """One partition of a topic."""

    def __init__(self, cluster: Cluster, topic: str, index: int) -> None:
        self.cluster = cluster
        self.topic = topic
        self.index = index

    def describe(self, via: Broker | None = None) -> PartitionState:
        """The partition's state as ``via`` sees it, or as any broker that answers."""
        return self.cluster.describe(via)[self.topic, self.index]

    def leader(self) -> Broker:
        """The broker that leads the partition.

        :raises AwaitTimeout: no broker does
        """
        state = self.describe()
        if state.leader is None:
            raise AwaitTimeout(f"no broker leads {self}: {state}")
        return self.cluster.broker(state.leader)

    def followers(self) -> list[Broker]:
        """The brokers of the other replicas, in the order of the assignment."""
        state = self.describe()
        return [self.cluster.broker(id) for id in state.replicas if id != state.leader]

    def delete_records(self, before: int) -> int:
        """Delete the records below an offset; returns the new log start offset."""
        with OwnPart(self.cluster, "delete records", needs_all=False).served():
            return self.leader().admin.delete_records(self.topic, self.index, before)

    def log_dir_on(self, broker: Broker) -> LogDir:
        """The log dir that holds the replica on ``broker``.

        :raises AwaitTimeout: the broker names none
        """
        log_dir = broker.log_dir_of(self.topic, self.index)
        if log_dir is None:
            raise AwaitTimeout(f"{broker} has no replica of {self} in any log dir, by DescribeLogDirs")
        return log_dir

    def move_to(self, log_dir: LogDir) -> None:
        """Begin to move the replica on the log dir's broker into this log dir (KIP-113).

        If the replica is already in this log dir, the broker cancels a move that is in progress.

        :raises RefusedOwnPart: the broker refuses
        """
        with OwnPart(self.cluster, "begin and cancel moves between log dirs", needs_all=False).served():
            log_dir.broker.admin.alter_replica_log_dir(self.topic, self.index, str(log_dir.path))
        log_dir.broker.journal.write("replica.move", partition=str(self), to=str(log_dir))

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


class Topic:
    """A topic; ``topic[0]`` is its first partition."""

    def __init__(self, cluster: Cluster, name: str, partitions: int) -> None:
        self.name = name
        self.cluster = cluster
        self.partitions = tuple(Partition(cluster, name, index) for index in range(partitions))

    def configure(self, configs: Mapping[str, str]) -> None:
        """Set some of the topic's configs.

        :raises RefusedOwnPart: the broker refuses
        """
        with OwnPart(self.cluster, "change the configs of topics", needs_all=False).served():
            self.cluster.live_brokers()[0].admin.set_topic_configs(self.name, configs)

    def __getitem__(self, index: int) -> Partition:
        return self.partitions[index]

    def __len__(self) -> int:
        return len(self.partitions)

    def __str__(self) -> str:
        return self.name
