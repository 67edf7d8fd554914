"""The work of producers and consumers in their tasks, on the mock cluster of librdkafka: no Spark, no Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from harness.spark.control import ABORT, STOP, Channel, Command, ControlServer, DriverLink, R
from harness.waiting import await_until
from harness.workload.client_config import MEMBER_CONFIG
from harness.workload.consumer import ConsumerSpec, Consuming, StartAt
from harness.workload.group import _Member
from harness.workload.producer import ProducerSpec, Producing, Transactions
from harness.workload.progress import ConsumerReport, ProducerReport
from harness.workload.transactional import TransactionalProducing

PARTITIONS = 3


class Work(Protocol):
    def run(self) -> None: ...


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Lives as long as the client that it is in."""
    host = Producer({"test.mock.num.brokers": 1, "test.mock.default.partitions": PARTITIONS})
    brokers = host.list_topics(timeout=30).brokers
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers.values())
    del host


class Tasks:
    """Runs the work of tasks in threads, and talks to them as the driver does."""

    def __init__(self) -> None:
        self.server = ControlServer()
        self.threads = ThreadPoolExecutor()

    def start(self, name: str, first: R, work: Callable[[DriverLink], Work]) -> tuple[Channel[R], Future[None]]:
        channel, endpoint = self.server.open(name, first)

        def run() -> None:
            link = DriverLink(endpoint)
            try:
                work(link).run()
            finally:
                link.close()

        return channel, self.threads.submit(run)


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    tasks = Tasks()
    yield tasks
    tasks.server.close()
    tasks.threads.shutdown()


def rows(run_dir: Path, table: str) -> list[dict[str, Any]]:
    parts = sorted((run_dir / "history" / table).glob("*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def producer(run_dir: Path, bootstrap: str, topic: str, transactions: Transactions | None = None) -> ProducerSpec:
    return ProducerSpec(
        producer="p0",
        run_dir=run_dir,
        run_token="selftest",
        bootstrap=bootstrap,
        topic=topic,
        partitions=PARTITIONS,
        rate_per_s=500,
        transactions=transactions,
    )


def consumer(run_dir: Path, bootstrap: str, topic: str) -> ConsumerSpec:
    return ConsumerSpec(
        consumer="c0",
        session=0,
        run_dir=run_dir,
        run_token="selftest",
        bootstrap=bootstrap,
        topic=topic,
        starts={partition: StartAt() for partition in range(PARTITIONS)},
    )


def ends(report: ProducerReport) -> dict[int, int]:
    return {partition: acked.end for partition, acked in report.partitions.items()}


def names(found: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(row["producer"], row["seq"], row["partition"], row["offset"], row["crc32"]) for row in found}


def test_a_consumer_reads_all_that_was_acked_and_both_report_it(tasks: Tasks, bootstrap: str, tmp_path: Path) -> None:
    sent, sending = tasks.start(
        "p0", ProducerReport(), lambda link: Producing(producer(tmp_path, bootstrap, "plain"), link)
    )
    read, reading = tasks.start(
        "c0", ConsumerReport(), lambda link: Consuming(consumer(tmp_path, bootstrap, "plain"), link)
    )
    await_until(lambda: sent.report.acked, lambda acked: acked > 300, timeout_s=60, what="records to be acked")
    sent.send(STOP)
    sending.result(60)
    await_until(lambda: sent.closed, timeout_s=60, what="the last report")
    read.send(replace(STOP, at=ends(sent.report)))
    reading.result(60)
    await_until(lambda: read.closed, timeout_s=60, what="the last report")
    produced = rows(tmp_path, "produced")
    assert names(produced) == names(rows(tmp_path, "consumed"))
    assert len(produced) == sent.report.acked == read.report.read == sum(ends(sent.report).values())
    assert sum(acked.records for acked in sent.report.partitions.values()) == sent.report.acked
    assert {p: reached.end for p, reached in read.report.partitions.items()} == ends(sent.report)
    assert all(reached.sent_at > 0 for reached in read.report.partitions.values())


@pytest.mark.parametrize("command", [STOP, ABORT])
def test_transactions_are_reported_as_they_ended(
    tasks: Tasks, bootstrap: str, tmp_path: Path, command: Command
) -> None:
    spec = producer(tmp_path, bootstrap, f"transactions-{command.do}", Transactions(records=20, abort_every=3))
    sent, sending = tasks.start("p0", ProducerReport(), lambda link: TransactionalProducing(spec, link))
    await_until(
        lambda: sent.report.committed, lambda count: count > 3, timeout_s=60, what="transactions to be committed"
    )
    sent.send(command)
    sending.result(60)
    await_until(lambda: sent.closed, timeout_s=60, what="the last report")
    ended = {row["transaction"]: row["transaction_outcome"] for row in rows(tmp_path, "produced")}
    outcomes = list(ended.values())
    assert outcomes.count("committed") == sent.report.committed
    assert outcomes.count("aborted") == sent.report.aborted > 0
    assert outcomes.count("indeterminate") == sent.report.unresolved == 0


def test_a_member_reports_its_rebalances(tasks: Tasks, bootstrap: str, tmp_path: Path) -> None:
    sent, sending = tasks.start(
        "p0", ProducerReport(), lambda link: Producing(producer(tmp_path, bootstrap, "group"), link)
    )
    await_until(
        lambda: len(sent.report.partitions), lambda n: n == PARTITIONS, timeout_s=60, what="records to be acked"
    )
    spec = consumer(tmp_path, bootstrap, "group")
    member = replace(spec, consumer="g0", config={**MEMBER_CONFIG, "group.id": "g", "auto.offset.reset": "earliest"})
    read, reading = tasks.start("g0", ConsumerReport(), lambda link: _Member(member, link))
    await_until(lambda: read.report.read, timeout_s=60, what="records to be read")
    assert list(read.report.assigned) == list(range(PARTITIONS))
    for channel, done in ((sent, sending), (read, reading)):
        channel.send(STOP)
        done.result(60)
    await_until(lambda: read.closed, timeout_s=60, what="the last report")
    assigned, revoked = read.report.rebalances
    assert (assigned.what, list(assigned.partitions)) == ("assigned", list(range(PARTITIONS)))
    assert assigned.sessions == dict.fromkeys(range(PARTITIONS), 0)
    assert (revoked.what, revoked.error) == ("revoked", None)
    assert revoked.committed == {p: reached.end for p, reached in read.report.partitions.items()}
