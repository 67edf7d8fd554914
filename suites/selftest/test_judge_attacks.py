"""Damaged and misleading histories do not deceive the judge, neither the small one nor the one that reads by windows.

A history with missing data is never valid, and a damaged file is never Kafka's fault.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import harness.checkers.judge as judge_module
from harness.checkers.judge import judge, write_verdict
from harness.checkers.large_history.select import Sizes
from harness.checkers.verdict import Verdict
from harness.errors import HarnessError, HistoryError
from harness.explain.explain import read_verdict
from harness.history.tables import CONSUMED, PRODUCED, HistoryWriter, TableName, load_table, table_dir
from harness.history.write_ahead import Reservation
from harness.spark.session import SessionSource
from suites.selftest.histories import Story, anomaly_counts, story_of

COUNT = 60


@pytest.fixture(params=["at once", "by windows"])
def judged(
    request: pytest.FixtureRequest, judge_spark: SessionSource, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], Verdict]:
    if request.param == "by windows":
        monkeypatch.setattr(judge_module, "AT_ONCE", 0)
        monkeypatch.setattr(judge_module, "SIZES", Sizes(window=10, batch_rows=7, chunk_rows=20))
    return lambda run_dir: judge(judge_spark, run_dir)


def in_parts(story: Story, run_dir: Path, rows: int = 20, closed: bool = False) -> Path:
    """A run folder in which the files of each producer and consumer have so many rows.

    :param closed: all of them ended properly, and none was killed
    """
    whole = Story(drained=story.drained, run=story.run).write(run_dir)
    tables: tuple[tuple[TableName, str, pa.Schema, list[dict[str, Any]]], ...] = (
        ("produced", "producer", PRODUCED, story.produced),
        ("consumed", "consumer", CONSUMED, story.consumed),
    )
    for table, who, schema, of_table in tables:
        for name in sorted({row[who] for row in of_table}):
            writer = HistoryWriter(run_dir, table, name)
            own = [row for row in of_table if row[who] == name]
            for start in range(0, len(own), rows):
                writer.write(pa.Table.from_pylist(own[start : start + rows], schema))
            if closed:
                writer.close()
    return whole


def promise(run_dir: Path, below: int = COUNT, producer: str = "p", settled: bool = True) -> None:
    whose: dict[str, Any] = {"producer": producer, "below": below, "settled": settled}
    Reservation(run_token="x", topic="t", partitions=1, keys=None, record_bytes=64, **whose).write(run_dir)


Judged = Callable[[Path], Verdict]


def test_untouched_it_is_valid(judged: Judged, tmp_path: Path) -> None:
    """The history that all other tests damage is valid."""
    promise(in_parts(story_of(COUNT), tmp_path))
    assert (judged(tmp_path).verdict, anomaly_counts(judged(tmp_path))) == ("valid", {})


def test_clocks_that_lie(judged: Judged, tmp_path: Path) -> None:
    """No kind of anomaly depends on a clock: not on reads before their sends, nor on a clock that runs backwards."""
    story, dice = story_of(COUNT), random.Random(1)
    for rows, columns in ((story.produced, ("sent_at", "ended_at")), (story.consumed, ("read_at",))):
        for row in rows:
            row.update(
                (name, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=dice.randint(0, 99999))) for name in columns
            )
    assert anomaly_counts(judged(in_parts(story, tmp_path))) == {}


@pytest.mark.parametrize("number", [0, 1])
def test_a_part_that_has_gone_from_the_middle(judged: Judged, number: int, tmp_path: Path) -> None:
    """A missing file of any table is noticed; otherwise its records would count as skipped, hidden or lost by Kafka."""
    in_parts(story_of(COUNT), tmp_path)
    for table in ("consumed/drain", "consumed/live", "produced/p"):
        run_dir = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{table.replace('/', '-')}"))
        part = run_dir / "history" / f"{table}-{number:06d}.parquet"
        part.unlink()
        with pytest.raises(HistoryError, match=rf"{part.name} is missing: its writer wrote later parts"):
            judged(run_dir)


@pytest.mark.parametrize("table", ["produced/p", "consumed/drain", "consumed/live"])
@pytest.mark.parametrize("gone", [1, 2, 3])
def test_the_last_parts_of_a_writer_that_came_to_its_end(judged: Judged, table: str, gone: int, tmp_path: Path) -> None:
    """Missing last files make the history unreadable; their records count neither as lost nor as unread."""
    assert anomaly_counts(judged(in_parts(story_of(COUNT), tmp_path, closed=True))) == {}
    for number in range(3 - gone, 3):
        (tmp_path / f"history/{table}-{number:06d}.parquet").unlink()
    part = rf"{table}-{3 - gone:06d}\.parquet"
    with pytest.raises(HistoryError, match=rf"{part} is missing: the note of its writer lists it"):
        judged(tmp_path)


@pytest.mark.parametrize("name", ["live-000000.parquet", "drain-000000.parquet", "anew.parquet"])
def test_who_writes_a_table_anew_is_not_held_to_what_its_writers_left(
    judged: Judged, name: str, tmp_path: Path
) -> None:
    in_parts(story_of(COUNT), tmp_path, closed=True)
    consumed = load_table(tmp_path, "consumed")
    for part in (tmp_path / "history/consumed").glob("*.parquet"):
        part.unlink()
    last = pc.and_(pc.equal(consumed["seq"], COUNT - 1), pc.equal(consumed["role"], "drain"))
    pq.write_table(consumed.filter(pc.invert(last)), tmp_path / "history/consumed" / name)
    assert anomaly_counts(judged(tmp_path)) == {"lost": 1, "vanished": 1}


def test_a_note_of_a_writers_end_that_is_cut_off(judged: Judged, tmp_path: Path) -> None:
    in_parts(story_of(COUNT), tmp_path, closed=True)
    (tmp_path / "history/consumed/_closed-drain.json").write_text('{"par')
    with pytest.raises(HistoryError, match=r"_closed-drain\.json is cut off"):
        judged(tmp_path)


def test_the_last_part_of_what_was_sent_has_gone(judged: Judged, tmp_path: Path) -> None:
    """Readers have records that the table lacks. By the promise file they were sent, so they are no phantoms."""
    story = story_of(COUNT)
    story.run["groups"] = {}
    story.drain(*range(40), by="drain-rc", end=COUNT, position=COUNT)
    for row in story.produced[40:]:
        row.update(transaction="x", transaction_outcome="aborted")
    promise(in_parts(story, tmp_path))
    assert anomaly_counts(judged(tmp_path)) == {}
    (tmp_path / "history/produced/p-000002.parquet").unlink()
    verdict = judged(tmp_path)
    assert (verdict.verdict, anomaly_counts(verdict)) == ("unknown", {"unrecorded": 20})
    promise(tmp_path, below=50)
    assert anomaly_counts(judged(tmp_path)) == {"phantom": 10, "hidden": 10, "unrecorded": 10}


def test_a_producer_that_is_yet_to_be_settled_does_not_free_the_others(judged: Judged, tmp_path: Path) -> None:
    promise(in_parts(story_of(COUNT), tmp_path))
    promise(tmp_path, below=7, producer="q", settled=False)
    (tmp_path / "history/produced/p-000002.parquet").unlink()
    assert anomaly_counts(judged(tmp_path))["unrecorded"] == 20


def test_one_producers_rows_do_not_stand_for_another_ones(judged: Judged, tmp_path: Path) -> None:
    """A surplus row of one producer does not make up for a missing row of another."""
    story = story_of(COUNT)
    for seq in range(5):
        story.send(seq, COUNT + seq, producer="q", crc32=1)
        story.read(COUNT + seq, seq, by="drain", producer="q", crc32=1)
    del story.produced[50]
    story.consumed = [row for row in story.consumed if (row["producer"], row["seq"]) != ("p", 50)]
    in_parts(story, tmp_path)
    promise(tmp_path)
    promise(tmp_path, below=4, producer="q")
    verdict = judged(tmp_path)
    assert (verdict.verdict, anomaly_counts(verdict)) == ("unknown", {"unrecorded": 1})


@pytest.mark.parametrize("table", ["produced/p", "consumed/live", "consumed/drain"])
def test_a_part_that_is_there_twice(judged: Judged, table: str, tmp_path: Path) -> None:
    """A second copy of a file makes the history unreadable; its records were not delivered twice."""
    in_parts(story_of(COUNT), tmp_path)
    part = tmp_path / "history" / f"{table}-000001.parquet"
    shutil.copy(part, part.with_name(f"{part.stem} (copy).parquet"))
    with pytest.raises(HistoryError, match=r"two rows for one (record|read) 20 times"):
        judged(tmp_path)


def test_a_part_of_another_run(judged: Judged, tmp_path: Path) -> None:
    in_parts(story_of(COUNT), tmp_path / "run")
    other = in_parts(story_of(COUNT), tmp_path / "other")
    shutil.copy(other / "history/produced/p-000002.parquet", tmp_path / "run/history/produced/p2-000000.parquet")
    with pytest.raises(HistoryError, match=r"two rows for one record 20 times"):
        judged(tmp_path / "run")


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("table", ["produced/p", "consumed/drain"])
def test_a_bit_that_flips_in_a_stored_value(judged: Judged, table: str, compression: str, tmp_path: Path) -> None:
    """A corrupted file is not a corrupted record."""
    in_parts(story_of(COUNT), tmp_path, rows=COUNT)
    part = tmp_path / "history" / f"{table}-000000.parquet"
    pq.write_table(pq.read_table(part), part, compression=compression, use_dictionary=False, write_page_checksum=True)
    column = pq.read_metadata(part).row_group(0).column(CONSUMED.get_field_index("crc32") if "consumed" in table else 8)
    assert column.path_in_schema == "crc32"
    data = bytearray(part.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 4
    part.write_bytes(data)
    with pytest.raises(HistoryError, match=rf"{part.name} is damaged"):
        judged(tmp_path)


def test_what_the_harness_writes_has_checksums(tmp_path: Path) -> None:
    """A flipped bit at any byte of a column's pages is found, or changes nothing."""
    story = story_of(COUNT)
    part = HistoryWriter(tmp_path, "consumed", "c").write(pa.Table.from_pylist(story.consumed, CONSUMED))
    right, data = pq.read_table(part), part.read_bytes()
    column = pq.read_metadata(part).row_group(0).column(CONSUMED.get_field_index("crc32"))
    start = column.dictionary_page_offset or column.data_page_offset
    for at in range(start, start + column.total_compressed_size):
        part.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            found = pq.read_table(part, page_checksum_verification=True)
        except (pa.ArrowException, OSError):
            continue
        assert found.equals(right), f"byte {at}"


