"""Shows that retention, cleaning, record deletion and truncation work during and after a move (KIP-113, 2.).

"The log segments in topicPartition.move directory will be subject to log truncation, log retention in the same way as
the log segments in the source log directory. But we may not do log cleaning on the topicPartition.move". All of them
must work again once the move has ended or was cancelled. Otherwise the disk fills up, and no error shows it.

The records are not in the history, so the judge does not expect them. The pair uses another topic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import ExitStack

from faults.base import injected
from faults.broker import BrokerKilled, BrokerPaused
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Deviation, Expectation
from harness.waiting import await_until
from suites.checks import check_delivery, check_led_by_another, check_noticed, check_records_deleted, promised
from suites.deviations import (
    CLEANING_STOPS,
    CLEANING_STOPS_WITH_DESTINATION,
    CLEANING_STOPS_WITH_TOPIC,
    RETENTION_WAITS,
    TRUNCATED_SEGMENTS_STAY,
)
from suites.leadership import lead
from suites.log_cleaning import (
    COMPACTED,
    EXPIRING,
    FREQUENT_CLEANING,
    MORE_THAN_TWO,
    check_logs_small,
    check_needed_records,
    cleaner_scenario,
    stays_large,
    write_outdated_records,
)
from suites.moves import (
    SMALL_FETCHES,
    await_moved,
    begin_move,
    check_under_way,
    finish_move,
    future_log_bytes,
    moves_held,
)
from suites.observing import expectation_of, observe
from suites.on_disk import check_checkpoints, check_no_leftovers, check_same_bytes, check_topic_gone
from suites.replica_files import check_replica_files
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import write_untracked_records
from suites.untracked_transactions import UntrackedProducer

SETTINGS = SMALL_FETCHES | FREQUENT_CLEANING
KEPT = EXPIRING | {"retention.bytes": "-1"}
LEADER_ONLY = 200  # records that only the leader has


def create_beside(cluster: Cluster) -> Topic:
    """Create the pair's topic, and one more so that no log dir is ever without a replica; returns the first."""
    orders = cluster.create_topic("orders")
    cluster.create_topic("beside", partitions=2)
    return orders


def create_cleaned_topics(cluster: Cluster) -> tuple[Topic, Topic]:
    """Create a compacted and an expiring topic, and check that Kafka keeps both small before anything moves."""
    topics = cluster.create_topic("accounts", configs=COMPACTED), cluster.create_topic("events", configs=EXPIRING)
    write_outdated_records(*topics)
    check_logs_small(*topics)
    return topics


@cleaner_scenario(
    "kip-113/outdated-amid-move",
    plan="segments in topicPartition.move … subject to … log retention; log cleaning may wait",
    floors=NO_FAULT,
    deviations=(RETENTION_WAITS, TRUNCATED_SEGMENTS_STAY),
)
def test_outdated_amid_move(cluster: Cluster, workload: CaseWorkload) -> None:
    """Compacted and expiring logs get outdated records during a move: both are small after it, and stay small.

    A third log, whose leader moves it, expires only by a config that is set during the move. An aborted transaction is
    in its first segment, so there is an index of those to delete, too.
    """
    orders, topics = create_beside(cluster), create_cleaned_topics(cluster)
    mover, *others = cluster.brokers
    [kept] = cluster.create_topics(
        NewTopic(name="kept", assignment={0: [each.id for each in cluster.brokers]}, configs=KEPT)
    )
    UntrackedProducer(kept, "aborted").write(commit=False)
    write_outdated_records(kept)
    state = StateCheck(cluster, orders, *topics, kept)
    there = {topic: other_dir(topic[0].log_dir_on(mover)) for topic in (*topics, kept)}
    with workload.running(orders) as pair:
        with moves_held(mover):
            for topic in (topics[1], topics[0], kept):  # the expiring log is copied in part; the others wait
                begin_move(topic[0], there[topic], waits=topic is not topics[1])
            kept.configure(EXPIRING)
            write_outdated_records(*topics)
            check_logs_small(*topics, on=others)
            with promised(cluster, unless=RETENTION_WAITS, seen=stays_large(topics[1], mover)):
                check_logs_small(topics[1], on=[mover], timeout_s=timeouts.CLEANING_S / 4)
            for topic, log_dir in there.items():
                check_under_way(topic[0], log_dir)
        for topic, log_dir in there.items():
            finish_move(state, topic[0], log_dir)
        check_logs_small(*topics, kept)
        write_outdated_records(*topics)
        check_logs_small(*topics)
        check_settled(state, *topics, kept, compacted=topics[:1])
        check_needed_records(*topics, mover)
        check_replica_files(*(topic[0] for topic in (*topics, kept)))
        pair.await_progress(after=now())
    check_delivery(workload)


