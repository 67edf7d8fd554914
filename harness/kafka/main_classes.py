"""Finds classes in a Kafka build's jars: the main class of each tool, and Kafka's exit hook.

Classes move from release to release, so the build is asked. Its ``bin/*.sh`` name the main classes; Maven's artifacts
have no scripts, so the jars are searched for the simple name. Where a release has two (3.6 to 3.9), its scripts start
the one in ``org.apache.kafka``.
"""

from __future__ import annotations

import functools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BuildLacks
from harness.kafka.versions import Tool

_SCRIPTS: Mapping[Tool, str] = {
    Tool.BROKER: "kafka-server-start.sh",
    Tool.ZOOKEEPER: "zookeeper-server-start.sh",
    Tool.REASSIGN: "kafka-reassign-partitions.sh",
    Tool.PRODUCER_PERF: "kafka-producer-perf-test.sh",
}
"""Scripts that are not called ``kafka-TOOL.sh``."""
_CLASSES: Mapping[Tool, str] = {
    Tool.BROKER: "Kafka",
    Tool.ZOOKEEPER: "QuorumPeerMain",
    Tool.STORAGE: "StorageTool",
    Tool.CONFIGS: "ConfigCommand",
    Tool.FEATURES: "FeatureCommand",
    Tool.CLUSTER: "ClusterTool",
    Tool.METADATA_QUORUM: "MetadataQuorumCommand",
    Tool.TOPICS: "TopicCommand",
    Tool.REASSIGN: "ReassignPartitionsCommand",
    Tool.LOG_DIRS: "LogDirsCommand",
    Tool.LEADER_ELECTION: "LeaderElectionCommand",
    Tool.DUMP_LOG: "DumpLogSegments",
    Tool.VERIFIABLE_PRODUCER: "VerifiableProducer",
    Tool.VERIFIABLE_CONSUMER: "VerifiableConsumer",
    Tool.PRODUCER_PERF: "ProducerPerformance",
    Tool.CONFIG_DOCS: "KafkaConfig",
}
_RUN_CLASS = re.compile(r"kafka-run-class\.sh\s+(?:(?:-\S+|\$\w+)\s+)*([A-Za-z][\w.]*\.\w+)")
_TO_LOOK_IN = re.compile(r"(kafka|zookeeper)[^/]*\.jar$")


def main_class(class_path: tuple[Path, ...], scripts: Path | None, tool: Tool) -> str:
    """The main class of a tool of this build.

    :param scripts: the build's ``bin`` folder; None if it has none
    :raises BuildLacks: the build has no such tool
    """
    named = _named_by_script(scripts / _SCRIPTS.get(tool, f"kafka-{tool}.sh")) if scripts else None
    found = _by_name(class_path).get(_CLASSES[tool], ())
    if named is not None and named in found:
        return named
    if not found:
        raise BuildLacks(f"has no {tool} tool: its jars have no class {_CLASSES[tool]}")
    return found[0]


def exit_hook(class_path: tuple[Path, ...]) -> str | None:
    """The class through which Kafka's tools exit; its exit procedure can be replaced. None if the build has none.

    Up to 4.3 it is ``org.apache.kafka.common.utils.Exit``.
    """
    hooks = _by_name(class_path).get("Exit$Procedure", ())
    return hooks[0].removesuffix("$Procedure") if hooks else None


def _named_by_script(script: Path) -> str | None:
    try:
        match = _RUN_CLASS.search(script.read_text(errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


@functools.lru_cache(maxsize=32)
def _by_name(class_path: tuple[Path, ...]) -> Mapping[str, tuple[str, ...]]:
    """The full names of the classes that this module looks for, by simple name; those in ``org.apache`` first."""
    wanted = {*_CLASSES.values(), "Exit$Procedure"}
    found: dict[str, list[str]] = {}
    for jar in class_path:
        if not _TO_LOOK_IN.match(jar.name):
            continue
        with zipfile.ZipFile(jar) as opened:
            for entry in opened.namelist():
                name = entry.rpartition("/")[2].removesuffix(".class")
                if name in wanted and entry.endswith(".class"):
                    found.setdefault(name, []).append(entry.removesuffix(".class").replace("/", "."))
    return {name: tuple(sorted(of, key=lambda each: not each.startswith("org.apache."))) for name, of in found.items()}
