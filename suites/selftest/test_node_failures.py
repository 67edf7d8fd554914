"""Faults that Kafka logs as such, tasks that fail each time, and mistakes in its code break a promise.

A fault may explain them, and a known deviation.

Dead threads are tested in test_case_outcome.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from faults.log_dir import Chmod000
from harness.events import Event, FaultInjecting, FaultUndone, NodeStarted, NodeStopping
from harness.measure.errors_logged import errors_logged
from harness.measure.node_failures import node_failures
from suites.selftest.fakes import log_dir_at

START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
PUBLISHING = "Encountered metadata publishing fault: Error applying topics delta in MetadataDelta up to 43 (a.B)"
CHECKPOINT = "Uncaught exception in scheduled task 'kafka-recovery-point-checkpoint' (a.B)"
IN_DIR = "\njava.nio.file.FileSystemException: /d/log-dir-1/new-0/0.log: No space left on device\n\tat a.B"
ODD = "\njava.util.concurrent.RejectedExecutionException: no thread\n\tat a.B"
BUG = "\njava.lang.IllegalStateException: no partition t-7\n\tat a.B"
NULL = '\njava.lang.NullPointerException: Cannot invoke "a.b()"\n\tat a.B'
CLOSED = "\norg.apache.kafka.common.errors.KafkaStorageException: The log for orders-1 is already closed"
UNCLEANABLE = (
    "[kafka-log-cleaner-thread-0]: Unexpected exception thrown when cleaning log Log(dir=/d/log-dir-1/t-0, topic=t). "
    "Marking its partition (t-0) as uncleanable (a.B)"
)
FAULT = Chmod000(log_dir_at(Path("/d/log-dir-1")))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def log(run_dir: Path, *lines: tuple[float, str], node: str = "1") -> None:
    """Write lines into a node's log, each with its second."""
    (run_dir / "brokers" / node).mkdir(parents=True)
    text = "".join(
        f"[{at(second):%Y-%m-%d %H:%M:%S},{at(second).microsecond // 1000:03}] ERROR {line}\n" for second, line in lines
    )
    (run_dir / "brokers" / node / "broker.log").write_text(text)


def in_force(since: float, until: float | None = None, restarted: float | None = None) -> list[Event]:
    """The events of a fault of log-dir-1 of broker 1."""
    name, target = FAULT.name, "log-dir-1 of broker 1"
    explains = FAULT.explained()
    events: list[Event] = [FaultInjecting(at=at(since), fault=name, target=target, broker=1, explains=explains)]
    events += [FaultUndone(at=at(until), fault=name, target=target, broker=1)] if until is not None else []
    return events + ([NodeStarted(at=at(restarted), node="broker-1")] if restarted is not None else [])


def found(run_dir: Path, *events: Event) -> list[str]:
    """What failed, without the lines."""
    return [failure.what for failure in node_failures(events, run_dir)]


MISTAKE = "the node 1 met a mistake in its own code"
FAILED_TWICE = "the task kafka-recovery-point-checkpoint of the node 1 failed 2 times"


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([PUBLISHING + BUG], ["the node 1 met a fault of its own"]),
        (["Encountered quorum controller fault: event failed (a.B)"], ["the node 1 met a fault of its own"]),
        (["Encountered fatal fault: Error starting LogManager (a.B)"], []),
        ([CHECKPOINT + ODD], []),
        ([CHECKPOINT + ODD] * 2, [FAILED_TWICE]),
        ([CHECKPOINT + CLOSED] * 2, []),
        (["Uncaught exception in scheduled task 'flush-log' (a.B)" + ODD] * 9, []),
        (["Uncaught exception in scheduled task 'flush-log' (a.B)" + BUG], [MISTAKE]),
        (["handleResponse: unexpected callback exception (a.B)" + NULL], [MISTAKE]),
        (["Error (a.B)\njava.io.IOException: x\n\tat a.B\nCaused by: java.lang.NullPointerException"], [MISTAKE]),
        (["Error (a.B)\njava.lang.NoSuchMethodError: x\n\tat a.B"], [MISTAKE]),
        (["Exiting (a.B)\njava.lang.IllegalStateException: Duplicate log directories for t-0 are found in both"], []),
        (["a client sent java.lang.NullPointerException (a.B)"], []),
        (["Error (a.B)\njava.net.SocketTimeoutException: x"], []),
        ([UNCLEANABLE + BUG], ["the node 1 cleans t-0 no more"]),
        (["[ReplicaManager broker=1] Error while Encountered x fault: (a.B)"], []),
    ],
)
def test_what_kafka_does_not_get_over_is_found(tmp_path: Path, lines: list[str], what: list[str]) -> None:
    """A single failure of a task, a log that was closed meanwhile, and a task that runs once are no such failures."""
    log(tmp_path, *((index, line) for index, line in enumerate(lines)))
    assert found(tmp_path) == what


def test_a_task_must_fail_twice_since_the_nodes_start(tmp_path: Path) -> None:
    log(tmp_path, (1, CHECKPOINT + ODD), (3, CHECKPOINT + ODD))
    assert found(tmp_path) == [FAILED_TWICE]
    assert found(tmp_path, NodeStarted(at=at(2), node="broker-1")) == []
    assert found(tmp_path, NodeStarted(at=at(2), node="broker-2")) == [FAILED_TWICE]


def test_what_a_node_logs_while_it_stops_does_not_count(tmp_path: Path) -> None:
    log(tmp_path, (3, PUBLISHING + BUG))
    stopped = NodeStopping(at=at(1), node="broker-1")
    assert found(tmp_path, stopped) == []
    assert len(found(tmp_path, stopped, NodeStarted(at=at(2), node="broker-1"))) == 1


@pytest.mark.parametrize(
    ("fault", "explained"),
    [
        (in_force(2), True),
        (in_force(2, until=5), True),
        (in_force(2, until=2.5), True),  # the log dir stays offline until a restart
        (in_force(2, until=2.5, restarted=5), True),
        (in_force(2, until=2.5, restarted=2.8), False),
        (in_force(4), False),
        (in_force(3.0008), True),  # a log has milliseconds only
    ],
)
def test_a_fault_explains_what_its_node_logs_until_the_restart(
    tmp_path: Path, fault: list[Event], explained: bool
) -> None:
    checkpoints = [(3.2, CHECKPOINT + IN_DIR), (3.4, CHECKPOINT + IN_DIR)]
    log(tmp_path, (3.0004, PUBLISHING + IN_DIR), *checkpoints, (3.4, UNCLEANABLE + IN_DIR))
    assert len(found(tmp_path, *fault)) == (0 if explained else 3)
    assert len(errors_logged(fault, tmp_path)) == (0 if explained else 3), "what decides is on the page, too"


def test_a_fault_explains_nothing_of_another_node_or_log_dir(tmp_path: Path) -> None:
    other = PUBLISHING + IN_DIR.replace("log-dir-1", "log-dir-2")
    log(tmp_path, (3, other), (4, PUBLISHING + BUG))
    log(tmp_path, (3, PUBLISHING + IN_DIR), node="2")
    assert len(found(tmp_path, *in_force(2))) == 3
