"""A case gets one verdict from all that happened in it: the worst one counts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from harness.checkers.verdict import Counts, Verdict, VerdictWord
from harness.crowding import Crowding, Deadline
from harness.errors import FaultNotProven, HarnessError, Inconclusive, PromiseBroken
from harness.host.limits import OPEN_FILES
from harness.journal import Journal, now
from harness.kafka.versions import VersionRange
from harness.runner.case import Case, CaseId
from harness.runner.case_outcome import CaseLog, conclude, deviations_of
from harness.runner.case_result import CaseResult
from harness.runner.deviation import Deviation, State
from harness.runner.open_case import OpenCase
from harness.runner.results import to_json
from harness.runner.run import Run
from harness.runner.scenario import DeclaredCase, Scenario
from suites.observing import observe
from suites.selftest.case_results import case_result, noted_deviation
from suites.selftest.fakes import fake, fake_cluster

HERE = Path(__file__)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    id = CaseId(id="kip-0/x[zk]", kip=0, plan="", mode="zk", seed=1, nodeid="x")
    return Case.begin(id, tmp_path, [])


def verdict(word: VerdictWord) -> Verdict:
    return Verdict(run_id="r", verdict=word, counts=Counts(), reasons=() if word == "valid" else (f"so it is {word}",))


def concluded(seen: CaseLog, case: Case | None, judged: bool = True) -> str:
    return conclude(seen, case, must_be_judged=judged, test_file=HERE)[0]


def test_valid_is_run_to_the_end_judged_and_without_an_objection(case: Case) -> None:
    case.verdict = verdict("valid")
    assert conclude(CaseLog(called=True), case, must_be_judged=True, test_file=HERE) == ("valid", "")


def test_not_judged_is_not_valid(case: Case) -> None:
    assert concluded(CaseLog(called=True), case) == "unknown"
    assert concluded(CaseLog(called=True), case, judged=False) == "valid"


@pytest.mark.parametrize("word", ["invalid", "unknown"])
def test_a_scenario_that_ignores_the_judge_is_not_heard(case: Case, word: VerdictWord) -> None:
    case.verdict = verdict(word)
    assert conclude(CaseLog(called=True), case, must_be_judged=True, test_file=HERE) == (word, f"so it is {word}")


def test_too_little_load_is_unknown_whatever_the_judge_says(case: Case) -> None:
    case.verdict, case.shortfalls = verdict("valid"), ["3 records were acked"]
    assert concluded(CaseLog(called=True), case) == "unknown"
    case.verdict = verdict("invalid")
    assert concluded(CaseLog(called=True), case) == "invalid"


def test_what_is_declared_of_the_build_must_have_been_seen(case: Case) -> None:
    declared = Deviation(
        kip=0, promised="it is so", actual="it is otherwise", issue="none", builds=VersionRange.parse("")
    )
    case.verdict = verdict("valid")
    outcome = partial(conclude, CaseLog(called=True), case, must_be_judged=True, test_file=HERE, deviations=[declared])
    assert outcome() == ("unknown", "the known deviation of this build was not seen: it is otherwise")
    cluster = fake_cluster("4.3.1", journal=case.journal)
    other = replace(declared, actual="it is otherwise still")
    observe(other, cluster, deviates=True, seen="that")
    assert outcome()[0] == "unknown"
    assert outcome(deviations=[replace(declared, deterministic=False)]) == ("valid", "")
    undeclared = other.noted("undeclared")
    # a deviation that does not show in every run need not be seen
    assert deviations_of(case, [declared]) == [undeclared]
    observe(declared, cluster, deviates=True, seen="this")
    assert outcome() == ("valid", "")
    assert deviations_of(case, [declared]) == [declared.noted("seen"), undeclared]


@pytest.mark.parametrize(
    ("does", "state"), [((False,), "mended"), ((True,), "seen"), ((False, True), "seen"), ((True, False), "seen")]
)
def test_on_a_newer_build_a_case_says_what_has_become_of_a_deviation(
    case: Case, does: tuple[bool, ...], state: State
) -> None:
    """A deviation that was seen at least once is not mended; one that nothing looked for makes the case unknown."""
    declared = Deviation(
        kip=0, promised="it is so", actual="it is otherwise", issue="none", builds=VersionRange.parse("")
    )
    case.verdict = verdict("valid")
    outcome = partial(conclude, CaseLog(called=True), case, must_be_judged=True, test_file=HERE, deviations=[declared])
    assert outcome() == ("unknown", "the known deviation of this build was not seen: it is otherwise")
    assert outcome(deviations=[replace(declared, deterministic=False)]) == ("valid", "")
    for deviates in does:
        observe(declared, fake_cluster("4.3.2", journal=case.journal), deviates=deviates)
    assert outcome() == ("valid", "")
    assert deviations_of(case, [declared]) == [declared.noted(state)]
    assert deviations_of(case, []) == ([] if state == "mended" else [declared.noted("undeclared")])


def test_states_are_counted_by_case_and_files_without_any_know_those_seen() -> None:
    states = ("seen seen", "mended seen", "mended", "undeclared", "", None)
    cases = [
        case_result(deviations=() if of is None else tuple(noted_deviation("a", state=each) for each in of.split()))
        if of != ""
        else case_result(deviations=(noted_deviation("a"),))
        for of in states
    ]
    totals = cast(dict[str, int], to_json(cases, 0, 1)["totals"])
    assert (totals["deviations"], totals["mended"], totals["undeclared"], totals["valid"]) == (3, 2, 1, 6)


def test_an_unproven_fault_cannot_be_swallowed(case: Case) -> None:
    case.verdict = verdict("valid")
    case.journal.write("fault.not_proven", fault="chmod_000", target="log-dir-1 of broker 1", broker=1)
    assert concluded(CaseLog(called=True), case) == "unknown"


@pytest.mark.parametrize(
    ("node", "cause", "wanted"),
    [
        ("broker-2", None, "invalid"),
        ("broker-2", "SIGKILL, which the kernel sends when memory runs out", "error"),
        ("controller-100", None, "invalid"),
        ("zookeeper", None, "error"),
    ],
)
def test_a_node_that_ended_unmissed_is_counted(case: Case, node: str, cause: str | None, wanted: str) -> None:
    """In an aborted scenario it counts only if Kafka is to blame, and no fault may be why."""
    case.verdict = verdict("valid")
    case.journal.write("node.ended_by_itself", node=node, exit_code=1, cause=cause)
    aborted = CaseLog(troubles=[Inconclusive("too slow")])
    assert concluded(CaseLog(called=True), case) == wanted
    assert concluded(aborted, case) == ("invalid" if wanted == "invalid" else "unknown")
    case.journal.write("fault.injecting", fault="chmod_000", target=f"log-dir-1 of {node}", broker=1, node=node)
    assert concluded(aborted, case) == "unknown"


@pytest.mark.parametrize(("error", "wanted"), [("PromiseBroken", "invalid"), ("Inconclusive", "unknown")])
def test_what_is_still_under_way_at_the_end_is_counted(case: Case, error: str, wanted: str) -> None:
    case.verdict = verdict("valid")
    case.journal.write("cluster.unsettled", error=error, says="t-0 is being reassigned")
    outcome = conclude(CaseLog(called=True), case, must_be_judged=True, test_file=HERE)
    assert outcome == (wanted, "t-0 is being reassigned")


@pytest.mark.parametrize("log", [CaseLog(called=True), CaseLog(troubles=[Inconclusive("too slow")])])
@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("[LogDirFailureHandler]: Error due to (kafka.server.ReplicaManager)", "invalid"),
        ("[kafka-log-cleaner-thread-0]: Error due to (kafka.log.LogCleaner)", "invalid"),
        ("[ReplicaFetcher replicaId=1, leaderId=2, fetcherId=0] Error due to (kafka.server.X)", "invalid"),
        ("Uncaught exception in thread 'data-plane-kafka-request-handler-0': (org.apache.kafka.X)", "invalid"),
        ("Uncaught exception in scheduled task 'flush-log' (org.apache.kafka.X)", None),
        ("[LogDirFailureHandler]: Stopped (kafka.server.ReplicaManager)", None),  # by a broker that shuts down
        ("[ReplicaManager broker=1] Error due to a slow disk (kafka.server.ReplicaManager)", None),
    ],
)
def test_a_thread_that_died_makes_every_case_invalid(case: Case, log: CaseLog, line: str, outcome: str | None) -> None:
    """The case is invalid whichever thread died, in whichever node, and whatever ended the scenario."""
    case.verdict = verdict("valid")
    was = concluded(log, case)
    node = case.run_dir / "brokers" / "controller-100"
    node.mkdir(parents=True)
    (node / "broker.log").write_text(f"[2026-11-23 10:00:00,000] ERROR {line}\njava.io.UncheckedIOException: x\n")
    found, reason = conclude(log, case, must_be_judged=True, test_file=HERE)
    assert found == (outcome or was)
    assert (line in reason and "controller-100 died" in reason and "UncheckedIO" in reason) is (outcome is not None)


def test_a_log_that_cannot_be_read_is_an_error_of_the_case(case: Case) -> None:
    case.verdict = verdict("valid")
    (case.run_dir / "brokers" / "1" / "broker.log").mkdir(parents=True)
    outcome, reason = conclude(CaseLog(called=True), case, must_be_judged=True, test_file=HERE)
    assert (outcome, "cannot read the run folder" in reason) == ("error", True)


def test_a_good_log_that_was_thrown_away_makes_a_case_invalid(case: Case) -> None:
    """A scenario that was aborted may not have told of what it did, so there it does not count."""
    case.verdict = verdict("valid")
    found = {"/d/log-dir-1": {"t-0": 7}}
    at = case.journal.write("replicas.found", broker=1, log_dirs=found) + timedelta(seconds=1)
    log = case.run_dir / "brokers" / "1" / "broker.log"
    log.parent.mkdir(parents=True)
    line = "Created log for partition t-0 in /d/log-dir-2/t-0 with properties {} (kafka.log.LogManager)"
    log.write_text(f"[{at:%Y-%m-%d %H:%M:%S},000] INFO {line}\n")
    outcome, reason = conclude(CaseLog(called=True), case, must_be_judged=True, test_file=HERE)
    assert (outcome, line in reason) == ("invalid", True)
    assert concluded(CaseLog(troubles=[Inconclusive("too slow")]), case) == "unknown"


DIED = "[2026-11-23 10:00:00,000] ERROR [kafka-log-cleaner-thread-0]: Error due to (kafka.log.LogCleaner)\n"


@pytest.mark.parametrize(
    ("error", "source", "outcome"),
    [
        ("java.lang.OutOfMemoryError: unable to create native thread", "maven", "error"),
        ("java.lang.NoClassDefFoundError: org/apache/kafka/X", "home", "error"),
        ("java.lang.NoClassDefFoundError: org/apache/kafka/X", "maven", "invalid"),
        ("java.lang.OutOfMemoryError: Java heap space", "home", "invalid"),
        ("java.io.FileNotFoundException: /d/log-dir-1/x (Too many open files)", "home", "invalid"),
        ("org.apache.kafka.common.config.ConfigException: Invalid value -1", "home", "invalid"),  # a dynamic change
        ("java.io.IOException: No space left on device", "home", "invalid"),  # a fault fills log dirs
    ],
)
def test_a_thread_that_the_environment_ended_is_no_broken_promise(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: str, source: str, outcome: str
) -> None:
    """A leak is Kafka's. A thread that died by itself counts, also after one that the environment ended."""
    monkeypatch.setattr("harness.host.limits.open_files", lambda: OPEN_FILES)
    case.verdict = verdict("valid")
    case.record(kafka={"source": source})
    log = case.run_dir / "brokers" / "1" / "broker.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{DIED}{error}\n\tat kafka.log.Cleaner\n")
    assert concluded(CaseLog(called=True), case) == outcome
    log.write_text(f"{log.read_text()}{DIED}java.lang.NullPointerException: x\n")
    assert concluded(CaseLog(called=True), case) == "invalid"


