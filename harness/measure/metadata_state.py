"""The state of a KRaft controller after some records of its metadata log, as ``replay`` of its managers builds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.kafka.metadata_records import MetadataRecord

PartitionKey = tuple[str, int]
"""The id of a topic, and a partition's number."""
NO_LEADER = -1
_LEADER_UNCHANGED = -2
_RESERVED = "A" * 20
"""How the ids begin that are no directory: migrating, unassigned, lost (``DirectoryId``: below 100)."""
_LOST = f"{_RESERVED}Ag"
_MIGRATES = "ZK Migration"
"""The name of the transaction that writes ZooKeeper's metadata into the log (``ActivationRecordsGenerator``)."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A broker.

    :ivar cordoned: None until the broker has reported its cordoned log dirs
    """

    epoch: int
    incarnation: str
    fenced: bool
    shutting_down: bool
    log_dirs: frozenset[str]
    cordoned: frozenset[str] | None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Registration:
        """One that a record has."""
        return cls(
            epoch=data["brokerEpoch"],
            incarnation=data.get("incarnationId") or "",
            fenced=data["fenced"],
            shutting_down=data.get("inControlledShutdown", False),
            log_dirs=frozenset(data.get("logDirs") or ()),
            cordoned=_set(data.get("cordonedLogDirs")),
        )

    def changed_by(self, data: Mapping[str, Any]) -> Registration:
        """The registration after a change: 1 fences or shuts down, -1 unfences."""
        fences, shuts_down = data.get("fenced") or 0, data.get("inControlledShutdown") or 0
        log_dirs, cordoned = _set(data.get("logDirs")), _set(data.get("cordonedLogDirs"))
        return replace(
            self,
            fenced=fences > 0 if fences else self.fenced,
            shutting_down=self.shutting_down or shuts_down > 0,
            log_dirs=self.log_dirs if log_dirs is None else log_dirs,
            cordoned=self.cordoned if cordoned is None else cordoned,
        )

    @property
    def inactive(self) -> str:
        """Why it may not lead, or join an ISR; "" if it may (``ClusterControlManager.isActive``)."""
        return "is fenced" if self.fenced else "is shutting down" if self.shutting_down else ""


@dataclass(frozen=True, kw_only=True)
class PartitionState:
    """A partition. Each change of the leader raises the leader epoch, also to itself."""

    replicas: list[int]
    isr: list[int]
    leader: int
    leader_changes: int = 0
    directories: list[str]
    adding: list[int]
    removing: list[int]
    eligible: list[int]
    last_known: list[int]
    recovering: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> PartitionState:
        """One that a record has."""
        return cls(
            replicas=data["replicas"],
            isr=data["isr"],
            leader=data["leader"],
            directories=data.get("directories") or [],
            adding=data.get("addingReplicas") or [],
            removing=data.get("removingReplicas") or [],
            eligible=data.get("eligibleLeaderReplicas") or [],
            last_known=data.get("lastKnownElr") or [],
            recovering=data.get("leaderRecoveryState", 0),
        )

    def changed_by(self, data: Mapping[str, Any]) -> PartitionState:
        """The partition after a change."""
        lists = {
            "replicas": "replicas",
            "isr": "isr",
            "directories": "directories",
            "addingReplicas": "adding",
            "removingReplicas": "removing",
            "eligibleLeaderReplicas": "eligible",
            "lastKnownElr": "last_known",
        }
        changed: dict[str, Any] = {ours: data[name] for name, ours in lists.items() if data.get(name) is not None}
        if (leader := data.get("leader", _LEADER_UNCHANGED)) != _LEADER_UNCHANGED:
            changed |= {"leader": leader, "leader_changes": self.leader_changes + 1}
        if (recovering := data.get("leaderRecoveryState", -1)) >= 0:
            changed["recovering"] = recovering
        return replace(self, **changed)

    def directory(self, broker: int) -> str | None:
        """The id of the log dir that a replica is assigned to; None before KIP-858 or if there is no such replica."""
        return dict(zip(self.replicas, self.directories, strict=False)).get(broker)


