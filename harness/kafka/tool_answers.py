"""Runs Kafka's command-line tools and returns their output, which operators read, as data.

Only this module, and :mod:`harness.cluster.reassign` for kafka-reassign-partitions, knows that output. It is the output
of 2.0 to 4.4, read by key and not by column, since releases add columns (``TopicId`` in 2.8, ``Elr`` in 3.8). The tools
run in a shared JVM (:mod:`harness.kafka.tools_jvm`), about 10 ms a call. A tool that fails raises a HarnessError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.kafka.distribution import Distribution
from harness.kafka.metadata import LogDirState, QuorumReplica, QuorumState, ReplicaInDir
from harness.kafka.metadata_records import MetadataRecord, dump_records, read_metadata_log
from harness.kafka.security import Bootstrap
from harness.kafka.tools_jvm import tool_lines
from harness.kafka.versions import Tool

Key = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, kw_only=True)
class DescribedPartition:
    """A partition as ``kafka-topics --describe`` prints it, or as ZooKeeper has it.

    :ivar offline: the offline replicas; None where the tool doesn't print them, as in all releases so far
    :ivar eligible: the eligible leader replicas (KIP-966); the tool prints them since 3.8, or N/A if brokers give none
    """

    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] | None = None
    eligible: tuple[int, ...] = ()


def describe_topics(distribution: Distribution, bootstrap: Bootstrap, *only: str) -> dict[Key, DescribedPartition]:
    """Run ``kafka-topics --describe``; the partitions that it prints.

    :param only: ``--under-replicated-partitions`` or another option that selects partitions by their state
    """
    arguments = (*bootstrap.of_tool(Tool.TOPICS), "--describe", *only)
    return read_topics(tool_lines(distribution, Tool.TOPICS, *arguments))


def read_topics(lines: Iterable[str]) -> dict[Key, DescribedPartition]:
    r"""The partitions in lines such as ``Topic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2``; skips others."""
    found = {}
    for line in lines:
        fields = dict(re.findall(r"(\w+): ?([^\t\n]*)", line))
        if "Partition" in fields:
            leader = fields["Leader"]
            found[fields["Topic"], int(fields["Partition"])] = DescribedPartition(
                leader=None if leader in ("none", "-1") else int(leader),
                replicas=_ids(fields["Replicas"]),
                isr=_ids(fields["Isr"]),
                eligible=_ids(fields.get("Elr", "").removeprefix("N/A")),
                offline=next((_ids(ids) for name, ids in fields.items() if name.startswith("Offline")), None),
            )
    return found


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.strip().split(","))))


def elect_preferred_leader(distribution: Distribution, bootstrap: Bootstrap, topic: str, partition: int) -> list[str]:
    """Run ``kafka-leader-election --election-type preferred`` for a partition; the lines that it prints.

    :raises ToolFailed: the leader could not be elected
    """
    which = ("--election-type", "preferred", "--topic", topic, "--partition", str(partition))
    return tool_lines(distribution, Tool.LEADER_ELECTION, *bootstrap.of_tool(Tool.LEADER_ELECTION), *which)


def describe_log_dirs(
    distribution: Distribution, bootstrap: Bootstrap, brokers: Collection[int], *only: str
) -> dict[int, tuple[LogDirState, ...]]:
    """Run ``kafka-log-dirs --describe`` for these brokers; their log dirs by broker.

    :param only: ``--topic-list`` and comma-separated topics
    """
    arguments = (*bootstrap.of_tool(Tool.LOG_DIRS), "--describe", "--broker-list", ",".join(map(str, brokers)), *only)
    return read_log_dirs(tool_lines(distribution, Tool.LOG_DIRS, *arguments))


def read_log_dirs(lines: Iterable[str]) -> dict[int, tuple[LogDirState, ...]]:
    """The log dirs in the one line of JSON, by broker; errors have the names of Kafka's protocol."""
    answer = json.loads(next(line for line in lines if line.startswith("{")))
    return {
        broker["broker"]: tuple(
            LogDirState(
                path=log_dir["logDir"],
                error=_error_name(log_dir["error"]),
                replicas=tuple(
                    ReplicaInDir(
                        topic=each["partition"].rpartition("-")[0],
                        partition=int(each["partition"].rpartition("-")[2]),
                        size=each["size"],
                        offset_lag=each["offsetLag"],
                        is_future=each["isFuture"],
                    )
                    for each in log_dir["partitions"]
                ),
                # KIP-1066 names no key for it, and no release so far prints one.
                is_cordoned=next((bool(value) for key, value in log_dir.items() if "cordoned" in key.lower()), None),
            )
            for log_dir in broker["logDirs"]
        )
        for broker in answer["brokers"]
    }