def test_what_could_not_be_written_down_makes_all_else_void(case: Case) -> None:
    """If the journal's disk is full, so is that of the brokers' logs; a missing log line is no broken promise then."""
    case.verdict, case.journal = verdict("valid"), Journal(Path("/dev/full"))
    case.journal.write("phase", phase="fault")
    case.journal.write("phase", phase="drain")  # a write does not raise
    seen = CaseLog(troubles=[PromiseBroken("nobody noticed")])
    outcome, reason = conclude(seen, case, must_be_judged=True, test_file=HERE)
    assert outcome == "error"
    assert "No space left on device" in reason
    assert "--runs-dir" in reason
    assert "nobody noticed" in reason
    assert len(case.journal.events) == 2
    case.journal.close()


@pytest.mark.parametrize("by_s", [-10.0, 0.0, 0.4])
def test_a_clock_that_is_set_meanwhile_makes_all_else_void(
    case: Case, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    monkeypatch.setattr("harness.journal.now", lambda: now() + timedelta(seconds=by_s))
    case.journal.write("phase", phase="drain")
    case.verdict = verdict("invalid")
    outcome, reason = conclude(CaseLog(called=True), case, must_be_judged=True, test_file=HERE)
    assert case.journal.clock_stepped_s() == pytest.approx(by_s, abs=0.02)
    assert (outcome, "so it is invalid" in reason) == ("unknown" if by_s else "invalid", True)
    assert (f"set by {by_s:+.2f} s" in reason) == bool(by_s)


def test_a_processor_that_was_away_is_no_step_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    start, passed, away_s = now(), 0.0, iter([0.0, 0.3, 0.3, 0.0])

    def wall() -> datetime:
        nonlocal passed
        at = start + timedelta(seconds=passed)
        passed += next(away_s)
        return at

    monkeypatch.setattr("harness.journal.now", wall)
    monkeypatch.setattr("harness.journal.time", SimpleNamespace(monotonic=lambda: passed))
    journal = Journal(None)
    journal.write("phase", phase="load")
    journal.write("phase", phase="drain")
    assert list(away_s) == [], "both clocks are read again where the processor was away between"
    assert journal.clock_stepped_s() == 0.0


def test_events_of_many_threads_stand_in_the_order_of_their_instants() -> None:
    journal = Journal(None)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: journal.write("x"), range(5000)))
    instants = [event.monotonic_s for event in journal.events]
    assert instants == sorted(instants)


