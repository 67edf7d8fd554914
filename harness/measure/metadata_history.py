"""Finds records of a metadata log that break a rule of Kafka's controller.

A test reads the state of a cluster where it expects a change. What the controller wrote between two looks, or about
topics that no test asks for, only its log shows. Each record must change something. Each batch must leave a state that
the rules of ``ReplicationControlManager`` and ``ClusterControlManager`` allow: a batch is written as a whole.

Some things look irregular and are not:

* The controller fences a fenced broker again: after a failover, it does not know when that broker's session ended.
* A process that registers again, as it had no answer, keeps its epoch.
* A broker may assign a replica to a log dir that has just failed: the same batch then elects another leader.
* A batch may have a change twice: if one heartbeat reports a failed log dir and asks for a shutdown, each removes the
  broker from the ISR.
* The metadata that comes from ZooKeeper is as it was there. The controller repairs it after that transaction.
* A cancelled reassignment may leave the first replica as the ISR (``PartitionReassignmentRevert``).
* A replica that was removed may stay eligible to lead for a time (``PartitionChangeBuilder.maybePopulateTargetElr``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from harness.errors import BuildLacks
from harness.kafka.metadata_records import MetadataRecord
from harness.measure.metadata_state import (
    NO_LEADER,
    MetadataState,
    PartitionKey,
    PartitionState,
    Registration,
    change_of_broker,
    partition_of,
)

_PRODUCER_IDS = 1000
"""The producer ids that a broker gets at a time (``ProducerIdsBlock``)."""


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

    :param records: from offset 0, or first those of a snapshot
    :raises BuildLacks: a record has other fields
    """
    history = _History()
    found = list[Irregular]()
    try:
        for (in_snapshot, _), batch in groupby(records, key=lambda record: (record.in_snapshot, record.batch)):
            if in_snapshot:
                history.load(batch)
            else:
                found += history.replay(batch)
    except KeyError as error:
        raise BuildLacks(f"a record of the metadata log has no field {error}") from error
    return [each for each in found if each.offset >= since]


