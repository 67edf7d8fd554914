"""The live consumer: one long-running Spark task around one confluent-kafka consumer.

It is assigned its partitions at given offsets and joins no group: a rebalance would take time of its own around a
fault, and the history keeps the offsets. (Groups are independent readers: :mod:`harness.workload.group`.) If the broker
does not have its offset, the task fails (``auto.offset.reset=error``) and does not go on at another one. The driver
journals that and restarts it (:mod:`harness.workload.consumer_supervisor`). A *session* is one run of this task.

Records come in batches of at most 20 ms that share one ``read_at``: exact enough for gaps of 50 ms.

**Comparison with a fresh client.** Two bugs of librdkafka can stop a client for good, which looks like Kafka's fault:

* Issue 3399 (open): a client with ``client.rack`` may stay with a follower whose replica is gone. It gets the metadata
  that name the leader while it migrates to that follower, and then never goes to the leader
  (``rd_kafka_toppar_broker_update``). It happened to 2 of 120 consumers on a loaded machine.
* Issue 4492 (closed): after a change of leaders a client may wait for ever to have its epoch validated. Its statistics
  then say that it asks no broker (``fetch_state``). It happened once in several hundred cases.

So a client that reads nothing for :data:`STUCK_S`, without an error, is compared with a fresh client that has the same
settings. If the fresh one gets the record that the old one waits for, the old one gets as much time again. If it still
reads nothing, without an error, the task fails and is restarted. A request that hangs is an error after
``socket.timeout.ms``, and does not count. The history shows the whole gap in either case. Every other standstill is a
finding.

Decision: the comparison stays, although it costs fifty lines. Without it ``kip-36/nearest-replica`` and
``kip-113/new-leader`` were invalid now and then, through no fault of Kafka. Remove it when both issues are fixed.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from harness.errors import PipelineError
from harness.history.part_writer import HAND_OVER_S, PartWriter
from harness.history.record_format import header_pattern
from harness.history.tables import CONSUMED, table_dir
from harness.kafka.security import Bootstrap
from harness.spark.control import DriverLink, TaskEndpoint
from harness.spark.tasks import claimed
from harness.workload.client_config import CONSUMER_CONFIG, ClientConfig
from harness.workload.progress import ConsumerReport, ReadPartition

Isolation = Literal["read_committed", "read_uncommitted"]

OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
"""Part of the error of a task that asked for an offset that the log does not have."""

STUCK_S = 8.0
"""How long a client may read nothing before it is compared with a fresh one, and again before it is replaced. Twice
this is longer than ``socket.timeout.ms`` and the second that a client takes to notice, together."""
_FETCHING = "active"  # the fetch_state of a partition that the client asks a broker for
STATISTICS_MS = 2000
_BATCH = 10_000
_BATCH_S = 0.02
_QUERY_S = 10.0
_LOOK_S = 2.0
_READS_ON_S = 15.0
"""How long a fresh client may take to get a record of each partition. One that can read is done sooner."""
_LOST_POSITION = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})


@dataclass(frozen=True, kw_only=True)
class StartAt:
    """Where a session begins in one partition."""

    offset: int | None = None
    """The next offset to read; None: the first offset of the log."""
    position: int = 0
    """The next value of the column ``position`` of ``history/consumed``."""
    session: int = 0
    """The number of the next session; only group members use it."""


@dataclass(frozen=True, kw_only=True)
class ConsumerSpec:
    """The parameters of one session of a consumer; sent to Spark with its task."""

    consumer: str
    session: int
    """0 for the first task of the consumer; one more after each restart."""
    run_dir: Path
    run_token: str
    bootstrap: Bootstrap
    topic: str
    starts: Mapping[int, StartAt]
    """Where to begin in each partition that it reads."""
    isolation: Isolation = "read_uncommitted"
    within_log: bool = False
    """Move offsets of ``starts`` that the log does not have to the nearest one that it has."""
    config: ClientConfig = field(default_factory=dict)
    """Settings over :data:`~harness.workload.client_config.CONSUMER_CONFIG`."""

    @property
    def task(self) -> str:
        """The name of this session's task."""
        return f"{self.consumer}-{self.session}"

    @property
    def client_config(self) -> ClientConfig:
        """All settings of its client."""
        where = {**self.bootstrap.librdkafka, "isolation.level": self.isolation}
        return {**CONSUMER_CONFIG, **self.config, **where}