def _error_name(exception: str | None) -> str | None:
    """KAFKA_STORAGE_ERROR for ``org.apache.kafka.common.errors.KafkaStorageException``."""
    if exception is None:
        return None
    words = exception.rpartition(".")[2].removesuffix("Exception")
    return f"{re.sub(r'(?<!^)(?=[A-Z])', '_', words).upper()}_ERROR"


def describe_quorum(distribution: Distribution, bootstrap: Bootstrap) -> QuorumState:
    """Run ``kafka-metadata-quorum describe --replication``; needs a build with KIP-853, which prints directory ids."""
    arguments = (*bootstrap.of_tool(Tool.METADATA_QUORUM), "describe", "--replication")
    return read_quorum(tool_lines(distribution, Tool.METADATA_QUORUM, *arguments))


def read_quorum(lines: Iterable[str]) -> QuorumState:
    """The rows of the table with the columns NodeId, DirectoryId and Status."""
    titles, *rows = [line.split() for line in lines if line.strip()]
    found = [dict(zip(titles, row, strict=True)) for row in rows]
    members = [(QuorumReplica(id=int(row["NodeId"]), directory_id=row["DirectoryId"]), row["Status"]) for row in found]
    return QuorumState(
        leader=next((replica.id for replica, status in members if status == "Leader"), None),
        voters=frozenset(replica for replica, status in members if status != "Observer"),
        observers=frozenset(replica for replica, status in members if status == "Observer"),
    )


def describe_broker_configs(distribution: Distribution, bootstrap: Bootstrap) -> dict[int, dict[str, str]]:
    """Run ``kafka-configs --describe --all`` for the brokers; the configs in force, static and dynamic, by broker."""
    arguments = (*bootstrap.of_tool(Tool.CONFIGS), "--describe", "--all", "--entity-type", "brokers")
    return read_broker_configs(tool_lines(distribution, Tool.CONFIGS, *arguments))


def read_broker_configs(lines: Iterable[str]) -> dict[int, dict[str, str]]:
    """The ``name=value sensitive=false synonyms={…}`` below ``All configs for broker 1 are:``, by broker."""
    found: dict[int, dict[str, str]] = {}
    for line in lines:
        if title := re.match(r"\w+ configs for broker (\d+) are:", line):
            found[int(title[1])] = {}
        elif found and (setting := re.match(r"\s+([^=\s]+)=(.*) sensitive=\w+ synonyms=", line)):
            [*_, configs] = found.values()
            configs[setting[1]] = setting[2]
    return found


def describe_dynamic_configs(distribution: Distribution, bootstrap: Bootstrap, broker: int) -> list[str]:
    """Run ``kafka-configs --describe`` for one broker; returns the printed lines without spaces at their ends."""
    target = ("--entity-type", "brokers", "--entity-name", str(broker))
    lines = tool_lines(distribution, Tool.CONFIGS, *bootstrap.of_tool(Tool.CONFIGS), "--describe", *target)
    return [line.strip() for line in lines]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature of a KRaft cluster, as ``kafka-features describe`` shows it.

    :ivar supported: the highest level that all nodes support
    :ivar finalized: the level that is in force
    """

    supported: str
    finalized: str


def describe_features(distribution: Distribution, bootstrap: Bootstrap) -> dict[str, Feature]:
    """Run ``kafka-features describe``; the features by name, such as metadata.version."""
    return read_features(tool_lines(distribution, Tool.FEATURES, *bootstrap.of_tool(Tool.FEATURES), "describe"))


def read_features(lines: Iterable[str]) -> dict[str, Feature]:
    """The lines ``Feature: NAME SupportedMinVersion: … SupportedMaxVersion: … FinalizedVersionLevel: …``."""
    found = {}
    for line in lines:
        if row := re.match(r"Feature: (\S+)\s.*SupportedMaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)", line):
            found[row[1]] = Feature(supported=row[2], finalized=row[3])
    return found


def document_configs(distribution: Distribution) -> dict[str, dict[str, str]]:
    """The documentation of broker configs that the build generates: by name, such as its "Type" and "Importance"."""
    return read_config_docs(tool_lines(distribution, Tool.CONFIG_DOCS))


def read_config_docs(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """The rows such as ``<tr><th>Type:</th><td>list</td></tr>`` below ``<h4><a id="log.dirs">``, by config."""
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if title := re.match(r'<h4><a id="([^"]+)">', line):
            found[title[1]] = {}
        elif found and (row := re.match(r"<tr><th>([^<]+):</th><td>(.*)</td></tr>", line)):
            [*_, rows] = found.values()
            rows[row[1]] = row[2]
    return found


@dataclass(frozen=True, kw_only=True)
class Directories:
    """What KRaft's metadata log has about brokers and their log dirs, which have a ``directory.id`` (KIP-858).

    :ivar epochs: each registered broker's epochs, one for each process, oldest first
    :ivar racks: each registered broker's rack (KIP-36), None if it has none
    :ivar online: each registered broker's online log dirs
    :ivar cordoned: each registered broker's cordoned log dirs (KIP-1066)
    :ivar registered_as_cordoned: the cordoned log dirs in the record of each broker's registration, before any
        heartbeat; None if the record has no such field
    :ivar assigned: for each partition, the log dir of its replica on each broker
    :ivar hinted: for each partition, the log dirs in its first record, where the controller has placed it
    :ivar versions: the versions of the records of registrations, and of changes of cordons, by their type
    """

    epochs: Mapping[int, tuple[int, ...]]
    racks: Mapping[int, str | None]
    online: Mapping[int, frozenset[str]]
    cordoned: Mapping[int, frozenset[str]]
    registered_as_cordoned: Mapping[int, frozenset[str] | None]
    assigned: Mapping[Key, Mapping[int, str]]
    hinted: Mapping[Key, Mapping[int, str]]
    versions: Mapping[str, frozenset[int]]


UNASSIGNED = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The directory of a replica for which no log dir is chosen (``DirectoryId.UNASSIGNED``)."""


