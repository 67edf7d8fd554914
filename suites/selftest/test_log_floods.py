"""A node that floods its log makes its case invalid, unless a deviation that was seen there names the line.

A failure that a node logs does the same (:mod:`harness.measure.node_failures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.host.limits import OPEN_FILES
from harness.kafka.versions import VersionRange
from harness.measure.log_floods import LIMIT, log_floods
from harness.runner.case import Case, CaseId
from harness.runner.case_outcome import CaseLog, conclude
from harness.runner.deviation import Deviation
from suites.deviations import DELETED_TOPIC_HIDES_FAILURE, EPOCHS_LEFT_BEHIND, MOVE_FORGOTTEN, WATCHED_AFTER_CLOSE
from suites.observing import observe
from suites.selftest.fakes import fake_cluster

START = datetime(2026, 1, 1, tzinfo=UTC)
AGAIN = "[ReplicaFetcher replicaId=3, leaderId=2, fetcherId=0] Reset fetch offset for partition orders-0 from {} to the"


def log(run_dir: Path, count: int, within_s: float, text: str = AGAIN, node: str = "1", level: str = "INFO") -> None:
    """Write lines of one kind into a node's log, equally far apart."""
    path = run_dir / "brokers" / node / "broker.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    times = [START + timedelta(seconds=number * within_s / count) for number in range(count)]
    with path.open("a") as file:
        for number, at in enumerate(times):
            milliseconds = at.microsecond // 1000
            file.write(
                f"[{at:%Y-%m-%d %H:%M:%S},{milliseconds:03}] {level} {text.format(number)} end (a.B)\n\tat a.B\n"
            )


@pytest.mark.parametrize(
    ("count", "within_s", "found"),
    [
        (LIMIT + 1, 9.9, [LIMIT + 1]),
        (LIMIT, 9.9, []),
        (4 * LIMIT, 40.0, []),
        (6 * LIMIT, 40.0, [1.5 * LIMIT]),
    ],
    ids=["too many", "as many as may be", "slowly", "for long"],
)
def test_it_is_the_number_in_ten_seconds(tmp_path: Path, count: int, within_s: float, found: list[float]) -> None:
    log(tmp_path, count, within_s)
    assert [flood.count for flood in log_floods(tmp_path)] == [pytest.approx(each, abs=2) for each in found]


def test_a_few_lines_about_each_of_many_partitions_are_none(tmp_path: Path) -> None:
    log(tmp_path, LIMIT + 1, 9.9, "Error for partition orders-{} at")
    assert log_floods(tmp_path) == []
    log(tmp_path, LIMIT + 1, 9.9, "Error for partition a.b-orders-1 at {}")
    assert [flood.count for flood in log_floods(tmp_path)] == [pytest.approx(LIMIT + 1, abs=2)]


def test_lines_of_other_kinds_are_not_added_up_and_those_of_one_kind_are(tmp_path: Path) -> None:
    for kind in ("one", "two", "three"):
        log(tmp_path, LIMIT, 9.9, f"{kind} {{}}")
    assert log_floods(tmp_path) == []
    log(tmp_path, LIMIT + 1, 9.9, "[UnifiedLog dir=/tmp/x{0}] {0}: a topic with id AAAAAAAAAAAAAAAAAA{0:04}")
    [flood] = log_floods(tmp_path)
    assert flood.line.startswith("[UnifiedLog dir=/tmp/x0] 0")


def test_lines_for_debugging_do_not_count(tmp_path: Path) -> None:
    log(tmp_path, 2 * LIMIT, 9.9, level="DEBUG")
    log(tmp_path, 2 * LIMIT, 9.9, level="TRACE")
    assert log_floods(tmp_path) == []


@pytest.fixture
def case(tmp_path: Path) -> Case:
    id = CaseId(id="kip-0/x[kraft]", kip=0, plan="", mode="kraft", seed=1, nodeid="x")
    return Case.begin(id, tmp_path, [])


