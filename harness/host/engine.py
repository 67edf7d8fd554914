"""The only module that talks to the Docker engine: client, compose, programs in containers, errors in one line.

The docker SDK speaks the engine's protocol; ``docker compose`` starts a whole cluster (``compose/``). It must be
Compose v2: Debian's docker-compose 1.29 is from 2021 and does not know ``configs`` with their content in the file.

All that a run makes in the engine carries the run's id as a label (:data:`LABEL`), so that any clean-up finds it. If
the harness dies, a separate process cleans up at once (:func:`harness.cluster.nodes.container.start_watchdog`), without
the privileged container that testcontainers uses for this (Ryuk).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, BuildError, DockerException, NotFound, create_api_error_from_http_exception
from docker.models.resource import Model
from docker.types import LogConfig

from harness.errors import EngineGone, EnvironmentLacks, HarnessError
from harness.host.marked_processes import MARK, kill_marked
from harness.waiting import await_until, let_pass

LABEL = "jbod.run"
OWN_BASE = "jbod-base:bookworm"
BASES = ("eclipse-temurin:17-jre", OWN_BASE)
"""Bases for the image of a build; the first available one is used, unless :data:`BASE_VARIABLE` names another."""
BASE_VARIABLE = "JBOD_BASE_IMAGE"
LEAST_ENGINE = (20, 10)
# configs.content came with 2.23.1.
LEAST_COMPOSE = (2, 24)
_HOST = "unix:///var/run/docker.sock"
# The docker command looks for plugins in ``docker/cli-plugins`` of these, in this order (its ``cli-plugins/manager``).
_SYSTEMS_PLUGINS = ("/usr/local/lib", "/usr/local/libexec", "/usr/lib", "/usr/libexec")
_COMPOSE_S = 60.0
# Enough for a few containers whose images are there; an image takes more.
_LEAST_ROOM = 64 << 20
_ANSWER_S = 10.0
_REMOVAL_S = 20.0
# After a process has ended, the engine may work on its last request for this long.
_LATE_S = 3.0
# Variables of the shell that would override what a run sets for compose.
_NOT_FROM_THE_SHELL = re.compile("(JBOD|BROKER|CONTROLLER|ZOOKEEPER|COMPOSE)_|DOCKER_CONTEXT$")
_GET_ENGINE = "apt-get install docker.io iptables, then systemctl start docker (or dockerd &)"
_GET_COMPOSE = (
    "apt-get install docker-compose-plugin (Docker's own repository) or docker-compose-v2 (Ubuntu), "
    "or put its release there"
)


def host() -> str:
    """The engine's address: ``DOCKER_HOST``, which the docker command uses too, or the usual socket."""
    return os.environ.get("DOCKER_HOST") or _HOST


def engine(address: str | None = None) -> docker.DockerClient:
    """The client of an engine; each engine is checked once for what jbod needs.

    :param address: where it listens (default: :func:`host`)
    :raises EnvironmentLacks: there is none, it doesn't run, refuses this user, is too old, maps users, or is on another
        machine
    """
    return _engine(address or host())


@functools.cache
def _engine(address: str) -> docker.DockerClient:
    _check_socket(address)
    version = _version(address)
    if _numbers(version) < LEAST_ENGINE:
        raise EnvironmentLacks(
            f"the Docker engine at {address} is {version}; {_dots(LEAST_ENGINE)} or later is needed: {_GET_ENGINE}"
        )
    with explained("asking for its version and settings"):
        with contextlib.closing(docker.DockerClient(base_url=address, version="auto", timeout=_ANSWER_S)) as first:
            info = first.info()
        client = docker.DockerClient(base_url=address, version="auto", max_pool_size=64)
    for feature in ("rootless", "userns"):
        if any(f"name={feature}" in option for option in info.get("SecurityOptions", ())):
            raise EnvironmentLacks(
                f"the Docker engine at {address} maps users ({feature}), so that a folder's owner is another one in a "
                "container; faults of permissions can't be shown there: use an engine without it"
            )
    return client


def _version(address: str) -> str:
    """The engine's version; the request names no protocol version, since the SDK may no longer speak the engine's."""
    api = docker.APIClient(base_url=address, version=DEFAULT_DOCKER_API_VERSION, timeout=_ANSWER_S)
    with explained("asking for its version"), contextlib.closing(api):
        try:
            return str(api.version(api_version=False)["Version"])
        except (KeyError, TypeError, ValueError):
            why = f"what listens at {address} is no Docker engine: set DOCKER_HOST to one, or unset it"
        except requests.exceptions.Timeout:
            why = f"the Docker engine at {address} did not answer within {_ANSWER_S:.0f} s: systemctl restart docker"
    raise EnvironmentLacks(why)


def engine_version() -> str:
    """The version of the engine."""
    with explained("asking for its version"):
        return str(engine().version()["Version"])


