"""The requests of a member of a share group (KIP-932): heartbeats, share sessions, acknowledgements.

kafka-python and librdkafka have no share consumer. Kafka's Java client has one, which fetches ahead and closes sessions
by itself. Here each acquisition and each answer is seen, so that a checker knows what the member held, and when.
The classes of the requests come from the build (:mod:`harness.kafka.request_schemas`).
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kafka.protocol.api_message import ApiMessage
from kafka.record import MemoryRecords

from harness import timeouts
from harness.kafka.answers import check_answer
from harness.kafka.connection import Connection
from harness.kafka.distribution import Distribution
from harness.kafka.request_schemas import request_class

Acknowledgement = Literal["ACCEPT", "RELEASE", "REJECT"]
_CODES: Mapping[Acknowledgement, int] = {"ACCEPT": 1, "RELEASE": 2, "REJECT": 3}  # AcknowledgeType
_BATCH_OPTIMIZED, _RECORD_LIMIT = 0, 1  # ShareAcquireMode (KIP-1206)
_JOINS = 0  # the member epoch of a member that joins
_OPENS = 0  # the epoch of a request that opens a share session


@dataclass(frozen=True, kw_only=True)
class Acquired:
    """A record that a broker has locked for a member.

    :ivar count: the delivery count: how often the record was acquired, by the broker's count
    :ivar value: its value; None if the answer does not have the record
    """

    offset: int
    count: int
    value: bytes | None


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A member of a share group, as the group's coordinator answers its heartbeat.

    :ivar epoch: the member epoch, for the next heartbeat
    :ivar assigned: the topic ids and partitions that it is assigned; None: as before
    """

    epoch: int
    assigned: frozenset[tuple[str, int]] | None


def heartbeat(
    build: Distribution, coordinator: Connection, group: str, member: str, topic: str, epoch: int = _JOINS
) -> Membership:
    """Send a member's heartbeat to the coordinator of its group; with epoch 0 it joins.

    :param build: whose request it is
    :raises Refused: the coordinator refuses; NoAnswer: it does not answer
    """
    request = request_class(build, "ShareGroupHeartbeat")(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rack_id=None,
        subscribed_topic_names=[topic] if epoch == _JOINS else None,
    )
    answer = coordinator.ask(request)
    check_answer(f"a heartbeat of {member} of the share group {group}", answer)
    assigned = answer.assignment and frozenset(
        (str(each.topic_id), partition) for each in answer.assignment.topic_partitions for partition in each.partitions
    )
    return Membership(epoch=answer.member_epoch, assigned=assigned)


class ShareSession:
    """A member's share session with the leader of one partition; any error but one of an acknowledgement ends it.

    The broker releases what the member holds when the connection closes.

    :param build: whose requests these are
    :param connection: of this session alone, since its end is the session's end
    """

    def __init__(
        self, build: Distribution, connection: Connection, group: str, member: str, topic_id: str, partition: int
    ) -> None:
        self._fetch, self._acknowledge = (request_class(build, name) for name in ("ShareFetch", "ShareAcknowledge"))
        self._connection = connection
        self._names = {"group_id": group, "member_id": member}
        self._what = f"of {member} of the share group {group}"
        self._topic_id, self._partition = uuid.UUID(topic_id), partition
        self._epoch = _OPENS

    def acquire(self, most: int, *, exactly: bool, wait_s: float) -> list[Acquired]:
        """Acquire records that are available; waits for some.

        :param most: how many records
        :param exactly: not one more; else the broker may acquire the rest of a batch, too (KIP-1206)
        :raises Refused: the broker refuses; NoAnswer: it does not answer
        """
        wanted = self._fetch.FetchTopic
        partitions = [wanted.FetchPartition(partition_index=self._partition, acknowledgement_batches=[])]
        request = self._fetch(
            **self._names,
            share_session_epoch=self._epoch,
            max_wait_ms=round(wait_s * 1000),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=most,
            batch_size=most,
            share_acquire_mode=_RECORD_LIMIT if exactly else _BATCH_OPTIMIZED,
            topics=[wanted(topic_id=self._topic_id, partitions=partitions)] if self._epoch == _OPENS else [],
            forgotten_topics_data=[],
        )
        answer = self._ask(request, "fetch", wait_s + timeouts.REQUEST_S)
        acquired: list[Acquired] = []
        for got in (partition for topic in answer.responses for partition in topic.partitions):
            check_answer(f"fetch {self._what}", got)
            values = dict(values_of(got.records or b""))
            acquired += [
                Acquired(offset=offset, count=run.delivery_count, value=values.get(offset))
                for run in got.acquired_records
                for offset in range(run.first_offset, run.last_offset + 1)
            ]
        return acquired

    def acknowledge(self, how: Mapping[int, Acknowledgement]) -> None:
        """Acknowledge acquired records, by their offsets; the broker accepts all of it or nothing.

        :raises Refused: the broker refuses; NoAnswer: it does not answer
        """
        wanted = self._acknowledge.AcknowledgeTopic
        of_partition = wanted.AcknowledgePartition
        batches = [
            of_partition.AcknowledgementBatch(
                first_offset=run[0], last_offset=run[-1], acknowledge_types=[_CODES[how[offset]] for offset in run]
            )
            for run in _runs(sorted(how))
        ]
        partitions = [of_partition(partition_index=self._partition, acknowledgement_batches=batches)]
        topics = [wanted(topic_id=self._topic_id, partitions=partitions)]
        request = self._acknowledge(**self._names, share_session_epoch=self._epoch, topics=topics)
        answer = self._ask(request, "acknowledge", 2 * timeouts.REQUEST_S)
        for got in (partition for topic in answer.responses for partition in topic.partitions):
            check_answer(f"acknowledge {self._what}", got)

    def _ask(self, request: ApiMessage, what: str, timeout_s: float) -> ApiMessage:
        answer = self._connection.ask(request, timeout_s=timeout_s)
        check_answer(f"{what} {self._what}", answer)
        self._epoch += 1
        return answer

    def close(self) -> None:
        """Close the connection, without a word, as a member that crashes."""
        self._connection.close()


def values_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The offset and value of each record in the batches of a response."""
    batches = MemoryRecords(bytes(data))
    while (batch := batches.next_batch()) is not None:
        yield from ((record.offset, bytes(record.value)) for record in batch)


def _runs(offsets: Sequence[int]) -> Iterator[list[int]]:
    """Sorted offsets as runs without a gap."""
    for _, run in itertools.groupby(enumerate(offsets), lambda numbered: numbered[1] - numbered[0]):
        yield [offset for _, offset in run]
