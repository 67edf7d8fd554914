"""All that runs through the faults of one run: its pairs, its drains, and the history that they write.

::

    with workload.running(bootstrap, "orders", 3) as pair:
        …break something…
        pair.await_progress(after=fault.injected_at)
    workload.drain(bootstrap, {("orders", 0): 5120, …})

:class:`Workload` is one a run: one Spark session, one control server, one history. What goes on in the block is
:class:`harness.workload.pair.Pair`'s.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from harness.history.record_format import SMALLEST_RECORD_BYTES, check_words
from harness.spark.control import ControlServer
from harness.spark.session import SparkHandle
from harness.workload.consumer import ConsumerSpec, Isolation, StartAt
from harness.workload.consumer_supervisor import OnEvent
from harness.workload.drain import Drained, drain
from harness.workload.group import GroupReader
from harness.workload.pair import START_S, Pair
from harness.workload.producer import ProducerSpec, Transactions
from harness.workload.readers import Group, Reader, ReaderSpec
from harness.workload.stream import StreamReader

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
"""As live consumers have them: the first one always, the second one with transactions."""

ClientConfig = Mapping[str, str | int | float | bool]


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
        self._stream_numbers, self._member_numbers = itertools.count(), itertools.count()

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
        transactional: Transactions | None = None,
        producer_config: ClientConfig | None = None,
        consumer_config: ClientConfig | None = None,
        readers: Sequence[ReaderSpec] = (),
        start_timeout_s: float = START_S,
    ) -> Iterator[Pair]:
        """A pair at work on this topic; given when its first record was acked and read.

        The live consumer reads everything (read_uncommitted); with transactions there are two, one of each isolation.
        Leaving the block ends it in good order (:meth:`Pair.stop`), leaving it by an exception at once.

        :param bootstrap: Kafka addresses, ``host:port[,host:port…]``; some may be dead
        :param producers: how many producer tasks
        :param rate_per_s: records a second of each producer; None is as fast as they go
        :param record_bytes: the size of a record's value, at least 64
        :param keys: how many different keys the records have in turn; None: no keys
        :param transactional: the producers send in transactions, as this says
        :param producer_config: over :data:`harness.workload.producer.PRODUCER_CONFIG` (and, with transactions,
            :data:`harness.workload.transactional.TRANSACTION_CONFIG`)
        :param consumer_config: over :data:`harness.workload.consumer.CONSUMER_CONFIG`
        :param readers: who else reads the topic; the pair is given when they all do
        :raises PipelineError: Spark ran the tasks not, or a producer died
        :raises ValueError: a group with fewer partitions than members
        """
        if record_bytes < SMALLEST_RECORD_BYTES:
            raise ValueError(f"a record needs at least {SMALLEST_RECORD_BYTES} bytes, not {record_bytes}")
        session = self._spark.session()
        began_at = time.monotonic()
        beside = [self._reader(session, reader, bootstrap, topic, partitions) for reader in readers]
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
                    transactions=transactional,
                )
                for _ in range(producers)
            ],
            [
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
                )
                for isolation in (ISOLATIONS if transactional else ISOLATIONS[:1])
            ],
            beside,
        )
        try:
            pair.await_ready(start_timeout_s)
            pair.start_readers()
            self._on_event(
                "pair.ready",
                topic=topic,
                producers=pair.producers,
                consumers=pair.consumers,
                readers={reader.name: reader.consumers for reader in pair.readers},
                after_s=round(time.monotonic() - began_at, 3),
            )
            yield pair
            pair.stop()
        except BaseException:
            pair.abort()
            raise

    def _reader(self, session: SparkSession, wanted: ReaderSpec, bootstrap: str, topic: str, partitions: int) -> Reader:
        def spec(name: str) -> ConsumerSpec:
            return ConsumerSpec(
                consumer=name,
                session=0,
                run_dir=self._run_dir,
                run_token=self._run_token,
                bootstrap=bootstrap,
                topic=topic,
                starts={partition: StartAt() for partition in range(partitions)},
                isolation=wanted.isolation,
            )

        if isinstance(wanted, Group):
            members = [spec(f"g{next(self._member_numbers)}") for _ in range(2)]
            return GroupReader(session, self._server, self._on_event, members)
        return StreamReader(session, self._on_event, spec(f"s{next(self._stream_numbers)}"))

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
