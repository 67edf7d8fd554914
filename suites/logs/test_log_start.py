"""Shows that what was deleted stays deleted, and nothing else goes (KIP-107, retention).

Retention by size, retention by time (also of a compacted topic) and DeleteRecords each give a log its start. Every
broker is then stopped and started, and killed and started. No leader brings a deleted record back, and each can serve
its first record. Each finds the first record from a time on, too. With ``message.timestamp.type=LogAppendTime``, times
are those at which the leader got the records (KIP-32).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from faults.base import injected
from faults.broker import BrokerKilled, BrokerPaused, BrokerStopped
from faults.targets import follower_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.checks import check_refused
from suites.log_cleaning import FREQUENT_CLEANING, SEGMENT, SMALL_SEGMENTS, until_cleaning_s
from suites.on_disk import check_same_bytes, segment_files
from suites.replica_files import check_replica_files
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import brokers_down, write_untracked_records

RETAINED = 2 * SEGMENT
WRITTEN = 5000  # records of 1 kB
MOST = 1100  # bytes that a record takes in a log, with its share of a batch
OLD = 1500  # records, two hours old: more than a segment, less than two
DELETED = 1500  # records, up to the middle of a segment
HOURLY = 500  # records of an hour: some of these hours end in another segment than they begin
HOURS = 5
# Retention, and no compaction: no log is dirtier than all of it.
COMPACT_AND_DELETE = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "1"}
# The first segment is closed as soon as its records must be compacted, however few they are (KIP-354).
OVERDUE = {"cleanup.policy": "compact", "max.compaction.lag.ms": "3600000"}
AN_HOUR = {"retention.ms": "3600000"}
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
FEW = 10  # records
SOON_S = 0.5  # far less than the session of a broker that is paused meanwhile


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
    by_time = cluster.create_topic("by-time", configs=SMALL_SEGMENTS | AN_HOUR)
    compacted = cluster.create_topic("compacted", configs=SMALL_SEGMENTS | AN_HOUR | COMPACT_AND_DELETE)
    idle = cluster.create_topic("idle", configs=SMALL_SEGMENTS | AN_HOUR)
    appended = cluster.create_topic("appended", configs=SMALL_SEGMENTS | AN_HOUR | APPEND_TIME)
    by_request = cluster.create_topic("by-request", configs=SMALL_SEGMENTS)
    forever = cluster.create_topic("forever", configs=SMALL_SEGMENTS | {"retention.ms": "-1"})
    check_rolled_by_time(cluster.create_topic("rolled", configs={"segment.ms": "1"}))
    check_rolled_by_time(cluster.create_topic("overdue", configs=OVERDUE))
    state = StateCheck(cluster, by_size, by_time, compacted, idle, appended, by_request, forever)
    write_untracked_records(by_size, WRITTEN, size=1000)
    for topic in (by_time, compacted):
        write_untracked_records(topic, OLD, size=1000, keys=OLD, age_s=7200)
        write_untracked_records(topic, WRITTEN, size=1000, keys=WRITTEN)
    for topic in (idle, appended):
        created_ms = write_untracked_records(topic, FEW, age_s=7200)
    write_untracked_records(by_request, WRITTEN, size=1000)
    hours = write_hourly(forever)
    check_waits_for_follower(by_request[0])
    check_deleted(by_request[0])
    await_all_expired(idle[0])
    await_size_kept(by_size[0])
    await_old_deleted(by_time[0])
    await_old_deleted(compacted[0])
    starts = {
        by_size[0]: range(await_all_deleted(by_size[0]), WRITTEN - RETAINED // MOST + 1),
        by_time[0]: range(await_all_deleted(by_time[0]), OLD + 1),
        compacted[0]: range(await_all_deleted(compacted[0]), OLD + 1),
        appended[0]: range(1),
        by_request[0]: range(DELETED, DELETED + 1),
        forever[0]: range(1),
    }

    led = dict[tuple[Partition, Broker], int]()

    def check() -> None:
        check_starts(starts, led)
        check_found_by_time(forever[0], hours)
        check_found_by_time(appended[0], {created_ms + 3_600_000: 0})

    check()
    check_replica_files(by_size[0], by_time[0], by_request[0])
    for end in (BrokerStopped, BrokerKilled):
        for broker in cluster.brokers:
            with brokers_down(state, end(broker)):
                check()
    check()
    check_dynamic_retention(forever[0])
    await_size_kept(by_size[0])
    check_follows_again(state, by_request)


def check_rolled_by_time(topic: Topic) -> None:
    """Each replica begins a segment if the active one has a record that is too old, and none if it is empty."""
    [partition] = topic.partitions
    folders = [
        partition.log_dir_on(broker).replica_dir(partition.topic, partition.index)
        for broker in (partition.leader(), *partition.followers())
    ]
    empty = [segment_files(folder) for folder in folders]
    write_untracked_records(topic, 1, keys=1, age_s=7200)
    if (found := [segment_files(folder) for folder in folders]) != empty:
        raise PromiseBroken(f"a replica of {partition} replaced an empty segment before its first record: {found}")
    write_untracked_records(topic, 1, keys=1)
    await_until(
        lambda: {str(folder): sorted(int(path.stem) for path in folder.glob("*.log")) for folder in folders},
        lambda found: all(begins == [0, 1] for begins in found.values()),
        timeout_s=timeouts.REQUEST_S,
        what=f"each replica of {partition} to have two segments, since the first record is too old",
        failure=PromiseBroken,
    )


def write_hourly(topic: Topic) -> dict[int, int]:
    """Write records of each of the last hours; returns the offset of the first record of each, by its time in ms."""
    firsts = {}
    for number in range(HOURS):
        time_ms = write_untracked_records(topic, HOURLY, size=1000, age_s=3600 * (HOURS - number))
        firsts[time_ms] = HOURLY * number
    return firsts


def check_found_by_time(partition: Partition, hours: Mapping[int, int]) -> None:
    """The leader finds each hour's first record by its time, and by a time that is a minute before.

    :param hours: the offset of the first record of each hour, by its time in ms
    """
    leader = partition.leader()
    for time_ms, first in hours.items():
        for asked in (time_ms, time_ms - 60_000):
            found = leader.admin.offset_at(partition.topic, partition.index, asked)
            if found != first:
                raise PromiseBroken(
                    f"{leader} takes {found} for the first offset of {partition} from {asked} ms on, instead of {first}"
                )


def check_waits_for_follower(partition: Partition) -> None:
    """DeleteRecords is not answered with success while a live follower still has the records (KIP-107).

    :raises Inconclusive: the leader does not wait for the follower, since it takes it for dead
    """
    leader, follower = partition.leader(), follower_of(partition)
    delete = functools.partial(leader.admin.delete_records, partition.topic, partition.index, FEW, timeout_s=SOON_S)
    with injected(BrokerPaused(follower)):
        try:
            check_refused(delete, "REQUEST_TIMED_OUT", "")
        except PromiseBroken as broken:
            if follower.id not in leader.describe_cluster().brokers:
                raise Inconclusive(f"the session of {follower} ended in a pause of {SOON_S} s") from broken
            raise


def check_deleted(partition: Partition) -> None:
    """DeleteRecords deletes up to an offset and is refused beyond the end; the leader still knows its leader epoch."""
    beyond = functools.partial(partition.leader().admin.delete_records, partition.topic, partition.index, WRITTEN + 1)
    check_refused(beyond, "OFFSET_OUT_OF_RANGE", "")
    low = partition.delete_records(before=DELETED)
    if low != DELETED:
        raise PromiseBroken(f"DeleteRecords up to {DELETED} of {partition} answered with the low watermark {low}")
    check_epoch(partition, WRITTEN)


def check_epoch(partition: Partition, end: int) -> None:
    """The leader knows where its own leader epoch ends, also after the epoch's first records are deleted."""
    leader, epoch = partition.leader(), partition.describe().leader_epoch
    found = leader.admin.end_of_epoch(partition.topic, partition.index, epoch)
    if found != (epoch, end):
        raise PromiseBroken(
            f"{leader} leads {partition} in the leader epoch {epoch}, and answers {found} for its end, instead of "
            f"{(epoch, end)}"
        )