MIGRATING = "A" * 22
"""The directory of a replica that came from ZooKeeper, and that its broker has not reported (``DirectoryId``)."""


def dump_directories(distribution: Distribution, metadata_log: Path) -> Directories:
    """Read a metadata log, and a snapshot if it has no offset 0."""
    return read_directories(read_metadata_log(distribution, metadata_log))


def dump_snapshot(distribution: Distribution, snapshot: Path) -> Directories:
    """Read a snapshot of the metadata."""
    return read_directories(dump_records(distribution, snapshot))


def read_directories(records: Iterable[MetadataRecord]) -> Directories:
    """The state after all records; one of a change has only the fields that change."""
    names: dict[str, str] = {}
    epochs: dict[int, tuple[int, ...]] = {}
    racks: dict[int, str | None] = {}
    online: dict[int, frozenset[str]] = {}
    cordoned: dict[int, frozenset[str]] = {}
    registered: dict[int, frozenset[str] | None] = {}
    replicas: dict[tuple[str, int], list[int]] = {}
    dirs: dict[tuple[str, int], list[str]] = {}
    hinted: dict[tuple[str, int], dict[int, str]] = {}
    versions: dict[str, frozenset[int]] = {}
    for record in records:
        kind, data = record.kind, record.data
        if kind == "TOPIC_RECORD":
            names[data["topicId"]] = data["name"]
        elif kind == "REMOVE_TOPIC_RECORD":
            names.pop(data["topicId"])
        elif kind in ("REGISTER_BROKER_RECORD", "BROKER_REGISTRATION_CHANGE_RECORD"):
            broker, shut = data["brokerId"], data.get("cordonedLogDirs")
            if data.get("logDirs") is not None:
                online[broker] = frozenset(data["logDirs"])
            if kind == "REGISTER_BROKER_RECORD" or shut is not None:
                versions[kind] = versions.get(kind, frozenset()) | {record.version}
            if kind == "REGISTER_BROKER_RECORD":
                epochs[broker] = tuple(dict.fromkeys((*epochs.get(broker, ()), data["brokerEpoch"])))
                racks[broker] = data["rack"]
                registered[broker] = None if shut is None else frozenset(shut)
                cordoned[broker] = frozenset(shut or ())
            elif shut is not None:
                cordoned[broker] = frozenset(shut)
        elif kind in ("PARTITION_RECORD", "PARTITION_CHANGE_RECORD"):
            key = (data["topicId"], data["partitionId"])
            replicas[key] = data.get("replicas") or replicas[key]
            # A partition that came from ZooKeeper has no log dirs until its brokers report them.
            dirs[key] = data.get("directories") or dirs.get(key) or [MIGRATING] * len(replicas[key])
            hinted.setdefault(key, dict(zip(replicas[key], dirs[key], strict=True)))
    assigned = {
        (names[topic], partition): dict(zip(brokers, dirs[topic, partition], strict=True))
        for (topic, partition), brokers in replicas.items()
        if topic in names
    }
    return Directories(
        epochs=epochs,
        racks=racks,
        online=online,
        cordoned=cordoned,
        registered_as_cordoned=registered,
        assigned=assigned,
        hinted={(names[topic], index): dirs for (topic, index), dirs in hinted.items() if topic in names},
        versions=versions,
    )
