"""The plugin of tiered storage works beside the builds, and the checks of tiered topics find what they look for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka.record import MemoryRecordsBuilder

from harness.cluster.broker import Broker
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.host.cache import cache_dir
from harness.kafka.admin import Admin
from harness.kafka.distribution import from_maven
from harness.kafka.java_client import plugin_methods
from harness.kafka.tiered_storage import PLUGIN_CLASS, local_tiered_storage, remote_files, tiered_settings
from harness.kafka.versions import DEFAULT_BUILDS, Mode
from suites.selftest.fakes import cluster_state, fake, fake_broker, fake_cluster, log_dir_at, partition_state
from suites.tiered import remote
from suites.tiered.remote import gap_in

SUFFIXES = ("log", "index", "timeindex", "snapshot", "leader_epoch_checkpoint")


@pytest.mark.parametrize("mode", Mode)
def test_the_plugin_works_beside_the_default_builds(mode: Mode, tmp_path: Path) -> None:
    jar = local_tiered_storage(cache_dir())
    methods = plugin_methods(from_maven(DEFAULT_BUILDS[mode], cache_dir()), jar, PLUGIN_CLASS, tmp_path)
    assert all(methods.values())
    assert any("copyLogSegmentData" in each for each in methods)
    assert [folder.name for folder in tmp_path.iterdir()] == ["kafka-tiered-storage"]


def test_a_broker_gets_the_paths() -> None:
    settings = tiered_settings(Path("/p.jar"), Path("/remote"), "INTERNAL", {"sasl.mechanism": "PLAIN"})
    assert settings["remote.log.storage.manager.class.path"] == "/p.jar"
    assert settings["remote.log.metadata.manager.listener.name"] == "INTERNAL"
    assert settings["rsm.config.dir"] == "/remote"
    assert settings["rlmm.config.remote.log.metadata.common.client.sasl.mechanism"] == "PLAIN"
    assert settings["remote.log.storage.system.enable"] == "true"


def batch(base: int, count: int) -> bytes:
    """A batch of records from this offset on."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 16)
    for _ in range(count):
        builder.append(timestamp=None, key=None, value=b"x")
    builder.close()
    return base.to_bytes(8) + bytes(builder.buffer())[8:]


def segments(storage: Path, *extents: tuple[int, int], without: str = "") -> Sequence[Path]:
    """Remote segments of ``t-0`` with records from the first offset of each extent to before the second.

    :param without: the suffix of a file that each lacks
    """
    folder = storage / "kafka-tiered-storage" / f"t-0-{'i' * 22}"
    folder.mkdir(parents=True)
    for number, (base, end) in enumerate(extents):
        for suffix in SUFFIXES:
            if suffix != without:
                data = batch(base, end - base) if suffix == "log" else b""
                (folder / f"{base:020}-{str(number) * 22}.{suffix}").write_bytes(data)
    return remote_files(storage, "t", 0)


@pytest.mark.parametrize(
    ("extents", "end", "gap"),
    [
        ([(0, 5), (5, 9)], 9, None),
        ([(0, 5), (0, 5), (3, 9)], 9, None),
        ([(0, 5), (6, 9)], 9, "goes on at 6, and the segments before end at 5"),
        ([(1, 9)], 9, "goes on at 1, and the segments before end at 0"),
        ([(0, 5)], 9, "they end at 5, and Kafka says 9"),
        ([], 9, "they end at 0, and Kafka says 9"),
    ],
)
def test_a_gap_is_found(tmp_path: Path, extents: list[tuple[int, int]], end: int, gap: str | None) -> None:
    found = gap_in(segments(tmp_path, *extents), end)
    assert (found is None) if gap is None else (gap in (found or ""))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_file_is_found(tmp_path: Path, suffix: str) -> None:
    assert f"lacks .{suffix}" in (gap_in(segments(tmp_path, (0, 5), without=suffix), 5) or "")


def test_other_partitions_are_left_out(tmp_path: Path) -> None:
    segments(tmp_path, (0, 5))
    assert remote_files(tmp_path, "t", 1) == []
    assert remote_files(tmp_path, "other-t", 0) == []


def tiered_partition(folder: Path, *, local_start: int, tiered: int | None) -> tuple[Partition, Broker]:
    """A partition with an end offset of 10 on one broker, and the broker.

    :param local_start: the base offset of the only segment on its disk
    :param tiered: the last offset in remote storage
    """
    log_dir = log_dir_at(folder)
    replica = log_dir.replica_dir("t", 0)
    replica.mkdir()
    (replica / f"{local_start:020}.log").touch()
    admin = fake(Admin, end_offset=lambda *_: 10, tiered_offset=lambda *_: tiered)
    broker = fake_broker(1, admin=admin, log_dir_of=lambda *_: log_dir)
    state = cluster_state(partition_state("t", 1), brokers=(1,))
    cluster = fake_cluster(
        describe=lambda *_: state, broker=lambda _: broker, live_brokers=lambda: [broker], check_nodes=lambda: None
    )
    return Partition(cluster, "t", 0), broker


@pytest.mark.parametrize(
    ("local_start", "tiered", "differs"),
    [
        (10, 9, None),
        (10, 8, r"\['broker 1 has tiered 8'\]"),
        (10, None, r"\['broker 1 has tiered None'\]"),
        (9, 9, r"\['the local log on broker 1 starts at 9'\]"),
    ],
)
def test_records_that_stay_local_are_found(
    tmp_path: Path, local_start: int, tiered: int | None, differs: str | None
) -> None:

    partition, _ = tiered_partition(tmp_path, local_start=local_start, tiered=tiered)
    if differs is None:
        assert remote.check_tiers_on(partition, timeout_s=0.01) == 10
    else:
        with pytest.raises(PromiseBroken, match=differs):
            remote.check_tiers_on(partition, timeout_s=0.01)


def test_a_copy_of_what_is_only_remote_is_found(tmp_path: Path) -> None:
    partition, broker = tiered_partition(tmp_path, local_start=7, tiered=9)
    remote.check_not_copied(partition, 7, on=broker)
    with pytest.raises(PromiseBroken, match="from 7 on, and those before 8 are only remote"):
        remote.check_not_copied(partition, 8, on=broker)
