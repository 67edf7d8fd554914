"""A node has the same settings as a process, in a container of jbod's, and in the compose files for use by hand.

Nothing is started, and no engine is needed: both backends write the files that a node starts from. The tests read the
compose files as YAML with their variables filled in, as ``docker compose config`` does. Where the plugin is installed,
a test compares the two.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import re
import secrets
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cluster.cluster import Cluster
from harness.cluster.nodes import container
from harness.cluster.nodes.images import Image
from harness.cluster.nodes.jvm import JvmNode
from harness.cluster.nodes.node import AGENT, SERVICE, ClusterContext, Node, NodeSpec
from harness.cluster.nodes.process import ProcessBackend, ProcessNode
from harness.cluster.profile import BROKER_SETTINGS
from harness.cluster.spec import ClusterSpec
from harness.host.abilities import ability
from harness.host.cache import cache_dir
from harness.host.engine import compose
from harness.host.ports import HOST
from harness.host.undo import UndoLog
from harness.journal import Journal
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode

Settings = Mapping[str, str]
"""The settings of a node by name, its command line among them."""

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
FILES = {Mode.ZK: COMPOSE / "zookeeper.yaml", Mode.KRAFT: COMPOSE / "kraft.yaml"}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "zk": {"mode": Mode.ZK},
    "kraft": {"mode": Mode.KRAFT},
    "kraft-three-controllers": {"mode": Mode.KRAFT, "controllers": 3},
    "kraft-combined": {"mode": Mode.KRAFT, "combined": True},
}

# Clients use a published port, from outside a container's network; other nodes are inside.
_TWO_WAYS_IN = "a container is reached at one address by other nodes and at another one by clients"
IN_CONTAINERS = {
    "listeners": _TWO_WAYS_IN,
    "advertised.listeners": _TWO_WAYS_IN,
    "inter.broker.listener.name": _TWO_WAYS_IN,
    "listener.security.protocol.map": _TWO_WAYS_IN,
    "clientPort": "ZooKeeper's address is its container's, where the port is its own",
    "clientPortAddress": "ZooKeeper's address is its container's, where the port is its own",
}
"""The settings that differ between a container and a process, and the reasons."""

_SOON = "tests want failures noticed soon; by hand it is as long as Kafka has it"
_ONE_ADDRESS = "processes share one address, by which ZooKeeper counts connections"
LEFT_OUT_BY_HAND = {
    **dict.fromkeys(BROKER_SETTINGS, "each is said in harness/cluster/profile.py; by hand it is Kafka's default"),
    "broker.session.timeout.ms": _SOON,
    "broker.heartbeat.interval.ms": _SOON,
    "controller.quorum.election.timeout.ms": _SOON,
    "controller.quorum.election.backoff.max.ms": _SOON,
    "controller.quorum.fetch.timeout.ms": _SOON,
    "zookeeper.session.timeout.ms": _SOON,
    "controlled.shutdown.retry.backoff.ms": _SOON,
    "tickTime": _SOON,
    "maxClientCnxns": _ONE_ADDRESS,
}
"""The settings that jbod gives a container and that the files for use by hand lack, and the reasons."""

HARMLESS = {
    *("image", "user", "entrypoint", "command", "environment", "labels", "configs"),
    *("volumes", "networks", "ports", "healthcheck", "stop_grace_period"),
}
"""The allowed keys of a service: none for privileges, capabilities, devices, or the machine's namespaces."""


# --- the settings of nodes --------------------------------------------------------------------------------------------