def test_a_part_that_is_cut_off(judged: Judged, tmp_path: Path) -> None:
    in_parts(story_of(COUNT), tmp_path)
    part = tmp_path / "history/consumed/drain-000002.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(HistoryError, match=r"drain-000002.parquet .* is cut off"):
        judged(tmp_path)


@pytest.mark.parametrize(
    ("drained", "verdict", "found"),
    [
        (None, "unknown", {"undrained": COUNT}),
        ([], "unknown", {"undrained": COUNT}),
        ([{"end_offset": COUNT, "position": 0}], "unknown", {"undrained": COUNT}),
        ([{"end_offset": 0, "position": 0}], "invalid", {"lost": COUNT, "vanished": COUNT}),
        ([{"end_offset": COUNT, "position": COUNT, "topic": "u"}], "unknown", {"undrained": COUNT}),
        ([{"end_offset": COUNT, "position": COUNT, "partition": 1}], "unknown", {"undrained": COUNT}),
    ],
    ids=["no table", "no row", "not begun", "an empty log", "of another topic", "of another partition"],
)
def test_drains_that_were_handed_nothing(
    judged: Judged, drained: list[dict[str, Any]] | None, verdict: str, found: dict[str, int], tmp_path: Path
) -> None:
    story = story_of(COUNT)
    story.consumed = [row for row in story.consumed if row["role"] == "live"]
    row = {"consumer": "drain", "isolation": "read_uncommitted", "topic": "t", "partition": 0}
    story.drained = None if drained is None else [row | each for each in drained]
    said = judged(in_parts(story, tmp_path))
    assert (said.verdict, anomaly_counts(said)) == (verdict, found)


