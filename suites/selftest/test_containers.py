"""Nodes in containers behave as processes do, and leave nothing behind."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.cluster.cluster import Cluster, boot
from harness.cluster.nodes import images
from harness.cluster.nodes.backends import BACKENDS
from harness.cluster.nodes.container import ContainerBackend, _ContainerRun, start_watchdog
from harness.cluster.nodes.images import image_for
from harness.cluster.nodes.node import AGENT, SERVICE, ClusterContext
from harness.cluster.spec import ClusterSpec
from harness.errors import EXIT_HARNESS, EXIT_VALID, DistributionError, NodeDied
from harness.host import undo
from harness.host.cache import cache_dir
from harness.host.engine import LABEL, OWN_BASE, compose, engine, host, images_here, remove_run, run_once
from harness.host.freezer import FROZEN
from harness.host.ports import HOST
from harness.host.undo import UndoLog
from harness.journal import Journal
from harness.kafka.admin import Admin
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.connection import Connection, NoAnswer
from harness.kafka.distribution import jolokia_agent, spark_kafka_jars
from harness.kafka.versions import Mode
from harness.waiting import await_until
from suites.selftest.needs import require
from suites.selftest.own_engine import OwnEngine
from suites.selftest.processes import JBOD, LEASH_S, Running, marked

ROOT = Path(__file__).resolve().parents[2]
SPEC = ClusterSpec(mode=Mode.KRAFT, brokers=1, backend="docker")
BOOT = """
import sys
from pathlib import Path
from suites.selftest.test_containers import booted
booted(sys.argv[1], Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_container_that_has_a_code_has_ended(tmp_path: Path) -> None:
    """A container with an exit code may still have its ports; only once the engine frees them can it start again."""
    asked, answer = threading.Event(), threading.Event()

    def reload() -> None:
        asked.set()
        answer.wait(30.0)

    container = SimpleNamespace(
        attach=lambda **_: iter([(b"said", None)]),
        start=lambda: None,
        wait=lambda: {"StatusCode": 1},
        reload=reload,
    )
    watch = _ContainerRun(cast(Any, container), tmp_path)
    watch.begin()
    assert asked.wait(30.0)
    assert (watch.has_ended(), watch.exit_code) == (False, None)
    answer.set()
    assert watch.await_end(30.0)
    assert (watch.has_ended(), watch.exit_code) == (True, 1)


def booted(run: str, folder: Path) -> Cluster:
    distribution = Builds.choose(BuildOptions(mode="kraft")).of(Mode.KRAFT)
    BACKENDS["docker"].runtime(distribution, Mode.KRAFT, lambda _line: None)
    return boot(SPEC, distribution, run_id=run, record_dir=folder, journal=Journal(None))


def traces(run: str) -> list[str]:
    """The engine's containers, networks and volumes of a run."""
    client, own = engine(), {"label": f"{LABEL}={run}"}
    things = (*client.containers.list(all=True, filters=own, ignore_removed=True), *client.networks.list(filters=own))
    return [thing.name for thing in (*things, *client.volumes.list(filters=own))]


@pytest.fixture
def workspace(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    require("docker", "compose", "container image")
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    return open_folder


@pytest.mark.docker
def test_an_image_without_kafka(workspace: Path) -> None:
    """The error names the image, and not the engine."""
    if OWN_BASE not in images_here():
        pytest.skip(f"{OWN_BASE} isn't here (jbod image base)")
    with pytest.raises(DistributionError, match=f"the image {OWN_BASE} can't run Kafka .*: No such file or directory"):
        images._inspect(OWN_BASE)
    assert traces("image") == []


@pytest.mark.docker
def test_what_is_run_once_leaves_nothing(workspace: Path) -> None:
    """No container is left, and none of the anonymous volumes that the official image declares."""
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


@pytest.mark.docker
@pytest.mark.parametrize("mode", Mode)
def test_more_nodes_than_the_file_has(
    workspace: Path, tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The additional nodes are like those of the file, with addresses and ports of their own.

    Compose accepts the two files together, whatever the name of the working folder.
    """
    (named := workspace / "broker-3").mkdir()
    named.chmod(0o755)
    monkeypatch.setenv("JBOD_WORK_DIR", str(named))
    undo_log = UndoLog(f"Test-{secrets.token_hex(3)}")
    try:
        backend = ContainerBackend(
            ClusterContext(
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


@pytest.mark.docker
@pytest.mark.cluster
@pytest.mark.parametrize("mode", Mode)
def test_by_hand(workspace: Path, mode: Mode) -> None:
    """The commands of compose/README.md start a cluster that can be reached from outside, and remove it.

    They use nothing of jbod's but the image.
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
        assert up.returncode == 0, up.stderr + by_hand("logs", "--tail", "30").stdout
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


@pytest.mark.docker
@pytest.mark.cluster
def test_a_broker_in_a_container(cluster: Cluster) -> None:
    """It runs as the brokers' user, is reached on loopback only, and stops and starts as a process does."""
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
    assert node.paused_proof() in FROZEN  # the kernel shows it
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


@pytest.mark.docker
@pytest.mark.cluster
def test_a_broker_that_ends_by_itself_is_missed(cluster: Cluster) -> None:
    node = cluster.brokers[0].node
    engine().containers.get(f"{cluster.undo_log.run_id.lower()}-broker-1-1").kill()
    await_until(lambda: not node.is_alive(), timeout_s=10.0, what="the container's end to be seen")
    with pytest.raises(NodeDied, match="broker-1 ended with exit code -9"):
        cluster.check_nodes()


@pytest.mark.docker
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
    remove_run(run)  # a second call finds nothing, which is no error


LEASHED = """
import sys
from harness.host.engine import LABEL, engine
from harness.cluster.nodes.container import start_watchdog
run, image = sys.argv[1:]
held = start_watchdog(run)
engine().networks.create(run, labels={LABEL: run})
engine().containers.run(image, ["infinity"], entrypoint=["sleep"], init=True, detach=True, labels={LABEL: run})
print(held.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.docker
def test_containers_end_with_a_harness_that_was_killed(workspace: Path) -> None:
    """They end without another command. If the harness ends by itself, the watchdog container is removed, too."""
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


@pytest.mark.docker
def test_a_watchdog_ends_with_its_run(workspace: Path) -> None:
    log = UndoLog(f"leashed-{secrets.token_hex(3)}")
    with start_watchdog(log.run_id) as held:
        assert held.poll() is None
        log.close()
        assert held.wait() == -signal.SIGKILL


# --- a build without an image ---------------------------------------------------------------------------------------


@pytest.fixture
def cache_beside(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the entries of the machine's; new entries are removed with the test."""
    beside = open_folder / "cache"
    for folder in ("kafka", "images", ""):  # the folders that get new entries
        (beside / folder).mkdir(parents=True, exist_ok=True)
        for entry in (cache_dir() / folder).glob("[!.]*"):  # without the locks
            if not (link := beside / folder / entry.name).exists():
                link.symlink_to(entry)
    monkeypatch.setenv("JBOD_CACHE_DIR", str(beside))
    return beside


@pytest.mark.docker
@pytest.mark.cluster
@pytest.mark.usefixtures("cache_beside")
def test_a_release_candidate_runs_as_its_own_image(workspace: Path, tmp_path: Path) -> None:
    """``--kafka-tarball``: jbod builds an image with exactly the tarball's jars, and the case runs on it."""
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
    before = {*images_here()}
    try:
        run.start()
        assert run.await_end() == EXIT_VALID, run.said.read_text()
        [run_dir] = (path.parent for path in run.runs_dir.glob("*/run.json"))
        ran = json.loads((run_dir / "run.json").read_text())
        assert (ran["kafka"]["source"], ran["kafka"]["origin"]) == ("tarball", str(candidate))
        made = f"jbod-kafka:{ran['kafka']['version']}-{ran['kafka']['sha256'][:12]}"
        assert {*images_here()} - before == {made}
        events = map(json.loads, (run_dir / "events.jsonl").read_text().splitlines())
        assert [event["image"] for event in events if event["kind"] == "image.used"] == [made]
        inside = {Path(jar).name for jar in images._inspect(made).jars}
        assert inside == {each.name for each in (*jars, marker)}
        run.assert_nothing_left()
    finally:
        run.kill()
        for image in {*images_here()} - before:
            engine().images.remove(image, force=True)


# --- an engine that goes away ---------------------------------------------------------------------------------------


@pytest.fixture
def own_engine(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    """An engine with the image, in a network from which nothing can be fetched."""
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


@pytest.mark.docker
@pytest.mark.cluster
def test_the_engine_goes_away_midway(own_engine: OwnEngine, workspace: Path, tmp_path: Path) -> None:
    """dockerd is killed under load, while a log dir is full: the case is an error that names the engine.

    Whatever cannot be undone without an engine is undone once one runs again.
    """
    run = Running(tmp_path, workspace, "kip-112/every-way-to-fail[kraft-full_tmpfs]", "--backend", "docker")
    run.argv = [*own_engine.inside, *run.argv]
    clean = [str(JBOD), "clean"]
    try:
        run.start()
        run.await_event('"fault.noticed"')  # the followers that were held go on by then
        own_engine.kill()
        assert run.await_end() == EXIT_HARNESS, run.said.read_text()
        [result] = run.results()
        assert result["verdict"] == "error"
        assert f"the Docker engine at {own_engine.address} no longer answers; is dockerd running?" in result["reason"]

        # The containers' processes are gone; the undo log keeps what only an engine can remove.
        while_away = subprocess.run(clean, env=run.environment, capture_output=True, text=True, check=False)
        assert "can't be cleaned up yet" in while_away.stdout + while_away.stderr
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
