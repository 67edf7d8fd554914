"""The backends by name: what nodes run in, and on which Java and jars they do.

A table, so that one more is one more entry (see harness/README.md): neither suites nor faults know which they run on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.cluster.nodes.node import Backend, Runtime, ClusterContext
from harness.cluster.nodes.process import ProcessBackend, process_runtime
from harness.errors import UsageError
from harness.host.abilities import Ability
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class BackendKind:
    """What there is to know of a backend before there is a cluster.

    :ivar runtime: what nodes of a build run on; made ready, if need be, and said; raises EnvironmentLacks where it
        can't be had on this machine
    :ivar make: the backend of one cluster
    :ivar lacks: what can't be done in it, whatever the machine can do
    :ivar check: whether it can be had at all, asked before anything is fetched or begun; raises EnvironmentLacks
    """

    runtime: Callable[[Distribution, Mode, Say], Runtime]
    make: Callable[[ClusterContext], Backend]
    lacks: tuple[Ability, ...] = ()
    check: Callable[[], object] = lambda: None


def _check_containers() -> None:
    # Only who wants containers waits for the SDK to load.
    from harness.host.engine import check_room, compose_version, engine

    engine()  # which brings compose more often than not: who has neither is told of it first
    compose_version()
    check_room()


def _container_runtime(distribution: Distribution, mode: Mode, say: Say) -> Runtime:
    from harness.cluster.nodes.container import container_runtime
    from harness.cluster.nodes.images import image_for

    _check_containers()
    return container_runtime(image_for(distribution, mode, say))


def _container_backend(context: ClusterContext) -> Backend:
    from harness.cluster.nodes.container import ContainerBackend

    return ContainerBackend(context)


_SHARED_NETWORK = Ability(
    name="own networks",
    present=False,
    found="brokers that are processes share this machine's network",
    needed_for="brokers that are cut off",
    fix="--backend docker",
)
BACKENDS = {
    "process": BackendKind(
        runtime=lambda distribution, _mode, _say: process_runtime(distribution),
        make=ProcessBackend,
        lacks=(_SHARED_NETWORK,),
    ),
    "docker": BackendKind(runtime=_container_runtime, make=_container_backend, check=_check_containers),
}


def backend_kind(name: str) -> BackendKind:
    """The backend of that name.

    :raises UsageError: there is none
    """
    try:
        return BACKENDS[name]
    except KeyError:
        raise unknown_backend(name, BACKENDS) from None


def unknown_backend(name: str, known: Iterable[str]) -> UsageError:
    """What is said where there is none of that name."""
    return UsageError(f"--backend {name}: there is {' and '.join(known)}")
