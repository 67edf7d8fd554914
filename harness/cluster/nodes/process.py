"""Nodes as local processes.

Under root, a node runs as an ordinary user, since a root broker would not notice ``chmod 000``. The kernel kills a node
when the harness dies (``setpriv --pdeathsig``), unless the cluster may outlive it. ``jbod clean`` finds any node by the
run's mark in its environment (:mod:`harness.host.undo`).

``--pdeathsig`` fires when the *thread* that started the child ends. So a node must be started from a thread that lives
as long as the harness. :meth:`ProcessNode.start` takes milliseconds: start several nodes one after another, then wait.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from harness import timeouts
from harness.cluster.nodes.jvm import LOG, STDOUT, JvmNode
from harness.cluster.nodes.node import SERVICE, ClusterContext, Endpoint, Node, NodeSpec, Runtime
from harness.errors import AwaitTimeout, EnvironmentLacks, HarnessError
from harness.host.broker_user import broker_user
from harness.host.control_group import SlowGroup
from harness.host.java import java_command, java_version
from harness.host.marked_processes import MARK
from harness.host.ports import HOST
from harness.kafka.distribution import Distribution
from harness.kafka.tools import tool_command
from harness.kafka.versions import Tool
from harness.waiting import await_until


def process_runtime(distribution: Distribution) -> Runtime:
    """This machine's Java and the build's jars.

    :raises EnvironmentLacks: there is no Java
    """
    return Runtime(
        java=tuple(java_command()),
        java_version=java_version()[1],
        class_path=tuple(map(str, distribution.class_path)),
        build=distribution.sha256,
    )


class ProcessBackend:
    """Makes nodes that are local processes; see :class:`harness.cluster.nodes.node.Backend`."""

    def __init__(self, context: ClusterContext) -> None:
        self.context = context
        self.runtime = process_runtime(context.distribution)
        self.user = broker_user()
        self._endpoints: dict[tuple[str, str], Endpoint] = {}

    def endpoint(self, node: str, purpose: str) -> Endpoint:
        if (node, purpose) not in self._endpoints:
            port = self.context.ports.take()
            self._endpoints[node, purpose] = Endpoint(address=f"{HOST}:{port}", port=port)
        return self._endpoints[node, purpose]

    def quorum_address(self, broker: str) -> str:
        return self.endpoint(broker, "quorum").address

    def listeners(self, broker: str) -> Mapping[str, str]:
        listener = f"{self.context.spec.listener_security.protocol}://{self.endpoint(broker, SERVICE).address}"
        return {"listeners": listener, "advertised.listeners": listener}

    def file(self, path: Path) -> Path:
        return path

    def runtime_of(self, build: Distribution) -> Runtime:
        return process_runtime(build)

    def node(self, spec: NodeSpec) -> Node:
        return ProcessNode(self, spec)

    def start(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            node.start()


class ProcessNode(JvmNode):
    """A local JVM; see :class:`harness.cluster.nodes.node.Node`."""

    def __init__(self, backend: ProcessBackend, spec: NodeSpec) -> None:
        super().__init__(backend, spec)
        self._process: subprocess.Popen[bytes] | None = None

    # --- lifecycle ----------------------------------------------------------------------------------------------

    def _launch(self, command: Sequence[str]) -> Mapping[str, object]:
        # The user first: the kernel drops pdeathsig when credentials change.
        death_signal = [] if self._context.outlives_harness else ["setpriv", "--pdeathsig", "KILL"]
        with self._append(LOG) as broker_log, self._append(STDOUT) as stdout:
            self._process = subprocess.Popen(
                [*self._user.command(), *death_signal, *command],
                cwd=self._context.work_dir,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=broker_log,
                start_new_session=True,  # Ctrl-C goes to the harness only, which then stops its nodes
            )
        return {"pid": self._process.pid}

    def environment(self) -> dict[str, str]:
        """The environment variables of a node; the files in compose/ set those of a container."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            MARK: self._context.undo_log.run_id,
        }

    def stop(self, timeout_s: float = timeouts.STOP_S) -> None:
        self.request_stop()
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._journal("node.stop_timed_out", after_s=timeout_s)
                self.kill()
        self._journal("node.stopped", exit_code=self.exit_code())

    def kill(self) -> None:
        self._end(signal.SIGKILL, "node.killed")
        if self._process is not None:
            self._process.wait(timeouts.STOP_S)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._await_paused()
        self._journal("node.paused")

    def resume(self) -> None:
        if self.is_alive():
            assert self._process is not None
            self._process.send_signal(signal.SIGCONT)
            self._journal("node.resumed")

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def paused_proof(self) -> str | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if (pid := self.pid()) and psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                return f"process state: {psutil.STATUS_STOPPED}"
        return None

    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_alive() else None

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    # --- commands on the node ---------------------------------------------------------------------------------------

    def run_tool(self, tool: Tool, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run_as_user(tool_command(self.build, tool, *arguments), timeouts.TOOL_S)

    def run_as_user(self, argv: Sequence[str], timeout_s: float = timeouts.PROBE_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._user.command(), *argv],
            cwd="/",
            env=self.environment() | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def in_network(self) -> list[str]:
        raise EnvironmentLacks(f"{self.spec.name} is a process and shares this machine's network: --backend docker")

    def slow_group(self, device: str) -> SlowGroup:
        return SlowGroup.make(device, self._context.undo_log, self._user.command(), self.pid())

    # --- inside ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _logging_paused(self) -> Iterator[None]:
        self._send(signal.SIGSTOP)
        try:
            self._await_paused()
            yield
        finally:
            self._send(signal.SIGCONT)

    def _await_paused(self) -> None:
        """Wait for the kernel, which stops a process's threads one by one after kill(2) has returned."""
        with contextlib.suppress(AwaitTimeout):
            await_until(self.is_paused, timeout_s=1.0, what=f"{self.spec.name} to stop", for_kafka=False)

    def _send(self, signum: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            self._process.send_signal(signum)

    def _append(self, name: str) -> IO[bytes]:
        try:
            return (self._record_dir / name).open("ab")
        except OSError as error:
            raise HarnessError(f"{self._record_dir / name} can't be written: {error.strerror}") from error
