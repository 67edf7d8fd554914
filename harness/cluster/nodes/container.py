"""Nodes as containers of a Docker engine on this machine, described by ``compose/``.

The compose file says which containers there are, at which addresses they listen, and which ports are published on
loopback. jbod sets its variables in an env file in the run's folder, so ``docker compose --env-file`` shows what ran.
Compose then creates the containers. After that, the engine's own protocol starts and stops each one.

The run's folder is mounted at its own path, so a log dir has the same path inside and outside. What the harness does to
a log dir (chmod, a file in its place, a file system mounted over it) also happens in the container. The broker user has
the same uid inside. Commands run as that user in the container. If the container does not run, they run in a
short-lived one of the same image with the same mounts. No container is privileged.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypedDict

import msgspec
from docker.errors import APIError
from testcontainers.compose import DockerCompose

from harness import timeouts
from harness.cluster.nodes.images import Image, image_for
from harness.cluster.nodes.jvm import LOG, STDOUT, JvmNode
from harness.cluster.nodes.networks import free_network, release_network
from harness.cluster.nodes.node import AGENT, SERVICE, ClusterContext, Endpoint, Node, NodeSpec, Runtime
from harness.errors import EngineGone, EnvironmentLacks, FaultNotProven, HarnessError
from harness.host.broker_user import broker_user
from harness.host.control_group import SlowGroup, controller, group_of
from harness.host.engine import compose, compose_program, engine, execute, explained, host, run_once
from harness.host.freezer import FROZEN, freezer_state
from harness.host.java import FAST_START
from harness.host.marked_processes import MARK
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode, Tool

_FILES = Path(__file__).resolve().parents[3] / "compose"
_LAST_IDS = {"broker": 3, "controller": 100}
"""The highest id of each kind in the compose files."""
_ADDRESS_OFFSETS = {"broker": 10, "controller": 0}
"""The last number of a node's address is its id plus this."""
_AGENT_PORT = 8778
_QUORUM_PORT = 9093
_LISTENER_SETTINGS = re.compile(r"listeners$|^inter\.broker\.listener\.name$|^listener\.security\.protocol\.map$")
# Exit codes of a JVM that shuts down after SIGHUP, SIGINT, SIGTERM.
_ORDERLY = (129, 130, 143)
_KILLED = 137
_END_S = 1.0
"""How long the engine may take to report that a killed container ended."""
_ENGINE_S = 30.0
"""How long the engine may take to run a command, in addition to the command's own time."""
_WATCHDOG = "import sys; sys.stdin.read(); from harness.host.engine import end_run; end_run(sys.argv[1])"


class _State(TypedDict):
    Pid: int
    Paused: bool


class Container(Protocol):
    """The part of ``docker.models.containers.Container`` that is used here; the SDK has no types."""

    id: str
    short_id: str
    attrs: Mapping[str, _State]

    def attach(
        self, *, stdout: bool, stderr: bool, stream: bool, demux: bool
    ) -> Iterator[tuple[bytes | None, bytes | None]]: ...
    def start(self) -> None: ...
    def kill(self, signal: str) -> None: ...
    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def reload(self) -> None: ...
    def wait(self) -> Mapping[str, int]: ...


class _Port(msgspec.Struct):
    target: int
    published: str


class _Service(msgspec.Struct):
    """A service as ``docker compose config`` prints it."""

    ports: list[_Port]
    networks: dict[str, dict[str, object]]


def container_runtime(image: Image) -> Runtime:
    """The Java and jars of an image."""
    return Runtime(java=("java",), java_version=image.java_version, class_path=image.jars, build=image.id)


