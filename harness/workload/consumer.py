"""The live consumer: one long-running Spark task around one confluent-kafka consumer.

It is assigned its partitions from given positions and is in no group: a rebalance would be one more thing that takes
time around a fault, and offsets are kept by the history itself (members of groups are other readers, beside it:
:mod:`harness.workload.group`). An offset that the broker doesn't have is an error
(``auto.offset.reset=error``) and no reason to go on silently somewhere else; the task ends, and the driver starts it
again, counted and journaled (:mod:`harness.workload.pair`).

Records are read in batches of at most 20 ms and share a ``read_at``: fine enough for gaps of 50 ms.

A client with ``client.rack`` can stay with a follower for good though its replica is gone: the leader that sends it
there and the metadata that say who leads arrive at once, it takes itself to be with the leader, and never goes there
(librdkafka's issue 3399, open; ``rd_kafka_toppar_broker_update`` sees no change while another migration is under way).
Such a client is given up: it has stood still for :data:`STUCK_S`, then a fresh one with its settings was handed the
record that it waits for, it stood still for as long again, and has heard of no error all the while: it is answered, by
who has nothing for it. A request that hangs is an error to it after ``socket.timeout.ms``, and it stays where it is.

So is one without ``client.rack`` that by its own statistics (``fetch_state``) asks nobody for the partition: after a
change of leaders it may wait for good to have its epoch validated (its issue 4492; seen once in some hundred cases).
What clients went without is in the history as it was. Any other that stands still is a finding.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from harness.errors import PipelineError
from harness.history.part_writer import HAND_OVER_S, PartWriter
from harness.history.record_format import header_pattern
from harness.history.tables import CONSUMED, table_dir
from harness.spark.control import ABORT, STOP, DriverLink, TaskEndpoint
from harness.spark.run_once import claim

Isolation = Literal["read_committed", "read_uncommitted"]

CONSUMER_CONFIG: Mapping[str, str | int | float | bool] = {
    # Named because the client demands it; never joined, nothing is committed.
    "group.id": "jbod",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    # Tells how far a partition was read where its end has no record to show (markers of transactions).
    "enable.partition.eof": True,
    # A new leader is asked only when the request to the same broker that waits is answered: 500 ms by default.
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 3000,
    # As the producer: a broker that hangs is given up after this.
    "socket.timeout.ms": 10000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.refresh.sparse": False,
}
"""The client's settings unless a scenario gives others."""

OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
"""In the error of a task whose position the log doesn't have (any more)."""

STUCK_S = 8.0
"""So long a client may stand still before it is compared with another, and then once more.

Twice that is longer than ``socket.timeout.ms``, with the second that the client takes to notice.
"""
ASKS = "active"
"""``fetch_state`` of a partition that a client asks a broker for, as its statistics have it."""
STATISTICS_MS = 2000
_BATCH = 10_000
_BATCH_S = 0.02
_QUERY_S = 10.0
_LOOK_S = 2.0
# Asked when a wait has failed already; whoever reads is done sooner.
_READS_ON_S = 15.0
_LOST_POSITION = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})


@dataclass(frozen=True, kw_only=True)
class StartAt:
    """Where to go on in one partition."""

    offset: int | None = None
    """The next offset to read; None: the first that the log has."""
    position: int = 0
    """The next number in ``history/consumed``'s column of that name."""
    session: int = 0
    """The number of the next session in this partition; only of interest where sessions begin with an assignment."""


@dataclass(frozen=True, kw_only=True)
class ConsumerSpec:
    """All that one session of a live consumer needs to know; travels with the task."""

    consumer: str
    session: int
    run_dir: Path
    run_token: str
    bootstrap: str
    topic: str
    starts: Mapping[int, StartAt]
    """By partition: all that are read."""
    isolation: Isolation = "read_uncommitted"
    within_log: bool = False
    """Start inside of what the log has, where ``starts`` is outside: after a session that died of that."""
    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Client settings over :data:`CONSUMER_CONFIG`."""

    @property
    def task(self) -> str:
        """The name of this session's task."""
        return f"{self.consumer}-{self.session}"


