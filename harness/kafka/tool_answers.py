"""What Kafka's own command-line programs say, as data: the same words that an operator reads.

The only module that knows their output, but for kafka-reassign-partitions (:mod:`harness.cluster.reassign`). Texts are
those of 2.0 to 4.3, read by key and not by column, since builds add columns (``TopicId`` 2.8, ``Elr`` 3.8). They are
asked in a JVM that stays (:mod:`harness.kafka.tools_jvm`), a question for some 10 ms; what changes something is run as
an operator runs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.kafka.distribution import Distribution
from harness.kafka.metadata import LogDirState, ReplicaInDir
from harness.kafka.tools_jvm import tool_lines
from harness.kafka.versions import Tool

Key = tuple[str, int]
"""Topic and partition."""


# --- kafka-topics -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DescribedPartition:
    """A partition as ``kafka-topics --describe`` prints it, and ZooKeeper has it.

    :ivar offline: the offline replicas; None where there is no word for them, as in all releases so far
    """

    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] | None = None


def describe_topics(distribution: Distribution, bootstrap: str, *only: str) -> dict[Key, DescribedPartition]:
    """``kafka-topics --describe``.

    :param only: ``--under-replicated-partitions`` or ``--unavailable-partitions``
    :raises HarnessError: the tool failed
    """
    arguments = ("--bootstrap-server", bootstrap, "--describe", *only)
    return read_topics(tool_lines(distribution, Tool.TOPICS, *arguments))


def read_topics(lines: Iterable[str]) -> dict[Key, DescribedPartition]:
    r"""The partitions in ``Topic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2``, and no other lines."""
    found = {}
    for line in lines:
        fields = dict(re.findall(r"(\w+): ?([^\t\n]*)", line))
        if "Partition" in fields:
            leader = fields["Leader"]
            found[fields["Topic"], int(fields["Partition"])] = DescribedPartition(
                leader=None if leader in ("none", "-1") else int(leader),
                replicas=_ids(fields["Replicas"]),
                isr=_ids(fields["Isr"]),
                offline=next((_ids(ids) for name, ids in fields.items() if name.startswith("Offline")), None),
            )
    return found


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.strip().split(","))))


# --- kafka-log-dirs ---------------------------------------------------------------------------------------------------


def describe_log_dirs(
    distribution: Distribution, bootstrap: str, brokers: Collection[int], *only: str
) -> dict[int, tuple[LogDirState, ...]]:
    """``kafka-log-dirs --describe`` of these brokers.

    :param only: ``--topic-list`` and topics with commas between them
    :raises HarnessError: the tool failed
    """
    arguments = ("--bootstrap-server", bootstrap, "--describe", "--broker-list", ",".join(map(str, brokers)), *only)
    return read_log_dirs(tool_lines(distribution, Tool.LOG_DIRS, *arguments))


def read_log_dirs(lines: Iterable[str]) -> dict[int, tuple[LogDirState, ...]]:
    """The log dirs in the one line of JSON among its lines; errors in Kafka's names, as its protocol has them."""
    answer = json.loads(next(line for line in lines if line.startswith("{")))
    return {
        broker["broker"]: tuple(
            LogDirState(
                path=log_dir["logDir"],
                error=_error_name(log_dir["error"]),
                replicas=tuple(_replica(partition) for partition in log_dir["partitions"]),
                # KIP-1066 doesn't say how it is to be called, and no release so far prints it.
                is_cordoned=next((bool(value) for key, value in log_dir.items() if "cordoned" in key.lower()), None),
            )
            for log_dir in broker["logDirs"]
        )
        for broker in answer["brokers"]
    }


def _replica(partition: Mapping[str, Any]) -> ReplicaInDir:
    topic, _, index = partition["partition"].rpartition("-")
    return ReplicaInDir(
        topic=topic,
        partition=int(index),
        size=partition["size"],
        offset_lag=partition["offsetLag"],
        is_future=partition["isFuture"],
    )


def _error_name(exception: str | None) -> str | None:
    """KAFKA_STORAGE_ERROR for ``org.apache.kafka.common.errors.KafkaStorageException``."""
    if exception is None:
        return None
    words = exception.rpartition(".")[2].removesuffix("Exception")
    return f"{re.sub(r'(?<!^)(?=[A-Z])', '_', words).upper()}_ERROR"


