"""The pair of producer and live consumer that runs through a fault, as a scenario uses it.

::

    with workload.running(bootstrap, "orders", 3) as pair:
        …break something…
        pair.await_progress(after=fault.injected_at)
    workload.drain(bootstrap, {("orders", 0): 5120, …})

:class:`Workload` is one a run: one Spark session, one control server, one history. :class:`Pair` supervises its
tasks: a consumer that dies is started again where the history says that it was; a producer that dies is not (its
records would be sent anew under other numbers), and its pair fails.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from harness.errors import JbodError, PipelineError, PromiseBroken
from harness.pipeline import reserved
from harness.pipeline.consumer import OUT_OF_RANGE, ConsumerSpec, Isolation, StartAt, consume, resume_at
from harness.pipeline.control import ABORT, STOP, ControlServer
from harness.pipeline.drain import Drained, drain
from harness.pipeline.producer import ProducerSpec, produce
from harness.pipeline.record import SMALLEST_RECORD_BYTES, check_words
from harness.pipeline.session import SparkHandle
from harness.pipeline.tasks import SparkTask
from harness.waiting import await_until

START_S = 60.0
"""Two Python workers start and the first record goes round; 2 to 4 s on idle cores."""
PROGRESS_S = 60.0
"""A few of the client's own request time-outs."""
CATCH_UP_S = 60.0
"""The consumer reads what was acked before the producer stopped."""
_BEYOND_FLUSH_S = 15.0
MAX_RESTARTS = 20

ClientConfig = Mapping[str, str | int | float | bool]


class OnEvent(Protocol):
    """Where events go: the journal's ``write``."""

    def __call__(self, kind: str, **fields: Any) -> object:
        """Note one event."""


@dataclass(frozen=True, kw_only=True)
class PartitionProgress:
    """Where a pair stands in one partition; None is never."""

    partition: int
    acked_end: int
    """One behind the highest offset acked."""
    acked_sent_at: datetime | None
    """When the newest record that was acked had been handed to the client."""
    read_end: int
    """The next offset that the live consumer reads."""
    read_sent_at: datetime | None
    """When the newest record that was read had been handed to the client, rounded down to the millisecond."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a pair stands; at most some 0.3 s old."""

    acked: int
    failed: int
    indeterminate: int
    in_flight: int
    read: int
    restarts: int
    """How often the live consumer was started again."""
    acked_at: datetime | None
    """The newest acknowledgement."""
    read_at: datetime | None
    """The newest read."""
    partitions: tuple[PartitionProgress, ...]

    def __str__(self) -> str:
        return (
            f"{self.acked} acked, {self.failed} failed, {self.indeterminate} indeterminate, {self.in_flight} in "
            f"flight, {self.read} read, consumer restarted {self.restarts} times"
        )


