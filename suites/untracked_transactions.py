"""Writes transactions whose records are not in the history, and checks what consumers get of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harness import timeouts
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.waiting import await_until

RECORDS = 200  # of a transaction: 200 KB, three times the first fetch of a held move
# The broker's upper limit: Kafka must not end a transaction that is left open on purpose.
NEVER_MS = 15 * 60 * 1000


class UntrackedProducer:
    """A transactional producer whose records are not in the history; each of its values is different.

    :param name: the beginning of its values
    :param transactional_id: default: one of its own, by its name
    :raises PromiseBroken: any of its calls fails
    """

    def __init__(self, topic: Topic, name: str, *, transactional_id: str | None = None) -> None:
        self._topic, self._name = topic, name
        self._numbers = itertools.count()
        self._open = False
        self._client = Producer(
            {
                "bootstrap.servers": topic.cluster.bootstrap,
                "transactional.id": transactional_id or f"{topic}-{name}",
                "transaction.timeout.ms": NEVER_MS,
                "batch.size": 16384,
                "log_level": 0,  # its errors while brokers are away do not belong on the terminal
            }
        )
        with self._promised():
            self._client.init_transactions(timeouts.PROGRESS_S)

    def write(self, *, commit: bool | None = None, count: int = RECORDS) -> list[bytes]:
        """Write records in the open transaction, or in a new one, and wait for their acks; returns the values.

        :param count: records of 1 kB; 0 only ends the open transaction
        :param commit: commit or abort the transaction afterwards; None: leave it open
        """
        values = [f"{self._name} {next(self._numbers)}".ljust(1000).encode() for _ in range(count)]
        refused: list[KafkaError] = []

        def report(error: KafkaError | None, _: object) -> None:
            if error is not None:
                refused.append(error)

        with self._promised():
            if not self._open:
                self._client.begin_transaction()
            for value in values:
                self._client.produce(self._topic.name, value, partition=0, on_delivery=report)
            left = self._client.flush(timeouts.PROGRESS_S)
            if left or refused:
                raise PromiseBroken(
                    f"{self._name} could not write {left} of {count} records to {self._topic}; {refused}"
                )
            if commit is not None:
                (self._client.commit_transaction if commit else self._client.abort_transaction)(timeouts.PROGRESS_S)
        self._open = commit is None
        return values

    def send_offset(self, group: str, partition: Partition, offset: int) -> None:
        """Commit an offset of a consumer group within the open transaction."""
        consumer = Consumer({"bootstrap.servers": self._topic.cluster.bootstrap, "group.id": group, "log_level": 0})
        try:
            with self._promised():
                self._client.send_offsets_to_transaction(
                    [TopicPartition(partition.topic, partition.index, offset)],
                    consumer.consumer_group_metadata(),
                    timeouts.PROGRESS_S,
                )
        finally:
            consumer.close()

    @contextmanager
    def _promised(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise PromiseBroken(f"the transactional producer {self._name} failed: {error}") from error


def check_reads(topic: Topic, isolation: str, values: Sequence[bytes]) -> None:
    """A consumer that begins at the first offset gets exactly these values, in this order.

    It may get the last ones later: a coordinator answers the end of a transaction before the partition has its marker,
    and consumers see the marker once the high watermark has passed it. A leader may wait for a follower whose log dir
    failed until then (finding 1).
    """
    client = Consumer(
        {
            "bootstrap.servers": topic.cluster.bootstrap,
            "group.id": f"{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    wanted, read = list(values), list[bytes]()

    def differs() -> PromiseBroken:
        return PromiseBroken(
            f"a {isolation} consumer got {len(read)} records of {topic} instead of {len(wanted)}: "
            f"{len(set(wanted) - set(read))} missing, {len(set(read) - set(wanted))} that should not be there"
        )

    def has_all_or_others() -> bool:
        for message in client.consume(1000, 0.5):
            error = message.error()
            if error is None:
                read.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                return len(read) >= len(wanted) or read != wanted[: len(read)]
        return False

    try:
        client.assign([TopicPartition(topic.name, 0, OFFSET_BEGINNING)])
        what = f"a {isolation} consumer to reach the end of {topic}"
        await_until(has_all_or_others, timeout_s=timeouts.PROGRESS_S, what=what, failure=lambda _waited: differs())
    finally:
        client.close()
    topic.cluster.journal.write("consumer.read", topic=topic.name, isolation=isolation, records=len(read))
    if read != wanted:
        raise differs()
