"""The only door to Kafka's admin protocol: one question, one typed answer, no waiting.

Each :class:`Admin` speaks to one broker (see :mod:`harness.kafka.connection` for why), so that what two brokers say can
be compared. Request and response classes are kafka-python's; nothing else of the harness sees them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import kafka.errors as kafka_errors
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeQuorumRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from harness.errors import HarnessError
from harness.kafka.connection import Connection
from harness.kafka.metadata import ClusterState, LogDirState, PartitionState, ProducerState, Reassignment, ReplicaInDir

_EARLIEST, _LATEST = -2, -1
_TOPIC, _BROKER = 2, 4  # two config resources' types
_SET, _DELETE = 0, 1  # two config operations
_OF_BROKER, _OF_ALL_BROKERS = 2, 3  # two sources of a config (ConfigSource of DescribeConfigsResponse)
_MISNAMED = {39: "INVALID_REPLICA_ASSIGNMENT"}  # by kafka-python


class Refused(HarnessError):
    """A broker answered with an error; ``error`` is Kafka's name for it, ``message`` its words, if it had any."""

    def __init__(self, what: str, error: str, message: str | None = None) -> None:
        super().__init__(f"{what}: {error}{f' ({message})' if message else ''}")
        self.error = error
        self.message = message


@dataclass(frozen=True, kw_only=True)
class DynamicConfigs:
    """What was set at a broker since its start, and counts more than its properties (KIP-226).

    :ivar own: of this broker alone
    :ivar of_all: of all brokers
    """

    own: Mapping[str, str | None]
    of_all: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class NewTopic:
    """A topic to be created.

    :ivar assignment: the brokers of each partition; empty: Kafka chooses them for so many partitions and replicas
    """

    name: str
    partitions: int = 1
    replicas: int = 3
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Mapping[int, Iterable[int]] = field(default_factory=dict)


def error_name(code: int) -> str | None:
    """Kafka's name of an error code, such as KAFKA_STORAGE_ERROR; None for 0."""
    if code == 0:
        return None
    if code in _MISNAMED:
        return _MISNAMED[code]
    known = kafka_errors.for_code(code)
    return str(known.message) if getattr(known, "message", None) else known.__name__


