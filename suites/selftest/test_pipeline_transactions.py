"""The transactional producer, on a real broker, records the outcomes of transactions that readers see."""

import json
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from harness.checkers.judge import judge
from harness.checkers.verdict import Verdict
from harness.errors import PipelineError
from harness.journal import Journal
from harness.kafka.security import Bootstrap
from harness.spark.session import SparkHandle
from harness.waiting import await_until
from harness.workload.consumer import Isolation
from harness.workload.drain import await_stable
from harness.workload.producer import Transactions
from harness.workload.workload import Workload
from suites.selftest.histories import Row, stored_rows
from suites.selftest.journal_lines import lines_of
from suites.selftest.real_topics import new_topic

BOTH: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
PARTITIONS = 2


@dataclass
class Bench:
    """A workload on its own topic, and its history."""

    workload: Workload
    spark: SparkHandle
    bootstrap: Bootstrap
    topic: str
    run_dir: Path
    journal: Journal

    def running(self, **settings: Any) -> Any:
        return self.workload.running(self.bootstrap, self.topic, PARTITIONS, **settings)

    def ends(self) -> dict[tuple[str, int], int]:
        client = Consumer({**self.bootstrap.librdkafka, "group.id": "x", "isolation.level": "read_uncommitted"})
        found = {
            (self.topic, p): client.get_watermark_offsets(TopicPartition(self.topic, p), 10)[1]
            for p in range(PARTITIONS)
        }
        client.close()
        return found

    def drain(self) -> None:
        ends = self.ends()
        assert await_stable(self.bootstrap, ends, 20) == ends
        for isolation in BOTH:
            self.workload.drain(self.bootstrap, ends, isolation=isolation)

    def judge(self) -> Verdict:
        (self.run_dir / "run.json").write_text("{}")
        return judge(self.spark.session, self.run_dir)

    def rows(self, table: str, **where: object) -> list[Row]:
        return stored_rows(self.run_dir, table, **where)

    def names(self, table: str, **where: object) -> set[tuple[str, int]]:
        return {(row["producer"], row["seq"]) for row in self.rows(table, **where)}

    def tamper(self, table: str, which: Callable[[Row], bool], change: Row | None) -> None:
        """Rewrite the rows that ``which`` picks: by ``change``, or without them if it is None."""
        for part in (self.run_dir / "history" / table).glob("*.parquet"):
            stored = pq.read_table(part)
            rows = [row | (change or {}) if which(row) else row for row in stored.to_pylist()]
            kept = [row for row in rows if change is not None or not which(row)]
            pq.write_table(type(stored).from_pylist(kept, stored.schema), part)


@pytest.fixture
def bench(spark: SparkHandle, bootstrap: Bootstrap, tmp_path: Path) -> Iterator[Bench]:
    topic = new_topic(bootstrap, "transactions", PARTITIONS)
    journal = Journal(None)
    # A token for each test: it is part of the transactional.id, and all tests share the broker.
    workload = Workload(spark, tmp_path, topic[-8:], journal.write)
    yield Bench(workload, spark, bootstrap, topic, tmp_path, journal)
    workload.close()


def fence(bench: Bench) -> None:
    """Take over the producer's transactional.id: its open transaction is aborted, or its commit is completed."""
    other = Producer({**bench.bootstrap.librdkafka, "transactional.id": f"jbod-{bench.topic[-8:]}-p0"})
    other.init_transactions(30)