@cleaner_scenario(
    "kip-113/outdated-after-cancel",
    plan="cancel an existing movement of the replica: retention and cleaning go on",
    floors=NO_FAULT,
    deviations=(CLEANING_STOPS, TRUNCATED_SEGMENTS_STAY),
)
def test_outdated_after_cancel(cluster: Cluster, workload: CaseWorkload) -> None:
    """Compacted and expiring logs get outdated records after a cancelled move: both become small again."""
    orders, topics = create_beside(cluster), create_cleaned_topics(cluster)
    state = StateCheck(cluster, orders, *topics)
    mover = cluster.brokers[0]
    here = {topic: topic[0].log_dir_on(mover) for topic in topics}
    with workload.running(orders) as pair:
        with moves_held(mover):
            for topic, log_dir in here.items():
                begin_move(topic[0], other_dir(log_dir), waits=True)
                topic[0].move_to(log_dir)
                await_moved(topic[0], log_dir)
        check_still_cleaned(state, mover, topics)
        pair.await_progress(after=now())
    check_delivery(workload)


@cleaner_scenario(
    "kip-113/outdated-after-redirect",
    plan="a move is given another log dir: retention and cleaning go on",
    floors=NO_FAULT,
    deviations=(CLEANING_STOPS, TRUNCATED_SEGMENTS_STAY),
    log_dirs=3,
)
def test_outdated_after_redirect(cluster: Cluster, workload: CaseWorkload) -> None:
    """Compacted and expiring logs get outdated records after a redirected move: both become small again."""
    orders, topics = create_beside(cluster), create_cleaned_topics(cluster)
    state = StateCheck(cluster, orders, *topics)
    mover = cluster.brokers[0]
    third = {}
    with workload.running(orders) as pair:
        with moves_held(mover):
            for topic in topics:
                here = topic[0].log_dir_on(mover)
                second, third[topic] = (each for each in mover.log_dirs if each != here)
                begin_move(topic[0], second, waits=True)
                begin_move(topic[0], third[topic], waits=True)
        for topic, log_dir in third.items():
            finish_move(state, topic[0], log_dir)
        check_still_cleaned(state, mover, topics)
        pair.await_progress(after=now())
    check_delivery(workload)


@cleaner_scenario(
    "kip-113/outdated-after-failed-move",
    plan="the destination of a move fails: retention and cleaning go on",
    judged=False,
    floors=NO_FAULT,
    deviations=(CLEANING_STOPS_WITH_DESTINATION,),
    log_dirs=3,
)
def test_outdated_after_failed_move(cluster: Cluster) -> None:
    """The log dir that two logs move to fails: both lose outdated records, and DeleteRecords is answered."""
    topics = create_cleaned_topics(cluster)
    mover = cluster.brokers[0]
    lead(topics[1][0], mover)
    there, *more = set(mover.log_dirs) - {topic[0].log_dir_on(mover) for topic in topics}
    if more:
        raise Inconclusive(f"{mover} should have {topics[0]} and {topics[1]} in different log dirs, not in one")
    with moves_held(mover):
        for topic in topics:
            begin_move(topic[0], there, waits=True)
        with injected(fault := Chmod000(there)):
            check_noticed(fault)
            check_cleaned_unless(CLEANING_STOPS_WITH_DESTINATION, cluster, mover, topics)
            check_others_cleaned(cluster, mover)
            check_records_deleted(topics[1][0], before=2 * MORE_THAN_TWO)