class Pair:
    """One or more producers and one live consumer at work on one topic. Made by :meth:`Workload.running`."""

    def __init__(
        self,
        session: SparkSession,
        server: ControlServer,
        on_event: OnEvent,
        producers: list[ProducerSpec],
        consumer: ConsumerSpec,
    ) -> None:
        self._session = session
        self._server = server
        self._on_event = on_event
        self._specs = producers
        self._began = consumer
        self._consumer = consumer
        self._restarts = 0
        self._read_before = 0
        self._broken: str | None = None
        self._ending = False  # producers may end
        self._aborting = False  # the consumer may die
        self._stop_at: dict[int, int] | None = None
        self._consumer_done = threading.Event()
        self._lock = threading.Lock()
        self._producers = [
            SparkTask(self._session, server, spec.producer, partial(produce, spec), on_end=self._producer_ended)
            for spec in producers
        ]
        self._consumer_task = self._start_consumer()

    @property
    def topic(self) -> str:
        """What it works on."""
        return self._began.topic

    @property
    def producers(self) -> tuple[str, ...]:
        """The producers' names in the history."""
        return tuple(spec.producer for spec in self._specs)

    @property
    def consumer(self) -> str:
        """The live consumer's name in the history."""
        return self._began.consumer

    @property
    def progress(self) -> Progress:
        """Where the pair stands, as the tasks last reported."""
        sent = [task.channel.progress or {} for task in self._producers]
        read = self._consumer_task.channel.progress or {}
        return Progress(
            acked=sum(report.get("acked", 0) for report in sent),
            failed=sum(report.get("failed", 0) for report in sent),
            indeterminate=sum(report.get("indeterminate", 0) for report in sent),
            in_flight=sum(report.get("in_flight", 0) for report in sent),
            read=self._read_before + read.get("read", 0),
            restarts=self._restarts,
            acked_at=_instant(max((report.get("newest_ack_at", 0) for report in sent), default=0)),
            read_at=_instant(read.get("newest_read_at", 0)),
            partitions=tuple(self._partition(partition, sent, read) for partition in self._began.starts),
        )

    def await_ready(self, timeout_s: float = START_S) -> Progress:
        """Until both tasks run and a first record was acked and read.

        :raises PipelineError: a producer died, or the time is over; says which tasks never ran
        """
        return await_until(
            lambda: self.progress,
            lambda progress: progress.acked > 0 and progress.read > 0,
            timeout_s=timeout_s,
            what=f"the first record of {self.topic} to be acked and read",
            watch=self.check,
            failure=PipelineError,
            hint=self._why_not_ready,
        )

    def await_count(
        self, records: int, timeout_s: float = PROGRESS_S, failure: type[JbodError] = PromiseBroken
    ) -> Progress:
        """Until this many records in all were acked, and as many read.

        :param failure: what a time-out means; before any fault it is too little load, not a broken promise
        :raises PipelineError: a producer died, or the consumer for good
        """
        return await_until(
            lambda: self.progress,
            lambda progress: min(progress.acked, progress.read) >= records,
            timeout_s=timeout_s,
            what=f"{records} records of {self.topic} to be acked and read",
            watch=self.check,
            failure=failure,
            hint=self._standing_still,
        )

    def await_progress(
        self,
        after: datetime,
        timeout_s: float = PROGRESS_S,
        *,
        records: int = 100,
        partitions: Collection[int] | None = None,
    ) -> Progress:
        """Until a record that was sent after this instant was acked, and one that was sent after it was read; and then
        until as many more as make it ``records``: one could have been under way already.

        :param after: an instant with a time zone
        :param partitions: in each of these; None: in each of the topic's
        :raises PromiseBroken: not within ``timeout_s`` seconds; says how long producer and consumer have stood still
        :raises PipelineError: a producer died, or the consumer for good
        """

        def got_through(progress: Progress) -> bool:
            of_interest = [each for each in progress.partitions if partitions is None or each.partition in partitions]
            acked = [each.acked_sent_at is not None and each.acked_sent_at > after for each in of_interest]
            read = [each.read_sent_at is not None and each.read_sent_at > after for each in of_interest]
            return all(acked) and all(read) and bool(of_interest)

        where = self.topic if partitions is None else f"{self.topic}, partitions {sorted(partitions)}"
        first = await_until(
            lambda: self.progress,
            got_through,
            timeout_s=timeout_s,
            what=f"a record of {where} sent after {after.isoformat(timespec='milliseconds')} to be acked and read",
            watch=self.check,
            failure=PromiseBroken,
            hint=self._standing_still,
        )
        return self.await_count(max(first.acked, first.read) + records - 1, timeout_s)

    def await_acked(self, after: datetime, timeout_s: float = PROGRESS_S) -> Progress:
        """Until a record that was sent after this instant was acked, read or not: where followers are away, an
        acks=1 producer gets through and no consumer does.

        :raises PromiseBroken, PipelineError: as :meth:`await_progress`
        """
        return await_until(
            lambda: self.progress,
            lambda progress: any(p.acked_sent_at is not None and p.acked_sent_at > after for p in progress.partitions),
            timeout_s=timeout_s,
            what=f"a record of {self.topic} sent after {after.isoformat(timespec='milliseconds')} to be acked",
            watch=self.check,
            failure=PromiseBroken,
            hint=self._standing_still,
        )

    def check(self) -> None:
        """Raise PipelineError if a producer died, or the consumer for good."""
        if self._broken is not None:
            raise PipelineError(self._broken)

    def stop(self) -> Progress:
        """End in good order: every record sent is settled, then the consumer reads up to all that was acked.

        Bounded: what is under way after the client's ``message.timeout.ms`` is purged and indeterminate, and a
        consumer that is not there in :data:`CATCH_UP_S` is ended and the journal says so (``consumer.behind``). May be
        called twice.

        :raises PipelineError: a producer died before, or the consumer for good
        """
        self.check()
        if self._consumer_done.is_set():
            return self.progress
        self._ending = True
        self._on_event("pair.stopping", topic=self.topic)
        for task in self._producers:
            task.channel.send(STOP)
        for task, spec in zip(self._producers, self._specs, strict=True):
            if not task.join(spec.flush_s + _BEYOND_FLUSH_S):
                self._on_event("producer.stuck", producer=task.name)
                task.end()
        self._settle()
        acked = {each.partition: each.acked_end for each in self.progress.partitions}
        with self._lock:
            self._stop_at = acked
            self._consumer_task.channel.send(STOP, at=acked)
        if not self._consumer_done.wait(CATCH_UP_S):
            reached = {each.partition: each.read_end for each in self.progress.partitions}
            self._on_event("consumer.behind", consumer=self.consumer, topic=self.topic, read=reached, acked=acked)
            self.abort()
        self._on_event("pair.stopped", topic=self.topic, progress=str(self.progress))
        self.check()
        return self.progress

    def abort(self) -> None:
        """End all tasks now; what is not settled is written down as indeterminate. May be called twice."""
        with self._lock:  # or a consumer might be started again just now
            self._ending = self._aborting = True
            tasks = [*self._producers, self._consumer_task]
        for task in tasks:
            task.channel.send(ABORT)
        for task in tasks:
            task.end()
        self._settle()

    def _settle(self) -> None:
        for producer, rows in reserved.settle(self._began.run_dir, self.producers).items():
            self._on_event("producer.settled", producer=producer, indeterminate=rows)

    def _start_consumer(self) -> SparkTask:
        return SparkTask(
            self._session,
            self._server,
            self._consumer.task,
            partial(consume, self._consumer),
            on_end=self._consumer_ended,
        )

    def _producer_ended(self, task: SparkTask) -> None:
        if task.error is None and self._ending:
            return
        error = task.error or "ended though nobody had told it to"
        self._on_event("producer.died", producer=task.name, error=error)
        if not self._aborting:
            self._broken = f"producer {task.name} died: {error}"

    def _consumer_ended(self, task: SparkTask) -> None:
        with self._lock:
            if self._aborting or (task.error is None and self._stop_at is not None):
                self._consumer_done.set()
                return
            error = task.error or "ended though nobody had told it to"
            self._on_event("consumer.died", consumer=self.consumer, session=self._consumer.session, error=error)
            if self._restarts >= MAX_RESTARTS:
                self._broken = f"consumer {self.consumer} died {MAX_RESTARTS + 1} times, the last time: {error}"
                self._consumer_done.set()
                return
            try:
                starts = resume_at(self._began.run_dir, self.consumer, self._began.starts)
                self._restarts += 1
                self._read_before = sum(start.position for start in starts.values())
                self._consumer = replace(
                    self._began, session=self._restarts, starts=starts, within_log=OUT_OF_RANGE in error
                )
                self._consumer_task = self._start_consumer()
            except Exception as failure:
                self._broken = f"consumer {self.consumer} died ({error}) and can't be started again: {failure}"
                self._consumer_done.set()
                return
            offsets = {partition: start.offset for partition, start in starts.items()}
            self._on_event("consumer.restarted", consumer=self.consumer, session=self._restarts, offsets=offsets)
            if self._stop_at is not None:
                self._consumer_task.channel.send(STOP, at=self._stop_at)

    def _partition(self, partition: int, sent: list[dict[str, Any]], read: dict[str, Any]) -> PartitionProgress:
        acked = [report.get("partitions", {}).get(str(partition), (0, 0)) for report in sent]
        read_end, read_sent_at = read.get("partitions", {}).get(str(partition), (0, 0))
        return PartitionProgress(
            partition=partition,
            acked_end=max((end for end, _ in acked), default=0),
            acked_sent_at=_instant(max((sent_at for _, sent_at in acked), default=0)),
            read_end=read_end,
            read_sent_at=_instant(read_sent_at),
        )

    def _why_not_ready(self) -> str:
        waiting = [task.name for task in [*self._producers, self._consumer_task] if not task.channel.connected]
        if not waiting:
            return self._standing_still()
        context = self._session.sparkContext
        master = context.master or ""
        hint = f"tasks that Spark ({master}) has not started: {', '.join(waiting)}"
        if master.startswith("spark://"):
            # The driver counts as one.
            executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1
            hint += f"; it has given us {executors} executors: has it workers, with a free core for each task?"
        return hint

    def _standing_still(self) -> str:
        progress, now = self.progress, datetime.now(UTC)
        says = []
        for who, did, at, tasks in (
            ("producer", "acked", progress.acked_at, self._producers),
            ("consumer", "read", progress.read_at, [self._consumer_task]),
        ):
            stood = "has not begun" if at is None else f"has stood still for {(now - at).total_seconds():.1f} s"
            errors = sorted({(task.channel.progress or {}).get("last_error") or "" for task in tasks} - {""})
            says.append(f"the {who} {stood} (nothing {did}" + (f", client: {', '.join(errors)})" if errors else ")"))
        return "; ".join(says)


