"""Errors in nodes' logs that no fault explains are grouped, counted and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.log_dir import Chmod000, LogDirFault
from harness.events import FaultInjecting
from harness.journal import now
from harness.measure.errors_logged import KEPT, ErrorGroup, errors_logged
from suites.selftest.fakes import log_dir_at

LOG = """\
[2026-01-01 00:00:01,000] INFO fine (a.B)
[2026-01-01 00:00:02,000] ERROR Error while flushing log for t-0 in dir /d/1 (a.B)
[2026-01-01 00:00:03,000] ERROR [Thread-1]: Error due to (a.B)
java.lang.NullPointerException: no t-7
\tat a.B
[2026-01-01 00:00:04,000] ERROR [Thread-22]: Error due to (a.B)
java.lang.NullPointerException: no t-8
[2026-01-01 00:00:05,000] FATAL the end of /d/2 with GX8Am3SYSTa5cUjzmBmZWg (a.B)
"""


def test_errors_that_no_fault_explains_are_kept(tmp_path: Path) -> None:
    """Errors that differ only in names and numbers are one group; rare groups come first; INFO lines do not count."""
    for node in ("1", "2"):
        (tmp_path / "brokers" / node).mkdir(parents=True)
    (tmp_path / "brokers" / "1" / "broker.log").write_text(LOG)
    (tmp_path / "brokers" / "2" / "broker.log").write_text(LOG.replace("GX8Am3SYSTa5cUjzmBmZWg", "A" * 22))
    fault = FaultInjecting(at=now(), fault="eio", target="d", broker=1, explains=("Error while (flushing|reading)",))
    fatal, died = errors_logged([fault], tmp_path)
    assert (fatal.count, fatal.nodes, fatal.at) == (2, ["1", "2"], "2026-01-01T00:00:05+00:00")
    assert (died.count, died.line) == (
        4,
        "[Thread-1]: Error due to (a.B) | java.lang.NullPointerException: no t-7",
    )
    assert [group.count for group in errors_logged([], tmp_path)] == [2, 2, 4]


FAILED, GOOD = "/d/log-dir-1", "/d/log-dir-10"
IN_STACK = "{op} (kafka.x)\norg.apache.kafka.X.KafkaStorageException: Error while flushing in dir {path}\n\tat a"
EXPLAINED = {
    "Error while flushing log for t-0 in dir {path} with offset 7 (a.B)": FAILED,
    "[LogLoader partition=t-0, dir={path}] Error while loading t-0 (a.B)": FAILED,
    "Error while writing to checkpoint file {path}/replication-offset-checkpoint (a.B)": FAILED,
    IN_STACK.replace("{op}", "[ReplicaManager broker=1] Error processing append operation on partition t-0"): FAILED,
    IN_STACK.replace("{op}", "Uncaught exception in scheduled task 'kafka-log-retention'"): FAILED,
    "[ReplicaFetcher replicaId=2] Error for partition t-0 at offset 7 (a.B)\norg.apache.kafka.common.errors."
    "KafkaStorageException: Disk error when trying to access log file on the disk.": "",
}


@pytest.mark.parametrize(("line", "path"), EXPLAINED.items())
def test_a_log_dirs_fault_explains_the_errors_of_its_log_dir(tmp_path: Path, line: str, path: str) -> None:
    """An error of another log dir, also of one whose name begins alike, is not explained."""
    assert errors_under(Chmod000(log_dir_at(Path(FAILED))), tmp_path, line.format(path=path)) == []
    if path:
        assert len(errors_under(Chmod000(log_dir_at(Path(FAILED))), tmp_path, line.format(path=GOOD))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "Uncaught exception in scheduled task 'kafka-log-retention' (a.B)\njava.lang.NullPointerException\n\tat a",
        "Uncaught exception in scheduled task 'highwatermark-checkpoint' (a.B)\njava.lang.IllegalStateException: /x",
        "the broker is offline (a.B)",
        "an unknown error about /d/log-dir-1 (a.B)",
        IN_STACK.format(op="[LogDirFailureHandler]: Error due to", path=FAILED),
        IN_STACK.format(op="[kafka-log-cleaner-thread-0]: Error due to", path=FAILED),
    ],
)
def test_what_died_under_a_log_dirs_fault_is_kept(tmp_path: Path, line: str) -> None:
    """A task that fails for another reason, and any dead thread, are not explained by a failed log dir."""
    assert len(errors_under(Chmod000(log_dir_at(Path(FAILED))), tmp_path, line)) == 1


def errors_under(fault: LogDirFault, run_dir: Path, line: str) -> list[ErrorGroup]:
    """What is left of a log with this line."""
    (run_dir / "brokers" / "1").mkdir(parents=True, exist_ok=True)
    (run_dir / "brokers" / "1" / "broker.log").write_text(f"[2026-01-01 00:00:01,000] ERROR {line}\n")
    event = FaultInjecting(at=now(), fault=fault.name, target="d", broker=1, explains=fault.explained())
    return errors_logged([event], run_dir)


def test_what_is_logged_all_the_time_gives_way(tmp_path: Path) -> None:
    (tmp_path / "brokers" / "1").mkdir(parents=True)
    kinds = "abcdefghijklmnopqrstuvwxyz"
    lines = [f"[2026-01-01 00:00:01,000] ERROR {kind}\n" * (1 + index) for index, kind in enumerate(kinds)]
    (tmp_path / "brokers" / "1" / "broker.log").write_text("".join(lines))
    assert [group.line for group in errors_logged([], tmp_path)] == list(kinds[:KEPT])
