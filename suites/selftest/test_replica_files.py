"""What does not fit a log in its replica's folder is found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.kafka.broker_log import BrokerLog
from suites.replica_files import leader_epochs, wrong_files
from suites.selftest.fakes import fake_broker, fake_distribution, fake_node, log_dir_at

STAMP = "[2026-11-28 12:00:00,000] INFO "


def batch(base: int, epoch: int, count: int = 10) -> bytes:
    """The header of a batch without records."""
    rest = epoch.to_bytes(4, signed=True) + bytes(7) + (count - 1).to_bytes(4)
    return base.to_bytes(8) + len(rest).to_bytes(4) + rest


LOG = {100: batch(100, 3) + batch(110, 3), 120: batch(120, 5)}
FITS = [(3, 100), (5, 120)]


def wrong(
    folder: Path,
    epochs: Sequence[tuple[int, int]] | None = FITS,
    *,
    point: int | None = None,
    start: int | None = None,
    snapshots: Sequence[int] = (),
    log: Mapping[int, bytes] = LOG,
    line: str = "",
    every_ms: int = 60_000,
    build: str = "4.3.1",
    started: datetime = datetime(2026, 11, 28, 12, tzinfo=UTC),
) -> list[str]:
    """What is found wrong in a folder with these files and segments, by a broker that logged this line.

    :param every_ms: how often it deletes segments and cleans
    """
    replica = folder / "orders-0"
    replica.mkdir(exist_ok=True)
    for base, content in log.items():
        (replica / f"{base:020}.log").write_bytes(content)
    for offset in snapshots:
        (replica / f"{offset:020}.snapshot").touch()
    if epochs is not None:
        lines = ["0", str(len(epochs)), *(f"{epoch} {offset}" for epoch, offset in epochs)]
        (replica / "leader-epoch-checkpoint").write_text("\n".join(lines) + "\n")
    for file, listed in (
        ("recovery-point-offset-checkpoint", point),
        ("log-start-offset-checkpoint", start),
        ("cleaner-offset-checkpoint", 120 if "Cleaner" in line else None),
    ):
        (folder / file).unlink(missing_ok=True)
        if listed is not None:
            (folder / file).write_text(f"0\n1\norders 0 {listed}\n")
    broker_log = folder / "broker.log"
    broker_log.write_text(STAMP + line.format(dir=folder) + "\n")
    properties = {name: str(every_ms) for name in ("log.retention.check.interval.ms", "log.cleaner.backoff.ms")}
    node, distribution = fake_node(properties=properties), fake_distribution(build)
    broker = fake_broker(log=BrokerLog(broker_log), started_at=started, node=node, build=distribution)
    return list(wrong_files(log_dir_at(folder, broker), ["orders-0"]))


def test_files_that_fit_are_right(tmp_path: Path) -> None:
    """A leader has an entry at the end of its log until its first write; a log may start inside a segment."""
    assert wrong(tmp_path) == []
    assert wrong(tmp_path, [*FITS, (6, 130)], point=130) == []
    assert wrong(tmp_path, [(3, 105), (5, 120)], start=105) == []
    assert wrong(tmp_path, []) == []
    assert wrong(tmp_path, [(3, 105), (5, 120)]) == []
    assert leader_epochs(tmp_path / "orders-0") == [(3, 105), (5, 120)]
    assert leader_epochs(tmp_path) == []


@pytest.mark.parametrize(
    ("epochs", "says"),
    [
        ([(3, 100), (5, 120), (6, 131)], "its log ends at 130"),
        ([(3, 100), (4, 120), (5, 120)], "do not rise"),
        ([(3, 100), (6, 110), (5, 120)], "do not rise"),
        ([(3, 100)], "the batch at offset 120 is of epoch 5"),
        ([(2, 100), (5, 120)], "the batch at offset 100 is of epoch 3"),
        ([(3, 100), (5, 121)], "the batch at offset 120 is of epoch 5"),
    ],
)
def test_leader_epochs_that_do_not_fit_are_found(tmp_path: Path, epochs: list[tuple[int, int]], says: str) -> None:
    assert says in wrong(tmp_path, epochs)[0]


ADVANCED = [
    "[UnifiedLog partition=orders-0, dir={dir}] Incremented log start offset to 100 due to segment deletion (a.B)",
    "[ReplicaFetcher replicaId=3, leaderId=2, fetcherId=0] Truncate fully and reset fetch offset for partition "
    "orders-0 from 50 to the current leader's start offset 100 because the local replica's end offset is smaller (a.B)",
]


@pytest.mark.parametrize("line", ADVANCED)
def test_an_entry_below_the_log_start_is_found_if_the_broker_advanced_it(tmp_path: Path, line: str) -> None:
    """Older entries may be left by a crash, or by the swap of a future replica."""
    older = [(2, 40), *FITS]
    [said] = wrong(tmp_path, older, line=line)
    assert said.endswith("and its log was made to start at 100")
    assert wrong(tmp_path, older) == []
    assert wrong(tmp_path, older, line=line.replace("orders", "refunds")) == []
    assert wrong(tmp_path, older, line=line.replace("100", "40")) == []
    assert wrong(tmp_path, line=line.replace("100", "90")) == []
    moved = "The current replica is successfully replaced with the future replica for orders-0 (a.B)"
    assert wrong(tmp_path, older, line=f"{line}\n{STAMP}{moved}") == []


def test_a_recovery_point_above_the_end_is_found(tmp_path: Path) -> None:
    """The log was truncated inside a gap that compaction had left, or should have been truncated to its end."""
    assert wrong(tmp_path, point=131) == [
        f"orders-0 in {tmp_path.name} of broker 1 has the recovery point 131, and its log ends at 130"
    ]
    truncated = "[UnifiedLog partition=orders-0, dir={dir}] Truncating to offset 131 (kafka.log.UnifiedLog)"
    assert wrong(tmp_path, point=131, line=truncated) == []
    assert len(wrong(tmp_path, point=132, line=truncated)) == 1
    assert wrong(tmp_path, point=131, started=datetime.now(UTC) + timedelta(minutes=1)) == []


DELETED = [
    "[UnifiedLog partition=orders-0, dir={dir}] Deleting segment LogSegment(baseOffset=50, size=9) due to log size",
    "[Log partition=orders-0, dir={dir}] Deleting segments due to log start offset 60 breach: "
    "LogSegment(baseOffset=40, size=9),LogSegment(baseOffset=50, size=9)",
]


@pytest.mark.parametrize("line", DELETED)
def test_the_producer_snapshot_of_a_deleted_segment_is_found(tmp_path: Path, line: str) -> None:
    """Others may stay: those of clean stops are at no segment's base offset."""
    [said] = wrong(tmp_path, snapshots=[50, 100, 130], line=line)
    assert said.endswith("has the producer snapshot 50 of a segment that is deleted")
    (tmp_path / "orders-0" / f"{50:020}.snapshot").unlink()
    assert wrong(tmp_path, snapshots=[51, 100], line=line) == []
    assert wrong(tmp_path, snapshots=[51, 50], line=line.replace("due to", "as part of")) == []