def reads_on(spec: ConsumerSpec, positions: Mapping[int, int]) -> list[int]:
    """The partitions of which a fresh client with a consumer's settings is handed a record, from these offsets on.

    A consumer that stands still, while this one doesn't, is not kept from reading by what the log is.
    """
    found: set[int] = set()
    client = Consumer(
        {**CONSUMER_CONFIG, **spec.config, "bootstrap.servers": spec.bootstrap, "isolation.level": spec.isolation}
    )
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
    """Where a consumer that died has to go on: behind the last record that its history has, by partition.

    Read from the history and not from the last progress heard: what was read and not written down is read again, and
    what was written down and not reported is not. ``starts`` is where it had begun.
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
    """The records of one call of the client, which share the instant."""

    __slots__ = ("messages", "offsets", "partitions", "read_at", "sessions")

    def __init__(self, read_at: int, messages: list[Message], sessions: Mapping[int, int]) -> None:
        self.read_at = read_at
        self.messages = messages
        self.sessions = sessions
        # A record that was read has both; the client's types allow None for the sake of other uses of Message.
        self.partitions: list[Any] = [message.partition() for message in messages]
        self.offsets: list[Any] = [message.offset() for message in messages]


def consume(spec: ConsumerSpec, invitation: TaskEndpoint, _: Iterable[Any]) -> Iterator[str]:
    """The Spark task. Ends when told to, when its driver is gone, or with an error that fails the Spark job."""
    claim(spec.run_dir, spec.task)
    link = DriverLink(invitation)
    try:
        Consuming(spec, link).run()
    finally:
        link.close()
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
        self._beside: threading.Thread | None = None
        self._passed: Mapping[int, int] = {}
        self._errors = self._errors_when_read = 0
        self._statistics = ""
        self._reads: list[_Read] = []
        self._client = Consumer(
            {
                **CONSUMER_CONFIG,
                **spec.config,
                "bootstrap.servers": spec.bootstrap,
                "isolation.level": spec.isolation,
                "error_cb": self._hear,
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._keep_statistics,
                **self._callbacks(),
            }
        )
        self._recorder = PartWriter(spec.run_dir, "consumed", spec.task, self._rows)

    def run(self) -> None:
        """Read until told to stop; on return every record read has its row on disk."""
        self._begin()
        handed_over_at = heard_at = time.monotonic()
        while not self._at_end() and self._lost is None:
            messages = self._client.consume(_BATCH, _BATCH_S)
            now = time.monotonic()
            if messages:
                self._keep(time.time_ns() // 1000, messages)
                heard_at = now
            elif now - heard_at >= STUCK_S:
                self._look_beside()
                heard_at = now
            if now - handed_over_at >= HAND_OVER_S:
                self._hand_over()
                handed_over_at = now
        self._end()
        if self._lost is not None:
            raise PipelineError(f"consumer {self._spec.task}: {self._lost}")

    def _begin(self) -> None:
        """Get the partitions."""
        # A partition that is assigned before its leader is known is looked at again only after 500 ms.
        with suppress(KafkaException):
            self._client.list_topics(self._spec.topic, _LOOK_S)
        self._client.assign([self._start_of(partition) for partition in self._spec.starts])

    def _end(self) -> None:
        self._hand_over()
        self._recorder.close()
        self._client.close()

    def _callbacks(self) -> dict[str, Any]:
        """What else the client is to call."""
        return {}

    def _more_progress(self) -> dict[str, Any]:
        """What else the driver is told."""
        return {}

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
        command = self._link.command
        if self._link.driver_gone.is_set() or (command and command["do"] == ABORT):
            return True
        if command is None or command["do"] != STOP:
            return False
        return all(self._reached[int(partition)] >= offset for partition, offset in command.get("at", {}).items())

    def _keep(self, read_at: int, messages: list[Message]) -> None:
        """Take in what the client handed over at once: records, ends of partitions, errors."""
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
                partition, end = message.partition(), message.offset()
                if partition is not None and end is not None:
                    self._reached[partition] = max(self._reached[partition], end)
            elif error.code() in _LOST_POSITION:
                where = f"{message.topic()}-{message.partition()} at offset {message.offset()}"
                self._lost = f"{OUT_OF_RANGE}: {where}: {error.str()}"
            else:
                self._hear(error)

    def _hear(self, error: KafkaError) -> None:
        """Errors that pass: connections lost, leaders moved. Noted; only a fatal one ends the task."""
        self._last_error = error.name()
        self._errors += 1
        if error.fatal():
            self._lost = f"{error.name()}: {error.str()}"

    def _look_beside(self) -> None:
        """Whether this client still waits for what another was handed; if not, another is asked."""
        passed = [partition for partition, at in self._passed.items() if self._reached[partition] == at]
        if self._errors > self._errors_when_read:
            return
        if passed:
            where = ", ".join(f"{self._spec.topic}-{partition}@{self._passed[partition]}" for partition in passed)
            states = self._fetch_states()
            if "client.rack" in self._spec.config or all(states.get(each) not in (None, ASKS) for each in passed):
                state = ", ".join(str(states.get(partition)) for partition in passed)
                self._lost = f"its client ({state}) has stood still at {where}, from where a fresh one reads on"
        elif self._beside is None or not self._beside.is_alive():
            self._beside = threading.Thread(target=self._ask_another, args=(self._reached.copy(),), daemon=True)
            self._beside.start()

    def _keep_statistics(self, statistics: str) -> None:
        self._statistics = statistics

    def _fetch_states(self) -> dict[int, str]:
        """What the client does about each partition, as it said last."""
        topics = json.loads(self._statistics or "{}").get("topics", {})
        partitions = topics.get(self._spec.topic, {}).get("partitions", {})
        return {int(partition): each["fetch_state"] for partition, each in partitions.items()}

    def _ask_another(self, at: dict[int, int]) -> None:
        with suppress(KafkaException):
            self._passed = {partition: at[partition] for partition in reads_on(self._spec, at)}

    def _hand_over(self) -> None:
        """Give the recorder what was read since the last time."""
        reads, self._reads = self._reads, []
        self._recorder.add(reads)

    def _rows(self, reads: list[_Read]) -> pa.Table:
        """In the recorder's thread: rows of ``history/consumed``; counts and publishes progress."""
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
                # The instant that its producer's client was handed the record, rounded down to the millisecond.
                self._newest_sent[partition] = messages[last].timestamp()[1] * 1000
        self._read += count
        if count:
            self._newest_read_at = reads[-1].read_at
        self._link.publish(
            {
                "read": self._read,
                "newest_read_at": self._newest_read_at,
                "partitions": {
                    str(partition): (offset, self._newest_sent.get(partition, 0))
                    for partition, offset in self._reached.copy().items()
                },
                "last_error": self._last_error,
                **self._more_progress(),
            }
        )
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
