"""The producers and live consumers that run on one topic through a fault.

A pair restarts a consumer that dies (:mod:`harness.workload.consumer_supervisor`). It does not restart a producer,
which would send its records again under other numbers: the pair fails. With several live consumers, the progress of the
pair is that of the slowest. Independent readers (:mod:`harness.workload.readers`) run beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession

from harness.errors import Inconclusive, JbodError, NotServed, PipelineError, PromiseBroken
from harness.history import write_ahead
from harness.spark.control import ABORT, STOP, ControlServer
from harness.spark.tasks import ENDED_UNASKED, SparkTask
from harness.waiting import TOO_SLOW, await_until
from harness.workload.consumer import ConsumerSpec, reads_on
from harness.workload.consumer_supervisor import LiveConsumer, OnEvent
from harness.workload.drain import await_stable
from harness.workload.producer import ProducerSpec, produce
from harness.workload.progress import AckedPartition, ConsumerReport, PartitionProgress, ProducerReport, Progress
from harness.workload.readers import Reader
from harness.workload.transactional import produce_in_transactions

START_S = 60.0
"""Two Python workers start, and the first record is sent and read: 2 to 4 s on idle cores."""
READER_START_S = 180.0
"""A group's members start one after the other. The first streaming query of a session loads and compiles much of Spark
SQL: 5 s on idle cores, over 60 s with 30 processes on two cores."""
PROGRESS_S = 60.0
"""A few request time-outs of the client."""
READERS_S = 90.0
"""Kafka's Java client may wait one ``default.api.timeout.ms``, 60 s, before it asks again (2.8.2: 61.7 s)."""
CATCH_UP_S = 60.0
"""A consumer reads what was acked before the producers stopped."""
OPEN_TRANSACTION_S = 30.0
"""A coordinator aborts an abandoned transaction after ``transaction.timeout.ms`` (10 s here), and checks for them every
``transaction.abort.timed.out.transaction.cleanup.interval.ms`` (10 s)."""
_BEYOND_FLUSH_S = 15.0


