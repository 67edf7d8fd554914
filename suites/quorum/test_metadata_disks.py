"""Shows what controllers do with a damaged snapshot or a full disk, and that the others go on while log dirs fail."""

from __future__ import annotations

from faults.base import injected
from faults.log_dir import Chmod000
from faults.quorum import ControllerKilled
from faults.segment import SnapshotByteFlipped
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.journal import now
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.controllers import (
    check_controller_acts,
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
