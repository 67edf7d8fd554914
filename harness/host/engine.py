"""The Docker engine: the only door to it, and what its errors mean in one line.

Over the docker SDK, which speaks the engine's own protocol, and ``docker compose`` where a whole cluster is described
(``compose/``). Compose v2 and not Debian's docker-compose 1.29, which ended in 2021: what users have is v2, as a plugin
of the docker command, and only it knows ``configs`` with their content in the file.

All that a run makes in the engine carries the run's id as a label (:data:`LABEL`), so that it is found and removed by
whoever cleans up, whatever became of the run. Where the harness has died this is at once a process of its own
(:func:`harness.cluster.nodes.container.leash`); testcontainers' Ryuk, a privileged container for this, is not needed.
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
from typing import Any

import docker
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import (
    APIError,
    BuildError,
    DockerException,
    NotFound,
    create_api_error_from_http_exception,
)
from docker.types import LogConfig

from harness.errors import EngineGone, EnvironmentLacks, HarnessError
from harness.host.marked_processes import MARK, kill_marked
from harness.waiting import await_until, let_pass

LABEL = "jbod.run"
LEAST_ENGINE = (20, 10)
# configs.content came with 2.23.1.
LEAST_COMPOSE = (2, 24)
_HOST = "unix:///var/run/docker.sock"
_SYSTEMS_PLUGINS = ("/usr/local/lib", "/usr/local/libexec", "/usr/lib", "/usr/libexec")
"""In front of ``docker/cli-plugins``, as the docker command has them (its ``cli-plugins/manager``)."""
_COMPOSE_S = 60.0
_LEAST_ROOM = 64 << 20
"""For a few containers of images that are there; an image takes more."""
_ANSWER_S = 10.0
_REMOVAL_S = 20.0
_LATE_S = 3.0
"""The engine may take this long to make what it was asked for by somebody who has ended since."""
# What the compose files and compose itself would take from the shell, before what a run has set.
_NOT_FROM_THE_SHELL = re.compile("(JBOD|BROKER|CONTROLLER|ZOOKEEPER|COMPOSE)_|DOCKER_CONTEXT$")
_GET_ENGINE = "apt-get install docker.io iptables, then systemctl start docker (or dockerd &)"
_GET_COMPOSE = (
    "apt-get install docker-compose-plugin (Docker's own repository) or docker-compose-v2 (Ubuntu), "
    "or put its release there"
)


def host() -> str:
    """Where the engine listens: ``DOCKER_HOST``, as the docker command has it too, or the usual socket."""
    return os.environ.get("DOCKER_HOST") or _HOST


def engine(address: str | None = None) -> Any:
    """The engine's client, once it has shown that it can do what is needed.

    :param address: where it listens (default: :func:`host`)
    :raises EnvironmentLacks: there is none, it doesn't run, may not be talked to, is too old, or is somewhere else
    """
    return _engine(address or host())


@functools.cache
def _engine(address: str) -> Any:
    _check_socket(address)
    version = _version(address)
    if _numbers(version) < LEAST_ENGINE:
        raise EnvironmentLacks(
            f"the Docker engine at {address} is {version}; {_dots(LEAST_ENGINE)} or later is needed: {_GET_ENGINE}"
        )
    with explained("a first look at it"):
        with contextlib.closing(docker.DockerClient(base_url=address, version="auto", timeout=_ANSWER_S)) as first:
            info = first.info()
        client = docker.DockerClient(base_url=address, version="auto", max_pool_size=64)
    for feature in ("rootless", "userns"):
        if any(f"name={feature}" in option for option in info.get("SecurityOptions", ())):
            raise EnvironmentLacks(
                f"the Docker engine at {address} maps users ({feature}), so that a folder's owner is somebody else in "
                "a container; faults of permissions can't be shown there: use an engine without it"
            )
    return client


def _version(address: str) -> str:
    """What an engine says that it is; asked in no version of its protocol, as the SDK may no longer speak its own."""
    # With less patience than other questions need: an engine may hang.
    api = docker.APIClient(base_url=address, version=DEFAULT_DOCKER_API_VERSION, timeout=_ANSWER_S)
    with explained("a first look at it"), contextlib.closing(api):
        try:
            return str(api.version(api_version=False)["Version"])
        except (KeyError, TypeError, ValueError):
            told = f"what listens at {address} is no Docker engine: set DOCKER_HOST to one, or unset it"
        except requests.exceptions.Timeout:
            told = f"the Docker engine at {address} says nothing for {_ANSWER_S:.0f} s: systemctl restart docker"
    raise EnvironmentLacks(told)


def engine_version() -> str:
    """The version of the engine."""
    with explained("asking for its version"):
        return str(engine().version()["Version"])


def engine_folder() -> Path:
    """Where the engine keeps its images, volumes and containers; as it says, which may be in a machine of its own."""
    with explained("asking for its folder"):
        return Path(engine().info()["DockerRootDir"])


def check_room() -> None:
    """Containers can be made, as far as the engine's disk can be seen from here.

    :raises EnvironmentLacks: it is full
    """
    folder = engine_folder()
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # in a virtual machine, or closed to us
        return
    if free < _LEAST_ROOM:
        raise EnvironmentLacks(
            f"the Docker engine's disk is full ({free >> 20} MiB free in {folder}); docker system prune makes room"
        )


def _check_socket(address: str) -> None:
    """Tell apart the ways in which there is no engine, which the SDK all calls "connection aborted"."""
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
            told = f"you may not talk to the Docker engine at {path}: usermod -aG docker $USER, and log in again"
        elif error.errno == errno.ENOENT:
            told = f"no Docker engine at {path}: {_GET_ENGINE}, or set DOCKER_HOST"
        else:
            why = error.strerror or error
            told = f"no Docker engine runs behind {path} ({why}): systemctl start docker (or dockerd &)"
        raise EnvironmentLacks(told) from error


def compose_version() -> str:
    """The version of the compose plugin.

    :raises EnvironmentLacks: there is no docker command, no plugin, or it is too old
    """
    try:
        done = subprocess.run(
            ["docker", "compose", "version", "--short"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
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
    """``docker compose``, or the plugin itself where it is in a folder in which the docker command looks for it.

    The docker command asks each of its plugins who it is, and then starts this one: 35 ms of each call.
    """
    for folder in _plugin_folders():
        if os.access(program := folder / "docker-compose", os.X_OK):
            return [str(program)]
    return ["docker", "compose"]


def compose(command: list[str], *arguments: str, run: str | None = None) -> str:
    """Run a compose command to its end and return what it printed.

    :param run: whose process it is, so that it is ended with all that carry the run's mark
    :raises HarnessError: it failed; with what it said last
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
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise _explain(f"docker compose {arguments[0]}", *reversed(lines))
    return done.stdout


