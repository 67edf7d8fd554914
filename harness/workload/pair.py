"""The pair of producer and live consumer that runs through a fault.

:class:`Pair` supervises its tasks: a consumer that dies is started again (:mod:`harness.workload.consumer_supervisor`);
a producer is not (its records would be sent anew under other numbers), and its pair fails. Of several live consumers a
pair says what holds for all: where the slowest stands. Independent readers (:mod:`harness.workload.readers`) run beside
it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from harness.errors import Inconclusive, JbodError, PipelineError, PromiseBroken
from harness.history import write_ahead
from harness.spark.control import ABORT, STOP, ControlServer
from harness.spark.tasks import SparkTask
from harness.waiting import await_until
from harness.workload.consumer import ConsumerSpec, reads_on
from harness.workload.consumer_supervisor import LiveConsumer, OnEvent
from harness.workload.drain import await_stable
from harness.workload.producer import ProducerSpec, produce
from harness.workload.progress import PartitionProgress, Progress
from harness.workload.readers import Reader
from harness.workload.transactional import produce_in_transactions

START_S = 60.0
"""Two Python workers start and the first record goes round; 2 to 4 s on idle cores."""
READER_START_S = 180.0
"""A group's two members start one after the other; a session's first streaming query loads and compiles a good part of
Spark SQL: 5 s on idle cores, above 60 s seen where 30 processes waited for two of them."""
PROGRESS_S = 60.0
READERS_S = 90.0
"""Kafka's Java client may wait one ``default.api.timeout.ms``, 60 s, before it asks anew; measured on 2.8.2: 61.7 s."""
"""A few of the client's own request time-outs."""
CATCH_UP_S = 60.0
"""The consumer reads what was acked before the producer stopped."""
OPEN_TRANSACTION_S = 30.0
"""A coordinator aborts what its producer left: ``transaction.timeout.ms`` (10 s here), found out each
``transaction.abort.timed.out.transaction.cleanup.interval.ms`` (10 s)."""
_BEYOND_FLUSH_S = 15.0