def rendered(file: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """A compose file with its variables filled in, and ports in the form of ``docker compose config``."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda name: variables.get(name[1], name[2]), file.read_text())
    content: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))
    for service in content["services"].values():
        for number, port in enumerate(service["ports"]):
            host_ip, published, target = port.split(":")
            service["ports"][number] = {"host_ip": host_ip, "published": published, "target": int(target)}
    return content


def configured(command: list[str], *arguments: str) -> str:
    """Replaces ``docker compose config``."""
    assert arguments == ("config", "--format", "json")
    return json.dumps(rendered(Path(command[command.index("-f") + 1]), variables_of(command)))


def variables_of(command: list[str]) -> dict[str, str]:
    """The variables of the compose file that jbod sets."""
    lines = Path(command[command.index("--env-file") + 1]).read_text().splitlines()
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}


@pytest.fixture(scope="module", autouse=True)
def no_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Replaces the engine, which the container backend asks before it starts anything."""
    image = Image(name="jbod-kafka:x", id="sha256:x", java_version="17", jars=("/opt/kafka/libs/kafka.jar",))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="jbod-test-") as folder:
        Path(folder).chmod(0o755)
        patch.setenv("JBOD_WORK_DIR", folder)
        patch.setattr(container, "image_for", lambda *_: image)
        patch.setattr(container, "free_network", lambda _: "198.18.7")
        patch.setattr(container, "compose", configured)
        yield


@functools.cache
def settings_given(shape: str, backend: str) -> Mapping[str, Settings]:
    """The settings of each node of a cluster in a backend; addresses and folders are replaced by their roles."""
    spec = ClusterSpec(backend=backend, **SHAPES[shape])
    with tempfile.TemporaryDirectory() as folder:
        context = ClusterContext(
            spec=spec,
            distribution=Builds.choose(BuildOptions(mode=str(spec.mode))).of(spec.mode),
            record_dir=Path(folder),
            journal=Journal(None),
            undo_log=UndoLog(f"Test-{secrets.token_hex(3)}"),
            jvm_options=(),
        )
        cluster = Cluster(context)
        try:
            return {node.spec.name: _laid_down(cluster, context, node) for node in cluster.nodes}
        finally:
            cluster.stop()


def _laid_down(cluster: Cluster, context: ClusterContext, node: Node) -> Settings:
    assert isinstance(node, JvmNode)
    runtime, backend = cluster._backend.runtime, cluster._backend
    command = " ".join(node.prepare_start())
    names = {
        " ".join(runtime.java): "java",
        os.pathsep.join(runtime.class_path): "JARS",
        str(context.work_dir): "DIR",
        str(cache_dir() / "jolokia-2.6.0"): "DIR",  # a container gets a link to it
        "198.18.7.": "NETWORK.",
    }
    for other in cluster.nodes:
        name = other.spec.name
        purposes = (SERVICE, AGENT) if name != "zookeeper" else (SERVICE,)
        ends = {purpose: backend.endpoint(name, purpose) for purpose in purposes}
        names |= {f"{HOST}:{end.port}": f"{name}'s published {purpose}" for purpose, end in ends.items()}
        names |= {end.address: f"{name}'s {purpose}" for purpose, end in ends.items()}
        if cluster.spec.combined:
            names[backend.quorum_address(name)] = f"{name}'s quorum"
    # The agent gets host and port as two options.
    command = re.sub(r"host=([^,]*),port=(\d+)", r"at=\1:\2", command)
    return _by_name([*node.config.read_text().splitlines(), f"command={command}"], names)


def _by_name(lines: list[str], names: Mapping[str, str]) -> Settings:
    for what, name in sorted(names.items(), key=lambda each: -len(each[0])):
        lines = [line.replace(what, name) for line in lines]
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


@functools.cache
def settings_by_hand(mode: Mode) -> Mapping[str, Settings]:
    """The settings of each node of a cluster that is started by hand, in the same form."""
    content = rendered(FILES[mode], {})
    names = {"/var/lib/kafka/data": "DIR", "198.18.254.": "NETWORK."}
    for name, service in content["services"].items():
        address = service["networks"]["default"]["ipv4_address"]
        for port in service["ports"]:
            purpose = AGENT if port["target"] == 8778 else SERVICE
            names[f"{port['host_ip']}:{port['published']}"] = f"{name}'s published {purpose}"
            names[f"{address}:{port['target']}"] = f"{name}'s {purpose}"
    found = {}
    for name, service in content["services"].items():
        files = {each["target"]: content["configs"][each["source"]]["content"] for each in service["configs"]}
        properties = files[f"/jbod/{name}/server.properties"].splitlines()
        command = _started(name, files[f"/jbod/{name}/start"])
        found[name] = _by_name([*properties, f"command={command}"], names)
    return found


