"""The drain: a fresh read of everything by Spark's Kafka source, after healing, from the first offset to the end.

It is another reader than the live one (Kafka's Java client inside Spark, not librdkafka), so that a client's error
doesn't pass for the log's. Values are taken apart and checked in the JVM; no Python sees a record.

What the row in ``history/drained`` rests on. ``position`` is not the highest offset seen, which says nothing of an end
that has no record (a transaction's marker). With ``failOnDataLoss=true`` Spark's reader of a partition has
three ends (KafkaDataConsumer.get, KafkaBatchPartitionReader.next): it was handed a record, or the consumer's own
position, at or behind the end offset that it was given; or OffsetOutOfRange; or a time-out; and the last two fail the
query. So a query that ended well has read every partition to the offset asked for, and this offset is ``position``.
(That setting is no judge of loss, and isn't used as one: a hole in the middle of a log passes, for the judge to find.)
The offset asked for is ``end_offset`` where the log, for this isolation, goes so far; where it doesn't (an open
transaction holds a read_committed reader back; the log is shorter than the caller said) it is the log's own end, and
the row shows it: ``position`` below ``end_offset`` is no drain to the end.

``consumed.position`` is the order in which Spark's task was handed the records, not a sort by offset: one task reads
one partition, and ``monotonically_increasing_id`` numbers a task's rows as they come. All rows of a drain have one
``read_at``: Spark SQL's ``current_timestamp`` stands still during a query, and no gap is measured at a drain.

Rows are written into a hidden folder and moved into ``history/consumed`` when the query has ended well: a query that
failed half-way leaves nothing, and is tried again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from harness.errors import AwaitTimeout, PipelineError
from harness.history.record_format import header_pattern
from harness.history.tables import CONSUMED, DRAINED, HistoryWriter, note_parts, part_name, table_dir
from harness.spark.tasks import last_line
from harness.waiting import await_until
from harness.workload.consumer import CONSUMER_CONFIG, Isolation

ATTEMPTS = 3
_QUERY_S = 10.0
_POLL_S = 30
_ROWS_OF_A_TASK = (1 << 33) - 1  # monotonically_increasing_id: the task's number above, the row's below

Ends = Mapping[tuple[str, int], int]


@dataclass(frozen=True, kw_only=True)
class Drained:
    """How far one partition was drained."""

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
    bootstrap: str,
    ends: Ends,
    *,
    isolation: Isolation = "read_uncommitted",
    on_event: Callable[..., object] = lambda kind, **fields: None,
) -> tuple[Drained, ...]:
    """Read these partitions from their first offsets to ``ends``; rows go to ``consumed`` and ``drained``.

    :param consumer: the drain's name in the history, once in a run
    :param ends: by (topic, partition), the log's high watermark, asked after healing
    :returns: what ``history/drained`` was given, one for each of ``ends``
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
        except Exception as failure:  # whatever Spark or the client makes of a cluster that isn't well yet
            error = failure
            on_event("drain.failed", consumer=consumer, attempt=attempt, error=last_line(failure))
            continue
        columns = [
            [consumer] * len(drained),
            [isolation] * len(drained),
            [each.topic for each in drained],
            [each.partition for each in drained],
            [each.end_offset for each in drained],
            [each.position for each in drained],
        ]
        table = pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, DRAINED, strict=True)], DRAINED
        )
        writer = HistoryWriter(run_dir, "drained", consumer)
        writer.write(table)
        writer.close()
        on_event("drain.ended", consumer=consumer, isolation=isolation, records=rows, partitions=len(drained))
        return drained
    assert error is not None
    raise PipelineError(
        f"the drain failed {ATTEMPTS} times, the last time: {last_line(error)}; is every partition led, and reachable "
        f"at {bootstrap}?"
    ) from error


def await_stable(bootstrap: str, ends: Ends, timeout_s: float) -> dict[tuple[str, int], int]:
    """Wait until a read_committed reader can get to these ends, and return how far it can: to the ends, or less where a
    transaction is still open (or nobody leads) when the time is over.

    A commit that has returned is not enough: the coordinator has it in its own log then, and the partition's leader
    hears of it afterwards (WriteTxnMarkers).
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


def _reachable(bootstrap: str, ends: Ends, isolation: Isolation) -> list[tuple[tuple[str, int], int, int]]:
    """Each end with the offset up to which this isolation can read (ListOffsets knows the isolation)."""
    client = Consumer({**CONSUMER_CONFIG, "bootstrap.servers": bootstrap, "isolation.level": isolation})
    try:
        found = []
        for (topic, partition), end in sorted(ends.items()):
            try:
                _, high = client.get_watermark_offsets(TopicPartition(topic, partition), _QUERY_S)
            except KafkaException as error:
                raise PipelineError(f"{topic}-{partition} doesn't tell where it ends: {error.args[0].str()}") from error
            found.append(((topic, partition), end, high))
        return found
    finally:
        client.close()


def _read(
    session: SparkSession,
    run_dir: Path,
    run_token: str,
    consumer: str,
    bootstrap: str,
    drained: tuple[Drained, ...],
    isolation: Isolation,
) -> int:
    """Run the query and move its parts into the history; returns how many records there were."""
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
            .option("kafka.bootstrap.servers", bootstrap)
            .option("kafka.isolation.level", isolation)
            # A damaged record is to be read and judged (each has a CRC-32 of its own), not to end the drain.
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
    """Rows of ``history/consumed`` from what Spark's Kafka source gives."""
    columns = history_columns(run_token, consumer, isolation)
    return records.select([columns[name].alias(name) for name in CONSUMED.names])


def history_columns(run_token: str, consumer: str, isolation: Isolation) -> dict[str, Column]:
    """The columns of ``history/consumed``, as a drain has them, over those of Spark's Kafka source."""
    # Java's names of groups are Python's without the P; numbers serve both.
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
    """Give the history the parts that Spark wrote; returns their rows."""
    target = table_dir(run_dir, "consumed")
    target.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(sorted(hidden.glob("part-*.parquet"))):
        part.rename(target / part_name(consumer, number))
    return note_parts(target, consumer)
