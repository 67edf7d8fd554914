"""The pair and the drain write a true history, on a real broker and a real Spark.

The fixture ``bootstrap`` is the address of a running broker; ``spark`` is a
:class:`~harness.spark.session.SparkHandle` with the Kafka connector's jars.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from harness.errors import Inconclusive, PipelineError, PromiseBroken
from harness.history.write_ahead import Reservation, settle
from harness.journal import Journal
from harness.kafka.security import Bootstrap
from harness.measure.gaps import ClientTimes
from harness.spark.control import ABORT, ControlServer, DriverLink
from harness.spark.session import SparkHandle
from harness.spark.tasks import SparkTask
from harness.waiting import await_until
from harness.workload import consumer
from harness.workload.consumer import ConsumerSpec, Consuming, StartAt
from harness.workload.producer import FLUSH_S, ProducerSpec, produce
from harness.workload.progress import ConsumerReport, ProducerReport
from harness.workload.workload import Workload
from suites.selftest.histories import stored_rows
from suites.selftest.journal_lines import lines_of
from suites.selftest.real_topics import new_topic

pytestmark = pytest.mark.cluster

PARTITIONS = 3


@pytest.fixture
def topic(bootstrap: Bootstrap) -> str:
    return new_topic(bootstrap, "pair", PARTITIONS)


@pytest.fixture
def journal() -> Journal:
    return Journal(None)


@pytest.fixture
def workload(spark: SparkHandle, tmp_path: Path, journal: Journal) -> Iterator[Workload]:
    workload = Workload(spark, tmp_path, "selftest", journal.write)
    yield workload
    workload.close()


def places(found: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(row["producer"], row["seq"], row["partition"], row["offset"], row["crc32"]) for row in found}


def process_of(run_dir: Path, task: str) -> int:
    said = re.search(r"process (\d+)", (run_dir / "history" / ".claims" / task).read_text())
    assert said is not None
    return int(said[1])


def test_acks_live_reads_and_drain_agree(workload: Workload, bootstrap: Bootstrap, topic: str, tmp_path: Path) -> None:
    began_at = datetime.now(UTC)
    with workload.running(bootstrap, topic, PARTITIONS, keys=5, producers=2, rate_per_s=500) as pair:
        pair.await_progress(after=datetime.now(UTC))
    ended_at = datetime.now(UTC)
    progress = pair.progress
    ends = {(topic, each.partition): each.acked_end for each in progress.partitions}
    drained = workload.drain(bootstrap, ends)

    produced = stored_rows(tmp_path, "produced")
    assert len(produced) == progress.acked == progress.read > 0
    assert {row["outcome"] for row in produced} == {"acked"}
    for producer in pair.producers:
        seqs = sorted(row["seq"] for row in produced if row["producer"] == producer)
        assert seqs == list(range(len(seqs)))
    assert all(began_at < row["sent_at"] <= row["ended_at"] < ended_at for row in produced)
    assert all(row["key"] == str(row["seq"] % 5) for row in produced)
    assert places(produced) == places(stored_rows(tmp_path, "consumed", role="live"))
    assert places(produced) == places(stored_rows(tmp_path, "consumed", role="drain"))
    for role in ("live", "drain"):
        for partition in range(PARTITIONS):
            read = stored_rows(tmp_path, "consumed", role=role, partition=partition)
            read.sort(key=lambda row: row["position"])
            assert [row["position"] for row in read] == [row["offset"] for row in read] == list(range(len(read)))
    assert {(each.topic, each.partition): each.position for each in drained} == ends
    assert {(row["topic"], row["partition"]): row["end_offset"] for row in stored_rows(tmp_path, "drained")} == ends
    assert len(ClientTimes(tmp_path).gaps(topic, began_at, ended_at)) == PARTITIONS


def test_a_killed_consumer_goes_on_where_it_was(
    workload: Workload, bootstrap: Bootstrap, topic: str, tmp_path: Path, journal: Journal
) -> None:
    with workload.running(bootstrap, topic, PARTITIONS) as pair:
        os.kill(process_of(tmp_path, "c0-0"), signal.SIGKILL)
        pair.await_progress(after=datetime.now(UTC), timeout_s=30)
    assert pair.progress.restarts == 1
    assert [event["session"] for event in lines_of(journal, "consumer.restarted")] == [1]
    read = stored_rows(tmp_path, "consumed")
    assert max(row["session"] for row in read) == 1
    assert places(read) == places(stored_rows(tmp_path, "produced"))
    assert len(read) == len(places(read)) == len({(row["partition"], row["position"]) for row in read})


def test_a_consumer_that_stands_still_is_compared_with_a_fresh_one(
    workload: Workload, bootstrap: Bootstrap, topic: str, tmp_path: Path
) -> None:
    with workload.running(bootstrap, topic, 1) as pair:
        os.kill(process_of(tmp_path, "c0-0"), signal.SIGSTOP)
        try:
            with pytest.raises(
                PromiseBroken, match=rf"a fresh client with the settings of c0 reads on from {topic}-0@"
            ):
                pair.await_progress(after=datetime.now(UTC), timeout_s=2)
        finally:
            os.kill(process_of(tmp_path, "c0-0"), signal.SIGCONT)


class Standing(Consuming):
    """A consumer whose client has its partitions and returns no records from them."""

    def _begin(self) -> None:
        super()._begin()
        self._client.pause([TopicPartition(self._spec.topic, partition) for partition in self._spec.starts])


class Waiting(Standing):
    """A standing consumer whose client also reports that it sends no fetch requests."""

    def _fetch_states(self) -> dict[int, str]:
        return super()._fetch_states() | {0: "validate-epoch-wait"}


@pytest.mark.parametrize(
    ("client", "config", "given_up"),
    [
        (Standing, {"client.rack": "a"}, True),
        (Standing, {}, False),
        (Waiting, {}, True),
        (Consuming, {"client.rack": "a"}, False),
        (Consuming, {}, False),
    ],
    ids=["stands-still", "asks", "asks-nobody", "at-the-end", "at-the-end-without-rack"],
)
def test_a_client_that_stands_still_alone_is_given_up(
    bootstrap: Bootstrap,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: type[Consuming],
    config: dict[str, str],
    given_up: bool,
) -> None:
    """A consumer without a rack that fetches in vain is not given up; its silence is reported."""
    monkeypatch.setattr(consumer, "STUCK_S", 0.5)
    monkeypatch.setattr(consumer, "STATISTICS_MS", 100)
    server = ControlServer()
    try:
        channel, invitation = server.open("c0-0", ConsumerReport())
        spec = ConsumerSpec(
            consumer="c0",
            session=0,
            run_dir=tmp_path,
            run_token="selftest",
            bootstrap=bootstrap,
            topic=topic,
            starts={0: StartAt()},
            config=config,
        )
        producer = Producer({**bootstrap.librdkafka})
        producer.produce(topic, b"handed to a fresh client", partition=0)
        assert producer.flush(30) == 0
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(client(spec, DriverLink(invitation)).run)
            if given_up:
                with pytest.raises(
                    PipelineError, match=f"reads nothing from {topic}-0@0 on, where a fresh client reads"
                ):
                    running.result(60)
            else:
                with pytest.raises(TimeoutError):
                    running.result(2)
                channel.send(ABORT)
                running.result(60)
    finally:
        server.close()


def test_a_pair_that_gets_through_too_slowly_has_shown_nothing(
    workload: Workload, bootstrap: Bootstrap, topic: str
) -> None:
    """Records sent after an instant wait behind earlier ones; on a slow pair this shows nothing of Kafka."""
    with (
        workload.running(bootstrap, topic, PARTITIONS) as pair,
        pytest.raises(Inconclusive, match="this machine is too slow for the load"),
    ):
        pair.await_progress(after=datetime.now(UTC) + timedelta(hours=1), timeout_s=6)


def test_a_consumer_whose_position_is_gone_is_loud_about_it_and_goes_on(
    workload: Workload, bootstrap: Bootstrap, topic: str, tmp_path: Path, journal: Journal
) -> None:
    with workload.running(bootstrap, topic, 1) as pair:
        consumer = process_of(tmp_path, "c0-0")
        os.kill(consumer, signal.SIGSTOP)
        stopped_at = pair.progress.partitions[0].acked_end
        progress = await_until(
            lambda: pair.progress,
            lambda progress: progress.partitions[0].acked_end > stopped_at + 1000,
            timeout_s=30,
            what="records that the consumer has not read",
        )
        deleted_below = progress.partitions[0].acked_end
        admin = AdminClient({**bootstrap.librdkafka})
        gone = TopicPartition(topic, 0, deleted_below)
        admin.delete_records([gone])[gone].result()
        os.kill(consumer, signal.SIGCONT)
        pair.await_progress(after=datetime.now(UTC), timeout_s=30)
    (died,) = lines_of(journal, "consumer.died")
    assert "OFFSET_OUT_OF_RANGE" in died["error"]
    assert min(row["offset"] for row in stored_rows(tmp_path, "consumed", session=1)) == deleted_below
    positions = sorted(row["position"] for row in stored_rows(tmp_path, "consumed"))
    assert positions == list(range(len(positions)))


def test_a_killed_producer_fails_its_pair_and_leaves_no_phantoms(
    workload: Workload, bootstrap: Bootstrap, topic: str, tmp_path: Path
) -> None:

    def run_and_kill() -> None:
        with workload.running(bootstrap, topic, PARTITIONS) as pair:
            os.kill(process_of(tmp_path, "p0"), signal.SIGKILL)
            pair.await_progress(after=datetime.now(UTC), timeout_s=30)

    with pytest.raises(PipelineError, match="producer p0 died"):
        run_and_kill()
    produced = {(row["producer"], row["seq"], row["crc32"]) for row in stored_rows(tmp_path, "produced")}
    assert len(produced) == len(stored_rows(tmp_path, "produced"))
    assert {(row["producer"], row["seq"], row["crc32"]) for row in stored_rows(tmp_path, "consumed")} <= produced


def test_a_second_attempt_of_a_producer_sends_nothing(
    spark: SparkHandle, bootstrap: Bootstrap, topic: str, tmp_path: Path
) -> None:
    spec = ProducerSpec(
        producer="p0", run_dir=tmp_path, run_token="selftest", bootstrap=bootstrap, topic=topic, partitions=PARTITIONS
    )
    server = ControlServer()
    try:
        first = SparkTask(spark.session(), server, "first", ProducerReport(), partial(produce, spec))
        await_until(lambda: first.report.acked, timeout_s=30, what="the first attempt to send")
        second = SparkTask(spark.session(), server, "second", ProducerReport(), partial(produce, spec))
        assert second.join(30)
        assert second.error is not None
        assert "p0 was started a second time" in second.error
        first.channel.send(ABORT)
        assert first.join(60)
        assert first.error is None
    finally:
        server.close()
    assert set(Counter(row["seq"] for row in stored_rows(tmp_path, "produced")).values()) == {1}


def test_records_of_others_are_of_no_producer(
    workload: Workload, bootstrap: Bootstrap, topic: str, tmp_path: Path
) -> None:
    stranger = Producer({**bootstrap.librdkafka})
    values = [None, b"", b"\xff\x00", b"jbod other p0 0 xxxxxxxx", b"jbod selftest p9 3 x", b"hello"]
    for value in values:
        stranger.produce(topic, value, partition=0)
    stranger.flush()
    with workload.running(bootstrap, topic, 1, rate_per_s=100) as pair:
        pass
    workload.drain(bootstrap, {(topic, 0): pair.progress.partitions[0].acked_end})
    for role in ("live", "drain"):
        read = sorted(stored_rows(tmp_path, "consumed", role=role), key=lambda row: row["offset"])
        told = [(row["producer"], row["seq"]) for row in read[: len(values)]]
        assert told == [(None, None)] * 4 + [("p9", 3), (None, None)]
        assert [row["crc32"] for row in read[:2]] == [None, 0]


def test_a_log_shorter_than_its_end_offset_is_not_drained_to_the_end(
    workload: Workload, bootstrap: Bootstrap, topic: str, tmp_path: Path
) -> None:
    with workload.running(bootstrap, topic, PARTITIONS) as pair:
        pass
    acked_end = pair.progress.partitions[0].acked_end
    (drained,) = workload.drain(bootstrap, {(topic, 0): acked_end + 1000})
    assert (drained.position, drained.end_offset) == (acked_end, acked_end + 1000)


def test_a_drain_of_what_is_not_there_is_the_pipelines_error(workload: Workload, bootstrap: Bootstrap) -> None:
    with pytest.raises(PipelineError, match="nowhere-0"):
        workload.drain(bootstrap, {("nowhere", 0): 5})


def test_an_open_transaction_holds_a_read_committed_drain_back(
    workload: Workload, bootstrap: Bootstrap, topic: str
) -> None:
    sender = Producer({**bootstrap.librdkafka, "transactional.id": topic})
    sender.init_transactions(30)
    for commit in (True, False):
        sender.begin_transaction()
        for _ in range(10):
            sender.produce(topic, b"x", partition=0)
        sender.flush()
        if commit:
            sender.commit_transaction(30)
    # 10 records, their marker, 10 records of the open transaction.
    (held_back,) = workload.drain(bootstrap, {(topic, 0): 21}, isolation="read_committed")
    assert held_back.position == 11
    (to_the_end,) = workload.drain(bootstrap, {(topic, 0): 21}, isolation="read_uncommitted")
    assert to_the_end.position == 21
    sender.abort_transaction(30)


def test_an_error_in_the_block_ends_the_tasks_at_once(
    workload: Workload, bootstrap: Bootstrap, topic: str, tmp_path: Path
) -> None:
    raised_at: list[float] = []

    def run_and_fail() -> None:
        with workload.running(bootstrap, topic, PARTITIONS):
            raised_at.append(time.monotonic())
            raise KeyError

    with pytest.raises(KeyError):
        run_and_fail()
    assert time.monotonic() - raised_at[0] < FLUSH_S / 2  # records in flight were not waited for
    assert Reservation(**json.loads((tmp_path / "history/reserved/p0.json").read_text())).settled


DRIVER = """
import sys
from pathlib import Path
from harness.kafka.security import Bootstrap
from harness.workload.workload import Workload
from harness.spark.session import SparkHandle

