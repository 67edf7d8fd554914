"""Suites allow for builds before 3.8: their brokers delete later, log other messages, and leave files behind."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.quorum.quorum import Quorum
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.broker_log import BrokerLog
from harness.kafka.mbeans import BrokerMetrics, MBeans
from harness.kafka.security import Bootstrap
from harness.kafka.versions import KafkaVersion, Mode
from harness.runner.case import Case, CaseId
from harness.runner.case_workload import CaseWorkload
from suites import deviations, log_cleaning
from suites.checks import check_logged
from suites.kip_36 import test_rack_fails
from suites.kip_36.test_racks import connection
from suites.kip_112 import test_no_fault
from suites.kip_113 import test_log_changes
from suites.kip_113.test_log_changes import check_truncated_segments_gone
from suites.kip_113.test_swaps import found_expired
from suites.log_cleaning import SEGMENT, check_logs_small, until_cleaning_s
from suites.reassignments import check_not_added
from suites.selftest.expected_errors import breaks_promise
from suites.selftest.fakes import (
    cluster_state,
    deviation_kinds,
    fake,
    fake_broker,
    fake_cluster,
    fake_node,
    log_dir_at,
    log_dir_state,
    log_line,
    partition_of,
    replica_in_dir,
    topic_of,
)
from suites.state_check import StateCheck
from suites.steps import UNWRITABLE, ends_as_known

ORDERS_0 = partition_of("orders")


# --- no deletion in a broker's first 30 s ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "ages_s", "left_s"),
    [("3.7.2", [50, 10], 20), ("3.7.2", [50, 40], 0), ("2.8.2", [0], 30), ("3.8.0", [0], 0)],
)
def test_a_broker_is_at_work_so_long_after_its_start(version: str, ages_s: list[float], left_s: float) -> None:
    brokers = [fake_broker(started_at=now() - timedelta(seconds=age_s)) for age_s in ages_s]
    cluster = fake_cluster(version, live_brokers=lambda: brokers)
    assert until_cleaning_s(cluster) == pytest.approx(left_s, abs=1)


@pytest.mark.parametrize(("left_s", "waits"), [(5.0, True), (0.0, False)])
def test_what_is_outdated_has_until_its_broker_is_at_work(
    monkeypatch: pytest.MonkeyPatch, left_s: float, waits: bool
) -> None:
    """The time-out of the check begins when the brokers begin to delete."""
    monkeypatch.setattr(log_cleaning, "until_cleaning_s", lambda _: left_s)
    sizes = iter([3 * SEGMENT] * 3)
    broker = fake_broker(find_replica=lambda *_: (None, replica_in_dir("events", size=next(sizes, SEGMENT))))
    with breaks_promise(None if waits else "outdated records of events-0"):
        check_logs_small(topic_of("events"), on=[broker], timeout_s=0.01)


def test_a_broker_has_as_long_as_is_given_to_say_something(tmp_path: Path) -> None:
    (tmp_path / "broker.log").touch()
    broker = fake_broker(log=BrokerLog(tmp_path / "broker.log"), node=fake_node(check_alive=lambda: None))
    with pytest.raises(PromiseBroken, match=r"waited 0\.0 s for broker 1 to log /Deleted log/"):
        check_logged(broker, "Deleted log", now(), 0.01)


# --- log messages and options of older builds -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "timestamp", "reason", "found"),
    [
        ("2.8.2", "Some(0)", "due to retention time 604800000ms breach", True),
        ("3.6.2", "Some(0)", "due to log retention time 604800000ms breach", True),
        ("3.7.2", "0", "due to log retention time 604800000ms breach", True),
        ("2.8.2", "Some(1795671616992)", "due to retention time 604800000ms breach", False),
        ("3.7.2", "0", "due to log start offset 12 breach", False),
    ],
)
def test_each_build_says_that_a_segment_of_1970_has_expired(
    build: str, timestamp: str, reason: str, found: bool
) -> None:
    log = "Log" if build == "2.8.2" else "UnifiedLog"
    segment = (
        f"LogSegment(baseOffset=0, size=1819971, lastModifiedTime=1795671616992, largestRecordTimestamp={timestamp})"
    )
    line = (
        f"[{log} partition=orders-0, dir=/d] Deleting segment {segment} {reason} based on the largest record timestamp"
    )
    assert bool(re.search(found_expired(ORDERS_0), line)) is found


def test_consumers_sent_to_a_failed_replica_are_distinguished_from_a_cluster_that_stands_still() -> None:
    """The known deviation matches only where records are acked, and a fresh consumer reads nothing either."""
    said = (
        "waited 60.0 s for a record of orders sent after 2026-11-26T05:41:26+00:00 to be acked and read; last seen: "
        "62303 acked, 0 failed, 1401 read; the producer has stood still for 0.3 s (nothing acked); the consumer has "
        "stood still for 61.9 s (nothing read); a fresh client with the settings of c0 reads nothing either"
    )
    seen = test_rack_fails.READS_NOTHING
    assert re.search(seen, said)
    assert not re.search(seen, said.replace("still for 0.3 s (nothing acked)", "still for 60.3 s (nothing acked)"))
    assert not re.search(seen, said.replace("reads nothing either", "reads on from offset 1401 at once"))


@pytest.mark.parametrize(
    ("version", "quorum", "option"),
    [
        ("2.8.2", ZooKeeperQuorum, "--zookeeper"),
        ("3.0.0", ZooKeeperQuorum, "--bootstrap-server"),
        ("3.9.2", KRaftQuorum, "--bootstrap-server"),
    ],
)
def test_kafka_topics_places_replicas_itself_where_it_can(version: str, quorum: type[Quorum], option: str) -> None:
    """Where the tool can reach ZooKeeper, it places replicas itself; elsewhere the brokers do."""
    of_mode = fake(ZooKeeperQuorum, connect="host:2") if quorum is ZooKeeperQuorum else fake(KRaftQuorum)
    cluster = fake_cluster(version, quorum=of_mode, bootstrap=Bootstrap(addresses="host:9"))
    assert connection(cluster) == (option, {"--zookeeper": "host:2", "--bootstrap-server": "host:9"}[option])


# --- known deviations -----------------------------------------------------------------------------------------------

LEFT = "waited 30.0 s for the cluster to be so; last seen: ['broker 1 has a orders-0 in dir-2 of broker 1']"
ON_DISK = "; besides: the disk has a orders-0 in dir-2 of broker 1"


@pytest.mark.parametrize(
    ("version", "seen", "says", "notes"),
    [
        ("3.3.2", LEFT + ON_DISK, None, ["deviation.seen"]),
        ("3.3.2", LEFT, "last seen", []),
        ("3.3.2", f"{LEFT}{ON_DISK}; the MBeans of broker 1 say so, too", "MBeans", []),
        ("3.3.2", LEFT + ON_DISK.replace("dir-2", "dir-1"), "in dir-1", []),
        ("3.3.2", None, "no longer deviates", []),
        ("3.4.1", LEFT + ON_DISK, "last seen", []),
        ("3.4.1", None, None, []),
    ],
)
def test_a_replica_whose_adding_was_cancelled_is_gone_or_is_where_the_model_then_has_it(
    version: str, seen: str | None, says: str | None, notes: list[str]
) -> None:
    """Where the deviation is known, and exactly so shown, the expected state has the replica from then on."""
    troubles, kept, place = [PromiseBroken(seen)] if seen else [], [], log_dir_at(Path("/d"))
    cluster = fake_cluster(version, Mode.ZK)

    def check() -> None:
        if troubles:
            raise troubles.pop()

    state = fake(StateCheck, cluster=cluster, check=check, replica_kept=lambda *what: kept.append(what))
    broker = fake_broker(log_dir_of=lambda *_: place)
    with breaks_promise(says):
        check_not_added(state, ORDERS_0, broker)
    assert deviation_kinds(cluster) == notes
    assert kept == [(ORDERS_0, place)] * len(notes)


@pytest.mark.parametrize(
    ("version", "exit_code", "log", "ends", "says"),
    [
        ("2.8.2", 1, "Failed to write meta.properties due to", True, None),
        ("2.8.2", 1, "another failure", True, "did not log"),
        ("2.8.2", None, "", False, "no longer deviates"),
        ("3.2.1", 1, "Failed to write meta.properties due to", True, "goes on with its good ones"),
        ("3.2.1", None, "", False, None),
    ],
)
def test_a_broker_may_end_on_what_it_can_not_write_to_where_that_is_known(
    tmp_path: Path, version: str, exit_code: int | None, log: str, ends: bool, says: str | None
) -> None:
    started_at, cluster = now(), fake_cluster(version, Mode.ZK)
    (tmp_path / "broker.log").write_text(log_line(log))
    broker = fake_broker(
        node=fake_node(exit_code=lambda: exit_code, expect_end=lambda: None),
        log=BrokerLog(tmp_path / "broker.log"),
        describe_cluster=lambda: cluster_state(brokers=(1,)),
        started_at=started_at,
    )
    with breaks_promise(says):
        assert ends_as_known(cluster, broker, deviations.UNWRITABLE_ENDS_START, saying=UNWRITABLE) is ends
    assert deviation_kinds(cluster) == (["deviation.seen"] if ends and says is None else [])


@pytest.mark.parametrize(
    ("version", "left", "says", "notes"),
    [
        ("3.7.2", {"accounts-0": "9.log.deleted", "events-0": "9.timeindex.deleted"}, None, ["deviation.seen"]),
        ("3.7.2", {}, None, []),
        ("3.7.2", {"events-0": "9.log.deleted", "events-0.f0-future": "9.log"}, "events-0.f0-future", []),
        ("3.8.0", {"events-0": "9.log.deleted"}, "9.log.deleted in events-0", []),
    ],
)
def test_what_a_move_cut_off_may_stay_where_that_is_known_and_nothing_else(
    tmp_path: Path, version: str, left: Mapping[str, str], says: str | None, notes: list[str]
) -> None:
    broker = fake_broker(log_dirs=[log_dir_at(tmp_path)], describe_log_dirs=lambda: [log_dir_state(tmp_path)])
    cluster = fake_cluster(version, live_brokers=lambda: [broker])
    for folder, file in left.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    with breaks_promise(says):
        check_truncated_segments_gone(cluster, ["accounts", "events"], timeout_s=0.01)
    assert deviation_kinds(cluster) == notes


@pytest.mark.parametrize("more", ["events-0.f0-future in d of broker 1", "9.log.deleted in orders-0 in d of broker 1"])
def test_what_else_is_left_is_not_excused_by_what_may_be(monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    told = ["9.log.deleted in events-0 in d of broker 1", more]

    def left(*_: object) -> None:
        raise PromiseBroken(f"last seen: {told}")

    monkeypatch.setattr(test_log_changes, "check_no_leftovers", left)
    for _ in ("after", "before"):
        with pytest.raises(PromiseBroken, match=re.escape(more)):
            check_truncated_segments_gone(fake_cluster("3.7.2"), ["events"])
        told.reverse()


def test_a_build_is_not_mended_where_too_little_happened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a busy machine few moves end in a minute; that no log dir goes offline then shows nothing."""
    (tmp_path / "broker.log").touch()
    metrics = BrokerMetrics(
        offline_log_dirs=0, log_dir_offline={}, offline_replicas=0, partitions=0, leaders=0, under_replicated=0
    )
    broker = fake_broker(
        log=BrokerLog(tmp_path / "broker.log"),
        mbeans=fake(MBeans, describe_broker=lambda: metrics),
        node=fake_node(expect_end=lambda: None),
    )
    cluster = fake_cluster(
        "3.7.2", brokers=[broker], live_brokers=lambda: [broker], create_topic=lambda *_, **__: topic_of("orders")
    )
    monkeypatch.setattr(test_no_fault, "daily_operations", lambda *_, **__: nullcontext(collections.Counter()))
    monkeypatch.setattr(test_no_fault, "await_in_sync", lambda *_, **__: None)
    monkeypatch.setattr(test_no_fault, "restart", lambda *_, **__: None)
    workload = fake(CaseWorkload, running=lambda *_, **__: nullcontext())
    case = fake(Case, id=CaseId(id="", kip=112, plan="", mode="kraft", seed=1, nodeid=""))
    with pytest.raises(Inconclusive, match=r"too little happened to show anything: .*'moves ended': 0"):
        test_no_fault.operate_for_a_minute(
            cluster, workload, case, known=deviations.GOOD_LOG_DIR_OFFLINE, least={"moves ended": 30}
        )


def test_versions_have_what_came_with_them_and_what_went() -> None:
    builds = [KafkaVersion.parse(text) for text in ("2.8.2", "3.0.0", "3.7.2", "3.8.0", "4.4.0")]
    assert [build.has_initial_task_delay for build in builds] == [False, False, False, True, True]
    assert [build.has_delete_horizons for build in builds] == [False, False, True, True, True]
    assert [build.creates_topics_by_zookeeper for build in builds] == [True, False, False, False, False]