class Pair:
    """Producers and live consumers, one or more of each, at work on one topic. Made by :meth:`Workload.running`."""

    def __init__(
        self,
        session: SparkSession,
        server: ControlServer,
        on_event: OnEvent,
        producers: list[ProducerSpec],
        consumers: list[ConsumerSpec],
        readers: list[Reader],
    ) -> None:
        self._session = session
        self._server = server
        self._on_event = on_event
        self._specs = producers
        self._began = consumers[0]
        self._broken: str | None = None
        self._ending = False  # producers may end
        self._aborting = False  # producers may die
        self._producers = [
            SparkTask(
                self._session,
                server,
                spec.producer,
                partial(produce_in_transactions if spec.transactions else produce, spec),
                on_end=self._producer_ended,
            )
            for spec in producers
        ]
        self._consumers = [LiveConsumer(session, server, on_event, spec) for spec in consumers]
        self._readers = readers

    @property
    def topic(self) -> str:
        """What it works on."""
        return self._began.topic

    @property
    def producers(self) -> tuple[str, ...]:
        """The producers' names in the history."""
        return tuple(spec.producer for spec in self._specs)

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
        """Where the pair stands, without its readers, as the tasks last reported."""
        sent = [task.channel.progress or {} for task in self._producers]
        ended = [report.get("transactions", {}) for report in sent]
        return Progress(
            acked=sum(report.get("acked", 0) for report in sent),
            failed=sum(report.get("failed", 0) for report in sent),
            indeterminate=sum(report.get("indeterminate", 0) for report in sent),
            in_flight=sum(report.get("in_flight", 0) for report in sent),
            read=min(consumer.read for consumer in self._consumers),
            restarts=sum(consumer.restarts for consumer in self._consumers),
            acked_at=_instant(max((report.get("newest_ack_at", 0) for report in sent), default=0)),
            read_at=_instant(min(consumer.report.get("newest_read_at", 0) for consumer in self._consumers)),
            partitions=tuple(self._partition(partition, sent) for partition in self._began.starts),
            committed=sum(counts.get("committed", 0) for counts in ended),
            aborted=sum(counts.get("aborted", 0) for counts in ended),
            unresolved=sum(counts.get("indeterminate", 0) for counts in ended),
        )

    def await_ready(self, timeout_s: float = START_S) -> Progress:
        """Until all tasks run and a first record was acked and read.

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

    def start_readers(self) -> None:
        """Start the readers, and wait until each reads: a group, until every member does.

        :raises PipelineError: one doesn't, within :data:`READER_START_S` seconds; or a producer died meanwhile
        """
        for reader in self._readers:
            reader.start()
        for reader in self._readers:
            reader.await_ready(READER_START_S)
            self.check()

    def await_readers(self, after: datetime) -> None:
        """Until each reader was handed, in each partition, a record that was sent after this instant.

        :raises PromiseBroken: not within :data:`READERS_S` seconds; says which reader stands still where
        :raises PipelineError: a producer, a consumer or a reader died for good
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
            what=f"every reader of {self.topic} to be handed a record of each partition that was sent after "
            f"{after.isoformat(timespec='milliseconds')} (by reader: the partitions that it still waits for)",
            watch=self.check,
            failure=PromiseBroken,
        )

    def await_count(
        self, records: int, timeout_s: float = PROGRESS_S, failure: type[JbodError] = PromiseBroken
    ) -> Progress:
        """Until this many records were acked in each partition, and as many in all read.

        :param failure: what a time-out means; before any fault it is too little load, not a broken promise
        :raises PipelineError: a producer died, or the consumer for good
        """
        return await_until(
            lambda: self.progress,
            lambda progress: min(progress.read, *(each.acked for each in progress.partitions)) >= records,
            timeout_s=timeout_s,
            what=f"{records} records of each partition of {self.topic} to be acked, and as many read",
            watch=self.check,
            failure=failure,
            hint=self._standing_still,
        )

    def await_progress(self, after: datetime, timeout_s: float = PROGRESS_S, *, records: int = 120) -> Progress:
        """Until in each partition a record that was sent after this instant was acked, and one that was sent after it
        was read by every live consumer; and then until as many more as make it ``records``: one could have been under
        way already.

        :param after: an instant with a time zone
        :param records: a few more than the floors of a case want: the harness's watchers, from whose events the load
            under a fault is counted, see things a moment later than whoever waits for them
        :raises PromiseBroken: not within ``timeout_s`` seconds; says how long producer and consumer have stood still
        :raises Inconclusive: as little, but clients do get through, with what they had been given before: the machine
            is too slow for the load
        :raises PipelineError: a producer died, or the consumer for good
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
                    f"{timeout_s / 2:.0f} s: this machine is too slow for the load"
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
        """Until a record that was sent after this instant was acked, read or not: where followers are away, an
        acks=1 producer gets through and no consumer does.

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
        """Raise PipelineError if a producer died, or the consumer or a reader for good."""
        for reader in self._readers:
            reader.check()
        for broken in (self._broken, *(consumer.broken for consumer in self._consumers)):
            if broken is not None:
                raise PipelineError(broken)

    def stop(self) -> Progress:
        """End in good order: every record sent is settled, then the consumers read up to all that was acked.

        Bounded: what is under way after the client's ``message.timeout.ms`` is purged and indeterminate, and a
        consumer that is not there in :data:`CATCH_UP_S` is ended and the journal says so (``consumer.behind``). A
        read_committed consumer can't read past a transaction that is open: one that is still open after
        :data:`OPEN_TRANSACTION_S` is journaled (``transaction.open``), and the consumer ends before it. May be called
        twice.

        :raises PipelineError: a producer died before, or the consumer for good
        """
        self.check()
        if all(consumer.done.is_set() for consumer in self._consumers):
            return self.progress
        self._ending = True
        self._on_event("pair.stopping", topic=self.topic)
        for reader in self._readers:
            reader.before_end()
        for task in self._producers:
            task.channel.send(STOP)
        for task, spec in zip(self._producers, self._specs, strict=True):
            if not task.join(spec.flush_s + _BEYOND_FLUSH_S):
                self._on_event("producer.stuck", producer=task.name)
                task.end()
        self._settle()
        acked = {each.partition: each.acked_end for each in self.progress.partitions}
        stable: dict[int, int] | None = None
        for isolation, stop in [
            *((consumer.spec.isolation, consumer.stop) for consumer in self._consumers),
            *((reader.isolation, reader.stop) for reader in self._readers),
        ]:
            if isolation == "read_committed" and stable is None:
                stable = self._stable(acked)
            stop(acked if isolation == "read_uncommitted" or stable is None else stable)
        ends_at = time.monotonic() + CATCH_UP_S
        for consumer in self._consumers:
            if not consumer.done.wait(max(0.0, ends_at - time.monotonic())):
                reached = {partition: consumer.read_end(partition) for partition in acked}
                self._on_event("consumer.behind", consumer=consumer.name, topic=self.topic, read=reached, acked=acked)
        for reader in self._readers:
            if not reader.wait(max(0.0, ends_at - time.monotonic())):
                reached = {partition: reader.read_end(partition) for partition in acked}
                self._on_event("consumer.behind", consumer=reader.name, topic=self.topic, read=reached, acked=acked)
                reader.abort()
        if not all(consumer.done.is_set() for consumer in self._consumers):
            self.abort()
        self._on_event("pair.stopped", topic=self.topic, progress=str(self.progress))
        self.check()
        return self.progress

    def abort(self) -> None:
        """End all tasks now; what is not settled is written down as indeterminate. May be called twice."""
        self._ending = self._aborting = True
        tasks = [*self._producers, *(consumer.let_die() for consumer in self._consumers)]
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
        """These ends, or what an open transaction leaves of them."""
        if not any(spec.transactions for spec in self._specs):
            return dict(ends)
        wanted = {(self.topic, partition): end for partition, end in ends.items()}
        reachable = await_stable(self._began.bootstrap, wanted, OPEN_TRANSACTION_S)
        stable = {partition: offset for (_, partition), offset in reachable.items()}
        if stable != ends:
            self._on_event("transaction.open", topic=self.topic, stable=stable, acked=ends)
        return stable

    def _producer_ended(self, task: SparkTask) -> None:
        if task.error is None and self._ending:
            return
        error = task.error or "ended though nobody had told it to"
        self._on_event("producer.died", producer=task.name, error=error)
        if not self._aborting:
            self._broken = f"producer {task.name} died: {error}"

    def _partition(self, partition: int, sent: list[dict[str, Any]]) -> PartitionProgress:
        acked = [report.get("partitions", {}).get(str(partition), (0, 0, 0)) for report in sent]
        return PartitionProgress(
            partition=partition,
            acked=sum(count for _, _, count in acked),
            acked_end=max((end for end, _, _ in acked), default=0),
            acked_sent_at=_instant(max((sent_at for _, sent_at, _ in acked), default=0)),
            read_end=min(consumer.read_end(partition) for consumer in self._consumers),
            read_sent_at=_instant(min(consumer.read_sent_at(partition) for consumer in self._consumers)),
        )

    def _why_not_ready(self) -> str:
        tasks = [*self._producers, *(consumer.task for consumer in self._consumers)]
        waiting = [task.name for task in tasks if not task.channel.connected]
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
            ("consumer", "read", progress.read_at, [consumer.task for consumer in self._consumers]),
        ):
            stood = "has not begun" if at is None else f"has stood still for {(now - at).total_seconds():.1f} s"
            errors = sorted({(task.channel.progress or {}).get("last_error") or "" for task in tasks} - {""})
            says.append(f"the {who} {stood} (nothing {did}" + (f", client: {', '.join(errors)})" if errors else ")"))
        return "; ".join([*says, *self._second_look()])

    def _second_look(self) -> Iterator[str]:
        """Of each live consumer that is behind what was acked: whether a fresh client is, too."""
        ends = {each.partition: each.acked_end for each in self.progress.partitions}
        for consumer in self._consumers:
            read = {partition: consumer.read_end(partition) for partition in consumer.spec.starts}
            behind = {partition: at for partition, at in read.items() if at < ends.get(partition, 0)}
            if behind:
                try:
                    found = reads_on(consumer.spec, behind)
                except Exception as error:  # this is to explain an error, and must not take its place
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
