"""A node's MBeans, read over HTTP through Jolokia's JVM agent: what an operator's monitoring sees of log dirs.

Remote JMX speaks RMI and would need a JVM for each request. One request to the agent is one POST with all reads (3 to
50 ms). The agent listens on loopback only, and costs a broker's start 0.15 to 0.2 s of CPU on 2 cores.

Names are those of Kafka's releases: KIP-112 ("Public interfaces, Metrics") puts OfflineLogDirectoryCount under
``kafka.server``, the releases (``kafka.log.LogManager``) under ``kafka.log``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import IntEnum
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from harness import timeouts
from harness.errors import BuildLacks
from harness.host.ports import HOST
from harness.kafka.connection import NoAnswer

OFFLINE_DIRS = "kafka.log:type=LogManager,name=OfflineLogDirectoryCount"
DIR_OFFLINE = "kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory=*"
CORDONED_DIRS = "kafka.log:type=LogManager,name=CordonedLogDirectoryCount"
DIR_CORDONED = "kafka.log:type=LogManager,name=LogDirectoryCordoned,logDirectory=*"
OFFLINE_REPLICAS = "kafka.server:type=ReplicaManager,name=OfflineReplicaCount"
OFFLINE_PARTITIONS = "kafka.controller:type=KafkaController,name=OfflinePartitionsCount"
ACTIVE_BROKERS = "kafka.controller:type=KafkaController,name=ActiveBrokerCount"
FENCED_BROKERS = "kafka.controller:type=KafkaController,name=FencedBrokerCount"
ALL_TOPICS = "kafka.controller:type=KafkaController,name=GlobalTopicCount"
ALL_PARTITIONS = "kafka.controller:type=KafkaController,name=GlobalPartitionCount"
NOT_PREFERRED = "kafka.controller:type=KafkaController,name=PreferredReplicaImbalanceCount"
UNDER_REPLICATED = "kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions"
PARTITIONS = "kafka.server:type=ReplicaManager,name=PartitionCount"
LEADERS = "kafka.server:type=ReplicaManager,name=LeaderCount"
REASSIGNING = "kafka.server:type=ReplicaManager,name=ReassigningPartitions"
UNDER_MIN_ISR = "kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount"
AT_MIN_ISR = "kafka.server:type=ReplicaManager,name=AtMinIsrPartitionCount"
_COUNTS = (OFFLINE_DIRS, OFFLINE_REPLICAS, UNDER_REPLICATED, OFFLINE_PARTITIONS)
BYTES_OUT = "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec"
TOPIC_METERS = "kafka.server:type=BrokerTopicMetrics,topic=*,*"
LOG_SIZE = "kafka.log:type=Log,name=Size,*"
LOG_SEGMENTS = "kafka.log:type=Log,name=NumLogSegments,*"
LOG_END = "kafka.log:type=Log,name=LogEndOffset,*"
PARTITION = "kafka.cluster:type=Partition,name=UnderReplicated,*"
DEAD_FETCHERS = "kafka.server:type=ReplicaFetcherManager,name=DeadThreadCount,clientId=Replica"
FAILED_PARTITIONS = "kafka.server:type=ReplicaFetcherManager,name=FailedPartitionsCount,clientId=Replica"
FETCHER_THREADS = "kafka.server:type=FetcherStats,name=RequestsPerSec,*"
FETCHED = "kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=*,topic=*,partition=*"
ACTIVE = "kafka.controller:type=KafkaController,name=ActiveControllerCount"
RAFT = "kafka.server:type=raft-metrics"
REASSIGNED_IN = "kafka.server:type=BrokerTopicMetrics,name=ReassignmentBytesInPerSec"
REASSIGNED_OUT = "kafka.server:type=BrokerTopicMetrics,name=ReassignmentBytesOutPerSec"
LOGS_TO_RECOVER = "kafka.log:type=LogManager,name=remainingLogsToRecover,*"
SEGMENTS_TO_RECOVER = "kafka.log:type=LogManager,name=remainingSegmentsToRecover,*"
UNASSIGNED = "*:type=AssignmentsManager,name=QueuedReplicaToDirAssignments"  # in two domains since 4.2 (KIP-1100)
WAITING_PRODUCE = "kafka.server:type=DelayedOperationPurgatory,name=NumDelayedOperations,delayedOperation=Produce"
UNCLEAN_ELECTIONS = "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec"
STATE = "kafka.server:type=KafkaServer,name=BrokerState"
ZK_MIGRATION = "kafka.controller:type=KafkaController,name=ZkMigrationState"
_OF_EVERY_BUILD = (OFFLINE_DIRS, DIR_OFFLINE, OFFLINE_REPLICAS, PARTITIONS, LEADERS, UNDER_REPLICATED)
OF_CONTROLLER = (ACTIVE_BROKERS, FENCED_BROKERS, ALL_TOPICS, ALL_PARTITIONS, NOT_PREFERRED)
"""Further counts of a KRaft controller. That of ZooKeeper mode counts topics until they are deleted for good."""
_RUNNING = 3
_Found = Mapping[str, Mapping[str, int | str]]
"""For each MBean's name, its attributes by name; empty if there is no such MBean."""


