"""Faults are proven by what the broker's own user sees, and only by a change."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import LOG_DIR_FAULTS, Chmod000, LogDirFault
from faults.segment import AbortsBackdated, AbortsMisattributed
from harness.errors import FaultNotProven
from harness.journal import Journal
from harness.log_dir import LogDir
from harness.machine.broker_user import broker_user
from harness.machine.undo import UndoLog


class Node:
    """Runs small commands as the broker's user, as the process backend does; no broker is needed for that."""

    def run_as_user(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [*broker_user().command(), *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C"}, cwd="/")


@pytest.fixture
def log_dir(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogDir]:
    """A log dir of a broker that isn't there, on a real file system, with a real undo log."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    undo_log = UndoLog("r")
    path = undo_log.dir / "broker-1-log-dir-1"
    path.mkdir()
    user = broker_user()
    if user.drop:
        import os

        os.chown(path, user.uid, user.gid)
        os.chown(undo_log.dir, user.uid, user.gid)
    broker = SimpleNamespace(id=1, node=Node(), journal=Journal(None), undo_log=undo_log, is_alive=False)
    yield LogDir(cast(Any, broker), path)
    undo_log.close()


@pytest.mark.parametrize("fault_type", LOG_DIR_FAULTS, ids=lambda fault: fault.name)
def test_each_way_is_proven_and_taken_back(log_dir: LogDir, fault_type: type[LogDirFault]) -> None:
    before = log_dir.path.stat()
    with injected(fault_type(log_dir)):
        [event] = log_dir.broker.journal.of_kind("fault.injected")
        assert fault_type.expected_error in event["evidence"]
    after = log_dir.path.stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


def test_a_fault_that_does_nothing_is_not_proven(log_dir: LogDir) -> None:
    class Nothing(Chmod000):
        takes_away = 0

    with pytest.raises(FaultNotProven, match="nothing outside Kafka shows its effect"), injected(Nothing(log_dir)):
        pytest.fail("must not get here")
    assert list(log_dir.broker.journal.of_kind("fault.not_proven"))


def test_a_dir_that_was_broken_before_proves_nothing(log_dir: LogDir) -> None:
    log_dir.path.chmod(0)
    with pytest.raises(FaultNotProven, match="could not be written before"), injected(Chmod000(log_dir)):
        pytest.fail("must not get here")
    log_dir.path.chmod(0o755)


def test_a_broker_that_is_down_can_not_be_killed(log_dir: LogDir) -> None:
    with pytest.raises(FaultNotProven, match="did not run before"):
        BrokerKilled(log_dir.broker).inject()


def test_another_dirs_log_line_is_not_taken_for_this_ones(log_dir: LogDir) -> None:
    pattern = Chmod000(log_dir).noticed_by
    assert pattern is not None
    assert re.search(pattern, f"Stopping serving logs in dir {log_dir.path} (kafka.log.LogManager)")
    assert not re.search(pattern, f"Stopping serving logs in dir {log_dir.path}0 (kafka.log.LogManager)")


@pytest.mark.parametrize("fault_type", LOG_DIR_FAULTS, ids=lambda fault: fault.name)
def test_undo_twice_is_undo_once(log_dir: LogDir, fault_type: type[LogDirFault]) -> None:
    fault = fault_type(log_dir)
    fault.inject()
    fault.undo()
    log_dir.path.chmod(0o700)
    fault.undo()
    assert log_dir.path.stat().st_mode & 0o777 == 0o700


ABORTED = struct.Struct(">hqqqq")  # version, producer id, first, last and last stable offset


@pytest.mark.parametrize("entries", [1, 3])
def test_aborts_are_laid_to_another_producer_and_given_back(log_dir: LogDir, entries: int) -> None:
    folder = log_dir.replica_dir("t", 0)
    folder.mkdir()
    index = folder / f"{0:020d}.txnindex"
    before = b"".join(ABORTED.pack(0, 7, n * 10, n * 10 + 5, n * 10) for n in range(entries))
    index.write_bytes(before)
    with injected(AbortsMisattributed(log_dir, "t", 0)):
        told = list(ABORTED.iter_unpack(index.read_bytes()))
        assert told == [(0, 6, n * 10, n * 10 + 5, n * 10) for n in range(entries)]
    assert index.read_bytes() == before


def test_aborts_begin_earlier_and_are_given_back(log_dir: LogDir) -> None:
    folder = log_dir.replica_dir("t", 0)
    folder.mkdir()
    index = folder / f"{0:020d}.txnindex"
    before = b"".join(ABORTED.pack(0, 7, first, first + 50, first) for first in (51, 102, 459, 561))
    index.write_bytes(before)
    with injected(AbortsBackdated(log_dir, "t", 0)):
        assert [first for _, _, first, _, _ in ABORTED.iter_unpack(index.read_bytes())] == [51, 38, 395, 561]
    assert index.read_bytes() == before


def test_without_an_abort_there_is_none_to_lay_to_another(log_dir: LogDir) -> None:
    with pytest.raises(FaultNotProven), injected(AbortsMisattributed(log_dir, "t", 0)):
        pass