def test_a_case_that_never_ran_is_an_error() -> None:
    assert concluded(CaseLog(), None) == "error"


def test_a_skip_is_a_skip_only_where_nothing_went_wrong(case: Case) -> None:
    assert concluded(CaseLog(skipped="no xfs"), None) == "skipped"
    assert concluded(CaseLog(skipped="no xfs"), case) == "skipped"
    assert concluded(CaseLog(skipped="oh", troubles=[PromiseBroken("lost")]), case) == "invalid"
    case.journal.write("fault.injecting", fault="chmod_000", target="log-dir-1 of broker 1", broker=1)
    assert concluded(CaseLog(skipped="oh"), case) == "unknown"


@pytest.mark.parametrize(
    ("troubles", "word"),
    [
        ([PromiseBroken("b")], "invalid"),
        ([Inconclusive("i")], "unknown"),
        ([FaultNotProven("f")], "unknown"),
        ([HarnessError("h")], "error"),
        ([ValueError("v")], "error"),
        ([Inconclusive("i"), HarnessError("h")], "error"),
        ([HarnessError("h"), Inconclusive("i"), PromiseBroken("b")], "invalid"),
    ],
)
def test_the_worst_trouble_decides(case: Case, troubles: list[BaseException], word: str) -> None:
    assert concluded(CaseLog(troubles=troubles), case) == word


