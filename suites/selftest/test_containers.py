"""Containers: what is said where there is no engine for them, and that nothing of theirs is left behind."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.cluster import Cluster, boot
from harness.doors.admin import Admin
from harness.doors.wire import Connection, NoAnswer
from harness.errors import (
    EXIT_HARNESS,
    EXIT_VALID,
    DistributionError,
    EngineGone,
    EnvironmentLacks,
    HarnessError,
    NodeDied,
)
from harness.journal import Journal
from harness.machine import undo
from harness.machine.cache import cache_dir
from harness.machine.control_group import FROZEN
from harness.machine.engine import (
    LABEL,
    compose,
    compose_program,
    compose_version,
    engine,
    execute,
    explained,
    host,
    remove_run,
    run_once,
)
from harness.machine.host import ENGINE_DISK_BYTES, ability
from harness.machine.ports import HOST
from harness.machine.undo import MARK, UndoLog
from harness.nodes import images
from harness.nodes.backends import BACKENDS
from harness.nodes.base import AGENT, SERVICE, Site
from harness.nodes.container import ContainerBackend, _Watch, leash
from harness.nodes.images import OWN_BASE, image_for, images_here
from harness.releases.builds import BuildOptions, Builds
from harness.releases.distribution import Distribution, Source, jolokia_agent, spark_kafka_jars
from harness.releases.versions import KafkaVersion, Mode
from harness.spec import ClusterSpec
from harness.waiting import await_until
from suites.selftest.needs import require
from suites.selftest.own_engine import OwnEngine
from suites.selftest.processes import JBOD, Running, marked
from suites.selftest.stand_in_engine import StandIn, answering

ROOT = Path(__file__).resolve().parents[2]
LEASH_S = 120.0
"""What takes longer doesn't come; no measure of how long it should take."""

# --- no engine ------------------------------------------------------------------------------------------------------


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    return path


def test_no_engine_is_installed(address: Path) -> None:
    with pytest.raises(EnvironmentLacks, match=r"no Docker engine at .*docker\.sock: apt-get install"):
        engine()


def test_the_engine_does_not_run(address: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(address))
    with pytest.raises(EnvironmentLacks, match="no Docker engine runs behind"):
        engine()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may talk to every engine")
def test_the_engine_may_not_be_talked_to(address: Path) -> None:
    with answering(address):
        address.chmod(0)
        with pytest.raises(EnvironmentLacks, match=r"you may not talk to the Docker engine .* usermod"):
            engine()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"version": "19.03.15"}, r"is 19\.03\.15; 20\.10 or later is needed"),
        ({"security": ("name=rootless",)}, "maps users"),
    ],
)
def test_an_engine_that_will_not_do(address: Path, facts: dict[str, Any], said: str) -> None:
    with answering(address, **facts), pytest.raises(EnvironmentLacks, match=said):
        engine()


FREE = """
from harness.nodes.container import _free_network
print(_free_network(7))
"""


@pytest.mark.parametrize(("left", "free"), [("198.18.7.1/24", "198.18.8"), ("198.18.8.1/24", "198.18.7")])
def test_a_network_that_an_engine_left_behind_is_not_taken_again(address: Path, left: str, free: str) -> None:
    """A real bridge, in a namespace of its own; the engine there knows nothing of it."""
    require("network namespaces")
    own = ["--user", "--map-root-user"] if os.geteuid() else []
    do = f'ip link add left type bridge && ip address add {left} dev left && exec {sys.executable} -c "$0"'

    def do_GET(self: StandIn) -> None:
        self.answer([]) if "/networks" in self.path else StandIn.do_GET(self)

    with answering(address, do_GET=do_GET):
        done = subprocess.run(
            ["unshare", *own, "--net", "sh", "-c", do, FREE], capture_output=True, text=True, check=False
        )
    assert (done.stdout, done.stderr) == (f"{free}\n", "")


