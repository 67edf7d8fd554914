"""The producer: one long-running Spark task around one confluent-kafka client.

confluent-kafka and not Spark's own Kafka sink: the sink says nothing of single records, and what it retries it may
write twice. The task hands records to the client at a set rate and writes one row per record when its fate is known
(:mod:`harness.history.record_outcome`); it never sends a record twice, that is the client's affair.

Its time is budgeted: at 100,000 records a second there are ten microseconds for each. So the delivery callback appends
numbers to lists, no more; a fresh set of lists goes to the recorder's thread ten times a second.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from harness.history import record_format
from harness.history.part_writer import HAND_OVER_S, PartWriter
from harness.history.record_outcome import Outcome, outcome_of
from harness.history.tables import PRODUCED
from harness.history.write_ahead import Reservation
from harness.spark.control import ABORT, DriverLink, TaskEndpoint
from harness.spark.run_once import claim

PRODUCER_CONFIG: Mapping[str, str | int | float | bool] = {
    "acks": "all",
    "enable.idempotence": True,
    # librdkafka up to 2.16 takes a new producer epoch when a request behind a refused one comes back out of order, and
    # what the broker had already appended is written twice (librdkafka issue 4953; seen here by
    # control/not-enough-replicas with five in flight). One at a time nothing is out of order, and who doubles is Kafka.
    "max.in.flight.requests.per.connection": 1,
    # An acks=all request that waits for followers when the leader's log dir fails is answered only when this is over
    # (measured: 30 s of silence in half of the runs with the default), though another leader is there in a second.
    "request.timeout.ms": 3000,
    # A record that can't be written ends as indeterminate within a minute, not within five.
    "message.timeout.ms": 60000,
    "linger.ms": 5,
    # A broker that is down is asked again soon, and one that is back is found at once.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 3000,
    # A broker that hangs with its connections open (SIGSTOP) is given up after this. By default it is a minute, as long
    # as the harness waits for progress: measured, clients went without for 62 s though another led after 3.4 s.
    "socket.timeout.ms": 10000,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    # How soon a new leader is known.
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.refresh.sparse": False,
    # A fault must not turn into the client's own silence.
    "queue.buffering.max.messages": 200000,
}
"""The client's settings unless a scenario gives others; each with its reason in the source."""

# Ten lots a second, of 100 records at the usual rate: three brokers then take 0.21 of a core to handle their requests,
# at 25 lots a second 0.40. What a fault costs clients is still dated to a tenth of a second.
_TICK_S = 0.1
# A client that was starved (a fault filled its queue) goes on at its rate; it doesn't make up for more than this.
_CATCH_UP_S = 0.25
_RESERVE_S = 0.25
_FLAT_OUT_BLOCK = 50_000
_FLAT_OUT_BURST = 500
# At the end in good order: the longest a record can be under way, and then some.
FLUSH_S = 65.0
ABORT_FLUSH_S = 1.0
PURGE_S = 5.0
_NO_OFFSET = -1


TransactionOutcome = Literal["committed", "aborted", "indeterminate"]


@dataclass(frozen=True, kw_only=True)
class Transactions:
    """How a transactional producer (:mod:`harness.workload.transactional`) groups its records."""

    records: int = 50
    """Records of one transaction; one that meets an error, and the last one, may be shorter."""
    abort_every: int | None = 5
    """One of so many is aborted on purpose, which one the seed decides; None: none is."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.records < 1 or (self.abort_every is not None and self.abort_every < 2):
            raise ValueError(f"a transaction has a record at least, and one of two at most is aborted: {self}")

    def aborts(self, producer: str, number: int) -> bool:
        """Whether this producer aborts its transaction of this number on purpose."""
        if self.abort_every is None:
            return False
        group, place = divmod(number, self.abort_every)
        return random.Random(f"{self.seed}/{producer}/{group}").randrange(self.abort_every) == place


@dataclass(frozen=True, kw_only=True)
class ProducerSpec:
    """All that a producer task needs to know; travels with the task."""

    producer: str
    run_dir: Path
    run_token: str
    bootstrap: str
    topic: str
    partitions: int
    rate_per_s: float | None = 1000.0
    """Records a second; None is as fast as the client takes them."""
    record_bytes: int = 100
    keys: int | None = None
    """How many different keys the records have in turn; None: no keys."""
    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Client settings over :data:`PRODUCER_CONFIG`."""
    flush_s: float = FLUSH_S
    transactions: Transactions | None = None
    """None: no transactions."""


