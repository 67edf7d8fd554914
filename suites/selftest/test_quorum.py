"""The controllers' settings, and the format of the folders of a dynamic quorum."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from faults.log_dir import Chmod000
from faults.segment import SnapshotByteFlipped
from harness.cluster.log_dir import MetadataDir
from harness.cluster.nodes.node import Endpoint
from harness.cluster.nodes.process import ProcessBackend
from harness.cluster.quorum.dynamic import DynamicQuorum
from harness.cluster.quorum.format_template import FormatTemplate
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.spec import ClusterSpec
from harness.host.cache import cache_dir
from harness.host.undo import UndoLog
from harness.kafka import metadata_records, tool_answers
from harness.kafka.distribution import Distribution, from_maven
from harness.kafka.metadata import QuorumReplica
from harness.kafka.tool_answers import read_quorum
from harness.kafka.versions import KafkaVersion, Mode
from suites.selftest.fakes import fake, fake_broker, fake_distribution, fake_node


def dynamic_quorum(work_dir: Path, distribution: Distribution | None = None) -> DynamicQuorum:
    """Three controllers at 127.0.0.1:1."""
    return DynamicQuorum(
        spec=ClusterSpec(mode=Mode.KRAFT, controllers=3, dynamic_quorum=True),
        work_dir=work_dir,
        backend=fake(ProcessBackend, endpoint=lambda *_: Endpoint(address="127.0.0.1:1", port=1)),
        template=FormatTemplate(path=work_dir),
        main_class="kafka.Kafka",
        undo_log=fake(UndoLog),
        distribution=distribution or fake_distribution(),
    )


@pytest.mark.parametrize("controllers", [1, 3])
def test_controllers_get_the_settings_that_they_read(tmp_path: Path, controllers: int) -> None:
    """Without them the controller moves leaders 5 min after the start, and never elects an unclean leader.

    What ``--set`` has is theirs, too.
    """
    asked = {"unclean.leader.election.enable": "true", "log.dir.failure.timeout.ms": "1000"}
    spec = ClusterSpec(mode=Mode.KRAFT, controllers=controllers, overrides=asked, given={"num.io.threads": "3"})
    quorum = KRaftQuorum(
        spec=spec,
        work_dir=tmp_path,
        backend=fake(ProcessBackend, endpoint=lambda *_: Endpoint(address="127.0.0.1:1", port=1)),
        template=FormatTemplate(path=tmp_path),
        main_class="kafka.Kafka",
        undo_log=fake(UndoLog),
    )
    for node in quorum.node_specs():
        settings = {
            name: node.properties.get(name) for name in ("auto.leader.rebalance.enable", "num.io.threads", *asked)
        }
        assert settings == {
            "auto.leader.rebalance.enable": "false",
            "num.io.threads": "3",
            "unclean.leader.election.enable": "true",
            "log.dir.failure.timeout.ms": None,
        }


def test_a_dynamic_quorum_has_no_voters_in_any_setting(tmp_path: Path) -> None:
    """The metadata log alone has them."""
    quorum = dynamic_quorum(tmp_path)
    broker = quorum.broker_settings(1, {"listeners": "PLAINTEXT://127.0.0.1:1"})
    for properties in (broker, *(node.properties for node in quorum.node_specs())):
        assert properties["controller.quorum.bootstrap.servers"] == "127.0.0.1:1,127.0.0.1:1,127.0.0.1:1"
        assert "controller.quorum.voters" not in properties


def test_a_controller_that_is_added_has_the_next_id_and_a_folder_of_its_own(tmp_path: Path) -> None:
    quorum = dynamic_quorum(tmp_path)
    added = quorum.new_controller()
    assert (added.name, added.properties["node.id"]) == ("controller-103", "103")
    assert added.properties["log.dirs"] not in {node.properties["log.dirs"] for node in quorum.node_specs()[:3]}
    assert quorum.new_controller().name == "controller-104"


@pytest.mark.parametrize("version", ["3.9.2", "4.4.0"])
def test_each_voter_knows_all_voters_and_an_observer_knows_none(version: str, tmp_path: Path) -> None:
    quorum = dynamic_quorum(tmp_path, from_maven(KafkaVersion.parse(version), cache_dir()))
    for dir in quorum.dirs():
        dir.mkdir()
    quorum.format({})
    ids = [base64.urlsafe_b64decode(directory_id(dir) + "==") for dir in quorum.dirs()]
    assert len(set(ids)) == 3
    for dir in quorum.dirs():
        assert [id in first_snapshot(dir) for id in ids] == [True, True, True]
    added = quorum.new_controller()
    dir = Path(added.properties["log.dirs"])
    dir.mkdir()
    quorum.format_observer(added)
    assert base64.urlsafe_b64decode(directory_id(dir) + "==") not in ids
    assert [id in first_snapshot(dir) for id in ids] == [False, False, False]


def directory_id(dir: Path) -> str:
    lines = (dir / "meta.properties").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("directory.id="))


def first_snapshot(dir: Path) -> bytes:
    """The snapshot that the tool writes; empty if it writes none."""
    return b"".join(file.read_bytes() for file in (dir / "__cluster_metadata-0").glob("*.checkpoint"))


def test_files_that_the_tool_makes_get_the_owner_of_the_folder(tmp_path: Path) -> None:
    """Controllers run as another user than a root harness."""
    if os.getuid() != 0:
        pytest.skip("only root may give files away")
    quorum = dynamic_quorum(tmp_path, from_maven(KafkaVersion.parse("4.4.0"), cache_dir()))
    added = quorum.new_controller()
    dir = Path(added.properties["log.dirs"])
    dir.mkdir()
    os.chown(dir, 12345, 12345)
    quorum.format_observer(added)
    assert {file.stat().st_uid for file in dir.rglob("*")} == {12345}


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": Mode.ZK, "dynamic_quorum": True},
        {"mode": Mode.KRAFT, "combined": True, "dynamic_quorum": True},
        {"mode": Mode.KRAFT, "controller_volumes": True},
        {"mode": Mode.KRAFT, "combined": True, "volumes": "tmpfs", "controller_volumes": True},
    ],
)
def test_only_dedicated_controllers_can_be_added_or_have_volumes(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="only dedicated controllers"):
        ClusterSpec(**settings)  # type: ignore[arg-type]


def test_controllers_have_their_metadata_on_volumes_if_the_spec_says_so(tmp_path: Path) -> None:
    quorum = KRaftQuorum(
        spec=ClusterSpec(mode=Mode.KRAFT, controllers=3, volumes="tmpfs", controller_volumes=True),
        work_dir=tmp_path,
        backend=fake(ProcessBackend, endpoint=lambda *_: Endpoint(address="127.0.0.1:1", port=1)),
        template=FormatTemplate(path=tmp_path),
        main_class="kafka.Kafka",
        undo_log=fake(UndoLog),
    )
    assert [dir.parent for dir in quorum.dirs()] == [volume.path for volume in quorum.volumes()]
    node = fake_node("controller-101", {"node.id": "101", "log.dirs": str(quorum.dirs()[1])})
    dir = quorum.metadata_dir(node, fake_broker())
    assert (dir.path, dir.volume) == (quorum.dirs()[1], quorum.volumes()[1])


def test_a_fault_of_a_controllers_disk_is_the_controllers(tmp_path: Path) -> None:
    """Its log lines are explained on that node only, and it is no fault of the broker that is asked for the proof."""
    controller = fake_node("controller-100")
    fault = Chmod000(
        MetadataDir(fake_broker(id=3, node=fake_node("broker-3")), controller, tmp_path / "metadata", None)
    )
    assert (fault.node, fault.target) == ("controller-100", "metadata of controller-100")


def test_the_newest_snapshot_is_damaged_where_it_has_the_text(tmp_path: Path) -> None:
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    for name in ("00000000000000000009-0000000001", "00000000000000000010-0000000002"):
        (folder / f"{name}.checkpoint").write_bytes(b"head orders orders")
    disk = MetadataDir(fake_broker(), fake_node("controller-101"), tmp_path, None)
    flip = SnapshotByteFlipped(disk, text=b"orders")
    assert flip.target == "00000000000000000010-0000000002.checkpoint of controller-101"
    assert (flip.node, flip.find(b"head orders orders"), flip.find(b"nothing")) == ("controller-101", [5], [])


def test_the_table_of_the_tool_is_read_by_its_titles() -> None:
    first, second, third = "gB8w0g8aTZSAVSVyAjDMjg", "4cqvVgWZQLqaGqBVBTpVyA", "Ab3hVgWZQLqaGqBVBTpVyA"
    lines = [
        "NodeId\tDirectoryId           \tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus  \t\n",
        f"101   \t{first}\t120         \t0  \t1764454660000     \t1764454660000        \tLeader  \t\n",
        f"100   \t{second}\t120         \t0  \t1764454659900     \t1764454659900        \tFollower\t\n",
        f"1     \t{third}\t120         \t0  \t1764454659900     \t1764454659900        \tObserver\t\n",
    ]
    seen = read_quorum(lines)
    assert seen.leader == 101
    assert seen.voters == {QuorumReplica(id=101, directory_id=first), QuorumReplica(id=100, directory_id=second)}
    assert seen.observers == {QuorumReplica(id=1, directory_id=third)}


@pytest.mark.parametrize(
    ("first", "read"),
    [
        (0, ["00000000000000000000.log", "00000000000000000009.log"]),
        (5, ["00000000000000000007-0000000001.checkpoint", "00000000000000000005.log", "00000000000000000009.log"]),
    ],
)
def test_a_metadata_log_without_its_beginning_is_read_with_a_snapshot(
    first: int, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that fetched a snapshot has no records before it."""
    for name in (f"{first:020d}.log", f"{9:020d}.log", f"{3:020d}-0000000001.checkpoint"):
        (tmp_path / name).touch()
    for offset in (7, 9):
        (tmp_path / f"{offset:020d}-0000000001.checkpoint").touch()
    asked: list[str] = []

    def tool_lines(*arguments: str) -> list[str]:
        asked.append(arguments[-1])
        return []

    monkeypatch.setattr(metadata_records, "tool_lines", tool_lines)
    tool_answers.dump_directories(fake_distribution(), tmp_path)
    assert [Path(file).name for file in asked[0].split(",")] == read