def test_an_undo_that_fails_does_not_hide_the_broken_promise(case: Case) -> None:
    def scenario() -> None:
        try:
            raise PromiseBroken("the leader stayed")
        finally:
            raise OSError("undo failed")

    with pytest.raises(OSError, match="undo failed") as raised:
        scenario()
    assert concluded(CaseLog(troubles=[raised.value]), case) == "invalid"


def test_an_assert_of_the_scenario_is_a_promise_and_one_of_the_harness_is_not(case: Case) -> None:
    try:
        assert case is None, "promised"
    except AssertionError as error:
        troubles: list[BaseException] = [error]
    assert concluded(CaseLog(troubles=troubles), case) == "invalid"
    other_file = Path("elsewhere.py")
    assert conclude(CaseLog(troubles=troubles), case, must_be_judged=True, test_file=other_file)[0] == "error"


@pytest.mark.parametrize("shown", ["", "a", "ab"])
def test_all_deviations_are_in_the_json_and_the_first_under_its_old_name(shown: str) -> None:
    deviations = tuple(map(noted_deviation, shown))
    entry = case_result(deviations=deviations).to_json()
    as_json = [each.to_json() for each in deviations]
    assert (entry.get("deviation"), entry.get("deviations", [])) == (as_json[0] if as_json else None, as_json)
    assert CaseResult.from_json(entry).to_json() == entry


