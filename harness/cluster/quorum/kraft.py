"""KRaft mode: controllers of their own beside the brokers, which have a metadata log dir apart from their log dirs.

Apart on purpose: KIP-112's plan kills two of three brokers, and combined nodes would take the quorum with them; and
the failure of a ``metadata.log.dir``, by default the first of ``log.dirs``, halts its broker, which is a scenario of
its own. Where a scenario is about combined nodes there are no others.

One controller unless a scenario wants three, of which any two are a quorum. All follow the metadata log; one is active
at a time (``QuorumController.claim``), and the others, its standbys, know what it has written and nothing else: what a
broker says in its heartbeats it says to the active one alone.

A dir is formatted with what ``kafka-storage format`` leaves (:mod:`harness.cluster.quorum.format_template`). The first
controller to be active writes the release's features into the log (``ActivationRecordsGenerator``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.cluster.nodes.node import SERVICE, Backend, Node, NodeSpec
from harness.cluster.quorum.format_template import FormatTemplate, Role, random_uuid
from harness.cluster.spec import BROKER_SETTINGS, SHORT_CONNECT_TIMEOUTS, ClusterSpec
from harness.host.ports import HOST
from harness.kafka.admin import Admin
from harness.kafka.connection import Connection
from harness.kafka.versions import Mode

CONTROLLER_ID = 100
"""The first controller's node id; the others' follow."""
_READ_BY_CONTROLLERS = (
    # Its own, of which brokers know nothing: without it, leaders move when it is 5 min old, and every 5 min after.
    "auto.leader.rebalance.enable",
    # What a topic has that doesn't say otherwise.
    "default.replication.factor",
    "min.insync.replicas",
    "num.partitions",
    "unclean.leader.election.enable",
)
"""Broker settings that in KRaft mode are asked of the controllers (``kafka.server.ControllerServer``)."""


def node_id(node: Node) -> int:
    """A node's id, as its properties have it."""
    return int(node.spec.properties["node.id"])


class KRaftQuorum:
    """Controllers with a static voter list; see :class:`harness.cluster.quorum.quorum.Quorum`.

    :param formatted: what ``kafka-storage format`` of this build leaves
    :param main_class: of the build's broker, which is its controller, too
    """

    mode = Mode.KRAFT
    registration_ttl_s = 0.0  # a new incarnation takes the place of the old one

    def __init__(
        self, *, spec: ClusterSpec, work_dir: Path, backend: Backend, formatted: FormatTemplate, main_class: str
    ) -> None:
        self._spec = spec
        self._work_dir = work_dir
        self._formatted = formatted
        self._main_class = main_class
        self.cluster_id = random_uuid()
        ids = () if spec.combined else range(CONTROLLER_ID, CONTROLLER_ID + spec.controllers)
        endpoints = {id: backend.endpoint(f"controller-{id}", SERVICE) for id in ids}
        self._admins = {id: Admin(Connection(HOST, endpoint.port)) for id, endpoint in endpoints.items()}
        self._voters = (
            {id: backend.quorum_address(f"broker-{id}") for id in spec.broker_ids}
            if spec.combined
            else {id: endpoint.address for id, endpoint in endpoints.items()}
        )

    def _shared(self, node_id: int) -> dict[str, str]:
        return {
            "node.id": str(node_id),
            "controller.quorum.voters": ",".join(f"{id}@{address}" for id, address in self._voters.items()),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            # A dead broker is fenced after 3 s (default: 9 s); where another controller may take over, after 6 s. A
            # live one has 2 s of silence (controller.quorum.fetch.timeout.ms) and some connections to an address that
            # is gone behind it before it hears of the next: 3.3 s were seen in containers, and it was fenced.
            "broker.session.timeout.ms": "3000" if len(self._voters) == 1 else "6000",
            "broker.heartbeat.interval.ms": "500",
        }

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """The controllers that are nothing else."""
        alone = {
            # One voter has nobody to wait for before it stands for election.
            "controller.quorum.election.timeout.ms": "200",
            "controller.quorum.election.backoff.max.ms": "100",
            "controller.quorum.fetch.timeout.ms": "2000",
        }
        settings = {**BROKER_SETTINGS, **self._spec.overrides}
        return tuple(
            NodeSpec(
                name=f"controller-{id}",
                main_class=self._main_class,
                properties={
                    **self._shared(id),
                    **SHORT_CONNECT_TIMEOUTS,
                    "process.roles": "controller",
                    "listeners": f"CONTROLLER://{self._voters[id]}",
                    "log.dirs": str(self._controller_dir(id)),
                    **{name: settings[name] for name in _READ_BY_CONTROLLERS if name in settings},
                    **(alone if len(self._admins) == 1 else {}),
                },
            )
            for id in self._admins
        )

    def _controller_dir(self, id: int) -> Path:
        return self._work_dir / f"controller-{id}-metadata"

    def controller_admin(self, controller: Node) -> Admin:
        """A controller's own door (KIP-919); of one that is nothing else."""
        return self._admins[node_id(controller)]

    def metadata_log(self, node: Node) -> Path:
        """The folder of a node's metadata log."""
        properties = node.spec.properties
        log_dir = properties.get("metadata.log.dir") or properties["log.dirs"].partition(",")[0]
        return Path(log_dir) / "__cluster_metadata-0"

    def dirs(self) -> tuple[Path, ...]:
        """The controllers' metadata log dirs."""
        return tuple(map(self._controller_dir, self._admins))

    def broker_settings(self, broker_id: int, listeners: Mapping[str, str]) -> Mapping[str, str]:
        """Id, roles, quorum, and the metadata log dir where it is apart from the log dirs."""
        settings = {**self._shared(broker_id), "process.roles": "broker", **listeners}
        if self._spec.combined:
            settings["process.roles"] = "broker,controller"
            settings["listeners"] += f",CONTROLLER://{self._voters[broker_id]}"
        if self._spec.metadata_apart:
            [settings["metadata.log.dir"]] = map(str, self.broker_dirs(broker_id))
        return settings

    def broker_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """The metadata log dir, where it is apart from the log dirs."""
        return (self._work_dir / f"broker-{broker_id}-metadata",) if self._spec.metadata_apart else ()

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Format every dir of every node."""
        for id, dirs in {**{id: (self._controller_dir(id),) for id in self._admins}, **broker_dirs}.items():
            self.format_broker(id, dirs)

    def format_broker(self, broker_id: int, dirs: Sequence[Path]) -> None:
        """Format each of its dirs, of which the first has the metadata log."""
        role: Role = "controller" if broker_id in self._voters else "broker"
        for dir in dirs:
            self._formatted.write(
                dir, role=role, metadata=dir == dirs[0], cluster_id=self.cluster_id, node_id=broker_id
            )

    def leftovers(self) -> list[str]:
        """None: a topic that is deleted is deleted with one record, and what brokers know is all that there is."""
        return []

    def controller(self, admin: Admin) -> int | None:
        """The quorum's leader (DescribeQuorum); Metadata names some broker or other in this mode."""
        return admin.describe_quorum_leader()
