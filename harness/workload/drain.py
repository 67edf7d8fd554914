"""The drain: after healing, Spark's Kafka source reads every partition from its first offset to its end.

It uses Kafka's Java client inside Spark, and the live consumer uses librdkafka. So a bug of one client does not pass
for a bug of Kafka. Values are parsed and checked in the JVM; Python sees no record.

**How far a partition was drained.** ``position`` in ``history/drained`` is not the highest offset seen: a log may end
with a transaction's marker, which is not a record. With ``failOnDataLoss=true``, Spark's reader of a partition
ends in one of three ways (KafkaDataConsumer.get, KafkaBatchPartitionReader.next): it gets to the end offset that was
asked for, it fails with OffsetOutOfRange, or it times out. The last two fail the query. So a query that succeeds has
read every partition to the offset asked for, which is ``position``. (The option does not detect lost records: the query
reads across a hole in a log, and the judge finds it.)

The drain asks for ``end_offset``, or for the end of the log if that is lower: an open transaction holds a
read_committed reader back, or the log is shorter than the caller assumed. ``position`` is then below ``end_offset``,
and the partition does not count as drained to the end.

**Order and instants.** ``consumed.position`` is the order in which Spark's task got the records, not that of offsets:
one task reads one partition, and ``monotonically_increasing_id`` numbers a task's rows as they come. All rows of a
drain share one ``read_at``: ``current_timestamp`` is constant during a query, and a drain measures no gaps.

Rows go to a hidden folder first, and to ``history/consumed`` when the query has succeeded. So a failed query leaves no
rows, and the drain tries again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from harness.errors import AwaitTimeout, PipelineError
from harness.history.record_format import header_pattern
from harness.history.tables import CONSUMED, DRAINED, HistoryWriter, note_parts, part_name, table_dir
from harness.kafka.security import Bootstrap
from harness.spark.tasks import last_line
from harness.waiting import await_until
from harness.workload.client_config import CONSUMER_CONFIG
from harness.workload.consumer import Isolation
from harness.workload.consumer_supervisor import OnEvent

ATTEMPTS = 3
_QUERY_S = 10.0
_POLL_S = 30
_ROWS_OF_A_TASK = (1 << 33) - 1  # monotonically_increasing_id: the task's number above, the row's below

Ends = Mapping[tuple[str, int], int]


@dataclass(frozen=True, kw_only=True)
class Drained:
    """How far one partition was drained: a row of ``history/drained``."""

    topic: str
    partition: int
    end_offset: int
    position: int
    """The next offset that the drain would have read."""


def drain(
    session: SparkSession,
    run_dir: Path,
    run_token: str,
    consumer: str,
    bootstrap: Bootstrap,
    ends: Ends,
    *,
    isolation: Isolation,
    on_event: OnEvent,
) -> tuple[Drained, ...]:
    """Read these partitions from their first offsets to ``ends``; rows go to ``consumed`` and ``drained``.

    :param consumer: the drain's name in the history, used once in a run
    :param ends: by (topic, partition): the high watermark, queried after healing
    :returns: the rows of ``history/drained``, one for each of ``ends``
    :raises PipelineError: a partition has no leader, or the source failed, :data:`ATTEMPTS` times in a row
    """
    error: Exception | None = None
    on_event("drain.began", consumer=consumer, isolation=isolation)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            drained = tuple(
                Drained(topic=topic, partition=partition, end_offset=end, position=min(end, reachable))
                for (topic, partition), end, reachable in _reachable(bootstrap, ends, isolation)
            )
            rows = _read(session, run_dir, run_token, consumer, bootstrap, drained, isolation)
        except Exception as failure:  # any error of Spark or of the client: the cluster may not be healthy yet
            error = failure
            on_event("drain.failed", consumer=consumer, attempt=attempt, error=last_line(failure))
            continue
        writer = HistoryWriter(run_dir, "drained", consumer)
        named = {"consumer": consumer, "isolation": isolation}
        writer.write(pa.Table.from_pylist([named | asdict(each) for each in drained], DRAINED))
        writer.close()
        on_event("drain.ended", consumer=consumer, isolation=isolation, records=rows, partitions=len(drained))
        return drained
    assert error is not None
    raise PipelineError(
        f"the drain failed {ATTEMPTS} times, the last time: {last_line(error)}; check that every partition has "
        f"a leader, and that {bootstrap} can be reached"
    ) from error


def await_stable(bootstrap: Bootstrap, ends: Ends, timeout_s: float) -> dict[tuple[str, int], int]:
    """Wait until a read_committed reader can read to these ends.

    It waits although a commit has returned: the coordinator then has the commit in its own log, and tells the leader of
    the partition afterwards (WriteTxnMarkers).

    :returns: how far such a reader can read: to the ends, or less where a transaction is still open (or a partition has
        no leader) after ``timeout_s`` seconds
    """
    seen: dict[tuple[str, int], int] = {}

    def short() -> list[tuple[str, int]]:
        seen.update({where: min(end, stable) for where, end, stable in _reachable(bootstrap, ends, "read_committed")})
        return [where for where, end in ends.items() if seen[where] < end]

    with suppress(AwaitTimeout):
        await_until(
            short,
            lambda found: not found,
            timeout_s=timeout_s,
            what="all transactions to end",
            poll_s=0.2,
            retry_on=(PipelineError,),
        )
    return {where: seen.get(where, end) for where, end in ends.items()}


def _reachable(bootstrap: Bootstrap, ends: Ends, isolation: Isolation) -> list[tuple[tuple[str, int], int, int]]:
    """Each end, with the offset up to which this isolation level can read (by ListOffsets)."""
    client = Consumer({**CONSUMER_CONFIG, **bootstrap.librdkafka, "isolation.level": isolation})
    try:
        found = []
        for (topic, partition), end in sorted(ends.items()):
            try:
                _, high = client.get_watermark_offsets(TopicPartition(topic, partition), _QUERY_S)
            except KafkaException as error:
                raise PipelineError(f"can't get the end of {topic}-{partition}: {error.args[0].str()}") from error
            found.append(((topic, partition), end, high))
        return found
    finally:
        client.close()


def _read(
    session: SparkSession,
    run_dir: Path,
    run_token: str,
    consumer: str,
    bootstrap: Bootstrap,
    drained: tuple[Drained, ...],
    isolation: Isolation,
) -> int:
    """Run the query and move its parts into the history; returns the number of records."""
    hidden = run_dir / "history" / f".{consumer}"
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        partitions: dict[str, list[int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for each in drained:
            partitions.setdefault(each.topic, []).append(each.partition)
            ends.setdefault(each.topic, {})[str(each.partition)] = each.position
        records = (
            session.read.format("kafka")
            .options(**bootstrap.spark)
            .option("kafka.isolation.level", isolation)
            # The judge detects a damaged record by its own CRC-32, so the client must not fail on it.
            .option("kafka.check.crcs", "false")
            .option("assign", json.dumps(partitions))
            .option("startingOffsets", "earliest")
            .option("endingOffsets", json.dumps(ends))
            .option("failOnDataLoss", "true")
            .option("fetchOffset.numRetries", "3")
            .option("fetchOffset.retryIntervalMs", "500")
            .option("kafkaConsumer.pollTimeoutMs", str(_POLL_S * 1000))
            .load()
        )
        history_rows(records, run_token, consumer, isolation).write.parquet(str(hidden), compression="zstd")
        return _move(hidden, run_dir, consumer)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def history_rows(records: DataFrame, run_token: str, consumer: str, isolation: Isolation) -> DataFrame:
    """Rows of ``history/consumed`` from those of Spark's Kafka source."""
    columns = history_columns(run_token, consumer, isolation)
    return records.select([columns[name].alias(name) for name in CONSUMED.names])


