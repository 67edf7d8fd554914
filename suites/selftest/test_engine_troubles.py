"""Each trouble with the Docker engine gives the user one clear line and exit code 3, and leaves nothing behind.

The commands run as sub-processes. Real are the sockets, the user without rights, compose, and the engines that work at
first. An engine that is too old, or answers nonsense, is a fake one (:mod:`suites.selftest.stand_in_engine`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from harness.cluster.nodes.images import image_for
from harness.errors import EXIT_HARNESS
from harness.host.abilities import ability
from harness.host.cache import cache_path
from harness.host.engine import host
from harness.host.marked_processes import MARK
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode
from suites.selftest.needs import require
from suites.selftest.own_engine import OwnEngine
from suites.selftest.processes import JBOD, marked
from suites.selftest.stand_in_engine import StandIn, answering
from suites.selftest.test_containers import traces

CASE = "kip-112/leader-at-runtime[kraft-chmod_000]"
RUN = ("run", CASE, "--backend", "docker")
UP = ("cluster", "up", "--backend", "docker")
NIGHT = ("nightly", "--budget", "60s", "--backend", "docker")
BUILD = ("image", "build", "--mode", "kraft")
HANG_S = 300.0
NOBODY = 4711


class User:
    """A user at the command line, with folders of their own for all that jbod makes.

    :ivar socket: the engine's socket, by the user's ``DOCKER_HOST``
    """

    def __init__(self, base: Path) -> None:
        self.socket = base / "docker.sock"
        self._mark = f"troubles-{secrets.token_hex(3)}"
        self._folders = {name: base / name for name in ("work", "tmp", "runs")}
        for folder in self._folders.values():
            folder.mkdir()
        self._as: list[str] = []
        self.environment = os.environ | {
            "DOCKER_HOST": f"unix://{self.socket}",
            "JBOD_WORK_DIR": str(self._folders["work"]),
            "TMPDIR": str(self._folders["tmp"]),
            MARK: self._mark,
        }

    @property
    def work_dir(self) -> Path:
        """The folder of clusters."""
        return self._folders["work"]

    def become(self, uid: int) -> bool:
        """Be an ordinary user from now on, who can read root's builds; returns False if the command is out of reach.

        If the checkout lies below a home that is closed to others, the user may read everything.
        """
        ordinary = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        for way in ([], ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]):
            self._as = [*ordinary, *way]
            if subprocess.run([*self._as, JBOD, "--help"], capture_output=True, check=False).returncode == 0:
                break
        else:
            return False
        self.environment |= {"JBOD_CACHE_DIR": str(cache_path()), "HOME": str(self._folders["tmp"])}
        for folder in self._folders.values():
            os.chown(folder, uid, uid)
        return True

    def jbod(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``jbod`` as this user."""
        more = ("--runs-dir", str(self._folders["runs"] / "runs")) if arguments[0] in ("run", "nightly") else ()
        return subprocess.run(
            [*self._as, JBOD, *arguments, *more],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    def error_line(self, *arguments: str) -> str:
        """The command ends with exit code 3 and this one line, and leaves nothing behind."""
        done = self.jbod(*arguments)
        output = done.stdout + done.stderr
        assert done.returncode == EXIT_HARNESS, output
        line, *more = output.splitlines()
        assert not more, output
        assert line.startswith("jbod: ")
        self.assert_nothing_left()
        return line.removeprefix("jbod: ")

    def assert_nothing_left(self) -> None:
        """There is no process, no working folder, and no result of a case."""
        assert marked(self._mark) == []
        for name in ("work", "tmp"):
            # The lock files of ports stay for the next run.
            assert [path.name for path in self._folders[name].iterdir() if path.name != "jbod-ports"] == []
        assert not list(self._folders["runs"].glob("runs/*/"))


@pytest.fixture(scope="module", autouse=True)
def _builds() -> None:
    """Fetch the Kafka builds first, since a fetch prints lines of its own."""
    Builds.choose(BuildOptions(mode="kraft")).of(Mode.KRAFT)


@pytest.fixture
def user(open_folder: Path) -> User:
    return User(open_folder)


# --- no engine that will do -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def missing(_path: Path) -> Iterator[None]:
    yield


@contextlib.contextmanager
def not_running(path: Path) -> Iterator[None]:
    """The socket's file is there, as after an engine that was killed; nothing listens."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    yield


@contextlib.contextmanager
def hanging(path: Path) -> Iterator[None]:
    """The kernel accepts connections, and nothing answers, as for a stopped process."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield


def too_old(path: Path) -> AbstractContextManager[None]:
    """A stand-in."""
    return answering(path, version="19.03.15", api="1.40")


def ancient(path: Path) -> AbstractContextManager[None]:
    """A fake engine whose protocol the SDK no longer speaks."""
    return answering(path, version="1.9.1", api="1.21")


def mapping_users(path: Path) -> AbstractContextManager[None]:
    """A stand-in."""
    return answering(path, security=("name=rootless",))


def no_engine_at_all(path: Path) -> AbstractContextManager[None]:
    """A fake of a server that is not Docker."""
    return answering(path, do_GET=lambda self: self.answer(["hello"]))


def silent(path: Path) -> AbstractContextManager[None]:
    """A fake engine that closes each connection."""
    return answering(path, do_GET=lambda self: None)


TROUBLES = {
    missing: r"no Docker engine at {path}: apt-get install docker\.io iptables, then systemctl start docker .*",
    not_running: r"no Docker engine runs behind {path} \(Connection refused\): systemctl start docker .*",
    hanging: r"the Docker engine at unix://{path} did not answer within 10 s: systemctl restart docker",
    too_old: r"the Docker engine at unix://{path} is 19\.03\.15; 20\.10 or later is needed: apt-get install .*",
    ancient: r"the Docker engine at unix://{path} is 1\.9\.1; 20\.10 or later is needed: apt-get install .*",
    mapping_users: r"the Docker engine at unix://{path} maps users \(rootless\), .*: use an engine without it",
    no_engine_at_all: r"what listens at unix://{path} is no Docker engine: set DOCKER_HOST to one, or unset it",
    silent: r"asking for its version: the Docker engine at unix://{path} no longer answers; is dockerd running\?",
}


def message_about(trouble: object, path: Path) -> str:
    return next(line for each, line in TROUBLES.items() if each is trouble).replace("{path}", re.escape(str(path)))


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_engine_that_is_none_is_reported_by_a_run(user: User, trouble: type) -> None:
    with trouble(user.socket):
        assert re.fullmatch(message_about(trouble, user.socket), user.error_line(*RUN))


@pytest.mark.parametrize("command", [UP, BUILD, NIGHT], ids=" ".join)
def test_other_commands_report_the_same(user: User, command: tuple[str, ...]) -> None:
    """Every command that needs the engine has this error, and a night has it before it runs anything."""
    assert re.fullmatch(message_about(missing, user.socket), user.error_line(*command))


def doctor(user: User) -> dict[str, dict[str, object]]:
    """The abilities by name, as ``jbod doctor`` finds them."""
    done = user.jbod("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    user.assert_nothing_left()
    return {each["name"]: each for each in json.loads(done.stdout)["abilities"]}


@pytest.mark.docker
@pytest.mark.skipif(shutil.which("docker") is None, reason="without the docker command the doctor looks no further")
@pytest.mark.parametrize("trouble", [missing, not_running, hanging, too_old])
def test_the_doctor_knows_it(user: User, trouble: type) -> None:
    """``jbod doctor`` has the same words; its exit code is 0, since other cases can run."""
    with trouble(user.socket):
        found = doctor(user)
    for name in ("docker", "container image", "container disk"):
        assert not found[name]["present"]
        assert found[name]["fix"]
        assert re.fullmatch(message_about(trouble, user.socket), str(found[name]["found"]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_engine_that_may_not_be_talked_to(user: User) -> None:
    """An ordinary user has no access to root's socket."""
    if not user.become(NOBODY):
        pytest.skip(f"uid {NOBODY} can't get to {JBOD}")
    message = rf"you may not talk to the Docker engine at {re.escape(str(user.socket))}: usermod -aG docker \$USER, .*"
    with answering(user.socket):
        user.socket.chmod(0o600)
        assert re.fullmatch(message, user.error_line(*RUN))
        assert re.fullmatch(message, str(doctor(user)["container disk"]["found"]))


# --- a good engine without a good compose ---------------------------------------------------------------------------


@pytest.mark.docker
def test_no_compose_plugin(user: User, tmp_path: Path) -> None:
    """The docker command has no compose plugin; the engine is a fake one that would do."""
    user.environment |= {"DOCKER_CONFIG": str(tmp_path)}
    try:
        asked = ["docker", "compose", "version", "--short"]
        there = subprocess.run(asked, env=user.environment, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        pytest.skip("there is no docker command")
    if there:
        pytest.skip("the plugin is in a folder of the system's")
    message = (
        rf"the docker command \({shutil.which('docker')}\) has no compose plugin, neither in {tmp_path}/cli-plugins "
    )
    message += r"nor in the system's folders: apt-get install docker-compose-plugin .*"
    with answering(user.socket):
        for command in (RUN, UP):
            assert re.fullmatch(message, user.error_line(*command))
        found = doctor(user)
    assert re.fullmatch(message, str(found["compose"]["found"]))
    assert found["container disk"]["found"] == "/nowhere/docker, which can't be seen from here"


def test_no_docker_command(user: User, tmp_path: Path) -> None:
    """PATH has all programs of this machine except docker."""
    for folder in reversed(user.environment["PATH"].split(os.pathsep)):
        for program in Path(folder).glob("*"):
            if program.name != "docker":
                (tmp_path / program.name).unlink(missing_ok=True)
                (tmp_path / program.name).symlink_to(program)
    user.environment |= {"PATH": str(tmp_path)}
    with answering(user.socket):
        assert user.error_line(*RUN) == "no docker command on the PATH: apt-get install docker.io (or docker-cli)"


# --- an engine that goes away ---------------------------------------------------------------------------------------


def fleeting(path: Path, questions: int) -> AbstractContextManager[None]:
    """A fake engine that answers so many requests, and closes all later connections."""
    asked: list[str] = []

    def do_GET(self: StandIn) -> None:
        asked.append(self.path)
        if len(asked) <= questions:
            StandIn.do_GET(self)

    return answering(path, do_GET=do_GET, do_POST=lambda self: None)


@pytest.mark.parametrize("questions", range(6))
def test_an_engine_that_goes_away_at_any_question(user: User, questions: int) -> None:
    """The engine may go away at any request, up to the last one, which sends it the files for the image."""
    with fleeting(user.socket, questions):
        done = user.jbod(*BUILD, "--base", "base:1")
    output = (done.stdout + done.stderr).splitlines()
    notes = [line for line in output if "building the image" in line]
    assert bool(notes) == (questions == 5)
    [line] = [line for line in output if line not in notes]
    assert done.returncode == EXIT_HARNESS
    assert line.startswith("jbod: ")
    assert line.endswith(f": the Docker engine at unix://{user.socket} no longer answers; is dockerd running?")
    user.assert_nothing_left()


def test_the_doctor_reports_one_that_goes_away(user: User) -> None:
    with fleeting(user.socket, 5):
        found = doctor(user)
    assert "no longer answers; is dockerd running?" in str(found["container disk"]["found"])


class Wire:
    """A proxy of a real engine that closes for good at the request for a second container."""

    def __init__(self, path: Path, engine: str) -> None:
        self._engine = engine
        self._ends: list[socket.socket] = []
        self._made = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                self._ends += [near, far]
                far.connect(self._engine)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._made += b"POST" in data and b"/containers/create" in data
                if self._made > 1:
                    break
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        if self._made > 1:
            self.cut()

    def cut(self) -> None:
        """The engine is gone."""
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.mark.docker
@pytest.mark.parametrize("command", [UP, RUN], ids=" ".join)
def test_an_engine_that_goes_away_half_way_through_a_cluster(
    user: User, command: tuple[str, ...], open_folder: Path
) -> None:
    """The engine goes away after the first container; what only an engine can remove is removed once one runs again.

    A run first starts a cluster for its class archive, so it fails there.
    """
    require("docker", "compose", "container image")
    image_for(Builds.choose(BuildOptions(mode="kraft")).of(Mode.KRAFT), Mode.KRAFT, lambda _line: None)
    cache = open_folder / "cache"
    cache.mkdir()
    for entry in cache_path().iterdir():
        if not entry.name.startswith("classes-"):
            (cache / entry.name).symlink_to(entry)
    user.environment |= {"JBOD_CACHE_DIR": str(cache)}
    wire = Wire(user.socket, host().removeprefix("unix://"))
    try:
        done = user.jbod(*command)
    finally:
        wire.cut()
    output = done.stdout + done.stderr
    assert done.returncode == EXIT_HARNESS, output
    [left] = user.work_dir.iterdir()
    assert [path.name for path in left.iterdir()] == ["undo.jsonl"]
    [line] = [line for line in output.splitlines() if not line.startswith("preparing fast starts")]
    told = f"the Docker engine at unix://{user.socket} no longer answers; is dockerd running?"
    again = f"When it does, jbod clean removes what is left of {left.name}"
    assert line == f"jbod: docker compose create: {told} {again}"
    assert traces(left.name)
    assert marked(left.name) == []
    user.socket.unlink()
    user.socket.symlink_to(host().removeprefix("unix://"))  # the engine is back at its address
    assert user.jbod("clean").returncode == 0
    assert not traces(left.name)
    user.assert_nothing_left()


# --- an engine without room, or without the wanted image ------------------------------------------------------------


@pytest.fixture
def small_engine(tmp_path: Path) -> Iterator[OwnEngine]:
    """A real engine whose disk is too small for a Kafka build; it has a base image of one file, ``tiny:1``."""
    for name in ("network namespaces", "tmpfs mounts"):
        if os.geteuid() != 0 or not ability(name).present:
            pytest.skip(f"{name}: {ability(name).found} ({ability(name).fix})")
    if shutil.which("dockerd") is None:
        pytest.skip("there is no dockerd")
    folder = Path(tempfile.mkdtemp(prefix="jbod-test-docker-"))
    own = OwnEngine(folder)
    try:
        (folder / "root").mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(folder / "root")]
        subprocess.run(mount, check=True)
        own.start()
        with tarfile.open(tmp_path / "tiny.tar", "w") as archive:
            archive.add("/etc/hostname", "file")
        assert own.docker("import", str(tmp_path / "tiny.tar"), "tiny:1").returncode == 0
        yield own
    finally:
        own.remove()


@pytest.mark.docker
def test_an_engine_without_room_and_an_image_that_can_not_be_had(user: User, small_engine: OwnEngine) -> None:
    user.environment |= {"DOCKER_HOST": small_engine.address}
    done = user.jbod(*BUILD, "--base", "tiny:1")
    assert done.returncode == EXIT_HARNESS
    making, line = (done.stdout + done.stderr).splitlines()
    image = r"the image jbod-kafka:\S+ can't be built on tiny:1"
    room = r"the Docker engine's disk is full; docker system prune makes room \(.*no space left on device.*\)"
    assert "building the image" in making
    assert re.fullmatch(f"jbod: {image}: {room}", line)
    disk = doctor(user)["container disk"]
    assert (disk["present"], disk["fix"]) == (
        False,
        "docker system prune, or a dockerd with its --data-root on another disk",
    )
    assert re.fullmatch(r"0\.0 GiB free in \S+/root", str(disk["found"]))

    done = user.jbod(*BUILD, "--base", "nowhere.invalid/none")
    assert done.returncode == EXIT_HARNESS
    fetching, refused, line = (done.stdout + done.stderr).splitlines()
    assert refused.startswith("nowhere.invalid/none can't be fetched: ")
    assert line.startswith(
        "jbod: there is no image to build on: nowhere.invalid/none can't be fetched; jbod image base"
    )
    assert "fetching" in fetching
    user.assert_nothing_left()


@pytest.mark.docker
def test_nothing_begins_on_an_engine_without_room(user: User, small_engine: OwnEngine) -> None:
    require("compose")
    user.environment |= {"DOCKER_HOST": small_engine.address}
    room = r"the Docker engine's disk is full \(\d+ MiB free in \S+/root\); docker system prune makes room"
    for command in (RUN, UP, NIGHT):
        assert re.fullmatch(room, user.error_line(*command))
