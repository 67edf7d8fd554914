"""The only controller, killed and started again: from its metadata log, and from a snapshot of it."""

from __future__ import annotations

import re
from pathlib import Path

from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.doors.tool_answers import dump_snapshot
from harness.errors import Inconclusive, PromiseBroken
from harness.log_dir import LogDir
from harness.waiting import await_until
from suites.kip_1066.cordons import ACTIVE, last_start, quorum_of


def controller_restarted(cluster: Cluster) -> None:
    """The only controller is killed and started again, and is active.

    :raises Inconclusive: it isn't
    """
    [controller] = cluster.quorum_nodes
    controller.kill()
    controller.start()
    since = last_start(cluster.journal, controller)
    await_until(
        lambda: controller.log.first(ACTIVE, since=since),
        timeout_s=timeouts.BOOT_S,
        what=f"{controller.spec.name} to say /{ACTIVE}/",
        watch=controller.check_alive,
        failure=Inconclusive,
    )


def restarted_with_snapshots(cluster: Cluster) -> Path:
    """The controller is killed and started again, and from now on writes snapshots of its metadata; the first one.

    :raises Inconclusive: it writes none
    """
    [controller] = cluster.quorum_nodes
    folder = quorum_of(cluster).metadata_log
    controller.configure({"metadata.log.max.snapshot.interval.ms": "1000"})
    before = set(folder.glob("*.checkpoint"))
    controller_restarted(cluster)
    return min(
        await_until(
            lambda: set(folder.glob("*.checkpoint")) - before,
            timeout_s=timeouts.PROGRESS_S,
            what=f"a snapshot in {folder}",
            watch=controller.check_alive,
            failure=Inconclusive,
        )
    )


def restarted_from_snapshot(cluster: Cluster, at_least: Path) -> None:
    """The controller is killed and started again, and begins with this snapshot of its metadata, or a later one.

    :raises Inconclusive: it doesn't
    """
    [controller] = cluster.quorum_nodes
    controller_restarted(cluster)
    line = controller.log.first(r"Starting to load snapshot", since=last_start(cluster.journal, controller))
    loaded = line and re.search(r"snapshot (\d{20}-\d{10})", line.text)
    if not loaded or loaded[1] < at_least.stem:
        raise Inconclusive(f"the controller was to begin with {at_least.name} or a later one: {line and line.text}")
    cluster.journal.write("snapshot.loaded", snapshot=loaded[1], at_least=at_least.stem)


def check_in_snapshot(cluster: Cluster, snapshot: Path, broker: Broker, *log_dirs: LogDir) -> None:
    """The broker's registration in a snapshot of the metadata has these log dirs cordoned, and no others.

    :raises PromiseBroken: it hasn't
    """
    should = frozenset(log_dir.directory_id() for log_dir in log_dirs)
    seen = dump_snapshot(cluster.distribution, snapshot).registered_as_cordoned.get(broker.id)
    if seen != should:
        raise PromiseBroken(
            f"{snapshot.name} has {seen and sorted(seen)} of {broker} cordoned instead of {sorted(should)}"
        )