def test_nothing_that_a_program_says_at_once_is_lost(address: Path) -> None:
    """Head and output of the answer come in one piece, which the SDK's own exec_run loses."""

    def do_POST(self: StandIn) -> None:
        if not self.path.endswith("/start"):
            self.answer({"Id": "e"})
            return
        said = ((1, b"a"), (2, b"no"), (1, b"b"))
        frames = b"".join(struct.pack(">BxxxL", stream, len(text)) + text for stream, text in said)
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n" + frames)

    with answering(address, do_POST=do_POST):
        done = execute("c", ["ls", "x"], environment={"LC_ALL": "C"}, patience_s=10.0)
    assert (done.returncode, done.stdout, done.stderr, done.args) == (3, "ab", "no", ["ls", "x"])


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        ("write /var/lib/docker/x: no space left on device", EnvironmentLacks, "the Docker engine's disk is full"),
        ("No such image: jbod-kafka:1", EnvironmentLacks, "jbod image base and jbod image build make one"),
        ("Cannot connect to the Docker daemon at unix:///x", EngineGone, "no longer answers"),
        ('error during connect: Post "http://x/v1.41/containers/create": EOF', EngineGone, "no longer answers"),
        ("something else", HarnessError, "a node: something else"),
    ],
)
def test_what_the_engine_can_not_do_is_one_line(address: Path, said: str, error: type[HarnessError], told: str) -> None:
    """Whether it says so itself, or compose does, which says more behind it."""
    failing = answering(address, do_POST=lambda self: self.answer({"message": said}, 500))
    with failing, pytest.raises(error, match=told), explained("a node"):
        engine().containers.create("x")
    says_more = f"echo 'failed: {said}' >&2; echo 'for more, see there' >&2; exit 1"
    with pytest.raises(error, match=told if error is not HarnessError else "for more, see there"):
        compose(["sh"], "-c", says_more)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("failed to register layer: write /x: no space left on device", "the Docker engine's disk is full"),
        ("toomanyrequests: You have reached your pull rate limit", None),
    ],
)
def test_why_an_image_can_not_be_fetched_is_said(address: Path, error: str, says: str | None) -> None:
    """The engine answers with success, and says what is the matter in the lines that follow."""
    lines = {"status": "Pulling from x"}, {"error": error}

    def do_POST(self: StandIn) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for text in (*(f"{json.dumps(line)}\r\n" for line in lines), ""):
            self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())

    said: list[str] = []
    expected = pytest.raises(EnvironmentLacks, match=says) if says else nullcontext()
    with answering(address, do_POST=do_POST), expected:
        assert not images._pull("eclipse-temurin:17-jre", said.append)
    assert says or said[-1] == f"eclipse-temurin:17-jre can't be fetched: {error}"