def engine_folder() -> Path:
    """The folder of the engine's images, volumes and containers, which may be in a virtual machine."""
    with explained("asking for its folder"):
        return Path(engine().info()["DockerRootDir"])


def check_room() -> None:
    """Check that the engine's disk has room for containers, if its folder can be seen from here.

    :raises EnvironmentLacks: it is full
    """
    folder = engine_folder()
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # in a virtual machine, or closed to this user
        return
    if free < _LEAST_ROOM:
        raise EnvironmentLacks(
            f"the Docker engine's disk is full ({free >> 20} MiB free in {folder}); docker system prune makes room"
        )


def images_here() -> list[str]:
    """The images in the engine that nodes could run in, or that such an image could be built on.

    :raises EnvironmentLacks: there is no engine
    """
    with explained("the engine's images"):
        tags = [tag for image in engine().images.list() for tag in image.tags]
    bases = {os.environ.get(BASE_VARIABLE), *BASES}
    return sorted(tag for tag in tags if tag in bases or tag.startswith(("apache/kafka:", "jbod-kafka:")))


def _check_socket(address: str) -> None:
    """Raise an error with the reason why there is no engine; the SDK reports each one as "connection aborted"."""
    if not address.startswith("unix://"):
        raise EnvironmentLacks(
            f"DOCKER_HOST is {address}; containers share folders with the harness, so the engine must be on this "
            "machine and listen at a socket (unix://…)"
        )
    path = address.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
    except OSError as error:
        if error.errno == errno.EACCES:
            why = f"you may not talk to the Docker engine at {path}: usermod -aG docker $USER, and log in again"
        elif error.errno == errno.ENOENT:
            why = f"no Docker engine at {path}: {_GET_ENGINE}, or set DOCKER_HOST"
        else:
            reason = error.strerror or error
            why = f"no Docker engine runs behind {path} ({reason}): systemctl start docker (or dockerd &)"
        raise EnvironmentLacks(why) from error