@cleaner_scenario(
    "kip-113/outdated-in-new-topic",
    plan="a topic is deleted during a move, and created again: retention and cleaning go on",
    judged=False,
    floors=NO_FAULT,
    deviations=(CLEANING_STOPS_WITH_TOPIC,),
)
def test_outdated_in_new_topic(cluster: Cluster) -> None:
    """Topics are deleted as a replica moves, and created again: their outdated records are removed."""
    topics = create_cleaned_topics(cluster)
    mover = cluster.brokers[0]
    with moves_held(mover):
        for topic in topics:
            begin_move(topic[0], other_dir(topic[0].log_dir_on(mover)), waits=True)
        cluster.delete_topics(*topics)
        for topic in topics:
            check_topic_gone(cluster, topic.name)
    again = cluster.create_topic("accounts", configs=COMPACTED), cluster.create_topic("events", configs=EXPIRING)
    check_cleaned_unless(CLEANING_STOPS_WITH_TOPIC, cluster, mover, again)
    check_others_cleaned(cluster, mover)


def check_others_cleaned(cluster: Cluster, broker: Broker) -> None:
    """The broker removes outdated records of topics that did not move."""
    topics = (
        cluster.create_topic("other-accounts", configs=COMPACTED),
        cluster.create_topic("other-events", configs=EXPIRING),
    )
    write_outdated_records(*topics)
    check_logs_small(*topics, on=[broker])


def check_cleaned_unless(deviation: Deviation, cluster: Cluster, mover: Broker, topics: Sequence[Topic]) -> None:
    """Outdated records of all topics are removed; on builds with the deviation, they stay on this broker."""
    write_outdated_records(*topics)
    check_logs_small(*topics, on=cluster.others(mover))
    for topic in topics:
        with promised(cluster, unless=deviation, seen=stays_large(topic, mover)):
            check_logs_small(topic, on=[mover], timeout_s=timeouts.CLEANING_S / 2)


def check_still_cleaned(state: StateCheck, mover: Broker, topics: tuple[Topic, Topic]) -> None:
    """After cancelled or redirected moves on a broker, outdated records of both topics are removed.

    :raises PromiseBroken: they stay; or, on builds with :data:`CLEANING_STOPS`, they are removed on that broker
    """
    check_cleaned_unless(CLEANING_STOPS, state.cluster, mover, topics)
    check_settled(state, *topics, compacted=topics[:1])
    check_needed_records(*topics, mover)
    if expectation_of(CLEANING_STOPS, state.cluster) is Expectation.NONE:
        check_replica_files(*(topic[0] for topic in topics))


def check_settled(
    state: StateCheck, *topics: Topic, begin_midway: bool = False, compacted: Sequence[Topic] = ()
) -> None:
    """All sources agree, and log dirs and checkpoint files have nothing else of these topics.

    :param begin_midway: records of the topics were deleted up to the middle of a segment
    :param compacted: the topics that were cleaned
    """
    names = {topic.name for topic in topics}
    state.check()
    check_truncated_segments_gone(state.cluster, names)
    check_checkpoints(
        state.cluster,
        names,
        begin_midway=names if begin_midway else (),
        compacted={topic.name for topic in compacted},
    )


def check_truncated_segments_gone(
    cluster: Cluster, topics: Collection[str], timeout_s: float = timeouts.RECOVERY_S
) -> None:
    """Nothing is left over (:func:`check_no_leftovers`).

    On builds with :data:`TRUNCATED_SEGMENTS_STAY`, segments that were truncated from a future replica may stay. That is
    a race: the move ends before or after they are deleted.

    :raises PromiseBroken: something is left; or, on those builds, something else than such segments
    """
    deleted = rf"'\d+\.\w+\.deleted in (?:{'|'.join(map(re.escape, topics))})-\d+ in [^']+'"
    try:
        check_no_leftovers(cluster, topics, timeout_s)
    except PromiseBroken as broken:
        if not re.search(rf"last seen: \[{deleted}(?:, {deleted})*\]$", str(broken)):
            raise
        observe(TRUNCATED_SEGMENTS_STAY, cluster, deviates=True, seen=broken, broken=broken)


