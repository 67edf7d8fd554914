"""The judge reads a run folder and writes verdict.json; it refuses a folder that it cannot read."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import harness.checkers.judge as judge_module
from harness.checkers.judge import judge, write_verdict
from harness.checkers.settings import RunSettings, read_settings
from harness.errors import HistoryError
from harness.history.tables import CONSUMED, PRODUCED, SCHEMAS, HistoryWriter, load_table
from harness.history.write_ahead import Reservation
from harness.spark.session import SessionSource
from suites.selftest.histories import Story, anomaly_counts, right_story, story_of, without_twins
from suites.selftest.test_judge_model import PLANTERS, disturb


def part(run_dir: Path, table: str) -> Path:
    return run_dir / "history" / table / "part-000000.parquet"


def change(run_dir: Path, table: str, column: str, values: pa.Array | None) -> None:
    """Store a table with another version of one column, or without it."""
    stored = pq.read_table(part(run_dir, table))
    index = stored.column_names.index(column)
    stored = stored.remove_column(index) if values is None else stored.set_column(index, column, values)
    pq.write_table(stored, part(run_dir, table))


@pytest.mark.parametrize("kind", PLANTERS)
def test_from_files_it_is_the_same(kind: str, judge_spark: SessionSource, tmp_path: Path) -> None:
    dice = random.Random(kind)
    story = right_story(dice)
    while not PLANTERS[kind](dice, story):
        story = right_story(dice)
    disturb(dice, story)
    story.consumed = without_twins(story.consumed)
    run_dir = tmp_path / "kip-112 {leader}[kraft-chmod_000]"
    run_dir.mkdir()
    expected = story.judged(run_dir)
    assert judge(judge_spark, story.write(run_dir)).as_json() == expected.as_json()


def test_verdict_json_is_as_the_contract_has_it(judge_spark: SessionSource, tmp_path: Path) -> None:
    story = story_of()
    story.send(3)
    story.send(4, outcome="failed")
    story.read(3)
    story.consumed = [row for row in story.consumed if (row["role"], row["seq"]) != ("drain", 1)]
    run_dir = story.write(tmp_path)
    verdict = judge(judge_spark, run_dir)
    assert json.loads(write_verdict(run_dir, verdict).read_text()) == {
        "schema": 1,
        "run_id": "a run",
        "verdict": "invalid",
        "reasons": [
            "1 acked record is in no drain although its partition was read past it, e.g. p #1 at t-0@1",
            "2 records were handed to live consumers and are in no drain, although their partitions were read past "
            "them, e.g. p #1 at t-0@1",
        ],
        "counts": {"sent": 5, "acked": 3, "failed": 1, "indeterminate": 1, "indeterminate_present": 1, "read": 6},
        "anomalies": [
            {
                "kind": "lost",
                "count": 1,
                "examples": [{"producer": "p", "seq": 1, "topic": "t", "partition": 0, "offset": 1}],
            },
            {
                "kind": "vanished",
                "count": 2,
                "examples": [
                    {"producer": "p", "seq": 1, "topic": "t", "partition": 0, "offset": 1},
                    {"producer": "p", "seq": 3, "topic": "t", "partition": 0, "offset": 3},
                ],
            },
        ],
    }
    assert sorted(path.name for path in run_dir.iterdir()) == ["history", "run.json", "verdict.json"]


def test_no_more_than_twenty_examples_and_always_the_same(tmp_path: Path) -> None:
    story = Story()
    for seq in range(30):
        story.send(seq, seq)
    story.end(30)
    first = story.judged(tmp_path)
    random.Random(1).shuffle(story.produced)
    assert story.judged(tmp_path).text() == first.text()
    assert first.anomalies[0].count == 30
    assert [example["seq"] for example in first.anomalies[0].examples] == list(range(20))


def test_a_judge_that_fails_says_unknown(
    judge_spark: SessionSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = RunSettings(run_id="a run", groups=None)  # type: ignore[arg-type]
    monkeypatch.setattr(judge_module, "read_settings", lambda _: broken)
    verdict = judge(judge_spark, story_of().write(tmp_path))
    assert verdict.verdict == "unknown"
    assert verdict.reasons[0].startswith("the judge could not decide: TypeError: ")
    assert (verdict.counts.sent, verdict.counts.read) == (3, 6)


@pytest.mark.parametrize("table", ["produced", "consumed"])
def test_a_missing_table(table: str, judge_spark: SessionSource, tmp_path: Path) -> None:
    run_dir = story_of().write(tmp_path)
    part(run_dir, table).unlink()
    with pytest.raises(HistoryError, match=f"history/{table} has no Parquet file"):
        judge(judge_spark, run_dir)
    part(run_dir, table).parent.rmdir()
    with pytest.raises(HistoryError, match=f"history/{table} is missing"):
        judge(judge_spark, run_dir)


@pytest.mark.parametrize("table", ["produced", "consumed", "drained"])
@pytest.mark.parametrize("size", [0, 10, -3])
def test_a_part_that_is_cut_off(table: str, size: int, judge_spark: SessionSource, tmp_path: Path) -> None:
    run_dir = story_of().write(tmp_path)
    data = part(run_dir, table).read_bytes()
    part(run_dir, table).write_bytes(data[:size])
    with pytest.raises(HistoryError, match=f"{table}/part-000000.parquet .* is cut off"):
        judge(judge_spark, run_dir)


def test_a_part_that_is_damaged_inside(judge_spark: SessionSource, tmp_path: Path) -> None:
    run_dir = story_of(1000).write(tmp_path)
    data = bytearray(part(run_dir, "produced").read_bytes())
    data[4:4000] = b"\xff" * 3996
    part(run_dir, "produced").write_bytes(data)
    with pytest.raises(HistoryError, match=r"produced/part-000000.parquet is damaged"):
        judge(judge_spark, run_dir)


def test_a_file_that_is_no_parquet(judge_spark: SessionSource, tmp_path: Path) -> None:
    run_dir = story_of().write(tmp_path)
    (part(run_dir, "consumed").parent / "notes.txt").write_text("not a table, but quite long enough to be one")
    with pytest.raises(HistoryError, match=r"consumed/notes.txt .* is cut off or not a Parquet file"):
        judge(judge_spark, run_dir)


def test_a_part_that_has_gone_is_missed(judge_spark: SessionSource, tmp_path: Path) -> None:
    """Without a promise of how many rows there are, a missing file would not show."""
    run_dir = story_of().write(tmp_path)
    promise = Reservation(producer="p", run_token="x", topic="t", partitions=1, keys=None, record_bytes=64, below=3)
    for reservation, kinds in (
        (promise, []),  # cut off, before `settle` repairs it
        (replace(promise, settled=True), []),
        (replace(promise, settled=True, below=5), ["unrecorded"]),
    ):
        reservation.write(run_dir)
        verdict = judge(judge_spark, run_dir)
        assert [anomaly.kind for anomaly in verdict.anomalies] == kinds
    assert (verdict.verdict, verdict.anomalies[0].count) == ("unknown", 2)
    (run_dir / "history/reserved/p.json").write_text('{"producer": "p", "run')
    with pytest.raises(HistoryError, match=r"p\.json is cut off"):
        judge(judge_spark, run_dir)


def test_hidden_files_are_not_there(judge_spark: SessionSource, tmp_path: Path) -> None:
    run_dir = story_of().write(tmp_path)
    for name in ("_SUCCESS", ".part-000000.parquet.crc", ".half.tmp"):
        (part(run_dir, "produced").parent / name).write_text("x")
    assert judge(judge_spark, run_dir).verdict == "valid"


@pytest.mark.parametrize(
    ("table", "column", "values", "why"),
    [
        ("produced", "outcome", None, "outcome missing"),
        ("consumed", "crc32", None, "crc32 missing"),
        ("drained", "position", None, "position missing"),
        ("produced", "seq", pa.array(["0", "1", "2"]), "seq is string, expected int64"),
        ("produced", "seq", pa.array([0.0, 1.5, 2.0]), "seq is double, expected int64, and does not fit"),
        ("consumed", "partition", pa.array([0] * 5 + [1 << 40]), "partition is int64, expected int32, and does not"),
        ("consumed", "topic", pa.array([b"t"] * 6), "topic is binary, expected string"),
        ("produced", "sent_at", pa.array([0, 1, 2]), "sent_at is int64, expected timestamp"),
    ],
)
def test_other_columns(
    table: str, column: str, values: pa.Array | None, why: str, judge_spark: SessionSource, tmp_path: Path
) -> None:
    run_dir = story_of().write(tmp_path)
    change(run_dir, table, column, values)
    with pytest.raises(HistoryError, match=rf"{table}/part-000000.parquet has other columns: .*{why}"):
        judge(judge_spark, run_dir)


def test_what_other_tools_write_is_welcome(judge_spark: SessionSource, tmp_path: Path) -> None:
    """Histories of other tools: integers of any width, floats with NaN for null, empty columns, times of any unit."""
    run_dir = story_of().write(tmp_path)
    as_written = {table: load_table(run_dir, table) for table in SCHEMAS}
    nan = float("nan")
    change(run_dir, "produced", "offset", pa.array([0.0, 1.0, 2.0]))
    change(run_dir, "produced", "partition", pa.array([0, 0, 0], pa.int64()))
    change(run_dir, "produced", "crc32", pq.read_table(part(run_dir, "produced"))["crc32"].cast(pa.uint32()))
    change(run_dir, "produced", "key", pa.nulls(3))
    change(run_dir, "produced", "topic", pa.array(["t"] * 3).dictionary_encode())
    change(run_dir, "produced", "outcome", pa.array(["acked"] * 3, pa.large_string()))
    change(run_dir, "produced", "sent_at", pa.array([1, 2, 3], pa.timestamp("ns")))
    change(run_dir, "produced", "ended_at", pa.array([1, 2, 3], pa.timestamp("ms", tz="Europe/Berlin")))
    change(run_dir, "consumed", "position", pa.array([0, 1, 2, 0, 1, 2], pa.uint64()))
    change(run_dir, "consumed", "session", pa.array([0] * 6, pa.int8()))
    assert judge(judge_spark, run_dir).verdict == "valid"
    for table, rows in as_written.items():
        here = load_table(run_dir, table)
        if table == "produced":
            for name, unit in (("sent_at", "ns"), ("ended_at", "ms")):
                assert here[name].type == pa.timestamp(unit, "UTC")
                assert pc.cast(here[name], pa.int64()).to_pylist() == [1, 2, 3]
                here, rows = here.drop_columns(name), rows.drop_columns(name)
        assert here == rows

    story = story_of()
    story.send(3)
    strangers = [story.read(3, by="drain", producer=None, seq=None), story.read(4, by="drain", producer=None, seq=None)]
    run_dir = story.write(tmp_path / "with nulls")
    expected = story.judged(tmp_path)
    change(run_dir, "produced", "offset", pa.array([0.0, 1.0, 2.0, nan]))
    seqs = [nan if row in strangers else float(row["seq"]) for row in story.consumed]
    change(run_dir, "consumed", "seq", pa.array(seqs, pa.float32()))
    assert judge(judge_spark, run_dir).as_json() == expected.as_json()


def test_parts_may_differ_in_how_they_store_a_column(judge_spark: SessionSource, tmp_path: Path) -> None:
    story = story_of(2)
    run_dir = story.write(tmp_path)
    change(run_dir, "produced", "seq", pa.array([0, 1], pa.int32()))
    HistoryWriter(run_dir, "produced", "other").write(pa.Table.from_pylist([story.send(2, 2)], PRODUCED))
    reads = [story.read(2), story.read(2, by="drain")]
    HistoryWriter(run_dir, "consumed", "part").write(pa.Table.from_pylist(reads, CONSUMED))
    verdict = judge(judge_spark, run_dir)
    assert (verdict.verdict, verdict.counts.sent, verdict.counts.read) == ("valid", 3, 6)


def test_tables_without_rows(judge_spark: SessionSource, tmp_path: Path) -> None:
    verdict = judge(judge_spark, Story().write(tmp_path))
    assert (verdict.verdict, [anomaly.kind for anomaly in verdict.anomalies]) == ("unknown", ["no_load"])
    only_sent = Story()
    only_sent.send(0, 0)
    assert judge(judge_spark, only_sent.write(tmp_path / "sent")).verdict == "unknown"


@pytest.mark.parametrize(
    ("table", "changed", "why"),
    [
        ("produced", {"outcome": "ok"}, "outcome is 'ok'"),
        ("produced", {"transaction": "x"}, "transaction without transaction_outcome"),
        ("produced", {"transaction": "x", "transaction_outcome": "open"}, "transaction_outcome is 'open'"),
        ("consumed", {"role": "tail"}, "role is 'tail'"),
        ("consumed", {"isolation": "none"}, "isolation is 'none'"),
        ("consumed", {"offset": -1}, "an offset below zero"),
        ("consumed", {"crc32": None}, "without crc32"),
        ("drained", {"isolation": "none"}, "isolation is 'none'"),
    ],
)
def test_rows_that_no_history_has(table: str, changed: dict[str, object], why: str, tmp_path: Path) -> None:
    story = story_of()
    getattr(story, table)[0].update(changed)
    with pytest.raises(HistoryError, match=why):
        story.judged(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "run.json is missing"),
        ('{"run_id": "a', "is cut off or not JSON"),
        ("[]", "must hold a JSON object"),
        ('{"allow_duplicates": "yes"}', "allow_duplicates is 'yes', expected bool"),
        ('{"deleted_below": {"t": 5}}', "deleted_below is"),
        ('{"deleted_below": {"t": {"0": "5"}}}', "deleted_below is"),
        ('{"producer_sessions": {"t": {"0": [0, 9, 7, 0]}}}', "producer_sessions is"),
        ('{"producer_sessions": {"t": {"0": [[0, 9, -1, -1]]}}}', "producer_sessions is"),
        ('{"producer_sessions": {"t": {"0": [[9, 0, 7, 0]]}}}', "producer_sessions is"),
        ('{"producer_sessions": {"t": {"0": [[0, 9, 7, 0], [9, 12, 7, 1]]}}}', "producer_sessions is"),
        ('{"compacted": [1]}', "compacted is"),
        ('{"groups": {"c": null}}', "groups is"),
    ],
)
def test_run_json_that_does_not_do(text: str | None, why: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(HistoryError, match=why):
        read_settings(tmp_path)


def test_run_json_may_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"allow_duplicates": null}')
    settings = read_settings(tmp_path)
    assert (settings.run_id, settings.allow_duplicates, settings.groups) == (tmp_path.name, False, {})


def test_a_writer_goes_on_behind_what_is_there(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([story_of().produced[0]], PRODUCED)
    names = [HistoryWriter(tmp_path, "produced", "p0").write(table).name for _ in range(2)]
    names.append(HistoryWriter(tmp_path, "produced", "p1").write(table.to_batches()[0]).name)
    assert names == ["p0-000000.parquet", "p0-000001.parquet", "p1-000000.parquet"]
    with pytest.raises(ValueError, match="needs the columns key"):
        HistoryWriter(tmp_path, "produced", "p0").write(table.drop_columns("key"))
    with pytest.raises(ValueError, match="non-nullable"):
        HistoryWriter(tmp_path, "produced", "p0").write(table.set_column(1, "seq", pa.array([None], pa.int64())))
    assert len(list((tmp_path / "history/produced").iterdir())) == 3


def test_a_column_that_differs_in_case_alone_is_another_one(judge_spark: SessionSource, tmp_path: Path) -> None:
    run_dir = story_of().write(tmp_path)
    stored = pq.read_table(part(run_dir, "produced"))
    pq.write_table(stored.append_column("SEQ", pa.array([7, 8, 9])), part(run_dir, "produced"))
    assert judge(judge_spark, run_dir).verdict == "valid"


def test_large_numbers_are_judged_like_small_ones(tmp_path: Path) -> None:
    """Two numbers of 63 bits do not fit into one key, so the judge uses their ranks."""
    top = 2**63 - 1
    story = Story()
    for seq, offset in ((0, 0), (1, top - 1), (top, top)):
        story.send(seq, offset, crc32=1)
        story.read(offset, seq, by="drain", crc32=1)
    story.end(top)
    assert story.judged(tmp_path).verdict == "valid"
    story.consumed.pop(1)
    assert anomaly_counts(story.judged(tmp_path)) == {"lost": 1}


def test_an_ordinary_history_needs_no_spark(tmp_path: Path) -> None:
    def start() -> SparkSession:
        raise AssertionError("Spark was started")

    story = story_of()
    assert judge(start, story.write(tmp_path)).as_json() == story.judged(tmp_path).as_json()
