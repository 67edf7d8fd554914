"""What a backend runs, and what it must be able to do with it.

A *node* is one JVM of the cluster: a broker, a KRaft controller or a ZooKeeper server. The roles are the cluster's
business; a backend (local processes, or containers) knows only this.

Folders have one path, to the harness and to a node, whatever the backend: containers get the run's folder mounted where
it lies. So log dirs, faults and checks are the same in both; what a node's own user sees of them is asked of the node.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness import timeouts
from harness.cluster.spec import ClusterSpec
from harness.host import class_data
from harness.host.control_group import SlowGroup
from harness.host.ports import PortBlock
from harness.host.undo import UndoLog
from harness.journal import Journal
from harness.kafka.broker_log import BrokerLog
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode, Tool

SERVICE = "service"
"""The port at which a node does its work for the harness and its clients, and a quorum's node for brokers."""
AGENT = "agent"
"""The port at which the agent in a node answers for its MBeans (:mod:`harness.kafka.mbeans`)."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A port of a node, for those who have to know it.

    :ivar address: ``host:port`` that the node listens at and other nodes reach it at
    :ivar port: where the harness and clients reach it, on :data:`harness.host.ports.HOST`
    """

    address: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What a backend's JVMs run on.

    :ivar java: the command that starts Java where the nodes live
    :ivar java_version: as Java says it
    :ivar class_path: Kafka's jars, by their paths there
    :ivar build: a checksum of the jars
    """

    java: tuple[str, ...]
    java_version: str
    class_path: tuple[str, ...]
    build: str

    def classes(self, mode: Mode) -> Path:
        """Where the archive of the classes that its nodes load belongs; made by :mod:`harness.cluster.fast_starts`."""
        return class_data.archive_path(
            mode, build=self.build, class_path=self.class_path, java_version=self.java_version
        )


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One JVM: what to run with which configuration.

    :ivar jvm_options: beside those that all nodes have; ``{home}`` in them is the node's own folder
    """

    name: str
    main_class: str
    properties: Mapping[str, str]
    heap_mb: int = 256
    jvm_options: tuple[str, ...] = ()


@dataclass(kw_only=True)
class ClusterContext:
    """What a backend is given for one cluster; where it writes down what happens changes from case to case.

    :ivar record_dir: the case's ``brokers/``: configuration and logs for people
    :ivar undo_log: of the run, whose id marks all that a backend makes (:mod:`harness.host.undo`)
    :ivar outlives_harness: the nodes may outlive the harness (``--keep-cluster``, ``cluster up``)
    """

    spec: ClusterSpec
    distribution: Distribution
    record_dir: Path
    journal: Journal
    undo_log: UndoLog
    outlives_harness: bool = False
    ports: PortBlock = field(default_factory=PortBlock)

    @property
    def work_dir(self) -> Path:
        """The run's folder in the workspace, open to the broker user."""
        return self.undo_log.dir


class Backend(Protocol):
    """Makes the nodes of one cluster."""

    runtime: Runtime

    def endpoint(self, node: str, purpose: str) -> Endpoint:
        """A port of the node of that name, :data:`SERVICE` or :data:`AGENT`; the same one however often asked."""

    def quorum_address(self, broker: str) -> str:
        """``host:port`` where the broker of that name, if it is a controller too, listens for the quorum."""

    def listeners(self, broker: str) -> Mapping[str, str]:
        """The settings that say where the broker of that name listens, for clients and for other brokers."""

    def file(self, path: Path) -> Path:
        """A file of the harness's as nodes can read it."""

    def node(self, spec: NodeSpec) -> Node:
        """A node that has not been started."""

    def start(self, nodes: Sequence[Node]) -> None:
        """Start all these nodes for the first time, side by side, and return without waiting until they serve.

        :param nodes: first the one that the others look for
        :raises HarnessError: the backend can't
        """


class Node(Protocol):
    """One JVM that can be started, ended and asked; every method may be called in any state."""

    spec: NodeSpec
    log: BrokerLog
    config: Path
    """Its properties file, where the node lives."""

    def start(self) -> None:
        """Start it and return at once; does nothing where it runs."""

    def stop(self, timeout_s: float) -> None:
        """SIGTERM and wait until it is gone; SIGKILL after ``timeout_s``."""

    def request_stop(self) -> None:
        """SIGTERM only; :meth:`stop` or :meth:`kill` then waits."""

    def kill(self) -> None:
        """SIGKILL and wait until it is gone."""

    def pause(self) -> None:
        """Stop it where it is; it keeps its connections."""

    def resume(self) -> None:
        """Let it go on."""

    def is_alive(self) -> bool:
        """Whether the process runs (or is paused)."""

    def is_paused(self) -> bool:
        """Whether the kernel holds it stopped."""

    def paused_proof(self) -> str | None:
        """What shows that the kernel holds it stopped; None where it doesn't."""

    def expect_end(self) -> None:
        """From now on it may end by itself; :meth:`check_alive` says nothing of it until it is started again."""

    def pid(self) -> int | None:
        """Its JVM's process id on this machine; None while it doesn't run."""

    def exit_code(self) -> int | None:
        """How it ended: the exit status, minus the signal's number if by a signal; None while it runs or never ran."""

    def check_alive(self) -> None:
        """:raises NodeDied: it ended and nobody of the harness had ended it; carries its last log lines."""

    def journal_unexpected_end(self) -> None:
        """Write into the journal that it ended by itself, where it did and was not let; ``node.ended_by_itself``.

        So it is with everything that ends or starts it, lest an end that nobody had looked for be forgotten.
        """

    def configure(self, changes: Mapping[str, str | None]) -> None:
        """Change its properties, or take those out that are None; in force when it is next started."""

    def is_unchanged(self) -> bool:
        """Whether its properties are those that it was made with, and those that it was last started with, too; and
        that it ends would be told by :meth:`check_alive`.
        """

    def switch_logs(self) -> None:
        """Write down from now on where the context has it by now; what was there so far stays where it is.

        :raises OSError: that can't be done
        """

    def run_as_user(self, argv: Sequence[str], timeout_s: float = timeouts.PROBE_S) -> subprocess.CompletedProcess[str]:
        """Run a small command where the node lives, as the node's own user.

        :raises subprocess.TimeoutExpired: it took longer, and was killed
        """

    def run_tool(self, tool: Tool, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's own programs where the node lives, as the node's own user; bounded in time."""

    def in_network(self) -> list[str]:
        """What to put before a command so that it runs, as root, in the node's own network.

        :raises EnvironmentLacks: it has none of its own
        """

    def slow_group(self, device: str) -> SlowGroup:
        """A control group with the node in it, in which writes to a block device (``major:minor``) can be limited."""

    def make_dir(self, path: Path) -> None:
        """Make a folder that the node's user owns."""