def _started(name: str, script: str) -> str:
    """Run a start script with a fake ``java`` that prints its arguments; returns these."""
    with tempfile.TemporaryDirectory() as folder:
        java, start = Path(folder) / "java", Path(folder) / name / "start"
        start.parent.mkdir()
        start.write_text(script)
        java.write_text('#!/bin/sh\necho java "$@"\n')
        java.chmod(0o755)
        path = os.pathsep.join((folder, os.environ["PATH"]))
        done = subprocess.run(["sh", start], env={"PATH": path}, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[-1].replace(folder, "DIR")


def differences(one: Mapping[str, Settings], other: Mapping[str, Settings]) -> dict[str, list[str]]:
    """By setting, the nodes that have another value, or have it on one side only."""
    found: dict[str, list[str]] = {}
    for node in sorted({*one, *other}):
        ours, theirs = one.get(node, {}), other.get(node, {})
        for key in sorted({*ours, *theirs}):
            if ours.get(key) != theirs.get(key):
                found.setdefault(key, []).append(f"{node}: {key}={ours.get(key)}, and not {theirs.get(key)}")
    return found


def unexplained(found: Mapping[str, list[str]], reasons: Mapping[str, str]) -> list[str]:
    """The differences without a reason."""
    return [line for key, lines in found.items() if key not in reasons for line in lines]


def heap_and_program(nodes: Mapping[str, Settings]) -> dict[str, Settings]:
    """The same settings, with only heap, main class and configuration file of the command line.

    The other options make jbod's nodes start fast and log in the form that it reads.
    """
    found: dict[str, Settings] = {}
    for node, settings in nodes.items():
        [words] = re.findall(r" -Xmx(\w+) .* (\S+) (\S+)$", settings["command"])
        found[node] = {**settings, "command": " ".join(words)}
    return found


# --- comparisons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_container_gets_the_same_settings_as_a_process(shape: str) -> None:
    assert (
        unexplained(differences(settings_given(shape, "docker"), settings_given(shape, "process")), IN_CONTAINERS) == []
    )


@pytest.mark.parametrize("mode", Mode)
def test_by_hand_it_gets_the_settings_that_jbod_gives_it(mode: Mode) -> None:
    """The files for use by hand leave settings out; they change none, and add none."""
    by_hand, ours = (heap_and_program(each) for each in (settings_by_hand(mode), settings_given(str(mode), "docker")))
    assert by_hand.keys() == ours.keys()
    assert unexplained(differences(ours, by_hand), LEFT_OUT_BY_HAND) == []
    assert [key for settings in by_hand.values() for key in settings if key in LEFT_OUT_BY_HAND] == []


def test_every_reason_is_needed() -> None:
    told_apart = [differences(settings_given(shape, "docker"), settings_given(shape, "process")) for shape in SHAPES]
    assert {key for found in told_apart for key in found} == {*IN_CONTAINERS}
    left_out = [differences(settings_given(str(mode), "docker"), settings_by_hand(mode)) for mode in Mode]
    assert {key for found in left_out for key in found} - {"command"} == {*LEFT_OUT_BY_HAND}


def test_a_setting_of_one_side_alone_is_seen() -> None:
    ours = settings_given("kraft", "docker")
    more = {**ours, "broker-2": {**ours["broker-2"], "num.io.threads": "8", "log.retention.ms": "1"}}
    assert unexplained(differences(more, ours), IN_CONTAINERS) == [
        "broker-2: log.retention.ms=1, and not None",
        "broker-2: num.io.threads=8, and not 4",
    ]


# --- the files --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=Mode)
def described(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[container.ContainerBackend]:
    """A cluster of three brokers, as the compose files describe it."""
    mode: Mode = request.param
    undo_log = UndoLog(f"Test-{secrets.token_hex(3)}")
    context = ClusterContext(
        spec=ClusterSpec(mode=mode, backend="docker"),
        distribution=Builds.choose(BuildOptions(mode=str(mode))).of(mode),
        record_dir=tmp_path,
        journal=Journal(None),
        undo_log=undo_log,
    )
    yield container.ContainerBackend(context)
    undo_log.close()
    context.ports.release()


def test_jbod_sets_the_variables_of_the_file_and_adds_nothing(described: container.ContainerBackend) -> None:
    """The compose file is the only description of a container, besides the files in its folder."""
    file = FILES[described.context.spec.mode]
    asked = {*re.findall(r"\$\{(\w+):-", file.read_text())}
    assert {*variables_of(described.compose)} == asked
    services = rendered(file, {})["services"]
    for name in services:
        described.endpoint(name, SERVICE)
    assert [described.compose[n + 1] for n, word in enumerate(described.compose) if word == "-f"] == [str(file)]


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "jbod's"])
def test_no_node_is_privileged_or_to_be_reached_from_elsewhere(
    described: container.ContainerBackend, by_hand: bool
) -> None:
    """All ports, also ZooKeeper's and the agents', are published on loopback only; networks are the cluster's own."""
    variables = {} if by_hand else variables_of(described.compose)
    content = rendered(FILES[described.context.spec.mode], variables)
    services = content["services"]
    assert {name: {*service} - HARMLESS for name, service in services.items()} == {name: set() for name in services}
    ports = [(name, port["target"], port["host_ip"]) for name, service in services.items() for port in service["ports"]]
    assert {host_ip for _, _, host_ip in ports} == {HOST} == {"127.0.0.1"}
    agents = {name for name, target, _ in ports if target == 8778}
    assert {name for name, _, _ in ports} == {*services} == agents | ({"zookeeper"} & {*services})
    mounted = (
        "data:/var/lib/kafka/data:rw" if by_hand else f"{described.context.work_dir}:{described.context.work_dir}:rw"
    )
    assert all(
        service["volumes"] == [mounted] and {*service["networks"]} == {"default"} for service in services.values()
    )
    [network] = content["networks"].values()
    assert {*network} == {"labels", "ipam"}
    [subnet] = [ipaddress.IPv4Network(each["subnet"]) for each in network["ipam"]["config"]]
    assert subnet.subnet_of(ipaddress.IPv4Network("198.18.0.0/15"))
    addresses = [ipaddress.IPv4Address(each["networks"]["default"]["ipv4_address"]) for each in services.values()]
    assert all(address in subnet for address in addresses)


