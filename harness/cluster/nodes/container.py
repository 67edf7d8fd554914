"""Nodes as containers of a Docker engine on this machine, described by ``compose/``.

The compose file is the description, for people and for jbod alike: it says which containers there are, at which
addresses they listen, and which ports are published on loopback. jbod sets its variables (an env file in the run's
folder, so that ``docker compose --env-file`` shows what ran), asks compose what came of it, and has it create
everything. From then on containers are started and ended one by one, by the engine's own protocol.

The run's folder is mounted at its own path, so that a log dir has one name, and what the harness does to it (chmod, a
file in its place, a file system mounted over it) happens to the container, whose user has the same number inside. What
is to be shown as that user is run in the container, or, where that doesn't run, in a short-lived one of the same image
with the same mounts. None is privileged.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
from docker.errors import APIError
from testcontainers.compose import DockerCompose

from harness import timeouts
from harness.cluster.nodes.images import Image, image_for
from harness.cluster.nodes.jvm import LOG, STDOUT, JvmNode
from harness.cluster.nodes.node import AGENT, SERVICE, Endpoint, Node, NodeSpec, Runtime, ClusterContext
from harness.errors import EngineGone, EnvironmentLacks, FaultNotProven, HarnessError
from harness.host.broker_user import broker_user
from harness.host.control_group import FROZEN, SlowGroup, controller, freezer_state, group_of
from harness.host.engine import compose, compose_program, engine, execute, explained, host, run_once
from harness.host.java import FAST_START
from harness.host.marked_processes import MARK
from harness.kafka.versions import Mode, Tool

_FILES = Path(__file__).resolve().parents[3] / "compose"
_DESCRIBED = {"broker": 3, "controller": 100}
"""The id of the last of each kind that stands in the files."""
_ADDRESSES = {"broker": 10, "controller": 0}
"""What the last number of an address is above the node's id."""
_AGENT_PORT = 8778
_QUORUM_PORT = 9093
_NETWORK = re.compile(r"listeners$|^inter\.broker\.listener\.name$|^listener\.security\.protocol\.map$")
# Exit codes of a JVM that ends in good order after SIGHUP, SIGINT, SIGTERM.
_ORDERLY = (129, 130, 143)
_KILLED = 137
_END_S = 1.0
"""A container whose processes are killed ends, and the engine has noticed."""
_ENGINE_S = 30.0
"""What an engine may take beside what is to be done takes itself."""
_LEASH = "import sys; sys.stdin.read(); from harness.host.engine import end_run; end_run(sys.argv[1])"


def container_runtime(image: Image) -> Runtime:
    """The image's Java and jars."""
    return Runtime(java=("java",), java_version=image.java_version, class_path=image.jars, build=image.id)


