"""The specification of a cluster, and the settings that every broker gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from harness.host.volume import VolumeKind
from harness.kafka.versions import Mode

# The port of an ended process refuses a connection at once. The address of an ended container does not answer. A node
# that connects to it, such as to a former controller, would wait for 10 to 30 s. Builds before 2.7 still wait.
SHORT_CONNECT_TIMEOUTS: Mapping[str, str] = {
    "socket.connection.setup.timeout.ms": "1000",
    "socket.connection.setup.timeout.max.ms": "1000",
}

# For both metadata modes; a spec's overrides win. The comments say why a value is not Kafka's default.
BROKER_SETTINGS: Mapping[str, str] = {
    # A broker notices a failed log dir at the next write of a checkpoint: 5 to 60 s by default.
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    # In KRaft a leader waits this long for a follower whose log dir failed, although the controller has removed it from
    # the ISR: its broker is alive, so it is still "eligible" (Partition.maybeIncrementLeaderHW,
    # shouldWaitForReplicaToJoinIsr). Meanwhile no client gets an ack or a record: 30 s by default.
    "replica.lag.time.max.ms": "5000",
    # Only a scenario moves leaders and creates topics.
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    # A single broker with a failed log dir must be able to serve clients.
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Many JVMs on few cores: fewer threads, less memory.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    **SHORT_CONNECT_TIMEOUTS,
    # A cluster must be empty before the next case. The first setting delays the deletion of files, after a topic is
    # deleted or a move ends (60 s by default). The second is the least time from a broker's start to its first deletion
    # (30 s; a setting since 3.8).
    "log.segment.delete.delay.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}


class ClusterSettings(TypedDict, total=False):
    """The fields of :class:`ClusterSpec` that a scenario or a fault may set: the others belong to the run."""

    brokers: int
    log_dirs: int
    racks: tuple[str | None, ...]
    controllers: int
    combined: bool
    dynamic_quorum: bool
    controller_volumes: bool
    metadata_apart: bool
    metadata_version: str
    volumes: VolumeKind
    volume_mb: int
    mbeans: bool
    holds: bool
    overrides: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The specification of a cluster: ``brokers`` brokers with ids from 1, each with ``log_dirs`` log dirs.

    :ivar racks: ``broker.rack`` of each broker in order, None for a broker without one; empty: no broker has a rack
    :ivar controllers: KRaft: the number of dedicated controllers, 1 or 3
    :ivar combined: KRaft: each broker is a controller too, and there are no dedicated controllers
    :ivar dynamic_quorum: KRaft: the metadata log has the list of voters, so controllers can be added and removed
        (KIP-853); else the settings of all nodes have it
    :ivar controller_volumes: with ``volumes``, the metadata log dir of each dedicated controller is on one, too
    :ivar metadata_apart: KRaft: brokers have a ``metadata.log.dir``; else the metadata log is in the first log dir
    :ivar metadata_version: KRaft: the release version to format with, such as 4.2-IV1; None: the build's default
    :ivar volumes: each log dir is on its own file system of this kind; None: all are on the file system of the run
    :ivar volume_mb: the size of each file system, in MB
    :ivar mbeans: whether Kafka's nodes run an agent that answers for their MBeans (:mod:`harness.kafka.mbeans`)
    :ivar holds: whether threads of Kafka's nodes can be held at points (:mod:`harness.kafka.points`)
    :ivar backend: how the nodes run (:mod:`harness.cluster.nodes.backends`)
    :ivar given: broker settings of the run (``--set``) that replace :data:`BROKER_SETTINGS`
    :ivar overrides: broker settings of the scenario that replace both
    """

    mode: Mode
    brokers: int = 3
    log_dirs: int = 2
    racks: tuple[str | None, ...] = ()
    controllers: int = 1
    combined: bool = False
    dynamic_quorum: bool = False
    controller_volumes: bool = False
    metadata_apart: bool = True
    metadata_version: str | None = None
    volumes: VolumeKind | None = None
    volume_mb: int = 320
    mbeans: bool = True
    holds: bool = False
    backend: str = "process"
    given: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.brokers < 1 or self.log_dirs < 1:
            raise ValueError(f"a cluster needs brokers and log dirs: {self.brokers} brokers, {self.log_dirs} log dirs")
        if self.racks and len(self.racks) != self.brokers:
            raise ValueError(f"{len(self.racks)} racks for {self.brokers} brokers")
        if self.controllers not in (1, 3):
            raise ValueError(f"a quorum has 1 or 3 controllers, not {self.controllers}")
        if self.mode is Mode.ZK and (self.controllers > 1 or self.combined):
            raise ValueError("ZooKeeper mode has no dedicated controllers: a broker is the controller")
        if self.combined and self.controllers > 1:
            raise ValueError("combined nodes are the controllers: there are no dedicated ones")
        if self.dynamic_quorum and (self.mode is Mode.ZK or self.combined):
            raise ValueError("only dedicated controllers can be added and removed")
        if self.controller_volumes and (self.mode is Mode.ZK or self.combined or self.volumes is None):
            raise ValueError("only dedicated controllers have volumes, and only of the kind that the brokers have")
        if not self.mbeans and (self.combined or self.controllers > 1):
            raise ValueError("several controllers need MBeans, which show which one is active")

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of every broker, in both metadata modes."""
        return {**BROKER_SETTINGS, **self.given, **self.overrides}

    @property
    def broker_ids(self) -> range:
        """The ids of the brokers: 1, 2, 3 …"""
        return range(1, self.brokers + 1)

    @property
    def nodes(self) -> int:
        """The number of nodes: brokers, and ZooKeeper or dedicated controllers."""
        return self.brokers + (0 if self.combined else self.controllers)