# --- kafka-configs ----------------------------------------------------------------------------------------------------


def describe_broker_configs(distribution: Distribution, bootstrap: str) -> dict[int, dict[str, str]]:
    """``kafka-configs --describe --all`` of the brokers: what each is run with, be it static or dynamic.

    :raises HarnessError: the tool failed
    """
    arguments = ("--bootstrap-server", bootstrap, "--describe", "--all", "--entity-type", "brokers")
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


# --- kafka-dump-log of the metadata log -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Directories:
    """What KRaft's metadata log says of brokers, and of log dirs by their ``directory.id`` (KIP-858).

    :ivar racks: of each registered broker, its rack (KIP-36), None where it has none
    :ivar online: of each registered broker, the log dirs that it says are online
    :ivar cordoned: of each registered broker, those that it says are cordoned (KIP-1066)
    :ivar registered_as_cordoned: those that were so in the very record of its registration, before any heartbeat; None
        where that says nothing of it
    :ivar assigned: of each partition, each replica's log dir, by broker
    """

    racks: Mapping[int, str | None]
    online: Mapping[int, frozenset[str]]
    cordoned: Mapping[int, frozenset[str]]
    registered_as_cordoned: Mapping[int, frozenset[str] | None]
    assigned: Mapping[Key, Mapping[int, str]]


def dump_directories(distribution: Distribution, metadata_log: Path) -> Directories:
    """``kafka-dump-log --cluster-metadata-decoder`` of a metadata log that begins at offset 0.

    :raises HarnessError: the tool failed
    """
    return _dump(distribution, sorted(metadata_log.glob("*.log")))


def dump_snapshot(distribution: Distribution, snapshot: Path) -> Directories:
    """``kafka-dump-log --cluster-metadata-decoder`` of a snapshot of the metadata.

    :raises HarnessError: the tool failed
    """
    return _dump(distribution, [snapshot])


def _dump(distribution: Distribution, files: Iterable[Path]) -> Directories:
    arguments = ("--cluster-metadata-decoder", "--files", ",".join(map(str, files)))
    return read_directories(tool_lines(distribution, Tool.DUMP_LOG, *arguments))


def read_directories(lines: Iterable[str]) -> Directories:
    """The state after all records of a dump, in which a record that changes something has only what changes."""
    names: dict[str, str] = {}
    racks: dict[int, str | None] = {}
    online: dict[int, frozenset[str]] = {}
    cordoned: dict[int, frozenset[str]] = {}
    registered: dict[int, frozenset[str] | None] = {}
    replicas: dict[tuple[str, int], list[int]] = {}
    dirs: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        _, found, payload = line.partition(" payload: ")
        if not found:
            continue
        record = json.loads(payload)
        kind, data = record["type"], record["data"]
        if kind == "TOPIC_RECORD":
            names[data["topicId"]] = data["name"]
        elif kind == "REMOVE_TOPIC_RECORD":
            names.pop(data["topicId"])
        elif kind in ("REGISTER_BROKER_RECORD", "BROKER_REGISTRATION_CHANGE_RECORD"):
            broker, said = data["brokerId"], data.get("cordonedLogDirs")
            if data.get("logDirs") is not None:
                online[broker] = frozenset(data["logDirs"])
            if kind == "REGISTER_BROKER_RECORD":
                racks[broker] = data["rack"]
                registered[broker] = None if said is None else frozenset(said)
                cordoned[broker] = frozenset(said or ())
            elif said is not None:
                cordoned[broker] = frozenset(said)
        elif kind in ("PARTITION_RECORD", "PARTITION_CHANGE_RECORD"):
            key = (data["topicId"], data["partitionId"])
            replicas[key] = data.get("replicas") or replicas[key]
            dirs[key] = data.get("directories") or dirs[key]
    assigned = {
        (names[topic], partition): dict(zip(brokers, dirs[topic, partition], strict=True))
        for (topic, partition), brokers in replicas.items()
        if topic in names
    }
    return Directories(
        racks=racks, online=online, cordoned=cordoned, registered_as_cordoned=registered, assigned=assigned
    )
