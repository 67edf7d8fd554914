"""Writes numbered records to a partition, and knows when each was sent, and what the log then has."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from harness import timeouts
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.share_group import values_of
from harness.waiting import await_until
from harness.workload.client_config import PRODUCER_CONFIG

_AT_ONCE = 2


class NumberedWriter:
    """An idempotent producer of the values 0, 1, 2 … for one partition.

    :ivar written_at: when each value was given to the client, in seconds since 1970
    :ivar acked: the offset of each value that was acknowledged
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._client = Producer({**PRODUCER_CONFIG, **partition.cluster.bootstrap.librdkafka})
        self._failed = Counter[str]()
        self._writing, self._finished = threading.Lock(), False
        self.written_at: dict[bytes, float] = {}
        self.acked: dict[bytes, int] = {}

    def write(self) -> None:
        """Write a few records, without waiting for them; none once the writer has finished."""
        with self._writing:
            if self._finished:
                return
            for _ in range(_AT_ONCE):
                value = str(len(self.written_at)).encode()
                self.written_at[value] = time.time()
                self._client.produce(
                    self._partition.topic, value, partition=self._partition.index, on_delivery=self._on_delivery
                )
        self._client.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        value, offset = message.value(), message.offset()
        if error is not None:
            self._failed[error.name()] += 1
        elif isinstance(value, bytes) and offset is not None:
            self.acked[value] = offset

    def await_more(self, records: int, watch: Callable[[], object]) -> int:
        """Wait until so many more records are acknowledged; returns the offset after the last acknowledged one.

        :param watch: raises an error to end the wait
        """
        before = len(self.acked)
        await_until(
            lambda: len(self.acked) - before,
            lambda more: more >= records,
            timeout_s=timeouts.PROGRESS_S,
            watch=watch,
            what=f"{records} more records to be written to {self._partition}",
            failure=OwnPart(self._partition.cluster, "take records", needs_all=False).unserved,
        )
        return max(self.acked.values()) + 1

    def finish(self) -> dict[int, bytes]:
        """Wait for the last records; returns the value of each record in the log, by offset.

        :raises PromiseBroken: records were refused or not answered, or the log lacks an acknowledged one
        """
        with self._writing:
            self._finished = True
        own_part = OwnPart(self._partition.cluster, "take records", needs_all=False)
        if left := self._client.flush(timeouts.PROGRESS_S):
            raise own_part.unserved(f"{left} records for {self._partition} were not answered")
        if self._failed:
            raise own_part.undone(f"records for {self._partition} were refused: {dict(self._failed)}")
        log = read_log(self._partition)
        if lost := [value for value, offset in self.acked.items() if log.get(offset) != value]:
            raise PromiseBroken(f"{self._partition} lacks {len(lost)} acknowledged records: {lost[:5]}")
        return log


def read_log(partition: Partition) -> dict[int, bytes]:
    """The value of each record of a partition, by offset.

    :raises PromiseBroken: its leader does not serve all of it
    """
    admin = partition.leader().admin
    end, found = admin.end_offset(partition.topic, partition.index), dict[int, bytes]()
    while (at := max(found, default=-1) + 1) < end:
        read = dict(values_of(admin.fetch(partition.topic, partition.index, at)))
        if max(read, default=-1) < at:
            raise PromiseBroken(f"{partition} ends at offset {end}, and its leader serves no record from {at} on")
        found |= read
    return found