class ContainerBackend:
    """Makes nodes that are containers; see :class:`harness.cluster.nodes.node.Backend`.

    :ivar compose: the compose command of this cluster, without a subcommand
    """

    def __init__(self, context: ClusterContext) -> None:
        self.context = context
        self.user = broker_user()
        if self.user.bare:
            raise EnvironmentLacks(
                "root of a user namespace would be real root in a container: run jbod outside of the namespace"
            )
        if context.spec.volumes:
            _share_mounts(context)  # before a volume is mounted
        self.image = image_for(context.distribution, context.spec.mode, lambda _line: None)
        self.runtime = container_runtime(self.image)
        self.mount = f"{context.work_dir}:{context.work_dir}:{'rslave' if context.spec.volumes else 'rw'}"
        self._project = _ComposeProject(context, self.image, f"{self.user.uid}:{self.user.gid}")
        self.compose = self._project.command
        self._watchdog: subprocess.Popen[bytes] | None = None
        context.journal.write("image.used", image=self.image.name, id=self.image.id)

    def endpoint(self, node: str, purpose: str) -> Endpoint:
        return self._project.endpoint(node, purpose)

    def quorum_address(self, broker: str) -> str:
        """The address inside the cluster's network. The port is not published, since only nodes use it."""
        host, _, _ = self.endpoint(broker, SERVICE).address.partition(":")
        return f"{host}:{_QUORUM_PORT}"

    def listeners(self, broker: str) -> Mapping[str, str]:
        return self._project.listeners(broker)

    def file(self, path: Path) -> Path:
        """Put a hard link or a copy into the run's folder, and return its path."""
        there = self.context.work_dir / path.name
        if not there.exists():
            try:
                os.link(path, there)
            except OSError:
                shutil.copyfile(path, there)
        return there

    def runtime_of(self, build: Distribution) -> Runtime:
        raise EnvironmentLacks(f"all containers of a cluster are of one image, so none can change to {build.version}")

    def node(self, spec: NodeSpec) -> Node:
        return ContainerNode(self, spec)

    def start(self, nodes: Sequence[Node]) -> None:
        run = self.context.undo_log.run_id
        self.context.undo_log.will("containers", run=run, engine=host())
        if self._watchdog is None and not self.context.outlives_harness:
            self._watchdog = start_watchdog(run)
        starting = []
        with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
            # The first starts earlier: a broker that finds no ZooKeeper sleeps for up to two seconds (ClientCnxn).
            for group in filter(None, (nodes[:1], nodes[1:])):
                # The image is local; without --pull, compose would ask a registry.
                compose(self.compose, "create", "--pull", "never", *(node.spec.name for node in group), run=run)
                release_network(self._project.network)  # the engine has made it
                starting += [pool.submit(node.start) for node in group]
        for each in starting:
            each.result()

    def container(self, node: str) -> Container:
        """The container of the node with this name."""
        found: Container = engine().containers.get(f"{self._project.name}-{node}-1")
        return found


