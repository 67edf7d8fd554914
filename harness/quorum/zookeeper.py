"""ZooKeeper mode: one ZooKeeper server; a broker is the controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.admin import Admin
from harness.nodes.base import NodeSpec
from harness.ports import HOST
from harness.versions import Mode

_SESSION_MS = 2000
_TICK_MS = 500


class ZooKeeperQuorum:
    """One ZooKeeper server on loopback; see :class:`harness.quorum.base.Quorum`."""

    mode = Mode.ZK
    registration_outlives_s = (_SESSION_MS + _TICK_MS) / 1000  # ephemeral; sessions end at a tick (NodeExists)

    def __init__(self, *, work_dir: Path, port: int) -> None:
        self._data_dir = work_dir / "zookeeper-data"
        self.connect = f"{HOST}:{port}"
        self._port = port

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """The ZooKeeper server."""
        return (
            NodeSpec(
                name="zookeeper",
                main_class="org.apache.zookeeper.server.quorum.QuorumPeerMain",
                properties={
                    "dataDir": str(self._data_dir),
                    "clientPort": str(self._port),
                    "clientPortAddress": HOST,
                    "admin.enableServer": "false",
                    "maxClientCnxns": "0",
                    # Sessions last 2 to 20 ticks; brokers ask for 2 s (broker_settings).
                    "tickTime": str(_TICK_MS),
                },
            ),
        )

    def dirs(self) -> tuple[Path, ...]:
        """ZooKeeper's own data dir."""
        return (self._data_dir,)

    def broker_settings(self, broker_id: int) -> Mapping[str, str]:
        """Id, ZooKeeper's address, and a session so short that a dead broker is missed after 2 s (default: 18 s)."""
        return {
            "broker.id": str(broker_id),
            "zookeeper.connect": self.connect,
            "zookeeper.session.timeout.ms": str(_SESSION_MS),
            "zookeeper.connection.timeout.ms": "60000",
            "zookeeper.metadata.migration.enable": "false",
        }

    def broker_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """None."""
        return ()

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Nothing: brokers write their meta.properties themselves."""

    def controller(self, admin: Admin) -> int | None:
        """The controller's broker, as Metadata has it."""
        return admin.describe_cluster(topics=()).controller
