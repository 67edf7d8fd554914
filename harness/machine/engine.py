"""The Docker engine: the only door to it, and what its errors mean in one line.

Over the docker SDK, which speaks the engine's own protocol, and ``docker compose`` where a whole cluster is described
(``compose/``). Compose v2 and not Debian's docker-compose 1.29, which ended in 2021: what users have is v2, as a plugin
of the docker command, and only it knows ``configs`` with their content in the file.

All that a run makes in the engine carries the run's id as a label (:data:`LABEL`), so that it is found and removed by
whoever cleans up, whatever became of the run; testcontainers' Ryuk, a privileged container that does this for a run
that has died, is not needed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from harness.errors import EngineGone, EnvironmentLacks, HarnessError

LABEL = "jbod.run"
LEAST_ENGINE = (20, 10)
# configs.content came with 2.23.1.
LEAST_COMPOSE = (2, 24)
_HOST = "unix:///var/run/docker.sock"
_COMPOSE_S = 60.0
_ANSWER_S = 10.0
_GET_ENGINE = "apt-get install docker.io iptables, then systemctl start docker (or dockerd &)"
_GET_COMPOSE = (
    "apt-get install docker-compose-plugin (Docker's own repository) or docker-compose-v2 (Ubuntu), "
    "or put its release into ~/.docker/cli-plugins"
)


def host() -> str:
    """Where the engine listens: ``DOCKER_HOST``, as the docker command has it too, or the usual socket."""
    return os.environ.get("DOCKER_HOST") or _HOST


def engine() -> Any:
    """The engine's client, once it has shown that it can do what is needed.

    :raises EnvironmentLacks: there is none, it doesn't run, may not be talked to, is too old, or is somewhere else
    """
    return _engine(host())


@functools.cache
def _engine(address: str) -> Any:
    _check_socket(address)
    with explained("the Docker engine"):
        # The first question is asked with less patience than others need: an engine may hang.
        with contextlib.closing(docker.DockerClient(base_url=address, version="auto", timeout=_ANSWER_S)) as first:
            version, info = first.version()["Version"], first.info()
        client = docker.DockerClient(base_url=address, version="auto", max_pool_size=64)
    if _numbers(version) < LEAST_ENGINE:
        raise EnvironmentLacks(f"the Docker engine at {address} is {version}; {_dots(LEAST_ENGINE)} or later is needed")
    for feature in ("rootless", "userns"):
        if any(f"name={feature}" in option for option in info.get("SecurityOptions", ())):
            raise EnvironmentLacks(
                f"the Docker engine at {address} maps users ({feature}), so that a folder's owner is somebody else in "
                "a container; faults of permissions can't be shown there: use an engine without it"
            )
    return client


def engine_version() -> str:
    """The version of the engine."""
    return str(engine().version()["Version"])


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
            told = f"no Docker engine runs behind {path} ({error.strerror}): systemctl start docker (or dockerd &)"
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
        raise EnvironmentLacks(f"the docker command has no compose plugin: {_GET_COMPOSE}")
    if (numbers := _numbers(version)) and numbers < LEAST_COMPOSE:
        raise EnvironmentLacks(f"docker compose is {version}; {_dots(LEAST_COMPOSE)} or later is needed")
    return version


def compose(command: list[str], *arguments: str) -> str:
    """Run a compose command to its end and return what it printed.

    :raises HarnessError: it failed; with what it said last
    """
    try:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=_COMPOSE_S, check=False)
    except subprocess.TimeoutExpired:
        raise HarnessError(f"docker compose {arguments[0]} did not end within {_COMPOSE_S:.0f} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise _explain(f"docker compose {arguments[0]}", lines[-1])
    return done.stdout


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors of the engine inside the block become one line.

    :raises EngineGone: it doesn't answer
    :raises HarnessError: it answered that it can't
    """
    try:
        yield
    except APIError as error:
        raise _explain(what, str(error.explanation or error)) from error
    except (requests.exceptions.RequestException, DockerException, OSError) as error:
        raise EngineGone(f"{what}: the Docker engine at {host()} no longer answers; is dockerd running?") from error


def _explain(what: str, said: str) -> HarnessError:
    if re.search("cannot connect to the docker daemon|is the docker daemon running", said, re.IGNORECASE):
        return EngineGone(f"{what}: the Docker engine at {host()} no longer answers; is dockerd running?")
    if "no space left on device" in said:
        return EnvironmentLacks(f"{what}: the Docker engine's disk is full; docker system prune makes room ({said})")
    if "no such image" in said.lower():
        return EnvironmentLacks(f"{what}: {said}; jbod image base and jbod image build make one")
    return HarnessError(f"{what}: {said}")


def remove_run(run: str) -> None:
    """Remove all containers, networks and volumes of a run; those that are gone already are no error.

    :raises EnvironmentLacks: there is no engine (at the moment)
    """
    client, own = engine(), {"label": f"{LABEL}={run}"}
    with explained(f"cleaning up after {run}"), ThreadPoolExecutor(max_workers=8) as pool:

        def remove(container: Any) -> None:
            with contextlib.suppress(NotFound):
                container.remove(force=True, v=True)

        list(pool.map(remove, client.containers.list(all=True, filters=own, ignore_removed=True)))
        for thing in (*client.networks.list(filters=own), *client.volumes.list(filters=own)):
            with contextlib.suppress(NotFound):
                thing.remove()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _dots(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
