"""What a clean stop leaves undone is found, and a start that does not follow the marks. The lines are of real runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.cluster.broker import WRITTEN_AT_STOP
from harness.events import Event, LogDirsLeft, from_json
from harness.kafka.stored_log import StoredLog
from harness.measure.clean_stops import incomplete_stops, stale_marks, wrong_recoveries
from suites.selftest.fakes import fake_broker, fake_node, log_dir_at

BEGAN = datetime(2026, 11, 28, 12, tzinfo=UTC)
HERE, THERE = "/d/broker-1-log-dir-1", "/d/broker-1-log-dir-2"
LOADED = "Loaded 2 logs in 12ms (kafka.log.LogManager)"
STOPS = "[ReplicaManager broker=1] Shutting down (kafka.server.ReplicaManager)"
TAKEN_OVER = (
    "[Partition orders-0 broker=1] Log loaded for partition orders-0 with initial high watermark 0 "
    "(kafka.cluster.Partition)"
)
LIFE = ((11, LOADED), (12, TAKEN_OVER), (20, STOPS))
OFFLINE = f"Stopping serving logs in dir {HERE} (kafka.log.LogManager)"
TRUNCATED = f"[UnifiedLog partition=orders-0, dir={HERE}] Truncating to offset 901 (kafka.log.UnifiedLog)"
DISTURBED = "There was an error in one of the threads during LogManager shutdown: null (kafka.log.LogManager)"
SKIPS = f"Skipping recovery of 2 logs from {HERE} since clean shutdown file was found (kafka.log.LogManager)"
SKIPS_28 = f"Skipping recovery for all logs in {HERE} since clean shutdown file was found (kafka.log.LogManager)"
RECOVERS = f"Recovering 2 logs from {HERE} since no clean shutdown file was found (kafka.log.LogManager)"
RECOVERS_28 = (
    f"Attempting recovery for all logs in {HERE} since no clean shutdown file was found (kafka.log.LogManager)"
)


def event(at_s: float, kind: str, **fields: object) -> Event:
    return from_json({"at": (BEGAN + timedelta(seconds=at_s)).isoformat(), "kind": kind, **fields})


def started(at_s: float = 10) -> Event:
    return event(at_s, "node.started", node="broker-1")


def left(
    *,
    code: int = 143,
    marked: Sequence[str] = (HERE, THERE),
    end: int = 900,
    point: int = 900,
    written_at_s: float = 20.1,
    old: str = "",
) -> Event:
    """What a stop after 21 seconds left; ``old`` is a checkpoint file of the first log dir from before the stop."""
    at = BEGAN.timestamp()
    written = {
        path: {file: at + (19.9 if (path, file) == (HERE, old) else written_at_s) for file in WRITTEN_AT_STOP}
        for path in (HERE, THERE)
    }
    points = {HERE: {"orders-0": [point, end]}, THERE: {}}
    return event(
        21, "log_dirs.left", broker=1, exit_code=code, marked_clean=marked, written=written, recovery_points=points
    )


def fault(at_s: float, kind: str, target: str, **more: object) -> Event:
    return event(at_s, f"fault.{kind}", fault="chmod_000", target=target, broker=1, **more)


def log_of(run_dir: Path, *lines: tuple[float, str]) -> Path:
    folder = run_dir / "brokers" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    stamped = [f"[{BEGAN + timedelta(seconds=at):%Y-%m-%d %H:%M:%S},000] INFO {line}\n" for at, line in lines]
    (folder / "broker.log").write_text("".join(stamped))
    return run_dir


def undone(run_dir: Path, *events: Event, lines: Sequence[tuple[float, str]] = LIFE) -> list[str]:
    return [str(each) for each in incomplete_stops(events, log_of(run_dir, *lines))]


def test_a_complete_stop_leaves_nothing_undone(tmp_path: Path) -> None:
    assert undone(tmp_path, started(), left()) == []


WRONG = [
    (left(marked=[THERE]), "did not mark broker-1-log-dir-1"),
    (left(point=899), "left orders-0 in broker-1-log-dir-1 with the recovery point 899, and its log ends at 900"),
    (left(point=901), "recovery point 901"),
    *((left(old=file), f"did not write {file} in broker-1-log-dir-1") for file in WRITTEN_AT_STOP),
]


@pytest.mark.parametrize(("what", "says"), WRONG)
def test_what_a_stop_leaves_undone_is_found(tmp_path: Path, what: Event, says: str) -> None:
    [said] = undone(tmp_path, started(), what)
    assert said.startswith("broker 1 stopped at 2026-11-28T12:00:21")
    assert says in said


@pytest.mark.parametrize(("what", "says"), WRONG)
def test_a_broker_of_an_earlier_case_counts(tmp_path: Path, what: Event, says: str) -> None:
    [said] = undone(tmp_path, what, lines=LIFE[1:])
    assert says in said


@pytest.mark.parametrize("what", [what for what, _ in WRONG])
def test_a_stop_that_may_be_incomplete_is_none(tmp_path: Path, what: Event) -> None:
    """The log dir or something in it is hit by a fault, it was offline, or the broker had trouble."""
    here = "broker-1-log-dir-1 of broker 1"
    assert undone(tmp_path, started(), what, lines=[*LIFE[:2], (13, OFFLINE), LIFE[2]]) == []
    assert undone(tmp_path, started(), what, lines=[*LIFE, (20.5, DISTURBED)]) == []
    assert undone(tmp_path, started(), what, lines=LIFE[1:]) == []
    assert undone(tmp_path, started(), what, lines=LIFE[:2]) == []
    for target in (here, f"orders-0 in {here}", "orders-0/00000000000000000000.index of broker 1"):
        assert undone(tmp_path, started(), fault(13, "injecting", target), what) == []
    assert undone(tmp_path, fault(9, "injecting", here), started(), what) == []
    assert undone(tmp_path, event(9, "fault.injecting", fault="f", target="x", broker=2, harms_logs=True), what) == []


@pytest.mark.parametrize("what", [what for what, _ in WRONG])
def test_other_faults_are_no_excuse(tmp_path: Path, what: Event) -> None:
    """They hit another log dir or broker, or the whole broker, or were undone before the start."""
    here, there = "broker-1-log-dir-1 of broker 1", "broker-1-log-dir-2 of broker 1"
    assert len(undone(tmp_path, started(), fault(13, "injecting", there), what)) == 1
    assert len(undone(tmp_path, started(), fault(13, "injecting", "broker 1"), what)) == 1
    assert len(undone(tmp_path, fault(5, "injecting", here), fault(6, "undone", here), started(), what)) == 1


@pytest.mark.parametrize("code", [-9, 137, 1])
def test_a_broker_that_was_killed_promises_nothing(tmp_path: Path, code: int) -> None:
    assert undone(tmp_path, started(), left(code=code, marked=[], point=0)) == []


def test_a_truncated_log_may_end_below_its_recovery_point(tmp_path: Path) -> None:
    """Compaction had removed the records just below the offset."""
    assert undone(tmp_path, started(), left(point=901), lines=[*LIFE[:2], (13, TRUNCATED), LIFE[2]]) == []


def test_high_watermarks_are_written_only_for_replicas_that_the_broker_knows(tmp_path: Path) -> None:
    unknown = (LIFE[0], LIFE[2])
    assert undone(tmp_path, started(), left(old="replication-offset-checkpoint"), lines=unknown) == []
    assert len(undone(tmp_path, started(), left(old="log-start-offset-checkpoint"), lines=unknown)) == 1


@pytest.mark.parametrize("skips", [SKIPS, SKIPS_28])
@pytest.mark.parametrize("recovers", [RECOVERS, RECOVERS_28])
def test_a_start_follows_the_mark(tmp_path: Path, skips: str, recovers: str) -> None:
    def wrong(line: str, *marked: str) -> list[str]:
        found = event(9, "replicas.found", broker=1, log_dirs={HERE: {}, THERE: {}}, marked_clean=marked)
        events = [found, started(), started(30)]
        return [
            str(each) for each in wrong_recoveries(events, log_of(tmp_path, (8, recovers), (11, line), (31, skips)))
        ]

    assert wrong(skips, HERE) == []
    assert wrong(recovers, THERE) == []
    [said] = wrong(skips, THERE)
    assert said.startswith(
        "broker 1 started, and broker-1-log-dir-1 did not have the mark of a clean shutdown: Skipping"
    )
    [said] = wrong(recovers, HERE)
    assert "had the mark" in said


def test_a_start_of_a_broker_that_runs_finds_no_marks(tmp_path: Path) -> None:
    """It does nothing; the next start has marks of its own."""
    runs = event(9, "replicas.found", broker=1, log_dirs={HERE: {}}, marked_clean=[])
    found = event(29, "replicas.found", broker=1, log_dirs={HERE: {}}, marked_clean=[HERE])
    assert wrong_recoveries([runs, found, started(30)], log_of(tmp_path, (31, SKIPS))) == []
    assert len(wrong_recoveries([runs, found, started(30)], log_of(tmp_path, (31, RECOVERS)))) == 1


@pytest.mark.parametrize(
    ("events", "lines", "what"),
    [
        ([started()], [(11, SKIPS), (12, LOADED)], 1),
        ([], [], 1),  # of an earlier case, and healthy
        ([started()], [(11, SKIPS)], 0),  # killed as it loaded its logs
        ([started()], [(12, LOADED)], 0),  # the log dir was bad
        ([started(), left()], [(11, SKIPS), (12, LOADED)], 0),
        ([started(), fault(15, "injecting", "broker-1-log-dir-1 of broker 1")], [(11, SKIPS), (12, LOADED)], 0),
    ],
)
def test_a_killed_broker_leaves_no_mark(
    tmp_path: Path, events: Sequence[Event], lines: Sequence[tuple[float, str]], what: int
) -> None:
    kill = event(25, "node.killed", node="broker-1")
    found = event(29, "replicas.found", broker=1, log_dirs={HERE: {}, THERE: {}}, marked_clean=[HERE])
    seen = stale_marks([*events, kill, found], log_of(tmp_path, *lines))
    says = "broker 1 was killed, and broker-1-log-dir-1 still had the mark of an earlier clean shutdown"
    assert [str(each) for each in seen] == [says] * what
    unmarked = event(29, "replicas.found", broker=1, log_dirs={HERE: {}, THERE: {}}, marked_clean=[])
    assert stale_marks([*events, kill, unmarked], tmp_path) == []


def test_a_log_dir_shows_its_mark_and_recovery_points(tmp_path: Path) -> None:
    """A future replica counts; one that is being deleted does not."""
    log_dir = log_dir_at(tmp_path)
    assert not log_dir.is_marked_clean()
    assert log_dir.recovery_points() == {}
    assert log_dir.written_at("log-start-offset-checkpoint") == 0
    future = "refunds-0.6120161e6a0f451c82f9574c544c21b8-future"
    for name in ("orders-0", future, "gone-0.5c830059b3154d2aa9cbdb035a550284-delete"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000007.log").touch()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n3\norders 0 5\nrefunds 0 7\ngone 0 1\n")
    (tmp_path / ".kafka_cleanshutdown").touch()
    assert log_dir.is_marked_clean()
    assert log_dir.recovery_points() == {"orders-0": (5, 7), "refunds-0": (7, 7)}
    assert log_dir.written_at("recovery-point-offset-checkpoint") > 0


@pytest.mark.parametrize("was_alive", [True, False])
def test_a_stop_notes_what_is_left(tmp_path: Path, was_alive: bool) -> None:
    """A broker that had ended before is left out: its log dirs may have changed since. So is what can't be read."""
    here, gone = tmp_path / "1", tmp_path / "2"
    (here / "orders-0").mkdir(parents=True)
    (here / "orders-0" / "00000000000000000007.log").touch()
    (here / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    (gone / "recovery-point-offset-checkpoint").mkdir(parents=True)
    node = fake_node(
        stop=lambda _: (here / ".kafka_cleanshutdown").touch(), is_alive=lambda: was_alive, exit_code=lambda: 143
    )
    broker = fake_broker(node=node, log_dirs=(log_dir_at(here), log_dir_at(gone)))
    broker.stop()
    noted = list(broker.journal.of(LogDirsLeft))
    assert len(noted) == was_alive
    for each in noted:
        assert (each.exit_code, each.marked_clean) == (143, (str(here),))
        assert each.recovery_points == {str(here): {"orders-0": (5, 7)}}
        assert each.written[str(here)]["recovery-point-offset-checkpoint"] > 0


def test_a_damaged_log_is_no_endless_one(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").write_bytes(b"\0" * 8 + b"\xff" * 60)
    with pytest.raises(ValueError, match="batch of -1 bytes"):
        StoredLog(tmp_path).ends()
