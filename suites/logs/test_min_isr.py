"""Shows what a leader does while fewer replicas are in sync than ``min.insync.replicas``.

It acks nothing with acks=all. Since 3.7 it shows consumers nothing new either: its high watermark waits
(KAFKA-15583).
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

from faults.base import injected
from faults.broker import BrokerPaused
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.tool_answers import describe_topics
from harness.kafka.versions import Mode, VersionRange
from harness.waiting import await_until
from suites.checks import check_refused
from suites.controllers import restarted_from_snapshot, restarted_with_snapshots
from suites.eligible_replicas import (
    BEFORE,
    TWO_IN_SYNC,
    await_isr,
    await_shown,
    check_complete_again,
    check_does_not_lead,
    check_leads,
    created_with_records,
)
from suites.leadership import ELECTS_ELIGIBLE
from suites.log_cleaning import EXPIRING, FREQUENT_CLEANING, MORE_THAN_TWO, check_logs_small
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import (
    await_checkpoints,
    format_new_dirs,
    log_dirs_failed,
    replace_by_empty_disk,
    restart_after_healing,
    write_untracked_records,
)

HOLDS_HIGH_WATERMARK = VersionRange.parse(">=3.7")
MANY_CHECKPOINTS = 12  # 6 s: longer than replica.lag.time.max.ms
WAITS_S = 12.0  # longer than the session of a broker and replica.lag.time.max.ms, after which the ISR shrinks


@scenario(
    "logs/below-min-isr",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: on both followers, with min.insync.replicas=2",
    builds=HOLDS_HIGH_WATERMARK,
    judged=False,
    overrides=FREQUENT_CLEANING,
)
def test_below_min_isr(cluster: Cluster) -> None:
    """Both followers' log dirs fail: the leader refuses acks=all, and a record with acks=1 is not shown until then.

    Retention does not take it either, and goes on for the leader's other logs.
    """
    events = cluster.create_topic("events", configs=TWO_IN_SYNC | EXPIRING)
    leader, followers = leader_of(events[0]), events[0].followers()
    # Its only replica is all that min.insync.replicas asks for.
    [beside] = cluster.create_topics(NewTopic(name="beside", assignment={0: [leader.id]}, configs=EXPIRING))
    state = StateCheck(cluster, events, beside)
    write_untracked_records(events, BEFORE)
    with log_dirs_failed(state, *(Chmod000(events[0].log_dir_on(follower)) for follower in followers)):
        check_refused(lambda: leader.admin.produce(events.name, 0, b"refused", acks=-1), "NOT_ENOUGH_REPLICAS", "")
        write_untracked_records(events, 1, to=leader)
        check_not_shown(events[0], leader)
        check_listed(events, in_sync=1)
        check_retention_waits(events, beside, leader)
        # A leader waits for followers that were in sync until shortly before, and looks again at the next append.
        await_checkpoints(events[0].log_dir_on(leader), MANY_CHECKPOINTS)
        write_untracked_records(events, 1, to=leader)
        check_not_shown(events[0], leader)
        check_min_isr_counted(leader, under=1, at=len(beside))
    for in_sync, follower in enumerate(followers, start=2):
        restart_after_healing(state, follower)
        check_min_isr_counted(leader, under=0, at=len(beside) + int(in_sync == 2))
        check_listed(events, in_sync=in_sync)
    await_shown(events, BEFORE + 2 + MORE_THAN_TWO)


@scenario(
    "logs/isr-shrinks-amid-write",
    kip=112,
    plan="2. … a follower falls out of the ISR while a record with acks=all waits for it",
    builds=HOLDS_HIGH_WATERMARK,
    judged=False,
)
def test_isr_shrinks_amid_write(cluster: Cluster) -> None:
    """Both followers hang while a record with acks=all waits for them: it is neither acked nor shown."""
    events = cluster.create_topic("events", configs=TWO_IN_SYNC)
    state = StateCheck(cluster, events)
    leader, followers = leader_of(events[0]), events[0].followers()
    write_untracked_records(events, BEFORE)
    waiting = Admin(leader.new_connection())
    with concurrent.futures.ThreadPoolExecutor(1) as pool, injected(*map(BrokerPaused, followers)):
        waits = pool.submit(waiting.produce, events.name, 0, b"waits", acks=-1, timeout_s=WAITS_S)
        state.broker_gone(*followers)
        state.check()
        check_not_shown(events[0], leader)
        check_not_acked(waits, leader)
    for follower in followers:
        state.broker_back(follower)
    state.check(timeouts.RECOVERY_S)
    await_shown(events, BEFORE + 1)


@scenario(
    "logs/eligible-leader",
    kip=112,
    plan="the last replica in sync is gone, and one that has every acked record is back (KIP-966)",
    modes=(Mode.KRAFT,),
    builds=ELECTS_ELIGIBLE,
    floors=NO_FAULT,
    judged=False,
)
def test_eligible_leader(cluster: Cluster) -> None:
    """All replicas stop in turn; the second to last comes back alone, and leads with every acked record.

    Meanwhile the controller restarts from a snapshot, and knows the eligible leader replicas from it.
    """
    log = created_with_records(cluster)
    last, (first, second) = leader_of(log), log.followers()
    end_in_turn(log, first.stop, second.stop)
    restarted_from_snapshot(cluster, restarted_with_snapshots(cluster))
    second.start()
    check_leads(log, second)
    check_complete_again(log, first, last)


@scenario(
    "logs/killed-is-not-eligible",
    kip=112,
    plan="the last replica in sync is gone, and one that may have lost acked records in a crash is back (KIP-966)",
    modes=(Mode.KRAFT,),
    builds=ELECTS_ELIGIBLE,
    floors=NO_FAULT,
    judged=False,
)
def test_killed_is_not_eligible(cluster: Cluster) -> None:
    """The second to last replica was killed: it comes back alone, and does not lead until the last one is back."""
    log = created_with_records(cluster)
    last, (first, second) = leader_of(log), log.followers()
    end_in_turn(log, first.stop, second.kill)
    second.start()
    check_does_not_lead(log, second)
    check_complete_again(log, first, last)


@scenario(
    "logs/emptied-is-not-eligible",
    kip=112,
    plan="4. The disk (or log directory) gets fixed: replaced by an empty one, of a broker that was stopped (KIP-966)",
    modes=(Mode.KRAFT,),
    builds=ELECTS_ELIGIBLE,
    floors=NO_FAULT,
    judged=False,
)
def test_emptied_is_not_eligible(cluster: Cluster) -> None:
    """The second to last replica was stopped and lost its log dir: it does not lead until the last one is back.

    Its broker has a mark of a clean shutdown in its other log dir.
    """
    log = created_with_records(cluster)
    last, (first, second) = leader_of(log), log.followers()
    log_dir = log.log_dir_on(second)
    end_in_turn(log, first.stop, second.stop)
    replace_by_empty_disk(log_dir)
    format_new_dirs(cluster, second)
    second.start()
    check_does_not_lead(log, second)
    check_complete_again(log, first, last)


def end_in_turn(log: Partition, end_first: Callable[[], None], end_second: Callable[[], None]) -> None:
    """End all brokers in turn, the leader last; the first one lacks records that the others have."""
    last, second = leader_of(log), log.followers()[1]
    end_first()
    await_isr(log, last, second)
    write_untracked_records(log.cluster.topics[log.topic], BEFORE)
    end_second()
    await_isr(log, last)
    last.stop()


def check_min_isr_counted(leader: Broker, *, under: int, at: int) -> None:
    """The leader counts so many partitions under and at ``min.insync.replicas``."""
    mbeans = leader.mbeans
    assert mbeans is not None
    await_until(
        lambda: {"UnderMinIsrPartitionCount": mbeans.under_min_isr(), "AtMinIsrPartitionCount": mbeans.at_min_isr()},
        lambda counted: [*counted.values()] == [under, at],
        timeout_s=timeouts.REQUEST_S,
        what=f"{leader} to count {under} partitions under min.insync.replicas, and {at} at it",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def check_listed(topic: Topic, *, in_sync: int) -> None:
    """kafka-topics lists the partition as below min.insync.replicas, as just at it, or as neither (KIP-351).

    :param in_sync: how many replicas are in the ISR, as all sources have just agreed
    """
    cluster, least = topic.cluster, int(TWO_IN_SYNC["min.insync.replicas"])
    lists = {"--under-min-isr-partitions": in_sync < least, "--at-min-isr-partitions": in_sync == least}
    for option, is_listed in lists.items():
        seen = describe_topics(cluster.distribution, cluster.bootstrap, option)
        if ((topic.name, 0) in seen) != is_listed:
            raise PromiseBroken(
                f"{topic[0]} has {in_sync} replicas in sync and min.insync.replicas={least}, and kafka-topics {option} "
                f"lists {[*seen]}"
            )


def check_retention_waits(uncommitted: Topic, beside: Topic, leader: Broker) -> None:
    """Retention takes no record from the high watermark on, and goes on for the broker's other logs.

    :param uncommitted: its high watermark is in its first segment
    """
    for topic in (uncommitted, beside):
        write_untracked_records(topic, MORE_THAN_TWO, size=1000, to=leader)
    check_logs_small(beside, on=[leader])
    start = leader.admin.start_offset(uncommitted.name, 0)
    if start:
        raise PromiseBroken(f"retention on {leader} moved the start of {uncommitted[0]} to {start}, above {BEFORE}")


def check_not_acked(waits: concurrent.futures.Future[int], leader: Broker) -> None:
    """The write that waited for followers ends with an error."""
    try:
        offset = waits.result(2 * WAITS_S)
    except Refused as refused:
        if refused.error not in {"NOT_ENOUGH_REPLICAS_AFTER_APPEND", "REQUEST_TIMED_OUT"}:
            raise PromiseBroken(f"a write that waited for followers ended on {leader} with {refused}") from refused
        return
    raise PromiseBroken(f"{leader} acked offset {offset} with acks=all, though no follower was in sync")


def check_not_shown(partition: Partition, leader: Broker) -> None:
    """The high watermark stays where it was, and a consumer gets nothing, for several checkpoints."""
    key = (partition.topic, partition.index)
    await_checkpoints(partition.log_dir_on(leader), 3)
    try:
        end = leader.admin.end_offset(*key)
    except Refused as refused:
        if refused.error != "OFFSET_NOT_AVAILABLE":  # in a new leader epoch, until the high watermark rises (KIP-207)
            raise
        end = BEFORE
    if end != BEFORE or leader.admin.fetch(*key, BEFORE):
        raise PromiseBroken(
            f"{leader} alone is in the ISR of {partition}, fewer replicas in the ISR than min.insync.replicas, and its "
            f"high watermark rose from {BEFORE} to {end}: consumers get a record that may be lost"
        )
