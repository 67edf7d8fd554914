"""A deviation must show on the builds that it is confirmed on, may show on newer ones, and must not on others.

The answers of the brokers are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka import tool_answers
from harness.kafka.broker_log import BrokerLog
from harness.kafka.mbeans import BrokerMetrics, MBeans
from harness.kafka.metadata import LogDirState
from harness.kafka.versions import CONFIRMED_BUILDS, KafkaVersion, Mode, VersionRange, is_newer_than
from harness.runner.deviation import Deviation, Expectation
from suites import deviations, observations
from suites.checks import check_promised_or_known, no_log_dir_fails, promised, refuses_to_start
from suites.kip_112.test_behaviours import check_offline_replicas_counted
from suites.observing import expectation_of, expects, observe
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import cluster_state, deviation_kinds, fake, fake_broker, fake_cluster, fake_node, log_line
from suites.selftest.test_observations import BROKERS, DIRS, METRICS, SEEN, described, healthy_state, right_state
from suites.state_check import StateCheck

V = KafkaVersion.parse
CONFIRMED = (V("4.1.2"), V("4.3.1"))
SINCE_4_1 = Deviation(
    kip=0,
    promised="it is so",
    actual="it is otherwise",
    issue="none",
    builds=VersionRange.parse(">=4.1.1"),
    confirmed=CONFIRMED,
)
UNTIL_4_4 = replace(SINCE_4_1, builds=VersionRange.parse(">=4.1.1,<4.4.0"))
BUILDS = {
    "4.1.0": Expectation.NONE,
    "4.1.1": Expectation.CONFIRMED,
    "4.1.2": Expectation.CONFIRMED,
    "4.1.3": Expectation.OPEN,  # a fix may have come to its branch
    "4.2.0": Expectation.CONFIRMED,
    "4.2.9": Expectation.CONFIRMED,  # between two that are
    "4.3.1": Expectation.CONFIRMED,
    "4.3.1-vendor1": Expectation.CONFIRMED,
    "4.3.2-SNAPSHOT": Expectation.OPEN,
    "4.3.2": Expectation.OPEN,
    "4.4.0-rc0": Expectation.OPEN,
    "5.0.0": Expectation.OPEN,
}


@pytest.mark.parametrize(("version", "expected"), BUILDS.items())
def test_what_is_expected_of_builds(version: str, expected: Expectation) -> None:
    assert SINCE_4_1.expectation(V(version), Mode.KRAFT) is expected
    assert replace(SINCE_4_1, modes=(Mode.ZK,)).expectation(V(version), Mode.KRAFT) is Expectation.NONE
    ends = Expectation.NONE if V(version).release >= (4, 4, 0) else expected
    assert UNTIL_4_4.expectation(V(version), Mode.KRAFT) is ends


def test_a_deviation_is_confirmed_on_the_builds_of_its_mode_unless_it_says_otherwise() -> None:
    everywhere = replace(SINCE_4_1, builds=VersionRange.parse(""), confirmed=())
    for mode, releases in CONFIRMED_BUILDS.items():
        for release in releases:
            newer = replace(release, patch=release.patch + 1)
            assert everywhere.expectation(release, mode) is Expectation.CONFIRMED
            assert everywhere.expectation(newer, mode) is Expectation.OPEN
        assert is_newer_than(releases, replace(max(releases), minor=99))
    assert everywhere.expectation(V("2.0.0"), Mode.ZK) is Expectation.CONFIRMED
    assert "confirmed" not in SINCE_4_1.to_json()


OUTCOMES: dict[Expectation, list[tuple[str, str | None, list[str]]]] = {
    Expectation.NONE: [
        ("kept", None, []),
        ("otherwise", "otherwise", []),
        ("else", "else", []),
    ],
    Expectation.CONFIRMED: [
        ("kept", "no longer deviates: it is otherwise; seen: ", []),
        ("otherwise", None, ["deviation.seen"]),
        ("else", "else", []),
    ],
    Expectation.OPEN: [
        ("kept", None, ["deviation.mended"]),
        ("otherwise", None, ["deviation.seen"]),
        ("else", "else", []),
    ],
}
"""For each expectation: what is seen, the message of the error (None: no error), and the events that note it."""


def by_known(cluster: Cluster, answer: str) -> bool:
    return check_promised_or_known(SINCE_4_1, cluster, answer, promised="kept", known="otherwise")


def by_promised(cluster: Cluster, answer: str) -> bool:
    with promised(cluster, unless=SINCE_4_1, seen="^it is otherwise$") as outcome:
        if answer != "kept":
            raise PromiseBroken(f"it is {answer}")
    return outcome.deviates


@pytest.mark.parametrize("check", [by_known, by_promised])
@pytest.mark.parametrize(
    ("version", "seen", "says", "notes"),
    [(version, *outcome) for version, expected in BUILDS.items() for outcome in OUTCOMES[expected]],
)
def test_a_check_accepts_exactly_what_is_expected_of_the_build(
    version: str, seen: str, says: str | None, notes: list[str], check: Callable[[Cluster, str], bool]
) -> None:
    cluster = fake_cluster(version)
    with breaks_promise(says):
        assert check(cluster, seen) is (seen == "otherwise")
    assert deviation_kinds(cluster) == notes


def test_what_is_waited_for_is_looked_at_only_where_the_build_may_do_either() -> None:
    def never() -> bool:
        raise AssertionError("it was looked at")

    assert not expects(SINCE_4_1, fake_cluster("4.1.0"), never)
    assert expects(SINCE_4_1, fake_cluster("4.3.1"), never)
    assert expects(SINCE_4_1, fake_cluster("4.3.2"), lambda: True)
    assert not expects(SINCE_4_1, fake_cluster("4.3.2"), lambda: False)


def test_the_error_of_the_promise_is_kept() -> None:
    broken = PromiseBroken("its own words")
    with pytest.raises(PromiseBroken) as raised:
        observe(SINCE_4_1, fake_cluster("4.1.0"), deviates=True, broken=broken)
    assert raised.value is broken


# --- sources whose expectation depends on the build -----------------------------------------------------------------


UNCOUNTED = [
    ("4.3.1", 3, None, []),
    ("4.3.1", 0, "OfflineReplicaCount 0 instead of 3", []),
    ("4.2.2", 0, None, ["deviation.seen"]),
    ("4.2.2", 3, "instead of 0; no longer deviates", []),
    ("4.2.3", 0, None, ["deviation.seen"]),
    ("4.2.3", 3, None, ["deviation.mended"]),
    ("4.2.3", 1, "OfflineReplicaCount 1 instead of 3", []),
    ("4.2.3", 4, "OfflineReplicaCount 4 instead of 3", []),
]


def on_build(state: StateCheck, version: str, mode: Mode = Mode.KRAFT) -> Cluster:
    """Give the state's cluster and its brokers this build, and the cluster a journal of its own."""
    planted = fake_cluster(version, mode)
    for each in (state.cluster, *state.cluster.brokers):
        vars(each).update(distribution=planted.distribution, build=planted.distribution)
    state.cluster.journal, state.cluster.spec = planted.journal, planted.spec
    return state.cluster