def check_follows_again(state: StateCheck, topic: Topic) -> None:
    """A follower is stopped, and all records that it has are deleted: it starts anew where its leader's log starts."""
    [log] = topic.partitions
    with brokers_down(state, BrokerStopped(follower_of(log))):
        write_untracked_records(topic, HOURLY, size=1000)
        log.delete_records(before=WRITTEN + HOURLY)
        check_epoch(log, WRITTEN + HOURLY)
        write_untracked_records(topic, HOURLY, size=1000)
    check_starts({log: range(WRITTEN + HOURLY, WRITTEN + HOURLY + 1)}, {})
    check_same_bytes(log, start=WRITTEN + HOURLY)


def check_dynamic_retention(partition: Partition) -> None:
    """A change of ``log.retention.bytes`` of running brokers is in force for a log without its own (KIP-226)."""
    for broker in partition.cluster.brokers:
        broker.configure({"log.retention.bytes": str(SEGMENT)})
    await_size_kept(partition, SEGMENT)


def await_size_kept(partition: Partition, retained: int = RETAINED) -> None:
    """Wait until the leader has as many bytes as are retained and less than a segment more.

    :raises PromiseBroken: it has more, or less
    """
    leader, key = partition.leader(), (partition.topic, partition.index)

    def size() -> int | None:
        found = leader.find_replica(*key)
        return found and found[1].size

    await_until(
        size,
        lambda seen: seen is not None and retained <= seen < retained + SEGMENT,
        timeout_s=timeouts.CLEANING_S + until_cleaning_s(partition.cluster),
        what=f"{leader} to keep {retained} bytes of {partition}, and less than {SEGMENT} more",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def await_old_deleted(partition: Partition) -> None:
    """Wait until the leader has deleted the segment that has only old records.

    :raises PromiseBroken: it stays, or more is deleted
    """
    leader = partition.leader()
    await_until(
        lambda: leader.admin.start_offset(partition.topic, partition.index),
        lambda start: 0 < start <= OLD,
        timeout_s=timeouts.CLEANING_S + until_cleaning_s(partition.cluster),
        what=f"the first segment of {partition} to be deleted, and none of those that have records after {OLD}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def await_all_deleted(partition: Partition) -> int:
    """Wait until each replica has deleted its first segment; returns the lowest offset at which a log then begins.

    :raises PromiseBroken: a replica does not
    """
    folders = [
        partition.log_dir_on(broker).replica_dir(partition.topic, partition.index)
        for broker in (partition.leader(), *partition.followers())
    ]

    def least() -> int:
        return min(int(path.stem) for folder in folders for path in folder.glob("*.log"))

    return await_until(
        least,
        timeout_s=timeouts.CLEANING_S + until_cleaning_s(partition.cluster),
        what=f"each replica of {partition} to delete its first segment",
        failure=PromiseBroken,
    )


def await_all_expired(partition: Partition) -> None:
    """Wait until a log that has old records only, all in its active segment, is empty.

    :raises PromiseBroken: records stay
    """
    leader = partition.leader()
    await_until(
        lambda: leader.admin.start_offset(partition.topic, partition.index),
        lambda start: start == FEW,
        timeout_s=timeouts.CLEANING_S + until_cleaning_s(partition.cluster),
        what=f"all records of {partition} to be deleted, up to offset {FEW}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def check_starts(starts: Mapping[Partition, range], led: dict[tuple[Partition, Broker], int]) -> None:
    """Each log starts at one of these offsets, whose record can be read; the record before it cannot.

    Replicas delete whole segments, each by itself, and the segments of a follower begin at other offsets than its
    leader's. So a new leader may have deleted more than the last one. It may also have deleted less: an ISR member gets
    its leader's log start with the answer to a fetch, up to ``replica.fetch.wait.max.ms`` after it has joined the ISR.
    The start on one broker never falls.

    :param led: the start on each broker when it last led; kept up to date
    """
    for partition, allowed in starts.items():
        leader, key = partition.leader(), (partition.topic, partition.index)
        start = leader.admin.start_offset(*key)
        if start not in allowed:
            raise PromiseBroken(f"{partition} starts at {start} on {leader}, not in {allowed}")
        if start < (before := led.get((partition, leader), 0)):
            raise PromiseBroken(f"{partition} starts at {start} on {leader}, where it has started at {before}")
        led[partition, leader] = start
        try:
            found = leader.admin.fetch(*key, start)
        except Refused as refused:
            raise PromiseBroken(
                f"{partition} starts at {start} on {leader}, which cannot be read: {refused}"
            ) from refused
        if not found:
            raise PromiseBroken(f"{leader} has no record of {partition} at {start}, where its log starts")
        if start:
            check_refused(functools.partial(leader.admin.fetch, *key, start - 1), "OFFSET_OUT_OF_RANGE", "")
