"""A cluster whose nodes run different builds, without Kafka: what each node is started with, and which build counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster.cluster import Cluster
from harness.cluster.nodes.backends import BACKENDS, SEVERAL_BUILDS
from harness.cluster.nodes.container import ContainerBackend
from harness.cluster.nodes.node import ClusterContext, Node, NodeSpec
from harness.cluster.nodes.process import ProcessBackend
from harness.cluster.spec import ClusterSpec
from harness.errors import EnvironmentLacks, UsageError
from harness.host.undo import UndoLog
from harness.journal import Journal
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.distribution import Distribution
from harness.kafka.versions import KafkaVersion, Mode, upgraded_from
from harness.runner.run import Run
from harness.runner.scenario import DeclaredCase, Scenario
from suites.selftest.fakes import fake, fake_node
from suites.selftest.journal_lines import lines_of


def build_of(version: str, *, log4j2: bool = True) -> Distribution:
    """A build with one jar, whose brokers have a main class of their own."""
    return fake(
        Distribution,
        version=KafkaVersion.parse(version),
        source="maven",
        origin=version,
        sha256=version * 4,
        class_path=(Path(f"/builds/{version}/kafka.jar"),),
        main_class=lambda _tool: f"kafka{version[0]}.Kafka",
        uses_log4j2=log4j2,
    )


OLD, NEW = build_of("3.9.2", log4j2=False), build_of("4.4.0")


@pytest.fixture
def context(open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterContext]:
    """Of a cluster that starts on the old build."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    monkeypatch.setenv("JBOD_CACHE_DIR", str(tmp_path / "cache"))
    context = ClusterContext(
        spec=ClusterSpec(mode=Mode.KRAFT),
        distribution=OLD,
        record_dir=tmp_path,
        journal=Journal(None),
        undo_log=UndoLog("selftest-upgrades"),
    )
    yield context
    context.undo_log.close()
    context.ports.release()


@pytest.fixture
def node(context: ClusterContext) -> Node:
    """A broker of that cluster."""
    return ProcessBackend(context).node(NodeSpec(name="broker-1", main_class="kafka3.Kafka", properties={}))


def archive_of(context: ClusterContext, build: Distribution) -> Path:
    """Where the archive of classes of a build is."""
    return ProcessBackend(context).runtime_of(build).classes(Mode.KRAFT)


def test_a_node_starts_with_another_build_and_all_that_belongs_to_it(context: ClusterContext, node: Node) -> None:
    archives = [archive_of(context, build) for build in (OLD, NEW)]
    for archive in archives:
        archive.parent.mkdir(parents=True)
        archive.touch()
    for build, archive, logging in zip((OLD, NEW), archives, ("log4j.configuration", "log4j2"), strict=True):
        if build is NEW:
            node.use_build(NEW)
        assert node.build == build
        command = node.prepare_start()  # type: ignore[attr-defined]
        assert str(build.class_path[0]) in command
        assert f"kafka{build.version.major}.Kafka" in command
        assert f"-XX:SharedArchiveFile={archive}" in command
        assert any(word.startswith(f"-D{logging}") for word in command)
    assert [(each["version"], each["node"]) for each in lines_of(context.journal, "node.build_changed")] == [
        ("4.4.0", "broker-1")
    ]


def test_jvm_options_of_the_context_replace_those_of_the_archive(context: ClusterContext, node: Node) -> None:
    archive = archive_of(context, OLD)
    archive.parent.mkdir(parents=True)
    archive.touch()
    context.jvm_options = ("-Xmine",)
    command = os.pathsep.join(node.prepare_start())  # type: ignore[attr-defined]
    assert "-Xmine" in command
    assert "SharedArchiveFile" not in command


def test_a_node_with_another_build_is_not_as_at_its_start(context: ClusterContext, node: Node) -> None:
    """So no other case gets its cluster."""
    node._should_run = True  # type: ignore[attr-defined]
    assert node.is_unchanged()
    node.use_build(NEW)
    assert not node.is_unchanged()


def test_containers_all_run_one_build() -> None:
    assert SEVERAL_BUILDS in [each.name for each in BACKENDS["docker"].lacks]
    with pytest.raises(EnvironmentLacks, match=r"none can change to 4\.4\.0"):
        fake(ContainerBackend).runtime_of(NEW)


def test_the_build_of_a_cluster_is_the_oldest_one_of_its_nodes() -> None:
    """ZooKeeper does not count."""
    builds = {"controller-100": NEW, "broker-1": OLD, "broker-2": NEW}
    nodes = [fake_node(name, build=build) for name, build in builds.items()]
    zookeeper = fake_node("zookeeper", build=build_of("2.8.2"))
    zookeeper.spec = NodeSpec(name="zookeeper", main_class="", properties={}, is_kafka=False)
    assert fake(Cluster, nodes=[zookeeper, *nodes]).distribution == OLD
    assert fake(Cluster, nodes=[zookeeper, nodes[0], nodes[2]]).distribution == NEW


@pytest.mark.parametrize(
    ("version", "mode", "earlier"),
    [
        ("2.8.2", Mode.ZK, None),
        ("3.9.2", Mode.ZK, "2.8.2"),
        ("3.8.1", Mode.KRAFT, None),
        ("3.9.2", Mode.KRAFT, "3.8.1"),
        ("4.0.2", Mode.KRAFT, "3.9.2"),
        ("4.2.2", Mode.KRAFT, "4.0.2"),
        ("4.3.1", Mode.KRAFT, "4.0.2"),
        ("4.4.0-rc1", Mode.KRAFT, "4.3.1"),
        ("4.4.1", Mode.KRAFT, "4.3.1"),
        ("5.0.0", Mode.KRAFT, "4.4.0"),
    ],
)
def test_a_build_is_upgraded_from_the_newest_release_of_an_earlier_line(
    version: str, mode: Mode, earlier: str | None
) -> None:
    found = upgraded_from(KafkaVersion.parse(version), mode)
    assert (found and str(found)) == earlier
    builds = Builds.choose(BuildOptions(kafka=version, mode=str(mode)))
    if earlier is None:
        with pytest.raises(UsageError, match="there is no release from which a cluster in mode"):
            builds.earlier(mode)


@pytest.mark.parametrize(
    ("kafka", "upgrades", "skipped"), [("2.8.2", True, True), ("2.8.2", False, False), ("3.9.2", True, False)]
)
def test_a_case_that_upgrades_is_skipped_without_an_earlier_release(kafka: str, upgrades: bool, skipped: bool) -> None:
    scenario = fake(Scenario, kip=112, upgrades=upgrades, builds=[KafkaVersion.parse(kafka)])
    run = fake(Run, builds=Builds.choose(BuildOptions(kafka=kafka, mode="zk")))
    why = run.unfit_build(fake(DeclaredCase, scenario=scenario, mode=Mode.ZK))
    assert bool(why) is skipped
    assert why is None or why == "no earlier release is listed from which a cluster is upgraded to Kafka 2.8.2"


def test_only_a_case_that_upgrades_its_cluster_has_an_earlier_build() -> None:
    builds = fake(Builds, of=lambda _mode: NEW, earlier=lambda _mode: OLD)
    run = fake(Run, builds=builds, spec=lambda _declared: ClusterSpec(mode=Mode.KRAFT))
    for upgrades, earlier in ((True, OLD), (False, None)):
        declared = fake(DeclaredCase, scenario=fake(Scenario, upgrades=upgrades), mode=Mode.KRAFT)
        assert run.earlier_build(declared) == earlier
        assert run.build_under_test(declared) == NEW
