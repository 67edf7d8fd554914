"""KRaft mode: dedicated controllers, and brokers with a ``metadata.log.dir`` that is not one of their log dirs.

KIP-112's test plan kills two of three brokers. If these were combined nodes, that would end the quorum too. When its
metadata log dir fails, a broker halts; by default this is the first of ``log.dirs``. Scenarios about these cases ask
for combined nodes or the default (:class:`harness.cluster.spec.ClusterSpec`).

There are one or three controllers. All follow the metadata log, and one is active (``QuorumController.claim``). A
standby knows only what is in the log: brokers send heartbeats to the active controller only.

Folders are formatted as by ``kafka-storage format`` (:mod:`harness.cluster.quorum.format_template`). The first active
controller writes the release's features into the log (``ActivationRecordsGenerator``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.cluster.broker import Broker
from harness.cluster.log_dir import MetadataDir
from harness.cluster.nodes.node import SERVICE, Backend, Node, NodeSpec
from harness.cluster.profile import SHORT_CONNECT_TIMEOUTS
from harness.cluster.quorum.format_template import FormatTemplate, Role, random_uuid
from harness.cluster.security import UNPROTECTED, ClusterSecurity
from harness.cluster.spec import ClusterSpec
from harness.host.ports import HOST
from harness.host.undo import UndoLog
from harness.host.volume import Volume
from harness.kafka.admin import Admin
from harness.kafka.connection import Connection
from harness.kafka.security import ClientSecurity, ListenerSecurity
from harness.kafka.tiered_storage import SYSTEM_ENABLE
from harness.kafka.versions import Mode

CONTROLLER_ID = 100
"""The node id of the first controller; the others follow."""
_SESSION = "broker.session.timeout.ms"
_READ_BY_CONTROLLERS = (
    # By default the controller moves leaders every 5 min, and looks as often for those to elect uncleanly.
    "auto.leader.rebalance.enable",
    "leader.imbalance.check.interval.seconds",
    "unclean.leader.election.interval.ms",
    # Defaults for new topics.
    "default.replication.factor",
    "min.insync.replicas",
    "num.partitions",
    "unclean.leader.election.enable",
)
"""Broker settings that controllers read in KRaft mode (``kafka.server.ControllerServer``)."""


def node_id(node: Node) -> int:
    """The node's id in its properties."""
    return int(node.spec.properties["node.id"])