def start_watchdog(run: str) -> subprocess.Popen[bytes]:
    """Start a process that cleans up when the harness dies: it ends the run's processes and removes its containers.

    It reads a pipe to which nothing is written, until the kernel closes the other end; only then it imports the
    harness. It carries the run's mark, so it ends with the run's other processes.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _WATCHDOG, run],
        env=os.environ | {MARK: run},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C goes to the harness only, which cleans up by itself
    )


def _share_mounts(context: ClusterContext) -> None:
    """Make mounts in the run's folder, present and future, visible in containers.

    :raises EnvironmentLacks: the kernel refuses
    """
    path = str(context.work_dir)
    context.undo_log.will("share", path=path)
    for argv in (["mount", "--bind", path, path], ["mount", "--make-shared", path]):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentLacks(f"{path} can't be shared with containers: {done.stderr.strip()}")


class _ComposeProject:
    """The compose file of a metadata mode with its variables set for one run, and the nodes added to it.

    :ivar name: the project's name, with which the containers' names begin
    :ivar command: the compose command, without a subcommand
    :ivar network: the first three numbers of its subnet
    """

    def __init__(self, context: ClusterContext, image: Image, user: str) -> None:
        self._context = context
        self.network = free_network(context.ports.number)
        self.name = re.sub(r"[^a-z0-9_-]", "-", context.undo_log.run_id.lower())
        variables = {
            "JBOD_PROJECT": self.name,
            "JBOD_RUN": context.undo_log.run_id,
            "JBOD_IMAGE": image.name,
            "JBOD_USER": user,
            "JBOD_DIR": str(context.work_dir),
            "JBOD_MOUNT": "rslave" if context.spec.volumes else "rw",
            "JBOD_HEALTH_INTERVAL": "1h",  # the harness checks health itself; each check would start a process
            "JBOD_NETWORK": self.network,
        }
        zk = context.spec.mode is Mode.ZK
        brokers = [f"BROKER_{n}" for n in range(1, _LAST_IDS["broker"] + 1)]
        kafka_nodes = brokers if zk else ["CONTROLLER_100", *brokers]
        published = [f"{name}_{port}" for name in kafka_nodes for port in ("PORT", "AGENT")]
        variables |= {name: str(context.ports.take()) for name in (["ZOOKEEPER_PORT"] if zk else []) + published}
        env_file = context.work_dir / "compose.env"
        env_file.write_text("".join(f"{name}='{value}'\n" for name, value in variables.items()))
        file = str(_FILES / ("zookeeper.yaml" if zk else "kraft.yaml"))
        project = DockerCompose(_FILES, compose_file_name=[file], env_file=[str(env_file)])
        _docker, _compose, *options = project.docker_compose_command()
        self.command = [*compose_program(), *options]
        config = json.loads(compose(self.command, "config", "--format", "json"))
        self._config: dict[str, dict[str, object]] = {kind: config[kind] for kind in ("services", "configs")}
        self._added_file = context.work_dir / "compose.more.json"
        self._added: dict[str, dict[str, object]] = {"services": {}, "configs": {}}

    def _service(self, node: str) -> _Service:
        """A node's service; a broker or controller that is not in the file is added."""
        if node not in self._config["services"]:
            self._add(node)
        return msgspec.convert(self._config["services"][node], _Service)

    def _add(self, name: str) -> None:
        """Add a broker or controller: a copy of the last one in the file with another name, address and ports."""
        kind, _, id = name.partition("-")
        last, offset = f"{kind}-{_LAST_IDS[kind]}", _ADDRESS_OFFSETS[kind]
        changes = {last: name, f"{self.network}.{offset + _LAST_IDS[kind]}": f"{self.network}.{offset + int(id)}"}
        changes |= {port.published: str(self._context.ports.take()) for port in self._service(last).ports}
        folder = json.dumps(str(self._context.work_dir))[1:-1]  # unchanged, even if it contains one of the names
        for section, added in self._added.items():
            texts = json.dumps(self._config[section][last]).split(folder)
            for old, new in changes.items():
                texts = [re.sub(rf"(?<![\d.]){re.escape(old)}(?!\d)", new, text) for text in texts]
            added[name] = self._config[section][name] = json.loads(folder.join(texts))
        if not self._added_file.exists():
            self.command += ["-f", str(self._added_file)]
        self._added_file.write_text(json.dumps(self._added))

    def endpoint(self, node: str, purpose: str) -> Endpoint:
        """The published port for this purpose."""
        service = self._service(node)
        for port in service.ports:
            if (port.target == _AGENT_PORT) == (purpose == AGENT):
                address = f"{service.networks['default']['ipv4_address']}:{port.target}"
                return Endpoint(address=address, port=int(port.published))
        raise HarnessError(f"{node} publishes no port for its {purpose}")

    def listeners(self, broker: str) -> Mapping[str, str]:
        """The listener settings in the broker's configuration in the file."""
        self._service(broker)
        content = str(msgspec.convert(self._config["configs"][broker], dict[str, object])["content"])
        pairs = (line.partition("=") for line in content.splitlines())
        return {key: value for key, _, value in pairs if _LISTENER_SETTINGS.search(key)}


