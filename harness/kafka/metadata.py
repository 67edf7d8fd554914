"""A broker's answers about topics, log dirs and producers, as frozen dataclasses in Kafka's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, order=True)
class PartitionState:
    """A partition in a Metadata response (v5 and later, which has KIP-112's ``offline_replicas``).

    :ivar topic_id: distinguishes a topic from an earlier topic of the same name; before 2.8 all topics have the same
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
class EligibleReplicas:
    """The leader, the ISR and the eligible leader replicas of a partition (KIP-966)."""

    leader: int | None
    isr: frozenset[int]
    eligible: frozenset[int]

    def __str__(self) -> str:
        leader = "none" if self.leader is None else self.leader
        return f"leader {leader}, isr {sorted(self.isr)}, eligible leader replicas {sorted(self.eligible)}"


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """The cluster in one broker's Metadata response.

    :ivar racks: each broker's rack (KIP-36), None if it has none
    """

    cluster_id: str
    controller: int | None
    brokers: tuple[int, ...]
    racks: Mapping[int, str | None]
    partitions: tuple[PartitionState, ...]

    def __getitem__(self, partition: tuple[str, int]) -> PartitionState:
        """The state of ``(topic, partition)``.

        :raises KeyError: the broker doesn't know it
        """
        for state in self.partitions:
            if (state.topic, state.partition) == partition:
                return state
        raise KeyError(partition)

    def __str__(self) -> str:
        return f"brokers {list(self.brokers)}; " + "; ".join(str(state) for state in self.partitions)


@dataclass(frozen=True, kw_only=True, order=True)
class QuorumReplica:
    """A replica of KRaft's metadata log: a controller or a broker.

    :ivar directory_id: of its metadata log dir; a replica with another one is not the same voter (KIP-853)
    """

    id: int
    directory_id: str


@dataclass(frozen=True, kw_only=True)
class QuorumState:
    """KRaft's quorum as its leader sees it (KIP-595).

    :ivar leader: the node id of the active controller; None while there is none
    :ivar observers: the replicas that fetch and have no vote: brokers, and controllers that were not added yet
    """

    leader: int | None
    voters: frozenset[QuorumReplica]
    observers: frozenset[QuorumReplica]


@dataclass(frozen=True, kw_only=True)
class Reassignment:
    """A partition whose replicas are being changed (KIP-455); ``replicas`` has the adding and the removing ones too."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, order=True)
class ProducerState:
    """A producer in a DescribeProducers response (KIP-664).

    :ivar last_timestamp: milliseconds since 1970
    :ivar open_since: the first offset of its open transaction; None if none is open
    """

    producer: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_since: int | None


@dataclass(frozen=True, kw_only=True)
class ReplicaInDir:
    """A replica in a DescribeLogDirs response; ``size`` in bytes."""

    topic: str
    partition: int
    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, kw_only=True)
class LogDirState:
    """A log dir as its broker describes it.

    :ivar error: Kafka's name of the error; None if it is online
    :ivar is_cordoned: KIP-1066; None if the answer has no field for it
    :ivar total_bytes: of the log dir's volume (KIP-827); -1 if the answer has no field for it
    :ivar usable_bytes: of the log dir's volume (KIP-827); -1 if the answer has no field for it
    """

    path: str
    error: str | None
    replicas: tuple[ReplicaInDir, ...]
    is_cordoned: bool | None = None
    total_bytes: int = -1
    usable_bytes: int = -1

    @property
    def offline(self) -> bool:
        """Whether its error is KAFKA_STORAGE_ERROR (56)."""
        return self.error == "KAFKA_STORAGE_ERROR"
