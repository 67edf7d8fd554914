"""A broker's log is read by time and pattern, stack traces and restarts included."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.kafka.broker_log import BrokerLog

TEXT = """\
OpenJDK 64-Bit Server VM warning: something before any line
[2026-01-02 03:04:05,006] INFO started (kafka.server.KafkaServer)
[2026-01-02 03:04:06,100] ERROR Error while writing to checkpoint file (kafka.Checkpoint)
java.io.IOException: Permission denied
\tat java.base/java.io.UnixFileSystem.createFileExclusively0(Native Method)
[2026-01-02 03:04:06,103] WARN Stopping serving logs in dir /d/1 (kafka.log.LogManager)
"""


@pytest.fixture
def log(tmp_path: Path) -> BrokerLog:
    (tmp_path / "broker.log").write_text(TEXT)
    return BrokerLog(tmp_path / "broker.log")


def test_a_stack_trace_belongs_to_its_line(log: BrokerLog) -> None:
    started, error, stopping = log.lines()
    assert (started.level, error.level, stopping.level) == ("INFO", "ERROR", "WARN")
    assert "createFileExclusively0" in error.text
    assert stopping.at == datetime(2026, 1, 2, 3, 4, 6, 103_000, tzinfo=UTC)


def test_what_was_logged_before_is_not_found_after(log: BrokerLog) -> None:
    after = datetime(2026, 1, 2, 3, 4, 6, 102_000, tzinfo=UTC)
    assert log.first("Permission denied", since=after) is None
    assert log.first(r"Stopping serving logs in dir /d/1", since=after) is not None


def test_the_same_millisecond_counts_as_after(log: BrokerLog) -> None:
    instant = datetime(2026, 1, 2, 3, 4, 6, 103_900, tzinfo=UTC)
    assert log.first("Stopping", since=instant) is not None


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert list(BrokerLog(tmp_path / "none").lines()) == []
