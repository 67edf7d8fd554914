"""Compares the throughput of the PySpark clients with Kafka's own VerifiableProducer and VerifiableConsumer.

In each round both do the same on one cluster, one after the other. They send as fast as they can, with acks=all, to a
topic of three partitions and three replicas. They read live, and record what became of the records. Kafka's producer
prints a line of JSON for each record, and its consumer one for each poll; ours write Parquet. The figure is records a
second, from the first record sent to the last one read. The result is the ratio of the two figures of a round, so that
the load of the machine affects both.

The records differ. Kafka's tool sends the record's number in ASCII, about 7 bytes, and has no option for longer ones.
Ours are as short as they can be, 64 bytes with the record's name. The difference is to our disadvantage.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TypedDict

import numpy as np
import numpy.typing as npt
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
"""How long a client may take for its part of a round."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """Records a second, with Kafka's clients and with ours."""

    kafkas: float
    ours: float

    @property
    def ratio(self) -> float:
        """Ours divided by Kafka's; at 1 both are equally fast."""
        return self.ours / self.kafkas


def compare(cluster: Cluster, spark: SparkHandle, run_dir: Path, records: int, number: int) -> Round:
    """Run one round, each half on a topic of its own.

    :raises HarnessError: one of the clients failed or took longer than :data:`ROUND_S`
    """
    theirs = cluster.create_topic(f"theirs-{number}", partitions=PARTITIONS, replicas=3)
    kafkas = verifiable_clients(cluster, theirs, records)
    own = cluster.create_topic(f"ours-{number}", partitions=PARTITIONS, replicas=3)
    return Round(kafkas=kafkas, ours=pair(spark, own, run_dir / f"round-{number}", records))


def verifiable_clients(cluster: Cluster, topic: Topic, records: int) -> float:
    """Records a second with Kafka's clients, by the times in the lines that they print."""
    connect = ("--bootstrap-server", str(cluster.bootstrap), "--topic", topic.name, "--max-messages", str(records))
    with ExitStack() as stack:
        consumer = stack.enter_context(_running(cluster, Tool.VERIFIABLE_CONSUMER, *connect, "--group-id", topic.name))
        await_until(
            lambda: any(line["name"] == "partitions_assigned" for line in consumer.lines()),
            timeout_s=timeouts.BOOT_S,
            what="partitions to be assigned to VerifiableConsumer",
        )
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
    """Records a second with the PySpark clients, by the times in the history."""
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
            # More records than are measured, so that the stop of the clients is not measured.
            running.await_count(records // len(topic) + 1, timeout_s=ROUND_S, failure=PipelineError)
    finally:
        workload.close()
    first, last = _times(run_dir, "produced", "ended_at")[0], np.sort(_times(run_dir, "consumed", "read_at"))
    return records / float(last[records - 1] - first) * 1e6


def _times(run_dir: Path, table: TableName, column: str) -> npt.NDArray[np.int64]:
    """A column of times, sorted, in microseconds."""
    parts = sorted(str(part) for part in table_dir(run_dir, table).glob("*.parquet"))
    return np.sort(ds.dataset(parts, format="parquet").to_table([column])[column].to_numpy().astype("int64"))


class _Line(TypedDict):
    """What a verifiable client prints; `count` only with ``records_consumed``."""

    name: str
    timestamp: int
    count: int


class _Tool:
    """One of Kafka's verifiable clients while it runs; its output goes to a file."""

    def __init__(self, process: subprocess.Popen[str], output: IO[str]) -> None:
        self._process = process
        self._path = Path(output.name)

    def lines(self) -> Iterator[_Line]:
        """The lines that it has printed so far."""
        for line in self._path.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended.

        :raises HarnessError: it took longer, or ended with another exit code than 0
        """
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
