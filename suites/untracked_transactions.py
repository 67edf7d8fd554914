"""Writes transactions whose records are not in the history, and checks what consumers get of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.kafka import record_requests
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until

RECORDS = 200  # of a transaction: 200 KB, three times the first fetch of a held move
# The broker's upper limit: Kafka must not end a transaction that is left open on purpose.
NEVER_MS = 15 * 60 * 1000


class UntrackedProducer:
    """A transactional producer whose records are not in the history; each of its values is different.

    :param name: the beginning of its values
    :param transactional_id: default: one of its own, by its name
    :param timeout_ms: Kafka aborts a transaction that is open for longer
    :raises PromiseBroken: any of its calls fails
    """

    def __init__(
        self, topic: Topic, name: str, *, transactional_id: str | None = None, timeout_ms: int = NEVER_MS
    ) -> None:
        self._topic, self._name = topic, name
        self._numbers = itertools.count()
        self._open = False
        self._client = Producer(
            {
                **topic.cluster.bootstrap.librdkafka,
                "transactional.id": transactional_id or f"{topic}-{name}",
                "transaction.timeout.ms": timeout_ms,
                "batch.size": 16384,
                "log_level": 0,  # its errors while brokers are away do not belong on the terminal
            }
        )
        with self._promised():
            self._client.init_transactions(timeouts.PROGRESS_S)

    def write(self, *, commit: bool | None = None, count: int = RECORDS, keys: int | None = None) -> list[bytes]:
        """Write records in the open transaction, or in a new one, and wait for their acks; returns the values.

        :param count: records of 1 kB; 0 only ends the open transaction
        :param commit: commit or abort the transaction afterwards; None: leave it open
        :param keys: use so many different keys in turn (:func:`last_values`); None: no keys
        """
        values = [f"{self._name} {next(self._numbers)}".ljust(1000).encode() for _ in range(count)]
        keyed = [(None if keys is None else _key(number, keys), value) for number, value in enumerate(values)]
        self._write(keyed, commit=commit)
        return values

    def delete(self, key: bytes) -> None:
        """Write the tombstone of a key in a transaction of its own, which commits."""
        self._write([(key, None)], commit=True)

    def _write(self, records: Sequence[tuple[bytes | None, bytes | None]], *, commit: bool | None) -> None:
        refused: list[KafkaError] = []

        def report(error: KafkaError | None, _: object) -> None:
            if error is not None:
                refused.append(error)

        with self._promised():
            if not self._open:
                self._client.begin_transaction()
            for key, value in records:
                self._client.produce(self._topic.name, value, key, partition=0, on_delivery=report)
            left = self._client.flush(timeouts.PROGRESS_S)
            if left or refused:
                raise PromiseBroken(
                    f"{self._name} could not write {left} of {len(records)} records to {self._topic}; {refused}"
                )
            if commit is not None:
                (self._client.commit_transaction if commit else self._client.abort_transaction)(timeouts.PROGRESS_S)
        self._open = commit is None

    def send_offset(self, group: str, partition: Partition, offset: int) -> None:
        """Commit an offset of a consumer group within the open transaction."""
        consumer = Consumer({**self._topic.cluster.bootstrap.librdkafka, "group.id": group, "log_level": 0})
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


def last_values(values: Sequence[bytes], keys: int) -> dict[bytes, bytes]:
    """The last value of each key, of the values that :meth:`UntrackedProducer.write` wrote with so many keys."""
    return {_key(number, keys): value for number, value in enumerate(values)}


def _key(number: int, keys: int) -> bytes:
    return str(number % keys).encode()


def check_reads(topic: Topic, isolation: str, values: Sequence[bytes]) -> None:
    """A consumer that begins at the first offset gets exactly these values, in this order.

    It may get the last ones later: a coordinator answers the end of a transaction before the partition has its marker,
    and consumers see the marker once the high watermark has passed it. A leader may wait for a follower whose log dir
    failed until then (finding 1).
    """
    wanted = list(values)

    def values_of(read: Sequence[Message]) -> list[bytes]:
        return [message.value() or b"" for message in read]

    def has_all_or_others(read: Sequence[Message]) -> bool:
        got = values_of(read)
        return len(got) >= len(wanted) or got != wanted[: len(got)]

    def differs(read: Sequence[Message]) -> str:
        got = values_of(read)
        if got == wanted:
            return ""
        return (
            f"{len(got)} records of {topic} instead of {len(wanted)}: "
            f"{len(set(wanted) - set(got))} missing, {len(set(got) - set(wanted))} that should not be there"
        )

    _check_read(topic, isolation, has_all_or_others, differs)


def check_last_values(topic: Topic, isolation: str, wanted: Mapping[bytes, bytes | None]) -> None:
    """A consumer that begins at the first offset gets these as the last values of all keys, None for a tombstone."""

    def wrong(read: Sequence[Message]) -> list[bytes]:
        got = {message.key() or b"": message.value() for message in read}
        return [key for key in {*got, *wanted} if got.get(key, b"") != wanted.get(key, b"")]

    def differs(read: Sequence[Message]) -> str:
        keys = sorted(wrong(read))
        return f"{len(read)} records of {topic}, and wrong last values of the keys {keys}" if keys else ""

    _check_read(topic, isolation, lambda read: not wrong(read), differs)


def _check_read(
    topic: Topic,
    isolation: str,
    is_decided: Callable[[Sequence[Message]], bool],
    differs: Callable[[Sequence[Message]], str],
) -> None:
    """Read from the first offset on until it is decided at the end of the log whether the records are right.

    :param differs: says what is wrong with them; empty if nothing is
    :raises PromiseBroken: something is wrong with them, or nothing is decided in time
    """
    client = Consumer(
        {
            **topic.cluster.bootstrap.librdkafka,
            "group.id": f"{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    read = list[Message]()

    def broken() -> PromiseBroken:
        return PromiseBroken(f"a {isolation} consumer got {differs(read) or 'no answer at the end'}")

    def is_decided_at_end() -> bool:
        for message in client.consume(1000, 0.5):
            error = message.error()
            if error is None:
                read.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return is_decided(read)
        return False

    try:
        client.assign([TopicPartition(topic.name, 0, OFFSET_BEGINNING)])
        what = f"a {isolation} consumer to reach the end of {topic}"
        await_until(is_decided_at_end, timeout_s=timeouts.PROGRESS_S, what=what, failure=lambda _waited: broken())
    finally:
        client.close()
    topic.cluster.journal.write("consumer.read", topic=topic.name, isolation=isolation, records=len(read))
    if differs(read):
        raise broken()


def new_producer(broker: Broker, transactional_id: str | None = None) -> record_requests.Producer:
    """Return a new idempotent producer, which gets its id from this broker.

    :param transactional_id: that of a transactional producer, whose coordinator the broker is
    :raises PromiseBroken: the broker gives none
    """
    return await_until(
        lambda: broker.admin.init_producer_id(transactional_id),
        timeout_s=timeouts.REQUEST_S,
        what=f"{broker} to give a producer id",
        retry_on=(NoAnswer, Refused),  # ZooKeeper, or the controller, first gives the broker a block of ids
        failure=PromiseBroken,
    )