@contextlib.contextmanager
def explained(what: str, address: str | None = None) -> Iterator[None]:
    """Errors of the engine inside the block become one line.

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
    """What it comes to, from the first of these lines that is known; else from the first."""
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

    Not by the SDK's ``exec_run``: that reads from the socket below the buffer in which the answer's head was read, so
    that what comes in one piece with the head is lost (docker-py's issue 3332).

    :param patience_s: with an engine that says nothing
    """
    api = engine().api
    exec_id = api.exec_create(container, list(argv), environment=dict(environment), workdir="/")["Id"]
    url = f"{api.base_url}/v{api.api_version}/exec/{exec_id}/start"
    answer = api.post(url, json={"Detach": False, "Tty": False}, timeout=patience_s)
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        raise create_api_error_from_http_exception(error) from error
    said, left = {1: b"", 2: b""}, answer.content
    while left:  # frames: which stream, three bytes of nothing, how long
        if len(left) < 8 or left[0] not in said or len(left) < 8 + (length := int.from_bytes(left[4:8], "big")):
            raise DockerException(f"the answer to {argv[0]} was cut off")
        said[left[0]] += left[8 : 8 + length]
        left = left[8 + length :]
    code = api.exec_inspect(exec_id)["ExitCode"]
    return subprocess.CompletedProcess(list(argv), code, said[1].decode(), said[2].decode())


def run_once(
    image: str, argv: Sequence[str], run: str, *, patience_s: float, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a container of its own, without a network, of which nothing stays.

    :param run: whose it is, see :data:`LABEL`
    :param patience_s: with a program, or an engine, that doesn't end
    :param settings: further ones, as the SDK's ``containers.create`` has them
    """
    container = engine().containers.create(
        image,
        list(argv[1:]),
        entrypoint=[argv[0]],
        network_mode="none",
        labels={LABEL: run},
        log_config=LogConfig(type=LogConfig.types.JSON),  # whatever the engine's default is: it must be readable
        **settings,
    )
    try:
        container.start()
        code = container.wait(timeout=patience_s)["StatusCode"]
        out, err = container.logs(stderr=False), container.logs(stdout=False)
    finally:
        container.remove(force=True, v=True)  # the official image has volumes without a name
    return subprocess.CompletedProcess(list(argv), code, out.decode(errors="replace"), err.decode(errors="replace"))


def remove_run(run: str, address: str | None = None) -> None:
    """Remove all containers, networks and volumes of a run; those that are gone already are no error.

    :param address: where the engine listens that has them (default: :func:`host`)
    :raises EnvironmentLacks: there is no engine (at the moment), or something of it is held
    """
    client, own = engine(address), {"label": f"{LABEL}={run}"}

    def held() -> list[str]:
        found = []

        def remove(thing: Any, **how: bool) -> None:
            try:
                thing.remove(**how)
            except NotFound:
                pass
            except APIError as error:  # somebody else removes it, or what it is in use by
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
        what=f"what the engine has of {run} to be gone",
        failure=EnvironmentLacks,
    )


def end_run(run: str) -> None:
    """End a run whose harness has died: its processes, then what the engine has of it; see :func:`remove_run`.

    The processes first, this one excepted: a compose that is left would go on making containers. And twice, as the
    engine goes on with what it was asked for last. Nobody waits for a process to end: in a paused container none does.
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