def test_no_image_to_build_on_can_be_had(address: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not here, and no registry that has it."""
    monkeypatch.delenv("JBOD_BASE_IMAGE", raising=False)

    def do_GET(self: StandIn) -> None:
        if "/images/" in self.path:
            self.answer({"message": "No such image"}, 404)
        else:
            StandIn.do_GET(self)

    refused: list[str] = []
    nowhere = answering(address, do_GET=do_GET, do_POST=lambda self: self.answer({"message": "no such host"}, 500))
    with nowhere, pytest.raises(EnvironmentLacks, match=r"there is no image to build on: .* jbod image base makes one"):
        images._base(None, refused.append)
    assert any("can't be fetched: no such host" in line for line in refused)


OFFICIAL, OWN, TEMURIN = "apache/kafka:4.3.1", f"jbod-kafka:4.3.1-{'a' * 12}", "eclipse-temurin:17-jre"


@pytest.mark.parametrize(
    ("build", "here", "registry", "used", "asked"),
    [
        ("maven kraft", {OFFICIAL, OWN}, {OFFICIAL}, OFFICIAL, []),
        ("maven kraft", {OWN}, {OFFICIAL}, OWN, []),
        ("maven kraft", {TEMURIN}, {OFFICIAL}, OFFICIAL, [f"fetch {OFFICIAL}"]),
        ("maven kraft", {TEMURIN, OWN_BASE}, {}, OWN, [f"fetch {OFFICIAL}", f"build on {TEMURIN}"]),
        ("maven kraft", {OWN_BASE}, {TEMURIN}, OWN, [f"fetch {OFFICIAL}", f"build on {OWN_BASE}"]),
        ("maven kraft", {}, {TEMURIN}, OWN, [f"fetch {OFFICIAL}", f"fetch {TEMURIN}", f"build on {TEMURIN}"]),
        # The official one is of Maven's builds, and for KRaft.
        ("maven zk", {OFFICIAL}, {OFFICIAL, TEMURIN}, OWN, [f"fetch {TEMURIN}", f"build on {TEMURIN}"]),
        ("tarball kraft", {OFFICIAL}, {OFFICIAL, TEMURIN}, OWN, [f"fetch {TEMURIN}", f"build on {TEMURIN}"]),
        ("home kraft mine:1", {TEMURIN}, {"mine:1"}, OWN, ["fetch mine:1", "build on mine:1"]),
        ("home kraft mine:1", {"mine:1"}, {}, OWN, ["build on mine:1"]),
        # Made on another base before (TEMURIN, below), or on this one.
        ("home kraft mine:1", {OWN, "mine:1"}, {}, OWN, ["build on mine:1"]),
        (f"home kraft {TEMURIN}", {OWN, TEMURIN}, {}, OWN, []),
    ],
)
def test_which_image_is_used(
    monkeypatch: pytest.MonkeyPatch, build: str, here: set[str], registry: set[str], used: str, asked: list[str]
) -> None:
    """What is here goes before what must be fetched, and that before what must be made."""
    source, mode, *base = build.split()
    version = KafkaVersion.parse("4.3.1")
    distribution = Distribution(version=version, source=cast(Source, source), origin="", class_path=(), sha256="a" * 64)
    did: list[str] = []

    def pull(name: str, _say: object) -> bool:
        did.append(f"fetch {name}")
        return name in registry

    def make(distribution: Distribution, *, base: str | None = None, say: images.Say) -> str:
        did.append(f"build on {images._base(base, say)}")
        return images._own_name(distribution)

    monkeypatch.setattr(images, "_labels", lambda name: {images._MADE_ON: TEMURIN} if name in here else None)
    monkeypatch.setattr(images, "_pull", pull)
    monkeypatch.setattr(images, "build", make)
    monkeypatch.setattr(images, "_look_into", lambda name: images.Image(name=name, id="x", java_version="17", jars=()))
    monkeypatch.setenv("JBOD_BASE_IMAGE", "".join(base))
    assert (image_for(distribution, Mode(mode), print).name, did) == (used, asked)


def test_what_is_being_removed_already_is_waited_for(address: Path) -> None:
    """As by another clean-up at the same time: the engine refuses a second one."""
    asked: list[str] = []

    def do_DELETE(self: StandIn) -> None:
        asked.append(self.path)
        self.answer({"message": "removal of container c is already in progress"}, 409)

    def do_GET(self: StandIn) -> None:
        contents: dict[str, object] = {
            "containers": [{"Id": "c", "Names": ["/c"]}] if not asked else [],
            "c": {"Id": "c", "Name": "/c"},
            "networks": [],
            "volumes": {"Volumes": []},
        }
        for name, content in contents.items():
            if self.path.partition("?")[0].removesuffix("/json").endswith(f"/{name}"):
                self.answer(content)
                return
        StandIn.do_GET(self)

    with answering(address, do_GET=do_GET, do_DELETE=do_DELETE):
        remove_run("r")
    assert len(asked) == 1


def test_compose_is_told_nothing_by_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is exported for clusters by hand would be another image than the run's, and nobody would see it."""
    for name in ("JBOD_IMAGE", "COMPOSE_PROJECT_NAME", "DOCKER_CONTEXT", "BROKER_1_PORT"):
        monkeypatch.setenv(name, "somebody's")
    monkeypatch.setenv("DOCKER_CONFIG", "kept")
    said = compose(["env"])
    assert "somebody's" not in said
    assert "DOCKER_CONFIG=kept" in said
    assert f"DOCKER_HOST={host()}" in said


def test_compose_carries_the_mark_of_the_run_that_it_makes_containers_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "somebody's")
    assert f"{MARK}=r" in compose(["env"], run="r").splitlines()
    assert MARK not in compose(["env"])


