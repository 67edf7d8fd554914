"""The client of the Docker engine: errors for a missing or unfit engine, and its requests."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.nodes import networks
from harness.errors import EngineGone, EnvironmentLacks, HarnessError
from harness.host import undo
from harness.host.abilities import ability
from harness.host.engine import compose, compose_program, compose_version, engine, execute, explained, host, remove_run
from harness.host.marked_processes import MARK, kill_marked
from harness.host.probes import ENGINE_DISK_BYTES
from harness.host.undo import UndoLog
from harness.waiting import await_until
from suites.selftest.needs import require
from suites.selftest.processes import LEASH_S, marked
from suites.selftest.stand_in_engine import StandIn, answering


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
from harness.cluster.nodes.networks import free_network
print(free_network(7))
"""


@pytest.mark.parametrize(("left", "free"), [("198.18.7.1/24", "198.18.8"), ("198.18.8.1/24", "198.18.7")])
def test_a_network_that_an_engine_left_behind_is_not_taken_again(address: Path, left: str, free: str) -> None:
    """A bridge exists in the kernel, and the engine has no network for it; its subnet is not used again."""
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


TAKE = (
    FREE
    + """
print(flush=True)
input()
"""
)


def test_two_runs_that_start_at_once_choose_different_networks(address: Path) -> None:
    """Neither run's network exists in the engine yet. When a run ends, its network is free again."""

    def do_GET(self: StandIn) -> None:
        self.answer([]) if "/networks" in self.path else StandIn.do_GET(self)

    def free() -> str:
        return subprocess.run([sys.executable, "-c", FREE], capture_output=True, text=True, check=True).stdout.strip()

    with answering(address, do_GET=do_GET):
        before = free()
        argv = [sys.executable, "-c", TAKE]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline().strip() == before
            meanwhile = free()
            other.communicate("\n")
        assert (meanwhile != before, free()) == (True, before)


def test_a_network_that_another_run_makes_during_the_choice_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run reserves it, makes it and ends the reservation after this run has listed the networks."""
    looks = iter([[], [ipaddress.ip_network("198.18.7.0/24")]])
    monkeypatch.setattr(networks, "_taken_networks", lambda: next(looks, []))
    monkeypatch.setattr(networks, "_reserved", {})
    assert networks.free_network(7) == "198.18.8"
    assert [*networks._reserved] == ["198.18.8"]
    networks.release_network("198.18.8")


def test_nothing_that_a_program_says_at_once_is_lost(address: Path) -> None:
    """The answer's header and the output come in one packet; the SDK's own exec_run would lose the output."""

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
    """The error is one line, also where compose prints more after it."""
    failing = answering(address, do_POST=lambda self: self.answer({"message": said}, 500))
    with failing, pytest.raises(error, match=told), explained("a node"):
        engine().containers.create("x")
    says_more = f"echo 'failed: {said}' >&2; echo 'for more, see there' >&2; exit 1"
    with pytest.raises(error, match=told if error is not HarnessError else "for more, see there"):
        compose(["sh"], "-c", says_more)


def test_what_is_being_removed_already_is_waited_for(address: Path) -> None:
    """Another clean-up may be removing it, and the engine refuses a second removal."""
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


def test_compose_takes_nothing_from_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that a user exported for clusters by hand have no effect on a run, such as another image."""
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
from harness.host.engine import compose
from harness.cluster.nodes.container import start_watchdog
held = start_watchdog(sys.argv[1])
compose(["sleep"], "1000", run=sys.argv[1])
"""


def test_a_compose_that_the_harness_left_is_ended_before_its_containers_are_looked_for(address: Path) -> None:
    """It could make containers after the clean-up looked for them; it carries the run's mark, as the watchdog does."""
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
            await_until(lambda: marked(run), lambda left: not left, timeout_s=LEASH_S, what="the watchdog to end")
        finally:
            harness.kill()
            kill_marked(run)
    # It looks again, since compose had already asked the engine. A process that it killed may exist at its first look.
    assert len(still_there) == 2
    assert still_there[1] == 1


def test_an_engine_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2376")
    with pytest.raises(EnvironmentLacks, match="must be on this machine"):
        engine()


@pytest.mark.parametrize(
    ("folder", "found"), [("/", r"[\d.]+ GiB free in /"), ("/nowhere", "/nowhere, which can't be seen from here")]
)
def test_the_doctor_shows_what_room_the_engine_has(address: Path, folder: str, found: str) -> None:
    """The engine is a fake one; test_engine_troubles.py has a real engine with a full disk."""
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
    monkeypatch.setattr("harness.host.engine._SYSTEMS_PLUGINS", [str(tmp_path / "system")])
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
    assert "can't be cleaned up yet: no Docker engine" in said[0]


def test_what_is_in_one_engine_is_not_looked_for_in_another(
    address: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine has none of the run's containers, so they would seem to be gone."""
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
    assert f"r: can't be cleaned up yet: no Docker engine at {address}" in said[0]
    assert (log.dir / "undo.jsonl").exists()
    assert not asked
