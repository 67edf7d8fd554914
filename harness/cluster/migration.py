"""Moves a cluster from ZooKeeper to KRaft, and back (KIP-866): controllers beside ZooKeeper, and the roles of brokers.

A role takes effect at a broker's next start. The mode of the cluster is that of its active controller, so
:meth:`Migration.controlled_by` changes it once the other controller is active.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.kafka.versions import Mode

_ENABLED: Mapping[str, str] = {"zookeeper.metadata.migration.enable": "true"}
_OF_KRAFT_BROKERS = ("node.id", "process.roles")
_LISTENERS = ("listeners", "advertised.listeners")


class Role(StrEnum):
    """What a broker is in a migration.

    :cvar ZK: a broker in ZooKeeper mode
    :cvar MIGRATING: a broker in ZooKeeper mode that also registers with the KRaft controllers
    :cvar KRAFT: a KRaft broker
    """

    ZK = "zk"
    MIGRATING = "migrating"
    KRAFT = "kraft"


def is_migrating(broker: Broker) -> bool:
    """Whether the broker is a :attr:`Role.MIGRATING` one."""
    return _ENABLED.items() <= broker.node.spec.properties.items()


def changes_to(role: Role, zk: Mapping[str, str], kraft: Mapping[str, str]) -> dict[str, str | None]:
    """The properties of a broker in a role; None for those of the other roles.

    :param zk: the properties that a broker has in ZooKeeper mode only
    :param kraft: those that it has in KRaft mode only
    """
    beside = {name: value for name, value in kraft.items() if name not in _OF_KRAFT_BROKERS}
    wanted = {Role.ZK: zk, Role.MIGRATING: {**beside, **zk, **_ENABLED}, Role.KRAFT: kraft}[role]
    return {name: wanted.get(name) for name in {**zk, **kraft, **_ENABLED}}


class Migration:
    """A cluster with ZooKeeper, and KRaft controllers beside it.

    :ivar zookeeper: the quorum with which the cluster was started
    :ivar kraft: the quorum of the KRaft controllers
    """

    def __init__(self, cluster: Cluster) -> None:
        """Start the KRaft controllers, which take part in a migration, and return without waiting."""
        assert isinstance(cluster.quorum, ZooKeeperQuorum)
        self._cluster = cluster
        self.zookeeper = cluster.quorum
        [self._zookeeper_node] = cluster.quorum_nodes
        self._of_controllers = {
            **_ENABLED,
            "zookeeper.connect": self.zookeeper.address,
            "inter.broker.listener.name": cluster.spec.listener_security.protocol,
        }
        self.kraft = cluster.add_kraft_quorum(self.zookeeper.cluster_id(), self._of_controllers)
        for broker in cluster.brokers:
            for path in self.kraft.broker_dirs(broker.id):
                broker.node.make_dir(path)

    @property
    def controllers(self) -> list[Node]:
        """The KRaft controllers of the cluster."""
        return [node for node in self._cluster.quorum_nodes if node != self._zookeeper_node]

    def use_role(self, broker: Broker, role: Role) -> None:
        """Give a broker the properties of a role, with effect from its next start."""
        listeners = {name: broker.node.spec.properties[name] for name in _LISTENERS}
        zk = self.zookeeper.broker_settings(broker.id, listeners)
        kraft = self.kraft.broker_settings(broker.id, listeners)
        spec = self._cluster.spec
        broker.node.configure(changes_to(role, zk, kraft) | {**spec.given, **spec.overrides})
        broker.journal.write("broker.role", broker=broker.id, role=role)

    def controlled_by(self, mode: Mode) -> None:
        """Take this for the cluster's mode from here on, since a controller of this mode is active."""
        self._cluster.use_quorum(self.kraft if mode is Mode.KRAFT else self.zookeeper)

    def finalize(self, controller: Node) -> None:
        """Restart a controller without the properties of the migration."""
        controller.stop(timeouts.STOP_S)
        controller.configure(dict.fromkeys(self._of_controllers))
        controller.start()

    def remove_controllers(self) -> None:
        """Stop the KRaft controllers, and remove them from the cluster."""
        for controller in self.controllers:
            self._cluster.remove_controller(controller)

    def remove_zookeeper(self) -> None:
        """Stop ZooKeeper, and remove it from the cluster."""
        self._cluster.remove_controller(self._zookeeper_node)
