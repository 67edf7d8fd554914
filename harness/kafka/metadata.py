"""Frozen answers: what a broker said about topics and log dirs, in Kafka's own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, order=True)
class PartitionState:
    """One partition as a Metadata response has it (v5 and later; ``offline_replicas`` is KIP-112's).

    :ivar topic_id: tells a topic from one that had its name before; the same for all where the build has none (< 2.8)
    """

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    topic_id: str = field(default="", compare=False)

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is missing from the ISR."""
        return set(self.isr) != set(self.replicas)

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition} leader {'none' if self.leader is None else self.leader} "
            f"replicas {list(self.replicas)} isr {sorted(self.isr)} offline {sorted(self.offline_replicas)}"
        )


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """Brokers and partitions as one broker sees them.

    :ivar racks: of each of the brokers (KIP-36; Metadata v1 and later), None where it has none
    """

    cluster_id: str
    controller: int | None
    brokers: tuple[int, ...]
    racks: Mapping[int, str | None]
    partitions: tuple[PartitionState, ...]

    def __getitem__(self, partition: tuple[str, int]) -> PartitionState:
        """The state of ``(topic, partition)``; KeyError where the broker doesn't know it."""
        for state in self.partitions:
            if (state.topic, state.partition) == partition:
                return state
        raise KeyError(partition)

    def __str__(self) -> str:
        return f"brokers {list(self.brokers)}; " + "; ".join(str(state) for state in self.partitions)


@dataclass(frozen=True, kw_only=True)
class Reassignment:
    """A partition whose replica set is being changed (KIP-455): ``replicas`` has those to come and those to go."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, order=True)
class ProducerState:
    """What a partition's log knows of a producer, as DescribeProducers has it (KIP-664).

    :ivar last_timestamp: milliseconds
    :ivar open_since: the first offset of its open transaction; None where none is open
    """

    producer: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_since: int | None


@dataclass(frozen=True, kw_only=True)
class ReplicaInDir:
    """A replica in a log dir, as DescribeLogDirs has it."""

    topic: str
    partition: int
    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, kw_only=True)
class LogDirState:
    """A log dir as its broker describes it.

    :ivar error: Kafka's name for the error, None where it is online
    :ivar is_cordoned: KIP-1066; None where nothing is said of it
    """

    path: str
    error: str | None
    replicas: tuple[ReplicaInDir, ...]
    is_cordoned: bool | None = None

    @property
    def offline(self) -> bool:
        """Whether the broker says KAFKA_STORAGE_ERROR (56) of it."""
        return self.error == "KAFKA_STORAGE_ERROR"
