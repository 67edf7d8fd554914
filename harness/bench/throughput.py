"""The pair against Kafka's own VerifiableProducer and VerifiableConsumer: how much testing costs in throughput.

Both do the same on one cluster, in turn, several times: send as fast as they can with acks=all to a topic of three
partitions with three replicas, read live, and say what became of each record (theirs prints a line of JSON a record,
ours writes Parquet). A round's figure is how many records a second went from the first one sent to the last one read;
what is compared is the ratio of two figures of one round, so that the machine's mood is in both.

Not quite the same is the record: theirs is its number in ASCII (some 7 bytes), and no option makes it longer; ours is
as short as it can be, 64 bytes with its name in it. The difference is to our disadvantage.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow.dataset as ds

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from harness.errors import HarnessError, PipelineError
from harness.history.record_format import SMALLEST_RECORD_BYTES
from harness.history.tables import TableName, table_dir
from harness.kafka.tools import tool_command
from harness.kafka.versions import Tool
from harness.spark.session import SparkHandle
from harness.waiting import await_until
from harness.workload.workload import Workload

PARTITIONS = 3
ROUND_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Round:
    """Records a second of both, one after the other."""

    kafkas: float
    ours: float

    @property
    def ratio(self) -> float:
        """Ours over Kafka's; 1 is as quick."""
        return self.ours / self.kafkas


def compare(cluster: Cluster, spark: SparkHandle, run_dir: Path, records: int, number: int) -> Round:
    """One round of both, each on a topic of its own.

    :raises HarnessError: either does not get through
    """
    theirs = cluster.create_topic(f"theirs-{number}", partitions=PARTITIONS, replicas=3)
    kafkas = verifiable_clients(cluster, theirs, records)
    own = cluster.create_topic(f"ours-{number}", partitions=PARTITIONS, replicas=3)
    return Round(kafkas=kafkas, ours=pair(spark, own, run_dir / f"round-{number}", records))


def verifiable_clients(cluster: Cluster, topic: Topic, records: int) -> float:
    """Records a second of Kafka's own, by the times in their lines."""
    connect = ("--bootstrap-server", cluster.bootstrap, "--topic", topic.name, "--max-messages", str(records))
    with ExitStack() as stack:
        consumer = stack.enter_context(_running(cluster, Tool.VERIFIABLE_CONSUMER, *connect, "--group-id", topic.name))
        _await_line(consumer, "partitions_assigned")
        producer = stack.enter_context(_running(cluster, Tool.VERIFIABLE_PRODUCER, *connect, "--acks", "-1"))
        for process in (producer, consumer):
            process.wait(ROUND_S)
        first = next(line["timestamp"] for line in producer.lines() if line["name"] == "producer_send_success")
        read, last = 0, 0
        for line in consumer.lines():
            if line["name"] == "records_consumed" and read < records:
                read, last = read + line["count"], line["timestamp"]
    if read < records:
        raise HarnessError(f"VerifiableConsumer read {read} of {records} records")
    return float(records / max(0.001, (last - first) / 1000))


def pair(spark: SparkHandle, topic: Topic, run_dir: Path, records: int) -> float:
    """Records a second of ours, by the times in its history."""
    run_dir.mkdir(parents=True)
    workload = Workload(spark, run_dir, "bench", lambda kind, **fields: None)
    try:
        with workload.running(
            topic.cluster.bootstrap,
            topic.name,
            len(topic),
            rate_per_s=None,
            record_bytes=SMALLEST_RECORD_BYTES,
        ) as running:
            # More than are asked for: who stops in the middle would be measured stopping.
            running.await_count(records // len(topic) + 1, timeout_s=ROUND_S, failure=PipelineError)
    finally:
        workload.close()
    first, last = _times(run_dir, "produced", "ended_at")[0], np.sort(_times(run_dir, "consumed", "read_at"))
    return records / float(last[records - 1] - first) * 1e6


def _times(run_dir: Path, table: TableName, column: str) -> Any:
    """A column of instants, rising, in microseconds."""
    parts = sorted(str(part) for part in table_dir(run_dir, table).glob("*.parquet"))
    return np.sort(ds.dataset(parts, format="parquet").to_table([column])[column].to_numpy().astype("int64"))


class _Tool:
    """One of Kafka's verifiable clients at work; what it prints goes to a file."""

    def __init__(self, process: subprocess.Popen[str], output: IO[str]) -> None:
        self._process = process
        self._path = Path(output.name)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What it has said so far."""
        for line in self._path.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def wait(self, timeout_s: float) -> None:
        """Until it has ended."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{self._path.stem} did not end within {timeout_s:.0f} s") from None
        if code:
            raise HarnessError(f"{self._path.stem} ended with exit code {code}; see {self._path}")


@contextmanager
def _running(cluster: Cluster, tool: Tool, *arguments: str) -> Iterator[_Tool]:
    path = cluster.undo_log.dir / f"{tool}-{datetime.now(UTC):%H%M%S%f}.log"
    with path.open("w+") as output:
        argv = tool_command(cluster.distribution, tool, *arguments)
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, text=True)
        try:
            yield _Tool(process, output)
        finally:
            process.kill()
            process.wait(timeouts.STOP_S)


def _await_line(tool: _Tool, name: str) -> None:
    await_until(
        lambda: any(line["name"] == name for line in tool.lines()), timeout_s=timeouts.BOOT_S, what=f"{name} to be said"
    )
