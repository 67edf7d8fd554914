"""Errors of clients that no fault explains are named: records refused for good, and lost positions in a log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.events import ConsumerDied, Event, StreamDied
from harness.measure.client_errors import lost_positions, refused_records
from suites.selftest.histories import Story

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def history(folder: Path, *errors: str | None, outcome: str = "indeterminate", transaction: str | None = None) -> Path:
    """A history with a record for each error."""
    story = Story(run={"run_id": "a run"})
    for seq, error in enumerate(errors):
        story.send(seq, outcome=outcome, error=error, transaction=transaction)
    return story.write(folder)


@pytest.mark.parametrize(
    "error", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_SERVER_ERROR", "_FATAL", "INVALID_TXN_STATE", "_STATE", "NEW"]
)
def test_a_record_that_is_refused_for_good_is_named(tmp_path: Path, error: str) -> None:
    [refused] = refused_records(history(tmp_path, error, "_MSG_TIMED_OUT", error)).values()
    assert (refused.error, refused.records, refused.transactions) == (error, 2, frozenset())
    assert str(refused) == f"2 records were refused with {error}, such as p #0 to t-0"


@pytest.mark.parametrize(
    "error",
    ["_MSG_TIMED_OUT", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_TRANSPORT", "REQUEST_TIMED_OUT", "_NO_REPORT", None],
)
def test_a_record_that_only_took_too_long_is_not(tmp_path: Path, error: str | None) -> None:
    assert refused_records(history(tmp_path, error)) == {}


def test_a_record_that_was_acked_in_the_end_is_not_refused(tmp_path: Path) -> None:
    assert refused_records(history(tmp_path, "NOT_ENOUGH_REPLICAS", outcome="acked")) == {}


def test_the_transactions_are_counted(tmp_path: Path) -> None:
    [refused] = refused_records(
        history(tmp_path, "INVALID_TXN_STATE", "INVALID_TXN_STATE", transaction="p-t1")
    ).values()
    assert refused.transactions == {"p-t1"}
    assert "2 records were refused with INVALID_TXN_STATE in 1 transactions" in str(refused)


def test_a_history_without_a_part_has_none(tmp_path: Path) -> None:
    assert refused_records(tmp_path) == {}


@pytest.mark.parametrize(
    ("event", "is_named"),
    [
        (ConsumerDied(at=NOW, consumer="c0", error="KafkaException: OFFSET_OUT_OF_RANGE: t-0 at 7"), True),
        (ConsumerDied(at=NOW, consumer="c0", error="_LOG_TRUNCATION: Partition log truncation detected"), True),
        (ConsumerDied(at=NOW, consumer="c0", error="_AUTO_OFFSET_RESET: no previously committed offset"), True),
        (ConsumerDied(at=NOW, consumer="c0", error="it read nothing for 8 s, and a fresh client does"), False),
        (StreamDied(at=NOW, consumer="s0", error="OffsetOutOfRangeException: Fetch position is out of range"), True),
        (StreamDied(at=NOW, consumer="s0", error="[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data"), True),
        (StreamDied(at=NOW, consumer="s0", error="TimeoutException: Timeout of 60000ms expired"), False),
    ],
)
def test_a_consumer_that_lost_its_position_is_named(event: Event, is_named: bool) -> None:
    named = lost_positions([event])
    assert bool(named) == is_named
    assert all(name.startswith("consumer ") and "lost its position in the log" in name for name in named)