@pytest.mark.parametrize(
    ("trouble", "per_core", "lasted_s", "wanted"),
    [
        (Inconclusive("too few records"), 5.0, 60.0, ("unknown", "on a crowded machine (5.0 threads per core")),
        (Inconclusive("too few records"), 1.0, 60.0, ("unknown", "too few records")),
        (Inconclusive("too few records"), 5.0, 2.0, ("unknown", "too few records")),
        (Inconclusive("on a crowded machine (9.0): slow"), 5.0, 60.0, ("unknown", "on a crowded machine (9.0): slow")),
        (PromiseBroken("lost"), 5.0, 60.0, ("invalid", "lost")),
    ],
)
def test_where_nothing_was_shown_the_reason_has_the_crowding(
    trouble: Exception, per_core: float, lasted_s: float, wanted: tuple[str, str]
) -> None:
    since_begin = fake(Deadline, crowding=Crowding(per_core=per_core), waited_s=lasted_s)
    open_case = OpenCase(
        run=fake(Run, expected=lambda _: [], expected_in_logs=lambda _: []),
        declared=fake(DeclaredCase, scenario=fake(Scenario, judged=True), file=HERE),
        log=CaseLog(troubles=[trouble]),
        since_begin=since_begin,
    )
    verdict, reason = open_case.conclude()
    assert verdict == wanted[0]
    assert reason.startswith(wanted[1])
    assert str(trouble) in reason


def test_an_error_that_replaces_another_hides_nothing_else() -> None:
    """An error raised ``from`` another one says it in other words; a broken promise before both still counts."""

    def translated() -> None:
        try:
            raise HarnessError("no answer")
        except HarnessError as error:
            raise Inconclusive("this machine is too slow") from error

    with pytest.raises(Inconclusive) as alone:
        translated()
    assert concluded(CaseLog(troubles=[alone.value]), None) == "unknown"
    with pytest.raises(Inconclusive) as on_top:  # noqa: PT012
        try:
            raise PromiseBroken("lost")
        except PromiseBroken:
            translated()
    assert concluded(CaseLog(troubles=[on_top.value]), None) == "invalid"


@pytest.mark.parametrize(("why", "outcome"), [("limit", "unknown"), ("released", "invalid")])
def test_a_hold_that_lasts_as_long_as_it_may_proves_nothing(case: Case, why: str, outcome: str) -> None:
    case.journal.write("hold.over", point="move-reads", node="broker-1", thread="t", why=why, held_ms=8000)
    seen = CaseLog(called=True, troubles=[PromiseBroken("the move never ends")])
    found, reason = conclude(seen, case, must_be_judged=False, test_file=HERE)
    assert found == outcome
    assert "the move never ends" in reason
    assert ("t of broker-1 was held at move-reads for 8.0 s, its limit" in reason) == (outcome == "unknown")


@pytest.mark.parametrize(("why", "outcome"), [("limit", "unknown"), ("released", "valid")])
def test_a_hold_that_ended_by_itself_did_not_do_its_part(case: Case, why: str, outcome: str) -> None:
    case.journal.write("hold.over", point="move-reads", node="broker-1", thread="t", why=why, held_ms=8000)
    assert conclude(CaseLog(called=True), case, must_be_judged=False, test_file=HERE)[0] == outcome


def test_a_case_names_the_points_at_which_threads_were_held(case: Case) -> None:
    for point in ("move-reads", "move-appends", "move-reads"):
        case.journal.write("hold.over", point=point, node="broker-1", thread="t", why="released", held_ms=10)
    case.end("valid", "", [], [], [])
    assert json.loads((case.run_dir / "run.json").read_text())["interference"] == [
        {"kind": "hold", "point": "move-appends", "reached": 1},
        {"kind": "hold", "point": "move-reads", "reached": 2},
    ]
