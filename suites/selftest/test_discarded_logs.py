"""A restarted broker that throws a good log away is found; one that had a reason is not. The lines are of real runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from faults.file_system import Eio, PowerCut
from faults.log_dir import Chmod000
from faults.segment import ByteFlipped
from harness.cluster.broker import Broker
from harness.events import Event, ReplicasFound, from_json
from harness.measure.discarded_logs import discarded_logs
from suites.selftest.fakes import fake_broker, fake_node, log_dir_at

BEGAN = datetime(2026, 11, 28, 12, tzinfo=UTC)
HERE, THERE = "/d/broker-1-log-dir-1", "/d/broker-1-log-dir-2"
FOUND = {HERE: {"orders-0": 901, "orders-1": 0}, THERE: {"refunds-0": 5}}

NEW = f"{HERE}/orders-0.6120161e6a0f451c82f9574c544c21b8-future"
ASIDE = f"{HERE}/orders-0.5c830059b3154d2aa9cbdb035a550284"
TRUNCATED = f"[UnifiedLog partition=orders-0, dir={HERE}] Truncating to offset 801 (kafka.log.UnifiedLog)"
CREATED = f"Created log for partition orders-0 in {THERE}/orders-0 with properties {{}} (kafka.log.LogManager)"
STRAY_AT_START = f"Log in {HERE}/orders-0 marked stray and renamed to {ASIDE}-stray (kafka.log.LogManager)"
STRAY = f"Log for partition orders-0 is marked as stray and renamed to {ASIDE}-stray (kafka.log.LogManager)"
LOADED = (
    "[Partition orders-0 broker=1] Log loaded for partition orders-0 with initial high watermark 900 "
    "(kafka.cluster.Partition)"
)
ALL = (TRUNCATED, CREATED, STRAY_AT_START, STRAY, LOADED)

DELETED = (
    f"Log for partition orders-0 is renamed to {ASIDE}-delete and is scheduled for deletion (kafka.log.LogManager)"
)
MOVING = f"Created log for partition orders-0 in {NEW} with properties {{}} (kafka.log.LogManager)"
MOVED = "The current replica is successfully replaced with the future replica for orders-0 (kafka.log.LogManager)"
RECOVERED = "Successfully recovered abandoned future log for orders-0 (kafka.log.LogManager)"
OFFLINE = f"Stopping serving logs in dir {HERE} (kafka.log.LogManager)"
BAD_AT_START = f"Failed to create or validate data directory {HERE} (org.apache.kafka.LogDirFailureChannel)"


def event(at_s: float, kind: str, **fields: object) -> Event:
    return from_json({"at": (BEGAN + timedelta(seconds=at_s)).isoformat(), "kind": kind, **fields})


def started(at_s: float = 10, found: object = None) -> Event:
    return event(at_s, "replicas.found", broker=1, log_dirs=FOUND if found is None else found)


def found_in(run_dir: Path, events: Sequence[Event], *lines: tuple[float, str]) -> list[str]:
    """What is found in a run whose broker logged these lines, each so many seconds after the case began."""
    folder = run_dir / "brokers" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    stamped = [f"[{BEGAN + timedelta(seconds=at):%Y-%m-%d %H:%M:%S},000] INFO {line}\n" for at, line in lines]
    (folder / "broker.log").write_text("".join(stamped))
    return [str(each) for each in discarded_logs(events, run_dir)]


@pytest.mark.parametrize("line", ALL)
def test_a_good_log_that_was_thrown_away_is_found(tmp_path: Path, line: str) -> None:
    """The error has the broker, the log dir, and the line."""
    [said] = found_in(tmp_path, [started()], (11, line))
    assert said.startswith("broker 1 was restarted, and then ")
    assert "orders-0" in said
    assert Path(HERE).name in said
    assert said.endswith(line)


@pytest.mark.parametrize("line", ALL)
def test_before_a_restart_or_of_another_replica_it_is_none(tmp_path: Path, line: str) -> None:
    assert found_in(tmp_path, [started()], (9, line)) == []
    assert found_in(tmp_path, [started(found={HERE: {"orders-1": 7}})], (11, line)) == []
    assert found_in(tmp_path, [], (11, line)) == []


@pytest.mark.parametrize("line", ALL)
def test_each_restart_counts_for_itself(tmp_path: Path, line: str) -> None:
    """A later start found the replica no more, as after an operator replaced the disk."""
    gone = started(20, found={THERE: {"refunds-0": 5}})
    assert found_in(tmp_path, [started(), gone], (21, line)) == []
    assert len(found_in(tmp_path, [started(), gone], (19, line))) == 1


@pytest.mark.parametrize("to", [901, 902])
def test_a_replica_may_be_truncated_down_to_its_high_watermark(tmp_path: Path, to: int) -> None:
    assert found_in(tmp_path, [started()], (11, TRUNCATED.replace("801", str(to)))) == []


def test_only_the_first_high_watermark_after_a_start_counts(tmp_path: Path) -> None:
    """It may be the checkpointed one or a higher one; later lines are about future replicas and new ones."""
    for mark in (901, 902):
        first = LOADED.replace("900", str(mark))
        assert found_in(tmp_path, [started()], (11, first), (12, LOADED)) == []
    assert len(found_in(tmp_path, [started()], (11, LOADED), (12, LOADED))) == 1
    assert len(found_in(tmp_path, [started(), started(20)], (11, LOADED), (21, LOADED))) == 2


def test_a_future_replica_in_another_log_dir_may_be_truncated(tmp_path: Path) -> None:
    assert found_in(tmp_path, [started()], (11, TRUNCATED.replace(HERE, THERE))) == []


@pytest.mark.parametrize("line", ALL)
@pytest.mark.parametrize("reason", [DELETED, MOVING, MOVED, RECOVERED, OFFLINE, BAD_AT_START])
def test_what_happened_to_the_replica_since_the_start_is_a_reason(tmp_path: Path, line: str, reason: str) -> None:
    assert found_in(tmp_path, [started()], (11, reason), (12, line)) == []
    other = reason.replace("orders-0", "x-0").replace(HERE, "/d/other")
    assert len(found_in(tmp_path, [started()], (11, other), (12, line))) == 1


def deleted(topic: str) -> Event:
    return event(5, "topic.deleted", topic=topic)


def reassigned(topic: str) -> Event:
    return event(5, "reassignment.asked", partition=f"{topic}-0", replicas=[2, 3])


def reassigned_by_tool(topic: str) -> Event:
    return event(5, "reassignment.executing", placements=[f"{topic}-0 on broker 2, broker 3"], options=[])


@pytest.mark.parametrize("line", ALL)
@pytest.mark.parametrize("doing", [deleted, reassigned, reassigned_by_tool])
def test_what_the_case_deletes_or_reassigns_may_be_created_anew(
    tmp_path: Path, line: str, doing: Callable[[str], Event]
) -> None:
    """It may be a stray replica, too, and must not be truncated."""
    assert len(found_in(tmp_path, [doing("orders"), started()], (11, line))) == (line is TRUNCATED)
    assert len(found_in(tmp_path, [doing("order"), started()], (11, line))) == 1


@pytest.mark.parametrize("line", ALL)
def test_a_log_dir_that_failed_before_may_be_truncated(tmp_path: Path, line: str) -> None:
    """Its replicas must still not be created anew, nor taken for stray ones."""
    assert len(found_in(tmp_path, [started()], (9, OFFLINE), (11, line))) == (line not in (TRUNCATED, LOADED))


@pytest.mark.parametrize("line", ALL)
def test_after_an_unclean_election_replicas_may_be_truncated(tmp_path: Path, line: str) -> None:
    def led_by(leader: int) -> list[Event]:
        states = [(3, 3, [3]), (4, leader, [leader])]
        seen = [
            event(at, "partition.changed", topic="orders", partition=0, leader=led, isr=isr) for at, led, isr in states
        ]
        return [*seen, started()]

    assert len(found_in(tmp_path, led_by(2), (11, line))) == (line not in (TRUNCATED, LOADED))
    assert len(found_in(tmp_path, led_by(3), (11, line))) == 1


@pytest.mark.parametrize("line", ALL)
def test_after_a_fault_that_takes_records_replicas_may_be_truncated(tmp_path: Path, line: str) -> None:
    def fault(at_s: float, **harms: bool) -> Event:
        return event(at_s, "fault.injecting", fault="f", target="t", broker=2, **harms)

    assert len(found_in(tmp_path, [fault(5, harms_logs=True), started()], (11, line))) == (
        line not in (TRUNCATED, LOADED)
    )
    assert len(found_in(tmp_path, [fault(5), started(), fault(12, harms_logs=True)], (11, line))) == 1


def test_the_faults_that_take_records_say_so() -> None:
    assert Eio.harms_logs
    assert PowerCut.harms_logs
    assert ByteFlipped.harms_logs
    assert not Chmod000.harms_logs


def make_log_dir(path: Path, *, listed: bool = True) -> Path:
    """A log dir as brokers write it: three replicas, one without a topic id, and a future replica."""
    for name in ("orders-0", "orders-1", "new-0", "orders-2.6120161e6a0f451c82f9574c544c21b8-future"):
        (path / name).mkdir(parents=True)
        known = "" if name == "new-0" else "topic_id: hccKbXpBRoewfRRNcZuBCg\n"
        (path / name / "partition.metadata").write_text(f"version: 0\n{known}")
    if listed:
        (path / "replication-offset-checkpoint").write_text("0\n3\norders 0 901\nnew 0 7\norders 2 64\n")
    return path


def test_the_replicas_on_a_disk_have_the_high_watermarks_of_the_checkpoint(tmp_path: Path) -> None:
    log_dir = log_dir_at(make_log_dir(tmp_path / "1"))
    assert log_dir.replicas_on_disk() == {"orders-0": 901, "orders-1": 0}
    later = (log_dir.path / "replication-offset-checkpoint").stat().st_mtime + 1
    os.utime(log_dir.path / "orders-0" / "partition.metadata", (later, later))
    assert log_dir.replicas_on_disk() == {"orders-0": 0, "orders-1": 0}  # the line is about an earlier replica
    assert log_dir_at(make_log_dir(tmp_path / "2", listed=False)).replicas_on_disk() == {"orders-0": 0, "orders-1": 0}
    (tmp_path / "file").write_text("")
    for bad in ("none", "file"):
        assert log_dir_at(tmp_path / bad).replicas_on_disk() == {}


@pytest.mark.parametrize("end", [Broker.stop, Broker.kill])
def test_a_start_notes_the_high_watermarks_that_the_broker_had(tmp_path: Path, end: Callable[[Broker], None]) -> None:
    """A checkpoint that is lost at the end does not lower them; a replica that is gone is not noted."""
    here = log_dir_at(make_log_dir(tmp_path / "1"))
    other = log_dir_at(make_log_dir(tmp_path / "2"))

    def ends(*_timeout_s: float) -> None:
        (here.path / "replication-offset-checkpoint").unlink()
        (other.path / "orders-0" / "partition.metadata").unlink()

    node = fake_node(start=lambda: None, stop=ends, kill=ends, is_alive=lambda: True, exit_code=lambda: 143)
    broker = fake_broker(node=node, log_dirs=(here, other), _had={}, _killed_at=None, _registration_ttl_s=0)
    end(broker)
    broker.start()
    broker.start()
    first, second = broker.journal.of(ReplicasFound)
    assert first.log_dirs == {str(here.path): {"orders-0": 901, "orders-1": 0}, str(other.path): {"orders-1": 0}}
    assert second.log_dirs[str(here.path)] == {"orders-0": 0, "orders-1": 0}
    assert broker.started_at == second.at
