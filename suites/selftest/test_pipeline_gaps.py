"""A gap is the longest time without a record in a partition, inside the fault's window."""

import gc
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.history.tables import CONSUMED, PRODUCED, HistoryWriter
from harness.measure.gaps import ClientTimes, interruption_s, max_gap_s

BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


@given(
    times=st.lists(st.integers(0, 1000)).map(sorted),
    start=st.integers(-100, 1100),
    length=st.integers(0, 500),
)
def test_max_gap_is_what_counting_by_hand_gives(times: list[int], start: int, length: int) -> None:
    longest = since = 0
    for instant in range(start + 1, start + length + 1):
        since += 1
        longest = max(longest, since)
        if instant in times:
            since = 0
    assert max_gap_s(np.array(times, dtype=np.int64), start, start + length) == longest / 1e6


@pytest.mark.parametrize(
    ("lots_s", "a_lot", "least_s"),
    [(0.1, 1, 0.5), (0.1, 50, 0.5), (0.02, 3, 0.2), (2.0, 1, 10.0), (0.0, 5, 0.2)],
    ids=["one by one", "lots", "quick", "seldom", "a single lot"],
)
def test_an_interruption_is_longer_than_the_usual_pause_between_lots(lots_s: float, a_lot: int, least_s: float) -> None:
    """The usual pause is not raised by an outage in between."""
    lots = [lot * lots_s + (100 * lots_s if lot > 10 else 0) for lot in range(20)]
    times = [lot + record * 1e-5 for lot in lots for record in range(a_lot)]
    assert interruption_s(np.sort(np.array(times))) == pytest.approx(least_s, abs=0.01)
    assert interruption_s(np.empty(0)) == 0.2


def test_a_window_has_to_end_after_it_starts() -> None:
    with pytest.raises(ValueError, match="window"):
        max_gap_s(np.array([1]), 5, 4)


def produced(outcome: str, partition: int, seconds: list[float]) -> pa.Table:
    rows = [
        dict.fromkeys(PRODUCED.names)
        | {"producer": "p0", "seq": seq, "topic": "t", "partition": partition, "outcome": outcome, "crc32": 1}
        | {"sent_at": at(0), "ended_at": at(second)}
        for seq, second in enumerate(seconds)
    ]
    return pa.Table.from_pylist(rows, PRODUCED)


def consumed(
    role: str, partition: int, seconds: list[float], isolation: str = "read_committed", consumer: str = "c0"
) -> pa.Table:
    rows = [
        dict.fromkeys(CONSUMED.names)
        | {"consumer": consumer, "role": role, "position": seq, "session": 0, "topic": "t", "partition": partition}
        | {"offset": seq, "isolation": isolation, "read_at": at(second)}
        for seq, second in enumerate(seconds)
    ]
    return pa.Table.from_pylist(rows, CONSUMED)


def test_gaps_are_by_partition_and_count_acks_and_live_reads_only(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, "produced", "p0")
    writer.write(produced("acked", 0, [0.5, 1.0, 4.0, 9.5]))
    writer.write(produced("indeterminate", 0, [2.0, 3.0]))
    writer.write(produced("acked", 1, [float(second) for second in range(11)]))
    reader = HistoryWriter(tmp_path, "consumed", "c0-0")
    reader.write(consumed("live", 0, [0.5, 1.0, 1.06, 9.5]))
    reader.write(consumed("drain", 0, [5.0]))
    times = ClientTimes(tmp_path)
    found = {gap.partition: (gap.produce_s, gap.consume_s) for gap in times.gaps("t", at(1.0), at(10.0))}
    assert found == {0: (5.5, 8.44), 1: (1.0, 9.0)}
    worst = times.worst_gap("t", at(1.0), at(10.0))
    assert worst is not None
    assert (worst.produce_s, worst.consume_s, worst.partition) == (5.5, 9.0, 1)


