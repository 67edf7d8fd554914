"""A KRaft quorum whose voters are in the metadata log, so that controllers can be added and removed (KIP-853).

A voter is a node id together with the ``directory.id`` of its metadata log dir. So a controller with a new disk is not
the voter that it was before. The setting ``controller.quorum.bootstrap.servers`` only names nodes to ask first.

The first snapshot of a voter has the ids of all voters. So ``kafka-storage format`` itself formats each controller; in
the JVM of Kafka's tools this takes 0.1 s. Brokers are formatted from the template.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.cluster.nodes.node import SERVICE, Backend, NodeSpec
from harness.cluster.quorum.format_template import FormatTemplate, random_uuid, scram_options
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.security import UNPROTECTED, ClusterSecurity
from harness.cluster.spec import ClusterSpec
from harness.host.scratch import scratch
from harness.host.undo import UndoLog
from harness.kafka.distribution import Distribution
from harness.kafka.tools_jvm import tool_lines
from harness.kafka.versions import Tool


class DynamicQuorum(KRaftQuorum):
    """Controllers that can be added and removed; see :class:`harness.cluster.quorum.kraft.KRaftQuorum`."""

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        work_dir: Path,
        backend: Backend,
        template: FormatTemplate,
        main_class: str,
        undo_log: UndoLog,
        distribution: Distribution,
        security: ClusterSecurity = UNPROTECTED,
    ) -> None:
        super().__init__(
            spec=spec,
            work_dir=work_dir,
            backend=backend,
            template=template,
            main_class=main_class,
            undo_log=undo_log,
            security=security,
        )
        self._distribution = distribution

    def _finds_controllers(self) -> Mapping[str, str]:
        return {"controller.quorum.bootstrap.servers": ",".join(self._addresses.values())}

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Format every folder of every node; all controllers are voters."""
        voters = ",".join(f"{id}@{address}:{random_uuid()}" for id, address in self._addresses.items())
        for controller in self.node_specs():
            self._format(controller, "--initial-controllers", voters)
        for id, dirs in broker_dirs.items():
            self.format_broker(id, dirs)

    def new_controller(self) -> NodeSpec:
        """A controller with the next id, which is no voter; :meth:`format_observer` formats its folder."""
        id = max(self._admins) + 1
        endpoint = self._backend.endpoint(f"controller-{id}", SERVICE)
        self._addresses[id] = endpoint.address
        self._ports[id] = endpoint.port
        self._admins[id] = self._admin(endpoint.port)
        return self._controller(id)

    def format_observer(self, controller: NodeSpec) -> None:
        """Format the empty folder of a controller that is no voter, with a new ``directory.id``."""
        self._format(controller, "--no-initial-controllers")

    def _format(self, controller: NodeSpec, *voters: str) -> None:
        release = self._spec.metadata_version
        options = (
            *voters,
            *scram_options(self._security.passwords),
            *(() if release is None else ("--release-version", release)),
        )
        format_controller(self._distribution, controller.properties, self.cluster_id, *options)


def format_controller(
    distribution: Distribution, properties: Mapping[str, str], cluster_id: str, *options: str
) -> None:
    """Run ``kafka-storage format`` on a controller's empty folder; the files get the folder's owner.

    :param options: who the voters are
    :raises ToolFailed: the tool refuses
    """
    with scratch("format") as folder:
        config = folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        tool_lines(distribution, Tool.STORAGE, "format", "-t", cluster_id, "-c", str(config), *options)
    log_dir = Path(properties["log.dirs"])
    owner = log_dir.stat()
    if owner.st_uid != os.getuid():
        for made in log_dir.rglob("*"):
            os.chown(made, owner.st_uid, owner.st_gid)