DOOMED = """
import sys
from harness.machine.engine import compose
from harness.nodes.container import leash
held = leash(sys.argv[1])
compose(["sleep"], "1000", run=sys.argv[1])
"""


def test_a_compose_that_the_harness_left_is_ended_before_its_containers_are_looked_for(address: Path) -> None:
    """It might make the first of them after that; and the leash, which does it, carries the same mark."""
    run = f"doomed-{secrets.token_hex(3)}"
    still_there: list[int] = []

    def do_GET(self: StandIn) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/containers/json"):
            still_there.append(len(marked(run)))
        if path.endswith(("/containers/json", "/networks")):
            self.answer([])
        elif path.endswith("/volumes"):
            self.answer({"Volumes": []})
        else:
            StandIn.do_GET(self)

    with answering(address, do_GET=do_GET), subprocess.Popen([sys.executable, "-c", DOOMED, run]) as harness:
        try:
            await_until(lambda: marked(run), lambda both: len(both) == 2, timeout_s=LEASH_S, what="compose to run")
            harness.kill()
            await_until(lambda: marked(run), lambda left: not left, timeout_s=LEASH_S, what="the leash to end")
        finally:
            harness.kill()
            undo.kill_marked(run)
    assert still_there == [1, 1]  # it looks a second time for what the engine had been asked for


def test_an_engine_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2376")
    with pytest.raises(EnvironmentLacks, match="must be on this machine"):
        engine()


@pytest.mark.parametrize(
    ("folder", "found"), [("/", r"[\d.]+ GiB free in /"), ("/nowhere", "/nowhere, which can't be seen from here")]
)
def test_the_doctor_tells_what_room_the_engine_has(address: Path, folder: str, found: str) -> None:
    """A stand-in's; a real one's with next to none is in test_engine_troubles.py."""
    with answering(address, folder=folder):
        disk = ability.__wrapped__("container disk")
    assert re.fullmatch(found, disk.found)
    assert disk.present is (folder != "/" or shutil.disk_usage("/").free >= ENGINE_DISK_BYTES)
    assert disk.needed_for == "--backend docker: images and volumes take 2.0 GiB"


def test_no_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentLacks, match="no docker command"):
        compose_version()
    for script, said in (("exit 1", "has no compose plugin"), ("echo 2.17.2", r"2\.17\.2; 2\.24 or later")):
        docker = tmp_path / "docker"
        docker.write_text(f"#!/bin/sh\n{script}\n")
        docker.chmod(0o755)
        with pytest.raises(EnvironmentLacks, match=said):
            compose_version()


def test_compose_is_started_without_the_docker_command_where_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.machine.engine._PLUGINS", [str(tmp_path / "system")])
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "own"))
    assert compose_program() == ["docker", "compose"]
    for folder in ("system/docker", "own"):
        plugin = tmp_path / folder / "cli-plugins" / "docker-compose"
        plugin.parent.mkdir(parents=True)
        plugin.touch(0o755)
        assert compose_program() == [str(plugin)]


