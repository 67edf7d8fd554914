"""The voters of a dynamic quorum: adds, removes and checks them, by DescribeQuorum and kafka-metadata-quorum."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import closing
from datetime import datetime, timedelta

from kafka.protocol.metadata import ApiVersionsRequest

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.cluster.own_part import OwnPart
from harness.cluster.quorum.kraft import node_id
from harness.errors import PromiseBroken, ToolFailed
from harness.host.scratch import scratch
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import QuorumReplica, QuorumState
from harness.kafka.security import properties_text
from harness.kafka.tool_answers import describe_quorum
from harness.kafka.tools_jvm import tool_lines
from harness.kafka.versions import Tool
from harness.waiting import await_until
from suites.controllers import metadata_dir, quorum_of
from suites.deviations import VOTES_ASKED_WITHOUT_PAUSE
from suites.observing import observe


def replica_of(cluster: Cluster, controller: Node) -> QuorumReplica:
    """The controller with the ``directory.id`` that its metadata log dir has now."""
    return QuorumReplica(id=node_id(controller), directory_id=metadata_dir(cluster, controller).directory_id())


def replicas_of(cluster: Cluster, controllers: Collection[Node]) -> set[QuorumReplica]:
    """The replica of each controller, by :func:`replica_of`."""
    return {replica_of(cluster, controller) for controller in controllers}


def add_voter(cluster: Cluster, controller: Node) -> None:
    """Run ``kafka-metadata-quorum add-controller`` for a controller that observes.

    A controller fetches metadata before it takes requests. The active controller gives up to add one that does not
    answer yet.

    :raises PromiseBroken: the tool fails
    """
    with closing(quorum_of(cluster).controller_connection(controller)) as connection:
        await_until(
            lambda: connection.ask(ApiVersionsRequest(client_software_name="jbod", client_software_version="1")),
            timeout_s=timeouts.BOOT_S,
            what=f"{controller.spec.name} to take requests",
            retry_on=(NoAnswer,),
            watch=controller.check_alive,
        )
    with OwnPart(cluster, "add a controller to the voters", needs_all=False).served(), scratch("voter") as folder:
        # The tool finds the controller's settings and its own in one file; only one may say which authority is trusted.
        kept = {name: value for name, value in controller.spec.properties.items() if "ssl.truststore." not in name}
        config = folder / "server.properties"
        config.write_text(properties_text({**kept, **cluster.bootstrap.security.java}))
        at = ("--bootstrap-server", str(cluster.bootstrap), "--command-config", str(config))
        tool_lines(cluster.distribution, Tool.METADATA_QUORUM, *at, "add-controller")
    cluster.journal.write("voter.added", controller=controller.spec.name)


def remove_voter(cluster: Cluster, replica: QuorumReplica) -> None:
    """Run ``kafka-metadata-quorum remove-controller`` for a voter.

    :raises PromiseBroken: the tool fails
    """
    voter = ("--controller-id", str(replica.id), "--controller-directory-id", replica.directory_id)
    with OwnPart(cluster, "remove a controller from the voters", needs_all=False).served():
        at = cluster.bootstrap.of_tool(Tool.METADATA_QUORUM)
        tool_lines(cluster.distribution, Tool.METADATA_QUORUM, *at, "remove-controller", *voter)
    cluster.journal.write("voter.removed", voter=str(replica))


def check_voters(cluster: Cluster, voters: Collection[QuorumReplica], *observing: QuorumReplica) -> None:
    """These are the voters, and these controllers observe: all brokers and kafka-metadata-quorum say so."""

    def seen() -> list[QuorumState]:
        answers = [broker.admin.describe_quorum() for broker in cluster.live_brokers()]
        return [*answers, describe_quorum(cluster.distribution, cluster.bootstrap)]

    await_until(
        seen,
        lambda states: all(state.voters == set(voters) and state.observers >= set(observing) for state in states),
        timeout_s=timeouts.CONTROLLER_FAILURE_S,
        what=f"the voters to be {sorted(voters)}, and {list(observing) or 'no controller in particular'} to observe",
        retry_on=(NoAnswer, Refused, ToolFailed),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    cluster.journal.write("voters.validated", voters=sorted(map(str, voters)), observing=[*map(str, observing)])


def check_succeeded(cluster: Cluster, before: Node) -> Node:
    """Another controller is active, and every live broker names it; returns it."""

    def successor() -> Node | None:
        active = cluster.active_controller()
        named = {cluster.quorum.controller(broker.admin) for broker in cluster.live_brokers()}
        return active if active != before and named == {node_id(active)} else None

    active = await_until(
        successor,
        timeout_s=timeouts.CONTROLLER_FAILURE_S,
        what=f"another controller than {before.spec.name} to be active, and all brokers to name it",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    assert active is not None
    return active


REFUSED_VOTE = r"sent a voter key .* in the VOTE request that doesn't match the local key"
"""The log line of a controller that is asked for the vote of a voter with another ``directory.id``."""
OFTEN = 100.0
"""Requests a second that are too many: twice as many as ``controller.quorum.retry.backoff.ms`` allows."""


def check_refuses_votes(cluster: Cluster, controller: Node, since: datetime) -> None:
    """The controller refuses a vote to candidates that ask for the voter of its former disk, and they ask seldom.

    On builds with :data:`VOTES_ASKED_WITHOUT_PAUSE` they ask without a pause.
    """

    def refused() -> list[datetime]:
        return [line.at for line in controller.log.lines(since=since) if re.search(REFUSED_VOTE, line.text)]

    times = await_until(
        refused,
        lambda times: bool(times) and times[-1] - times[0] >= timedelta(seconds=1),
        timeout_s=timeouts.CONTROLLER_FAILURE_S,
        what=f"{controller.spec.name} to log /{REFUSED_VOTE}/ for a second",
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    rate = len(times) / (times[-1] - times[0]).total_seconds()
    observe(VOTES_ASKED_WITHOUT_PAUSE, cluster, deviates=rate > OFTEN, seen=f"{rate:.0f} requests a second")


def check_none_active(cluster: Cluster) -> None:
    """No controller is active."""

    def active() -> list[str]:
        names = [controller.spec.name for controller in cluster.quorum_nodes if controller.is_alive()]
        return [name for name in names if cluster.mbeans[name].offline_partitions() is not None]

    await_until(
        active,
        lambda names: not names,
        timeout_s=timeouts.CONTROLLER_FAILURE_S,
        what="no controller to be active",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    cluster.journal.write("controller.none_active")