class Admin:
    """The admin protocol of one broker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def describe_cluster(self, topics: Iterable[str] | None = None) -> ClusterState:
        """Brokers, controller and partitions as this broker has them; all topics unless named."""
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        answer = self._connection.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        return ClusterState(
            cluster_id=answer.cluster_id,
            controller=None if answer.controller_id < 0 else answer.controller_id,
            brokers=tuple(sorted(broker.node_id for broker in answer.brokers)),
            racks={broker.node_id: broker.rack for broker in answer.brokers},
            partitions=tuple(
                sorted(
                    PartitionState(
                        topic=topic.name,
                        partition=partition.partition_index,
                        leader=None if partition.leader_id < 0 else partition.leader_id,
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

    def want_topic(self, name: str) -> None:
        """Ask for a topic's metadata as clients do, so that it is created where that is automatic."""
        topic = MetadataRequest.MetadataRequestTopic(name=name)
        self._connection.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=True))

    def describe_log_dirs(self, *partitions: tuple[str, int]) -> tuple[LogDirState, ...]:
        """This broker's log dirs and what is in them (KIP-113, DescribeLogDirs).

        :param partitions: these topics' partitions alone, where any are named
        """
        wanted = [
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[index])
            for topic, index in partitions
        ]
        answer = self._connection.ask(DescribeLogDirsRequest(topics=wanted or None))
        return tuple(
            LogDirState(
                path=result.log_dir,
                error=error_name(result.error_code),
                is_cordoned=bool(getattr(result, "is_cordoned", False)),
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
        """The producers that a partition's log knows, by their ids. Ask its leader.

        :raises Refused: with Kafka's error, such as NOT_LEADER_OR_FOLLOWER
        """
        wanted = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
        [of_topic] = self._connection.ask(DescribeProducersRequest(topics=[wanted])).topics
        [got] = of_topic.partitions
        _raise_first(f"the producers of {topic}-{partition}", [(got.error_code, got.error_message)])
        return tuple(
            sorted(
                ProducerState(
                    producer=each.producer_id,
                    epoch=each.producer_epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp=each.last_timestamp,
                    coordinator_epoch=each.coordinator_epoch,
                    open_since=None if each.current_txn_start_offset < 0 else each.current_txn_start_offset,
                )
                for each in got.active_producers
            )
        )

    def describe_quorum_leader(self) -> int | None:
        """The active KRaft controller's node id; None while there is none."""
        topic = DescribeQuorumRequest.TopicData
        answer = self._connection.ask(
            DescribeQuorumRequest(
                topics=[topic(topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)])]
            )
        )
        if answer.error_code:
            raise Refused("the quorum's leader", error_name(answer.error_code) or "")
        leader = int(answer.topics[0].partitions[0].leader_id)
        return None if leader < 0 else leader

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replicas: int,
        configs: Mapping[str, str] | None = None,
        assignment: Mapping[int, Iterable[int]] | None = None,
    ) -> None:
        """Create one topic, as :meth:`create_topics` does.

        :raises Refused: with Kafka's error
        """
        new = NewTopic(
            name=name, partitions=partitions, replicas=replicas, configs=configs or {}, assignment=assignment or {}
        )
        self.create_topics([new])

    def create_topics(self, topics: Iterable[NewTopic]) -> None:
        """Create topics, in one request; ZooKeeper mode wants this asked of the controller's broker.

        :raises Refused: with Kafka's error for the first that was refused; the others may have been created
        """
        topic = CreateTopicsRequest.CreatableTopic
        answer = self._connection.ask(
            CreateTopicsRequest(
                topics=[
                    topic(
                        name=new.name,
                        num_partitions=-1 if new.assignment else new.partitions,
                        replication_factor=-1 if new.assignment else new.replicas,
                        assignments=[
                            topic.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                            for index, brokers in new.assignment.items()
                        ],
                        configs=[
                            topic.CreatableTopicConfig(name=key, value=value) for key, value in new.configs.items()
                        ],
                    )
                    for new in topics
                ],
                timeout_ms=20_000,
                validate_only=False,
            ),
            timeout_s=30.0,
        )
        for got in answer.topics:
            _raise_first(f"create topic {got.name}", [(got.error_code, getattr(got, "error_message", None))])

    def create_partitions(self, topic: str, count: int, assignment: Iterable[Iterable[int]] | None = None) -> None:
        """Give a topic more partitions, ``count`` in all (KIP-195).

        :param assignment: the brokers of each new one; None: Kafka chooses
        :raises Refused: with Kafka's error
        """
        wanted = CreatePartitionsRequest.CreatePartitionsTopic
        assignments = assignment and [
            wanted.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignment
        ]
        answer = self._connection.ask(
            CreatePartitionsRequest(
                topics=[wanted(name=topic, count=count, assignments=assignments)],
                timeout_ms=10_000,
                validate_only=False,
            ),
            timeout_s=15.0,
        )
        _raise_first(f"partitions of {topic}", ((r.error_code, r.error_message) for r in answer.results))

    def delete_topic(self, name: str) -> None:
        """Delete a topic.

        :raises Refused: with Kafka's error
        """
        self.delete_topics([name])

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics.

        :raises Refused: with Kafka's error for the first that was refused
        """
        answer = self._connection.ask(
            DeleteTopicsRequest(
                topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
                timeout_ms=20_000,
            ),
            timeout_s=30.0,
        )
        for got in answer.responses:
            _raise_first(f"delete topic {got.name}", [(got.error_code, getattr(got, "error_message", None))])

    def end_offset(self, topic: str, partition: int) -> int:
        """A partition's end: its high watermark. Ask its leader.

        :raises Refused: with Kafka's error, such as NOT_LEADER_OR_FOLLOWER
        """
        return self._offset(topic, partition, _LATEST)

    def start_offset(self, topic: str, partition: int) -> int:
        """A partition's first offset that can still be read. Ask its leader."""
        return self._offset(topic, partition, _EARLIEST)

    def _offset(self, topic: str, partition: int, timestamp: int) -> int:
        wanted = ListOffsetsRequest.ListOffsetsTopic
        answer = self._connection.ask(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,  # read_uncommitted: with read_committed it would be the last stable offset
                topics=[
                    wanted(
                        name=topic,
                        partitions=[wanted.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)],
                    )
                ],
            )
        )
        got = answer.topics[0].partitions[0]
        _raise_first(f"offset of {topic}-{partition}", [(got.error_code, None)])
        return int(got.offset)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Delete a partition's records below an offset (KIP-107); ask its leader. Returns the new first offset.

        :raises Refused: with Kafka's error
        """
        wanted = DeleteRecordsRequest.DeleteRecordsTopic
        answer = self._connection.ask(
            DeleteRecordsRequest(
                topics=[
                    wanted(
                        name=topic, partitions=[wanted.DeleteRecordsPartition(partition_index=partition, offset=before)]
                    )
                ],
                timeout_ms=10_000,
            ),
            timeout_s=15.0,
        )
        got = answer.topics[0].partitions[0]
        _raise_first(f"delete the records of {topic}-{partition} below {before}", [(got.error_code, None)])
        return int(got.low_watermark)

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set some of a topic's configs (KIP-339); ZooKeeper mode wants this asked of any broker, KRaft too.

        :raises Refused: with Kafka's error
        """
        self._set_configs(_TOPIC, topic, configs)

    def set_broker_configs(self, broker: int | None, configs: Mapping[str, str | None]) -> None:
        """Set some of a broker's dynamic configs (KIP-226), or take them away (None).

        KRaft wants this asked of the broker itself, or of a controller (KIP-919), which knows less of what fits.

        :param broker: None: the default of all brokers

        :raises Refused: with Kafka's error
        """
        self._set_configs(_BROKER, "" if broker is None else str(broker), configs)

    def dynamic_configs(self, broker: int) -> DynamicConfigs:
        """A broker's dynamic configs, its own and those of all brokers; asked of the broker itself.

        :raises Refused: with Kafka's error
        """
        resource = DescribeConfigsRequest.DescribeConfigsResource
        answer = self._connection.ask(
            DescribeConfigsRequest(
                resources=[resource(resource_type=_BROKER, resource_name=str(broker), configuration_keys=None)],
                include_synonyms=False,
                include_documentation=False,
            )
        )
        _raise_first(f"the configs of broker {broker}", ((r.error_code, r.error_message) for r in answer.results))
        configs = [config for result in answer.results for config in result.configs]
        own, of_all = (
            {config.name: config.value for config in configs if config.config_source == source}
            for source in (_OF_BROKER, _OF_ALL_BROKERS)
        )
        return DynamicConfigs(own=own, of_all=of_all)

    def _set_configs(self, resource_type: int, name: str, configs: Mapping[str, str | None]) -> None:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        answer = self._connection.ask(
            IncrementalAlterConfigsRequest(
                resources=[
                    resource(
                        resource_type=resource_type,
                        resource_name=name,
                        configs=[
                            resource.AlterableConfig(
                                name=key, config_operation=_DELETE if value is None else _SET, value=value
                            )
                            for key, value in configs.items()
                        ],
                    )
                ],
                validate_only=False,
            )
        )
        _raise_first(f"set {', '.join(configs)} of {name}", ((r.error_code, r.error_message) for r in answer.responses))

    def alter_partition_reassignment(self, topic: str, partition: int, replicas: Iterable[int]) -> None:
        """Begin to give a partition these replicas (KIP-455).

        ZooKeeper mode wants this asked of the controller's broker.

        :raises Refused: with Kafka's error
        """
        wanted = AlterPartitionReassignmentsRequest.ReassignableTopic
        ids = list(replicas)
        answer = self._connection.ask(
            AlterPartitionReassignmentsRequest(
                topics=[
                    wanted(
                        name=topic,
                        partitions=[wanted.ReassignablePartition(partition_index=partition, replicas=ids)],
                    )
                ],
                timeout_ms=10_000,
            ),
            timeout_s=15.0,
        )
        _raise_first(
            f"reassign {topic}-{partition} to {ids}",
            [
                (answer.error_code, answer.error_message),
                *((p.error_code, p.error_message) for t in answer.responses for p in t.partitions),
            ],
        )

    def describe_reassignments(self) -> tuple[Reassignment, ...]:
        """All reassignments that are under way; asked like :meth:`alter_partition_reassignment`.

        :raises Refused: with Kafka's error
        """
        answer = self._connection.ask(ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000))
        _raise_first("the reassignments", [(answer.error_code, answer.error_message)])
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
        """Move this broker's replica into ``log_dir`` (KIP-113).

        :raises Refused: with Kafka's error
        """
        into = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        answer = self._connection.ask(
            AlterReplicaLogDirsRequest(
                dirs=[into(path=log_dir, topics=[into.AlterReplicaLogDirTopic(name=topic, partitions=[partition])])]
            )
        )
        _raise_first(
            f"move {topic}-{partition} to {log_dir}",
            ((p.error_code, None) for t in answer.results for p in t.partitions),
        )


def _raise_first(what: str, outcomes: Iterable[tuple[int, str | None]]) -> None:
    for code, message in outcomes:
        if code:
            raise Refused(what, error_name(code) or str(code), message)