class ContainerBackend:
    """Makes nodes that are containers; see :class:`harness.cluster.nodes.node.Backend`.

    :ivar compose: the compose command of this cluster, to which a subcommand is added
    """

    def __init__(self, context: ClusterContext) -> None:
        self.context = context
        self.user = broker_user()
        if self.user.bare:
            raise EnvironmentLacks("root of a user namespace would be real root in a container: run it outside of one")
        if context.spec.volumes:
            _share(context)  # before anything is mounted in it
        self.image = image_for(context.distribution, context.spec.mode, lambda _line: None)
        self.runtime = container_runtime(self.image)
        self.mount = f"{context.work_dir}:{context.work_dir}:{'rslave' if context.spec.volumes else 'rw'}"
        self._description = _Description(context, self.image, f"{self.user.uid}:{self.user.gid}")
        self.compose = self._description.command
        self._leash: subprocess.Popen[bytes] | None = None
        context.journal.write("image.used", image=self.image.name, id=self.image.id)

    def endpoint(self, node: str, purpose: str) -> Endpoint:
        """See :meth:`harness.cluster.nodes.node.Backend.endpoint`."""
        return self._description.endpoint(node, purpose)

    def quorum_address(self, broker: str) -> str:
        """A port that is not published: nodes alone go there."""
        host, _, _ = self.endpoint(broker, SERVICE).address.partition(":")
        return f"{host}:{_QUORUM_PORT}"

    def listeners(self, broker: str) -> Mapping[str, str]:
        """As the description has them."""
        return self._description.listeners(broker)

    def file(self, path: Path) -> Path:
        """A link to it, or a copy, in the run's folder."""
        there = self.context.work_dir / path.name
        if not there.exists():
            try:
                os.link(path, there)
            except OSError:
                shutil.copyfile(path, there)
        return there

    def node(self, spec: NodeSpec) -> Node:
        """See :meth:`harness.cluster.nodes.node.Backend.node`."""
        return ContainerNode(self, spec)

    def start(self, nodes: Sequence[Node]) -> None:
        """See :meth:`harness.cluster.nodes.node.Backend.start`."""
        run = self.context.undo_log.run_id
        self.context.undo_log.will("containers", run=run, engine=host())
        if self._leash is None and not self.context.outlives_harness:
            self._leash = start_watchdog(run)
        starting = []
        with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
            # The first has a lead: a broker that finds no ZooKeeper sleeps for up to two seconds (its ClientCnxn).
            for some in filter(None, (nodes[:1], nodes[1:])):
                # The image was here a moment ago; compose would look for it in a registry.
                compose(self.compose, "create", "--pull", "never", *(node.spec.name for node in some), run=run)
                starting += [pool.submit(node.start) for node in some]
        for each in starting:
            each.result()

    def container(self, node: str) -> object:
        """The container of the node of that name."""
        return engine().containers.get(f"{self._description.project}-{node}-1")


def start_watchdog(run: str) -> subprocess.Popen[bytes]:
    """A process that ends a run's processes and removes what the engine has of it once the harness has died, as the
    kernel ends processes.

    It reads from a pipe to which nobody writes, and whose other end the kernel closes; until then it has loaded
    nothing. It carries the run's mark, and is ended with all that does.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _LEASH, run],
        env=os.environ | {MARK: run},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal is for the harness, which cleans up by itself
    )


def _share(context: ClusterContext) -> None:
    """Have file systems that are mounted in the run's folder, now or later, show up in the containers too.

    :raises EnvironmentLacks: the kernel refuses
    """
    path = str(context.work_dir)
    context.undo_log.will("share", path=path)
    for argv in (["mount", "--bind", path, path], ["mount", "--make-shared", path]):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentLacks(f"{path} can't be shared with containers: {done.stderr.strip()}")


class _Description:
    """The compose file of a mode, with its variables set for one run."""

    def __init__(self, context: ClusterContext, image: Image, user: str) -> None:
        self._context = context
        self._network = _free_network(context.ports.number)
        self.project = re.sub(r"[^a-z0-9_-]", "-", context.undo_log.run_id.lower())
        variables = {
            "JBOD_PROJECT": self.project,
            "JBOD_RUN": context.undo_log.run_id,
            "JBOD_IMAGE": image.name,
            "JBOD_USER": user,
            "JBOD_DIR": str(context.work_dir),
            "JBOD_MOUNT": "rslave" if context.spec.volumes else "rw",
            "JBOD_HEALTH_INTERVAL": "1h",  # the harness looks for itself; each look would cost a process in a container
            "JBOD_NETWORK": self._network,
        }
        zk = context.spec.mode is Mode.ZK
        brokers = [f"BROKER_{n}" for n in range(1, _DESCRIBED["broker"] + 1)]
        of_kafka = brokers if zk else ["CONTROLLER_100", *brokers]
        published = [f"{name}_{port}" for name in of_kafka for port in ("PORT", "AGENT")]
        variables |= {name: str(context.ports.take()) for name in (["ZOOKEEPER_PORT"] if zk else []) + published}
        env_file = context.work_dir / "compose.env"
        env_file.write_text("".join(f"{name}='{value}'\n" for name, value in variables.items()))
        file = str(_FILES / ("zookeeper.yaml" if zk else "kraft.yaml"))
        described = DockerCompose(_FILES, compose_file_name=[file], env_file=[str(env_file)])
        _docker, _compose, *options = described.docker_compose_command()
        self.command = [*compose_program(), *options]
        self._config = json.loads(compose(self.command, "config", "--format", "json"))
        self._more = context.work_dir / "compose.more.json"
        self._added: dict[str, dict[str, object]] = {"services": {}, "configs": {}}

    def _service(self, node: str) -> dict[str, Any]:
        """What is said of a node; a broker or controller that is not in the file is added to what is described."""
        services: dict[str, dict[str, object]] = self._config["services"]
        if node not in services:
            self._add(node)
        return services[node]

    def _add(self, name: str) -> None:
        """One more broker or controller: the last one of the file again, under another name, address and ports."""
        kind, _, id = name.partition("-")
        last, above = f"{kind}-{_DESCRIBED[kind]}", _ADDRESSES[kind]
        other = {last: name, f"{self._network}.{above + _DESCRIBED[kind]}": f"{self._network}.{above + int(id)}"}
        other |= {port["published"]: str(self._context.ports.take()) for port in self._config["services"][last]["ports"]}
        folder = json.dumps(str(self._context.work_dir))[1:-1]  # whatever it is called, it stays
        for kind, added in self._added.items():
            said = json.dumps(self._config[kind][last]).split(folder)
            for old, new in other.items():
                said = [re.sub(rf"(?<![\d.]){re.escape(old)}(?!\d)", new, text) for text in said]
            added[name] = self._config[kind][name] = json.loads(folder.join(said))
        if not self._more.exists():
            self.command += ["-f", str(self._more)]
        self._more.write_text(json.dumps(self._added))

    def endpoint(self, node: str, purpose: str) -> Endpoint:
        """The published port for this purpose."""
        service = self._service(node)
        address = service["networks"]["default"]["ipv4_address"]
        for port in service["ports"]:
            if (port["target"] == _AGENT_PORT) == (purpose == AGENT):
                return Endpoint(address=f"{address}:{port['target']}", port=int(port["published"]))
        raise HarnessError(f"{node} publishes no port for its {purpose}")

    def listeners(self, broker: str) -> Mapping[str, str]:
        """What the broker's settings in the file say of its network."""
        self._service(broker)
        lines = self._config["configs"][broker]["content"].splitlines()
        pairs = (line.partition("=") for line in lines)
        return {key: value for key, _, value in pairs if _NETWORK.search(key)}