def test_clean_up_waits_for_the_engine_and_does_all_else(
    address: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JBOD_WORK_DIR", str(tmp_path / "work"))
    log = UndoLog("r")
    log.will("containers", run="r")
    (log.dir / "data").mkdir()
    with pytest.raises(EnvironmentLacks):
        log.close()
    assert [path.name for path in log.dir.iterdir()] == ["undo.jsonl"]
    said: list[str] = []
    assert undo.clean(said.append) == 0
    assert "can't be cleaned up after as yet: no Docker engine" in said[0]


def test_what_is_in_one_engine_is_not_looked_for_in_another(
    address: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none of it, which would pass for gone."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(tmp_path / "work"))
    log = UndoLog("r")
    log.will("containers", run="r", engine=host())
    with pytest.raises(EnvironmentLacks):
        log.close()
    asked: list[str] = []

    def do_GET(self: StandIn) -> None:
        asked.append(self.path)
        StandIn.do_GET(self)

    another = address.with_name("another.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{another}")
    said: list[str] = []
    with answering(another, do_GET=do_GET):
        assert undo.clean(said.append) == 0
    assert f"r: can't be cleaned up after as yet: no Docker engine at {address}" in said[0]
    assert (log.dir / "undo.jsonl").exists()
    assert not asked


def test_a_container_that_has_a_code_has_ended(tmp_path: Path) -> None:
    """Not before the engine has taken its ports away: one that is said to live isn't started again."""
    asked, answer = threading.Event(), threading.Event()

    def inspect_container(_id: str) -> None:
        asked.set()
        answer.wait(30.0)

    api = SimpleNamespace(attach=lambda *_, **__: iter([(b"said", None)]), inspect_container=inspect_container)
    container = SimpleNamespace(
        id="x", client=SimpleNamespace(api=api), start=lambda: None, wait=lambda: {"StatusCode": 1}
    )
    watch = _Watch(container, tmp_path)
    watch.begin()
    assert asked.wait(30.0)
    assert (watch.has_ended(), watch.exit_code) == (False, None)
    answer.set()
    assert watch.await_end(30.0)
    assert (watch.has_ended(), watch.exit_code) == (True, 1)


# --- an engine ------------------------------------------------------------------------------------------------------

SPEC = ClusterSpec(mode=Mode.KRAFT, brokers=1, backend="docker")
BOOT = """
import sys
from pathlib import Path
from suites.selftest.test_containers import booted
booted(sys.argv[1], Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
"""


def booted(run: str, folder: Path) -> Cluster:
    distribution = Builds.choose(BuildOptions(mode="kraft")).of(Mode.KRAFT)
    BACKENDS["docker"].runtime(distribution, Mode.KRAFT, lambda _line: None)
    return boot(SPEC, distribution, run_id=run, record_dir=folder, journal=Journal(None))


def traces(run: str) -> list[str]:
    """What the engine has of a run."""
    client, own = engine(), {"label": f"{LABEL}={run}"}
    things = (*client.containers.list(all=True, filters=own, ignore_removed=True), *client.networks.list(filters=own))
    return [thing.name for thing in (*things, *client.volumes.list(filters=own))]


@pytest.fixture
def workspace(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    require("docker", "compose", "container image")
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    return open_folder


def test_an_image_without_kafka(workspace: Path) -> None:
    """That is what is said, and not that the engine is at fault."""
    if OWN_BASE not in images_here():
        pytest.skip(f"{OWN_BASE} isn't here (jbod image base)")
    with pytest.raises(DistributionError, match=f"the image {OWN_BASE} can't run Kafka .*: No such file or directory"):
        images._ask(OWN_BASE)
    assert traces("image") == []


def test_what_is_run_once_leaves_nothing(workspace: Path) -> None:
    """Nor volumes without a name, of which the official image declares some."""
    client, run = engine(), f"Test-{secrets.token_hex(3)}"
    text = f"FROM {images_here()[0]}\nVOLUME /one /two\n".encode()
    image, _ = client.images.build(fileobj=io.BytesIO(text), rm=True)
    try:
        before = {volume.id for volume in client.volumes.list()}
        done = run_once(image.id, ["sh", "-c", "echo said; echo told >&2; exit 3"], run, patience_s=60.0)
        assert (done.stdout, done.stderr, done.returncode) == ("said\n", "told\n", 3)
        assert {volume.id for volume in client.volumes.list()} <= before
        assert traces(run) == []
    finally:
        client.images.remove(image.id)


@pytest.mark.parametrize("mode", Mode)
def test_more_nodes_than_the_file_has(
    workspace: Path, tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as those in it, at addresses and ports of their own, and compose takes the two files together; whatever
    the folder is called that they work in."""
    (named := workspace / "broker-3").mkdir()
    named.chmod(0o755)
    monkeypatch.setenv("JBOD_WORK_DIR", str(named))
    undo_log = UndoLog(f"Test-{secrets.token_hex(3)}")
    try:
        backend = ContainerBackend(
            Site(
                spec=ClusterSpec(mode=mode, brokers=5, backend="docker"),
                distribution=Builds.choose(BuildOptions(mode=str(mode))).of(mode),
                record_dir=tmp_path,
                journal=Journal(None),
                undo_log=undo_log,
            )
        )
        brokers = [f"broker-{id}" for id in range(1, 6)]
        names = [*brokers, *(f"controller-{id}" for id in range(100, 103) if mode is Mode.KRAFT)]
        ends = [backend.endpoint(name, purpose) for name in names for purpose in (SERVICE, AGENT)]
        assert len({end.port for end in ends}) == len({end.address for end in ends}) == 2 * len(names)
        for name in brokers:
            told = backend.listeners(name)
            service = backend.endpoint(name, SERVICE)
            assert told["listeners"].endswith(f"OUTSIDE://{service.address}")
            assert told["advertised.listeners"].endswith(f"OUTSIDE://{HOST}:{service.port}")
        services = json.loads(compose(backend.compose, "config", "--format", "json"))["services"]
        assert {*names} <= {*services}
        assert services["broker-5"]["volumes"] == services["broker-3"]["volumes"]
        assert services["broker-5"]["command"] == [str(undo_log.dir / "broker-5" / "start")]
    finally:
        undo_log.close()


@pytest.mark.cluster
@pytest.mark.parametrize("mode", Mode)
def test_by_hand(workspace: Path, mode: Mode) -> None:
    """The README's commands, with nothing of jbod's but the image: ready when all say so, to be reached from outside,
    and gone afterwards.
    """
    run = f"hand-{secrets.token_hex(3)}"
    built = subprocess.run([JBOD, "image", "build", "--mode", str(mode)], capture_output=True, text=True, check=True)
    told = {"JBOD_IMAGE": built.stdout.split()[-1], "JBOD_RUN": run, "JBOD_PROJECT": run, "DOCKER_HOST": host()}
    file = ROOT / "compose" / ("zookeeper.yaml" if mode is Mode.ZK else "kraft.yaml")

    def by_hand(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["docker", "compose", "-f", str(file), *arguments]
        return subprocess.run(command, env=os.environ | told, capture_output=True, text=True, timeout=240, check=False)

    try:
        up = by_hand("up", "--wait", "--wait-timeout", "120")
        assert up.returncode == 0, up.stderr
        for port in (19092, 19093, 19094):
            admin = Admin(Connection(HOST, port))
            await_until(
                admin.describe_cluster,
                lambda seen: seen.brokers == (1, 2, 3),
                timeout_s=30,
                what=f"the broker at {port} to know of all three",
                retry_on=(NoAnswer,),
            )
            assert len(admin.describe_log_dirs()) == 2
        asked = ("--bootstrap-server", f"{HOST}:19092", "--create", "--topic", "t", "--replication-factor", "3")
        done = subprocess.run([JBOD, "tool", "topics", *asked], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        by_hand("kill", "broker-2")
        assert "broker-2" not in by_hand("ps", "--services", "--status", "running").stdout.split()
    finally:
        by_hand("down", "--volumes")
    assert not traces(run)


@pytest.fixture
def cluster(workspace: Path, tmp_path: Path) -> Iterator[Cluster]:
    cluster = booted(f"Test-{secrets.token_hex(3)}", tmp_path)
    yield cluster
    cluster.stop()
    assert not traces(cluster.undo_log.run_id)


@pytest.mark.cluster
def test_a_broker_in_a_container(cluster: Cluster) -> None:
    """It runs as the brokers' user, is reached on loopback alone, and ends and starts as a process does."""
    [broker] = cluster.brokers
    node = broker.node
    names = traces(cluster.undo_log.run_id)
    assert names
    assert all(cluster.undo_log.run_id.lower() in name for name in names)
    own = {"label": f"{LABEL}={cluster.undo_log.run_id}"}
    containers, [network] = engine().containers.list(filters=own), engine().networks.list(filters=own)
    assert {port["HostIp"] for each in containers for at in each.ports.values() for port in at or ()} == {HOST}
    assert not any(each.attrs["HostConfig"]["Privileged"] for each in containers)
    [addresses] = network.attrs["IPAM"]["Config"]
    assert ipaddress.ip_network(addresses["Subnet"]).subnet_of(ipaddress.ip_network("198.18.0.0/15"))  # type: ignore[arg-type]
    inside = node.run_as_user(["sh", "-c", "id -u; cat /proc/1/comm; echo no >&2; exit 3"])
    assert (inside.returncode, inside.stderr) == (3, "no\n")
    assert inside.stdout.split() == [str(broker.log_dirs[0].path.stat().st_uid), "java"]
    node.pause()
    assert node.paused_proof() in FROZEN  # by the kernel's word
    node.resume()
    broker.stop()
    assert node.exit_code() == 143
    beside = node.run_as_user(["sh", "-c", 'id -u; touch "$0"/x', str(broker.log_dirs[0].path)])
    assert beside.stdout == inside.stdout.splitlines()[0] + "\n"
    assert (broker.log_dirs[0].path / "x").exists()
    broker.start()
    cluster.await_healthy()
    assert "shut down completed" in node.log.path.read_text()
    broker.kill()
    assert node.exit_code() == -signal.SIGKILL


@pytest.mark.cluster
def test_a_broker_that_ends_by_itself_is_missed(cluster: Cluster) -> None:
    node = cluster.brokers[0].node
    engine().containers.get(f"{cluster.undo_log.run_id.lower()}-broker-1-1").kill()
    await_until(lambda: not node.is_alive(), timeout_s=10.0, what="the container's end to be seen")
    with pytest.raises(NodeDied, match="broker-1 ended with exit code -9"):
        cluster.check_nodes()


@pytest.mark.cluster
def test_a_harness_that_was_killed_leaves_nothing(workspace: Path, tmp_path: Path) -> None:
    run = f"doomed-{secrets.token_hex(3)}"
    with subprocess.Popen(
        [sys.executable, "-c", BOOT, run, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == "ready\n"
        assert traces(run)
        harness.kill()
    await_until(lambda: traces(run), lambda left: not left, timeout_s=LEASH_S, what="containers to go by themselves")
    assert undo.clean() == 1
    assert not list(workspace.glob("*"))
    remove_run(run)  # nothing left is no error


LEASHED = """
import sys
from harness.machine.engine import LABEL, engine
from harness.nodes.container import leash
run, image = sys.argv[1:]
held = leash(run)
engine().networks.create(run, labels={LABEL: run})
engine().containers.run(image, ["infinity"], entrypoint=["sleep"], init=True, detach=True, labels={LABEL: run})
print(held.pid, flush=True)
sys.stdin.read()
"""


def test_containers_end_with_a_harness_that_was_killed(workspace: Path) -> None:
    """Without any later command; where it ends by itself, the leash ends with what else the run has."""
    image, run = images_here()[0], f"leashed-{secrets.token_hex(3)}"
    try:
        with subprocess.Popen(
            [sys.executable, "-c", LEASHED, run, image], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as harness:
            assert harness.stdout is not None
            assert harness.stdout.readline()
            assert len(traces(run)) == 2
            assert len(marked(run)) == 1
            harness.kill()
        await_until(
            lambda: (traces(run), marked(run)),
            lambda left: left == ([], []),
            timeout_s=LEASH_S,
            what="what the engine has of it to go",
        )
    finally:
        remove_run(run)


def test_a_leash_ends_with_its_run(workspace: Path) -> None:
    log = UndoLog(f"leashed-{secrets.token_hex(3)}")
    with leash(log.run_id) as held:
        assert held.poll() is None
        log.close()
        assert held.wait() == -signal.SIGKILL


# --- a build that no image is of ------------------------------------------------------------------------------------


@pytest.fixture
def cache_beside(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with all that the machine's has, in which what is added goes with the test."""
    beside = open_folder / "cache"
    for folder in ("kafka", "images", ""):  # those to which something is added
        (beside / folder).mkdir(parents=True, exist_ok=True)
        for entry in (cache_dir() / folder).glob("[!.]*"):  # no locks
            if not (link := beside / folder / entry.name).exists():
                link.symlink_to(entry)
    monkeypatch.setenv("JBOD_CACHE_DIR", str(beside))
    return beside


@pytest.mark.cluster
@pytest.mark.usefixtures("cache_beside")
def test_a_release_candidate_runs_as_its_own_image(workspace: Path, tmp_path: Path) -> None:
    """``--kafka-tarball``: an image is made of the jars that are in it, all of them, and the case runs on that."""
    jars = Builds.choose(BuildOptions(mode="kraft")).of(Mode.KRAFT).class_path
    marker = tmp_path / "release-candidate.jar"
    with zipfile.ZipFile(marker, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\nX-Of: {secrets.token_hex(8)}\n")
    candidate = tmp_path / "kafka-rc.tgz"
    with tarfile.open(candidate, "w") as archive:
        for each in (*jars, marker):
            archive.add(each, f"kafka-rc/libs/{each.name}")
    case = "kip-112/leader-at-bootstrap[kraft-chmod_000]"
    work_dir = workspace / "work"
    run = Running(tmp_path, work_dir, case, "--backend", "docker", "--kafka-tarball", str(candidate))
    before = {*images.images_here()}
    try:
        run.start()
        assert run.await_end() == EXIT_VALID, run.said.read_text()
        [run_dir] = (path.parent for path in run.runs_dir.glob("*/run.json"))
        ran = json.loads((run_dir / "run.json").read_text())
        assert (ran["kafka"]["source"], ran["kafka"]["origin"]) == ("tarball", str(candidate))
        made = f"jbod-kafka:{ran['kafka']['version']}-{ran['kafka']['sha256'][:12]}"
        assert {*images.images_here()} - before == {made}
        events = map(json.loads, (run_dir / "events.jsonl").read_text().splitlines())
        assert [event["image"] for event in events if event["kind"] == "image.used"] == [made]
        inside = {Path(jar).name for jar in images._look_into(made).jars}
        assert inside == {each.name for each in (*jars, marker)}
        run.assert_nothing_left()
    finally:
        run.kill()
        for image in {*images.images_here()} - before:
            engine().images.remove(image, force=True)


# --- an engine that goes away ---------------------------------------------------------------------------------------


@pytest.fixture
def own_engine(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    """One with the image in it, in a network from which nothing can be fetched: that has been done before."""
    require("network namespaces", "tmpfs mounts")
    distribution = Builds.choose(BuildOptions(mode="kraft")).of(Mode.KRAFT)
    image = image_for(distribution, Mode.KRAFT, lambda _line: None)
    spark_kafka_jars(cache_dir())
    jolokia_agent(cache_dir())
    own = OwnEngine(Path(tempfile.mkdtemp(prefix="jbod-test-docker-")))
    try:
        own.start()
        own.take_image(image.name)
        monkeypatch.setenv("DOCKER_HOST", own.address)
        yield own
    finally:
        own.remove()


@pytest.mark.cluster
def test_the_engine_goes_away_midway(own_engine: OwnEngine, workspace: Path, tmp_path: Path) -> None:
    """kill -9 of dockerd under load, with a log dir full: an error that says so, and no word on Kafka; what can't be
    undone without an engine is undone when there is one again."""
    run = Running(tmp_path, workspace, "kip-112/every-way-to-fail[kraft-full_tmpfs]", "--backend", "docker")
    run.argv = [*own_engine.inside, *run.argv]
    clean = [str(JBOD), "clean"]
    try:
        run.start()
        run.await_event('"fault.injected"')
        own_engine.kill()
        assert run.await_end() == EXIT_HARNESS, run.said.read_text()
        [result] = run.results()
        assert result["verdict"] == "error"
        assert f"the Docker engine at {own_engine.address} no longer answers; is dockerd running?" in result["reason"]

        # The containers' processes are gone like all others; what only an engine can remove is not forgotten.
        while_away = subprocess.run(clean, env=run.environment, capture_output=True, text=True, check=False)
        assert "can't be cleaned up after as yet" in while_away.stdout + while_away.stderr
        [left] = workspace.iterdir()
        assert [path.name for path in left.iterdir()] == ["undo.jsonl"]

        own_engine.start()
        assert traces(left.name)
        again = subprocess.run(clean, env=run.environment, capture_output=True, text=True, check=True)
        assert "cleaned up after" in again.stdout + again.stderr
        assert not traces(left.name)
        assert str(workspace) not in Path("/proc/self/mounts").read_text()
        run.assert_nothing_left()
    finally:
        run.kill()
        subprocess.run(clean, env=run.environment, capture_output=True, check=False)