@pytest.mark.parametrize("outcome", ["failed", "indeterminate"])
def test_a_partition_that_was_sent_to_and_never_acked_nor_read_counts(tmp_path: Path, outcome: str) -> None:
    """Its gap is the whole window, and it counts no records."""
    writer = HistoryWriter(tmp_path, "produced", "p0")
    writer.write(produced("acked", 0, [1.0, 2.0, 3.0]))
    writer.write(produced(outcome, 1, [2.0]))
    HistoryWriter(tmp_path, "consumed", "c0-0").write(consumed("live", 0, [1.0, 2.0, 3.0]))
    times = ClientTimes(tmp_path)
    found = {gap.partition: (gap.produce_s, gap.consume_s, gap.acked_again_s) for gap in times.gaps("t", at(1), at(3))}
    assert found == {0: (1.0, 1.0, None), 1: (2.0, 2.0, None)}
    assert times.passed("t", at(1), at(3)) == (0, 0)
    assert times.reader_gap_s("t", at(1), at(3), ["c0"]) == 2.0


def test_what_holds_one_isolation_back_is_not_hidden_by_the_other(tmp_path: Path) -> None:
    reader = HistoryWriter(tmp_path, "consumed", "c0-0")
    reader.write(consumed("live", 0, [1.0, 2.0, 3.0, 4.0], "read_uncommitted"))
    reader.write(consumed("live", 0, [1.0, 3.9, 4.0]))
    (gap,) = ClientTimes(tmp_path).gaps("t", at(1.0), at(4.0))
    assert gap.consume_s == 2.9
    assert ClientTimes(tmp_path).passed("t", at(1.0), at(4.0)) == (0, 3)


def test_readers_have_gaps_of_their_own_and_change_no_others(tmp_path: Path) -> None:
    HistoryWriter(tmp_path, "produced", "p0").write(produced("acked", 0, [0.0, 1.0]))
    reader = HistoryWriter(tmp_path, "consumed", "any")
    for consumer, seconds in (("c0", [1.0, 9.0]), ("s0", [1.0, 5.0]), ("g0", [2.0, 3.0]), ("g1", [4.0, 8.0, 9.0])):
        reader.write(consumed("live", 0, seconds, consumer=consumer))
    (pairs,) = ClientTimes(tmp_path).gaps("t", at(0.0), at(10.0), consumers=["c0"])
    assert pairs.consume_s == 8.0
    assert ClientTimes(tmp_path).passed("t", at(0.0), at(10.0), consumers=["c0"]) == (2, 2)
    assert ClientTimes(tmp_path).reader_gap_s("t", at(0.0), at(10.0), ["s0"]) == 5.0
    assert ClientTimes(tmp_path).reader_gap_s("t", at(0.0), at(10.0), ["g0", "g1"]) == 4.0
    assert ClientTimes(tmp_path).reader_gap_s("t", at(0.0), at(10.0), ["s1"]) == 10.0


def test_a_gap_of_50_ms_is_measured(tmp_path: Path) -> None:
    HistoryWriter(tmp_path, "produced", "p0").write(produced("acked", 0, [0.00, 0.01, 0.06, 0.07]))
    (gap,) = ClientTimes(tmp_path).gaps("t", at(0.0), at(0.07))
    assert gap.produce_s == pytest.approx(0.05)


def test_no_history_is_no_gap(tmp_path: Path) -> None:
    assert ClientTimes(tmp_path).worst_gap("t", at(0), at(1)) is None


def test_what_was_read_is_gone_with_who_asked(tmp_path: Path) -> None:
    """The tables are freed at once: they take hundreds of megabytes, and a full collection may be many cases away."""
    HistoryWriter(tmp_path, "produced", "p0").write(produced("acked", 0, [1.0]))
    HistoryWriter(tmp_path, "consumed", "c0-0").write(consumed("live", 0, [1.0]))
    times = ClientTimes(tmp_path)
    assert times.passed("t", at(0), at(2)) == (1, 1)
    asked = weakref.ref(times)
    gc.disable()
    try:
        del times
        assert asked() is None
    finally:
        gc.enable()