def history_columns(run_token: str, consumer: str, isolation: Isolation) -> dict[str, Column]:
    """The columns of ``history/consumed`` for a drain, computed from those of Spark's Kafka source."""
    # Java names groups without Python's P.
    pattern = header_pattern(run_token).replace("(?P<", "(?<")
    head = F.substring(F.col("value"), 1, 64).cast("string")
    is_ours = head.rlike(pattern)
    return {
        "consumer": F.lit(consumer),
        "role": F.lit("drain"),
        "position": F.monotonically_increasing_id().bitwiseAND(F.lit(_ROWS_OF_A_TASK)),
        "session": F.lit(0),
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "producer": F.when(is_ours, F.regexp_extract(head, pattern, 1)),
        "seq": F.when(is_ours, F.regexp_extract(head, pattern, 2).cast("bigint")),
        "crc32": F.crc32(F.col("value")),
        "isolation": F.lit(isolation),
        "read_at": F.current_timestamp(),
    }


def _move(hidden: Path, run_dir: Path, consumer: str) -> int:
    """Move the parts that Spark wrote into the history; returns the number of their rows."""
    target = table_dir(run_dir, "consumed")
    target.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(sorted(hidden.glob("part-*.parquet"))):
        part.rename(target / part_name(consumer, number))
    return note_parts(target, consumer)