def _free_network(preferred: int) -> str:
    """The first three numbers of a /24 out of 198.18.0.0/15 that no network of the engine or this machine overlaps.

    An engine's networks outlive it: whoever ends one leaves its bridges behind, and of two with the same addresses the
    kernel sends what is for the new one's containers to the old. The engine does not look, where a subnet is named.

    :raises EnvironmentLacks: there is none left
    """
    taken = [
        ipaddress.ip_network(f"{address.address}/{address.netmask}", strict=False)
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and address.netmask
    ]
    with explained("looking for a free network"):
        taken += [
            ipaddress.ip_network(config["Subnet"])
            for network in engine().networks.list()
            for config in (network.attrs.get("IPAM") or {}).get("Config") or ()
            if config.get("Subnet")
        ]
    # From there on, so that two clusters that begin at once don't come to the same one.
    for number in ((preferred + further) % 512 for further in range(512)):
        text = f"198.{18 + number // 256}.{number % 256}"
        network = ipaddress.ip_network(f"{text}.0/24")
        if not any(network.version == other.version and network.overlaps(other) for other in taken):
            return text
    raise EnvironmentLacks("no network in 198.18.0.0/15 is free: docker network ls, docker network prune, ip address")


class ContainerNode(JvmNode):
    """One container; see :class:`harness.cluster.nodes.node.Node`."""

    def __init__(self, backend: ContainerBackend, spec: NodeSpec) -> None:
        super().__init__(backend.context, backend.runtime, backend.user, spec)
        self._backend = backend
        self._container: Any = None
        self._watch: _Watch | None = None

    # --- life ---------------------------------------------------------------------------------------------------

    def _launch(self, command: Sequence[str]) -> Mapping[str, object]:
        script = self.config.with_name("start")
        script.write_text(f"cd {shlex.quote(str(self._backend.context.work_dir))}\nexec {shlex.join(command)}\n")
        script.chmod(0o644)
        with explained(f"starting {self.spec.name}"):
            if self._container is None:
                self._container = self._backend.container(self.spec.name)
        watch = _Watch(self._container, self._record_dir)
        try:
            with explained(f"starting {self.spec.name}"):
                watch.begin()
        except HarnessError:
            watch.close()
            raise
        self._watch = watch
        return {"container": self._container.short_id}

    def stop(self, timeout_s: float = timeouts.STOP_S) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.stop`."""
        self.request_stop()
        if self._watch is not None and not self._watch.await_end(timeout_s):
            self._journal("node.stop_timed_out", after_s=timeout_s)
            self.kill()
        self._journal("node.stopped", exit_code=self.exit_code())

    def kill(self) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.kill`."""
        self._end(signal.SIGKILL, "node.killed")
        if self._watch is not None and not self._watch.await_end(timeouts.STOP_S):
            raise HarnessError(f"{self.spec.name} goes on {timeouts.STOP_S:.0f} s after its container was killed")

    def pause(self) -> None:
        """The engine's own pause: the kernel's freezer, for all in the container."""
        with explained(f"pausing {self.spec.name}"):
            self._container.pause()
        self._journal("node.paused")

    def resume(self) -> None:
        """See :meth:`harness.cluster.nodes.node.Node.resume`."""
        if self.is_alive() and self._state()["Paused"]:  # as the engine has it, which would refuse else
            with explained(f"resuming {self.spec.name}"):
                self._container.unpause()
            self._journal("node.resumed")

    def is_alive(self) -> bool:
        """See :meth:`harness.cluster.nodes.node.Node.is_alive`.

        :raises EngineGone: nobody knows, as the engine went away
        """
        return self._watch is not None and not self._watch.has_ended()

    def paused_proof(self) -> str | None:
        """The kernel's word, and the engine's, which did it, only where the kernel can't be asked."""
        if not self.is_alive():
            return None
        state = self._state()
        said = freezer_state(int(state["Pid"]), of=self._container.id)
        if said is None:
            return "the engine says that it is paused" if state["Paused"] else None
        return said if said in FROZEN else None

    def pid(self) -> int | None:
        """See :meth:`harness.cluster.nodes.node.Node.pid`."""
        return int(self._state()["Pid"]) if self.is_alive() else None

    def exit_code(self) -> int | None:
        """See :meth:`harness.cluster.nodes.node.Node.exit_code`."""
        code = None if self._watch is None else self._watch.exit_code
        return code if code is None or code < 128 or code in _ORDERLY else 128 - code

    # --- its surroundings -----------------------------------------------------------------------------------------

    def run_as_user(self, argv: Sequence[str], timeout_s: float = timeouts.PROBE_S) -> subprocess.CompletedProcess[str]:
        """In the container, or, where it doesn't run, in another one of its kind."""
        bounded = ["timeout", "-s", "KILL", f"{timeout_s:g}", *argv]
        began = time.monotonic()
        with explained(f"running {argv[0]} in {self.spec.name}"):
            done = None
            if self.is_alive() and not self.is_paused():
                with contextlib.suppress(APIError):  # it ended just now
                    done = self._run_inside(bounded, timeout_s)
            if done is None or (done.returncode == _KILLED and self._ends()):
                began = time.monotonic()
                done = self._run_beside(bounded, timeout_s)
        if done.returncode == _KILLED and time.monotonic() - began >= timeout_s:
            raise subprocess.TimeoutExpired(list(argv), timeout_s)
        return done

    def run_tool(self, tool: Tool, *arguments: str) -> subprocess.CompletedProcess[str]:
        """See :meth:`harness.cluster.nodes.node.Node.run_tool`."""
        main_class = self._context.distribution.main_class(tool)
        class_path = os.pathsep.join(self._runtime.class_path)
        return self.run_as_user(
            [*self._runtime.java, *FAST_START, "-cp", class_path, main_class, *arguments], timeouts.TOOL_S
        )

    def in_network(self) -> list[str]:
        """See :meth:`harness.cluster.nodes.node.Node.in_network`."""
        return ["nsenter", f"--net=/proc/{self.pid()}/ns/net"]

    def slow_group(self, device: str) -> SlowGroup:
        """The container's own group.

        :raises FaultNotProven: it does not run, and has none
        """
        pid = self.pid()
        if pid is None:
            raise FaultNotProven(f"{self.spec.name} does not run: there is nothing to be slow")
        path = group_of(controller(), pid)
        return SlowGroup(path, device, self._context.undo_log, self.run_as_user)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _ends(self) -> bool:
        """Whether it ends at this moment, with all that runs in it."""
        return self._watch is None or self._watch.await_end(_END_S)

    def _run_inside(self, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return execute(self._container.id, argv, environment={"LC_ALL": "C"}, patience_s=timeout_s + _ENGINE_S)

    def _run_beside(self, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        run = self._context.undo_log.run_id
        return run_once(
            self._backend.image.name,
            argv,
            run,
            patience_s=timeout_s + _ENGINE_S,
            user=f"{self._user.uid}:{self._user.gid}",
            volumes=[self._backend.mount],
            environment={"LC_ALL": "C", MARK: run},
            working_dir="/",
        )

    def _logging_paused(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if self._watch is None else self._watch.writing

    def _send(self, signum: signal.Signals) -> None:
        with explained(f"{signum.name} to {self.spec.name}"), contextlib.suppress(APIError):  # it ended just now
            self._container.kill(signum.name)

    def _state(self) -> Mapping[str, Any]:
        with explained(f"asking for the state of {self.spec.name}"):
            self._container.reload()
        state: Mapping[str, object] = self._container.attrs["State"]
        return state


class _Watch:
    """One run of a container, from its start to its end: writes what it prints into its logs.

    :ivar writing: held while it does
    """

    def __init__(self, container: Any, record_dir: Path) -> None:
        """:raises OSError: the logs can't be written"""
        self._code: int | None = None
        self._container = container
        self._stdout = (record_dir / STDOUT).open("ab", buffering=0)
        self._log = (record_dir / LOG).open("ab", buffering=0)
        self._gone: EngineGone | None = None
        self._ended = threading.Event()
        self.writing = threading.Lock()

    @property
    def exit_code(self) -> int | None:
        """None until it has ended: whoever sees a code may start it again, and must not be told that it lives."""
        return self._code if self._ended.is_set() else None

    def close(self) -> None:
        """Nothing will be printed."""
        self._stdout.close()
        self._log.close()

    def begin(self) -> None:
        """Start it, and watch."""
        # Attached before it starts, as `docker run` does: nothing is missed, nothing of an earlier run is told again.
        container = self._container
        printed = container.client.api.attach(container.id, stdout=True, stderr=True, stream=True, demux=True)
        container.start()
        threading.Thread(target=self._follow, args=(printed,), name="jbod-container", daemon=True).start()

    def has_ended(self) -> bool:
        """Whether it has.

        :raises EngineGone: nobody knows
        """
        if self._gone is not None:
            raise self._gone
        return self._ended.is_set()

    def await_end(self, timeout_s: float) -> bool:
        """Wait until it has ended, all that it printed is written, and its ports are free; False where it goes on."""
        return self._ended.wait(timeout_s)

    def _follow(self, printed: Iterator[tuple[bytes | None, bytes | None]]) -> None:
        try:
            with self._stdout, self._log, explained("following a container"):
                for out, err in printed:
                    with self.writing, contextlib.suppress(OSError):  # a full disk, which the journal tells of
                        self._stdout.write(out or b"")
                        self._log.write(err or b"")
                self._code = int(self._container.wait()["StatusCode"])
                # The engine answers this when it has taken the container's ports away, which is after its end.
                self._container.client.api.inspect_container(self._container.id)
        except EngineGone as error:
            self._gone = error
        except HarnessError:
            pass  # removed while we were watching: it has ended
        finally:
            self._ended.set()
