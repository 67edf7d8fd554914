"""The specification of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from harness.cluster.profile import FAST, Profile, delay_s
from harness.host.volume import VolumeKind
from harness.kafka.security import ListenerSecurity
from harness.kafka.versions import Mode


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
    tiered: bool
    listener_security: ListenerSecurity
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
    :ivar tiered: brokers have tiered storage, in a folder that they share (:mod:`harness.kafka.tiered_storage`)
    :ivar listener_security: what protects the listeners (:mod:`harness.cluster.security`)
    :ivar backend: how the nodes run (:mod:`harness.cluster.nodes.backends`)
    :ivar profile: the settings of all nodes
    :ivar given: broker settings of the run (``--set``) that replace those of the profile
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
    tiered: bool = False
    listener_security: ListenerSecurity = ListenerSecurity.PLAINTEXT
    backend: str = "process"
    profile: Profile = FAST
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
        """The settings of every broker, except those that differ from broker to broker."""
        return {**self._of_run, **self.overrides}

    @property
    def _of_run(self) -> Mapping[str, str]:
        return {**self.profile.settings, **self.profile.of_mode[self.mode], **self.given}

    @property
    def delay_s(self) -> float:
        """How much longer waits for Kafka may take than with the fast profile, by the settings of the run.

        A scenario with overrides waits as long as these need.
        """
        return delay_s(self._of_run, self.mode)

    @property
    def broker_ids(self) -> range:
        """The ids of the brokers: 1, 2, 3 …"""
        return range(1, self.brokers + 1)

    @property
    def nodes(self) -> int:
        """The number of nodes: brokers, and ZooKeeper or dedicated controllers."""
        return self.brokers + (0 if self.combined else self.controllers)