class Pair:
    """Producers and live consumers, at least one of each, on one topic. Made by :meth:`Workload.running`."""

    def __init__(
        self,
        session: SparkSession,
        server: ControlServer,
        on_event: OnEvent,
        producers: Sequence[ProducerSpec],
        consumers: Sequence[ConsumerSpec],
        readers: Sequence[Reader],
    ) -> None:
        self._session = session
        self._on_event = on_event
        self._specs = producers
        self._began = consumers[0]
        self._broken: str | None = None
        self._ending = False  # producers may end
        self._aborting = False  # producers may die
        self._producers = [
            SparkTask(
                session,
                server,
                spec.producer,
                ProducerReport(),
                partial(produce_in_transactions if spec.transactions else produce, spec),
                on_end=self._producer_ended,
            )
            for spec in producers
        ]
        self._consumers = [LiveConsumer(session, server, on_event, spec) for spec in consumers]
        self._readers = readers

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self._began.topic

    @property
    def producers(self) -> tuple[str, ...]:
        """The producers' names in the history."""
        return tuple(task.name for task in self._producers)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The live consumers' names in the history."""
        return tuple(consumer.name for consumer in self._consumers)

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The independent readers beside it."""
        return tuple(self._readers)

    @property
    def progress(self) -> Progress:
        """How far the pair is by the newest reports of its tasks, without its readers.

        Reports are up to 0.3 s old. To show that nothing was acked since an instant, compare ``acked_at`` with it.
        """
        sent = [task.report for task in self._producers]
        return Progress(
            acked=sum(report.acked for report in sent),
            failed=sum(report.failed for report in sent),
            indeterminate=sum(report.indeterminate for report in sent),
            in_flight=sum(report.in_flight for report in sent),
            read=min(consumer.read for consumer in self._consumers),
            restarts=sum(consumer.restarts for consumer in self._consumers),
            acked_at=_instant(max(report.newest_ack_at for report in sent)),
            read_at=_instant(min(consumer.report.newest_read_at for consumer in self._consumers)),
            partitions=tuple(self._partition(partition, sent) for partition in self._began.starts),
            committed=sum(report.committed for report in sent),
            aborted=sum(report.aborted for report in sent),
            unresolved=sum(report.unresolved for report in sent),
        )

    def await_ready(self, timeout_s: float = START_S) -> Progress:
        """Wait until all tasks run and a first record was acked and read.

        :raises NotServed: this took longer than ``timeout_s`` seconds, although all tasks run
        :raises PipelineError: a producer died, or some tasks never ran. The error names them
        """
        return await_until(
            lambda: self.progress,
            lambda progress: progress.acked > 0 and progress.read > 0,
            timeout_s=timeout_s,
            what=f"the first record of {self.topic} to be acked and read",
            watch=self.check,
            failure=lambda message: PipelineError(message) if self._not_started() else NotServed(message),
            hint=self._why_not_ready,
            for_kafka=False,  # most of it is the start of Spark's tasks
        )

    def start_readers(self) -> None:
        """Start the readers, and wait until each reads; in a group, every member must read.

        :raises PipelineError: one doesn't read within :data:`READER_START_S` seconds, or a producer died meanwhile
        """
        for reader in self._readers:
            reader.start()
        for reader in self._readers:
            reader.await_ready(READER_START_S)
            self.check()

    def await_readers(self, after: datetime) -> None:
        """Wait until each reader has read, in each partition, a record that was sent after this instant.

        :raises PromiseBroken: not within :data:`READERS_S` seconds; names the readers and partitions that are behind
        :raises PipelineError: as :meth:`check`
        """
        since = int(after.timestamp() * 1e6)

        def behind() -> dict[str, list[int]]:
            found = {
                reader.name: [p for p in self._began.starts if reader.read_sent_at(p) <= since]
                for reader in self._readers
            }
            return {name: partitions for name, partitions in found.items() if partitions}

        await_until(
            behind,
            lambda found: not found,
            timeout_s=READERS_S,
            what=f"every reader of {self.topic} to read a record of each partition that was sent after "
            f"{after.isoformat(timespec='milliseconds')} (by reader: the partitions that it still waits for)",
            watch=self.check,
            failure=PromiseBroken,
        )

    def await_count(
        self, records: int, timeout_s: float = PROGRESS_S, failure: Callable[[str], JbodError] = PromiseBroken
    ) -> Progress:
        """Wait until this many records were acked in each partition, and as many in all were read.

        :param failure: the error of a time-out; before any fault it is that of Kafka's own part
        :raises PipelineError: as :meth:`check`
        """
        return await_until(
            lambda: self.progress,
            lambda progress: min(progress.read, *(each.acked for each in progress.partitions)) >= records,
            timeout_s=timeout_s,
            what=f"{records} records of each partition of {self.topic} to be acked, and as many read",
            watch=self.check,
            failure=failure,
            hint=self._standing_still,
            for_kafka=False,  # the harness chooses how much load it waits for
        )

    def await_progress(self, after: datetime, timeout_s: float = PROGRESS_S, *, records: int = 120) -> Progress:
        """Wait until ``records`` records that were sent after this instant were acked and read in each partition.

        One record alone proves nothing: it could have been in flight already. Every live consumer must read.

        :param after: an instant with a time zone
        :param records: a few more than the floors of a case require. The load under a fault is counted from the events
            of watchers, which see things a moment later than a scenario
        :raises PromiseBroken: not within ``timeout_s`` seconds; says how long producer and consumer have stood still
        :raises Inconclusive: not within that time, but as many older records were acked and read in its second half:
            the machine is too slow for the load
        :raises PipelineError: as :meth:`check`
        """
        halfway: list[Progress] = []
        half = time.monotonic() + timeout_s / 2

        def look() -> Progress:
            progress = self.progress
            if not halfway and time.monotonic() >= half:
                halfway.append(progress)
            return progress

        def stuck_or_slow(message: str) -> JbodError:
            if halfway and (since := self.progress.fewest_since(halfway[0])) >= records:
                return Inconclusive(
                    f"{message}; but of older records {since} were acked and read in each partition in the last "
                    f"{timeout_s / 2:.0f} s: {TOO_SLOW} for the load"
                )
            return PromiseBroken(message)

        def got_through(progress: Progress) -> bool:
            acked = [each.acked_sent_at is not None and each.acked_sent_at > after for each in progress.partitions]
            read = [each.read_sent_at is not None and each.read_sent_at > after for each in progress.partitions]
            return all(acked) and all(read) and bool(acked)

        first = await_until(
            look,
            got_through,
            timeout_s=timeout_s,
            what=f"a record of {self.topic} sent after {after.isoformat(timespec='milliseconds')} to be acked and read",
            watch=self.check,
            failure=stuck_or_slow,
            hint=self._standing_still,
        )
        return await_until(
            lambda: self.progress,
            lambda progress: progress.fewest_since(first) >= records - 1,
            timeout_s=timeout_s,
            what=f"{records - 1} more records of {self.topic} to be acked and read in each partition",
            watch=self.check,
            failure=PromiseBroken,
            hint=self._standing_still,
        )

    def await_acked(self, after: datetime) -> Progress:
        """Wait until a record that was sent after this instant was acked, whether or not it was read.

        While followers are away, an acks=1 producer makes progress and a consumer does not.

        :raises PromiseBroken, PipelineError: as :meth:`await_progress`
        """
        return await_until(
            lambda: self.progress,
            lambda progress: any(p.acked_sent_at is not None and p.acked_sent_at > after for p in progress.partitions),
            timeout_s=PROGRESS_S,
            what=f"a record of {self.topic} sent after {after.isoformat(timespec='milliseconds')} to be acked",
            watch=self.check,
            failure=PromiseBroken,
            hint=self._standing_still,
        )

    def check(self) -> None:
        """Raise PipelineError if a producer died, or if a consumer or a reader died and can't be restarted."""
        for reader in self._readers:
            reader.check()
        if self._broken is not None:
            raise PipelineError(self._broken)
        for consumer in self._consumers:
            consumer.check()

    def stop(self) -> Progress:
        """End in good order: await the outcome of every record, then read all that was acked. May be called twice.

        It takes a bounded time. After ``message.timeout.ms`` the client purges records in flight, which are then
        indeterminate. A consumer or reader that does not catch up within :data:`CATCH_UP_S` is ended and journaled
        (``consumer.behind``). An open transaction holds read_committed consumers back; one that is open after
        :data:`OPEN_TRANSACTION_S` is journaled (``transaction.open``), and the consumers end before it.

        :raises PipelineError: as :meth:`check`
        """
        self.check()
        if all(consumer.done.is_set() for consumer in self._consumers):
            return self.progress
        self._ending = True
        self._on_event("pair.stopping", topic=self.topic)
        for reader in self._readers:
            reader.before_end()
        self._stop_producers()
        self._stop_consumers({each.partition: each.acked_end for each in self.progress.partitions})
        self._on_event("pair.stopped", topic=self.topic, progress=str(self.progress))
        self.check()
        return self.progress

    def _stop_producers(self) -> None:
        for task in self._producers:
            task.channel.send(STOP)
        for task, spec in zip(self._producers, self._specs, strict=True):
            if not task.join(spec.flush_s + _BEYOND_FLUSH_S):
                self._on_event("producer.stuck", producer=task.name)
                task.end()
        self._settle()

    def _stop_consumers(self, acked: Mapping[int, int]) -> None:
        """Let consumers and readers end at the end of what was acked; journal those that don't get there."""
        stable: Mapping[int, int] | None = None
        everyone: list[LiveConsumer | Reader] = [*self._consumers, *self._readers]
        for reader in everyone:
            if reader.isolation == "read_committed":
                stable = self._stable(acked) if stable is None else stable
                reader.stop(stable)
            else:
                reader.stop(acked)
        ends_at = time.monotonic() + CATCH_UP_S
        for reader in everyone:
            if not reader.wait(max(0.0, ends_at - time.monotonic())):
                reached = {partition: reader.read_end(partition) for partition in acked}
                self._on_event("consumer.behind", consumer=reader.name, topic=self.topic, read=reached, acked=acked)
                reader.abort()

    def abort(self) -> None:
        """End all tasks now; records without an outcome become indeterminate. May be called twice."""
        self._ending = self._aborting = True
        tasks: list[SparkTask[ProducerReport] | SparkTask[ConsumerReport]] = [
            *self._producers,
            *(consumer.let_die() for consumer in self._consumers),
        ]
        for task in tasks:
            task.channel.send(ABORT)
        for reader in self._readers:
            reader.abort()
        for task in tasks:
            task.end()
        self._settle()

    def _settle(self) -> None:
        for producer, rows in write_ahead.settle(self._began.run_dir, self.producers).items():
            self._on_event("producer.settled", producer=producer, indeterminate=rows)

    def _stable(self, ends: Mapping[int, int]) -> dict[int, int]:
        """How far read_committed consumers can read: to these ends, or up to an open transaction."""
        if not any(spec.transactions for spec in self._specs):
            return dict(ends)
        wanted = {(self.topic, partition): end for partition, end in ends.items()}
        reachable = await_stable(self._began.bootstrap, wanted, OPEN_TRANSACTION_S)
        stable = {partition: offset for (_, partition), offset in reachable.items()}
        if stable != ends:
            self._on_event("transaction.open", topic=self.topic, stable=stable, acked=ends)
        return stable

    def _producer_ended(self, task: SparkTask[ProducerReport]) -> None:
        if task.error is None and self._ending:
            return
        error = task.error or ENDED_UNASKED
        self._on_event("producer.died", producer=task.name, error=error)
        if not self._aborting:
            self._broken = f"producer {task.name} died: {error}"

    def _partition(self, partition: int, sent: Sequence[ProducerReport]) -> PartitionProgress:
        acked = [report.partitions.get(partition, AckedPartition()) for report in sent]
        return PartitionProgress(
            partition=partition,
            acked=sum(each.records for each in acked),
            acked_end=max(each.end for each in acked),
            acked_sent_at=_instant(max(each.sent_at for each in acked)),
            read_end=min(consumer.read_end(partition) for consumer in self._consumers),
            read_sent_at=_instant(min(consumer.read_sent_at(partition) for consumer in self._consumers)),
        )

    def _not_started(self) -> list[str]:
        """The tasks that Spark has not started."""
        channels = [each.channel for each in self._producers] + [each.task.channel for each in self._consumers]
        return [channel.task for channel in channels if not channel.connected]

    def _why_not_ready(self) -> str:
        waiting = self._not_started()
        if not waiting:
            return self._standing_still()
        context = self._session.sparkContext
        master = context.master or ""
        hint = f"tasks that Spark ({master}) has not started: {', '.join(waiting)}"
        if master.startswith("spark://"):
            executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one of them
            hint += f"; it has given us {executors} executors; its workers need a free core for each task"
        return hint

    def _standing_still(self) -> str:
        progress, now = self.progress, datetime.now(UTC)
        found = []
        for who, did, at, last_errors in (
            ("producer", "acked", progress.acked_at, {task.report.last_error for task in self._producers}),
            ("consumer", "read", progress.read_at, {consumer.report.last_error for consumer in self._consumers}),
        ):
            stood = "has not begun" if at is None else f"has stood still for {(now - at).total_seconds():.1f} s"
            errors = ", ".join(sorted(last_errors - {""}))
            found.append(f"the {who} {stood} (nothing {did}" + (f", client: {errors})" if errors else ")"))
        return "; ".join([*found, *self._compared_with_fresh_clients()])

    def _compared_with_fresh_clients(self) -> Iterator[str]:
        """Yield, for each live consumer that is behind what was acked, whether a fresh client in its place reads on.

        So the error shows whether the cause is in the client or in the log.
        """
        ends = {each.partition: each.acked_end for each in self.progress.partitions}
        for consumer in self._consumers:
            read = {partition: consumer.read_end(partition) for partition in consumer.spec.starts}
            behind = {partition: at for partition, at in read.items() if at < ends.get(partition, 0)}
            if behind:
                try:
                    found = reads_on(consumer.spec, behind)
                except Exception as error:  # it must not hide the error that it explains
                    yield f"a fresh client in its place could not be asked: {error}"
                    continue
                where = ", ".join(f"{self.topic}-{partition}@{behind[partition]}" for partition in found)
                yield (
                    f"a fresh client with the settings of {consumer.name} reads on from {where} at once"
                    if found
                    else f"a fresh client with the settings of {consumer.name} reads nothing either"
                )


def _instant(microseconds: int) -> datetime | None:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds) if microseconds else None