@scenario(
    "kip-113/records-deleted",
    kip=113,
    plan="records are deleted while a replica is moved",
    floors=NO_FAULT,
    overrides=SETTINGS,
    deviations=(TRUNCATED_SEGMENTS_STAY,),
)
def test_records_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """Records are deleted after a move has copied them: the new log dir has what is left, and nothing else."""
    orders, changed = create_beside(cluster), cluster.create_topic("changed")
    state = StateCheck(cluster, orders, changed)
    write_untracked_records(changed, 2000, size=1000)
    mover = follower_of(changed[0])  # a leader would answer only after its future replica has deleted them, too
    there = other_dir(changed[0].log_dir_on(mover))
    with workload.running(orders) as pair:
        with moves_held(mover):
            begin_move(changed[0], there, copying=2000)
            changed[0].delete_records(before=1000)
            check_under_way(changed[0], there)
        finish_move(state, changed[0], there)
        check_settled(state, changed, begin_midway=True)
        check_same_bytes(changed[0], start=1000)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-113/truncated",
    kip=113,
    plan="segments in topicPartition.move … subject to log truncation",
    floors=Floors(during=0),  # with two of three brokers paused, no client gets through
    overrides=SETTINGS,
    deviations=(TRUNCATED_SEGMENTS_STAY,),
)
def test_truncated(cluster: Cluster, workload: CaseWorkload) -> None:
    """A leader dies during a move, with records that no other broker has: replica and future replica are truncated."""
    orders, changed = create_beside(cluster), cluster.create_topic("changed")
    state = StateCheck(cluster, orders, changed)
    write_untracked_records(changed, 5)
    mover = leader_of(changed[0])
    others = cluster.others(mover)
    there = other_dir(changed[0].log_dir_on(mover))
    with workload.running(orders) as pair, moves_held(mover):
        with ExitStack() as down:
            with injected(*map(BrokerPaused, others)):
                write_untracked_records(changed, LEADER_ONLY, size=1000, to=mover)
                begin_move(changed[0], there, copying=LEADER_ONLY)
                down.enter_context(injected(BrokerKilled(mover)))
            check_led_by_another(changed[0], mover)
            uncut = future_log_bytes(changed[0], there)
            state.broker_gone(mover)
            state.check()
            write_untracked_records(changed, LEADER_ONLY, size=500)
            pair.await_progress(after=now())
        state.broker_back(mover)
        check_truncated(changed[0], there, uncut)
        cluster.await_healthy(failure=PromiseBroken)
    # Truncated to the same end, replica and future replica are equal, so the move may have ended already.
    finish_move(state, changed[0], there)
    state.check(timeouts.RECOVERY_S)
    check_settled(state, changed)
    check_same_bytes(changed[0])
    check_delivery(workload)


def check_truncated(partition: Partition, log_dir: LogDir, uncut: bytes) -> None:
    """The future replica in the log dir, or the replica that it has become, was truncated.

    :param uncut: the bytes of its log before the truncation
    """
    await_until(
        lambda: [file.read_bytes().startswith(uncut) for file in log_dir.path.glob(f"{partition}*/*.log")],
        lambda is_uncut: is_uncut != [] and not any(is_uncut),
        timeout_s=timeouts.RECOVERY_S,
        what=f"the future replica of {partition} in {log_dir} to be truncated; it had {len(uncut)} bytes",
        retry_on=(OSError,),  # it has just become the replica
        failure=PromiseBroken,
    )
    log_dir.broker.journal.write("move.cut_off", partition=str(partition), to=str(log_dir), bytes_before=len(uncut))
