"""The backends by name: what nodes run in, and on which Java and jars they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.distribution import Distribution
from harness.host import Ability
from harness.nodes.base import Backend, Runtime, Site
from harness.nodes.process import ProcessBackend, process_runtime
from harness.spec import BackendKind
from harness.versions import Mode

_SHARED_NETWORK = Ability(
    name="own networks",
    present=False,
    found="brokers that are processes share this machine's network",
    needed_for="brokers that are cut off",
    fix="--backend docker",
)
LACKS: Mapping[BackendKind, tuple[Ability, ...]] = {"process": (_SHARED_NETWORK,), "docker": ()}
"""What can't be done in a backend, whatever the machine can do."""


def runtime_of(kind: BackendKind, distribution: Distribution, mode: Mode, say: Callable[[str], None]) -> Runtime:
    """What nodes of this build run on in this backend; made ready, if need be, and said.

    :raises EnvironmentLacks: it can't be had on this machine
    """
    if kind == "process":
        return process_runtime(distribution)
    from harness.engine import compose_version  # only who asks for containers waits for the SDK to be loaded
    from harness.images import image_for
    from harness.nodes.container import container_runtime

    compose_version()
    return container_runtime(image_for(distribution, mode, say))


def make_backend(site: Site) -> Backend:
    """The backend that the site's spec asks for."""
    if site.spec.backend == "process":
        return ProcessBackend(site)
    from harness.nodes.container import ContainerBackend

    return ContainerBackend(site)