@dataclass(slots=True)
class Settled:
    """Records whose fate is known, as columns of one length; ``errors`` by index, for the few that have one."""

    transaction: tuple[str, TransactionOutcome] | None = None
    """The one that all of them were sent in, and how it ended."""
    next_seq: int = 0
    in_flight: int = 0
    seqs: list[int] = field(default_factory=list)
    sent_at: list[int] = field(default_factory=list)
    crc32: list[int] = field(default_factory=list)
    ended_at: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    errors: dict[int, tuple[Outcome, str]] = field(default_factory=dict)


def produce(spec: ProducerSpec, invitation: TaskEndpoint, _: Iterable[Any]) -> Iterator[str]:
    """The Spark task. Ends when told to, when its driver is gone, or with an error that fails the Spark job."""
    claim(spec.run_dir, spec.producer)
    link = DriverLink(invitation)
    try:
        Producing(spec, link).run()
    finally:
        link.close()
    yield spec.producer


class Pace:
    """How many records are due on a schedule of so many a second; they come due together, once in :data:`_TICK_S`."""

    def __init__(self, rate_per_s: float | None) -> None:
        self._rate = rate_per_s
        self._began_at = time.monotonic()
        self._counted = 0

    def due(self) -> int:
        """Records to send now; what a stop of more than :data:`_CATCH_UP_S` has put off is not made up for."""
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
        """So many of them were sent."""
        self._counted += count

    def rest_s(self) -> float:
        """Seconds until the next are due, at most a tick."""
        if self._rate is None:
            return 0.0
        return _TICK_S - (time.monotonic() - self._began_at) % _TICK_S


