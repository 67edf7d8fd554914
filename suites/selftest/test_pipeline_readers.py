"""Independent readers, on a real broker and Spark, read all that the drain has; the judge finds any gap."""

import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from harness.checkers.judge import judge
from harness.checkers.verdict import Verdict
from harness.journal import Journal
from harness.kafka.security import Bootstrap
from harness.spark.session import SparkHandle
from harness.waiting import await_until
from harness.workload.pair import Pair
from harness.workload.readers import Group, Stream
from harness.workload.stream import StreamReader
from harness.workload.workload import Workload
from suites.selftest.histories import stored_rows
from suites.selftest.journal_lines import lines_of
from suites.selftest.real_topics import new_topic

pytestmark = pytest.mark.cluster

PARTITIONS = 3


@pytest.fixture
def topic(bootstrap: Bootstrap) -> str:
    return new_topic(bootstrap, "readers", PARTITIONS)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "events.jsonl")


@pytest.fixture
def workload(spark: SparkHandle, tmp_path: Path, journal: Journal, topic: str) -> Iterator[Workload]:
    # A token for each test: it is part of the group's id, and all tests share the broker.
    workload = Workload(spark, tmp_path, topic[-8:], journal.write)
    yield workload
    workload.close()


def read(run_dir: Path, *consumers: str) -> list[tuple[Any, ...]]:
    found = [row for consumer in consumers for row in stored_rows(run_dir, "consumed", consumer=consumer)]
    return [(row["partition"], row["offset"], row["producer"], row["seq"], row["crc32"]) for row in found]


def check_positions(run_dir: Path, consumer: str) -> None:
    """Positions go on over all sessions, in the order of offsets, except where records were delivered again."""
    handed = stored_rows(run_dir, "consumed", consumer=consumer)
    for partition in range(PARTITIONS):
        found = sorted((row for row in handed if row["partition"] == partition), key=lambda row: row["position"])
        assert [row["position"] for row in found] == list(range(len(found)))
        in_order = [(row["session"], row["offset"]) for row in found]
        assert in_order == sorted(set(in_order))


def drain_and_judge(
    workload: Workload, spark: SparkHandle, bootstrap: Bootstrap, topic: str, pair: Pair, run_dir: Path
) -> Verdict:
    workload.drain(bootstrap, {(topic, each.partition): each.acked_end for each in pair.progress.partitions})
    return judge_again(spark, pair, run_dir)


def judge_again(spark: SparkHandle, pair: Pair, run_dir: Path) -> Verdict:
    groups = {name: reader.name for reader in pair.readers for name in reader.consumers if len(reader.consumers) > 1}
    (run_dir / "run.json").write_text(json.dumps({"groups": groups}))
    return judge(spark.session, run_dir)


def take_out(run_dir: Path, row: dict[str, Any], *consumers: str) -> None:
    """Remove this record from the reads of these consumers."""
    its = (pc.field("partition") == row["partition"]) & (pc.field("offset") == row["offset"])
    for consumer in consumers:
        for part in (run_dir / "history" / "consumed").glob(f"{consumer}-*.parquet"):
            pq.write_table(pq.read_table(part).filter(~its), part)


def moves(journal: Journal, was: str, consumer: str) -> list[set[int]]:
    return [set(event["partitions"]) for event in lines_of(journal, f"group.{was}") if event["consumer"] == consumer]


