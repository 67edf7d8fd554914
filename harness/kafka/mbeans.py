"""A node's MBeans, read over HTTP through Jolokia's JVM agent: what an operator's monitoring sees of log dirs.

An agent in the JVM rather than remote JMX, which speaks RMI and would need a JVM of its own for each question. One
question is one POST with all reads in it (3 to 50 ms); the agent listens on loopback only and costs a broker's start
0.15 to 0.2 s of CPU on 2 cores, which is why every cluster of ours has it.

Names as Kafka's releases have them: KIP-112 ("Public interfaces, Metrics") puts OfflineLogDirectoryCount under
``kafka.server``, the release (``kafka.log.LogManager``) under ``kafka.log``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

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
UNDER_REPLICATED = "kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions"
_COUNTS = (OFFLINE_DIRS, OFFLINE_REPLICAS, UNDER_REPLICATED, OFFLINE_PARTITIONS)
BYTES_OUT = "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec"
ACTIVE = "kafka.controller:type=KafkaController,name=ActiveControllerCount"
RAFT = "kafka.server:type=raft-metrics"
UNASSIGNED = "*:type=AssignmentsManager,name=QueuedReplicaToDirAssignments"  # of two domains since 4.2 (KIP-1100)
STATE = "kafka.server:type=KafkaServer,name=BrokerState"
_RUNNING = 3


@dataclass(frozen=True, kw_only=True)
class BrokerMetrics:
    """What a broker's MBeans say of its log dirs.

    :ivar offline_log_dirs: OfflineLogDirectoryCount
    :ivar log_dir_offline: LogDirectoryOffline, by the log dir's path
    :ivar offline_replicas: OfflineReplicaCount
    :ivar cordoned_log_dirs: CordonedLogDirectoryCount; None before 4.3, which has none
    :ivar log_dir_cordoned: LogDirectoryCordoned, by the log dir's path
    """

    offline_log_dirs: int
    log_dir_offline: Mapping[str, bool]
    offline_replicas: int
    cordoned_log_dirs: int | None = None
    log_dir_cordoned: Mapping[str, bool] = field(default_factory=dict)


def agent_options(jar: Path, address: str) -> tuple[str, ...]:
    """The JVM options that put the agent into a node, at ``host:port``; it announces itself to nobody.

    A thread for each question: by default one serves all, and whoever connects and says nothing that is HTTP has it
    for as long as he likes. A Kafka client that still looks for an earlier cluster's broker at this port is enough.
    """
    host, _, port = address.rpartition(":")
    return (f"-javaagent:{jar}=host={host},port={port},discoveryEnabled=false,executor=cached",)


class MBeans:
    """The MBeans of one node, through the agent at ``port``."""

    def __init__(self, port: int) -> None:
        self.port = port

    def describe_broker(self) -> BrokerMetrics:
        """What a broker counts.

        :raises NoAnswer: there is no agent, or no such MBeans yet (a broker that is still starting)
        :raises BuildLacks: it has started, and one of them is not there
        """
        dirs, by_dir, replicas, cordoned, each_cordoned, state = self._values(
            OFFLINE_DIRS, DIR_OFFLINE, OFFLINE_REPLICAS, CORDONED_DIRS, DIR_CORDONED, STATE
        )
        if dirs is None or by_dir is None or replicas is None:
            missing = {OFFLINE_DIRS: dirs, DIR_OFFLINE: by_dir, OFFLINE_REPLICAS: replicas}
            raise self._without(next(name for name, value in missing.items() if value is None), state)
        return BrokerMetrics(
            offline_log_dirs=int(dirs["Value"]),
            log_dir_offline={_log_dir(name): bool(value["Value"]) for name, value in by_dir.items()},
            offline_replicas=int(replicas["Value"]),
            cordoned_log_dirs=None if cordoned is None else int(cordoned["Value"]),
            log_dir_cordoned={_log_dir(name): bool(value["Value"]) for name, value in (each_cordoned or {}).items()},
        )

    def offline_partitions(self) -> int | None:
        """OfflinePartitionsCount, if this node is the active controller; None where it isn't.

        :raises NoAnswer: there is no agent
        """
        active, partitions = self._values(ACTIVE, OFFLINE_PARTITIONS)
        return int(partitions["Value"]) if active and partitions and active["Value"] else None

    def followed(self) -> int | None:
        """KRaft: the node id of the controller that this node follows; None where it follows none, or is active itself.

        :raises NoAnswer: there is no agent, or no such MBean
        """
        [raft] = self._values(RAFT)
        if raft is None:
            raise NoAnswer(f"{HOST}:{self.port} has no MBean {RAFT}")
        return int(raft["current-leader"]) if raft["current-state"] == "follower" else None

    def counts(self, timeout_s: float) -> dict[str, int]:
        """What this node counts of offline log dirs, offline and under-replicated replicas and, if it is the active
        controller, offline partitions: by the MBeans' names, those that the node has.

        :raises NoAnswer: there is no agent, or it took longer
        """
        active, *values = self._values(ACTIVE, *_COUNTS, timeout_s=timeout_s)
        found = {name.rpartition("=")[2]: v["Value"] for name, v in zip(_COUNTS, values, strict=True) if v is not None}
        if not (active and active["Value"]):
            found.pop(OFFLINE_PARTITIONS.rpartition("=")[2], None)
        return found

    def has(self, mbean: str) -> bool:
        """Whether the node has an MBean of that name.

        :raises NoAnswer: there is no agent
        """
        [found] = self._values(mbean)
        return bool(found)

    def unassigned(self) -> int:
        """KRaft: of how many replicas the controller has yet to hear from this broker in which log dir they are.

        :raises NoAnswer: there is no agent, or no such MBean yet
        :raises BuildLacks: it has started, and the MBean is not there
        """
        queued, state = self._values(UNASSIGNED, STATE)
        if not queued:
            raise self._without(UNASSIGNED, state)
        return max(int(each["Value"]) for each in queued.values())

    def bytes_out(self, topic: str) -> int:
        """How many bytes of a topic this broker has sent to consumers since it was started; not to its followers.

        :raises NoAnswer: there is no agent, or no such MBean of all topics yet; a topic's comes with its first byte
        :raises BuildLacks: it has started, and the MBean is not there
        """
        rate, of_all, state = self._values(f"{BYTES_OUT},topic={topic}", BYTES_OUT, STATE)
        if of_all is None:
            raise self._without(BYTES_OUT, state)
        return int(rate["Count"]) if rate else 0

    def _without(self, mbean: str, state: Any) -> NoAnswer | BuildLacks:
        """What it means that a broker's MBean is not there: it is on its way up or down, or its build has none."""
        if state and state["Value"] == _RUNNING:
            return BuildLacks(f"this Kafka build has no MBean {mbean}")
        return NoAnswer(f"{HOST}:{self.port} has no MBean {mbean} yet")

    def _values(self, *mbeans: str, timeout_s: float = timeouts.REQUEST_S) -> list[Any]:
        """Each MBean's attributes; where the name is a pattern, by MBean; None where there is none."""
        question = json.dumps([{"type": "read", "mbean": mbean} for mbean in mbeans]).encode()
        try:
            with closing(HTTPConnection(HOST, self.port, timeout=timeout_s)) as connection:
                connection.request("POST", "/jolokia/", question)
                answers = json.load(connection.getresponse())
        except (OSError, HTTPException, ValueError) as error:
            raise NoAnswer(f"{HOST}:{self.port} gave no answer about its MBeans: {error}") from error
        return [answer.get("value") for answer in answers]


def _log_dir(mbean: str) -> str:
    """The log dir in an MBean's name, which JMX quotes (``javax.management.ObjectName.quote``)."""
    _, _, quoted = mbean.partition('logDirectory="')
    return quoted.rpartition('"')[0].replace("\\*", "*").replace("\\?", "?").replace("\\\\", "\\")