@dataclass(kw_only=True)
class _History:
    """The records so far.

    :ivar known: the contradictions of each partition after the last batch
    :ivar of_partition: the last record of the present batch about a partition, and those about a broker
    :ivar before: the partitions that the present batch has changed, as they were before it
    :ivar seen: the kinds and the fields of the batch's records so far
    """

    state: MetadataState = field(default_factory=MetadataState)
    known: dict[PartitionKey, set[str]] = field(default_factory=dict)
    of_partition: dict[PartitionKey, MetadataRecord] = field(default_factory=dict)
    of_broker: dict[int, MetadataRecord] = field(default_factory=dict)
    before: dict[PartitionKey, PartitionState] = field(default_factory=dict)
    seen: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def load(self, snapshot: Iterable[MetadataRecord]) -> None:
        """Take over the state that a snapshot has, right or wrong."""
        for record in snapshot:
            self.state.apply(record)
        self._note_all()

    def replay(self, batch: Iterable[MetadataRecord]) -> Iterator[Irregular]:
        """Apply a batch, and yield what is irregular in it or after it."""
        for notes in (self.of_partition, self.of_broker, self.before, self.seen):
            notes.clear()
        migrating = self.state.migrating
        for record in batch:
            yield from (_irregular(record, phrase) for phrase in self._broken_by(record))
            self._note(record)
            self.state.apply(record)
            migrating = migrating or self.state.migrating
        if migrating:
            self._note_all()
            return
        for key in self._touched():
            phrases = set(self._contradictions(key))
            for phrase in sorted(phrases - self.known.get(key, set())):
                yield _irregular(self._cause(key), f"what leaves {phrase}")
            self.known[key] = phrases

    def _note(self, record: MetadataRecord) -> None:
        """Keep what the rules for batches need to know of a record, before it is applied."""
        self.seen.append((record.kind, record.data))
        if record.kind in ("PARTITION_RECORD", "PARTITION_CHANGE_RECORD"):
            key = partition_of(record.data)
            self.of_partition[key] = record
            if key in self.state.partitions:
                self.before.setdefault(key, self.state.partitions[key])
        elif (broker := _broker_of(record)) is not None:
            self.of_broker[broker] = record

    def _note_all(self) -> None:
        self.known = {key: set(self._contradictions(key)) for key in self.state.partitions}

    def _touched(self) -> Iterable[PartitionKey]:
        """The partitions that a batch changed, or whose brokers it changed."""
        if not self.of_broker:
            return [key for key in self.of_partition if key in self.state.partitions]
        return [
            key
            for key, state in self.state.partitions.items()
            if key in self.of_partition or not self.of_broker.keys().isdisjoint(state.replicas)
        ]

    def _cause(self, key: PartitionKey) -> MetadataRecord:
        """The record of a batch to name for a partition that it touched: about it, else about one of its brokers."""
        if key in self.of_partition:
            return self.of_partition[key]
        return [record for id, record in self.of_broker.items() if id in self.state.partitions[key].replicas][-1]

    # --- rules for a record, before it is applied ---------------------------------------------------------------------

    def _broken_by(self, record: MetadataRecord) -> Iterator[str]:
        data, state = record.data, self.state
        match record.kind:
            case "TOPIC_RECORD":
                if data["topicId"] in state.topics or data["name"] in state.topics.values():
                    yield "a topic that there is already"
            case "REMOVE_TOPIC_RECORD":
                if data["topicId"] not in state.topics:
                    yield "the end of a topic that there is not"
            case "REGISTER_BROKER_RECORD":
                yield from self._registered(data)
            case "UNREGISTER_BROKER_RECORD":
                if data["brokerId"] not in state.brokers:
                    yield "the end of a registration that there is not"
            case "PARTITION_RECORD":
                yield from self._created(data)
            case "PARTITION_CHANGE_RECORD":
                yield from self._partition_changed(record)
            case "PRODUCER_IDS_RECORD":
                yield from self._allocated(data)
            case _ if (change := change_of_broker(record)) is not None:
                yield from self._registration_changed(change, record)

    def _registered(self, data: Mapping[str, Any]) -> Iterator[str]:
        id, before, after = data["brokerId"], self.state.brokers.get(data["brokerId"]), Registration.of(data)
        if before is not None and after.epoch <= before.epoch:
            if (after.epoch, after.incarnation) != (before.epoch, before.incarnation):
                yield f"a registration of broker {id} whose epoch is not above the last one, {before.epoch}"
        elif not after.fenced and not data.get("isMigratingZkBroker"):
            yield f"a registration of a new process of broker {id} that is not fenced"
        for other, registration in self.state.brokers.items():
            if other != id and (shared := registration.log_dirs & after.log_dirs):
                yield f"a registration of broker {id} with log dirs of broker {other}, {sorted(shared)}"

    def _registration_changed(self, change: Mapping[str, Any], record: MetadataRecord) -> Iterator[str]:
        id = change["brokerId"]
        before = self.state.brokers.get(id)
        if before is None:
            yield f"a change of the registration of broker {id}, which is not registered"
            return
        if change["brokerEpoch"] != before.epoch:
            yield f"a change of the registration of broker {id} with an epoch other than {before.epoch}"
        after = before.changed_by(change)
        if after == before and not (change.get("fenced") or 0) > 0 and not self._repeats(record):
            yield f"a change of the registration of broker {id} that changes nothing"
        if back := after.log_dirs - before.log_dirs:
            yield f"a change of the registration of broker {id} that brings log dirs back, {sorted(back)}"

    def _created(self, data: Mapping[str, Any]) -> Iterator[str]:
        key, new = partition_of(data), PartitionState.of(data)
        name = self.state.name(key)
        if key[0] not in self.state.topics:
            yield "a partition of a topic that there is not"
        if key in self.state.partitions:
            yield f"a new partition {name} that there is already"
        yield from self._malformed(name, new)
        if self.state.migrating:
            return
        if data.get("leaderEpoch") or data.get("partitionEpoch"):
            yield f"a new partition {name} whose epochs do not begin with 0"
        for broker in new.replicas:
            registration = self.state.brokers.get(broker)
            if registration is None:
                yield f"a new partition {name} with a replica on broker {broker}, which is not registered"
            elif broker in new.isr and registration.inactive:
                yield f"a new partition {name} with broker {broker} in the ISR, which {registration.inactive}"
            elif broker not in new.isr and not registration.inactive:
                yield f"a new partition {name} without broker {broker} in the ISR"
        if [new.leader] != new.isr[:1]:
            yield f"a new partition {name} whose leader is not the first of the ISR"

    def _partition_changed(self, record: MetadataRecord) -> Iterator[str]:
        data, key = record.data, partition_of(record.data)
        before = self.state.partitions.get(key)
        if before is None:
            yield "a change of a partition that there is not"
            return
        after, name = before.changed_by(data), self.state.name(key)
        if after == before and not self._repeats(record):
            yield f"a change of {name} that changes nothing"
        yield from self._malformed(name, after, before)
        if data.get("isr") == [] and not self.state.features.get("eligible.leader.replicas.version"):
            yield f"a change of {name} that empties the ISR"
        reverted = before.adding and not after.adding and after.isr == after.replicas[:1]
        for broker in sorted(set(after.isr) - set(before.isr)):
            if (why := self._inactive(broker)) and not reverted:
                yield f"a change of {name} that takes broker {broker} into the ISR, which {why}"
        if after.leader not in (before.leader, NO_LEADER):
            if why := self._inactive(after.leader):
                yield f"a change of {name} that elects broker {after.leader}, which {why}"
            clean = {*before.isr, *before.eligible}
            ended = after.leader in before.adding and not after.adding
            joined = ended and set(before.isr) & set(after.replicas) < set(after.isr)  # which ends the reassignment
            if after.leader not in clean and not reverted and not joined and not after.recovering:
                yield f"a change of {name} that elects broker {after.leader} from outside the ISR, and does not say so"
        if after.directories and after.replicas == before.replicas and before.directories:
            moved = [b for b in after.replicas if after.directory(b) != before.directory(b)]
            if len(moved) > 1:
                yield f"a change of {name} that assigns replicas of several brokers, {moved}, to other log dirs"
        yield from self._removed(name, before, after)

    def _removed(self, name: str, before: PartitionState, after: PartitionState) -> Iterator[str]:
        """Rules for a change that takes replicas away."""
        gone = set(before.replicas) - set(after.replicas)
        if not gone:
            return
        if after.leader_changes == before.leader_changes:
            yield f"a change of {name} that removes a replica and does not raise the leader epoch"
        not_added = gone - set(before.adding)
        if not_added and not set(after.replicas) <= set(after.isr):
            yield f"a change of {name} that removes replicas, {sorted(not_added)}, before all others are in the ISR"
        if not_added and (before.adding or before.removing) and not not_added <= set(before.removing):
            yield f"a change of {name} that removes replicas, {sorted(not_added)}, that were to stay"

    def _allocated(self, data: Mapping[str, Any]) -> Iterator[str]:
        broker, next_id, first = data["brokerId"], data["nextProducerId"], self.state.producer_ids
        registration = self.state.brokers.get(broker)
        if self.state.migrating:
            return
        if next_id != first + _PRODUCER_IDS:
            yield f"producer ids up to {next_id} where {_PRODUCER_IDS} from {first} on are next"
        if registration is not None and registration.epoch != data["brokerEpoch"]:
            yield f"producer ids for broker {broker} with an epoch other than {registration.epoch}"

    def _malformed(self, name: str, state: PartitionState, before: PartitionState | None = None) -> Iterator[str]:
        lists = {"in the ISR": state.isr, "being added": state.adding, "being removed": state.removing}
        for what, ids in lists.items():
            if set(ids) - set(state.replicas):
                yield f"{name} with a broker {what} that has no replica"
        if len(set(state.replicas)) < len(state.replicas):
            yield f"{name} with two replicas on a broker"
        if set(state.isr) & set(state.eligible):
            yield f"{name} with a broker both in the ISR and out of it, but eligible to lead"
        if set(state.adding) & set(state.removing):
            yield f"{name} with a replica that is both added and removed"
        if state.leader != NO_LEADER and state.leader not in state.isr:
            yield f"{name} with a leader that is not in the ISR"
        if state.recovering and len(state.isr) > 1 and (before is None or before.isr != state.isr):
            yield f"{name} with others in the ISR before its leader has recovered"
        if state.directories and len(state.directories) != len(state.replicas):
            yield f"{name} with {len(state.directories)} log dirs for {len(state.replicas)} replicas"

    def _repeats(self, record: MetadataRecord) -> bool:
        """Whether the batch has this change already."""
        return (record.kind, record.data) in self.seen

    def _inactive(self, broker: int) -> str:
        registration = self.state.brokers.get(broker)
        return "is not registered" if registration is None else registration.inactive

    # --- rules for the state after a batch ----------------------------------------------------------------------------

    def _contradictions(self, key: PartitionKey) -> Iterator[str]:
        """Yield a phrase for each rule that a partition's state breaks, together with the brokers'."""
        state, name = self.state.partitions[key], self.state.name(key)
        for broker in state.isr:
            if why := self.state.offline(broker, state):
                if broker == state.leader:
                    yield f"broker {broker} as leader of {name}, though {why}"
                elif len(state.isr) > 1:
                    yield f"broker {broker} in the ISR of {name}, though {why}"
        if state.leader == NO_LEADER:
            for broker in state.isr or state.eligible:
                if broker in state.replicas and not self._inactive(broker) and not self.state.offline(broker, state):
                    yield f"{name} without a leader, though broker {broker} could lead"
        for broker in state.replicas:
            directory = state.directory(broker)
            others = [id for id, each in self.state.brokers.items() if id != broker and directory in each.log_dirs]
            if others:
                yield f"the replica of {name} on broker {broker} in a log dir of broker {others[0]}"
        yield from self._needless(key, state, name)

    def _needless(self, key: PartitionKey, state: PartitionState, name: str) -> Iterator[str]:
        """An election though the leader could go on. Only the preferred leader may replace it then."""
        before = self.before.get(key)
        if before is None or before.leader in (NO_LEADER, state.leader) or state.leader == state.replicas[0]:
            return
        could = before.leader in state.isr and not self._inactive(before.leader)
        if could and not self.state.offline(before.leader, state):
            yield f"broker {state.leader} as leader of {name}, though broker {before.leader} led and could go on"


def _irregular(record: MetadataRecord, what: str) -> Irregular:
    return Irregular(offset=record.offset, what=what, record=str(record))


def _broker_of(record: MetadataRecord) -> int | None:
    """The broker whose registration a record begins, changes or ends."""
    if record.kind in ("REGISTER_BROKER_RECORD", "UNREGISTER_BROKER_RECORD"):
        return int(record.data["brokerId"])
    change = change_of_broker(record)
    return None if change is None else int(change["brokerId"])
