"""Spark Structured Streaming as an independent reader: from a checkpoint, in batches, as Spark users read Kafka.

It is Kafka's Java client inside Spark with the Kafka source's defaults, such as the default trigger: the next batch
begins when the last one is done. ``failOnDataLoss`` is set although it is a default, because data loss must fail the
query. The history shows what such a query reads during a fault; the journal shows how long it stalled and whether it
died.

**Each epoch once.** A batch is collected over Arrow and becomes one part of ``history/consumed``. The part is named
after its epoch, and appears whole or not at all. Spark runs an epoch again if its query died after the part was written
and before the checkpoint was committed. Such an epoch is skipped, since its part exists. The part has the same records:
the checkpoint's offset log fixes the offsets of a planned epoch. Unlike those of a drain, the rows are not written by
Spark: several files of a batch could not appear at once, and one more job would slow down every batch.

**Order and instants.** One task reads one partition of Kafka, and Arrow batches come in the order of the tasks. So the
rows of a partition are in the order in which they were read. ``read_at`` is when the batch arrived here, as for a
user's own code.

**A query that dies** is journaled (``stream.died``) and restarted from its checkpoint, as an operator would do
(``stream.restarted``). Its session goes up, and positions run on. The checkpoint is in Spark's scratch folder, and is
removed with the stream.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from harness.errors import PipelineError
from harness.history.tables import CONSUMED, HistoryWriter, table_dir
from harness.spark.tasks import ENDED_UNASKED, last_line
from harness.waiting import await_until
from harness.workload.consumer import ConsumerSpec, Isolation
from harness.workload.consumer_supervisor import MAX_RESTARTS, OnEvent
from harness.workload.drain import history_columns

STALLED_S = 2.0
"""A longer gap between batches is journaled. On busy cores a single batch may take longer: ``stream.ended`` has the
median gap to compare with."""
WARM_BATCHES = 3
RESTART_PAUSE_S = 1.0
"""The pause before a query that died is started again."""
_LOOK_S = 0.5


class StreamReader:
    """A streaming query over all its sessions; the methods are those of :class:`harness.workload.readers.Reader`.

    :param spec: as for a live consumer. The partitions in ``starts`` are read from their first offsets; ``config`` has
        options of Kafka's Java client
    :ivar restarts: how often the query was restarted
    :ivar query: the query that runs, or ran last; None before :meth:`start`
    """

    def __init__(self, session: SparkSession, on_event: OnEvent, spec: ConsumerSpec) -> None:
        self._session = session
        self._on_event = on_event
        self._spec = spec
        self._changed = threading.Condition()
        self._positions = dict.fromkeys(spec.starts, 0)
        self._reached = dict.fromkeys(spec.starts, 0)
        self._newest_sent = dict.fromkeys(spec.starts, 0)
        self._read = self._batches = 0
        self._last_batch_at: float | None = None
        self._gaps_s: list[float] = []
        self._ending = False  # the query may end
        self._told_to_stop = False
        self._done = threading.Event()
        self._broken: str | None = None
        self._checkpoint = Path(
            tempfile.mkdtemp(prefix="jbod-checkpoint-", dir=session.sparkContext.getConf().get("spark.local.dir"))
        )
        self.restarts = 0
        self.query: StreamingQuery | None = None

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self._spec.consumer

    @property
    def consumers(self) -> tuple[str, ...]:
        """Its own name."""
        return (self.name,)

    @property
    def isolation(self) -> Isolation:
        """Its isolation level."""
        return self._spec.isolation

    def start(self) -> None:
        """Start the query."""
        # A table without rows has a part without rows.
        HistoryWriter(self._spec.run_dir, "consumed", self.name).write(CONSUMED.empty_table())
        self._start()

    def check(self) -> None:
        """Raise PipelineError if it died and can't be restarted."""
        if self._broken is not None:
            raise PipelineError(self._broken)

    def await_ready(self, timeout_s: float) -> None:
        """Wait for some batches: Spark compiles during the first ones, and a fault must not be blamed for that."""
        await_until(
            lambda: self._batches,
            lambda batches: batches >= WARM_BATCHES,
            timeout_s=timeout_s,
            what=f"the stream {self.name} to read {WARM_BATCHES} batches of {self._spec.topic}",
            watch=self.check,
            failure=PipelineError,
            for_kafka=False,
        )

    def read_end(self, partition: int) -> int:
        """The next offset that it reads."""
        return self._reached[partition]

    def read_sent_at(self, partition: int) -> int:
        """When the newest record that it read was sent, in microseconds; 0 is never."""
        return self._newest_sent[partition]

    def before_end(self) -> None:
        """Do nothing."""

    def stop(self, at: Mapping[int, int]) -> None:
        """Let it end when it has read up to these offsets, by partition; returns soon."""
        if self._told_to_stop:
            return
        self._told_to_stop = True
        threading.Thread(target=self._stop, args=(dict(at),), name=f"stop-{self.name}", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within these seconds."""
        return self._done.wait(timeout_s)

    def abort(self) -> None:
        """End the query now, without the batch that is running."""
        with self._changed:
            ended, self._ending = self._ending, True
            self._changed.notify_all()
        if self.query is not None:
            with suppress(Exception):  # a session that is gone has no queries
                self.query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        if not ended:
            self._on_event(
                "stream.ended",
                consumer=self.name,
                topic=self._spec.topic,
                batches=self._batches,
                read=self._read,
                longest_gap_s=round(max(self._gaps_s, default=0.0), 3),
                median_gap_s=round(statistics.median(self._gaps_s or [0.0]), 3),
                restarts=self.restarts,
            )
        self._done.set()

    # --- the query --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        spec = self._spec
        records = (
            self._session.readStream.format("kafka")
            .options(**{f"kafka.{name}": str(value) for name, value in spec.config.items()})
            .options(**spec.bootstrap.spark)
            .option("kafka.isolation.level", spec.isolation)
            .option("assign", json.dumps({spec.topic: sorted(spec.starts)}))
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "true")
            .load()
        )
        self.query = (
            records.writeStream.queryName(f"{spec.run_token}-{self.name}-{self.restarts}")
            .option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(self._keep)
            .start()
        )
        threading.Thread(target=self._watch, args=(self.query,), name=f"stream-{self.name}", daemon=True).start()

    def _watch(self, query: StreamingQuery) -> None:
        """Wait for the query's end, and restart it."""
        error = ENDED_UNASKED
        try:
            query.awaitTermination()
        except Exception as failure:
            error = last_line(failure)
        with self._changed:
            if self._ending:
                return
            self._on_event("stream.died", consumer=self.name, session=self.restarts, error=error)
            if self.restarts >= MAX_RESTARTS:
                self._give_up(f"stream {self.name} died {MAX_RESTARTS + 1} times, the last time: {error}")
                return
            self._changed.wait_for(lambda: self._ending, RESTART_PAUSE_S)
            if self._ending:
                return
            self.restarts += 1
            try:
                self._start()
            except Exception as failure:
                self._give_up(f"stream {self.name} died ({error}) and can't be restarted: {last_line(failure)}")
                return
            offsets = {str(partition): offset for partition, offset in self._reached.items()}
            self._on_event("stream.restarted", consumer=self.name, session=self.restarts, offsets=offsets)

    def _give_up(self, why: str) -> None:
        self._broken = why
        self._done.set()

    def _keep(self, frame: DataFrame, epoch: int) -> None:
        """Write one batch as the part of its epoch, unless that part exists."""
        stem = f"{self.name}-{epoch:06d}"
        if any(table_dir(self._spec.run_dir, "consumed").glob(f"{stem}-*.parquet")):
            self._on_event("stream.replayed", consumer=self.name, epoch=epoch)
            return
        columns = history_columns(self._spec.run_token, self.name, self._spec.isolation)
        for ours in ("role", "position", "session", "read_at"):
            del columns[ours]
        batch = frame.select(*(column.alias(name) for name, column in columns.items()), F.col("timestamp")).toArrow()
        arrived_at, instant_us = time.monotonic(), time.time_ns() // 1000
        if not batch.num_rows:
            return  # offsets without records: markers of transactions
        partitions, offsets = batch["partition"].to_numpy(), batch["offset"].to_numpy()
        sent = batch["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
        positions = np.zeros(len(partitions), dtype=np.int64)
        of_each = {int(each): np.flatnonzero(partitions == each) for each in np.unique(partitions)}
        for partition, of_it in of_each.items():
            positions[of_it] = np.arange(len(of_it)) + self._positions[partition]
        rows = {
            **{name: batch[name] for name in batch.column_names if name != "timestamp"},
            "role": pa.repeat("live", len(partitions)),
            "position": pa.array(positions),
            "session": pa.repeat(pa.scalar(self.restarts, pa.int32()), len(partitions)),
            "read_at": pa.repeat(pa.scalar(instant_us), len(partitions)).cast(CONSUMED.field("read_at").type),
        }
        with self._changed:
            HistoryWriter(self._spec.run_dir, "consumed", stem).write(pa.table(rows))
            for partition, of_it in of_each.items():
                self._positions[partition] += len(of_it)
                self._reached[partition] = int(offsets[of_it].max()) + 1
                self._newest_sent[partition] = int(sent[of_it].max())
            self._read += len(partitions)
            self._batches += 1
            self._note_gap(arrived_at, epoch)
            self._changed.notify_all()

    def _note_gap(self, arrived_at: float, epoch: int) -> None:
        if self._last_batch_at is not None:
            gap_s = arrived_at - self._last_batch_at
            self._gaps_s.append(gap_s)
            if gap_s > STALLED_S:
                self._on_event("stream.stalled", consumer=self.name, epoch=epoch, for_s=round(gap_s, 3))
        self._last_batch_at = arrived_at

    # --- the end ----------------------------------------------------------------------------------------------------

    def _stop(self, at: Mapping[int, int]) -> None:
        try:
            while not self._done.is_set():
                with self._changed:
                    if self._ending or self._changed.wait_for(lambda: self._ending or self._is_at(at), _LOOK_S):
                        break
        except Exception as failure:
            self._give_up(
                f"cannot tell how far stream {self.name} has read: {type(failure).__name__}: {last_line(failure)}"
            )
        self.abort()

    def _is_at(self, at: Mapping[int, int]) -> bool:
        reached = self._reached | {}
        if self._spec.isolation == "read_committed":  # the end may be a marker, which is no row
            for partition, offset in self._source_ends().items():
                reached[partition] = max(reached.get(partition, 0), offset)
        return all(reached[partition] >= offset for partition, offset in at.items())

    def _source_ends(self) -> dict[int, int]:
        """The end offsets of the newest batch as Spark reports them; empty before the first, or if Spark is gone."""
        try:
            progress = self.query.lastProgress if self.query is not None else None
        except (OSError, Py4JError, PySparkException):
            return {}
        end = "None" if progress is None else str(progress["sources"][0]["endOffset"])
        if end == "None":  # Java's null comes so, too
            return {}
        ends = json.loads(end.replace("'", '"'))
        return {int(partition): int(offset) for partition, offset in ends[self._spec.topic].items()}