def test_a_container_has_the_environment_of_a_process(described: container.ContainerBackend) -> None:
    context = described.context
    process = ProcessNode(ProcessBackend(context), NodeSpec(name="broker-1", main_class="x", properties={}))
    wanted = {name: value for name, value in process.environment().items() if name != "PATH"}
    services = rendered(FILES[context.spec.mode], variables_of(described.compose))["services"]
    assert [service["environment"] for service in services.values()] == [wanted] * len(services)


@pytest.mark.docker
def test_the_files_are_read_as_compose_reads_them(described: container.ContainerBackend) -> None:
    if not ability("compose").present:
        pytest.skip(f"compose: {ability('compose').found} ({ability('compose').fix})")
    theirs = json.loads(compose(described.compose, "config", "--format", "json"))
    ours = json.loads(configured(described.compose, "config", "--format", "json"))
    for name, service in ours["services"].items():
        of_compose = theirs["services"][name]
        for key in ("image", "user", "entrypoint", "command", "environment", "labels", "networks"):
            assert of_compose[key] == service[key], (name, key)
        assert [{key: port[key] for key in ("host_ip", "published", "target")} for port in of_compose["ports"]] == (
            service["ports"]
        )
    texts = {name: each["content"] for name, each in ours["configs"].items()}
    # Its output quotes them so that it could be read again.
    assert {name: each["content"].replace("$$", "$") for name, each in theirs["configs"].items()} == texts