bootstrap, topic, run_dir, *jars = sys.argv[1:]
spark = SparkHandle(None, jars=[Path(jar) for jar in jars])
workload = Workload(spark, Path(run_dir), "selftest", lambda kind, **fields: None)
with workload.running(Bootstrap(addresses=bootstrap), topic, 1) as pair:
    pair.await_count(2000)  # a part of the history is written after 0.7 s
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_nothing_outlives_a_killed_driver_and_no_row_is_lost(
    spark: SparkHandle, bootstrap: Bootstrap, topic: str, tmp_path: Path
) -> None:
    jars = [
        url.removeprefix("file:") for url in spark.session().sparkContext.getConf().get("spark.jars", "").split(",")
    ]
    arguments = [sys.executable, "-c", DRIVER, str(bootstrap), topic, str(tmp_path), *jars]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"
        children = psutil.Process(driver.pid).children(recursive=True)
        tasks = {process_of(tmp_path, "p0"), process_of(tmp_path, "c0-0")}
        assert tasks <= {child.pid for child in children}
        driver.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    settle(tmp_path)
    produced = {(row["producer"], row["seq"]) for row in stored_rows(tmp_path, "produced")}
    read = {(row["producer"], row["seq"]) for row in stored_rows(tmp_path, "consumed")}
    assert read
    assert read <= produced
