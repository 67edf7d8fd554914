"""Shows that what was deleted stays deleted, and nothing else goes (KIP-107, retention).

Retention by size, retention by time and DeleteRecords each give a log its start. Every broker is then stopped and
started, and killed and started. No leader brings a deleted record back, and each can serve its first record.
"""

from __future__ import annotations

import functools

from faults.broker import BrokerKilled, BrokerStopped
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import Refused
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.checks import check_refused
from suites.log_cleaning import FREQUENT_CLEANING, SEGMENT, SMALL_SEGMENTS, until_cleaning_s
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import brokers_down, write_untracked_records

RETAINED = 2 * SEGMENT
WRITTEN = 5000  # records of 1 kB
MOST = 1100  # bytes that a record takes in a log, with its share of a batch
OLD = 1500  # records, two hours old: more than a segment, less than two
DELETED = 1500  # records, up to the middle of a segment


@scenario(
    "logs/log-start",
    kip=112,
    plan="retention and record deletion, before and after failovers",
    judged=False,
    overrides=FREQUENT_CLEANING,
)
def test_log_start(cluster: Cluster) -> None:
    """Logs lose their oldest records by size, by time and by request: they start there after all restarts, too."""
    by_size = cluster.create_topic("by-size", configs=SMALL_SEGMENTS | {"retention.bytes": str(RETAINED)})
    by_time = cluster.create_topic("by-time", configs=SMALL_SEGMENTS | {"retention.ms": "3600000"})
    by_request = cluster.create_topic("by-request", configs=SMALL_SEGMENTS)
    topics = (by_size, by_time, by_request)
    state = StateCheck(cluster, *topics)
    write_untracked_records(by_size, WRITTEN, size=1000)
    write_untracked_records(by_time, OLD, size=1000, age_s=7200)
    write_untracked_records(by_time, WRITTEN, size=1000)
    write_untracked_records(by_request, WRITTEN, size=1000)
    low = by_request[0].delete_records(before=DELETED)
    if low != DELETED:
        raise PromiseBroken(f"DeleteRecords up to {DELETED} of {by_request[0]} answered with the low watermark {low}")
    starts = {
        by_size[0]: range(await_size_kept(by_size[0]), WRITTEN - RETAINED // MOST + 1),
        by_time[0]: range(await_old_deleted(by_time[0]), OLD + 1),
        by_request[0]: range(DELETED, DELETED + 1),
    }
    check_starts(starts)
    for end in (BrokerStopped, BrokerKilled):
        for broker in cluster.brokers:
            with brokers_down(state, end(broker)):
                check_starts(starts)
    check_starts(starts)
    await_size_kept(by_size[0])


def await_size_kept(partition: Partition) -> int:
    """Wait until the leader has ``retention.bytes`` and less than a segment more; returns the start of its log.

    :raises PromiseBroken: it has more, or less
    """
    leader, key = partition.leader(), (partition.topic, partition.index)

    def size() -> int | None:
        found = leader.find_replica(*key)
        return found and found[1].size

    await_until(
        size,
        lambda seen: seen is not None and RETAINED <= seen < RETAINED + SEGMENT,
        timeout_s=timeouts.CLEANING_S + until_cleaning_s(partition.cluster),
        what=f"{leader} to keep {RETAINED} bytes of {partition}, and less than {SEGMENT} more",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    return leader.admin.start_offset(*key)


def await_old_deleted(partition: Partition) -> int:
    """Wait until the segment that has only old records is deleted; returns the start of the log.

    :raises PromiseBroken: it stays, or more is deleted
    """
    leader = partition.leader()
    return await_until(
        lambda: leader.admin.start_offset(partition.topic, partition.index),
        lambda start: 0 < start <= OLD,
        timeout_s=timeouts.CLEANING_S + until_cleaning_s(partition.cluster),
        what=f"the first segment of {partition} to be deleted, and none of those that have records after {OLD}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def check_starts(starts: dict[Partition, range]) -> None:
    """Each log starts at one of these offsets, whose record can be read; the record before it cannot.

    The start may rise, but never fall. Followers' segments may begin elsewhere than the leader's, so a new leader may
    delete a segment that the last leader had to keep.
    """
    for partition, allowed in starts.items():
        leader, key = partition.leader(), (partition.topic, partition.index)
        start = leader.admin.start_offset(*key)
        if start not in allowed:
            raise PromiseBroken(f"{partition} starts at {start} on {leader}, not in {allowed}")
        try:
            found = leader.admin.fetch(*key, start)
        except Refused as refused:
            raise PromiseBroken(
                f"{partition} starts at {start} on {leader}, which cannot be read: {refused}"
            ) from refused
        if not found:
            raise PromiseBroken(f"{leader} has no record of {partition} at {start}, where its log starts")
        check_refused(functools.partial(leader.admin.fetch, *key, start - 1), "OFFSET_OUT_OF_RANGE", "")
        starts[partition] = range(start, allowed.stop)
