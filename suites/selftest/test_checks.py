"""Checks that suites share, on fake brokers and files: each passes on good ones and fails on bad ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from harness import timeouts
from harness.cluster.log_dir import CLEANED, HIGH_WATERMARKS, LOG_STARTS, LogDir
from harness.cluster.quorum.zookeeper import LogDirEvents
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.events import DeviationEvent
from harness.journal import Journal, now
from harness.kafka.admin import Admin
from harness.kafka.broker_log import BrokerLog, LogLine
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import ProducerState, ReplicaInDir
from harness.kafka.versions import Mode, VersionRange
from harness.measure.client_errors import Refused
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Deviation
from suites import on_disk
from suites.checks import check_ends, check_group_commits, check_led_by_another, check_notified, promised
from suites.deviations import LONE_FUTURE_REPLICA_EMPTIED
from suites.kip_112.test_behaviours import fatal_fault_in
from suites.kip_113.test_log_changes import check_truncated
from suites.kip_113.test_moves import tries_to_move
from suites.kip_113.test_swaps import emptied
from suites.kip_113.test_tools_across import check_gave_up
from suites.kip_113.test_transactions import check_producers_known, check_refused_once
from suites.moves import await_begun, check_under_way
from suites.on_disk import (
    CHECKPOINTS,
    TIME_INDEX_ENTRY,
    check_checkpoints,
    check_indexes_trimmed,
    check_logs_unchanged,
    check_same_bytes,
    check_topic_gone,
    leaders_logs,
)
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
    partition_state,
    replica_in_dir,
)
from suites.transactions.test_restarts import check_fenced

DEVIATION = Deviation(kip=113, promised="it does", actual="it doesn't", issue="X", builds=VersionRange.parse("<4.0.0"))


@pytest.mark.parametrize(
    ("version", "broken", "outcome"),
    [
        ("4.0.0", None, nullcontext()),
        ("4.0.0", "seen: 3 of u", pytest.raises(PromiseBroken, match="3 of u")),
        ("3.9.2", None, pytest.raises(PromiseBroken, match="no longer deviates: it doesn't")),
        ("3.9.2", "seen: 3 of u", nullcontext()),
        ("3.9.2", "seen: 3 of t", pytest.raises(PromiseBroken, match="3 of t")),  # another defect than the declared one
    ],
)
def test_what_deviates_must_deviate_as_is_known(
    version: str, broken: str | None, outcome: AbstractContextManager[object]
) -> None:
    with outcome, promised(fake_cluster(version, Mode.ZK), unless=DEVIATION, seen=r"\d of u$"):
        if broken:
            raise PromiseBroken(broken)


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        (LogLine(at=datetime.now(UTC), level="ERROR", text="its own line"), nullcontext()),
        (None, pytest.raises(PromiseBroken, match="3 of u")),  # the same error for another reason
    ],
)
def test_what_deviates_must_have_logged_its_own_line(
    line: LogLine | None, outcome: AbstractContextManager[object]
) -> None:
    cluster = fake_cluster("3.9.2", Mode.ZK)
    with outcome, promised(cluster, unless=DEVIATION, seen=r"\d of u$", logged=lambda: line):
        raise PromiseBroken("seen: 3 of u")


OF_BROKER_2, OF_BROKER_3 = ({"version": 1, "broker": id, "event": 1} for id in (2, 3))


@pytest.mark.parametrize(
    ("told", "there", "left", "outcome"),
    [
        ([OF_BROKER_2], 0, 0, nullcontext()),
        ([OF_BROKER_2], 1, 1, nullcontext()),
        ([OF_BROKER_2], 1, 0, pytest.raises(PromiseBroken, match="and 0 left")),
        (
            [OF_BROKER_2],
            0,
            1,
            pytest.raises(PromiseBroken, match="and 1 left"),
        ),  # it is gone, and no controller read it
        ([], 0, 0, pytest.raises(PromiseBroken)),
        ([OF_BROKER_3], 0, 0, pytest.raises(PromiseBroken)),
        ([OF_BROKER_2, OF_BROKER_3], 0, 0, pytest.raises(PromiseBroken)),
    ],
)
def test_a_notification_is_sent_once_and_waits_only_while_there_is_no_controller(
    monkeypatch: pytest.MonkeyPatch,
    told: list[dict[str, int]],
    there: int,
    left: int,
    outcome: AbstractContextManager[object],
) -> None:
    monkeypatch.setattr(timeouts, "LOG_DIR_FAILURE_S", 0.01)
    names = [f"log_dir_event_{number}" for number in range(len(told))]
    events = fake(LogDirEvents, seen=lambda: dict(zip(names, told, strict=True)), left=lambda: names[:there])
    with outcome:
        check_notified(events, fake_broker(2), left=left)


def orders_in(*log_dirs: Path, partitions: int = 1, leader: int | None = 0) -> Topic:
    """The topic orders, with a replica of each partition in each of these log dirs, on the brokers 0, 1 …"""
    each = range(partitions)
    brokers = [
        fake_broker(id, find_replicas=partial(dict, {("orders", n): (log_dir_at(path), None) for n in each}))
        for id, path in enumerate(log_dirs)
    ]
    states = [replace(partition_state("orders", *range(len(log_dirs)), index=n), leader=leader) for n in each]
    cluster = fake_cluster(broker=brokers.__getitem__, describe=partial(cluster_state, *states))
    return Topic(cluster, "orders", partitions)


def write_log(log_dir: Path, files: Mapping[str, bytes], partition: int = 0) -> None:
    folder = log_dir / f"orders-{partition}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def batch(offset: int, content: bytes = b"records") -> bytes:
    return offset.to_bytes(8) + content


WHOLE = {"0.log": batch(0) + batch(7)}


@pytest.mark.parametrize(
    ("error", "at", "handovers", "means"),
    [
        (None, 7, 1, nullcontext()),
        (None, 9, 1, nullcontext()),
        (None, 7, 2, pytest.raises(Inconclusive, match="changed hands 1 times, instead of at least 2 since")),
        (None, 6, 1, pytest.raises(PromiseBroken, match="7, then 6")),
        (None, 6, 2, pytest.raises(PromiseBroken, match="7, then 6")),
        (None, -1, 1, pytest.raises(PromiseBroken, match="7, then -1")),  # it is gone altogether
        ("_TIMED_OUT", 6, 0, nullcontext()),  # a failed commit is no promise
        ("_TIMED_OUT", 6, 1, pytest.raises(Inconclusive, match="changed hands 0 times, instead of at least 1")),
    ],
)
def test_a_groups_commit_that_is_gone_is_seen(
    error: str | None, at: int, handovers: int, means: AbstractContextManager[object]
) -> None:
    """Another consumer reads the partition on, and its event is in the journal before the one of the commit."""
    journal, since = Journal(None), now()
    later, sooner = since.timestamp() + 2, since.timestamp() + 1
    journal.write("group.assigned", consumer="g1", partitions=[0, 1], when=later, committed={"0": at, "1": 0})
    journal.write("group.revoked", consumer="g0", partitions=[0], when=sooner, committed={"0": 7}, error=error)
    with means:
        check_group_commits(journal, since=since, handovers=handovers)


def test_commits_of_a_group_without_a_handover_show_nothing() -> None:
    """The partition changed hands before the time that counts, or never."""
    journal, since = Journal(None), now()
    journal.write("group.revoked", consumer="g0", partitions=[0], when=since.timestamp() + 1, committed={"0": 7})
    with pytest.raises(Inconclusive, match="changed hands 0 times, instead of at least 1:"):
        check_group_commits(journal)
    journal.write("group.assigned", consumer="g1", partitions=[0], when=since.timestamp() + 2, committed={"0": 7})
    check_group_commits(journal)
    with pytest.raises(Inconclusive, match="changed hands 0 times, instead of at least 1 since"):
        check_group_commits(journal, since=since + timedelta(seconds=3))


RAFT_DIED = "Encountered fatal fault: Unexpected error in raft IO thread (org.apache.kafka.server.fault.X)\n"


@pytest.mark.parametrize(
    ("log", "is_due_to_it"),
    [
        (f"{RAFT_DIED}java.io.UncheckedIOException: Error while writing the Quorum status from the file /m/1/q", True),
        (f"{RAFT_DIED}java.io.UncheckedIOException: Error while deleting file /m/1/__cluster_metadata-0/q.tmp", True),
        (f"{RAFT_DIED}java.lang.IllegalStateException: Received request for epoch 7", False),
        (f"{RAFT_DIED}java.io.UncheckedIOException: Error while deleting file /m/10/__cluster_metadata-0/q", False),
        ("Encountered fatal fault: Error starting LogManager\n\tat a.B", False),
    ],
)
def test_a_fatal_fault_must_name_the_metadata_log_dir(tmp_path: Path, log: str, is_due_to_it: bool) -> None:
    path = tmp_path / "broker.log"
    path.write_text(f"[2026-11-23 10:00:00,000] ERROR {log}\n[2026-11-23 10:00:00,001] INFO in /m/1/ (a.B)\n")
    node = fake_node(exit_code=lambda: 1, expect_end=lambda: None)
    broker = fake_broker(node=node, log=BrokerLog(path), started_at=datetime(2026, 11, 23, tzinfo=UTC))
    with breaks_promise(None if is_due_to_it else "did not log"):
        check_ends(broker, exit_code=1, saying=fatal_fault_in(Path("/m/1")))


@pytest.mark.parametrize(
    ("other", "start", "same"),
    [
        (WHOLE, 0, True),
        ({"0.log": batch(0), "7.log": batch(7)}, 0, True),  # its segments begin elsewhere
        ({"7.log": batch(7)}, 7, True),  # the records before offset 7 were deleted
        ({"7.log": batch(7)}, 0, False),
        ({"0.log": batch(0)}, 0, False),  # the end is missing
        ({"0.log": batch(0) + batch(7, b"recards")}, 0, False),
        ({"0.log": batch(0) + batch(7) + batch(7)}, 0, False),
    ],
)
def test_replicas_are_the_same_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, bytes], start: int, same: bool
) -> None:
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    monkeypatch.setattr(on_disk, "check_replica_files", lambda *_: None)  # see test_replica_files.py
    leader, follower = tmp_path / "leader", tmp_path / "follower"
    for log_dir, files in ((leader, WHOLE), (follower, other)):
        write_log(log_dir, files)
        write_log(log_dir, WHOLE, partition=1)
    with nullcontext() if same else pytest.raises(PromiseBroken, match="the replicas of orders-0"):
        check_same_bytes(*orders_in(leader, follower, partitions=2).partitions, start=start)


def test_a_partition_that_comes_back_empty_is_seen(tmp_path: Path) -> None:
    write_log(tmp_path, {"0.log": batch(0)})
    before = leaders_logs(orders_in(tmp_path).partitions)
    assert [size for size, _ in before.values()] == [len(batch(0))]
    check_logs_unchanged(before)
    write_log(tmp_path, {"0.log": b""})
    with pytest.raises(PromiseBroken, match=r"to have the same logs as before.*orders-0"):
        check_logs_unchanged(before, timeout_s=0.01)


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        ({"00000000000000000000.log": b""}, nullcontext()),
        ({"00000000000000000000.log": batch(0)}, pytest.raises(PromiseBroken, match="has 15 bytes")),  # cut off
        ({"00000000000000000000.log": batch(0) + batch(7, b"recards")}, pytest.raises(PromiseBroken, match="30 bytes")),
        ({"00000000000000000007.log": b""}, pytest.raises(PromiseBroken, match="0 bytes in segments from offset 7 on")),
        ({}, pytest.raises(PromiseBroken, match="has no segment")),
    ],
)
def test_only_a_log_without_anything_of_before_is_the_emptied_one(
    tmp_path: Path, after: dict[str, bytes], outcome: AbstractContextManager[object]
) -> None:
    """A log that was truncated or damaged is not the known bug that empties the lone replica."""
    write_log(tmp_path, WHOLE)
    orders = orders_in(tmp_path)
    before = leaders_logs(orders.partitions)
    (tmp_path / "orders-0" / "0.log").unlink()
    write_log(tmp_path, after)
    cluster = fake_cluster("3.9.2", Mode.ZK)
    with outcome, promised(cluster, unless=LONE_FUTURE_REPLICA_EMPTIED, seen=emptied(orders[0])):
        check_logs_unchanged(before, timeout_s=0.01)
    assert deviation_kinds(cluster) == (["deviation.seen"] if after == {"00000000000000000000.log": b""} else [])


def test_where_no_broker_leads_there_is_nothing_to_be_kept(tmp_path: Path) -> None:
    write_log(tmp_path, {"0.log": batch(0)})
    with pytest.raises(NoAnswer, match="orders-0 has no leader"):
        leaders_logs(orders_in(tmp_path, leader=None).partitions)


@pytest.mark.parametrize(
    ("folder", "gone"),
    [
        ("refunds-0", False),
        ("refunds-10.0123456789abcdef-delete", False),
        ("refunds-0.0123456789abcdef-future", False),
        ("refunds-of-may-0", True),
    ],
)
def test_a_deleted_topic_that_stays_is_seen(tmp_path: Path, folder: str, gone: bool) -> None:
    (tmp_path / folder).mkdir()
    broker = fake_broker(describe_log_dirs=lambda: [log_dir_state(tmp_path)], log_dirs=[log_dir_at(tmp_path)])
    cluster = fake_cluster(live_brokers=lambda: [broker])
    with nullcontext() if gone else pytest.raises(PromiseBroken, match=folder):
        check_topic_gone(cluster, "refunds", timeout_s=0.01)


ALL_NAME_IT = {(file, 1): "accounts" for file in (*CHECKPOINTS, LOG_STARTS, CLEANED)}


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        (ALL_NAME_IT, None),
        ({(HIGH_WATERMARKS, 1): ""}, rf"{HIGH_WATERMARKS} in dir-1 of broker 1 names \[\] instead of \['accounts-0'\]"),
        (
            {(HIGH_WATERMARKS, 2): "accounts"},
            rf"{HIGH_WATERMARKS} in dir-2 of broker 1 names \['accounts-0'\] instead of \[\]",
        ),
        ({(LOG_STARTS, 1): ""}, rf"{LOG_STARTS} in dir-1 of broker 1 names \[\]"),
        ({(LOG_STARTS, 2): "accounts"}, rf"{LOG_STARTS} in dir-2 of broker 1 names \['accounts-0'\]"),
        ({(CLEANED, 1): ""}, rf"{CLEANED} in dir-1 of broker 1 names \[\]"),
        ({(CLEANED, 2): "accounts"}, rf"{CLEANED} in dir-2 of broker 1 names \['accounts-0'\]"),
        ({(CLEANED, 2): "elsewhere"}, None),
    ],
)
def test_a_checkpoint_file_that_names_what_is_in_another_log_dir_is_seen(
    tmp_path: Path, named: dict[tuple[str, int], str], seen: str | None
) -> None:
    """The replica accounts-0 is in the first of two log dirs. All four files name it there, but for ``named``."""
    log_dirs = []
    for number in (1, 2):
        folder = tmp_path / f"dir-{number}"
        folder.mkdir()
        for file in (*CHECKPOINTS, LOG_STARTS):
            (folder / file).write_text("0\n0\n")
        log_dirs.append(log_dir_at(folder))
    (tmp_path / "dir-1" / "accounts-0").mkdir()
    for (file, number), topic in (ALL_NAME_IT | named).items():
        (tmp_path / f"dir-{number}" / file).write_text(f"0\n1\n{topic} 0 7\n" if topic else "0\n0\n")
    cluster = fake_cluster(live_brokers=lambda: [fake_broker(log_dirs=log_dirs)])
    with breaks_promise(seen):
        check_checkpoints(cluster, ["accounts"], begin_midway=["accounts"], compacted=["accounts"], timeout_s=0.01)


def test_a_time_index_that_ends_in_zeros_was_not_closed(tmp_path: Path) -> None:
    """Folders of deleted replicas do not count."""
    entry = bytes(range(TIME_INDEX_ENTRY))
    broker = fake_broker(log_dirs=[log_dir_at(tmp_path)])
    for folder, room in (("accounts-0", 0), ("accounts-1.0f3b-delete", 1)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.timeindex").write_bytes(entry + bytes(room * TIME_INDEX_ENTRY))
    check_indexes_trimmed(broker)
    (tmp_path / "accounts-0" / "0.timeindex").write_bytes(entry + bytes(TIME_INDEX_ENTRY))
    with breaks_promise("time index that ends in zeros"):
        check_indexes_trimmed(broker)


def test_a_log_that_was_neither_cleaned_nor_cut_need_not_be_named_so(tmp_path: Path) -> None:
    for file in CHECKPOINTS:
        (tmp_path / file).write_text("0\n1\naccounts 0 7\n")
    (tmp_path / LOG_STARTS).write_text("0\n0\n")
    (tmp_path / "accounts-0").mkdir()
    broker = fake_broker(log_dirs=[log_dir_at(tmp_path)])
    check_checkpoints(fake_cluster(live_brokers=lambda: [broker]), ["accounts"], timeout_s=0.01)


@pytest.mark.parametrize(
    ("lag", "copying", "outcome"),
    [
        (2000, None, nullcontext()),
        (0, None, pytest.raises(Inconclusive, match="to be under way; last seen: 0")),
        (1936, 2000, nullcontext()),
        (2000, 2000, pytest.raises(Inconclusive, match="last seen: 2000")),  # no record has been copied
        (0, 2000, pytest.raises(Inconclusive, match="last seen: 0")),
    ],
)
def test_a_move_that_copies_is_behind_by_less_than_all(
    monkeypatch: pytest.MonkeyPatch, lag: int, copying: int | None, outcome: AbstractContextManager[object]
) -> None:
    monkeypatch.setattr(timeouts, "REQUEST_S", 0.01)
    future = replica_in_dir("orders", offset_lag=lag, is_future=True)
    log_dir: LogDir = log_dir_at(Path("/d"), fake_broker(find_replica=lambda *_, **__: (log_dir, future)))
    with outcome:
        check_under_way(orders_in()[0], log_dir, copying=copying)


NOT_BEGUN = "broker 1 to begin the move of orders-0 into d2 of broker 1, which it accepted"


@pytest.mark.parametrize(
    ("replica", "future", "outcome"),
    [
        (1, 2, nullcontext()),
        (2, None, nullcontext()),  # it is done already
        (1, None, pytest.raises(PromiseBroken, match=NOT_BEGUN)),
        (1, 3, pytest.raises(PromiseBroken, match="into d2 of broker 1")),
    ],
)
def test_an_order_that_was_taken_and_is_not_followed_is_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch, replica: int, future: int | None, outcome: AbstractContextManager[object]
) -> None:
    """A broker that accepts a move into a log dir must begin it."""
    monkeypatch.setattr(timeouts, "LOG_DIR_FAILURE_S", 0.01)

    def find_replica(*_: object, is_future: bool = False) -> tuple[LogDir, ReplicaInDir] | None:
        place = future if is_future else replica
        return None if place is None else (log_dirs[place], replica_in_dir("orders", is_future=is_future))

    broker = fake_broker(node=fake_node(check_alive=lambda: None), find_replica=find_replica)
    log_dirs = {number: log_dir_at(Path(f"/d{number}"), broker) for number in (1, 2, 3)}
    with outcome:
        await_begun(orders_in()[0], log_dirs[2])


def test_a_move_that_should_have_stopped_is_reported_with_its_threads_errors(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-01-01 00:00:00,000] INFO [ReplicaAlterLogDirsThread-1]: Stopped orders-0 (kafka.server.X)\n"
        "[2026-01-01 00:00:00,001] WARN [ReplicaManager broker=1] Stopping orders-0 (kafka.server.ReplicaManager)\n"
        "[2026-01-01 00:00:00,002] ERROR [ReplicaAlterLogDirsThread-1]: Error for partition beside-0 at offset 7\n"
    )
    assert tries_to_move(orders_in()[0], BrokerLog(log).lines()) == []
    with log.open("a") as file:
        file.write("[2026-01-01 00:00:01,000] ERROR [ReplicaAlterLogDirsThread-1]: Error for partition orders-0 at 7\n")
    assert len(tries_to_move(orders_in()[0], BrokerLog(log).lines())) == 1


GAVE_UP = "kafka-reassign ended with exit code 1: Timed out before log directory move could be started for: t-0-1"


@pytest.mark.parametrize(
    ("said", "too_early", "outcome"),
    [
        (GAVE_UP, 1, True),
        (None, 0, False),  # it ended too late to show anything of its time-out
        (None, 1, "1 times"),
        (None, 40, "40 times"),
        (GAVE_UP, 2, "2 times"),  # not at the first
        (GAVE_UP, 0, "0 times"),
        ("Failed to alter dir", 0, "its error is: Failed to alter dir"),
    ],
)
def test_an_impatient_tool_asks_once(said: str | None, too_early: int, outcome: bool | str) -> None:
    """With a time-out of 0, the tool gives up after the first time that the broker is not ready."""
    if isinstance(outcome, bool):
        assert check_gave_up(said, too_early) is outcome
    else:
        with pytest.raises(PromiseBroken, match=outcome):
            check_gave_up(said, too_early)


@pytest.mark.parametrize(
    ("folder", "log", "outcome"),
    [
        ("orders-0.1a-future", b"kept", nullcontext()),
        ("orders-0.1a-future", b"kept, and others", nullcontext()),
        ("orders-0", b"kept, and others", nullcontext()),
        ("orders-0.1a-future", b"kept, and cut off", pytest.raises(PromiseBroken, match="to be truncated")),
        ("orders-0", b"kept, and cut off, and others", pytest.raises(PromiseBroken, match="to be truncated")),
        ("beside-0", b"kept", pytest.raises(PromiseBroken, match="to be truncated")),  # of another partition
    ],
)
def test_a_future_replica_is_truncated_as_its_replica_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, log: bytes, outcome: AbstractContextManager[object]
) -> None:
    monkeypatch.setattr(timeouts, "RECOVERY_S", 0.01)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "0.log").write_bytes(log)
    with outcome:
        check_truncated(orders_in()[0], log_dir_at(tmp_path), b"kept, and cut off")


@pytest.mark.parametrize(
    ("leader", "isr", "outcome"),
    [
        (2, (2, 3), nullcontext()),
        (None, (1,), pytest.raises(Inconclusive, match="paused for too long")),
        (None, (1, 2), pytest.raises(PromiseBroken, match="not to lead orders-0 any more")),
        (1, (1, 2), pytest.raises(PromiseBroken, match="not to lead orders-0 any more")),
    ],
)
def test_who_was_alone_in_the_isr_has_nothing_to_cut_off(
    monkeypatch: pytest.MonkeyPatch, leader: int | None, isr: tuple[int, ...], outcome: AbstractContextManager[object]
) -> None:
    """If broker 1 dies as the last member of the ISR, no other broker leads, and the case shows nothing."""
    monkeypatch.setattr(timeouts, "BROKER_FAILURE_S", 0.01)
    partition = orders_in()[0]
    state = replace(partition_state("orders", 1, 2, 3), leader=leader, isr=isr)
    monkeypatch.setattr(partition, "describe", lambda: state)
    with outcome:
        check_led_by_another(partition, fake_broker(1))


OPEN = ProducerState(producer=7, epoch=0, last_sequence=199, last_timestamp=5, coordinator_epoch=-1, open_since=300)


@pytest.mark.parametrize(
    ("known", "outcome"),
    [
        ([OPEN, replace(OPEN, producer=8)], nullcontext()),
        ([OPEN], pytest.raises(PromiseBroken, match="and was")),  # the leader would take producer 8 for a new one
        ([OPEN, replace(OPEN, producer=8, last_sequence=198)], pytest.raises(PromiseBroken, match="and was")),
        ([OPEN, replace(OPEN, producer=8, open_since=None)], pytest.raises(PromiseBroken, match="and was")),
    ],
)
def test_what_a_log_knew_of_producers_it_must_know(
    known: list[ProducerState], outcome: AbstractContextManager[object]
) -> None:
    leader = fake_broker(admin=fake(Admin, describe_producers=lambda *_: known))
    with outcome:
        check_producers_known(
            fake(Partition, topic="ledger", index=0, leader=lambda: leader), [OPEN, replace(OPEN, producer=8)]
        )


@pytest.mark.parametrize(
    ("version", "mode", "transactions", "broken"),
    [
        ("3.9.2", Mode.ZK, [], False),  # it does not show in every run
        ("3.9.2", Mode.ZK, ["p0-t1"], False),
        ("3.9.2", Mode.ZK, ["p0-t1", "p0-t2"], True),  # there is one swap
        ("3.9.2", Mode.KRAFT, ["p0-t1"], False),
        ("4.4.0", Mode.KRAFT, [], False),
        ("4.4.0", Mode.KRAFT, ["p0-t1"], False),
        ("4.4.0", Mode.KRAFT, ["p0-t1", "p0-t2"], True),
        ("4.3.1", Mode.KRAFT, ["p0-t1"], True),
    ],
)
def test_only_a_known_build_may_refuse_one_transaction(
    version: str, mode: Mode, transactions: list[str], broken: bool
) -> None:
    refused = Refused(error="INVALID_TXN_STATE", records=50, transactions=frozenset(transactions), example="p0 #1")
    cluster = fake_cluster(version, mode)
    workload = fake(CaseWorkload, refused={refused.error: refused} if transactions else {})
    with breaks_promise("50 records were refused with INVALID_TXN_STATE" if broken else None):
        check_refused_once(cluster, workload)
    assert any(cluster.journal.of(DeviationEvent)) == (bool(transactions) and not broken)


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        ("the transactional producer commits failed: KafkaError{code=_FENCED,val=-144}", None),
        ("the transactional producer commits failed: KafkaError{code=INVALID_TXN_STATE}", "but not fenced"),
        (None, "was not fenced"),
    ],
)
def test_a_superseded_producer_must_be_fenced(error: str | None, broken: str | None) -> None:
    def attempt() -> None:
        if error:
            raise PromiseBroken(error)

    with breaks_promise(broken):
        check_fenced(fake_cluster(), attempt)
