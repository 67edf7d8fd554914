"""The table of backends; harness/README.md says how to add one. Suites and faults do not know the backend."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from harness.cluster.nodes.node import BOTH_QUORUMS, Backend, ClusterContext, Runtime, Say
from harness.cluster.nodes.process import ProcessBackend, process_runtime
from harness.errors import UsageError
from harness.host.abilities import Ability
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode

SEVERAL_BUILDS = "several builds"
"""The ability to run nodes of one cluster on different builds."""

SECURED_LISTENERS = "secured listeners"
"""The ability to protect listeners with TLS and SASL (``--listener-security``)."""


@dataclass(frozen=True, kw_only=True)
class BackendKind:
    """A kind of backend: what it can do, and how to make one for a cluster.

    :ivar runtime: the Java and jars for nodes of a build, prepared if necessary; raises EnvironmentLacks if the machine
        can't provide them
    :ivar make: makes the backend of one cluster
    :ivar lacks: what the backend can't do on any machine
    :ivar check: checks early, before anything is fetched, that the machine has the backend; raises EnvironmentLacks
    """

    runtime: Callable[[Distribution, Mode, Say], Runtime]
    make: Callable[[ClusterContext], Backend]
    lacks: tuple[Ability, ...] = ()
    check: Callable[[], object] = lambda: None

    def lacking(self, name: str) -> Ability | None:
        """The ability with this name if the backend lacks it."""
        return next((each for each in self.lacks if each.name == name), None)


def _check_containers() -> None:
    # Imported here, since the Docker SDK is slow to load.
    from harness.host.engine import check_room, compose_version, engine

    engine()  # first, since installing an engine usually installs compose too
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
    found="processes share this machine's network",
    needed_for="faults that cut brokers off",
    fix="--backend docker",
)
_ONE_IMAGE = Ability(
    name=SEVERAL_BUILDS,
    present=False,
    found="all containers of a cluster are of one image",
    needed_for="upgrades",
    fix="--backend process",
)
_ONE_MODE = Ability(
    name=BOTH_QUORUMS,
    present=False,
    found="the compose file of a metadata mode has the nodes of that mode",
    needed_for="migrations from ZooKeeper to KRaft",
    fix="--backend process",
)
_PLAIN_LISTENERS = Ability(
    name=SECURED_LISTENERS,
    present=False,
    found="the compose files have listeners in plain text",
    needed_for="TLS, logins and ACLs",
    fix="--backend process",
)
BACKENDS = {
    "process": BackendKind(
        runtime=lambda distribution, _mode, _say: process_runtime(distribution),
        make=ProcessBackend,
        lacks=(_SHARED_NETWORK,),
    ),
    "docker": BackendKind(
        runtime=_container_runtime,
        make=_container_backend,
        lacks=(_ONE_IMAGE, _ONE_MODE, _PLAIN_LISTENERS),
        check=_check_containers,
    ),
}


def backend_kind(name: str) -> BackendKind:
    """The backend with this name.

    :raises UsageError: there is none
    """
    if name not in BACKENDS:
        raise unknown_backend(name, BACKENDS)
    return BACKENDS[name]


def unknown_backend(name: str, known: Collection[str]) -> UsageError:
    """The error for a name that is not among the known backends."""
    return UsageError(f"--backend {name}: choose {' or '.join(known)}")
