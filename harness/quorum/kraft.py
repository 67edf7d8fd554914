"""KRaft mode: a controller of its own beside the brokers, which have a metadata log dir apart from their log dirs.

Apart on purpose: KIP-112's plan kills two of three brokers, and combined nodes would take the quorum with them; and
the failure of a ``metadata.log.dir``, by default the first of ``log.dirs``, halts its broker, which is a scenario of
its own.

A dir is formatted by writing its ``meta.properties`` (version, cluster.id, node.id, directory.id: as
``org.apache.kafka.metadata.properties.MetaPropertiesEnsemble`` does). The controller's also needs the
``bootstrap.checkpoint`` with the release's features, which only ``kafka-storage format`` can write; it is the same for
every cluster of a build, so it is made once a build and kept in the cache (0.7 to 2 s saved at each start).
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.doors.admin import Admin
from harness.doors.wire import Connection
from harness.machine.ports import HOST
from harness.nodes.base import SERVICE, Backend, NodeSpec
from harness.releases.versions import Mode

CONTROLLER_ID = 100
_CONTROLLER = f"controller-{CONTROLLER_ID}"


def random_uuid() -> str:
    """A UUID as Kafka writes it: 22 characters of URL-safe base64, never beginning with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class KRaftQuorum:
    """One controller with a static voter list; see :class:`harness.quorum.base.Quorum`.

    :param bootstrap_checkpoint: the file of that name that ``kafka-storage format`` made for this build
    """

    mode = Mode.KRAFT
    registration_outlives_s = 0.0  # a new incarnation takes the place of the old one

    def __init__(
        self, *, work_dir: Path, backend: Backend, bootstrap_checkpoint: Path, metadata_apart: bool = True
    ) -> None:
        self._work_dir = work_dir
        self._controller_dir = work_dir / f"{_CONTROLLER}-metadata"
        endpoint = backend.endpoint(_CONTROLLER, SERVICE)
        self._address = endpoint.address
        self._metadata_apart = metadata_apart
        self._checkpoint = bootstrap_checkpoint
        self.cluster_id = random_uuid()
        self.admin = Admin(Connection(HOST, endpoint.port))
        """The controller's own door (KIP-919)."""

    def _shared(self, node_id: int) -> dict[str, str]:
        return {
            "node.id": str(node_id),
            "controller.quorum.voters": f"{CONTROLLER_ID}@{self._address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            # A dead broker is fenced after 3 s (default: 9 s) …
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """The controller."""
        return (
            NodeSpec(
                name=_CONTROLLER,
                main_class="kafka.Kafka",
                properties={
                    **self._shared(CONTROLLER_ID),
                    "process.roles": "controller",
                    "listeners": f"CONTROLLER://{self._address}",
                    "log.dirs": str(self._controller_dir),
                    # One voter has nobody to wait for before it stands for election.
                    "controller.quorum.election.timeout.ms": "200",
                    "controller.quorum.election.backoff.max.ms": "100",
                    "controller.quorum.fetch.timeout.ms": "2000",
                },
            ),
        )

    @property
    def metadata_log(self) -> Path:
        """The folder of the controller's metadata log."""
        return self._controller_dir / "__cluster_metadata-0"

    def dirs(self) -> tuple[Path, ...]:
        """The controller's metadata log dir."""
        return (self._controller_dir,)

    def broker_settings(self, broker_id: int) -> Mapping[str, str]:
        """Id, role, quorum, and the metadata log dir where it is apart from the log dirs."""
        settings = {**self._shared(broker_id), "process.roles": "broker"}
        if self._metadata_apart:
            [settings["metadata.log.dir"]] = map(str, self.broker_dirs(broker_id))
        return settings

    def broker_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """The metadata log dir, where it is apart from the log dirs."""
        return (self._work_dir / f"broker-{broker_id}-metadata",) if self._metadata_apart else ()

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Write meta.properties into every dir and the bootstrap checkpoint into the controller's."""
        for node_id, dirs in {CONTROLLER_ID: (self._controller_dir,), **broker_dirs}.items():
            self.format_broker(node_id, dirs)
        _write_like(self._controller_dir, "bootstrap.checkpoint", self._checkpoint.read_bytes())

    def format_broker(self, broker_id: int, dirs: Sequence[Path]) -> None:
        """Write meta.properties into each of its dirs."""
        for dir in dirs:
            _write_like(
                dir,
                "meta.properties",
                f"version=1\ncluster.id={self.cluster_id}\nnode.id={broker_id}\ndirectory.id={random_uuid()}\n".encode(),
            )

    def controller(self, admin: Admin) -> int | None:
        """The quorum's leader (DescribeQuorum); Metadata names some broker or other in this mode."""
        return admin.describe_quorum_leader()


def _write_like(folder: Path, name: str, content: bytes) -> None:
    """Write a file that belongs to whom its folder belongs to."""
    path, owner = folder / name, folder.stat()
    path.write_bytes(content)
    if owner.st_uid != os.getuid():
        os.chown(path, owner.st_uid, owner.st_gid)
