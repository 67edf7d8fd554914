"""Restarts controllers, from their whole log or from a snapshot of it, and checks what an active controller does."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import MetadataDir
from harness.cluster.nodes.node import Node
from harness.cluster.own_part import OwnPart
from harness.cluster.quorum.kraft import KRaftQuorum, node_id
from harness.errors import Inconclusive, PromiseBroken
from harness.events import NodeStarted
from harness.journal import Journal, now
from harness.kafka.admin import Admin
from harness.kafka.connection import NoAnswer
from harness.kafka.request_log import RequestLog, requests_logged
from harness.kafka.tool_answers import dump_directories
from harness.waiting import await_until
from harness.workload.pair import Pair
from suites.checks import check_node_ends
from suites.observations import compare_registrations, metadata_log
from suites.state_check import StateCheck


def quorum_of(cluster: Cluster) -> KRaftQuorum:
    """The cluster's KRaft quorum."""
    assert isinstance(cluster.quorum, KRaftQuorum)
    return cluster.quorum


def controllers_admin(cluster: Cluster) -> Admin:
    """An admin client of the active controller (KIP-919); other controllers refuse changes."""
    return quorum_of(cluster).controller_admin(cluster.active_controller())


def controller_requests_logged(cluster: Cluster) -> AbstractContextManager[RequestLog]:
    """Inside the block, the active controller logs its requests."""
    controller = cluster.active_controller()
    return requests_logged(controllers_admin(cluster), node_id(controller), controller.log)


def last_start(journal: Journal, node: Node) -> datetime:
    """When a node was last started."""
    return [event.at for event in journal.of(NodeStarted) if event.node == node.spec.name][-1]


def check_controller_acts(state: StateCheck, pair: Pair) -> None:
    """Create a topic, which the controller places by its own knowledge, and wait until all sources agree."""
    state.add_topic(state.cluster.create_topic("after", partitions=4, replicas=3, failure=PromiseBroken))
    state.check(also=[metadata_log])
    pair.await_progress(after=now())


def metadata_dir(cluster: Cluster, controller: Node) -> MetadataDir:
    """The metadata log dir of a dedicated controller."""
    return quorum_of(cluster).metadata_dir(controller, cluster.brokers[0])


def standbys_of(cluster: Cluster) -> list[Node]:
    """The controllers that are not active."""
    active = cluster.active_controller()
    return [controller for controller in cluster.quorum_nodes if controller != active]


def check_controller_ends(cluster: Cluster, controller: Node, *, saying: str, since: datetime) -> None:
    """The controller ends by itself, with exit code 1 and this message.

    :param saying: a regular expression of a line in its log since then
    """
    line = check_node_ends(controller, controller.spec.name, controller.log, since, exit_code=1, saying=saying)
    cluster.journal.write("controller.ended", controller=controller.spec.name, line=line.text[:300])


def check_follows(cluster: Cluster, controller: Node) -> None:
    """The controller follows the active one."""
    await_until(
        lambda: cluster.mbeans[controller.spec.name].followed(),
        lambda leader: leader is not None and leader == cluster.quorum.controller(cluster.live_brokers()[0].admin),
        timeout_s=timeouts.RECOVERY_S,
        what=f"{controller.spec.name} to follow the active controller",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )


def check_knows(state: StateCheck, controller: Node) -> None:
    """The controller's own snapshot and metadata log have the log dirs and replicas of the expected state."""
    cluster = state.cluster
    folder = quorum_of(cluster).metadata_log(controller)
    good = [d for broker in state.live_brokers() for d in broker.log_dirs if d not in state.failed]
    ids = {log_dir: log_dir.directory_id() for log_dir in good}
    await_until(
        lambda: [*compare_registrations(state, ids, dump_directories(cluster.distribution, folder))],
        lambda differences: not differences,
        timeout_s=timeouts.RECOVERY_S,
        what=f"{controller.spec.name} to have the metadata of the quorum",
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )


def check_refuses_start(cluster: Cluster, controller: Node, *, saying: str) -> None:
    """The controller is started, and ends as of :func:`check_controller_ends`."""
    controller.start()
    check_controller_ends(cluster, controller, saying=saying, since=last_start(cluster.journal, controller))


def controllers_restarted(cluster: Cluster) -> Node:
    """Kill and start all controllers; returns the active one.

    :raises PromiseBroken: none becomes active
    """
    for controller in cluster.quorum_nodes:
        controller.kill()
    for controller in cluster.quorum_nodes:
        controller.start()
    return await_active_controller(cluster)


def await_active_controller(cluster: Cluster) -> Node:
    """Wait until one controller is active; returns it.

    :raises PromiseBroken: none becomes active
    """
    return await_until(
        cluster.active_controller,
        timeout_s=timeouts.BOOT_S,
        what="a controller to be active",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=OwnPart(cluster, "elect an active controller").undone,
    )


def restarted_with_snapshots(cluster: Cluster) -> Path:
    """Kill and start the controllers with settings by which they write snapshots, and wait until each has one.

    :returns: the oldest of the new snapshots
    :raises PromiseBroken: a controller writes none
    """
    folders = [quorum_of(cluster).metadata_log(controller) for controller in cluster.quorum_nodes]
    before = {path for folder in folders for path in folder.glob("*.checkpoint")}
    for controller in cluster.quorum_nodes:
        controller.configure({"metadata.log.max.snapshot.interval.ms": "1000"})
    controllers_restarted(cluster)
    written = await_until(
        lambda: [sorted({*folder.glob("*.checkpoint")} - before) for folder in folders],
        all,
        timeout_s=timeouts.PROGRESS_S,
        what=f"a snapshot in {' and '.join(map(str, folders))}",
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    return min((snapshots[0] for snapshots in written), key=lambda path: path.name)


def restarted_from_snapshot(cluster: Cluster, at_least: Path) -> None:
    """Kill and start the controllers, and check that the active one loads this snapshot or a later one.

    :raises Inconclusive: it does not
    """
    controller = controllers_restarted(cluster)
    line = controller.log.first(r"Starting to load snapshot", since=last_start(cluster.journal, controller))
    loaded = line and re.search(r"snapshot (\d{20}-\d{10})", line.text)
    if not loaded or loaded[1] < at_least.stem:
        raise Inconclusive(
            f"{controller.spec.name} should load {at_least.name} or a later snapshot: {line and line.text}"
        )
    cluster.journal.write(
        "snapshot.loaded", controller=controller.spec.name, snapshot=loaded[1], at_least=at_least.stem
    )
