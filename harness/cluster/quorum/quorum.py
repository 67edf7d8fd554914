"""The interface of a metadata mode: the nodes beside the brokers, and the settings that it adds to a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.cluster.nodes.node import NodeSpec
from harness.host.volume import Volume
from harness.kafka.admin import Admin
from harness.kafka.versions import Mode


class Quorum(Protocol):
    """ZooKeeper or a KRaft quorum."""

    mode: Mode
    registration_ttl_s: float
    """The seconds that a killed broker stays registered. Until then, no broker with the same id can start."""

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """The nodes beside the brokers."""

    def dirs(self) -> tuple[Path, ...]:
        """The folders of those nodes. They must exist before :meth:`format`, and belong to the nodes' user."""

    def broker_settings(self, broker_id: int, listeners: Mapping[str, str]) -> Mapping[str, str]:
        """The settings that a broker needs in this mode.

        :param listeners: its settings for listeners of clients and other brokers
        """

    def broker_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """The folders that a broker needs in this mode in addition to its log dirs."""

    def volumes(self) -> tuple[Volume, ...]:
        """The volumes of those folders, if they are on volumes of their own."""

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Format the folders of all nodes before the cluster's first start."""

    def format_broker(self, broker_id: int, dirs: Sequence[Path]) -> None:
        """Format a broker's folders before its first start."""

    def leftovers(self) -> list[str]:
        """One phrase for each entry of a topic that the metadata store still has, and that brokers do not show."""

    def controller(self, admin: Admin) -> int | None:
        """The node id of the active controller, as the admin client's broker knows it; None if there is none."""