def verdict(
    case: Case, *declared: Deviation, called: bool = True, in_logs: Sequence[Deviation] = ()
) -> tuple[str, str]:
    log_ = CaseLog(called=called)
    return conclude(log_, case, must_be_judged=False, test_file=Path(__file__), deviations=declared, in_logs=in_logs)


def test_a_flood_makes_a_case_invalid(case: Case) -> None:
    log(case.run_dir, 2 * LIMIT, 9.9)
    outcome, reason = verdict(case)
    assert outcome == "invalid"
    assert reason.startswith("the node 1 logged 5,000 lines of this kind in 10 s: [ReplicaFetcher replicaId=3")


@pytest.mark.parametrize(("node", "text"), [("zookeeper", AGAIN), ("1", "accept {}: Too many open files")])
def test_what_is_not_kafkas_fault_is_an_error(
    case: Case, node: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper is not Kafka, and a machine may allow few open files."""
    monkeypatch.setattr("harness.host.limits.open_files", lambda: OPEN_FILES - 1)
    log(case.run_dir, 2 * LIMIT, 9.9, text, node)
    assert verdict(case)[0] == "error"


def test_only_the_lines_of_a_deviation_that_was_seen_are_no_reason(case: Case) -> None:
    declared = replace(EPOCHS_LEFT_BEHIND, builds=VersionRange.parse(""), deterministic=False)
    log(case.run_dir, 2 * LIMIT, 9.9)
    assert verdict(case, declared)[0] == "invalid"
    assert verdict(case, declared, called=False)[0] == "error"  # the check that shows it may not have come
    observe(declared, fake_cluster(journal=case.journal), deviates=True)
    assert verdict(case, declared) == ("valid", "")
    for other in ("", "something else"):
        assert verdict(case, replace(declared, floods=other))[0] == "invalid"
    log(case.run_dir, 2 * LIMIT, 9.9, AGAIN.replace("orders", "payments"))
    assert verdict(case, declared)[0] == "invalid"


RESIGNS = (
    "Encountered quorum controller fault: processBrokerHeartbeat: event failed with RuntimeException (a.B)\n"
    "java.lang.RuntimeException: Topic ID Zm9v existed in isrMembers, but not in the topics map."
)


def test_only_the_failures_of_a_deviation_that_was_seen_are_no_reason(case: Case) -> None:
    declared = replace(DELETED_TOPIC_HIDES_FAILURE, builds=VersionRange.parse(""), deterministic=False)
    log(case.run_dir, 1, 9.9, RESIGNS, "controller-100")
    assert verdict(case, declared)[0] == "invalid"
    observe(declared, fake_cluster(journal=case.journal), deviates=True)
    assert verdict(case, declared) == ("valid", "")
    assert verdict(case, replace(declared, failures=""))[0] == "invalid"
    log(case.run_dir, 1, 9.9, RESIGNS.replace("isrMembers", "elrMembers"), "controller-100")
    assert verdict(case, declared)[0] == "invalid"


FORGOTTEN = (
    "[AssignmentsManager id=1] handleResponse: unexpected callback exception (a.B)\n"
    "java.lang.NullPointerException: Cannot invoke a.b()\n"
    "\tat kafka.server.ReplicaAlterLogDirsThread.updateReassignmentState(ReplicaAlterLogDirsThread.scala:1)"
)


def test_a_mistake_in_kafkas_code_is_a_reason_unless_it_is_known(case: Case) -> None:
    log(case.run_dir, 1, 9.9, FORGOTTEN)
    outcome, reason = verdict(case)
    assert (outcome, "a mistake in its own code" in reason) == ("invalid", True)
    assert verdict(case, in_logs=[MOVE_FORGOTTEN]) == ("valid", "")
    assert verdict(case, in_logs=[WATCHED_AFTER_CLOSE])[0] == "invalid"
    log(case.run_dir, 1, 9.9, FORGOTTEN.replace("updateReassignmentState", "doWork"))
    assert verdict(case, in_logs=[MOVE_FORGOTTEN])[0] == "invalid"
