"""What a cluster is made of: a frozen description, and the settings that every broker here has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from harness.host.volume import VolumeKind
from harness.kafka.versions import Mode

# Where a process ended its port refuses at once; the address of a container that ended gives no answer, and who asks
# there, as for a controller that was, would wait for 10 to 30 s. Builds before 2.7 do: they know no such setting.
SHORT_CONNECT_TIMEOUTS: Mapping[str, str] = {
    "socket.connection.setup.timeout.ms": "1000",
    "socket.connection.setup.timeout.max.ms": "1000",
}

# Shared by both metadata modes; a spec's overrides win. Each says why it is not Kafka's default.
BROKER_SETTINGS: Mapping[str, str] = {
    # A failed log dir is noticed at the next write of a checkpoint: 5 to 60 s by default.
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    # In KRaft a leader goes on waiting for a follower whose log dir failed until it has lagged for this long, although
    # the controller has taken it out of the ISR (Partition.maybeIncrementLeaderHW, shouldWaitForReplicaToJoinIsr: its
    # broker is alive, so it is still "eligible"). Nobody gets an ack or a record meanwhile: 30 s by default.
    "replica.lag.time.max.ms": "5000",
    # A scenario says who leads; nothing shall move leaders behind its back, nor make topics.
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    # A lone wounded broker must be able to serve clients by itself.
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
    # What a deleted topic or a finished move leaves goes after the first of these, 60 s by default, but not in a
    # broker's first 30 s, which can be set from 3.8 on: a cluster that serves another case is empty by then.
    "log.segment.delete.delay.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}


class ClusterSettings(TypedDict, total=False):
    """The fields of :class:`ClusterSpec` that a scenario or a fault may set: all but ``mode`` and ``backend``."""

    brokers: int
    log_dirs: int
    racks: tuple[str | None, ...]
    controllers: int
    combined: bool
    metadata_apart: bool
    metadata_version: str
    volumes: VolumeKind
    volume_mb: int
    mbeans: bool
    overrides: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A cluster to be: ``brokers`` brokers, numbered from 1, with ``log_dirs`` log dirs each.

    :ivar racks: ``broker.rack`` of each broker in order; empty for none at all, None within for none on that broker
    :ivar controllers: KRaft: how many nodes are controllers and nothing else, of which one is active; 1 or 3
    :ivar combined: KRaft: each broker is a controller too, and no other node is (``process.roles=broker,controller``)
    :ivar metadata_apart: KRaft: brokers keep the metadata in a folder of its own; else in the first log dir, which is
        Kafka's default
    :ivar metadata_version: KRaft: what the cluster is formatted with, such as 4.2-IV1; None: the build's own
    :ivar volumes: each log dir lies on a file system of its own, of this kind; None: all in one folder
    :ivar volume_mb: how big each of these is
    :ivar mbeans: Kafka's nodes carry an agent that answers for their MBeans (:mod:`harness.kafka.mbeans`)
    :ivar backend: what the nodes run in (:mod:`harness.cluster.nodes.backends`)
    :ivar overrides: broker settings over :data:`BROKER_SETTINGS`
    """

    mode: Mode
    brokers: int = 3
    log_dirs: int = 2
    racks: tuple[str | None, ...] = ()
    controllers: int = 1
    combined: bool = False
    metadata_apart: bool = True
    metadata_version: str | None = None
    volumes: VolumeKind | None = None
    volume_mb: int = 320
    mbeans: bool = True
    backend: str = "process"
    overrides: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.brokers < 1 or self.log_dirs < 1:
            raise ValueError(
                f"a cluster needs a broker and a log dir: {self.brokers} brokers, {self.log_dirs} log dirs"
            )
        if self.racks and len(self.racks) != self.brokers:
            raise ValueError(f"{len(self.racks)} racks for {self.brokers} brokers")
        if self.controllers not in (1, 3):
            raise ValueError(f"a quorum has 1 controller or 3 here, not {self.controllers}")
        if self.mode is Mode.ZK and (self.controllers > 1 or self.combined):
            raise ValueError("ZooKeeper mode has no controllers of its own: a broker is the controller")
        if self.combined and self.controllers > 1:
            raise ValueError("combined nodes are the controllers: there are no others")
        if not self.mbeans and (self.combined or self.controllers > 1):
            raise ValueError("which of several controllers is active is told by their MBeans: none without them")

    @property
    def broker_ids(self) -> range:
        """1, 2, 3 …"""
        return range(1, self.brokers + 1)

    @property
    def nodes(self) -> int:
        """How many processes it is: its brokers, and ZooKeeper or the controllers where they are apart."""
        return self.brokers + (0 if self.combined else self.controllers)
