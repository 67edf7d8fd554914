"""The request by which a follower fetches from a partition's leader, for a process that should fetch no longer."""

from __future__ import annotations

import uuid

from kafka.protocol.consumer import FetchRequest

from harness.kafka.answers import check_answer
from harness.kafka.connection import Connection
from harness.kafka.controller_requests import BrokerEpoch

_BY_EPOCH = 15  # the first version of Fetch in which a follower names its broker epoch (KIP-903)


def fetch_as_process(
    leader: Connection, topic: str, topic_id: uuid.UUID, partition: int, offset: int, *, follower: BrokerEpoch
) -> bytes:
    """The record batches from an offset on, as this process of a follower fetches them.

    The leader notes that the follower has all records before the offset.

    :raises Refused: the leader refuses the fetch
    """
    wanted = FetchRequest.FetchTopic
    data = wanted.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 16)
    request = FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=follower.id, replica_epoch=follower.epoch),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 16,
        topics=[wanted(topic=topic, topic_id=topic_id, partitions=[data])],
        forgotten_topics_data=[],
        min_version=_BY_EPOCH,
    )
    answer = leader.ask(request)
    [got] = answer.responses[0].partitions if answer.responses else [answer]
    check_answer(f"fetch {topic}-{partition} from {offset} as {follower}", answer, got)
    return bytes(got.records or b"")