def test_all_readers_have_what_the_drain_has_and_a_row_less_is_seen(
    workload: Workload, spark: SparkHandle, bootstrap: Bootstrap, topic: str, tmp_path: Path, journal: Journal
) -> None:
    with workload.running(bootstrap, topic, PARTITIONS, readers=(Stream(), Group())) as pair:
        pair.await_readers(after=datetime.now(UTC))
    verdict = drain_and_judge(workload, spark, bootstrap, topic, pair, tmp_path)
    assert verdict.verdict == "valid", verdict.reasons
    assert not list(lines_of(journal, "consumer.behind"))
    drained = sorted(read(tmp_path, "d0"))
    assert len(drained) == pair.progress.acked > 0
    for consumers in (("c0",), ("s0",), ("g0", "g1")):
        assert sorted(read(tmp_path, *consumers)) == drained
        for consumer in consumers:
            check_positions(tmp_path, consumer)

    # The second member joined and left; the first one had its partitions before and afterwards.
    moved = set().union(*moves(journal, "assigned", "g1"))
    assert 0 < len(moved) < PARTITIONS
    for consumer, was in (("g0", "assigned"), ("g0", "revoked"), ("g1", "revoked")):
        assert any(moved <= partitions for partitions in moves(journal, was, consumer))
    *_, back = (event for event in lines_of(journal, "group.assigned") if event["consumer"] == "g0")
    assert (set(back["partitions"]), set(back["sessions"].values())) == (moved, {1})
    # Records are left for the first one only if the second one left early enough.
    of_first = stored_rows(tmp_path, "consumed", consumer="g0")
    assert {row["session"] for row in of_first if row["partition"] in moved} <= {0, 1}
    assert {row["session"] for row in of_first if row["partition"] not in moved} == {0}
    assert {partition for partition, *_ in read(tmp_path, "g1")} == moved
    (ended,) = lines_of(journal, "stream.ended")
    assert ended["read"] == len(drained)
    assert ended["restarts"] == 0

    # The same history without a record that one reader read; all other rows stay.
    gone: set[int] = set()
    for consumers in (("s0",), ("g0", "g1")):
        [partition, *_] = moved
        handed = sorted(
            (row for row in stored_rows(tmp_path, "consumed", partition=partition) if row["consumer"] in consumers),
            key=lambda row: row["offset"],
        )
        rest = [row for row in handed[len(handed) // 2 :] if row["offset"] not in gone]
        taken_out = next(row for row in rest if row["consumer"] == consumers[-1])
        gone.add(taken_out["offset"])
        take_out(tmp_path, taken_out, *consumers)
        [found] = [a for a in judge_again(spark, pair, tmp_path).anomalies if a.kind == "skipped"]
        of = {example["consumer"] for example in found.examples if example["offset"] == taken_out["offset"]}
        assert of <= set(consumers)
        assert consumers[0] in of


def test_a_group_needs_a_partition_for_each_member(workload: Workload, bootstrap: Bootstrap, topic: str) -> None:
    with (
        pytest.raises(ValueError, match="a group of 2 members needs at least 2"),
        workload.running(bootstrap, topic, 1, readers=(Group(),)),
    ):
        pass


def test_a_stream_that_dies_goes_on_from_its_checkpoint_and_doubles_no_epoch(
    workload: Workload,
    spark: SparkHandle,
    bootstrap: Bootstrap,
    topic: str,
    tmp_path: Path,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_next: list[str] = []
    keep = StreamReader._keep

    def keep_and_fail(stream: StreamReader, frame: DataFrame, epoch: int) -> None:
        keep(stream, frame, epoch)
        if fail_next:
            raise KeyError(fail_next.pop())  # the part was written, and the checkpoint was not committed

    monkeypatch.setattr(StreamReader, "_keep", keep_and_fail)
    with workload.running(bootstrap, topic, PARTITIONS, readers=(Stream(),)) as pair:
        [stream] = pair.readers
        assert isinstance(stream, StreamReader)
        fail_next.append("on purpose")
        await_until(
            lambda: len(list(lines_of(journal, "stream.restarted"))) == 1, timeout_s=60, what="its first restart"
        )
        pair.await_readers(after=datetime.now(UTC))
        assert stream.query is not None
        stream.query.stop()
        await_until(
            lambda: len(list(lines_of(journal, "stream.restarted"))) == 2, timeout_s=60, what="its second restart"
        )
        pair.await_readers(after=datetime.now(UTC))
    first, second = lines_of(journal, "stream.died")
    assert "on purpose" in first["error"]
    assert second["error"] == "ended without being asked to"
    assert len(list(lines_of(journal, "stream.replayed"))) >= 1
    verdict = drain_and_judge(workload, spark, bootstrap, topic, pair, tmp_path)
    assert verdict.verdict == "valid", verdict.reasons
    assert not [found for found in verdict.anomalies if found.kind == "redelivered"]
    assert sorted(read(tmp_path, "s0")) == sorted(read(tmp_path, "d0"))
    assert {row["session"] for row in stored_rows(tmp_path, "consumed", consumer="s0")} == {0, 1, 2}
    check_positions(tmp_path, "s0")


def test_a_killed_members_partitions_are_read_on(
    workload: Workload, spark: SparkHandle, bootstrap: Bootstrap, topic: str, tmp_path: Path, journal: Journal
) -> None:
    with workload.running(bootstrap, topic, PARTITIONS, readers=(Group(),)) as pair:
        said = re.search(r"process (\d+)", (tmp_path / "history/.claims/g0-0").read_text())
        assert said is not None
        os.kill(int(said[1]), signal.SIGKILL)
        pair.await_readers(after=datetime.now(UTC))
    assert [event["consumer"] for event in lines_of(journal, "consumer.restarted")] == ["g0"]
    verdict = drain_and_judge(workload, spark, bootstrap, topic, pair, tmp_path)
    assert verdict.verdict == "valid", verdict.reasons
    assert set(read(tmp_path, "g0", "g1")) == set(read(tmp_path, "d0"))
    for consumer in ("g0", "g1"):
        check_positions(tmp_path, consumer)