class MigrationState(IntEnum):
    """How far a cluster has moved from ZooKeeper to KRaft (``org.apache.kafka.metadata.migration.ZkMigrationState``).

    :cvar NONE: it began in KRaft mode
    :cvar MIGRATION: a KRaft controller has the metadata, and writes to ZooKeeper, too
    :cvar PRE_MIGRATION: a KRaft controller waits for the brokers
    :cvar POST_MIGRATION: the migration is finalized
    :cvar ZK: the node is in ZooKeeper mode
    """

    NONE = 0
    MIGRATION = 1
    PRE_MIGRATION = 2
    POST_MIGRATION = 3
    ZK = 4


@dataclass(frozen=True, kw_only=True)
class BrokerMetrics:
    """A broker's MBeans about log dirs and replicas.

    :ivar offline_log_dirs: OfflineLogDirectoryCount
    :ivar log_dir_offline: LogDirectoryOffline, by the log dir's path
    :ivar offline_replicas: OfflineReplicaCount
    :ivar partitions: PartitionCount
    :ivar leaders: LeaderCount
    :ivar under_replicated: UnderReplicatedPartitions
    :ivar cordoned_log_dirs: CordonedLogDirectoryCount; None before 4.3
    :ivar log_dir_cordoned: LogDirectoryCordoned, by the log dir's path; empty before 4.3
    """

    offline_log_dirs: int
    log_dir_offline: Mapping[str, bool]
    offline_replicas: int
    partitions: int
    leaders: int
    under_replicated: int
    cordoned_log_dirs: int | None = None
    log_dir_cordoned: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReplicaMetrics:
    """A broker's MBeans about single replicas and about the threads that fetch them.

    :ivar partitions: the topics and partitions with MBeans of ``kafka.cluster:type=Partition``
    :ivar fetched: the topic, the partition and the fetcher thread of each MBean of ``FetcherLagMetrics``
    :ivar dead_fetchers: DeadThreadCount of the replica fetcher threads; None if the build does not have it
    :ivar failed_partitions: FailedPartitionsCount of the replica fetcher threads; None if the build does not have it
    """

    partitions: frozenset[tuple[str, int]] = frozenset()
    fetched: frozenset[tuple[str, int, str]] = frozenset()
    dead_fetchers: int | None = 0
    failed_partitions: int | None = 0


def agent_options(jar: Path, address: str) -> tuple[str, ...]:
    """The JVM options that put the agent into a node, at ``host:port``, without multicast discovery.

    Each connection gets a thread. By default one thread serves all, and a client that sends no HTTP would block it. A
    Kafka client that still looks for an earlier cluster's broker at this port is such a client.
    """
    host, _, port = address.rpartition(":")
    return (f"-javaagent:{jar}=host={host},port={port},discoveryEnabled=false,executor=cached",)