class KRaftQuorum:
    """Controllers whose voter list is in the settings of all nodes; see :class:`harness.cluster.quorum.quorum.Quorum`.

    :param template: the formatted folders of this build
    :param main_class: of brokers and controllers
    """

    mode = Mode.KRAFT
    registration_ttl_s = 0.0  # a new incarnation takes the place of the old one

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        work_dir: Path,
        backend: Backend,
        template: FormatTemplate,
        main_class: str,
        undo_log: UndoLog,
        security: ClusterSecurity = UNPROTECTED,
    ) -> None:
        self._spec = spec
        self._security = security
        self._work_dir = work_dir
        self._backend = backend
        self._template = template
        self._main_class = main_class
        self.cluster_id = random_uuid()
        ids = () if spec.combined else range(CONTROLLER_ID, CONTROLLER_ID + spec.controllers)
        endpoints = {id: backend.endpoint(f"controller-{id}", SERVICE) for id in ids}
        self._ports = {id: endpoint.port for id, endpoint in endpoints.items()}
        self._admins = {id: self._admin(port) for id, port in self._ports.items()}
        self._addresses = (
            {id: backend.quorum_address(f"broker-{id}") for id in spec.broker_ids}
            if spec.combined
            else {id: endpoint.address for id, endpoint in endpoints.items()}
        )
        self._volumes = {
            id: Volume(work_dir / f"controller-{id}-volume", kind=kind, size_mb=spec.volume_mb, undo_log=undo_log)
            for id in ids
            if spec.controller_volumes and (kind := spec.volumes)
        }

    def _admin(self, port: int) -> Admin:
        return Admin(Connection(HOST, port, security=self._security.controller_client()))

    def _finds_controllers(self) -> Mapping[str, str]:
        """The settings by which a node finds the controllers."""
        return {"controller.quorum.voters": ",".join(f"{id}@{address}" for id, address in self._addresses.items())}

    def _shared(self, node_id: int, *, is_broker: bool) -> dict[str, str]:
        protocol = self._security.listeners.protocol
        node = f"{'broker' if is_broker else 'controller'}-{node_id}"
        return {
            "node.id": str(node_id),
            **self._finds_controllers(),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": f"CONTROLLER:{protocol},{protocol}:{protocol}",
            **self._security.node_settings(node, Mode.KRAFT, is_broker=is_broker),
            **self._spec.profile.of_mode[Mode.KRAFT],
            _SESSION: str(self._session_ms()),
        }

    def _session_ms(self) -> int:
        """The time after which a dead broker is fenced: 6 s or more with standby controllers, or with TLS.

        A scenario may set another.

        When the controller dies, a broker finds the next one only after 2 s (``controller.quorum.fetch.timeout.ms``)
        and some attempts to connect to the old address. In containers this took 3.3 s, and a session of 3 s fenced live
        brokers.

        With TLS, the first handshakes of a controller that has just started are slow: on a busy machine, all brokers
        lost a session of 3 s, and the leaders changed.
        """
        if own_ms := self._spec.overrides.get(_SESSION):
            return int(own_ms)
        session_ms = self._spec.profile.session_ms(Mode.KRAFT)
        is_quick = len(self._addresses) == 1 and self._security.listeners is ListenerSecurity.PLAINTEXT
        return session_ms if is_quick else max(session_ms, 6000)

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """The dedicated controllers."""
        return tuple(map(self._controller, self._admins))

    def _controller(self, id: int) -> NodeSpec:
        alone = {
            # A single voter need not wait for others before an election.
            "controller.quorum.election.timeout.ms": "200",
            "controller.quorum.election.backoff.max.ms": "100",
            "controller.quorum.fetch.timeout.ms": "2000",
        }
        settings = self._spec.settings
        return NodeSpec(
            name=f"controller-{id}",
            main_class=self._main_class,
            properties={
                **self._shared(id, is_broker=False),
                **SHORT_CONNECT_TIMEOUTS,
                "process.roles": "controller",
                "listeners": f"CONTROLLER://{self._addresses[id]}",
                "log.dirs": str(self._controller_dir(id)),
                **{name: settings[name] for name in _READ_BY_CONTROLLERS if name in settings},
                **({SYSTEM_ENABLE: "true"} if self._spec.tiered else {}),
                **(alone if self._spec.controllers == 1 else {}),
                **self._spec.given,
            },
        )

    def _controller_dir(self, id: int) -> Path:
        """A folder in the volume, if there is one, since Kafka refuses a log dir that contains lost+found."""
        if (volume := self._volumes.get(id)) is not None:
            return volume.path / "metadata"
        return self._work_dir / f"controller-{id}-metadata"

    def metadata_dir(self, controller: Node, witness: Broker) -> MetadataDir:
        """The log dir of a dedicated controller.

        :param witness: see :class:`harness.cluster.log_dir.MetadataDir`
        """
        id = node_id(controller)
        return MetadataDir(witness, controller, self._controller_dir(id), self._volumes.get(id))

    def volumes(self) -> tuple[Volume, ...]:
        """The volumes of the controllers' metadata log dirs, if the spec asks for them."""
        return tuple(self._volumes.values())

    def controller_admin(self, controller: Node) -> Admin:
        """The admin client of a dedicated controller (KIP-919)."""
        return self._admins[node_id(controller)]

    def controller_connection(self, controller: Node, security: ClientSecurity | None = None) -> Connection:
        """A new connection to a dedicated controller.

        :param security: that of another user than the harness's own
        """
        own = self._security.controller_client()
        return Connection(HOST, self._ports[node_id(controller)], security=security or own)

    def metadata_log(self, node: Node) -> Path:
        """The folder of a node's metadata log."""
        properties = node.spec.properties
        log_dir = properties.get("metadata.log.dir") or properties["log.dirs"].partition(",")[0]
        return Path(log_dir) / "__cluster_metadata-0"

    def dirs(self) -> tuple[Path, ...]:
        """The controllers' metadata log dirs."""
        return tuple(map(self._controller_dir, self._admins))

    def broker_settings(self, broker_id: int, listeners: Mapping[str, str]) -> Mapping[str, str]:
        """Id, roles and quorum, and ``metadata.log.dir`` if the spec asks for one."""
        settings = {**self._shared(broker_id, is_broker=True), "process.roles": "broker", **listeners}
        if self._spec.combined:
            settings["process.roles"] = "broker,controller"
            settings["listeners"] += f",CONTROLLER://{self._addresses[broker_id]}"
        if self._spec.metadata_apart:
            [settings["metadata.log.dir"]] = map(str, self.broker_dirs(broker_id))
        return settings

    def broker_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """The ``metadata.log.dir`` if the spec asks for one."""
        return (self._work_dir / f"broker-{broker_id}-metadata",) if self._spec.metadata_apart else ()

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Format every folder of every node."""
        for id, dirs in {**{id: (self._controller_dir(id),) for id in self._admins}, **broker_dirs}.items():
            self.format_broker(id, dirs)

    def format_broker(self, broker_id: int, dirs: Sequence[Path]) -> None:
        """Format a node's folders; the first one has the metadata log."""
        role: Role = "controller" if broker_id in self._addresses else "broker"
        for dir in dirs:
            self._template.write(dir, role=role, metadata=dir == dirs[0], cluster_id=self.cluster_id, node_id=broker_id)

    def leftovers(self) -> list[str]:
        """Return an empty list: one record deletes a topic, and brokers show all metadata that there is."""
        return []

    def controller(self, admin: Admin) -> int | None:
        """The quorum's leader, from DescribeQuorum; the Metadata response names any broker in this mode."""
        return admin.describe_quorum_leader()
