"""Users of a secured cluster, and the requests that need a right on the cluster.

Each of three users has one right. One user has only what producers and consumers need,
and one has no right at all (:mod:`harness.cluster.security`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.security import User
from harness.errors import PromiseBroken, ToolFailed
from harness.kafka.acl_requests import Acl
from harness.kafka.admin import Admin
from harness.kafka.answers import Refused
from harness.kafka.security import ListenerSecurity
from harness.kafka.versions import VersionRange
from suites.scenario import scenario

secured_scenario = functools.partial(
    scenario,
    # PEM files (KIP-651)
    builds=VersionRange.parse(">=2.7.0"),
    listener_security=ListenerSecurity.SASL_TLS,
)
UNAUTHORIZED = "CLUSTER_AUTHORIZATION_FAILED"
_SAYS = "ClusterAuthorizationException"
_CLUSTER = "kafka-cluster"
RIGHTS = (
    Acl(user="describer", resource="cluster", name=_CLUSTER, operation="DESCRIBE"),
    Acl(user="mover", resource="cluster", name=_CLUSTER, operation="ALTER"),
    Acl(user="cordoner", resource="cluster", name=_CLUSTER, operation="ALTER_CONFIGS"),
)
"""The right that each request needs: DescribeLogDirs, AlterReplicaLogDirs, and a change of a broker's configs."""
ASKERS: tuple[User, ...] = ("describer", "mover", "cordoner", "client", "stranger")
"""The users whose requests are tried; none of them is a super user."""


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A request that only some of :data:`ASKERS` may make.

    :ivar ask: makes the request as the user of this client
    """

    name: str
    allowed: tuple[User, ...]
    ask: Callable[[Admin], object]


def admin_of(broker: Broker, cluster: Cluster, user: User) -> Admin:
    """A client of this user at a broker, with a connection of its own."""
    return Admin(broker.new_connection(security=cluster.security.client(user)))


def check_only_for(broker: Broker, cluster: Cluster, request: Guarded) -> None:
    """Every user but the allowed ones is refused with CLUSTER_AUTHORIZATION_FAILED."""
    for user in ASKERS:
        if user not in request.allowed:
            check_unauthorized(user, request.name, functools.partial(request.ask, admin_of(broker, cluster, user)))
    cluster.journal.write("users.refused", request=request.name, broker=broker.id, allowed=request.allowed)


def check_unauthorized(user: User, what: str, ask: Callable[[], object]) -> None:
    """The user may not do this: the request is refused with CLUSTER_AUTHORIZATION_FAILED."""
    try:
        ask()
    except Refused as refusal:
        if refusal.error == UNAUTHORIZED:
            return
        raise PromiseBroken(f"{what} by {user} is answered with {refusal.error}, not {UNAUTHORIZED}") from refusal
    raise PromiseBroken(f"{what} by {user} succeeds, where {UNAUTHORIZED} is promised")


def check_tool_unauthorized(user: User, run: Callable[[], object]) -> None:
    """One of Kafka's tools fails for the user, and says why."""
    try:
        run()
    except ToolFailed as error:
        if _SAYS in str(error):
            return
        raise PromiseBroken(f"a tool of {user} fails without {_SAYS}: {error}") from error
    raise PromiseBroken(f"a tool of {user} succeeds, where {UNAUTHORIZED} is promised")