class MBeans:
    """The MBeans of one node, through the agent at ``port``; every method raises NoAnswer if no agent answers there."""

    def __init__(self, port: int) -> None:
        self.port = port

    def describe_broker(self) -> BrokerMetrics:
        """A broker's MBeans about log dirs and replicas.

        :raises NoAnswer: also if the MBeans are not there yet, because the broker is starting
        :raises BuildLacks: the broker has started, and one of them is not there
        """
        state, cordoned, each_cordoned, *found = self._read(STATE, CORDONED_DIRS, DIR_CORDONED, *_OF_EVERY_BUILD)
        for name, each in zip(_OF_EVERY_BUILD, found, strict=True):
            if not each:
                raise self._missing(name, state)
        dirs, by_dir, offline, partitions, leaders, under_replicated = found
        return BrokerMetrics(
            offline_log_dirs=_value(dirs) or 0,
            log_dir_offline={_log_dir(name): bool(of["Value"]) for name, of in by_dir.items()},
            offline_replicas=_value(offline) or 0,
            partitions=_value(partitions) or 0,
            leaders=_value(leaders) or 0,
            under_replicated=_value(under_replicated) or 0,
            cordoned_log_dirs=_value(cordoned),
            log_dir_cordoned={_log_dir(name): bool(of["Value"]) for name, of in each_cordoned.items()},
        )

    def describe_replicas(self) -> ReplicaMetrics:
        """A broker's MBeans about single replicas and about the threads that fetch them.

        :raises NoAnswer: no agent answers
        """
        partitions, fetched, dead, failed = self._read(PARTITION, FETCHED, DEAD_FETCHERS, FAILED_PARTITIONS)
        lags = list(map(_tags, fetched))
        return ReplicaMetrics(
            partitions=frozenset((tags["topic"], int(tags["partition"])) for tags in map(_tags, partitions)),
            fetched=frozenset((tags["topic"], int(tags["partition"]), tags["clientId"]) for tags in lags),
            dead_fetchers=_value(dead),
            failed_partitions=_value(failed),
        )

    def has_topic_meters(self, topic: str) -> bool:
        """Whether the broker has meters of this topic (``BrokerTopicMetrics``).

        A request for the topic makes them, and so does a late one.

        :raises NoAnswer: no agent answers
        """
        [found] = self._read(TOPIC_METERS)
        return any(_tags(mbean).get("topic") == topic for mbean in found)

    def offline_partitions(self) -> int | None:
        """OfflinePartitionsCount, if this node is the active controller; None if it isn't."""
        active, partitions = self._read(ACTIVE, OFFLINE_PARTITIONS)
        return _value(partitions) if _value(active) else None

    def controller_counts(self) -> dict[str, int]:
        """A KRaft controller's counts of brokers, topics and partitions, by the short names of their MBeans.

        :raises BuildLacks: the controller does not have one of the MBeans
        """
        names = (OFFLINE_PARTITIONS, *OF_CONTROLLER)
        found = dict(zip(names, self._read(*names), strict=True))
        if lacking := [name for name, each in found.items() if not each]:
            raise BuildLacks(f"this Kafka build has no MBean {lacking[0]}")
        return {_short(name): _value(each) or 0 for name, each in found.items()}

    def followed(self) -> int | None:
        """KRaft: the node id of the controller that this node follows; None if it follows none, or is active itself.

        :raises NoAnswer: also if there is no such MBean
        """
        [raft] = self._read(RAFT)
        if not raft:
            raise NoAnswer(f"{HOST}:{self.port} has no MBean {RAFT}")
        return int(raft[RAFT]["current-leader"]) if raft[RAFT]["current-state"] == "follower" else None

    def counts(self, timeout_s: float) -> dict[str, int]:
        """The node's counts of offline log dirs, offline replicas, under-replicated partitions and offline partitions.

        The keys are the MBeans' names, such as OfflineReplicaCount. A count that the node does not have is left out;
        only the active controller has that of offline partitions.

        :raises NoAnswer: also if it took longer than ``timeout_s``
        """
        active, *found = self._read(ACTIVE, *_COUNTS, timeout_s=timeout_s)
        counts = {name: value for name, each in zip(_COUNTS, found, strict=True) if (value := _value(each)) is not None}
        if not _value(active):
            counts.pop(OFFLINE_PARTITIONS, None)
        return {_short(name): value for name, value in counts.items()}

    def has(self, mbean: str) -> bool:
        """Whether the node has an MBean of that name."""
        [found] = self._read(mbean)
        return bool(found)

    def unassigned(self) -> int:
        """KRaft: the number of replicas whose log dir this broker has yet to report to the controller.

        :raises NoAnswer: also if the MBean is not there yet
        :raises BuildLacks: the broker has started, and the MBean is not there
        """
        queued, state = self._read(UNASSIGNED, STATE)
        if not queued:
            raise self._missing(UNASSIGNED, state)
        return max(int(of["Value"]) for of in queued.values())

    def bytes_out(self, topic: str) -> int:
        """The bytes of a topic that this broker has sent to consumers since its start; not those to followers.

        :raises NoAnswer: also if the MBean of all topics is not there yet; a topic's own appears with its first byte
        :raises BuildLacks: the broker has started, and the MBean is not there
        """
        rate, of_all, state = self._read(f"{BYTES_OUT},topic={topic}", BYTES_OUT, STATE)
        if not of_all:
            raise self._missing(BYTES_OUT, state)
        return _value(rate, "Count") or 0

    def unclean_elections(self) -> int:
        """The leaders that were not elected from the ISR, as this controller counts them since its start.

        :raises BuildLacks: the controller does not have the MBean
        """
        return self._only(UNCLEAN_ELECTIONS, "Count")

    def reassigning(self) -> int:
        """The partitions that this broker leads and that are being reassigned.

        :raises BuildLacks: the broker does not have the MBean
        """
        return self._only(REASSIGNING, "Value")

    def under_min_isr(self) -> int:
        """The partitions that this broker leads with fewer replicas in sync than ``min.insync.replicas``.

        :raises BuildLacks: the broker does not have the MBean
        """
        return self._only(UNDER_MIN_ISR, "Value")

    def at_min_isr(self) -> int:
        """The partitions that this broker leads with as many replicas in sync as ``min.insync.replicas``.

        :raises BuildLacks: the broker does not have the MBean
        """
        return self._only(AT_MIN_ISR, "Value")

    def migration_state(self) -> MigrationState:
        """The state of the migration to KRaft, as this controller knows it.

        :raises NoAnswer: also if the MBean is not there yet, or has no value
        """
        [found] = self._read(ZK_MIGRATION)
        value = _value(found)
        if value is None or value < 0:  # -1 until the controller has read its metadata
            raise NoAnswer(f"{HOST}:{self.port} has no value of the MBean {ZK_MIGRATION} yet: {value}")
        return MigrationState(value)

    def waiting_produce_requests(self) -> int:
        """The produce requests that wait for followers on this broker.

        :raises BuildLacks: the broker does not have the MBean
        """
        return self._only(WAITING_PRODUCE, "Value")

    def fetched(self, topic: str, partition: int) -> list[str]:
        """The fetcher threads of this broker that have the partition, such as ReplicaFetcherThread-0-2.

        The MBean of a partition in a fetcher thread disappears when the thread no longer has the partition.

        :raises NoAnswer: no agent answers
        """
        [found] = self._read(FETCHED)
        wanted = (topic, str(partition))
        return sorted(each["clientId"] for each in map(_tags, found) if (each["topic"], each["partition"]) == wanted)

    def fetcher_threads(self) -> set[str]:
        """The threads of this broker that fetch from leaders, and those that copy replicas between log dirs.

        Their names are such as ReplicaFetcherThread-0-2 and ReplicaAlterLogDirsThread-0.

        :raises NoAnswer: no agent answers
        """
        [found] = self._read(FETCHER_THREADS)
        return {_tags(mbean)["clientId"] for mbean in found}

    def reassigned_bytes(self) -> tuple[int, int]:
        """The bytes that this broker received and sent for reassignments since its start (KIP-352); 0 without any.

        :raises NoAnswer: no agent answers
        """
        received, sent = self._read(REASSIGNED_IN, REASSIGNED_OUT)
        return _value(received, "Count") or 0, _value(sent, "Count") or 0

    def left_to_recover(self) -> tuple[dict[str, int], dict[str, int]]:
        """What a broker that loads its logs has yet to load, by log dir: logs, and segments of logs begun (KIP-831).

        Empty once it has loaded them. A log dir whose threads have begun no log has no segments.

        :raises NoAnswer: no agent answers
        """
        logs, segments = self._read(LOGS_TO_RECOVER, SEGMENTS_TO_RECOVER)
        left = dict[str, int]()
        for name, of in segments.items():  # one for each thread
            if of["Value"] is not None:
                left[_log_dir(name, "dir")] = left.get(_log_dir(name, "dir"), 0) + int(of["Value"])
        return {_log_dir(name, "dir"): int(of["Value"]) for name, of in logs.items() if of["Value"] is not None}, left

    def log(self, topic: str, partition: int, *, is_future: bool = False) -> dict[str, int]:
        """The Size, NumLogSegments and LogEndOffset of a replica, or of a future replica; empty if there is none.

        :raises NoAnswer: no agent answers
        """
        wanted = {"type": "Log", "topic": topic, "partition": str(partition)} | (
            {"is-future": "true"} if is_future else {}
        )
        found = {mbean: of for each in self._read(LOG_SIZE, LOG_SEGMENTS, LOG_END) for mbean, of in each.items()}
        named = [(_tags(mbean), of) for mbean, of in found.items()]
        return {tags["name"]: int(of["Value"]) for tags, of in named if tags == wanted | {"name": tags["name"]}}

    def logs(self) -> set[tuple[str, int]]:
        """The topics and partitions of the replicas whose logs have MBeans, without future replicas.

        :raises NoAnswer: no agent answers
        """
        [found] = self._read(LOG_SIZE)
        named = [tags for mbean in found if "is-future" not in (tags := _tags(mbean))]
        return {(tags["topic"], int(tags["partition"])) for tags in named}

    def _only(self, mbean: str, attribute: str) -> int:
        """An attribute of one MBean.

        :raises BuildLacks: the node does not have the MBean
        """
        [found] = self._read(mbean)
        if not found:
            raise BuildLacks(f"this Kafka build has no MBean {mbean}")
        return _value(found, attribute) or 0

    def _missing(self, mbean: str, state: _Found) -> NoAnswer | BuildLacks:
        """The error for a broker without an MBean: its build has none, or it is starting or stopping."""
        if _value(state) == _RUNNING:
            return BuildLacks(f"this Kafka build has no MBean {mbean}")
        return NoAnswer(f"{HOST}:{self.port} has no MBean {mbean} yet")

    def _read(self, *mbeans: str, timeout_s: float = timeouts.REQUEST_S) -> list[_Found]:
        """Read MBeans; one result for each name or pattern."""
        question = json.dumps([{"type": "read", "mbean": mbean} for mbean in mbeans]).encode()
        try:
            with closing(HTTPConnection(HOST, self.port, timeout=timeout_s)) as connection:
                connection.request("POST", "/jolokia/", question)
                answers = [answer.get("value") or {} for answer in json.load(connection.getresponse())]
        except (OSError, HTTPException, ValueError) as error:
            raise NoAnswer(f"{HOST}:{self.port} gave no answer about its MBeans: {error}") from error
        # Jolokia's answer for a name, unlike that for a pattern, does not have the name in it.
        named = zip(mbeans, answers, strict=True)
        return [answer if "*" in mbean or not answer else {mbean: answer} for mbean, answer in named]


def _value(found: _Found, attribute: str = "Value") -> int | None:
    """An attribute of the one MBean that was found; None if none was."""
    return next((int(of[attribute]) for of in found.values()), None)


def _short(mbean: str) -> str:
    """The short name of an MBean whose last tag is its name, such as GlobalTopicCount."""
    return mbean.rpartition("=")[2]


def _tags(mbean: str) -> dict[str, str]:
    """The tags in an MBean's name, such as its topic; none of them may have a comma in it."""
    return dict(part.split("=", 1) for part in mbean.partition(":")[2].split(","))


def _log_dir(mbean: str, tag: str = "logDirectory") -> str:
    """The log dir in an MBean's name; JMX quotes it there (``javax.management.ObjectName.quote``)."""
    _, _, quoted = mbean.partition(f'{tag}="')
    return quoted.rpartition('"')[0].replace("\\*", "*").replace("\\?", "?").replace("\\\\", "\\")