def metrics_on(cluster: Cluster, counted: int) -> BrokerMetrics:
    cordons = dict.fromkeys(METRICS.log_dir_offline, False) if cluster.distribution.version.at_least(4, 3) else {}
    return replace(METRICS, offline_replicas=counted, log_dir_cordoned=cordons, cordoned_log_dirs=0)


@pytest.mark.parametrize(("version", "counted", "says"), [case[:3] for case in UNCOUNTED])
def test_offline_replicas_that_are_not_counted(version: str, counted: int, says: str | None) -> None:
    """Every case with a failed log dir looks at the count, so it is noted only where the deviation is declared."""
    state = right_state()
    cluster = on_build(state, version)
    differences = observations.judge_mbeans(state, BROKERS[3], metrics_on(cluster, counted), SEEN)
    assert [says in each for each in differences if says] == ([True] if says else [])
    assert bool(differences) is bool(says)
    assert deviation_kinds(cluster) == []


@pytest.mark.parametrize(("version", "counted", "says", "notes"), UNCOUNTED)
def test_who_declares_that_offline_replicas_are_not_counted_notes_it(
    monkeypatch: pytest.MonkeyPatch, version: str, counted: int, says: str | None, notes: list[str]
) -> None:
    state = right_state()
    cluster = on_build(state, version)
    broker = fake_broker(3, mbeans=fake(MBeans, describe_broker=lambda: metrics_on(cluster, counted)))
    broker.log_dirs = BROKERS[3].log_dirs
    monkeypatch.setattr(cluster, "describe", lambda: SEEN)
    with breaks_promise("no longer deviates|instead of" if says else None):
        check_offline_replicas_counted(state, broker)
    assert deviation_kinds(cluster) == notes


