"""A killed task leaves usable files, and the run goes on after the last of them."""

import json
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import PipelineError
from harness.history import record_format
from harness.history.part_writer import PartWriter
from harness.history.tables import CONSUMED, PRODUCED, HistoryWriter, table_dir
from harness.history.write_ahead import ERROR, Reservation, settle
from harness.spark.tasks import claim
from harness.workload.consumer import StartAt, resume_at
from suites.selftest.histories import stored_rows

RESERVATION = Reservation(
    producer="p0", run_token="run", topic="t", partitions=3, keys=None, record_bytes=100, below=10
)


def rows(schema: pa.Schema, *given: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist([dict.fromkeys(schema.names) | each for each in given], schema)


def acked(*seqs: int) -> pa.Table:
    same = {"producer": "p0", "topic": "t", "outcome": "acked", "crc32": 1}
    return rows(PRODUCED, *({"seq": seq, "offset": seq} | same for seq in seqs))


def read(partition: int, *offsets: int, first_position: int = 0) -> pa.Table:
    same = {"consumer": "c0", "role": "live", "session": 0, "topic": "t", "isolation": "read_committed"}
    return rows(
        CONSUMED,
        *(
            {"partition": partition, "offset": offset, "position": first_position + index} | same
            for index, offset in enumerate(offsets)
        ),
    )


def test_one_of_many_attempts_gets_the_claim(tmp_path: Path) -> None:
    refused: list[PipelineError] = []

    def attempt() -> None:
        try:
            claim(tmp_path, "p0")
        except PipelineError as error:
            refused.append(error)

    attempts = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in attempts:
        thread.start()
    for thread in attempts:
        thread.join()
    assert len(refused) == 7
    claim(tmp_path, "p1")
    with pytest.raises(PipelineError, match=r"p0 was started a second time \(the first: process \d+"):
        claim(tmp_path, "p0")


def test_reserved_records_without_a_row_become_indeterminate(tmp_path: Path) -> None:
    RESERVATION.write(tmp_path)
    HistoryWriter(tmp_path, "produced", "p0").write(acked(0, 1, 2, 5))
    HistoryWriter(tmp_path, "produced", "p1").write(acked(3).set_column(0, "producer", pa.array(["p1"])))
    assert settle(tmp_path) == {"p0": 6}
    added = [row for row in stored_rows(tmp_path, "produced") if row["error"] == ERROR]
    assert [row["seq"] for row in added] == [3, 4, 6, 7, 8, 9]
    value = record_format.value_of(record_format.prefix_of("run", "p0"), 4, record_format.padding_to(100))
    assert added[1] == dict.fromkeys(PRODUCED.names) | {
        "producer": "p0",
        "seq": 4,
        "topic": "t",
        "partition": 1,
        "outcome": "indeterminate",
        "error": ERROR,
        "crc32": zlib.crc32(value),
    }


def test_reserved_records_keep_their_transactions(tmp_path: Path) -> None:
    replace(RESERVATION, transactions=[(2, "p0-t1"), (5, "p0-t2"), (8, "p0-t3")]).write(tmp_path)
    HistoryWriter(tmp_path, "produced", "p0").write(acked(0, 2, 3, 4))
    assert settle(tmp_path) == {"p0": 6}
    added = {row["seq"]: row for row in stored_rows(tmp_path, "produced") if row["error"] == ERROR}
    told = {seq: row["transaction"] for seq, row in added.items()}
    assert told == {1: "p0-seq1"} | dict.fromkeys((5, 6, 7), "p0-t2") | dict.fromkeys((8, 9), "p0-t3")
    assert {row["transaction_outcome"] for row in added.values()} == {"indeterminate"}


def test_settling_twice_adds_nothing(tmp_path: Path) -> None:
    RESERVATION.write(tmp_path)
    assert settle(tmp_path) == {"p0": 10}
    assert settle(tmp_path) == {}
    assert len(stored_rows(tmp_path, "produced")) == 10


def test_settling_leaves_alone_who_ended_well_and_who_was_not_named(tmp_path: Path) -> None:
    replace(RESERVATION, settled=True).write(tmp_path)
    replace(RESERVATION, producer="p1").write(tmp_path)
    assert settle(tmp_path, ["p0"]) == {}
    assert settle(tmp_path) == {"p1": 10}


def test_a_consumer_goes_on_where_its_history_ends(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, "consumed", "c0-0")
    writer.write(read(0, 5, 6, 8))
    writer.write(read(1, 3, first_position=7))
    HistoryWriter(tmp_path, "consumed", "c0-1").write(read(0, 9, first_position=3))
    HistoryWriter(tmp_path, "consumed", "c00-0").write(read(0, 99))
    starts = {0: StartAt(), 1: StartAt(offset=2, position=1), 2: StartAt(offset=4, position=2), 3: StartAt()}
    assert resume_at(tmp_path, "c0", starts) == {
        0: StartAt(offset=10, position=4, session=1),
        1: StartAt(offset=4, position=8, session=1),
        2: StartAt(offset=4, position=2),
        3: StartAt(),
    }


def test_a_recorder_writes_all_that_it_was_given_and_an_empty_part_if_nothing(tmp_path: Path) -> None:
    recorder: PartWriter[int] = PartWriter(tmp_path, "produced", "p0", lambda seq: acked(seq))
    for seq in range(50):
        recorder.add(seq)
    recorder.close()
    assert [row["seq"] for row in stored_rows(tmp_path, "produced")] == list(range(50))
    nothing: PartWriter[int] = PartWriter(tmp_path, "consumed", "c0-0", lambda _: CONSUMED.empty_table())
    nothing.close()
    folder = table_dir(tmp_path, "consumed")
    assert [pq.read_metadata(part).num_rows for part in folder.glob("*.parquet")] == [0]
    assert json.loads((folder / "_closed-c0-0.json").read_text()) == {"rows": [0]}


def test_a_recorders_error_reaches_the_task(tmp_path: Path) -> None:
    def break_down(_: int) -> pa.Table:
        raise OSError("disk full")

    recorder: PartWriter[int] = PartWriter(tmp_path, "produced", "p0", break_down)
    recorder.add(1)
    with pytest.raises(OSError, match="disk full"):
        recorder.close()
