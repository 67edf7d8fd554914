"""All clients of one run: its pairs, its drains and the history that they write.

::

    with workload.running(bootstrap, "orders", 3) as pair:
        …break something…
        pair.await_progress(after=fault.injected_at)
    workload.drain(bootstrap, {("orders", 0): 5120, …})
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

from pyspark.sql import SparkSession

from harness.history.record_format import SMALLEST_RECORD_BYTES, check_words
from harness.kafka.security import Bootstrap
from harness.spark.control import ControlServer
from harness.spark.session import SparkHandle
from harness.workload.client_config import ClientConfig
from harness.workload.consumer import ConsumerSpec, Isolation, StartAt
from harness.workload.consumer_supervisor import OnEvent
from harness.workload.drain import Drained, drain
from harness.workload.group import GroupReader
from harness.workload.pair import START_S, Pair
from harness.workload.producer import ProducerSpec, Transactions
from harness.workload.readers import Group, Reader, ReaderSpec
from harness.workload.stream import StreamReader

_GROUP_MEMBERS = 2


@dataclass(frozen=True, kw_only=True)
class Load:
    """How a pair loads its topic.

    :raises ValueError: ``record_bytes`` is too small
    """

    producers: int = 1
    """How many producer tasks."""
    rate_per_s: float | None = 1000.0
    """Records a second of each producer; None: as fast as it can."""
    record_bytes: int = 100
    """The size of a record's value, at least :data:`SMALLEST_RECORD_BYTES`."""
    keys: int | None = None
    """How many different keys the records have in turn; None: no keys."""
    transactional: Transactions | None = None
    """The producers send in such transactions; None: without transactions."""
    producer_config: ClientConfig = field(default_factory=dict)
    """Settings over :data:`~harness.workload.client_config.PRODUCER_CONFIG`, and, with transactions, over
    :data:`~harness.workload.client_config.TRANSACTION_CONFIG`."""
    consumer_config: ClientConfig = field(default_factory=dict)
    """Settings over :data:`~harness.workload.client_config.CONSUMER_CONFIG`."""
    readers: Sequence[ReaderSpec] = ()
    """Independent readers of the same topic."""
    start_timeout_s: float = START_S
    """How long the first record may take to be acked and read."""

    def __post_init__(self) -> None:
        if self.record_bytes < SMALLEST_RECORD_BYTES:
            raise ValueError(f"a record needs at least {SMALLEST_RECORD_BYTES} bytes, not {self.record_bytes}")

    @property
    def isolations(self) -> tuple[Isolation, ...]:
        """The isolation levels of the live consumers, one consumer for each."""
        return ("read_uncommitted", "read_committed") if self.transactional else ("read_uncommitted",)


class LoadSettings(TypedDict, total=False):
    """The fields of :class:`Load`, as keywords of :meth:`Workload.running`."""

    producers: int
    rate_per_s: float | None
    record_bytes: int
    keys: int | None
    transactional: Transactions | None
    producer_config: ClientConfig
    consumer_config: ClientConfig
    readers: Sequence[ReaderSpec]
    start_timeout_s: float


class Workload:
    """The pairs and drains of one run. They share a Spark session, a control server and a history.

    :param spark: the run's Spark, which may still be starting
    :param run_dir: the run's folder; the history goes to ``history/`` in it
    :param run_token: tells this run's records from those of others: 1 to 16 of ``A-Z a-z 0-9 . _ -``
    :param on_event: receives the events of all tasks; called from several threads
    """

    def __init__(self, spark: SparkHandle, run_dir: Path, run_token: str, on_event: OnEvent) -> None:
        check_words(run_token)
        self._spark = spark
        self._run_dir = run_dir.absolute()
        self._run_token = run_token
        self._on_event = on_event
        self._server = ControlServer()
        # Of producers, live consumers, group members, streams and drains: p0, p1 …
        self._names = {letter: map(f"{letter}{{}}".format, itertools.count()) for letter in "pcgsd"}

    @contextmanager
    def running(
        self, bootstrap: Bootstrap, topic: str, partitions: int, **settings: Unpack[LoadSettings]
    ) -> Iterator[Pair]:
        """Run a pair on a topic; yields when its first record was acked and read, and all its readers read.

        The live consumer reads uncommitted. With transactions there are two, one of each isolation level. The end of
        the block ends the pair in good order (:meth:`Pair.stop`). An exception ends it at once.

        :param bootstrap: Kafka addresses, ``host:port[,host:port…]``; some may be dead
        :param settings: see :class:`Load`
        :raises PipelineError: Spark did not run the tasks, or a producer died
        :raises ValueError: a setting is out of range, or a group has more members than the topic has partitions
        """
        load = Load(**settings)
        session = self._spark.session()
        began_at = time.monotonic()
        consumer = partial(self._consumer, bootstrap, topic, partitions)
        readers = [self._reader(session, wanted, consumer) for wanted in load.readers]
        producers = [
            ProducerSpec(
                producer=next(self._names["p"]),
                run_dir=self._run_dir,
                run_token=self._run_token,
                bootstrap=bootstrap,
                topic=topic,
                partitions=partitions,
                rate_per_s=load.rate_per_s,
                record_bytes=load.record_bytes,
                keys=load.keys,
                config=dict(load.producer_config),
                transactions=load.transactional,
            )
            for _ in range(load.producers)
        ]
        consumers = [consumer("c", isolation, load.consumer_config) for isolation in load.isolations]
        pair = Pair(session, self._server, self._on_event, producers, consumers, readers)
        try:
            pair.await_ready(load.start_timeout_s)
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

    def _consumer(
        self, bootstrap: Bootstrap, topic: str, partitions: int, letter: str, isolation: Isolation, config: ClientConfig
    ) -> ConsumerSpec:
        return ConsumerSpec(
            consumer=next(self._names[letter]),
            session=0,
            run_dir=self._run_dir,
            run_token=self._run_token,
            bootstrap=bootstrap,
            topic=topic,
            starts={partition: StartAt() for partition in range(partitions)},
            isolation=isolation,
            config=dict(config),
        )

    def _reader(
        self,
        session: SparkSession,
        wanted: ReaderSpec,
        consumer: Callable[[str, Isolation, ClientConfig], ConsumerSpec],
    ) -> Reader:
        if isinstance(wanted, Group):
            members = [consumer("g", wanted.isolation, {}) for _ in range(_GROUP_MEMBERS)]
            return GroupReader(session, self._server, self._on_event, members)
        return StreamReader(session, self._on_event, consumer("s", wanted.isolation, {}))

    def drain(
        self, bootstrap: Bootstrap, ends: Mapping[tuple[str, int], int], *, isolation: Isolation = "read_uncommitted"
    ) -> tuple[Drained, ...]:
        """Read these partitions from their first offsets to these ends by Spark's Kafka source, into the history.

        :param ends: by (topic, partition): the high watermark, queried after healing
        :raises PipelineError: the source failed, also when tried again
        """
        return drain(
            self._spark.session(),
            self._run_dir,
            self._run_token,
            next(self._names["d"]),
            bootstrap,
            ends,
            isolation=isolation,
            on_event=self._on_event,
        )

    def close(self) -> None:
        """End all tasks that still run."""
        self._server.close()