@pytest.mark.parametrize(
    ("version", "mode", "agreed", "changed", "counted", "says", "notes"),
    [
        ("4.3.1", Mode.KRAFT, True, False, 0, None, ["deviation.seen"]),
        ("4.3.1", Mode.KRAFT, True, False, 3, None, []),
        ("4.3.1", Mode.KRAFT, True, False, 4, "OfflineReplicaCount 4 instead of 0 to 3", []),
        ("4.3.1", Mode.KRAFT, True, True, 0, "OfflineReplicaCount 0 instead of 1 to 3", []),  # it is stuck
        ("4.3.1", Mode.KRAFT, True, True, 1, None, ["deviation.seen"]),
        ("4.3.1", Mode.KRAFT, False, True, 0, None, ["deviation.seen"]),  # it may have changed before
        ("4.4.0", Mode.KRAFT, True, True, 0, "OfflineReplicaCount 0 instead of 1 to 3", []),
        ("4.2.2", Mode.KRAFT, True, True, 0, None, []),  # it always counts 0
        ("4.2.2", Mode.KRAFT, True, True, 1, "OfflineReplicaCount 1 instead of 0; no longer deviates", []),
        ("3.6.2", Mode.ZK, True, False, 0, "OfflineReplicaCount 0 instead of 3", []),
        ("3.6.2", Mode.ZK, True, False, 3, None, []),
    ],
)
def test_a_broker_that_starts_with_a_bad_log_dir_counts_a_replica_once_its_partition_has_changed(
    version: str, mode: Mode, agreed: bool, changed: bool, counted: int, says: str | None, notes: list[str]
) -> None:
    """Of the three replicas in the bad log dir, only the ISR of orders-0 changes."""
    state = healthy_state()
    cluster = on_build(state, version, mode)
    state.broker_gone(BROKERS[3])
    state.log_dir_failed(DIRS[3, 1])
    state.broker_back(BROKERS[3])
    if agreed:
        state._take_over_leaderships({})
    if changed:
        state.broker_gone(BROKERS[1])
    differences = observations.judge_mbeans(state, BROKERS[3], metrics_on(cluster, counted), SEEN)
    assert [says in each for each in differences if says] == ([True] if says else [])
    assert bool(differences) is bool(says)
    assert deviation_kinds(cluster) == notes


def test_where_nothing_is_offline_the_count_shows_nothing() -> None:
    state = healthy_state()
    planted = on_build(state, "4.2.3")
    good = dict.fromkeys(METRICS.log_dir_offline, False)
    seen = replace(METRICS, offline_log_dirs=0, log_dir_offline=good, offline_replicas=0, partitions=3, leaders=3)
    assert observations.judge_mbeans(state, BROKERS[3], seen, replace(SEEN, partitions=())) == []
    assert deviation_kinds(planted) == []


@pytest.mark.parametrize(
    ("version", "is_cordoned", "says", "notes"),
    [
        ("4.3.1", None, None, ["deviation.seen"]),
        ("4.3.1", True, "no longer deviates", []),
        ("4.3.2", None, None, ["deviation.seen"]),
        ("4.3.2", True, None, ["deviation.mended"]),
    ],
)
def test_cordons_that_are_not_printed(
    version: str, is_cordoned: bool | None, says: str | None, notes: list[str]
) -> None:
    cluster = fake_cluster(version)
    differences = observations.judge_printed_cordons(cluster, {2: described(is_cordoned)})
    assert [says in each for each in differences if says] == ([True] if says else [])
    assert bool(differences) is bool(says)
    assert deviation_kinds(cluster) == notes