def reads_on(spec: ConsumerSpec, positions: Mapping[int, int]) -> list[int]:
    """Read from these offsets with a fresh client that has a consumer's settings; returns the partitions with a record.

    In these partitions, the log does not keep the consumer from reading.
    """
    found: set[int] = set()
    client = Consumer(dict(spec.client_config))
    try:
        client.assign([TopicPartition(spec.topic, partition, offset) for partition, offset in positions.items()])
        ends_at = time.monotonic() + _READS_ON_S
        while len(found) < len(positions) and (rest_s := ends_at - time.monotonic()) > 0:
            message = client.poll(rest_s)
            if message is not None and message.error() is None:
                found.add(int(message.partition() or 0))
    finally:
        client.close()
    return sorted(found)


def resume_at(run_dir: Path, consumer: str, starts: Mapping[int, StartAt]) -> dict[int, StartAt]:
    """Where a consumer that died must go on: after the last record of its history, by partition.

    The history decides, not the last report: records that were read but not written are read again, and records that
    were written but not reported are not.

    :param starts: where the consumer first began
    """
    resumed = dict(starts)
    highest = ("offset", "position", "session")
    for part in table_dir(run_dir, "consumed").glob(f"{consumer}-*.parquet"):
        rows = pq.read_table(part, columns=["partition", *highest])
        for row in rows.group_by("partition").aggregate([(name, "max") for name in highest]).to_pylist():
            start = resumed[row["partition"]]
            resumed[row["partition"]] = StartAt(
                offset=max(start.offset or 0, row["offset_max"] + 1),
                position=max(start.position, row["position_max"] + 1),
                session=max(start.session, row["session_max"] + 1),
            )
    return resumed


class _Read:
    """The records of one call of the client; they share an instant."""

    __slots__ = ("messages", "offsets", "partitions", "read_at", "sessions")

    def __init__(self, read_at: int, messages: list[Message], sessions: Mapping[int, int]) -> None:
        self.read_at = read_at
        self.messages = messages
        self.sessions = sessions
        # A record that was read has both; the client's types allow None because Message has other uses.
        self.partitions = cast("list[int]", [message.partition() for message in messages])
        self.offsets = cast("list[int]", [message.offset() for message in messages])


def consume(spec: ConsumerSpec, endpoint: TaskEndpoint, _: Iterable[object]) -> Iterator[str]:
    """The Spark task of a live consumer.

    It ends on a command, when its driver is gone, or with an error that fails the Spark job.
    """
    with claimed(spec.run_dir, spec.task, endpoint) as link:
        Consuming(spec, link).run()
    yield spec.task