@pytest.mark.parametrize("column", ["partition", "end_offset", "position"])
def test_a_drain_that_did_not_know_where(judged: Judged, column: str, tmp_path: Path) -> None:
    """Clients use -1 and -1001 for an unknown offset; -1 of -1 would look like a complete drain."""
    story = story_of(COUNT)
    assert story.drained is not None
    story.drained.append(story.drained[0] | {"end_offset": -1, "position": -1} | {column: -1001})
    with pytest.raises(HistoryError, match=r"history/drained: \w+ is below zero, e.g. -1"):
        judged(in_parts(story, tmp_path))


def test_two_drains_that_disagree(judged: Judged, tmp_path: Path) -> None:
    """A record that one of two drains lacks is hidden, and not lost; the shorter drain is no proof of a loss."""
    story = story_of(COUNT)
    story.drain(*(offset for offset in range(50) if offset != 33), by="drain-2")
    verdict = judged(in_parts(story, tmp_path))
    assert (verdict.verdict, anomaly_counts(verdict)) == ("invalid", {"hidden": 1})


def test_a_topic_that_was_made_again(judged: Judged, tmp_path: Path) -> None:
    """Its offsets start again at 0; the records that were acked before are lost, since no deletion was declared."""
    story = Story(run={"run_id": "a run"})
    for seq in range(COUNT):
        story.send(seq, seq)
        story.send(COUNT + seq, seq)
        story.read(seq, COUNT + seq, by="drain")
    story.end(COUNT)
    verdict = judged(in_parts(story, tmp_path))
    assert verdict.verdict == "invalid"
    assert anomaly_counts(verdict)["lost"] == anomaly_counts(verdict)["conflicting_offset"] == COUNT