class Producing:
    """The task's work, without transactions."""

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
        self._clients = 0
        self._counts: dict[Outcome, int] = {"acked": 0, "failed": 0, "indeterminate": 0}
        # Of what was acked, by partition: one behind the highest offset, when the newest was sent, how many.
        self._partitions: dict[int, tuple[int, int, int]] = {}
        self._newest_ack_at = 0
        self._last_error = ""
        self._transactions: dict[TransactionOutcome, int] = {"committed": 0, "aborted": 0, "indeterminate": 0}
        self._client = self._new_client()
        self._recorder = PartWriter(spec.run_dir, "produced", spec.producer, self._rows)

    def run(self) -> None:
        """Send until told to stop; on return every record sent has its row on disk."""
        pace = Pace(self._spec.rate_per_s)
        handed_over_at = time.monotonic()
        while self._link.command is None and not self._link.driver_gone.is_set():
            pace.sent(self._send(pace.due()))
            self._poll(pace.rest_s())  # sleeps until a report comes, and not past the next record's time
            if time.monotonic() - handed_over_at >= HAND_OVER_S:
                self._hand_over()
                handed_over_at = time.monotonic()
            if self._fatal is not None:
                self._settle_all(0.0)
                self._client, self._fatal = self._new_client(), None
        self._settle_all(ABORT_FLUSH_S if self._aborted() else self._spec.flush_s)
        unsettled = len(self._client)
        self._hand_over()
        self._recorder.close()
        replace(self._reservation, below=self._seq, settled=not unsettled).write(self._spec.run_dir)

    def _aborted(self) -> bool:
        return self._link.driver_gone.is_set() or (self._link.command or {}).get("do") == ABORT

    def _send(self, count: int) -> int:
        """Hand so many records to the client, fewer if its queue is full; returns how many."""
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
            except BufferError:  # not handed over: the same record is next again
                self._poll(0.01)
                return seq - first
            except KafkaException as error:
                self._refuse(seq, sent_at, crc32, error.args[0])
            self._seq = seq + 1
        return count

    def _new_client(self) -> Producer:
        """A client; another one only after a fatal error, which no client survives."""
        self._clients += 1
        return Producer({**self._config(), "bootstrap.servers": self._spec.bootstrap, "error_cb": self._hear})

    def _config(self) -> Mapping[str, Any]:
        return {**PRODUCER_CONFIG, **self._spec.config}

    def _settle(self, seq: int, sent_at: int, crc32: int, error: KafkaError | None, message: Message) -> None:
        """The delivery report."""
        if error is not None:
            self._settle_as(seq, sent_at, crc32, outcome_of(error), error.name())
            if error.fatal() or error.code() == KafkaError._FATAL:
                self._fatal = error
            return
        rows, offset = self._settled, message.offset()
        # None: acknowledged, and the broker did not say where; it knew the record from an earlier attempt (librdkafka's
        # implicit acks, DUPLICATE_SEQUENCE_NUMBER).
        rows.offsets.append(_NO_OFFSET if offset is None else offset)
        rows.seqs.append(seq)
        rows.sent_at.append(sent_at)
        rows.crc32.append(crc32)
        rows.ended_at.append(time.time_ns() // 1000)

    def _refuse(self, seq: int, sent_at: int, crc32: int, error: KafkaError) -> None:
        """The client did not take the record."""
        self._settle_as(seq, sent_at, crc32, outcome_of(error, handed_over=False), error.name())
        if error.fatal():
            self._fatal = error

    def _settle_as(self, seq: int, sent_at: int, crc32: int, outcome: Outcome, error: str) -> None:
        """A record that was not acked; ``sent_at`` 0 is unknown."""
        rows = self._settled
        rows.errors[len(rows.seqs)] = (outcome, error)
        rows.offsets.append(_NO_OFFSET)
        rows.seqs.append(seq)
        rows.sent_at.append(sent_at)
        rows.crc32.append(crc32)
        rows.ended_at.append(time.time_ns() // 1000)

    def _poll(self, timeout_s: float) -> None:
        """Serve reports. A fatal error is raised here, by the client's error callback, in place of being told there."""
        try:
            self._client.poll(timeout_s)
        except KafkaException as error:
            self._hear(error.args[0])

    def _flush(self, timeout_s: float) -> None:
        """Serve reports until there are no more to come. Not by the client's own ``flush``: it goes on calling back
        after a fatal error was raised, and what is called then dies of it (SystemError).
        """
        ends_at = time.monotonic() + timeout_s
        while len(self._client) and (rest_s := ends_at - time.monotonic()) > 0:
            self._poll(rest_s)

    def _settle_all(self, flush_s: float) -> None:
        """Until each record has its delivery report: flush for so long, then purge what is left."""
        ends_at = time.monotonic() + flush_s
        while len(self._client) and time.monotonic() < ends_at:
            self._flush(HAND_OVER_S)
            self._hand_over()
            if self._aborted():
                ends_at = min(ends_at, time.monotonic() + ABORT_FLUSH_S)
        if len(self._client):
            self._client.purge()
            self._flush(PURGE_S)

    def _hear(self, error: KafkaError) -> None:
        """Errors of no single record: connections lost and the like. Noted, not acted on, unless fatal."""
        self._last_error = error.name()
        if error.fatal():
            self._fatal = error

    def _hand_over(self) -> None:
        """Give the recorder what was settled since the last time."""
        settled, self._settled = self._settled, Settled()
        settled.next_seq, settled.in_flight = self._seq, len(self._client)
        self._recorder.add(settled)

    def _rows(self, settled: Settled) -> pa.Table:
        """In the recorder's thread: rows of ``history/produced``; counts and publishes progress."""
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
            end, newest, before = self._partitions.get(partition, (0, 0, 0))
            self._partitions[partition] = (
                max(end, int(offsets[of_it].max()) + 1),
                max(newest, int(sent_at[of_it].max())),
                before + int(of_it.sum()),
            )
        if acked.any():
            self._newest_ack_at = int(np.array(settled.ended_at)[acked].max())
        self._link.publish(
            {
                **{str(outcome): count for outcome, count in self._counts.items()},
                "next_seq": settled.next_seq,
                "in_flight": settled.in_flight,
                "newest_ack_at": self._newest_ack_at,
                "partitions": {str(partition): ends for partition, ends in self._partitions.items()},
                "transactions": self._transactions,
                "clients": self._clients,
                "last_error": self._last_error,
            }
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
