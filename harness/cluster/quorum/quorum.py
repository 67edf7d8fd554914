"""What the metadata mode decides: which nodes run beside the brokers, and what a broker must be told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.cluster.nodes.node import NodeSpec
from harness.kafka.admin import Admin
from harness.kafka.versions import Mode


class Quorum(Protocol):
    """ZooKeeper or KRaft, seen from a cluster."""

    mode: Mode
    registration_ttl_s: float
    """For so long after a broker was killed its registration stands, and one that starts under its id would end."""

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """The nodes beside the brokers."""

    def dirs(self) -> tuple[Path, ...]:
        """Folders of those nodes, to be made as their user before :meth:`format`."""

    def broker_settings(self, broker_id: int, listeners: Mapping[str, str]) -> Mapping[str, str]:
        """What a broker's configuration needs in this mode.

        :param listeners: the settings that say where it listens for clients and other brokers
        """

    def broker_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """Folders that a broker needs in this mode beside its log dirs."""

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Write what must stand in the folders before the cluster's first start."""

    def format_broker(self, broker_id: int, dirs: Sequence[Path]) -> None:
        """Write what must stand in one broker's folders before its first start."""

    def leftovers(self) -> list[str]:
        """What the metadata store holds beside what brokers know, and would not without topics; a phrase each."""

    def controller(self, admin: Admin) -> int | None:
        """The active controller's node id as this broker knows it; None while there is none."""
