"""The main classes of a build's tools are found from its scripts and jars, also where they have moved."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from harness.errors import BuildLacks
from harness.host.cache import cache_dir
from harness.kafka.distribution import from_maven
from harness.kafka.main_classes import exit_hook, main_class
from harness.kafka.versions import DEFAULT_BUILDS, KafkaVersion, Mode, Tool

FORMERLY = {
    "2.8.2": {
        Tool.LOG_DIRS: "kafka.admin.LogDirsCommand",
        Tool.TOPICS: "kafka.admin.TopicCommand",
        Tool.FEATURES: "kafka.admin.FeatureCommand",
        Tool.STORAGE: "kafka.tools.StorageTool",
    },
    "3.9.2": {
        Tool.LOG_DIRS: "org.apache.kafka.tools.LogDirsCommand",
        Tool.FEATURES: "org.apache.kafka.tools.FeatureCommand",
        Tool.CONFIGS: "kafka.admin.ConfigCommand",
        Tool.DUMP_LOG: "kafka.tools.DumpLogSegments",
        Tool.REASSIGN: "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    },
    "4.4.0": {
        Tool.CONFIGS: "org.apache.kafka.tools.ConfigCommand",
        Tool.DUMP_LOG: "org.apache.kafka.tools.DumpLogSegments",
    },
}
"""The main classes in these releases' ``bin/*.sh``."""


def jar(folder: Path, name: str, *classes: str) -> Path:
    """A jar with these classes, which are empty."""
    with zipfile.ZipFile(folder / name, "w") as made:
        for each in classes:
            made.writestr(f"{each.replace('.', '/')}.class", b"")
    return folder / name


@pytest.mark.parametrize("version", FORMERLY)
def test_a_release_from_maven_names_its_own(version: str) -> None:
    build = from_maven(KafkaVersion.parse(version), cache_dir())
    assert {tool: build.main_class(tool) for tool in FORMERLY[version]} == FORMERLY[version]


@pytest.mark.parametrize("mode", Mode)
def test_the_default_builds_have_all_tools(mode: Mode) -> None:
    build = from_maven(DEFAULT_BUILDS[mode], cache_dir())
    for tool in Tool:
        if tool is Tool.ZOOKEEPER and mode is Mode.KRAFT:
            with pytest.raises(BuildLacks, match=rf"Kafka {build.version} has no zookeeper tool: .* QuorumPeerMain"):
                build.main_class(tool)
        else:
            assert build.main_class(tool)


def test_a_class_that_has_moved_is_found(tmp_path: Path) -> None:
    """A class is found in a package that no release has."""
    jars = (jar(tmp_path, "kafka-admin-9.0.0.jar", "org.apache.kafka.admin.cli.TopicCommand"),)
    assert main_class(jars, None, Tool.TOPICS) == "org.apache.kafka.admin.cli.TopicCommand"


def test_of_two_the_one_that_the_script_starts_is_taken(tmp_path: Path) -> None:
    old, new = "kafka.admin.ConfigCommand", "org.apache.kafka.tools.ConfigCommand"
    jars = (jar(tmp_path, "kafka_2.13-9.0.0.jar", old), jar(tmp_path, "kafka-tools-9.0.0.jar", new))
    assert main_class(jars, None, Tool.CONFIGS) == new
    script = tmp_path / "kafka-configs.sh"
    script.write_text(f'exec $(dirname $0)/kafka-run-class.sh $EXTRA_ARGS -loggc {old} "$@"\n')
    assert main_class(jars, tmp_path, Tool.CONFIGS) == old
    script.write_text('exec $(dirname $0)/kafka-run-class.sh not.There "$@"\n')
    assert main_class(jars, tmp_path, Tool.CONFIGS) == new


def test_a_class_of_that_name_elsewhere_is_none_of_kafka(tmp_path: Path) -> None:
    jars = (jar(tmp_path, "log4j-core-2.25.4.jar", "org.apache.logging.Kafka"),)
    with pytest.raises(BuildLacks, match="has no broker tool: its jars have no class Kafka"):
        main_class(jars, None, Tool.BROKER)


def test_the_exit_hook_is_found_where_it_is(tmp_path: Path) -> None:
    assert exit_hook((jar(tmp_path, "kafka-clients-9.0.0.jar", "a.b.Exit$Procedure", "a.b.Exit"),)) == "a.b.Exit"
    assert exit_hook((jar(tmp_path, "kafka-clients-9.1.0.jar", "a.b.Exit"),)) is None
    for version, package in (("4.3.1", "utils"), ("4.4.0", "utils.internals")):
        build = from_maven(KafkaVersion.parse(version), cache_dir())
        assert exit_hook(build.class_path) == f"org.apache.kafka.common.{package}.Exit"