class Consuming:
    """One session of a consumer, in its task."""

    def __init__(self, spec: ConsumerSpec, link: DriverLink) -> None:
        self._spec = spec
        self._link = link
        self._pattern = header_pattern(spec.run_token)
        self._positions = {partition: start.position for partition, start in spec.starts.items()}
        self._reached = {partition: start.offset or 0 for partition, start in spec.starts.items()}
        self._sessions: Mapping[int, int] = dict.fromkeys(spec.starts, spec.session)  # replaced, never changed
        self._read = 0
        self._newest_read_at = 0
        self._newest_sent: dict[int, int] = {}
        self._last_error = ""
        self._lost: str | None = None
        self._comparison: threading.Thread | None = None
        self._read_by_fresh: Mapping[int, int] = {}  # where a fresh client got a record, by partition
        self._errors = self._errors_when_read = 0
        self._statistics = ""
        self._reads: list[_Read] = []
        self._client = Consumer(
            {
                **spec.client_config,
                "error_cb": self._hear,
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._keep_statistics,
                **self._callbacks(),
            }
        )
        self._recorder = PartWriter(spec.run_dir, "consumed", spec.task, self._rows)

    def run(self) -> None:
        """Read until a command comes; on return every record read has its row on disk."""
        self._begin()
        handed_over_at = heard_at = time.monotonic()
        while not self._at_end() and self._lost is None:
            messages = self._client.consume(_BATCH, _BATCH_S)
            now = time.monotonic()
            if messages:
                self._keep(time.time_ns() // 1000, messages)
                heard_at = now
            elif now - heard_at >= STUCK_S:
                self._compare_with_fresh_client()
                heard_at = now
            if now - handed_over_at >= HAND_OVER_S:
                self._hand_over()
                handed_over_at = now
        self._end()
        if self._lost is not None:
            raise PipelineError(f"consumer {self._spec.task}: {self._lost}")

    def _begin(self) -> None:
        """Get the partitions."""
        # The client would look again for a leader that it does not know yet only after 500 ms.
        with suppress(KafkaException):
            self._client.list_topics(self._spec.topic, _LOOK_S)
        self._client.assign([self._start_of(partition) for partition in self._spec.starts])

    def _end(self) -> None:
        self._hand_over()
        self._recorder.close()
        self._client.close()

    def _callbacks(self) -> dict[str, Callable[..., None]]:
        """More callbacks of the client."""
        return {}

    def _report(self) -> ConsumerReport:
        return ConsumerReport(
            read=self._read,
            newest_read_at=self._newest_read_at,
            partitions={
                partition: ReadPartition(end=offset, sent_at=self._newest_sent.get(partition, 0))
                for partition, offset in self._reached.copy().items()
            },
            last_error=self._last_error,
        )

    def _start_of(self, partition: int) -> TopicPartition:
        start = self._spec.starts[partition]
        if start.offset is None:
            return TopicPartition(self._spec.topic, partition, OFFSET_BEGINNING)
        offset = start.offset
        if self._spec.within_log:
            low, high = self._client.get_watermark_offsets(TopicPartition(self._spec.topic, partition), _QUERY_S)
            offset = self._reached[partition] = min(max(offset, low), high)
        return TopicPartition(self._spec.topic, partition, offset)

    def _at_end(self) -> bool:
        if self._link.aborted:
            return True
        command = self._link.command
        return command is not None and all(self._reached[partition] >= end for partition, end in command.at.items())

    def _keep(self, read_at: int, messages: list[Message]) -> None:
        """Take in one batch of the client: records, ends of partitions, errors."""
        records = [message for message in messages if message.error() is None]
        if records:
            self._errors_when_read = self._errors
            read = _Read(read_at, records, self._sessions)
            self._reads.append(read)
            for partition, offset in dict(zip(read.partitions, read.offsets, strict=True)).items():
                self._reached[partition] = offset + 1
        if len(records) == len(messages):
            return
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                read_up, end = message.partition(), message.offset()
                if read_up is not None and end is not None:
                    self._reached[read_up] = max(self._reached[read_up], end)
            elif error.code() in _LOST_POSITION:
                where = f"{message.topic()}-{message.partition()} at offset {message.offset()}"
                self._lost = f"{OUT_OF_RANGE}: {where}: {error.str()}"
            else:
                self._hear(error)

    def _hear(self, error: KafkaError) -> None:
        """Note an error that may pass, such as a lost connection; a fatal one ends the task."""
        self._last_error = error.name()
        self._errors += 1
        if error.fatal():
            self._lost = f"{error.name()}: {error.str()}"

    def _compare_with_fresh_client(self) -> None:
        """Fail the task if a fresh client got the record that this client still waits for; else start the comparison.

        Called when the client has read nothing for :data:`STUCK_S`; see the module's text.
        """
        if self._errors > self._errors_when_read:
            return
        stuck = [partition for partition, at in self._read_by_fresh.items() if self._reached[partition] == at]
        if stuck:
            where = ", ".join(f"{self._spec.topic}-{partition}@{self._reached[partition]}" for partition in stuck)
            states = self._fetch_states()
            if "client.rack" in self._spec.config or all(states.get(each) not in (None, _FETCHING) for each in stuck):
                state = ", ".join(str(states.get(partition)) for partition in stuck)
                self._lost = (
                    f"its client (fetch state {state}) reads nothing from {where} on, where a fresh client reads"
                )
        elif self._comparison is None or not self._comparison.is_alive():
            self._comparison = threading.Thread(target=self._read_afresh, args=(self._reached.copy(),), daemon=True)
            self._comparison.start()

    def _keep_statistics(self, statistics: str) -> None:
        self._statistics = statistics

    def _fetch_states(self) -> dict[int, str]:
        """The state of each partition in the client's newest statistics."""
        topics = json.loads(self._statistics or "{}").get("topics", {})
        partitions = topics.get(self._spec.topic, {}).get("partitions", {})
        return {int(partition): each["fetch_state"] for partition, each in partitions.items()}

    def _read_afresh(self, at: dict[int, int]) -> None:
        with suppress(KafkaException):
            self._read_by_fresh = {partition: at[partition] for partition in reads_on(self._spec, at)}

    def _hand_over(self) -> None:
        """Give the recorder what was read since the last time."""
        reads, self._reads = self._reads, []
        self._recorder.add(reads)

    def _rows(self, reads: list[_Read]) -> pa.Table:
        """Return rows of ``history/consumed``, and publish the progress. Runs in the recorder's thread."""
        spec = self._spec
        messages = [message for read in reads for message in read.messages]
        count = len(messages)
        partitions = np.array([partition for read in reads for partition in read.partitions], dtype=np.int32)
        values = [message.value() for message in messages]
        names = pc.extract_regex(pa.array(values, pa.binary()), self._pattern)
        producers = pc.struct_field(names, "producer").cast(pa.string())
        seqs = pc.struct_field(names, "seq").cast(pa.string()).cast(pa.int64())
        positions = np.zeros(count, dtype=np.int64)
        for partition in np.unique(partitions).tolist():
            of_it = np.flatnonzero(partitions == partition)
            first = self._positions[partition]
            positions[of_it] = np.arange(first, first + len(of_it))
            self._positions[partition] = first + len(of_it)
            last = int(of_it[-1])
            if producers[last].is_valid:
                # When the producer's client got the record, rounded down to the millisecond.
                self._newest_sent[partition] = messages[last].timestamp()[1] * 1000
        self._read += count
        if count:
            self._newest_read_at = reads[-1].read_at
        self._link.publish(self._report())
        sessions = [read.sessions[partition] for read in reads for partition in read.partitions]
        read_at = np.repeat([read.read_at for read in reads], [len(read.messages) for read in reads])
        return pa.table(
            {
                "consumer": pa.repeat(spec.consumer, count),
                "role": pa.repeat("live", count),
                "position": pa.array(positions),
                "session": pa.array(sessions, pa.int32()),
                "topic": pa.repeat(spec.topic, count),
                "partition": pa.array(partitions),
                "offset": pa.array([offset for read in reads for offset in read.offsets], pa.int64()),
                "producer": producers,
                "seq": seqs,
                "crc32": pa.array([None if value is None else zlib.crc32(value) for value in values], pa.int64()),
                "isolation": pa.repeat(spec.isolation, count),
                "read_at": pa.array(read_at.astype(np.int64)).cast(CONSUMED.field("read_at").type),
            },
            schema=CONSUMED,
        )
