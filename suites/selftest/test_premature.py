"""Records that were acked or read while a follower in the ISR was held are named, and no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.events import FollowersHeld
from harness.measure.premature import premature
from suites.selftest.histories import Story

BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def held(*partitions: int) -> FollowersHeld:
    """Brokers 2 and 3 are held from the 10th to the 11th second."""
    return FollowersHeld(
        at=at(11), brokers=(2, 3), topic="t", partitions=partitions, held_at=at(10), until=at(11), seconds=1.0
    )


ACKED = "1 records sent and acked while followers in the ISR of t-0 were held for 1.00 s (brokers [2, 3]), and so "
READ = ACKED.replace("acked", "read")


@pytest.mark.parametrize(
    ("sent", "acked", "read", "expected"),
    [
        (10.1, 10.2, 12.0, [ACKED]),
        (10.1, 12.0, 10.9, [READ]),
        (10.1, 10.2, 10.3, [ACKED, READ]),
        (10.1, 11.1, 11.2, []),
        (9.9, 10.1, 10.2, []),  # the followers may have fetched it
        (11.1, 11.2, 11.3, []),
    ],
)
def test_what_is_sent_and_acked_or_read_meanwhile_is_named(
    tmp_path: Path, sent: float, acked: float, read: float, expected: list[str]
) -> None:
    story = Story(run={"run_id": "a run"})
    story.send(0, 0, sent_at=at(sent), ended_at=at(acked))
    story.read(0, read_at=at(read))
    found = premature([held(0)], story.write(tmp_path))
    assert [sentence.partition("without them")[0] for sentence in found] == expected
    assert all(sentence.endswith(": p 0") for sentence in found)


@pytest.mark.parametrize("partitions", [(), (1,)])
def test_other_partitions_do_not_count(tmp_path: Path, partitions: tuple[int, ...]) -> None:
    """Where no held follower was in the ISR, the leader may ack at once."""
    story = Story(run={"run_id": "a run"})
    story.send(0, 0, sent_at=at(10.1), ended_at=at(10.2))
    story.read(0, read_at=at(10.3))
    assert premature([held(*partitions)], story.write(tmp_path)) == []


def test_a_failed_record_and_a_drain_do_not_count(tmp_path: Path) -> None:
    story = Story(run={"run_id": "a run"})
    story.send(0, outcome="failed", sent_at=at(10.1), ended_at=at(10.2))
    story.read(0, by="drain", read_at=at(10.3))
    assert premature([held(0)], story.write(tmp_path)) == []
