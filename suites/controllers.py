"""Restarts KRaft's controllers, from their whole log or from a snapshot of it."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.cluster.own_part import OwnPart
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.errors import Inconclusive, PromiseBroken
from harness.events import NodeStarted
from harness.journal import Journal
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until


def quorum_of(cluster: Cluster) -> KRaftQuorum:
    """The cluster's KRaft quorum."""
    assert isinstance(cluster.quorum, KRaftQuorum)
    return cluster.quorum


def last_start(journal: Journal, node: Node) -> datetime:
    """When a node was last started."""
    return [event.at for event in journal.of(NodeStarted) if event.node == node.spec.name][-1]


def controllers_restarted(cluster: Cluster) -> Node:
    """Kill and start all controllers; returns the active one.

    :raises PromiseBroken: none becomes active
    """
    for controller in cluster.quorum_nodes:
        controller.kill()
    own_part = OwnPart(cluster, "elect an active controller")
    for controller in cluster.quorum_nodes:
        controller.start()
    return await_until(
        cluster.active_controller,
        timeout_s=timeouts.BOOT_S,
        what="a controller to be active",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=own_part.undone,
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
