"""Kafka's admin protocol: one request, one typed answer, no waiting and no retry.

Each :class:`Admin` asks one broker (:mod:`harness.kafka.connection`), so that two brokers' answers can be compared.
kafka-python's request and response classes are seen only here, in :mod:`harness.kafka.connection`, and for share groups
in :mod:`harness.kafka.share_group` and :mod:`harness.kafka.request_schemas`.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import kafka.errors as kafka_errors
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreateAclsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record import MemoryRecordsBuilder

from harness.errors import HarnessError
from harness.kafka.connection import Connection
from harness.kafka.metadata import (
    ClusterState,
    EligibleReplicas,
    LogDirState,
    PartitionState,
    ProducerState,
    QuorumReplica,
    QuorumState,
    Reassignment,
    ReplicaInDir,
)

_EARLIEST, _LATEST, _LATEST_TIERED = -2, -1, -5
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1  # IsolationLevel
_TOPIC, _BROKER, _LOGGERS = 2, 4, 8  # ConfigResource.Type
_SET, _DELETE = 0, 1  # AlterConfigOp.OpType
_PREFERRED = 0  # ElectionType
_ANY, _ALLOW, _LITERAL = 1, 3, 3  # AclPermissionType and PatternType
Resource = Literal["topic", "group", "cluster", "transactional_id"]
_RESOURCES: Mapping[Resource, int] = {"topic": 2, "group": 3, "cluster": 4, "transactional_id": 5}  # ResourceType
Operation = Literal["READ", "WRITE", "ALTER", "DESCRIBE", "ALTER_CONFIGS"]
_OPERATIONS: Mapping[Operation, int] = {  # AclOperation
    "READ": 3,
    "WRITE": 4,
    "ALTER": 7,
    "DESCRIBE": 8,
    "ALTER_CONFIGS": 11,
}
_OF_TOPIC, _OF_BROKER, _OF_ALL_BROKERS = 1, 2, 3  # ConfigSource of DescribeConfigsResponse
_BEGINS_NONE = 10  # a version of Produce that begins no transaction, and knows no TRANSACTION_ABORTABLE (KIP-890)
_BY_NAME = 7  # the last version of OffsetCommit and OffsetFetch for one group, that names topics, in every build
_BY_REPLICA_ID = 14  # the last version of Fetch in which a follower names no broker epoch
# Errors that have other names in kafka-python.
_MISNAMED = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    39: "INVALID_REPLICA_ASSIGNMENT",
}


class Refused(HarnessError):
    """A broker answered with an error.

    :ivar error: Kafka's name of the error, such as NOT_CONTROLLER
    :ivar message: the broker's text, if it sent one
    """

    def __init__(self, what: str, error: str, message: str | None = None) -> None:
        super().__init__(f"{what}: {error}{f' ({message})' if message else ''}")
        self.error = error
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Producer:
    """An idempotent producer, by the id and epoch that a broker gave it."""

    id: int
    epoch: int


UNNAMED = Producer(id=-1, epoch=-1)
"""A producer that is not idempotent."""


@dataclass(frozen=True, kw_only=True)
class DynamicConfigs:
    """A broker's dynamic configs (KIP-226), its own and those of all brokers; they override its properties file."""

    own: Mapping[str, str | None]
    of_all: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class NewTopic:
    """A topic to be created.

    :ivar assignment: the brokers of each partition; if empty, Kafka places ``partitions`` and ``replicas``
    """

    name: str
    partitions: int = 1
    replicas: int = 3
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Iterable[int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Acl:
    """What a user may do, from any host.

    :ivar name: of the resource; ``*`` for all of its type, ``kafka-cluster`` for the cluster
    """

    user: str
    resource: Resource
    name: str
    operation: Operation

    def __str__(self) -> str:
        return f"{self.user} may {self.operation} {self.resource} {self.name}"


def error_name(code: int) -> str | None:
    """Kafka's name of an error code, such as KAFKA_STORAGE_ERROR; None for 0."""
    if code == 0:
        return None
    known = kafka_errors.for_code(code)
    return _MISNAMED.get(code) or str(getattr(known, "message", None) or known.__name__)


class Admin:
    """The admin protocol of one broker.

    Every method raises :class:`Refused` where the broker answers with an error, and what
    :meth:`harness.kafka.connection.Connection.ask` raises.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def describe_cluster(self, topics: Iterable[str] | None = None) -> ClusterState:
        """Brokers, controller and partitions as this broker has them; all topics unless named."""
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        answer = self._connection.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        return ClusterState(
            cluster_id=answer.cluster_id,
            controller=_if_any(answer.controller_id),
            brokers=tuple(sorted(broker.node_id for broker in answer.brokers)),
            racks={broker.node_id: broker.rack for broker in answer.brokers},
            partitions=tuple(
                sorted(
                    PartitionState(
                        topic=topic.name,
                        partition=partition.partition_index,
                        leader=_if_any(partition.leader_id),
                        leader_epoch=partition.leader_epoch,
                        replicas=tuple(partition.replica_nodes),
                        isr=tuple(partition.isr_nodes),
                        offline_replicas=tuple(sorted(partition.offline_replicas)),
                        topic_id=str(topic.topic_id),
                    )
                    for topic in answer.topics
                    for partition in topic.partitions
                )
            ),
        )

    def describe_cluster_v0(self) -> tuple[list[int], list[str]]:
        """The ids of the brokers and the names of the topics, from the oldest Metadata response, which has no rack."""
        answer = self._connection.ask(MetadataRequest(topics=[], max_version=0))  # v0: an empty list is all topics
        return sorted(broker.node_id for broker in answer.brokers), sorted(topic.name for topic in answer.topics)

    def want_topic(self, name: str) -> None:
        """Request a topic's metadata as clients do; if the broker auto-creates topics, it creates this one."""
        topic = MetadataRequest.MetadataRequestTopic(name=name)
        self._connection.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=True))

    def describe_log_dirs(self, *partitions: tuple[str, int]) -> tuple[LogDirState, ...]:
        """This broker's log dirs and the replicas in them (KIP-113, DescribeLogDirs).

        :param partitions: topic and partition; only these replicas, if any are named
        """
        wanted = DescribeLogDirsRequest.DescribableLogDirTopic
        topics = [wanted(topic=topic, partitions=[index]) for topic, index in partitions]
        answer = self._connection.ask(DescribeLogDirsRequest(topics=topics or None))
        check_answer("the log dirs", answer)
        return tuple(
            LogDirState(
                path=result.log_dir,
                error=error_name(result.error_code),
                is_cordoned=result.is_cordoned,
                total_bytes=result.total_bytes,
                usable_bytes=result.usable_bytes,
                replicas=tuple(
                    ReplicaInDir(
                        topic=topic.name,
                        partition=partition.partition_index,
                        size=partition.partition_size,
                        offset_lag=partition.offset_lag,
                        is_future=partition.is_future_key,
                    )
                    for topic in result.topics
                    for partition in topic.partitions
                ),
            )
            for result in answer.results
        )

    def describe_producers(self, topic: str, partition: int) -> tuple[ProducerState, ...]:
        """The producers that a partition's log knows, by their ids (KIP-664). Ask its leader."""
        wanted = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
        got = self._connection.ask(DescribeProducersRequest(topics=[wanted])).topics[0].partitions[0]
        check_answer(f"the producers of {topic}-{partition}", got)
        return tuple(
            sorted(
                ProducerState(
                    producer=each.producer_id,
                    epoch=each.producer_epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp=each.last_timestamp,
                    coordinator_epoch=each.coordinator_epoch,
                    open_since=_if_any(each.current_txn_start_offset),
                )
                for each in got.active_producers
            )
        )

    def describe_eligible(self, topic: str, partition: int) -> EligibleReplicas:
        """A partition's leader, ISR and eligible leader replicas (KIP-966, DescribeTopicPartitions)."""
        wanted = DescribeTopicPartitionsRequest.TopicRequest(name=topic)
        request = DescribeTopicPartitionsRequest(topics=[wanted], response_partition_limit=2000, cursor=None)
        [got] = self._connection.ask(request).topics
        check_answer(f"the partitions of {topic}", got)
        found = next(each for each in got.partitions if each.partition_index == partition)
        return EligibleReplicas(
            leader=_if_any(found.leader_id),
            isr=frozenset(found.isr_nodes),
            eligible=frozenset(found.eligible_leader_replicas or ()),
        )

    def describe_quorum_leader(self) -> int | None:
        """The active KRaft controller's node id; None while there is none."""
        return _if_any(self._quorum().leader_id)

    def describe_quorum(self) -> QuorumState:
        """KRaft's quorum; directory ids need a build with KIP-853."""
        quorum = self._quorum()
        check_answer("the quorum's members", quorum)
        voters, observers = (
            frozenset(
                QuorumReplica(id=each.replica_id, directory_id=_kafka_uuid(each.replica_directory_id)) for each in of
            )
            for of in (quorum.current_voters, quorum.observers)
        )
        return QuorumState(leader=_if_any(quorum.leader_id), voters=voters, observers=observers)

    def _quorum(self) -> ApiMessage:
        wanted = DescribeQuorumRequest.TopicData
        topic = wanted(topic_name="__cluster_metadata", partitions=[wanted.PartitionData(partition_index=0)])
        answer = self._connection.ask(DescribeQuorumRequest(topics=[topic]))
        check_answer("the quorum", answer)
        return answer.topics[0].partitions[0]

    def create_topics(self, topics: Iterable[NewTopic]) -> None:
        """Create topics, in one request; in ZooKeeper mode ask the controller's broker.

        :raises Refused: for the first topic that was refused; others may have been created
        """
        topic = CreateTopicsRequest.CreatableTopic
        wanted = [
            topic(
                name=new.name,
                num_partitions=-1 if new.assignment else new.partitions,
                replication_factor=-1 if new.assignment else new.replicas,
                assignments=[
                    topic.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                    for index, brokers in new.assignment.items()
                ],
                configs=[topic.CreatableTopicConfig(name=key, value=value) for key, value in new.configs.items()],
            )
            for new in topics
        ]
        request = CreateTopicsRequest(topics=wanted, timeout_ms=20_000, validate_only=False)
        for got in self._connection.ask(request, timeout_s=30.0).topics:
            check_answer(f"create topic {got.name}", got)

    def create_partitions(self, topic: str, count: int, assignment: Iterable[Iterable[int]] | None = None) -> None:
        """Give a topic more partitions, ``count`` in all (KIP-195).

        :param assignment: the brokers of each new one; None: Kafka chooses
        """
        wanted = CreatePartitionsRequest.CreatePartitionsTopic
        placed = assignment and [wanted.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignment]
        topics = [wanted(name=topic, count=count, assignments=placed)]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=10_000, validate_only=False)
        check_answer(f"partitions of {topic}", *self._connection.ask(request, timeout_s=15.0).results)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, in one request.

        :raises Refused: for the first topic that was refused; others may have been deleted
        """
        topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
        request = DeleteTopicsRequest(topics=topics, timeout_ms=20_000)
        for got in self._connection.ask(request, timeout_s=30.0).responses:
            check_answer(f"delete topic {got.name}", got)

    def end_offset(self, topic: str, partition: int) -> int:
        """A partition's high watermark. Ask its leader."""
        return self._offset(topic, partition, _LATEST)

    def start_offset(self, topic: str, partition: int) -> int:
        """A partition's log start offset. Ask its leader."""
        return self._offset(topic, partition, _EARLIEST)

    def tiered_offset(self, topic: str, partition: int) -> int | None:
        """The last offset of a partition in remote storage (KIP-405, KIP-1005); None: there is none. Ask its leader."""
        return _if_any(self._offset(topic, partition, _LATEST_TIERED))

    def last_stable_offset(self, topic: str, partition: int) -> int:
        """The offset before which every transaction of a partition has ended. Ask its leader."""
        return self._offset(topic, partition, _LATEST, _READ_COMMITTED)

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The offset of a partition's first record that is not older than this time; None: all are. Ask its leader."""
        return _if_any(self._offset(topic, partition, timestamp_ms))

    def _offset(self, topic: str, partition: int, timestamp: int, isolation: int = _READ_UNCOMMITTED) -> int:
        wanted = ListOffsetsRequest.ListOffsetsTopic
        partitions = [wanted.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
        topics = [wanted(name=topic, partitions=partitions)]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
        got = self._connection.ask(request).topics[0].partitions[0]
        check_answer(f"offset of {topic}-{partition}", got)
        return int(got.offset)

    def init_producer_id(self, transactional_id: str | None = None) -> Producer:
        """The id and epoch of a new idempotent producer (KIP-98).

        :param transactional_id: that of a transactional producer; ask the coordinator of its transactions
        """
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        got = self._connection.ask(request)
        check_answer("get a producer id", got)
        return Producer(id=int(got.producer_id), epoch=int(got.producer_epoch))

    def produce(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        acks: int = 1,
        timeout_s: float = 5.0,
        producer: Producer = UNNAMED,
        sequence: int = -1,
        transactional_id: str | None = None,
        key: bytes | None = None,
        damaged: bool = False,
    ) -> int:
        """Write one record, as a client that takes this broker for the leader; returns its offset.

        :param acks: 1, or -1 for all
        :param timeout_s: seconds that the broker may wait for its followers
        :param sequence: the record's sequence number, if ``producer`` is idempotent
        :param transactional_id: that of ``producer``: the record is in a transaction. The request does not begin one
        :param key: of the record; compacted topics require one
        :param damaged: flip a bit of the value after the checksum was computed
        """
        records = _batch(value, producer, sequence, key=key, transactional=transactional_id is not None)
        if damaged:
            records[-2] ^= 1  # behind the value is only the number of headers, which is one byte
        return self._produce(topic, {partition: bytes(records)}, acks, timeout_s, transactional_id)[partition]

    def produce_together(
        self, topic: str, values: Mapping[int, bytes], *, acks: int = 1, timeout_s: float = 5.0
    ) -> dict[int, int]:
        """Write one record to each of these partitions, by one request; returns their offsets.

        :param values: by partition
        :raises Refused: for the first partition that was refused; others may have the record
        """
        records = {partition: bytes(_batch(value)) for partition, value in values.items()}
        return self._produce(topic, records, acks, timeout_s)

    def _produce(
        self,
        topic: str,
        records: Mapping[int, bytes],
        acks: int,
        timeout_s: float,
        transactional_id: str | None = None,
    ) -> dict[int, int]:
        wanted = ProduceRequest.TopicProduceData
        data = [wanted.PartitionProduceData(index=index, records=batch) for index, batch in records.items()]
        topics = [wanted(name=topic, topic_id=self._topic_id(topic), partition_data=data)]
        timeout_ms = round(timeout_s * 1000)
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=topics,
            max_version=None if transactional_id is None else _BEGINS_NONE,
        )
        answers = self._connection.ask(request, timeout_s=timeout_s + 5.0).responses[0].partition_responses
        for got in answers:
            check_answer(f"write a record to {topic}-{got.index}", got)
        return {int(got.index): int(got.base_offset) for got in answers}

    def fetch(self, topic: str, partition: int, offset: int, *, leader_epoch: int = -1) -> bytes:
        """The record batches from an offset on, for a consumer that takes this broker for the leader.

        :param leader_epoch: the leader epoch that the consumer knows (KIP-320); -1: none
        """
        return bytes(self._fetch(topic, partition, offset, leader_epoch=leader_epoch).records or b"")

    def fetch_as_replica(self, topic: str, partition: int, offset: int, *, replica: int) -> bytes:
        """The record batches from an offset on, as this broker's follower fetches them; ask the leader.

        :param replica: the follower's id; the leader notes that it has all records before the offset
        """
        return bytes(self._fetch(topic, partition, offset, replica=replica).records or b"")

    def await_records(self, topic: str, partition: int, offset: int, *, wait_s: float) -> bytes:
        """The record batches from an offset on, for a consumer that waits for them; empty after ``wait_s``."""
        return bytes(self._fetch(topic, partition, offset, wait_s=wait_s).records or b"")

    def replica_to_read(self, topic: str, partition: int, offset: int, *, rack: str) -> int | None:
        """The broker to which the leader sends a consumer in this rack (KIP-392); None: it should read from the leader.

        :param offset: that of the consumer
        """
        return _if_any(int(self._fetch(topic, partition, offset, rack=rack).preferred_read_replica))

    def _fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        leader_epoch: int = -1,
        rack: str = "",
        replica: int = -1,
        wait_s: float = 0.0,
    ) -> FetchResponse.FetchableTopicResponse.PartitionData:
        wanted = FetchRequest.FetchTopic
        data = wanted.FetchPartition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=1 << 16,
        )
        topics = [wanted(topic=topic, topic_id=self._topic_id(topic), partitions=[data])]
        request = FetchRequest(
            replica_id=replica,
            max_wait_ms=round(wait_s * 1000),
            min_bytes=1 if wait_s else 0,
            max_bytes=1 << 16,
            topics=topics,
            forgotten_topics_data=[],
            rack_id=rack,
            max_version=None if replica == -1 else _BY_REPLICA_ID,
        )
        answer = self._connection.ask(request, timeout_s=wait_s + 5.0)
        check_answer(f"fetch {topic}-{partition} from {offset}", answer)
        got = answer.responses[0].partitions[0]
        check_answer(f"fetch {topic}-{partition} from {offset}", got)
        return got

    def end_of_epoch(self, topic: str, partition: int, epoch: int, *, leader_epoch: int = -1) -> tuple[int, int]:
        """The latest leader epoch of the log that is not after ``epoch``, and its end offset (KIP-320); ask the leader.

        :param leader_epoch: the leader epoch that the client knows; -1: none
        """
        wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        data = wanted.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[wanted(topic=topic, partitions=[data])])
        got = self._connection.ask(request).topics[0].partitions[0]
        check_answer(f"end of leader epoch {epoch} of {topic}-{partition}", got)
        return int(got.leader_epoch), int(got.end_offset)

    def commit_offset(
        self, group: str, topic: str, partition: int, offset: int, *, member: str = "", generation: int = -1
    ) -> None:
        """Commit the offset of a consumer group. Ask the group's coordinator.

        :param member: the id of one of its members; a group without members needs none
        :param generation: the generation of the group that the member knows
        """
        wanted = OffsetCommitRequest.OffsetCommitRequestTopic
        data = wanted.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topics = [wanted(name=topic, partitions=[data])]
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=topics,
            max_version=_BY_NAME,
        )
        got = self._connection.ask(request, timeout_s=10.0).topics[0].partitions[0]
        check_answer(f"commit {offset} for {topic}-{partition} of the group {group}", got)

    def committed_offset(self, group: str, topic: str, partition: int, *, stable: bool = False) -> int | None:
        """A consumer group's committed offset; None if it has none. Ask the group's coordinator.

        :param stable: UNSTABLE_OFFSET_COMMIT while an open transaction has an offset of this partition (KIP-447)
        """
        wanted = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])
        request = OffsetFetchRequest(group_id=group, topics=[wanted], require_stable=stable, max_version=_BY_NAME)
        answer = self._connection.ask(request)
        what = f"the offset of {topic}-{partition} of the group {group}"
        check_answer(what, answer)
        got = answer.topics[0].partitions[0]
        check_answer(what, got)
        return _if_any(int(got.committed_offset))

    def _topic_id(self, topic: str) -> uuid.UUID:
        """The topic's id, by which newer versions of requests name it."""
        return uuid.UUID(self.describe_cluster(topics=[topic]).partitions[0].topic_id)

    def delete_records(self, topic: str, partition: int, before: int, *, timeout_s: float = 10.0) -> int:
        """Delete a partition's records below an offset (KIP-107); ask its leader. Returns the new log start offset.

        :param timeout_s: seconds that the broker may wait for its followers
        """
        wanted = DeleteRecordsRequest.DeleteRecordsTopic
        partitions = [wanted.DeleteRecordsPartition(partition_index=partition, offset=before)]
        topics = [wanted(name=topic, partitions=partitions)]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=round(timeout_s * 1000))
        got = self._connection.ask(request, timeout_s=timeout_s + 5.0).topics[0].partitions[0]
        check_answer(f"delete the records of {topic}-{partition} below {before}", got)
        return int(got.low_watermark)

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set some of a topic's configs (KIP-339); ask any broker."""
        self._set_configs(_TOPIC, topic, configs)

    def set_broker_configs(self, broker: int | None, configs: Mapping[str, str | None]) -> None:
        """Set some of a broker's dynamic configs (KIP-226), or delete them (None).

        In KRaft mode ask the broker itself, or a controller (KIP-919), which validates less.

        :param broker: None: the default of all brokers
        """
        self._set_configs(_BROKER, "" if broker is None else str(broker), configs)

    @contextmanager
    def log_levels(self, node: int, levels: Mapping[str, str]) -> Iterator[None]:
        """Inside the block, loggers have these levels (KIP-412). After it, they have the levels of their parents again.

        Ask the broker or controller itself.

        :param node: its id
        :param levels: by the names of the loggers
        """
        self._set_configs(_LOGGERS, str(node), levels)
        try:
            yield
        finally:
            self._set_configs(_LOGGERS, str(node), dict.fromkeys(levels))

    def dynamic_configs(self, broker: int) -> DynamicConfigs:
        """A broker's dynamic configs. Ask the broker itself."""
        own, of_all = self._configs(_BROKER, str(broker), _OF_BROKER, _OF_ALL_BROKERS)
        return DynamicConfigs(own=own, of_all=of_all)

    def topic_configs(self, topic: str) -> Mapping[str, str | None]:
        """The configs that are set for a topic; ask any broker."""
        [own] = self._configs(_TOPIC, topic, _OF_TOPIC)
        return own

    def _configs(self, resource_type: int, name: str, *sources: int) -> list[dict[str, str | None]]:
        """The configs of a resource from each of these sources."""
        wanted = DescribeConfigsRequest.DescribeConfigsResource
        resource = wanted(resource_type=resource_type, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
        got = self._connection.ask(request).results[0]
        check_answer(f"the configs of {name}", got)
        return [{each.name: each.value for each in got.configs if each.config_source == source} for source in sources]

    def _set_configs(self, resource_type: int, name: str, configs: Mapping[str, str | None]) -> None:
        wanted = IncrementalAlterConfigsRequest.AlterConfigsResource
        changes = [
            wanted.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
            for key, value in configs.items()
        ]
        resource = wanted(resource_type=resource_type, resource_name=name, configs=changes)
        answer = self._connection.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        check_answer(f"set {', '.join(configs)} of {name}", *answer.responses)

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs; brokers learn of them later (:meth:`describe_acls`)."""
        wanted = CreateAclsRequest.AclCreation
        creations = [
            wanted(
                resource_type=_RESOURCES[acl.resource],
                resource_name=acl.name,
                resource_pattern_type=_LITERAL,
                principal=f"User:{acl.user}",
                host="*",
                operation=_OPERATIONS[acl.operation],
                permission_type=_ALLOW,
            )
            for acl in acls
        ]
        check_answer("create ACLs", *self._connection.ask(CreateAclsRequest(creations=creations)).results)

    def describe_acls(self) -> frozenset[Acl]:
        """The ACLs that this broker knows, as far as :class:`Acl` has their resources and operations."""
        request = DescribeAclsRequest(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
        answer = self._connection.ask(request)
        check_answer("the ACLs", answer)
        resources = {code: name for name, code in _RESOURCES.items()}
        operations = {code: name for name, code in _OPERATIONS.items()}
        return frozenset(
            Acl(
                user=each.principal.removeprefix("User:"),
                resource=resources[of.resource_type],
                name=of.resource_name,
                operation=operations[each.operation],
            )
            for of in answer.resources
            for each in of.acls
        )

    def alter_partition_reassignment(self, topic: str, partition: int, replicas: Iterable[int] | None) -> None:
        """Begin to reassign a partition to these replicas (KIP-455); in ZooKeeper mode ask the controller's broker.

        :param replicas: None: cancel the reassignment that is under way
        """
        ids = None if replicas is None else list(replicas)
        wanted = AlterPartitionReassignmentsRequest.ReassignableTopic
        partitions = [wanted.ReassignablePartition(partition_index=partition, replicas=ids)]
        topics = [wanted(name=topic, partitions=partitions)]
        answer = self._connection.ask(
            AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=10_000), timeout_s=15.0
        )
        of_partitions = [each for of_topic in answer.responses for each in of_topic.partitions]
        what = "cancel the reassignment of" if ids is None else "reassign"
        check_answer(f"{what} {topic}-{partition}{f' to {ids}' if ids else ''}", answer, *of_partitions)

    def elect_preferred_leader(self, topic: str, partition: int) -> None:
        """Elect the preferred leader of a partition (KIP-183); in ZooKeeper mode ask the controller's broker."""
        wanted = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
        request = ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=[wanted], timeout_ms=10_000)
        answer = self._connection.ask(request, timeout_s=15.0)
        results = [each for of_topic in answer.replica_election_results for each in of_topic.partition_result]
        check_answer(f"elect the preferred leader of {topic}-{partition}", answer, *results)

    def describe_reassignments(self) -> tuple[Reassignment, ...]:
        """All reassignments that are under way; ask as in :meth:`alter_partition_reassignment`."""
        answer = self._connection.ask(ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000))
        check_answer("the reassignments", answer)
        return tuple(
            Reassignment(
                topic=topic.name,
                partition=partition.partition_index,
                replicas=tuple(partition.replicas),
                adding=tuple(partition.adding_replicas),
                removing=tuple(partition.removing_replicas),
            )
            for topic in answer.topics
            for partition in topic.partitions
        )

    def alter_replica_log_dir(self, topic: str, partition: int, log_dir: str) -> None:
        """Move this broker's replica into ``log_dir`` (KIP-113)."""
        [error] = self.alter_replica_log_dirs({(topic, partition): log_dir}).values()
        if error is not None:
            raise Refused(f"move {topic}-{partition} to {log_dir}", error)

    def alter_replica_log_dirs(self, wanted: Mapping[tuple[str, int], str]) -> dict[tuple[str, int], str | None]:
        """Move several of this broker's replicas in one request (KIP-113); returns each one's error, None if accepted.

        :param wanted: the log dir of each topic and partition
        """
        dirs: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), log_dir in wanted.items():
            dirs.setdefault(log_dir, {}).setdefault(topic, []).append(partition)
        of_dir = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        request = AlterReplicaLogDirsRequest(
            dirs=[
                of_dir(
                    path=path,
                    topics=[
                        of_dir.AlterReplicaLogDirTopic(name=name, partitions=each) for name, each in topics.items()
                    ],
                )
                for path, topics in dirs.items()
            ]
        )
        return {
            (of_topic.topic_name, each.partition_index): error_name(each.error_code)
            for of_topic in self._connection.ask(request).results
            for each in of_topic.partitions
        }


def _batch(
    value: bytes,
    producer: Producer = UNNAMED,
    sequence: int = -1,
    *,
    key: bytes | None = None,
    transactional: bool = False,
) -> bytearray:
    """A record batch with one record."""
    batch = MemoryRecordsBuilder(
        magic=2,
        compression_type=0,
        batch_size=1 << 16,
        transactional=transactional,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
    )
    batch.append(timestamp=None, key=key, value=value)
    batch.close()
    return bytearray(batch.buffer())


def _kafka_uuid(id: uuid.UUID | None) -> str:
    """A UUID as Kafka writes it; kafka-python has None for zero."""
    return base64.urlsafe_b64encode((id or uuid.UUID(int=0)).bytes).decode().rstrip("=")


def _if_any(number: int) -> int | None:
    """Kafka's -1 as None."""
    return None if number < 0 else number


def check_answer(what: str, *parts: ApiMessage) -> None:
    """Raise the first error that these parts of an answer have, if any.

    :raises Refused: with ``what``, the error's name and, if there is one, its message
    """
    for part in parts:
        if part.error_code:
            name = error_name(part.error_code) or str(part.error_code)
            raise Refused(what, name, getattr(part, "error_message", None))