class Workload:
    """All the pairs and drains of one run, and the history that they write.

    :param spark: the run's Spark, which may still be starting
    :param run_dir: the run's folder; the history goes to ``history/`` below it
    :param run_token: tells this run's records from others: 1 to 16 of ``A-Z a-z 0-9 . _ -``
    :param on_event: is told what the tasks go through; called from several threads
    """

    def __init__(self, spark: SparkHandle, run_dir: Path, run_token: str, on_event: OnEvent) -> None:
        check_words(run_token)
        self._spark = spark
        self._run_dir = run_dir.absolute()
        self._run_token = run_token
        self._on_event = on_event
        self._server = ControlServer()
        self._producer_numbers, self._consumer_numbers, self._drain_numbers = (itertools.count() for _ in range(3))

    @contextmanager
    def running(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        producers: int = 1,
        rate_per_s: float | None = 1000.0,
        record_bytes: int = 100,
        keys: int | None = None,
        isolation: Isolation = "read_uncommitted",
        producer_config: ClientConfig | None = None,
        consumer_config: ClientConfig | None = None,
        start_timeout_s: float = START_S,
    ) -> Iterator[Pair]:
        """A pair at work on this topic; given when its first record was acked and read.

        Leaving the block ends it in good order (:meth:`Pair.stop`), leaving it by an exception at once.

        :param bootstrap: Kafka addresses, ``host:port[,host:port…]``; some may be dead
        :param producers: how many producer tasks
        :param rate_per_s: records a second of each producer; None is as fast as they go
        :param record_bytes: the size of a record's value, at least 64
        :param keys: how many different keys the records have in turn; None: no keys
        :param isolation: of the live consumer
        :param producer_config: over :data:`harness.pipeline.producer.PRODUCER_CONFIG`
        :param consumer_config: over :data:`harness.pipeline.consumer.CONSUMER_CONFIG`
        :raises PipelineError: Spark ran the tasks not, or a producer died
        """
        if record_bytes < SMALLEST_RECORD_BYTES:
            raise ValueError(f"a record needs at least {SMALLEST_RECORD_BYTES} bytes, not {record_bytes}")
        session = self._spark.session()
        began_at = time.monotonic()
        pair = Pair(
            session,
            self._server,
            self._on_event,
            [
                ProducerSpec(
                    producer=f"p{next(self._producer_numbers)}",
                    run_dir=self._run_dir,
                    run_token=self._run_token,
                    bootstrap=bootstrap,
                    topic=topic,
                    partitions=partitions,
                    rate_per_s=rate_per_s,
                    record_bytes=record_bytes,
                    keys=keys,
                    config=dict(producer_config or {}),
                )
                for _ in range(producers)
            ],
            ConsumerSpec(
                consumer=f"c{next(self._consumer_numbers)}",
                session=0,
                run_dir=self._run_dir,
                run_token=self._run_token,
                bootstrap=bootstrap,
                topic=topic,
                starts={partition: StartAt() for partition in range(partitions)},
                isolation=isolation,
                config=dict(consumer_config or {}),
            ),
        )
        try:
            pair.await_ready(start_timeout_s)
            self._on_event(
                "pair.ready",
                topic=topic,
                producers=pair.producers,
                consumer=pair.consumer,
                after_s=round(time.monotonic() - began_at, 3),
            )
            yield pair
            pair.stop()
        except BaseException:
            pair.abort()
            raise

    def drain(
        self, bootstrap: str, ends: Mapping[tuple[str, int], int], *, isolation: Isolation = "read_uncommitted"
    ) -> tuple[Drained, ...]:
        """Read these partitions from their first offsets to these ends by Spark's Kafka source, into the history.

        :param ends: by (topic, partition): the high watermark, asked after healing
        :raises PipelineError: the source failed, also when tried again
        """
        return drain(
            self._spark.session(),
            self._run_dir,
            self._run_token,
            f"d{next(self._drain_numbers)}",
            bootstrap,
            ends,
            isolation=isolation,
            on_event=self._on_event,
        )

    def close(self) -> None:
        """Let go of all tasks that still run."""
        self._server.close()


def _instant(microseconds: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds) if microseconds else None