def test_the_tool_that_every_case_asks_notes_nothing_of_cordons(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it prints is still compared; the scenario that declares the deviation notes it."""
    state = healthy_state()
    cluster = on_build(state, "4.3.1")
    seen: dict[int, tuple[LogDirState, ...]] = {}
    monkeypatch.setattr(tool_answers, "describe_log_dirs", lambda *_: seen)
    monkeypatch.setattr(state, "bootstrap", lambda: "")
    monkeypatch.setattr(type(cluster), "bootstrap", "")
    list(observations.log_dirs_tool(state))
    assert deviation_kinds(cluster) == []
    observations.check_cordons_printed(cluster)
    assert deviation_kinds(cluster) == ["deviation.seen"]
    seen[2] = described(True)
    assert deviations.CORDONS_NOT_PRINTED.gone in list(observations.log_dirs_tool(state))
    with breaks_promise("no longer deviates"):
        observations.check_cordons_printed(cluster)


def test_a_newer_build_that_prints_cordons_of_some_log_dirs_alone_is_wrong() -> None:
    cluster, (silent, said) = fake_cluster("4.3.2"), (described(None), described(True))
    [says] = observations.judge_printed_cordons(cluster, {1: silent, 2: said})
    assert "does not show whether 2 of 4 log dirs" in says
    assert deviation_kinds(cluster) == []


# --- checks that wait -----------------------------------------------------------------------------------------------

FLUSHED = "Error while flushing log for t-0 in dir /d with offset 7\njava.nio.channels.ClosedChannelException\n\tat x"
STOPPED = "Stopping serving logs in dir /d"


FLUSHED_AND_STOPPED = (FLUSHED, STOPPED)
LOADING = "Error while loading log dir /d"


@pytest.mark.parametrize(
    ("version", "offline", "logs", "says", "notes"),
    [
        ("4.3.1", "/d", FLUSHED_AND_STOPPED, None, ["deviation.seen"]),
        ("4.3.1", "", FLUSHED_AND_STOPPED, None, ["deviation.seen"]),
        ("4.3.1", "", (), "no longer deviates", []),
        ("4.3.1", "/d /e", FLUSHED_AND_STOPPED, "not by KAFKA-19571: broker 1 counted 2 .*/e", []),
        ("4.3.1", "/e", FLUSHED_AND_STOPPED, "not by KAFKA-19571: broker 1 counted 1 .*/e", []),
        (
            "4.3.1",
            "/d +1",
            FLUSHED_AND_STOPPED,
            "not by KAFKA-19571: broker 1 counted 2 .*: \\['/d'\\]$",
            [],
        ),
        ("4.3.1", "/d", (STOPPED, FLUSHED), "not by KAFKA-19571: broker 1 counted.*; broker 1 logged: Stopping", []),
        ("4.3.1", "/d", (*FLUSHED_AND_STOPPED, STOPPED), "not by KAFKA-19571: broker 1 logged: Stopping", []),
        ("4.3.1", "/d", (*FLUSHED_AND_STOPPED, LOADING), "not by KAFKA-19571: broker 1 logged: Error while load", []),
        ("4.3.1", "/d", (FLUSHED, LOADING), "not by KAFKA-19571: broker 1 counted.*; broker 1 logged: Error while", []),
        ("4.3.2", "/d", FLUSHED_AND_STOPPED, None, ["deviation.seen"]),
        ("4.3.2", "", (), None, ["deviation.mended"]),
        ("4.3.2", "/d", (STOPPED,), "not by KAFKA-19571", []),
        ("4.3.2", "/d", (), "not by KAFKA-19571: broker 1 counted 1 log dirs offline", []),
        ("4.1.0", "/d", FLUSHED_AND_STOPPED, "no fault was injected, and broker 1 counted.*; broker 1 logged", []),
        ("4.1.0", "", (), None, []),
    ],
)
def test_a_good_log_dir_goes_offline_for_the_reason_that_is_known_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: str,
    offline: str,
    logs: Sequence[str],
    says: str | None,
    notes: list[str],
) -> None:
    """``offline``: the log dirs that the MBeans name, and how many more they count."""
    monkeypatch.setattr("suites.checks.READ_TIMES", 1)
    known = replace(
        deviations.GOOD_LOG_DIR_OFFLINE, builds=VersionRange.parse(">=4.1.1"), confirmed=SINCE_4_1.confirmed
    )
    cluster, log = watched_cluster(tmp_path, version, offline.split())
    expected = None if expectation_of(known, cluster) is Expectation.NONE else known
    with breaks_promise(says), no_log_dir_fails(cluster, expected=expected):
        log.write_text("".join(map(log_line, logs)))
    assert deviation_kinds(cluster) == notes


def watched_cluster(folder: Path, version: str, offline: Sequence[str]) -> tuple[Cluster, Path]:
    """A cluster of one broker whose MBeans count these log dirs as offline, and the broker's log."""
    named = {"/d": False, "/e": False} | {path: True for path in offline if path != "+1"}
    metrics = replace(METRICS, offline_log_dirs=len(offline), log_dir_offline=named)
    log = folder / "broker.log"
    broker = fake_broker(log=BrokerLog(log), mbeans=fake(MBeans, describe_broker=lambda: metrics))
    return fake_cluster(version, brokers=[broker], live_brokers=lambda: [broker]), log


@pytest.mark.parametrize("offline", ["/d", ""])
def test_a_log_dir_that_fails_does_not_hide_the_error_that_came_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, offline: str
) -> None:
    """Without a log dir that fails, the error comes out as it is."""
    monkeypatch.setattr("suites.checks.READ_TIMES", 1)
    cluster, log = watched_cluster(tmp_path, "4.3.1", offline.split())
    log.write_text("".join(map(log_line, [STOPPED] if offline else [])))
    own = ValueError("of the block")
    with pytest.raises(PromiseBroken if offline else ValueError) as raised, no_log_dir_fails(cluster):
        raise own
    assert own in (raised.value, raised.value.__cause__)


