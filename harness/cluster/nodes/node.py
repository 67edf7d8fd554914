"""The interface of a backend: how the harness creates, starts, stops and asks a node.

A *node* is one JVM of the cluster: a broker, a KRaft controller or a ZooKeeper server. A backend runs nodes as local
processes or as containers, and does not know their roles.

A path is the same to the harness and to a node in any backend: a container gets the run's folder mounted at its own
path. So log dirs, faults and checks do not depend on the backend. What the node's own user may access is tried on the
node (:meth:`Node.run_as_user`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

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
"""A node's port for the harness and clients, and for the brokers if it is ZooKeeper or a controller."""
AGENT = "agent"
"""The port of the node's agent for MBeans (:mod:`harness.kafka.mbeans`)."""
BOTH_QUORUMS = "ZooKeeper and KRaft controllers"
"""The ability of a backend to run both in one cluster."""


Say = Callable[[str], None]
"""Shows a line of progress to the user."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A port of a node.

    :ivar address: ``host:port`` for the node itself and for other nodes
    :ivar port: the port for the harness and clients, on :data:`harness.host.ports.HOST`
    """

    address: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The Java and the Kafka jars of a backend.

    :ivar java: the command that starts Java
    :ivar java_version: as Java reports it
    :ivar class_path: the paths of Kafka's jars, as a node sees them
    :ivar build: identifies the jars: their checksum, or the id of the image
    """

    java: tuple[str, ...]
    java_version: str
    class_path: tuple[str, ...]
    build: str

    def classes(self, mode: Mode) -> Path:
        """The path of the class data archive for nodes; :mod:`harness.cluster.fast_starts` makes it."""
        return class_data.archive_path(
            mode, build=self.build, class_path=self.class_path, java_version=self.java_version
        )


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """The main class, configuration and JVM options of a node.

    :ivar jvm_options: in addition to those of all nodes; ``{home}`` stands for the node's own folder
    :ivar is_kafka: False for ZooKeeper, whose end is no broken promise of Kafka
    :ivar build: the build that the node runs; None: the one with which its cluster was started
    """

    name: str
    main_class: str
    properties: Mapping[str, str]
    heap_mb: int = 256
    jvm_options: tuple[str, ...] = ()
    is_kafka: bool = True
    build: Distribution | None = None


@dataclass(kw_only=True)
class ClusterContext:
    """What a backend needs to know of its cluster. ``journal`` and ``record_dir`` change from case to case.

    :ivar record_dir: the case's ``brokers/`` folder, for configurations and logs
    :ivar undo_log: of the run; its run id marks everything that a backend makes (:mod:`harness.host.undo`)
    :ivar outlives_harness: the nodes may keep running after the harness ends (``--keep-cluster``, ``cluster up``)
    :ivar jvm_options: for all nodes, instead of the options for fast starts (:mod:`harness.host.class_data`)
    """

    spec: ClusterSpec
    distribution: Distribution
    record_dir: Path
    journal: Journal
    undo_log: UndoLog
    outlives_harness: bool = False
    jvm_options: tuple[str, ...] | None = None
    ports: PortBlock = field(default_factory=PortBlock)

    @property
    def work_dir(self) -> Path:
        """The run's folder, which the broker user may read."""
        return self.undo_log.dir


class Backend(Protocol):
    """Makes and starts the nodes of one cluster."""

    runtime: Runtime

    def endpoint(self, node: str, purpose: str) -> Endpoint:
        """The node's port for :data:`SERVICE` or :data:`AGENT`; the same at each call."""

    def quorum_address(self, broker: str) -> str:
        """``host:port`` of the controller listener of a combined node."""

    def listeners(self, broker: str) -> Mapping[str, str]:
        """The broker's settings for its listeners."""

    def file(self, path: Path) -> Path:
        """The path at which nodes can read a file of the harness."""

    def node(self, spec: NodeSpec) -> Node:
        """A node, not yet started."""

    def start(self, nodes: Sequence[Node]) -> None:
        """Start these nodes for the first time, and return without waiting until they are ready.

        :param nodes: first the node that the others connect to
        :raises HarnessError: the backend can't start them
        """


class Node(Protocol):
    """A JVM; every method may be called in any state."""

    spec: NodeSpec
    log: BrokerLog
    config: Path
    """The node's properties file."""

    def start(self) -> None:
        """Start the node and return at once; does nothing if it runs."""

    def stop(self, timeout_s: float) -> None:
        """Send SIGTERM and wait for the end; send SIGKILL after ``timeout_s``."""

    def request_stop(self) -> None:
        """Send SIGTERM; :meth:`stop` or :meth:`kill` then waits."""

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""

    def pause(self) -> None:
        """Suspend the node; it keeps its connections."""

    def resume(self) -> None:
        """Let a suspended node continue."""

    def is_alive(self) -> bool:
        """Whether the process exists, running or paused."""

    def is_paused(self) -> bool:
        """Whether the kernel has suspended the node."""

    def paused_proof(self) -> str | None:
        """Evidence that the kernel has suspended the node; None if it has not."""

    def expect_end(self) -> None:
        """Let the node end by itself from now on: :meth:`check_alive` passes until the next start."""

    def pid(self) -> int | None:
        """The JVM's process id on this machine; None if it does not run."""

    def exit_code(self) -> int | None:
        """The exit status, or minus the number of the signal that ended it; None if it runs or was never started."""

    def check_alive(self) -> None:
        """Check that the node has not ended by itself.

        :raises PromiseBroken: it has, and Kafka is to blame; with its last log lines
        :raises NodeDied: it has, and its environment is to blame, or it is ZooKeeper
            (:mod:`harness.cluster.nodes.endings`)
        """

    def journal_unexpected_end(self) -> None:
        """Write ``node.ended_by_itself`` into the journal if the node has ended by itself.

        Everything that stops or starts the node calls this first, so that no end goes unnoticed.
        """

    def configure(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, or remove them (None), with effect from the next start."""

    @property
    def build(self) -> Distribution:
        """The build that it runs from its next start on; while it runs unchanged, the build that runs."""

    def use_build(self, build: Distribution) -> None:
        """Run another build, with effect from the next start.

        :raises EnvironmentLacks: all nodes of the backend run the same build
        """

    def is_unchanged(self) -> bool:
        """Whether its properties and its build are the original ones, it runs with them, and it should go on."""

    def switch_logs(self) -> None:
        """Write the logs into the context's current ``record_dir``; the old folder keeps what was written so far.

        :raises OSError: the logs can't be switched
        """

    def run_as_user(self, argv: Sequence[str], timeout_s: float = timeouts.PROBE_S) -> subprocess.CompletedProcess[str]:
        """Run a short command as the node's user and in its environment, such as its container.

        :raises subprocess.TimeoutExpired: it took longer than ``timeout_s`` and was killed
        """

    def run_tool(self, tool: Tool, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's tools as :meth:`run_as_user` does, for at most :data:`harness.timeouts.TOOL_S`."""

    def in_network(self) -> list[str]:
        """The prefix that makes a command run in the node's network, as root.

        :raises EnvironmentLacks: the node has no network of its own
        """

    def slow_group(self, device: str) -> SlowGroup:
        """A control group of the node, to limit its writes to a block device (``major:minor``)."""

    def make_dir(self, path: Path) -> None:
        """Create a folder that belongs to the node's user."""


def cpu_s(nodes: Iterable[Node]) -> float:
    """The CPU seconds of these nodes since each was started."""
    times = [psutil.Process(pid).cpu_times() for node in nodes if (pid := node.pid()) is not None]
    return sum(each.user + each.system for each in times)
