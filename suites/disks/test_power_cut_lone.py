"""Shows what a log is after a power cut that took all of its end, also what was above its log start (KIP-107)."""

from __future__ import annotations

from faults.base import injected
from faults.file_system import PowerCut
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LOG_STARTS
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.answers import Refused
from harness.waiting import await_until
from suites.checks import check_lost
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import SERVED_ALONE, write_untracked_records

WRITTEN, DELETED = 100, 50  # records


@scenario(
    "disks/power-cut-below-log-start",
    kip=112,
    plan="a broker loses what it had not synced: all records of a log, also those above its log start",
    judged=False,
    volumes="ext4",
    needs=PowerCut.needs,
)
def test_power_cut_below_log_start(cluster: Cluster) -> None:
    """A log without other replicas loses all its records, which were not synced: it goes on at its log start."""
    lone = cluster.create_topic("lone", replicas=1, configs=SERVED_ALONE)
    state = StateCheck(cluster, lone)
    victim = leader_of(lone[0])
    write_untracked_records(lone, WRITTEN)
    lone[0].delete_records(before=DELETED)
    await_start_kept(lone[0])
    with injected(PowerCut(victim)) as cut:
        check_lost(cut)
        state.broker_gone(victim)
        state.check()
    state.broker_back(victim)
    state.check(timeouts.RECOVERY_S)
    write_untracked_records(lone, 1)
    check_goes_on(lone[0])


def await_start_kept(partition: Partition) -> None:
    """Wait until the checkpoint has the partition's log start."""
    log_dir = partition.log_dir_on(partition.leader())
    await_until(
        lambda: log_dir.offsets_in_checkpoint(LOG_STARTS).get(str(partition)),
        lambda start: start == DELETED,
        timeout_s=timeouts.QUESTION_S,
        what=f"{LOG_STARTS} of {log_dir} to have {DELETED} for {partition}",
        retry_on=(OSError,),
        failure=PromiseBroken,
    )


def check_goes_on(partition: Partition) -> None:
    """The log starts where it started before, and its first record is the one that was written since."""
    leader, key = partition.leader(), (partition.topic, partition.index)
    start = leader.admin.start_offset(*key)
    try:
        found = leader.admin.fetch(*key, DELETED)
    except Refused as refused:
        raise PromiseBroken(
            f"{partition} lost all records, got one more, and starts at {start}; at its log start before: {refused}"
        ) from refused
    if start != DELETED or not found:
        raise PromiseBroken(
            f"{partition} lost all records, got one more, and starts at {start} instead of {DELETED}, where it has "
            f"{len(found)} bytes"
        )
