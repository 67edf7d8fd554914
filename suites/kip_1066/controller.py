"""Kills and starts all controllers, which load their metadata logs or snapshots; KIP-1066's scenarios share it."""

from __future__ import annotations

import re
from pathlib import Path

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.nodes.node import Node
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.tool_answers import dump_snapshot
from harness.waiting import await_until
from suites.kip_1066.cordons import last_start, quorum_of


def controllers_restarted(cluster: Cluster) -> Node:
    """Kill and start all controllers; returns the active one.

    :raises Inconclusive: none becomes active
    """
    for controller in cluster.quorum_nodes:
        controller.kill()
    for controller in cluster.quorum_nodes:
        controller.start()
    return await_until(
        cluster.active_controller,
        timeout_s=timeouts.BOOT_S,
        what="a controller to be active",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=Inconclusive,
    )


def restarted_with_snapshots(cluster: Cluster) -> Path:
    """Kill and start the controllers with settings by which they write snapshots, and wait until each has one.

    :returns: the oldest of the new snapshots
    :raises Inconclusive: a controller writes none
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
        failure=Inconclusive,
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


def check_in_snapshot(cluster: Cluster, snapshot: Path, broker: Broker, *log_dirs: LogDir) -> None:
    """The broker's registration in a snapshot has exactly these log dirs as cordoned."""
    should = frozenset(log_dir.directory_id() for log_dir in log_dirs)
    seen = dump_snapshot(cluster.distribution, snapshot).registered_as_cordoned.get(broker.id)
    if seen != should:
        raise PromiseBroken(
            f"{snapshot.name} has {seen and sorted(seen)} of {broker} cordoned instead of {sorted(should)}"
        )