@pytest.mark.parametrize(
    ("exit_code", "joins", "log", "outcome"),
    [
        (1, False, "it refuses", True),
        (None, True, "", False),
        (1, False, "it says something else", "did not log /it refuses/"),
        (2, False, "it refuses", "exit code 2 instead of 1"),
        (None, False, "it refuses", "to exit or to join"),
    ],
)
def test_a_broker_refuses_to_start_as_it_should_or_joins(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    exit_code: int | None,
    joins: bool,
    log: str,
    outcome: bool | str,
) -> None:
    monkeypatch.setattr("suites.checks.timeouts.RECOVERY_S", 0.2)
    started_at = now()
    (tmp_path / "broker.log").write_text(log_line(log))
    broker = fake_broker(
        node=fake_node(exit_code=lambda: exit_code, expect_end=lambda: None),
        log=BrokerLog(tmp_path / "broker.log"),
        describe_cluster=lambda: cluster_state(brokers=(1,) if joins else ()),
        started_at=started_at,
    )
    if isinstance(outcome, str):
        with pytest.raises(PromiseBroken, match=outcome):
            refuses_to_start(broker, saying="it refuses")
    else:
        assert (refuses_to_start(broker, saying="it refuses") is not None) is outcome


# --- what is declared -----------------------------------------------------------------------------------------------

DECLARED = [each for each in vars(deviations).values() if isinstance(each, Deviation)]


@pytest.mark.parametrize("deviation", DECLARED, ids=lambda deviation: deviation.actual[:40])
def test_each_declared_deviation_is_confirmed_somewhere(deviation: Deviation) -> None:
    """Otherwise no build would have to show it, and no case would fail once it is gone."""
    confirmed = [(mode, each) for mode, releases in CONFIRMED_BUILDS.items() for each in releases]
    older = [(Mode.ZK, V("3.6.2")), (Mode.ZK, V("2.8.2"))]  # for deviations of builds before 3.7
    assert any(deviation.expectation(of, mode) is Expectation.CONFIRMED for mode, of in (*confirmed, *older))


@pytest.mark.parametrize(
    ("deviation", "shown", "mended"),
    [
        (deviations.GOOD_LOG_DIR_OFFLINE, "3.7.0 3.9.2 4.0.0 4.0.1 4.1.0 4.1.1", "4.0.2 4.1.2 4.2.0 4.3.1 4.4.0"),
        (deviations.GROWTH_NOT_CANCELLED, "3.7.0 3.9.2 4.0.0", "4.0.1 4.0.2 4.1.0 4.3.1"),
        (deviations.CLEANING_STOPS, "2.4.1 3.9.2 4.0.2 4.1.2", "4.2.0 4.4.0"),
        (deviations.CANCELLED_REPLICA_STAYS, "2.6.0 2.8.2 3.3.2 3.4.0", "2.5.1 3.4.1 3.6.2 3.9.2"),
        (deviations.UNWRITABLE_ENDS_START, "2.4.1 2.8.2 3.1.2 3.2.0", "2.3.1 3.2.1 3.6.2 3.9.2"),
        (deviations.FAILED_REPLICA_PREFERRED, "2.4.1 2.8.2 3.2.3 3.3.1", "2.3.1 3.3.2 3.4.1 3.9.2"),
        (deviations.TRUNCATED_SEGMENTS_STAY, "2.8.2 3.6.2 3.7.2", "3.8.0 3.9.2 4.0.0"),
        (deviations.OFFLINE_REPLICAS_UNCOUNTED, "3.7.0 4.1.2 4.2.2", "3.6.2 4.3.0 4.4.0"),
        (deviations.STAYING_REPLICA_AWAITED, "3.8.0 3.9.2 4.0.0 4.2.1", "3.7.2 4.3.0 4.4.0"),
    ],
)
def test_where_kafka_mended_what_is_known(deviation: Deviation, shown: str, mended: str) -> None:
    """The releases are from Kafka's jars and branches: KafkaServer, LogManager, LogSegment, ReplicaManager, tools.

    In KRaft also PartitionReassignmentReplicas.
    """
    assert [each for each in shown.split() if V(each) in deviation.builds] == shown.split()
    assert [each for each in mended.split() if V(each) in deviation.builds] == []
