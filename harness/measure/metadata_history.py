"""Replays the records of a metadata log, and finds those that break a rule of Kafka's controller.

A test reads the state of a cluster where it expects a change. What the controller wrote between two looks, or about
topics that no test asks for, only its log shows. Each record must change something. Each batch must leave a state that
the rules of ``ReplicationControlManager`` and ``ClusterControlManager`` allow: a batch is written as a whole.

Four things look irregular and are not. The controller fences a fenced broker again: after a failover, it does not know
when that broker's session ended. A process that registers again, as it had no answer, keeps its epoch. A broker may
assign a replica to a log dir that has just failed: the same batch then elects another leader. A batch may repeat a
change: if one heartbeat reports a failed log dir and asks for a shutdown, each removes the broker from the ISR.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from harness.kafka.metadata_records import MetadataRecord

_Partition = tuple[str, int]
_Value = TypeVar("_Value")

_NO_LEADER = -1
_LEADER_UNCHANGED = -2
_RESERVED = "A" * 20
"""How the ids begin that are no directory: unassigned, lost, migrating (``DirectoryId``: below 100)."""
_LOST = f"{_RESERVED}AA"


@dataclass(frozen=True, kw_only=True)
class Irregular:
    """A record that breaks a rule."""

    offset: int
    what: str
    record: str

    def __str__(self) -> str:
        return f"the metadata log has at offset {self.offset} {self.what}: {self.record}"


def irregular(records: Iterable[MetadataRecord], *, since: int = 0) -> list[Irregular]:
    """Return what is irregular in a metadata log, from an offset on.

    :param records: from offset 0, or from those of a snapshot
    """
    history = _History()
    found = []
    for _, batch in groupby(records, key=lambda record: (record.in_snapshot, record.batch)):
        history.begin_batch()
        last = None
        for last in batch:
            phrases = list(history.replay(last))
            found += [_irregular(last, phrase) for phrase in phrases if not last.in_snapshot]
        if last is not None and not last.in_snapshot:
            found += [_irregular(last, phrase) for phrase in history.new_contradictions()]
    return [each for each in found if each.offset >= since]


def _irregular(record: MetadataRecord, what: str) -> Irregular:
    return Irregular(offset=record.offset, what=what, record=str(record))


@dataclass(kw_only=True)
class _Registration:
    """A broker, as the controller has it.

    :ivar cordoned: None until the broker has reported its cordoned log dirs
    """

    epoch: int
    incarnation: str
    fenced: bool
    shutting_down: bool
    log_dirs: frozenset[str]
    cordoned: frozenset[str] | None

    @property
    def active(self) -> bool:
        return not self.fenced and not self.shutting_down


@dataclass(kw_only=True)
class _State:
    """A partition, as the controller has it. Each change of the leader raises the leader epoch, also to itself."""

    replicas: list[int]
    isr: list[int]
    leader: int
    leader_changes: int
    directories: list[str]
    adding: list[int]
    removing: list[int]
    eligible: list[int]
    last_known: list[int]
    recovering: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> _State:
        return cls(
            replicas=data["replicas"],
            isr=data["isr"],
            leader=data["leader"],
            leader_changes=0,
            directories=data.get("directories") or [],
            adding=data.get("addingReplicas") or [],
            removing=data.get("removingReplicas") or [],
            eligible=data.get("eligibleLeaderReplicas") or [],
            last_known=data.get("lastKnownElr") or [],
            recovering=data.get("leaderRecoveryState", 0),
        )

    def changed_by(self, data: Mapping[str, Any]) -> _State:
        leader = data.get("leader", _LEADER_UNCHANGED)
        return _State(
            replicas=_or(data.get("replicas"), self.replicas),
            isr=_or(data.get("isr"), self.isr),
            leader=self.leader if leader == _LEADER_UNCHANGED else leader,
            leader_changes=self.leader_changes + (leader != _LEADER_UNCHANGED),
            directories=_or(data.get("directories"), self.directories),
            adding=_or(data.get("addingReplicas"), self.adding),
            removing=_or(data.get("removingReplicas"), self.removing),
            eligible=_or(data.get("eligibleLeaderReplicas"), self.eligible),
            last_known=_or(data.get("lastKnownElr"), self.last_known),
            recovering=self.recovering if data.get("leaderRecoveryState", -1) < 0 else data["leaderRecoveryState"],
        )

    def directory(self, broker: int) -> str | None:
        """The id of the log dir that a replica is assigned to; None before KIP-858 or if there is no such replica."""
        return dict(zip(self.replicas, self.directories, strict=False)).get(broker)


def _or(changed: _Value | None, before: _Value) -> _Value:
    return before if changed is None else changed


def _set(ids: Iterable[str] | None) -> frozenset[str] | None:
    return None if ids is None else frozenset(ids)


@dataclass(kw_only=True)
class _History:
    """The state after some records.

    :ivar known: the contradictions after the last batch
    :ivar brokers_before: those that the present batch has changed, as they were before it; so are
        ``partitions_before``
    """

    topics: dict[str, str] = field(default_factory=dict)
    brokers: dict[int, _Registration] = field(default_factory=dict)
    partitions: dict[_Partition, _State] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    producer_ids: int = 0
    known: set[str] = field(default_factory=set)
    brokers_before: dict[int, _Registration] = field(default_factory=dict)
    partitions_before: dict[_Partition, _State] = field(default_factory=dict)

    def begin_batch(self) -> None:
        """Take the present state for that before a batch."""
        self.brokers_before.clear()
        self.partitions_before.clear()

    def replay(self, record: MetadataRecord) -> Iterator[str]:
        """Apply a record, and yield a phrase for each rule that it breaks."""
        data = record.data
        match record.kind:
            case "FEATURE_LEVEL_RECORD":
                self.features[data["name"]] = data["featureLevel"]
            case "TOPIC_RECORD":
                if data["topicId"] in self.topics:
                    yield "a topic that there is already"
                self.topics[data["topicId"]] = data["name"]
            case "REMOVE_TOPIC_RECORD":
                if self.topics.pop(data["topicId"], None) is None:
                    yield "the end of a topic that there is not"
                self.partitions = {key: state for key, state in self.partitions.items() if key[0] != data["topicId"]}
            case "REGISTER_BROKER_RECORD":
                yield from self._register(data, record)
            case "UNREGISTER_BROKER_RECORD":
                if self.brokers.pop(data["brokerId"], None) is None:
                    yield "the end of a registration that there is not"
            case "FENCE_BROKER_RECORD" | "UNFENCE_BROKER_RECORD":
                yield from self._change_registration(
                    {
                        "brokerId": data["id"],
                        "brokerEpoch": data["epoch"],
                        "fenced": 1 if record.kind == "FENCE_BROKER_RECORD" else -1,
                    }
                )
            case "BROKER_REGISTRATION_CHANGE_RECORD":
                yield from self._change_registration(data)
            case "PARTITION_RECORD":
                yield from self._create(data)
            case "PARTITION_CHANGE_RECORD":
                yield from self._change_partition(data)
            case "PRODUCER_IDS_RECORD":
                yield from self._allocate(data)
            case _:
                pass

    def _register(self, data: Mapping[str, Any], record: MetadataRecord) -> Iterator[str]:
        id, before, incarnation = data["brokerId"], self.brokers.get(data["brokerId"]), data.get("incarnationId") or ""
        if before is not None and not record.in_snapshot:
            again = incarnation == before.incarnation and data["brokerEpoch"] == before.epoch
            if data["brokerEpoch"] <= before.epoch and not again:
                yield f"a registration of broker {id} whose epoch is not above the last one, {before.epoch}"
        log_dirs = frozenset(data.get("logDirs") or ())
        for other, registration in self.brokers.items():
            if other != id and (shared := registration.log_dirs & log_dirs):
                yield f"a registration of broker {id} with log dirs of broker {other}, {sorted(shared)}"
        self.brokers[id] = _Registration(
            epoch=data["brokerEpoch"],
            incarnation=incarnation,
            fenced=data["fenced"],
            shutting_down=data.get("inControlledShutdown", False),
            log_dirs=log_dirs,
            cordoned=_set(data.get("cordonedLogDirs")),
        )

    def _change_registration(self, data: Mapping[str, Any]) -> Iterator[str]:
        id = data["brokerId"]
        broker = self.brokers.get(id)
        if broker is None:
            yield f"a change of the registration of broker {id}, which is not registered"
            return
        if data["brokerEpoch"] != broker.epoch:
            yield f"a change of the registration of broker {id} with an epoch other than {broker.epoch}"
        fences, shuts_down = data.get("fenced") or 0, data.get("inControlledShutdown") or 0
        after = _Registration(
            epoch=broker.epoch,
            incarnation=broker.incarnation,
            fenced=broker.fenced if not fences else fences > 0,
            shutting_down=broker.shutting_down or shuts_down > 0,
            log_dirs=_or(_set(data.get("logDirs")), broker.log_dirs),
            cordoned=_or(_set(data.get("cordonedLogDirs")), broker.cordoned),
        )
        at_start = self.brokers_before.setdefault(id, broker)
        if after == broker == at_start and not fences > 0:
            yield f"a change of the registration of broker {id} that changes nothing"
        if back := after.log_dirs - broker.log_dirs:
            yield f"a change of the registration of broker {id} that brings log dirs back, {sorted(back)}"
        self.brokers[id] = after

    def _create(self, data: Mapping[str, Any]) -> Iterator[str]:
        key = (data["topicId"], data["partitionId"])
        if key[0] not in self.topics:
            yield "a partition of a topic that there is not"
        if key in self.partitions:
            yield f"a new partition {self._name(key)} that there is already"
        self.partitions[key] = state = _State.of(data)
        yield from self._malformed(key, state)
        for broker in state.isr:
            registration = self.brokers.get(broker)
            if registration is not None and not registration.active:
                yield f"a new partition {self._name(key)} with broker {broker} in the ISR, which {_why(registration)}"

    def _change_partition(self, data: Mapping[str, Any]) -> Iterator[str]:
        key = (data["topicId"], data["partitionId"])
        before = self.partitions.get(key)
        if before is None:
            yield "a change of a partition that there is not"
            return
        self.partitions[key] = after = before.changed_by(data)
        name = self._name(key)
        at_start = self.partitions_before.setdefault(key, before)
        if after == before == at_start:
            yield f"a change of {name} that changes nothing"
        yield from self._malformed(key, after)
        for broker in sorted(set(after.isr) - set(before.isr)):
            registration = self.brokers.get(broker)
            if registration is not None and not registration.active:
                yield f"a change of {name} that takes broker {broker} into the ISR, which {_why(registration)}"
        if set(before.replicas) - set(after.replicas) and after.leader_changes == before.leader_changes:
            yield f"a change of {name} that removes a replica and does not raise the leader epoch"
        if after.leader not in (before.leader, _NO_LEADER):
            registration = self.brokers.get(after.leader)
            if registration is not None and not registration.active:
                yield f"a change of {name} that elects broker {after.leader}, which {_why(registration)}"

    def _allocate(self, data: Mapping[str, Any]) -> Iterator[str]:
        broker, next_id = data["brokerId"], data["nextProducerId"]
        if next_id <= self.producer_ids:
            yield f"producer ids that a broker has already, {self.producer_ids} was next"
        registration = self.brokers.get(broker)
        if registration is not None and registration.epoch != data["brokerEpoch"]:
            yield f"producer ids for broker {broker} with an epoch other than {registration.epoch}"
        self.producer_ids = next_id

    def _malformed(self, key: _Partition, state: _State) -> Iterator[str]:
        name = self._name(key)
        for what, ids in (
            ("in the ISR", state.isr),
            ("eligible to lead", state.eligible),
            ("being added", state.adding),
            ("being removed", state.removing),
        ):
            if set(ids) - set(state.replicas):
                yield f"{name} with a broker {what} that has no replica"
        if set(state.isr) & set(state.eligible):
            yield f"{name} with a broker both in the ISR and out of it, but eligible to lead"
        if state.leader != _NO_LEADER and state.leader not in state.isr:
            yield f"{name} with a leader that is not in the ISR"
        if not state.isr and not self.features.get("eligible.leader.replicas.version"):
            yield f"{name} with an empty ISR"
        if state.directories and len(state.directories) != len(state.replicas):
            yield f"{name} with {len(state.directories)} log dirs for {len(state.replicas)} replicas"

    def new_contradictions(self) -> Iterator[str]:
        """Yield a phrase for each partition whose state contradicts the brokers' since this batch."""
        found = {phrase for key in self.partitions for phrase in self._contradictions(key)}
        yield from sorted(found - self.known)
        self.known = found

    def _contradictions(self, key: _Partition) -> Iterator[str]:
        state, name = self.partitions[key], self._name(key)
        offline = {broker: why for broker in state.isr if (why := self._offline(broker, state))}
        after = "the last record of a batch after which"
        for broker, why in offline.items():
            if broker == state.leader:
                yield f"{after} broker {broker} leads {name}, and {why}"
            elif len(state.isr) > 1:
                yield f"{after} broker {broker} is in the ISR of {name}, and {why}"
        if state.leader == _NO_LEADER:
            for broker in state.isr or state.eligible:
                registration = self.brokers.get(broker)
                if registration is not None and registration.active and not self._offline(broker, state):
                    yield f"{after} {name} has no leader, and broker {broker} could lead"

    def _offline(self, broker: int, state: _State) -> str:
        """Why the replica on a broker is offline, as far as the controller knows; "" if it is not."""
        registration = self.brokers.get(broker)
        if registration is None:
            return ""
        if registration.fenced:
            return "it is fenced"
        directory = state.directory(broker)
        if directory is None or (directory.startswith(_RESERVED) and directory != _LOST):
            return ""
        return "" if directory in registration.log_dirs else f"its log dir {directory} is not online"

    def _name(self, key: _Partition) -> str:
        return f"{self.topics.get(key[0], key[0])}-{key[1]}"


def _why(registration: _Registration) -> str:
    return "is fenced" if registration.fenced else "is shutting down"