SWAPPED = (
    "Cleaner 0: Swapping in cleaned segment LogSegment(baseOffset=100, size=9) for segment(s) "
    "[LogSegment(baseOffset=100, size=9), LogSegment(baseOffset=120, size=9)] in log "
    "Log(dir={dir}/orders-0, topicId=cc, topic=orders, partition=0) (org.apache.kafka.storage.internals.log.Cleaner)"
)


def test_a_segment_that_the_cleaner_replaced_is_found(tmp_path: Path) -> None:
    """It is not, if the cleaner of an earlier start replaced it, or that of another log of the same name."""
    assert wrong(tmp_path, line=SWAPPED) == [
        f"orders-0 in {tmp_path.name} of broker 1 has the segment 120, which the cleaner has replaced"
    ]
    assert wrong(tmp_path, line=SWAPPED.replace("orders-0", "refunds-0")) == []
    assert wrong(tmp_path, line=SWAPPED, started=datetime(2026, 11, 28, 13, tzinfo=UTC)) == []
    (tmp_path / "orders-0" / "partition.metadata").touch()
    assert wrong(tmp_path, line=SWAPPED) == []


def test_the_producer_snapshot_of_a_replaced_segment_is_found(tmp_path: Path) -> None:
    """That of a clean stop at the log's end may stay."""
    line = SWAPPED.replace("120", "110")
    [said] = wrong(tmp_path, snapshots=[110, 120, 130], line=line)
    assert said.endswith("has the producer snapshot 110 of a segment that is deleted")
    (tmp_path / "orders-0" / f"{110:020}.snapshot").unlink()
    assert wrong(tmp_path, snapshots=[130], line=SWAPPED.replace("120", "130")) == []


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ({100: batch(100, 3), 105: batch(110, 3)}, None),
        ({100: batch(100, 3) + batch(110, 3), 115: batch(115, 3)}, "the offset 115 in .* after 119 in "),
        ({100: batch(100, 3) + batch(100, 3)}, "the offset 100 in .* after 109 in "),
        ({100: batch(110, 3) + batch(100, 3)}, "the offset 100 in .* after 119 in "),
    ],
)
def test_offsets_that_do_not_rise_are_found(tmp_path: Path, log: Mapping[int, bytes], says: str | None) -> None:
    """A segment may begin with an offset above its base, and the log may have gaps."""
    found = wrong(tmp_path, [(3, 100)], log=log)
    assert len(found) == (says is not None)
    assert says is None or re.search(says, found[0])


@pytest.mark.parametrize("index", ["index", "timeindex", "txnindex"])
def test_an_index_without_its_segment_is_found(tmp_path: Path, index: str) -> None:
    wrong(tmp_path)
    (tmp_path / "orders-0" / f"{100:020}.{index}").touch()
    assert wrong(tmp_path) == []
    (tmp_path / "orders-0" / f"{50:020}.{index}").touch()
    assert wrong(tmp_path) == [
        f"orders-0 in {tmp_path.name} of broker 1 has 00000000000000000050.{index} without its segment"
    ]


def test_a_segment_below_the_log_start_is_found_where_segments_are_deleted_often(tmp_path: Path) -> None:
    """The last segment stays, and so does one with a record at or above the log start."""
    left = "has the segment 100, though its log starts at 120 and the next segment is 120"
    [found] = wrong(tmp_path, [(5, 120)], start=120, every_ms=200)
    assert left in found
    assert wrong(tmp_path, [(3, 119), (5, 120)], start=119, every_ms=200) == []
    assert wrong(tmp_path, [(5, 120)], start=120) == []
    assert wrong(tmp_path, [(5, 120)], start=120, every_ms=200, build="3.7.2") == []