@dataclass(kw_only=True)
class MetadataState:
    """The whole state.

    :ivar migrating: whether the present transaction takes the metadata over from ZooKeeper
    """

    topics: dict[str, str] = field(default_factory=dict)
    brokers: dict[int, Registration] = field(default_factory=dict)
    partitions: dict[PartitionKey, PartitionState] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    producer_ids: int = 0
    migrating: bool = False
    _at_begin: MetadataState | None = None

    def apply(self, record: MetadataRecord) -> None:
        """Apply a record. One that fits nothing changes nothing."""
        data = record.data
        match record.kind:
            case "BEGIN_TRANSACTION_RECORD":
                self._at_begin = self._copy()
                self.migrating = data.get("name") == _MIGRATES
            case "END_TRANSACTION_RECORD":
                self.migrating = False
            case "ABORT_TRANSACTION_RECORD" if self._at_begin is not None:
                vars(self).update(vars(self._at_begin))
            case "FEATURE_LEVEL_RECORD":
                self.features[data["name"]] = data["featureLevel"]
            case "TOPIC_RECORD":
                self.topics[data["topicId"]] = data["name"]
            case "REMOVE_TOPIC_RECORD":
                self.topics.pop(data["topicId"], None)
                self.partitions = {key: state for key, state in self.partitions.items() if key[0] != data["topicId"]}
            case "CLEAR_ELR_RECORD":
                self._clear_eligible(data["topicName"])
            case "REGISTER_BROKER_RECORD":
                self.brokers[data["brokerId"]] = Registration.of(data)
            case "UNREGISTER_BROKER_RECORD":
                self.brokers.pop(data["brokerId"], None)
            case "PARTITION_RECORD":
                self.partitions[partition_of(data)] = PartitionState.of(data)
            case "PRODUCER_IDS_RECORD":
                self.producer_ids = data["nextProducerId"]
            case "PARTITION_CHANGE_RECORD" if (key := partition_of(data)) in self.partitions:
                self.partitions[key] = self.partitions[key].changed_by(data)
            case _ if (change := change_of_broker(record)) is not None and change["brokerId"] in self.brokers:
                self.brokers[change["brokerId"]] = self.brokers[change["brokerId"]].changed_by(change)

    def offline(self, broker: int, state: PartitionState) -> str:
        """Why a replica is offline, as far as the controller knows; "" if it is not (``DirectoryId.isOnline``)."""
        registration = self.brokers.get(broker)
        if registration is None:
            return "it is not registered"
        if registration.fenced:
            return "it is fenced"
        directory = state.directory(broker)
        if directory is None or (directory != _LOST and (directory.startswith(_RESERVED) or not registration.log_dirs)):
            return ""
        return "" if directory in registration.log_dirs else f"its log dir {directory} is not online"

    def name(self, key: PartitionKey) -> str:
        """The partition as Kafka writes it."""
        return f"{self.topics.get(key[0], key[0])}-{key[1]}"

    def _clear_eligible(self, topic: str) -> None:
        """Forget the eligible leader replicas of a topic; of all if the name is empty."""
        for key, state in self.partitions.items():
            if not topic or self.topics.get(key[0]) == topic:
                self.partitions[key] = replace(state, eligible=[], last_known=[])

    def _copy(self) -> MetadataState:
        return MetadataState(
            topics=dict(self.topics),
            brokers=dict(self.brokers),
            partitions=dict(self.partitions),
            features=dict(self.features),
            producer_ids=self.producer_ids,
        )


def partition_of(data: Mapping[str, Any]) -> PartitionKey:
    """The partition that a record is about."""
    return data["topicId"], data["partitionId"]


def change_of_broker(record: MetadataRecord) -> Mapping[str, Any] | None:
    """The change of a registration in a record, also in one of the two older kinds; None if it has none."""
    data = record.data
    match record.kind:
        case "BROKER_REGISTRATION_CHANGE_RECORD":
            return data
        case "FENCE_BROKER_RECORD":
            return {"brokerId": data["id"], "brokerEpoch": data["epoch"], "fenced": 1}
        case "UNFENCE_BROKER_RECORD":
            return {"brokerId": data["id"], "brokerEpoch": data["epoch"], "fenced": -1}
    return None


def _set(ids: Iterable[str] | None) -> frozenset[str] | None:
    return None if ids is None else frozenset(ids)
