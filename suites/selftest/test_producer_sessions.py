"""The producer sessions of batches are read from a dump of segments, and may change a verdict.

The dumps here are made up. ``control/new-epoch`` does the same with real segments (test_controls_real.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.checkers.settings import Session
from harness.checkers.verdict import Verdict
from harness.errors import HarnessError
from harness.explain import segments
from harness.explain.segments import read_sessions
from harness.journal import Journal
from harness.kafka.broker_log import BrokerLog
from harness.runner.case import Case
from harness.runner.case_workload import CaseWorkload
from harness.spark.session import SparkHandle
from suites.selftest.fakes import fake, fake_broker, fake_cluster, fake_distribution
from suites.selftest.histories import Story
from suites.selftest.journal_lines import lines_of

BATCH = (
    "baseOffset: {} lastOffset: {} count: 9 baseSequence: 0 lastSequence: 8 producerId: {} producerEpoch: {} "
    "partitionLeaderEpoch: 0 isTransactional: false isControl: {} deleteHorizonMs: OptionalLong.empty position: 0 "
    "CreateTime: 1795255472863 size: 99 magic: 2 compresscodec: none crc: 7 isvalid: {}"
)


def dump(*batches: tuple[int, int, int, int], control: str = "false", valid: str = "true") -> list[str]:
    return ["Dumping /0.log", "Log starting offset: 0", *(BATCH.format(*each, control, valid) for each in batches)]


def sessions_in(lines: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    @contextmanager
    def tool_output(*_: object, **__: object) -> Iterator[list[str]]:
        yield lines

    (folder / "0.log").touch()
    monkeypatch.setattr(segments, "tool_output", tool_output)
    return read_sessions(fake_distribution(), folder)


@pytest.mark.parametrize(
    ("lines", "sessions"),
    [
        (dump((0, 9, 7, 0), (10, 19, 7, 0), (20, 29, 7, 1)), [(0, 19, 7, 0), (20, 29, 7, 1)]),
        (dump((0, 9, 7, 0), (10, 19, 8, 0), (20, 29, 7, 0)), [(0, 9, 7, 0), (10, 19, 8, 0), (20, 29, 7, 0)]),
        (dump((0, 9, 7, 0), (12, 19, 7, 0)), [(0, 9, 7, 0), (12, 19, 7, 0)]),  # the session of 10 and 11 is unknown
        (dump((0, 9, -1, -1)), []),
        (dump((0, 9, 7, 0), control="true"), []),
        (dump((0, 9, 7, 0), valid="false"), []),
    ],
)
def test_batches_of_one_session_next_to_each_other_are_reported_once(
    lines: list[str], sessions: list[tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sessions_in(lines, tmp_path, monkeypatch) == sessions


def test_a_log_whose_batches_overlap_is_none_to_go_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HarnessError, match="a batch begins before the previous one ends"):
        sessions_in(dump((0, 9, 7, 0), (9, 12, 7, 1)), tmp_path, monkeypatch)


def test_a_log_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert read_sessions(fake_distribution(), tmp_path) == []


def doubled() -> Story:
    """The record with seq 1 is in the log twice."""
    story = Story()
    for seq, offset in ((0, 0), (1, 3), (2, 2)):
        story.send(seq, offset)
    story.drain(0, 1, 2)
    story.read(3, 1, by="drain")
    return story


@pytest.mark.parametrize(
    ("refused", "stored", "says", "why"),
    [
        (True, [[0, 2, 7, 0], [3, 3, 7, 1]], "valid", None),
        (True, [[0, 3, 7, 0]], "invalid", None),
        (False, None, "invalid", None),  # the client had no reason to take a new epoch: the segments are not read
        (True, HarnessError("no segment"), "invalid", "HarnessError: no segment"),
        (True, [[3, 0, 7, 0]], "invalid", "HistoryError: .*producer_sessions is"),
    ],
)
def test_a_verdict_is_looked_into_once_more_where_the_client_may_have_doubled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: bool,
    stored: list[list[int]] | Exception | None,
    says: str,
    why: str | None,
) -> None:
    """A record that is there twice is no anomaly if its batches are of two sessions.

    If the sessions cannot be read, the first verdict stands, and the journal has the reason.
    """
    story, journal = doubled(), Journal(None)

    def sessions(_: object) -> dict[str, dict[str, list[list[int]]]]:
        if stored is None or isinstance(stored, Exception):
            raise stored or AssertionError("the sessions should not be read")
        return {"t": {"0": stored}}

    def judge(*_: object) -> Verdict:
        return story.judged(tmp_path)

    log = fake(BrokerLog, first=lambda _: "refused" if refused else None)
    workload = fake(
        CaseWorkload,
        _cluster=fake_cluster(brokers=[fake_broker(log=log)]),
        _spark=fake(SparkHandle, session=lambda: None),
        _case=fake(Case, run_dir=tmp_path, record=lambda **more: story.run.update(more), journal=journal),
    )
    monkeypatch.setattr("harness.runner.case_workload.judge", judge)
    monkeypatch.setattr(CaseWorkload, "_sessions", sessions)
    first = story.judged(tmp_path)
    assert first.verdict == "invalid"
    assert workload._judged_by_sessions(first).verdict == says
    assert story.judged(tmp_path).verdict == says  # as jbod check finds it later
    assert [event.kind for event in journal.events] == ([] if why is None else ["sessions.unread"])
    if why is not None:
        [unread] = lines_of(journal, "sessions.unread")
        assert re.search(why, unread["error"]), unread
