"""Shows what controllers do with a damaged snapshot or a full disk, and that the others go on while log dirs fail."""

from __future__ import annotations

import pytest

from faults.base import injected
from faults.file_system import FullTmpfs
from faults.log_dir import Chmod000
from faults.quorum import ControllerKilled
from faults.segment import SnapshotByteFlipped
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery
from suites.controllers import (
    check_controller_acts,
    check_controller_ends,
    check_follows,
    check_knows,
    check_refuses_start,
    metadata_dir,
    quorum_of,
    restarted_with_snapshots,
    standbys_of,
)
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing

CORRUPT = r"(?s)Encountered fatal fault: .*CorruptRecordException: Record is corrupt"
"""The log line of a controller that ends because a batch of its snapshot does not fit its CRC; it names no file."""


@scenario(
    "quorum/snapshot-damaged",
    kip=630,
    plan="a snapshot of a standby controller is damaged",
    modes=(Mode.KRAFT,),
    controllers=3,
)
def test_snapshot_damaged(cluster: Cluster, workload: CaseWorkload) -> None:
    """A bit of a topic's name flips in a standby's snapshot: it refuses to start, and comes back with an empty folder.

    Each batch of a snapshot has a CRC. Meanwhile two controllers are left, and a log dir fails.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        restarted_with_snapshots(cluster)
        standby = standbys_of(cluster)[0]
        standby.kill()
        with (
            injected(SnapshotByteFlipped(metadata_dir(cluster, standby), text=b"orders")),
            log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim))),
        ):
            check_refuses_start(cluster, standby, saying=CORRUPT)
            pair.await_progress(after=now())
            standby.run_as_user(["rm", "-r", str(quorum_of(cluster).metadata_log(standby))])
            standby.start()
            check_follows(cluster, standby)
            check_knows(state, standby)
            with injected(ControllerKilled(cluster, victim)):
                check_controller_acts(state, pair)
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


NO_SPACE = r"(?s)Encountered fatal fault: .*No space left on device"
"""The log line of a controller that ends because it cannot write its metadata log."""

FILLING = 8192
"""Bytes of metadata that need a free block on any file system."""


def write_metadata(cluster: Cluster, size: int) -> None:
    """Write so many bytes into the metadata log, as a broker's config that has no effect.

    :raises PromiseBroken: no controller accepts them
    """
    broker = cluster.brokers[0]

    def is_written() -> bool:
        broker.admin.set_broker_configs(broker.id, {"jbod.filling": "x" * size})
        return True

    await_until(
        is_written,
        timeout_s=timeouts.CONTROLLER_FAILURE_S,
        what=f"a controller to accept {size} bytes of metadata",
        retry_on=(NoAnswer, Refused),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )


@scenario(
    "quorum/one-full",
    kip=595,
    plan="the disk of one of three controllers is full",
    modes=(Mode.KRAFT,),
    controllers=3,
    controller_volumes=True,
    volumes="tmpfs",
    volume_mb=128,
    needs=("tmpfs mounts",),
)
@pytest.mark.parametrize("role", ["active", "standby"])
def test_one_full(cluster: Cluster, workload: CaseWorkload, role: str) -> None:
    """The metadata disk of one of three controllers is full: it ends, the others go on, and it comes back with room."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    full = cluster.active_controller() if role == "active" else standbys_of(cluster)[0]
    with workload.running(orders) as pair:
        full.expect_end()
        with injected(FullTmpfs(metadata_dir(cluster, full))) as fault:
            write_metadata(cluster, FILLING)
            check_controller_ends(cluster, full, saying=NO_SPACE, since=fault.injected_at)
            with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim))):
                pair.await_progress(after=now())
            restart_after_healing(state, victim)
        full.start()
        check_follows(cluster, full)
        check_knows(state, full)
        with injected(ControllerKilled(cluster, victim)):
            check_controller_acts(state, pair)
        pair.await_progress(after=now())
    check_delivery(workload)
