"""The producer: one long-running Spark task around one confluent-kafka client.

It does not use Spark's Kafka sink, which reports nothing about single records and may write a record twice when it
retries. The task gives records to the client at a set rate, and writes one row for each record when its outcome is
known (:mod:`harness.history.record_outcome`). The task never sends a record twice; only the client retries.

At 100,000 records a second, a record may cost ten microseconds. So the delivery callback only appends numbers to lists.
Ten times a second these go to the recorder's thread.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from harness.history import record_format
from harness.history.part_writer import HAND_OVER_S, PartWriter
from harness.history.record_outcome import Outcome, outcome_of
from harness.history.tables import PRODUCED
from harness.history.write_ahead import Reservation
from harness.kafka.security import Bootstrap
from harness.spark.control import DriverLink, TaskEndpoint
from harness.spark.tasks import claimed
from harness.workload.client_config import PRODUCER_CONFIG, ClientConfig
from harness.workload.progress import AckedPartition, ProducerReport

# Ten bursts a second, of 100 records at the usual rate: three brokers then need 0.21 of a core for their requests, and
# 0.40 with 25 bursts. Times that a fault costs clients are still exact to a tenth of a second.
_TICK_S = 0.1
# A client that was held up (a fault filled its queue) makes up for no more than this.
_CATCH_UP_S = 0.25
_RESERVE_S = 0.25
_FLAT_OUT_BLOCK = 50_000
_FLAT_OUT_BURST = 500
# A little more than message.timeout.ms: the longest that a record can be in flight.
FLUSH_S = 65.0
ABORT_FLUSH_S = 1.0
PURGE_S = 5.0
_NO_OFFSET = -1


TransactionOutcome = Literal["committed", "aborted", "indeterminate"]


@dataclass(frozen=True, kw_only=True)
class Transactions:
    """How a transactional producer (:mod:`harness.workload.transactional`) groups its records."""

    records: int = 50
    """Records in one transaction. The last transaction, and one that meets an error, may have fewer."""
    abort_every: int | None = 5
    """One in this many transactions is aborted on purpose; the seed decides which. None: no transaction is."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.records < 1 or (self.abort_every is not None and self.abort_every < 2):
            raise ValueError(f"records must be at least 1, and abort_every at least 2 or None: {self}")

    def aborts(self, producer: str, number: int) -> bool:
        """Whether this producer aborts its transaction with this number on purpose."""
        if self.abort_every is None:
            return False
        group, place = divmod(number, self.abort_every)
        return random.Random(f"{self.seed}/{producer}/{group}").randrange(self.abort_every) == place


@dataclass(frozen=True, kw_only=True)
class ProducerSpec:
    """The parameters of a producer; sent to Spark with its task."""

    producer: str
    run_dir: Path
    run_token: str
    bootstrap: Bootstrap
    topic: str
    partitions: int
    rate_per_s: float | None = 1000.0
    """Records a second; None: as fast as the client takes them."""
    record_bytes: int = 100
    keys: int | None = None
    """How many different keys the records have in turn; None: no keys."""
    config: ClientConfig = field(default_factory=dict)
    """Settings over :data:`~harness.workload.client_config.PRODUCER_CONFIG`."""
    flush_s: float = FLUSH_S
    transactions: Transactions | None = None
    """None: no transactions."""


@dataclass(slots=True)
class Settled:
    """Records with a known outcome, as columns of equal length; ``errors`` by index, for the few that have one."""

    transaction: tuple[str, TransactionOutcome] | None = None
    """The transaction of all these records, and how it ended."""
    in_flight: int = 0
    seqs: list[int] = field(default_factory=list)
    sent_at: list[int] = field(default_factory=list)
    crc32: list[int] = field(default_factory=list)
    ended_at: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    errors: dict[int, tuple[Outcome, str]] = field(default_factory=dict)


def produce(spec: ProducerSpec, endpoint: TaskEndpoint, _: Iterable[object]) -> Iterator[str]:
    """The Spark task of a producer.

    It ends on a command, when its driver is gone, or with an error that fails the Spark job.
    """
    with claimed(spec.run_dir, spec.producer, endpoint) as link:
        Producing(spec, link).run()
    yield spec.producer


class Pace:
    """Spreads records over time: they fall due in bursts, one every :data:`_TICK_S`."""

    def __init__(self, rate_per_s: float | None) -> None:
        self._rate = rate_per_s
        self._began_at = time.monotonic()
        self._counted = 0

    def due(self) -> int:
        """How many records to send now. After a pause longer than :data:`_CATCH_UP_S` the schedule starts anew."""
        if self._rate is None:
            return _FLAT_OUT_BURST
        now = time.monotonic()
        ticks = (now - self._began_at) // _TICK_S
        due = int(ticks * _TICK_S * self._rate) + 1 - self._counted
        if due > self._rate * _CATCH_UP_S + 1:
            self._began_at, self._counted = now, 0
            due = 1
        return due

    def sent(self, count: int) -> None:
        """Count records that were sent."""
        self._counted += count

    def rest_s(self) -> float:
        """Seconds until the next burst is due."""
        if self._rate is None:
            return 0.0
        return _TICK_S - (time.monotonic() - self._began_at) % _TICK_S