def compose_version() -> str:
    """The version of the compose plugin.

    :raises EnvironmentLacks: there is no docker command, no plugin, or it is too old
    """
    try:
        command = ["docker", "compose", "version", "--short"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except FileNotFoundError:
        raise EnvironmentLacks("no docker command on the PATH: apt-get install docker.io (or docker-cli)") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentLacks(f"docker compose version did not answer within {_ANSWER_S:.0f} s") from None
    version = done.stdout.strip()
    if done.returncode or not version:
        folder = _plugin_folders()[0]
        raise EnvironmentLacks(
            f"the docker command ({shutil.which('docker')}) has no compose plugin, neither in {folder} nor in the "
            f"system's folders: {_GET_COMPOSE}"
        )
    if (numbers := _numbers(version)) and numbers < LEAST_COMPOSE:
        raise EnvironmentLacks(f"docker compose is {version}; {_dots(LEAST_COMPOSE)} or later is needed")
    return version


def _plugin_folders() -> list[Path]:
    """Where the docker command looks for plugins, the user's own folder first."""
    own = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    return [folder / "cli-plugins" for folder in (own, *(Path(each) / "docker" for each in _SYSTEMS_PLUGINS))]


def compose_program() -> list[str]:
    """The command of compose: the plugin itself if it is found, which saves the docker command's 35 ms a call."""
    for folder in _plugin_folders():
        if os.access(program := folder / "docker-compose", os.X_OK):
            return [str(program)]
    return ["docker", "compose"]


def compose(command: list[str], *arguments: str, run: str | None = None) -> str:
    """Run a compose command to its end and return what it printed.

    :param run: marks the process as the run's, so that it ends with the run's other processes
    :raises HarnessError: it failed (the error has its last line), or did not end within a minute
    """
    ours = {name: value for name, value in os.environ.items() if not _NOT_FROM_THE_SHELL.match(name)}
    ours |= {MARK: run} if run else {}
    try:
        done = subprocess.run(
            [*command, *arguments],
            env=ours | {"DOCKER_HOST": host()},
            capture_output=True,
            text=True,
            timeout=_COMPOSE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HarnessError(f"docker compose {arguments[0]} did not end within {_COMPOSE_S:.0f} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it printed nothing"]
        raise _explain(f"docker compose {arguments[0]}", *reversed(lines))
    return done.stdout


@contextlib.contextmanager
def explained(what: str, address: str | None = None) -> Iterator[None]:
    """Turn the engine's errors inside the block into one line that begins with ``what``.

    :param address: where the engine listens (default: :func:`host`)
    :raises EngineGone: it doesn't answer
    :raises HarnessError: it answered that it can't
    """
    try:
        yield
    except APIError as error:
        raise _explain(what, str(error.explanation or error)) from error
    except BuildError as error:
        raise _explain(what, str(error.msg).strip()) from error
    except (requests.exceptions.RequestException, DockerException, OSError) as error:
        raise _gone(what, address or host()) from error


def _gone(what: str, address: str) -> EngineGone:
    return EngineGone(f"{what}: the Docker engine at {address} no longer answers; is dockerd running?")


def _explain(what: str, *said: str) -> HarnessError:
    """The error for the first of these lines that is known; if none is, for the first."""
    for line in said:
        if re.search("cannot connect to the docker daemon|error during connect: ", line, re.IGNORECASE):
            return _gone(what, host())
        if "no space left on device" in line:
            return EnvironmentLacks(
                f"{what}: the Docker engine's disk is full; docker system prune makes room ({line})"
            )
        if "no such image" in line.lower():
            return EnvironmentLacks(f"{what}: {line}; jbod image base and jbod image build make one")
    return HarnessError(f"{what}: {said[0]}")


def execute(
    container: str, argv: Sequence[str], *, environment: Mapping[str, str], patience_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a program in a container to its end.

    The SDK's ``exec_run`` loses output that comes in one piece with the answer's head (docker-py's issue 3332).

    :param patience_s: seconds without an answer after which the engine counts as gone
    """
    api = engine().api
    exec_id = api.exec_create(container, list(argv), environment=dict(environment), workdir="/")["Id"]
    url = f"{api.base_url}/v{api.api_version}/exec/{exec_id}/start"
    answer = api.post(url, json={"Detach": False, "Tty": False}, timeout=patience_s)
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        raise create_api_error_from_http_exception(error) from error
    streams, left = {1: b"", 2: b""}, answer.content
    while left:  # a frame: the stream's number, three zeros, the length in four bytes, the output
        if len(left) < 8 or left[0] not in streams or len(left) < 8 + (length := int.from_bytes(left[4:8], "big")):
            raise DockerException(f"the answer to {argv[0]} was cut off")
        streams[left[0]] += left[8 : 8 + length]
        left = left[8 + length :]
    code = api.exec_inspect(exec_id)["ExitCode"]
    return subprocess.CompletedProcess(list(argv), code, streams[1].decode(), streams[2].decode())


def run_once(
    image: str, argv: Sequence[str], run: str, *, patience_s: float, **settings: object
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a container of its own, without a network, and remove the container.

    :param run: the run's id, see :data:`LABEL`
    :param patience_s: seconds to wait for the program's end
    :param settings: further arguments of the SDK's ``containers.create``
    """
    container = engine().containers.create(
        image,
        list(argv[1:]),
        entrypoint=[argv[0]],
        network_mode="none",
        labels={LABEL: run},
        log_config=LogConfig(type=LogConfig.types.JSON),  # the engine's default may be one that can't be read
        **settings,
    )
    try:
        container.start()
        code = container.wait(timeout=patience_s)["StatusCode"]
        out, err = container.logs(stderr=False), container.logs(stdout=False)
    finally:
        container.remove(force=True, v=True)  # with the official image's volumes, which have no name
    return subprocess.CompletedProcess(list(argv), code, out.decode(errors="replace"), err.decode(errors="replace"))


def remove_run(run: str, address: str | None = None) -> None:
    """Remove all containers, networks and volumes of a run; one that is gone already is no error.

    :param address: where their engine listens (default: :func:`host`)
    :raises EnvironmentLacks: there is no engine (at the moment), or it does not remove some of them
    """
    client, own = engine(address), {"label": f"{LABEL}={run}"}

    def held() -> list[str]:
        found = []

        def remove(thing: Model, **how: bool) -> None:
            try:
                thing.remove(**how)
            except NotFound:
                pass
            except APIError as error:  # it, or what uses it, is being removed by another process
                found.append(f"{thing.name}: {error.explanation or error}")

        with explained(f"cleaning up after {run}", address), ThreadPoolExecutor(max_workers=8) as pool:
            containers = client.containers.list(all=True, filters=own, ignore_removed=True)
            list(pool.map(lambda container: remove(container, force=True, v=True), containers))
            for thing in (*client.networks.list(filters=own), *client.volumes.list(filters=own)):
                remove(thing)
        return found

    await_until(
        held,
        lambda found: not found,
        timeout_s=_REMOVAL_S,
        what=f"the engine to remove all that it has of {run}",
        failure=EnvironmentLacks,
        for_kafka=False,
    )


def end_run(run: str) -> None:
    """End a run whose harness has died: its other processes, then what the engine has of it (:func:`remove_run`).

    It ends processes first, since a compose process would go on making containers. It does all this twice, since the
    engine still carries out the last request. It does not wait for processes: in a paused container none ends.
    """
    with contextlib.suppress(HarnessError):
        kill_marked(run)
        remove_run(run)
    let_pass(_LATE_S)
    kill_marked(run)
    remove_run(run)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _dots(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
