"""Requests to a broker: one request, one typed answer, no waiting and no retry.

Each :class:`Admin` asks one broker (:mod:`harness.kafka.connection`), so that two brokers' answers can be compared.
kafka-python's request and response classes are seen only in :mod:`harness.kafka`. Its parts for records, configs and
ACLs are modules of their own.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import MetadataRequest

from harness.kafka.acl_requests import AclRequests
from harness.kafka.answers import Refused, check_answer, error_name, if_any
from harness.kafka.config_requests import ConfigRequests
from harness.kafka.connection import Connection
from harness.kafka.metadata import (
    ClusterState,
    EligibleReplicas,
    LogDirState,
    PartitionState,
    QuorumReplica,
    QuorumState,
    Reassignment,
    ReplicaInDir,
)
from harness.kafka.record_requests import RecordRequests

_PREFERRED = 0  # ElectionType


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


class Admin(RecordRequests, ConfigRequests, AclRequests):
    """Requests to one broker, of all kinds.

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
            controller=if_any(answer.controller_id),
            brokers=tuple(sorted(broker.node_id for broker in answer.brokers)),
            racks={broker.node_id: broker.rack for broker in answer.brokers},
            partitions=tuple(
                sorted(
                    PartitionState(
                        topic=topic.name,
                        partition=partition.partition_index,
                        leader=if_any(partition.leader_id),
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

    def describe_eligible(self, topic: str, partition: int) -> EligibleReplicas:
        """A partition's leader, ISR and eligible leader replicas (KIP-966, DescribeTopicPartitions)."""
        wanted = DescribeTopicPartitionsRequest.TopicRequest(name=topic)
        request = DescribeTopicPartitionsRequest(topics=[wanted], response_partition_limit=2000, cursor=None)
        [got] = self._connection.ask(request).topics
        check_answer(f"the partitions of {topic}", got)
        found = next(each for each in got.partitions if each.partition_index == partition)
        return EligibleReplicas(
            leader=if_any(found.leader_id),
            isr=frozenset(found.isr_nodes),
            eligible=frozenset(found.eligible_leader_replicas or ()),
        )

    def describe_quorum_leader(self) -> int | None:
        """The active KRaft controller's node id; None while there is none."""
        return if_any(self._quorum().leader_id)

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
        return QuorumState(leader=if_any(quorum.leader_id), voters=voters, observers=observers)

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


def _kafka_uuid(id: uuid.UUID | None) -> str:
    """A UUID as Kafka writes it; kafka-python has None for zero."""
    return base64.urlsafe_b64encode((id or uuid.UUID(int=0)).bytes).decode().rstrip("=")