@pytest.mark.parametrize(
    ("to", "session", "found"),
    [
        (0, 0, {"nonmonotonic_read": 1}),
        (0, 1, {"redelivered": 40}),
        (50, 0, {"skipped": 10}),
        (50, 1, {"skipped": 10}),
    ],
)
def test_offsets_that_were_reset(judged: Judged, to: int, session: int, found: dict[str, int], tmp_path: Path) -> None:
    """A consumer goes back to the first record or ahead to a later one, silently or in a new session."""
    story = story_of(COUNT)
    story.consumed = [row for row in story.consumed if row["role"] == "drain" or row["offset"] < 40]
    for offset in range(to, COUNT):
        story.read(offset, session=session)
    assert anomaly_counts(judged(in_parts(story, tmp_path))) == found


def test_a_record_that_no_producer_sent(judged: Judged, tmp_path: Path) -> None:
    """The table of produced records is empty; without a promise file, the consumed ones are phantoms."""
    story = story_of(COUNT)
    story.produced = []
    verdict = judged(in_parts(story, tmp_path))
    assert (verdict.verdict, anomaly_counts(verdict)) == ("invalid", {"phantom": COUNT, "no_load": 0})


def test_nothing_is_left_of_what_was_sent_but_the_promise(judged: Judged, tmp_path: Path) -> None:
    story = story_of(COUNT)
    story.produced = []
    promise(in_parts(story, tmp_path))
    verdict = judged(tmp_path)
    assert (verdict.verdict, anomaly_counts(verdict)) == ("unknown", {"unrecorded": COUNT, "no_load": 0})


def test_a_promise_that_has_gone(judged: Judged, tmp_path: Path) -> None:
    """Without a producer's promise file, its rows may be incomplete, so the judge refuses the history."""
    story = story_of(COUNT)
    story.send(0, COUNT, producer="q", crc32=1)
    story.read(COUNT, 0, by="drain", producer="q", crc32=1)
    promise(in_parts(story, tmp_path))
    with pytest.raises(HistoryError, match=r"history/reserved/q.json is missing"):
        judged(tmp_path)


def test_a_verdict_of_another_run(judge_spark: SessionSource, tmp_path: Path) -> None:
    """The judge ignores an old verdict.json, and ``explain`` refuses the verdict of another run."""
    story = story_of(COUNT)
    run_dir = story.write(tmp_path / "run")
    story.run["run_id"] = "another run"
    other = story.write(tmp_path / "other")
    write_verdict(other, judge(judge_spark, other))
    shutil.copy(other / "verdict.json", run_dir / "verdict.json")
    with pytest.raises(HarnessError, match=r"verdict.json is of the run another run, not of a run"):
        read_verdict(run_dir)
    write_verdict(run_dir, judge(judge_spark, run_dir))
    assert read_verdict(run_dir).run_id == "a run"


def test_settings_that_excuse_all(judged: Judged, tmp_path: Path) -> None:
    """Records below the deleted offset may be missing; the others that no drain has are lost."""
    story = story_of(COUNT)
    story.run["deleted_below"] = {"t": {"0": 40}}
    story.consumed = [row for row in story.consumed if row["role"] == "live" or row["offset"] >= 50]
    verdict = judged(in_parts(story, tmp_path))
    assert (verdict.verdict, anomaly_counts(verdict)) == ("invalid", {"lost": 10, "vanished": 10})


def test_a_group_that_is_none(judged: Judged, tmp_path: Path) -> None:
    """A drain is no member of a group, so a record that it has was not delivered to the group."""
    story = story_of(COUNT)
    story.run["groups"] = {"live": "g", "drain": "g"}
    story.consumed.remove(next(row for row in story.consumed if row["role"] == "live" and row["offset"] == 30))
    assert anomaly_counts(judged(in_parts(story, tmp_path))) == {"skipped": 1}


def test_hidden_parts_and_notes_change_nothing(judged: Judged, tmp_path: Path) -> None:
    in_parts(story_of(COUNT), tmp_path)
    (table_dir(tmp_path, "produced") / "_SUCCESS").write_text("")
    (table_dir(tmp_path, "consumed") / ".drain-000003.parquet.tmp").write_text("half")
    (tmp_path / "notes.json").write_text(json.dumps({"verdict": "valid"}))
    assert anomaly_counts(judged(tmp_path)) == {}
