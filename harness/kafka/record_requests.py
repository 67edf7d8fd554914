"""Requests for a partition's records and offsets: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords …

A consumer group's offsets are here, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from kafka.protocol.admin import DeleteRecordsRequest, DescribeProducersRequest
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

from harness.kafka.answers import check_answer, if_any
from harness.kafka.connection import Connection
from harness.kafka.metadata import ProducerState

_EARLIEST, _LATEST, _LATEST_TIERED = -2, -1, -5
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1  # IsolationLevel
_BEGINS_NONE = 10  # a version of Produce that begins no transaction, and knows no TRANSACTION_ABORTABLE (KIP-890)
_BY_NAME = 7  # the last version of OffsetCommit and OffsetFetch for one group, that names topics, in every build
_BY_REPLICA_ID = 14  # the last version of Fetch in which a follower names no broker epoch


@dataclass(frozen=True, kw_only=True)
class Producer:
    """An idempotent producer, by the id and epoch that a broker gave it."""

    id: int
    epoch: int


UNNAMED = Producer(id=-1, epoch=-1)
"""A producer that is not idempotent."""


class RecordRequests:
    """The part of :class:`harness.kafka.admin.Admin` for records and offsets."""

    _connection: Connection

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
                    open_since=if_any(each.current_txn_start_offset),
                )
                for each in got.active_producers
            )
        )

    def end_offset(self, topic: str, partition: int) -> int:
        """A partition's high watermark. Ask its leader."""
        return self._offset(topic, partition, _LATEST)

    def start_offset(self, topic: str, partition: int) -> int:
        """A partition's log start offset. Ask its leader."""
        return self._offset(topic, partition, _EARLIEST)

    def tiered_offset(self, topic: str, partition: int) -> int | None:
        """The last offset of a partition in remote storage (KIP-405, KIP-1005); None: there is none. Ask its leader."""
        return if_any(self._offset(topic, partition, _LATEST_TIERED))

    def last_stable_offset(self, topic: str, partition: int) -> int:
        """The offset before which every transaction of a partition has ended. Ask its leader."""
        return self._offset(topic, partition, _LATEST, _READ_COMMITTED)

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The offset of a partition's first record that is not older than this time; None: all are. Ask its leader."""
        return if_any(self._offset(topic, partition, timestamp_ms))

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

    def fetch(self, topic: str, partition: int, offset: int, *, leader_epoch: int = -1, wait_s: float = 0.0) -> bytes:
        """The record batches from an offset on, for a consumer that takes this broker for the leader.

        :param leader_epoch: the leader epoch that the consumer knows (KIP-320); -1: none
        :param wait_s: seconds that the broker may wait for records
        """
        return bytes(self._fetch(topic, partition, offset, leader_epoch=leader_epoch, wait_s=wait_s).records or b"")

    def diverging_epoch(
        self, topic: str, partition: int, offset: int, *, last_epoch: int, wait_s: float = 0.0
    ) -> tuple[int, int] | None:
        """The leader epoch where a log that ends at this offset leaves the leader's, and its end offset (KIP-595).

        None: it does not. Ask the leader.

        :param last_epoch: the leader epoch of the last record before the offset
        """
        got = self._fetch(topic, partition, offset, last_epoch=last_epoch, wait_s=wait_s).diverging_epoch
        return None if if_any(int(got.epoch)) is None else (int(got.epoch), int(got.end_offset))

    def fetch_as_replica(self, topic: str, partition: int, offset: int, *, replica: int) -> bytes:
        """The record batches from an offset on, as this broker's follower fetches them; ask the leader.

        :param replica: the follower's id; the leader notes that it has all records before the offset
        """
        return bytes(self._fetch(topic, partition, offset, replica=replica).records or b"")

    def await_records(self, topic: str, partition: int, offset: int, *, wait_s: float) -> bytes:
        """The record batches from an offset on, for a consumer that waits for them; empty after ``wait_s``."""
        return bytes(self._fetch(topic, partition, offset, wait_s=wait_s).records or b"")

    def replica_to_read(self, topic: str, partition: int, offset: int, *, rack: str, wait_s: float = 0.0) -> int | None:
        """The broker to which the leader sends a consumer in this rack (KIP-392); None: it should read from the leader.

        :param offset: that of the consumer
        :param wait_s: seconds that the leader may wait for records
        """
        return if_any(int(self._fetch(topic, partition, offset, rack=rack, wait_s=wait_s).preferred_read_replica))

    def _fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        leader_epoch: int = -1,
        last_epoch: int = -1,
        rack: str = "",
        replica: int = -1,
        wait_s: float = 0.0,
    ) -> FetchResponse.FetchableTopicResponse.PartitionData:
        wanted = FetchRequest.FetchTopic
        data = wanted.FetchPartition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
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
        return if_any(int(got.committed_offset))

    def _topic_id(self, topic: str) -> uuid.UUID:
        """The topic's id, by which newer versions of requests name it."""
        topics = [MetadataRequest.MetadataRequestTopic(name=topic)]
        [found] = self._connection.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False)).topics
        return uuid.UUID(str(found.topic_id))


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