def test_one_of_each_group_is_aborted_and_the_seed_says_which() -> None:
    grouping = Transactions(abort_every=4, seed=7)
    aborted = [number for number in range(400) if grouping.aborts("p0", number)]
    assert [number // 4 for number in aborted] == list(range(100))
    assert len({number % 4 for number in aborted}) == 4
    assert aborted == [number for number in range(400) if grouping.aborts("p0", number)]
    assert aborted != [number for number in range(400) if grouping.aborts("p1", number)]
    assert aborted != [number for number in range(400) if Transactions(abort_every=4, seed=8).aborts("p0", number)]
    assert not any(Transactions(abort_every=None).aborts("p0", number) for number in range(400))


def test_no_grouping_aborts_everything() -> None:
    with pytest.raises(ValueError, match="abort_every=1"):
        Transactions(abort_every=1)


@pytest.mark.cluster
def test_commits_and_aborts_are_reported_as_both_isolations_see_them(bench: Bench) -> None:
    grouping = Transactions(records=20, abort_every=3)
    with bench.running(transactional=grouping) as pair:
        pair.await_progress(after=datetime.now(UTC), records=500)
    bench.drain()
    produced = bench.rows("produced")
    assert sorted(row["seq"] for row in produced) == list(range(len(produced)))
    assert {row["outcome"] for row in produced} == {"acked"}
    ended = {row["transaction"]: row["transaction_outcome"] for row in produced}
    assert len(ended) == pair.progress.committed + pair.progress.aborted > 20
    for name, outcome in ended.items():
        on_purpose = grouping.aborts("p0", int(re.fullmatch(r"p0-t(\d+)", name)[1]))  # type: ignore[index]
        assert outcome == ("aborted" if on_purpose else "committed")
    assert set(Counter(row["transaction"] for row in produced).most_common()[1:-1]) <= {(name, 20) for name in ended}
    committed = bench.names("produced", transaction_outcome="committed")
    for role in ("live", "drain"):
        assert bench.names("consumed", role=role, isolation="read_committed") == committed
        assert bench.names("consumed", role=role, isolation="read_uncommitted") == bench.names("produced")
    verdict = bench.judge()
    assert verdict.verdict == "valid", verdict.reasons

    # The same history with a change.
    lied_about = next(name for name, outcome in ended.items() if outcome == "committed")
    bench.tamper("produced", lambda row: row["transaction"] == lied_about, {"transaction_outcome": "aborted"})
    assert [found.kind for found in bench.judge().anomalies] == ["aborted_read"]
    bench.tamper("produced", lambda row: row["transaction"] == lied_about, {"transaction_outcome": "committed"})
    gone = next(row["seq"] for row in produced if row["transaction"] == lied_about)
    bench.tamper("consumed", lambda row: row["seq"] == gone, None)
    assert [found.kind for found in bench.judge().anomalies] == ["lost", "partial_transaction"]


@pytest.mark.cluster
def test_an_open_transaction_holds_the_read_committed_consumer_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.workload.pair.OPEN_TRANSACTION_S", 5.0)
    never = {"transaction.timeout.ms": 600_000}
    stranger = Producer({**bench.bootstrap.librdkafka, "transactional.id": bench.topic, **never})
    stranger.init_transactions(30)
    with bench.running(transactional=Transactions()) as pair:
        stranger.begin_transaction()
        opened_at: list[int | None] = []
        stranger.produce(bench.topic, b"x", partition=0, on_delivery=lambda _, it: opened_at.append(it.offset()))
        stranger.flush()
        pair.await_acked(after=datetime.now(UTC))
        pair.await_acked(after=datetime.now(UTC))
    (event,) = lines_of(bench.journal, "transaction.open")
    (first_open,) = opened_at
    assert first_open is not None
    assert event["stable"]["0"] == first_open < event["acked"]["0"]
    assert event["stable"]["1"] == event["acked"]["1"]
    assert not list(lines_of(bench.journal, "consumer.behind"))
    held_back, not_held = (
        max(row["offset"] for row in bench.rows("consumed", isolation=isolation, partition=0)) for isolation in BOTH
    )
    assert held_back < first_open < not_held
    for drained in bench.workload.drain(bench.bootstrap, bench.ends(), isolation="read_committed"):
        assert (drained.position < drained.end_offset) == (drained.partition == 0)
    stranger.abort_transaction(30)


@pytest.mark.cluster
def test_a_fenced_producer_goes_on_with_another_client(bench: Bench) -> None:
    grouping = Transactions(records=500)

    def interrupted() -> set[str]:
        """The transactions that should have been committed and were not."""
        return {
            row["transaction"]
            for row in bench.rows("produced")
            if row["transaction_outcome"] != "committed" and not grouping.aborts("p0", int(row["transaction"][4:]))
        }

    with bench.running(transactional=grouping) as pair:

        def fence_and_go_on() -> set[str]:
            fence(bench)
            pair.await_progress(after=datetime.now(UTC))
            return interrupted()

        # To fence an open transaction takes two requests; the producer may begin another one in between.
        await_until(fence_and_go_on, timeout_s=120, what="a transaction that was fenced while it was open")
    bench.drain()
    produced = bench.rows("produced")
    assert sorted(row["seq"] for row in produced) == list(range(len(produced)))
    verdict = bench.judge()
    assert verdict.verdict == "valid", verdict.reasons


@pytest.mark.cluster
def test_a_killed_producers_last_transactions_are_there_in_whole_or_not_at_all(bench: Bench) -> None:
    def run_and_kill() -> None:
        with bench.running(transactional=Transactions(records=20)) as pair:
            pair.await_count(300)
            await_until(lambda: bench.rows("produced"), bool, timeout_s=20, what="rows of the producer on disk")
            said = re.search(r"process (\d+)", (bench.run_dir / "history/.claims/p0").read_text())
            assert said is not None
            os.kill(int(said[1]), signal.SIGKILL)
            pair.await_progress(after=datetime.now(UTC))

    with pytest.raises(PipelineError, match="producer p0 died"):
        run_and_kill()
    reservation = json.loads((bench.run_dir / "history/reserved/p0.json").read_text())
    assert reservation["settled"]
    fence(bench)
    bench.drain()
    in_doubt = defaultdict(set)
    for row in bench.rows("produced", transaction_outcome="indeterminate"):
        in_doubt[row["transaction"]].add((row["producer"], row["seq"]))
    assert in_doubt
    assert all(re.fullmatch(r"p0-t\d+", name) for name in in_doubt)
    committed = bench.names("consumed", role="drain", isolation="read_committed")
    assert all(len(records & committed) in (0, len(records)) for records in in_doubt.values())
    verdict = bench.judge()
    assert verdict.verdict == "valid", verdict.reasons