class Producing:
    """The producer in its task, without transactions."""

    def __init__(self, spec: ProducerSpec, link: DriverLink) -> None:
        self._spec = spec
        self._link = link
        self._reservation = Reservation(
            producer=spec.producer,
            run_token=spec.run_token,
            topic=spec.topic,
            partitions=spec.partitions,
            keys=spec.keys,
            record_bytes=spec.record_bytes,
        )
        self._prefix = record_format.prefix_of(spec.run_token, spec.producer)
        self._padding = record_format.padding_to(spec.record_bytes)
        self._block = _FLAT_OUT_BLOCK if spec.rate_per_s is None else max(100, int(spec.rate_per_s * _RESERVE_S))
        self._seq = 0
        self._settled = Settled()
        self._fatal: KafkaError | None = None
        self._counts: dict[Outcome, int] = {"acked": 0, "failed": 0, "indeterminate": 0}
        self._partitions: dict[int, AckedPartition] = {}
        self._newest_ack_at = 0
        self._last_error = ""
        self._transactions: dict[TransactionOutcome, int] = {"committed": 0, "aborted": 0, "indeterminate": 0}
        self._client = self._new_client()
        self._recorder = PartWriter(spec.run_dir, "produced", spec.producer, self._rows)

    def run(self) -> None:
        """Send until a command comes; on return every record sent has its row on disk."""
        pace = Pace(self._spec.rate_per_s)
        handed_over_at = time.monotonic()
        while not self._link.told_to_end:
            pace.sent(self._send(pace.due()))
            self._poll(pace.rest_s())  # returns when a delivery report comes, or when the next record is due
            if time.monotonic() - handed_over_at >= HAND_OVER_S:
                self._hand_over()
                handed_over_at = time.monotonic()
            if self._fatal is not None:
                self._settle_all(0.0)
                self._client, self._fatal = self._new_client(), None
        self._settle_all(ABORT_FLUSH_S if self._link.aborted else self._spec.flush_s)
        unsettled = len(self._client)
        self._hand_over()
        self._recorder.close()
        replace(self._reservation, below=self._seq, settled=not unsettled).write(self._spec.run_dir)

    def _send(self, count: int) -> int:
        """Give the client ``count`` records, fewer if its queue is full; returns how many."""
        spec, prefix, padding = self._spec, self._prefix, self._padding
        topic, keys, partitions, send = spec.topic, spec.keys, spec.partitions, self._client.produce
        first = self._seq
        if first + count > self._reservation.below:
            self._reservation = replace(self._reservation, below=first + count + self._block).write(spec.run_dir)
        for seq in range(first, first + count):
            value = record_format.value_of(prefix, seq, padding)
            crc32 = zlib.crc32(value)
            sent_at = time.time_ns() // 1000
            report = partial(self._settle, seq, sent_at, crc32)
            try:
                send(
                    topic,
                    value,
                    record_format.key_of(seq, keys),
                    record_format.partition_of(seq, keys, partitions),
                    report,
                )
            except BufferError:  # not queued: this record is the next one again
                self._poll(0.01)
                return seq - first
            except KafkaException as error:
                self._refuse(seq, sent_at, crc32, error.args[0])
            self._seq = seq + 1
        return count

    def _new_client(self) -> Producer:
        """Return a new client. A fatal error ends a client, so the task then needs another one."""
        return Producer({**self._config(), **self._spec.bootstrap.librdkafka, "error_cb": self._hear})

    def _config(self) -> ClientConfig:
        return {**PRODUCER_CONFIG, **self._spec.config}

    def _settle(self, seq: int, sent_at: int, crc32: int, error: KafkaError | None, message: Message) -> None:
        """Note the outcome of a record; the client calls this as the record's delivery report."""
        if error is not None:
            self._settle_as(seq, sent_at, crc32, outcome_of(error), error.name())
            if error.fatal() or error.code() == KafkaError._FATAL:
                self._fatal = error
            return
        rows, offset = self._settled, message.offset()
        # None: acked without an offset, because the broker had the record from an earlier attempt (implicit acks of
        # librdkafka, DUPLICATE_SEQUENCE_NUMBER).
        rows.offsets.append(_NO_OFFSET if offset is None else offset)
        rows.seqs.append(seq)
        rows.sent_at.append(sent_at)
        rows.crc32.append(crc32)
        rows.ended_at.append(time.time_ns() // 1000)

    def _refuse(self, seq: int, sent_at: int, crc32: int, error: KafkaError) -> None:
        """Note the outcome of a record that the client refused."""
        self._settle_as(seq, sent_at, crc32, outcome_of(error, handed_over=False), error.name())
        if error.fatal():
            self._fatal = error

    def _settle_as(self, seq: int, sent_at: int, crc32: int, outcome: Outcome, error: str) -> None:
        """Note a record that was not acked; ``sent_at`` 0 is unknown."""
        rows = self._settled
        rows.errors[len(rows.seqs)] = (outcome, error)
        rows.offsets.append(_NO_OFFSET)
        rows.seqs.append(seq)
        rows.sent_at.append(sent_at)
        rows.crc32.append(crc32)
        rows.ended_at.append(time.time_ns() // 1000)

    def _poll(self, timeout_s: float) -> None:
        """Serve delivery reports. The client raises a fatal error here and does not call its error callback."""
        try:
            self._client.poll(timeout_s)
        except KafkaException as error:
            self._hear(error.args[0])

    def _flush(self, timeout_s: float) -> None:
        """Serve delivery reports until there are no more.

        The client's own ``flush`` still calls back after it has raised a fatal error. Python makes that a SystemError.
        """
        ends_at = time.monotonic() + timeout_s
        while len(self._client) and (rest_s := ends_at - time.monotonic()) > 0:
            self._poll(rest_s)

    def _settle_all(self, flush_s: float) -> None:
        """Wait until each record has its delivery report; purge the records that have none after ``flush_s``."""
        ends_at = time.monotonic() + flush_s
        while len(self._client) and time.monotonic() < ends_at:
            self._flush(HAND_OVER_S)
            self._hand_over()
            if self._link.aborted:
                ends_at = min(ends_at, time.monotonic() + ABORT_FLUSH_S)
        if len(self._client):
            self._client.purge()
            self._flush(PURGE_S)

    def _hear(self, error: KafkaError) -> None:
        """Note an error that belongs to no record, such as a lost connection."""
        self._last_error = error.name()
        if error.fatal():
            self._fatal = error

    def _hand_over(self) -> None:
        """Give the recorder what was settled since the last time."""
        settled, self._settled = self._settled, Settled()
        settled.in_flight = len(self._client)
        self._recorder.add(settled)

    def _rows(self, settled: Settled) -> pa.Table:
        """Return rows of ``history/produced``, and publish the progress. Runs in the recorder's thread."""
        spec = self._spec
        count = len(settled.seqs)
        transaction, transaction_outcome = settled.transaction or (None, None)
        if transaction_outcome is not None and count:
            self._transactions[transaction_outcome] += 1
        seqs = np.array(settled.seqs, dtype=np.int64)
        offsets = np.array(settled.offsets, dtype=np.int64)
        sent_at = np.array(settled.sent_at, dtype=np.int64)
        partitions = (seqs if spec.keys is None else seqs % spec.keys) % spec.partitions
        acked = np.ones(count, dtype=bool)
        outcomes, errors = pa.repeat("acked", count), pa.nulls(count, pa.string())
        if settled.errors:
            acked[list(settled.errors)] = False
            fates = [settled.errors.get(index, ("acked", None)) for index in range(count)]
            outcomes = pa.array([outcome for outcome, _ in fates], pa.string())
            errors = pa.array([error for _, error in fates], pa.string())
            for outcome, _ in settled.errors.values():
                self._counts[outcome] += 1
        self._counts["acked"] += count - len(settled.errors)
        for partition in np.unique(partitions[acked]).tolist():
            of_it = acked & (partitions == partition)
            before = self._partitions.get(partition, AckedPartition())
            self._partitions[partition] = AckedPartition(
                end=max(before.end, int(offsets[of_it].max()) + 1),
                sent_at=max(before.sent_at, int(sent_at[of_it].max())),
                records=before.records + int(of_it.sum()),
            )
        if acked.any():
            self._newest_ack_at = int(np.array(settled.ended_at)[acked].max())
        self._link.publish(
            ProducerReport(
                acked=self._counts["acked"],
                failed=self._counts["failed"],
                indeterminate=self._counts["indeterminate"],
                in_flight=settled.in_flight,
                newest_ack_at=self._newest_ack_at,
                partitions=self._partitions.copy(),
                committed=self._transactions["committed"],
                aborted=self._transactions["aborted"],
                unresolved=self._transactions["indeterminate"],
                last_error=self._last_error,
            )
        )
        timestamp = PRODUCED.field("sent_at").type
        return pa.table(
            {
                "producer": pa.repeat(spec.producer, count),
                "seq": pa.array(seqs),
                "topic": pa.repeat(spec.topic, count),
                "key": pa.array([record_format.key_of(seq, spec.keys) for seq in settled.seqs], pa.string())
                if spec.keys
                else pa.nulls(count, pa.string()),
                "partition": pa.array(partitions.astype(np.int32)),
                "offset": pa.array(offsets, mask=offsets < 0),
                "outcome": outcomes,
                "error": errors,
                "crc32": pa.array(settled.crc32, pa.int64()),
                "sent_at": pa.array(sent_at, mask=sent_at == 0).cast(timestamp),
                "ended_at": pa.array(settled.ended_at, pa.int64()).cast(timestamp),
                "transaction": pa.repeat(pa.scalar(transaction, pa.string()), count),
                "transaction_outcome": pa.repeat(pa.scalar(transaction_outcome, pa.string()), count),
            },
            schema=PRODUCED,
        )