class ContainerNode(JvmNode):
    """A container; see :class:`harness.cluster.nodes.node.Node`."""

    def __init__(self, backend: ContainerBackend, spec: NodeSpec) -> None:
        super().__init__(backend, spec)
        self._containers = backend
        self._run: _ContainerRun | None = None

    @cached_property
    def _container(self) -> Container:
        with explained(f"starting {self.spec.name}"):
            return self._containers.container(self.spec.name)

    # --- lifecycle ----------------------------------------------------------------------------------------------

    def _launch(self, command: Sequence[str]) -> Mapping[str, object]:
        script = self.config.with_name("start")
        script.write_text(f"cd {shlex.quote(str(self._context.work_dir))}\nexec {shlex.join(command)}\n")
        script.chmod(0o644)
        run = _ContainerRun(self._container, self._record_dir)
        try:
            with explained(f"starting {self.spec.name}"):
                run.begin()
        except HarnessError:
            run.close()
            raise
        self._run = run
        return {"container": self._container.short_id}

    def stop(self, timeout_s: float = timeouts.STOP_S) -> None:
        self.request_stop()
        if self._run is not None and not self._run.await_end(timeout_s):
            self._journal("node.stop_timed_out", after_s=timeout_s)
            self.kill()
        self._journal("node.stopped", exit_code=self.exit_code())

    def kill(self) -> None:
        self._end(signal.SIGKILL, "node.killed")
        if self._run is not None and not self._run.await_end(timeouts.STOP_S):
            raise HarnessError(f"{self.spec.name} still runs {timeouts.STOP_S:.0f} s after its container was killed")

    def pause(self) -> None:
        """The engine uses the kernel's freezer, which suspends every process in the container."""
        with explained(f"pausing {self.spec.name}"):
            self._container.pause()
        self._journal("node.paused")

    def resume(self) -> None:
        if self.is_alive() and self._state()["Paused"]:  # else the engine would refuse
            with explained(f"resuming {self.spec.name}"):
                self._container.unpause()
            self._journal("node.resumed")

    def is_alive(self) -> bool:
        """:raises EngineGone: unknown, since the engine is gone"""
        return self._run is not None and not self._run.has_ended()

    def paused_proof(self) -> str | None:
        """The state of the kernel's freezer, or the engine's answer if the freezer can't be read."""
        if not self.is_alive():
            return None
        state = self._state()
        freezer = freezer_state(state["Pid"], of=self._container.id)
        if freezer is None:
            return "the engine reports that it is paused" if state["Paused"] else None
        return freezer if freezer in FROZEN else None

    def pid(self) -> int | None:
        return self._state()["Pid"] if self.is_alive() else None

    def exit_code(self) -> int | None:
        code = None if self._run is None else self._run.exit_code
        return code if code is None or code < 128 or code in _ORDERLY else 128 - code

    # --- commands on the node ---------------------------------------------------------------------------------------

    def run_as_user(self, argv: Sequence[str], timeout_s: float = timeouts.PROBE_S) -> subprocess.CompletedProcess[str]:
        """Runs in the container or, if it does not run, in another container of the same image."""
        bounded = ["timeout", "-s", "KILL", f"{timeout_s:g}", *argv]
        began = time.monotonic()
        with explained(f"running {argv[0]} in {self.spec.name}"):
            done = None
            if self.is_alive() and not self.is_paused():
                with contextlib.suppress(APIError):  # the container ended just now
                    patience_s = timeout_s + _ENGINE_S
                    done = execute(self._container.id, bounded, environment={"LC_ALL": "C"}, patience_s=patience_s)
            if done is None or (done.returncode == _KILLED and self._is_ending()):
                began = time.monotonic()
                done = self._run_in_new_container(bounded, timeout_s)
        if done.returncode == _KILLED and time.monotonic() - began >= timeout_s:
            raise subprocess.TimeoutExpired(list(argv), timeout_s)
        return done

    def run_tool(self, tool: Tool, *arguments: str) -> subprocess.CompletedProcess[str]:
        main_class = self.build.main_class(tool)
        class_path = os.pathsep.join(self._runtime.class_path)
        return self.run_as_user(
            [*self._runtime.java, *FAST_START, "-cp", class_path, main_class, *arguments], timeouts.TOOL_S
        )

    def in_network(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid()}/ns/net"]

    def slow_group(self, device: str) -> SlowGroup:
        """The container's own control group.

        :raises FaultNotProven: the container does not run, so it has none
        """
        pid = self.pid()
        if pid is None:
            raise FaultNotProven(f"{self.spec.name} does not run, so it has no control group")
        path = group_of(controller(), pid)
        return SlowGroup(path, device, self._context.undo_log, self.run_as_user)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _is_ending(self) -> bool:
        """Whether the container is about to end, with every process in it."""
        return self._run is None or self._run.await_end(_END_S)

    def _run_in_new_container(self, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        run = self._context.undo_log.run_id
        return run_once(
            self._containers.image.name,
            argv,
            run,
            patience_s=timeout_s + _ENGINE_S,
            user=f"{self._user.uid}:{self._user.gid}",
            volumes=[self._containers.mount],
            environment={"LC_ALL": "C", MARK: run},
            working_dir="/",
        )

    def _logging_paused(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if self._run is None else self._run.writing

    def _send(self, signum: signal.Signals) -> None:
        with explained(f"{signum.name} to {self.spec.name}"), contextlib.suppress(APIError):  # it ended just now
            self._container.kill(signum.name)

    def _state(self) -> _State:
        with explained(f"asking for the state of {self.spec.name}"):
            self._container.reload()
        return self._container.attrs["State"]


class _ContainerRun:
    """One run of a container, from its start to its end; copies its output into log files.

    :ivar writing: a lock that is held during each write
    """

    def __init__(self, container: Container, record_dir: Path) -> None:
        """:raises OSError: the log files can't be opened"""
        self._code: int | None = None
        self._container = container
        self._stdout = (record_dir / STDOUT).open("ab", buffering=0)
        self._log = (record_dir / LOG).open("ab", buffering=0)
        self._gone: EngineGone | None = None
        self._ended = threading.Event()
        self.writing = threading.Lock()

    @property
    def exit_code(self) -> int | None:
        """None until :meth:`has_ended`, so that a node with an exit code is never reported as alive."""
        return self._code if self._ended.is_set() else None

    def close(self) -> None:
        """Close the log files of a container that did not start."""
        self._stdout.close()
        self._log.close()

    def begin(self) -> None:
        """Start the container and copy its output."""
        # Attached before the start, as in `docker run`: the output is complete, and has none of an earlier run's.
        output = self._container.attach(stdout=True, stderr=True, stream=True, demux=True)
        self._container.start()
        threading.Thread(target=self._follow, args=(output,), name="jbod-container", daemon=True).start()

    def has_ended(self) -> bool:
        """Whether the container has ended.

        :raises EngineGone: unknown, since the engine is gone
        """
        if self._gone is not None:
            raise self._gone
        return self._ended.is_set()

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the container has ended, its output is written and its ports are free; False if not in time."""
        return self._ended.wait(timeout_s)

    def _follow(self, output: Iterator[tuple[bytes | None, bytes | None]]) -> None:
        try:
            with self._stdout, self._log, explained("following a container"):
                for out, err in output:
                    with self.writing, contextlib.suppress(OSError):  # a full disk, which the journal reports
                        self._stdout.write(out or b"")
                        self._log.write(err or b"")
                self._code = self._container.wait()["StatusCode"]
                # The engine answers this request only after it has freed the container's ports.
                self._container.reload()
        except EngineGone as error:
            self._gone = error
        except HarnessError:
            pass  # the container was removed, so it has ended
        finally:
            self._ended.set()
