"""Shows that a log dir goes offline whatever access meets the error.

The access is a read, an append, compaction, or a replica's creation.

"Mark log directory as bad once there is IOException when broker attempts to access (i.e. read or write) the log
directory" (KIP-112). In the other files a checkpoint meets the error, half a second after the fault at most. Here the
broker's log must show that this access met the error first.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence

from faults.base import injected
from faults.file_system import Eio, Full
from faults.log_dir import Chmod000, LogDirFault, ReplicaChmod000
from faults.segment import IndexUnreadable
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import HIGH_WATERMARKS, RECOVERY_POINTS, LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import AwaitTimeout, Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.broker_log import LogLine
from harness.kafka.connection import NoAnswer
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.background import in_background
from suites.checks import check_delivery, check_not_noticed, check_noticed, check_refused
from suites.deviations import CREATION_ERROR_UNREPORTED, READ_ERROR_IGNORED
from suites.leadership import lead
from suites.log_cleaning import COMPACTED, FREQUENT_CLEANING, SMALL_SEGMENTS, check_logs_small, write_outdated_records
from suites.observing import observe
from suites.on_disk import check_logs_unchanged, check_no_replica_twice, check_same_bytes, leaders_logs
from suites.replica_mbeans import check_no_trace, mbeans_of
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import (
    RARE_CHECKPOINTS,
    await_checkpoints,
    log_dirs_failed,
    one_partition_per_log_dir,
    restart_after_healing,
    start_after_healing,
    write_untracked_records,
)

TWO_SEGMENTS = {"segment.bytes": str(1 << 20)}
READ_FAILED = r"(?s)^[^\n]*Error processing fetch [^\n]*{partition}\b.*IOException: Input/output error"
"""The log line of a leader that fails to read the records of ``{partition}``."""

STORAGE_ERRORS = ("KAFKA_STORAGE_ERROR", "UNKNOWN_TOPIC_OR_PARTITION")
"""The answers to a read from a failed log dir: that of releases, and that of the KIP (``STORAGE_ERROR_TO_CLIENTS``)."""

TRIES = 10
"""How often a scenario tries to let a read, or the creation of a replica, meet an error before a checkpoint does."""
GAP_S = 2.0
"""How long to wait for a moment between two checkpoints: four of their intervals."""
QUARTER_NS = 250_000_000
"""Half of the interval of checkpoints, in nanoseconds (``harness.cluster.profile.BROKER_SETTINGS``)."""


def first_error(fault: LogDirFault) -> LogLine | None:
    """The log line with the error for which the broker takes the log dir offline; None if there is none yet.

    ``LogDirFailureChannel`` writes one for each error; the log dir goes offline with the first.
    """
    return next(
        (
            line
            for line in fault.broker.log.lines(since=fault.injected_at)
            if re.search(rf"^[^\n]*{re.escape(str(fault.log_dir.path))}\b[^\n]*\.LogDirFailureChannel\)", line.text)
        ),
        None,
    )


@scenario(
    "kip-112/index-unreadable",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: a read meets the error, and no write does",
    judged=False,
)
def test_index_unreadable(cluster: Cluster) -> None:
    """A broker cannot open an old segment's index: the log dir goes offline at the first read, and not before.

    Brokers open the index of an old segment at the first read after a start. The topic is idle, and checkpoints can be
    written all the while.
    """
    orders = one_partition_per_log_dir(cluster)
    idle = cluster.create_topic("idle", partitions=1, replicas=1, configs=TWO_SEGMENTS)
    write_untracked_records(idle, 1500, size=1000)
    logs = leaders_logs(idle.partitions)
    state = StateCheck(cluster, orders, idle)
    victim = leader_of(idle[0])
    log_dir = idle[0].log_dir_on(victim)
    victim.stop()
    state.broker_gone(victim)
    victim.start()
    state.broker_back(victim)
    state.check(timeouts.RECOVERY_S)
    with injected(IndexUnreadable(log_dir, idle.name, 0)) as fault:
        await_checkpoints(log_dir, 4)
        check_not_noticed(fault, log_dir)
        read_meets_error(idle[0], offset=100)
        state.log_dir_failed(log_dir)
        state.check()
        check_noticed(fault)
        check_met_by(fault, saying=f"^Exception while reading from {idle[0]} in dir")
    restart_after_healing(state, victim)
    check_logs_unchanged(logs)
    victim.admin.fetch(idle.name, 0, 100)


def read_meets_error(partition: Partition, *, offset: int) -> None:
    """A consumer's read from the leader gets one of :data:`STORAGE_ERRORS`.

    :raises PromiseBroken: it gets another error
    :raises Inconclusive: it gets records
    """
    leader = partition.leader()
    try:
        got = leader.admin.fetch(partition.topic, partition.index, offset)
    except Refused as refusal:
        leader.journal.write("read.refused", partition=str(partition), offset=offset, error=refusal.error)
        if refusal.error not in STORAGE_ERRORS:
            wanted = " or ".join(STORAGE_ERRORS)
            raise PromiseBroken(
                f"{leader} answered a read of {partition} from a failed log dir with {refusal}, instead of {wanted}"
            ) from refusal
        return
    raise Inconclusive(f"{leader} answered a read of {partition} with {len(got)} bytes, in spite of the fault")


def check_met_by(fault: LogDirFault, *, saying: str) -> None:
    """The broker took the log dir offline because of this access, and not because of an earlier one.

    :param saying: a regular expression of the log line
    """
    line = first_error(fault)
    if line is None or not re.search(saying, line.text):
        raise PromiseBroken(f"{fault.broker} took {fault.log_dir} offline, but the reason is not /{saying}/: {line}")
    fault.broker.journal.write("error.met", broker=fault.broker.id, log_dir=str(fault.log_dir), line=line.text[:300])


@scenario(
    "kip-112/cleaner-meets-error",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: the log cleaner meets the error",
    judged=False,
    overrides=FREQUENT_CLEANING,
)
def test_cleaner_meets_error(cluster: Cluster) -> None:
    """A broker cannot write into the folder of an idle log: the log dir goes offline when the cleaner tries to.

    The folder fails while the topic is not compacted. Then its ``cleanup.policy`` changes.
    """
    orders = one_partition_per_log_dir(cluster)
    idle = cluster.create_topic("idle", partitions=1, replicas=1, configs=SMALL_SEGMENTS)
    write_outdated_records(idle)
    state = StateCheck(cluster, orders, idle)
    victim = leader_of(idle[0])
    log_dir = idle[0].log_dir_on(victim)
    with injected(ReplicaChmod000(log_dir, idle[0])) as fault:
        await_checkpoints(log_dir, 4)
        check_not_noticed(fault, log_dir)
        idle.configure(COMPACTED)
        check_noticed(fault)
        state.log_dir_failed(log_dir)
        state.check()
        check_met_by(fault, saying=f"^Failed to clean up log for {idle[0]} in dir")
    restart_after_healing(state, victim)
    check_logs_small(idle)


@scenario(
    "kip-112/append-fails",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: an append of records finds no space left",
    overrides=RARE_CHECKPOINTS,
    needs=Full.needs,
    volumes="ext4",
)
def test_append_fails(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader's disk is full, and no checkpoint is due: the append that finds no space takes the log dir offline.

    Once there is room again and the broker has restarted, it has every record.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Full(orders[0].log_dir_on(victim)), ahead=orders) as fault:
            check_met_by(fault, saying=f"Error while appending records to {orders[0]} in dir")
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/follower-append-fails",
    kip=112,
    plan="3) Log directory failure discovered on follower during runtime: an append of its fetcher finds no space left",
    judged=False,
    overrides=RARE_CHECKPOINTS,
    needs=Full.needs,
    volumes="ext4",
)
def test_follower_append_fails(cluster: Cluster) -> None:
    """A follower's disk is full, and its fetcher meets the error: no MBean has the replica or its topic any more.

    The follower has led before, so it has meters of the topic.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    write_untracked_records(orders, 100)
    victim = leader_of(orders[0])
    leader, _ = cluster.others(victim)
    lead(orders[0], leader)
    write_untracked_records(orders, 10)  # now all have the leader epoch on disk
    state = StateCheck(cluster, orders)
    state.check()
    if not mbeans_of(victim).has_topic_meters(orders.name):
        raise Inconclusive(f"{victim} has led {orders[0]}, and has no meters of {orders} that could go")
    log_dir = orders[0].log_dir_on(victim)
    with injected(Full(log_dir)) as fault:
        write_untracked_records(orders, 100, size=1000, to=leader)
        state.log_dir_failed(log_dir)
        state.check()
        check_noticed(fault)
        check_met_by(fault, saying=f"Error while appending records to {orders[0]} in dir")
        check_no_trace(victim, orders)
    restart_after_healing(state, victim)
    check_same_bytes(*orders.partitions)


@scenario(
    "kip-112/records-unreadable",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: a read of records gets EIO before a write does",
    judged=False,
    needs=Eio.needs,
    volumes="ext4",
    deviations=(READ_ERROR_IGNORED,),
)
def test_records_unreadable(cluster: Cluster) -> None:
    """A consumer's read of the leader's records gets EIO: the log dir goes offline at that read, not at the next write.

    A reader asks for the first records every few milliseconds. If a checkpoint still meets the error first, the log
    dir is healed and fails again.
    """
    orders = one_partition_per_log_dir(cluster)
    write_untracked_records(orders, 100, size=1000)
    state = StateCheck(cluster, orders)
    for _ in range(TRIES):
        if met_by_read(state, orders[0]):
            return
    raise Inconclusive(f"a write met the error before a read did, {TRIES} times")


def met_by_read(state: StateCheck, partition: Partition) -> bool:
    """Let the log dir of the leader's replica fail under a reader. Returns whether a read met the error first."""
    victim = leader_of(partition)
    log_dir = partition.log_dir_on(victim)
    errors = list[str]()

    def read() -> None:
        try:
            victim.admin.fetch(partition.topic, partition.index, 0)
        except Refused as refusal:
            errors.append(refusal.error)

    with in_background(read, every_s=0.005):
        await_gap(log_dir)
        with log_dirs_failed(state, Eio(log_dir)) as fault:
            met = check_noticed_by_read(fault, partition, errors)
            victim.stop()
            state.broker_gone(victim)
    start_after_healing(state, victim)
    return met


def check_noticed_by_read(fault: LogDirFault, partition: Partition, errors: Sequence[str]) -> bool:
    """The read that first met the error took the log dir offline; builds with :data:`READ_ERROR_IGNORED` go on.

    :param errors: the names of the errors that the reader has got
    :returns: False if no read met the error before another access, so the attempt shows nothing
    """
    first = first_error(fault)
    assert first is not None, "the broker has taken the log dir offline"
    by_read = re.search(f"^Exception while reading from {partition} in dir", first.text) is not None
    ignored = [
        line
        for line in fault.broker.log.lines(since=fault.injected_at)
        if line.at <= first.at and re.search(READ_FAILED.format(partition=partition), line.text)
    ]
    if not by_read and not ignored:
        return False
    counts = {error: errors.count(error) for error in dict.fromkeys(errors)}
    if not by_read and "UNKNOWN_SERVER_ERROR" not in counts:
        raise PromiseBroken(f"a read of {partition} met EIO, and the reader got {counts}")
    seen = f"{len(ignored)} reads met EIO, and then: {first.text.splitlines()[0]}; the reader got {counts}"
    observe(READ_ERROR_IGNORED, partition.cluster, deviates=not by_read, seen=seen)
    return True


@scenario(
    "kip-112/creation-fails",
    kip=112,
    plan="1. Topic gets created: … Otherwise, the replica is considered offline",
    judged=False,
    deviations=(CREATION_ERROR_UNREPORTED,),
)
def test_creation_fails(cluster: Cluster) -> None:
    """The creation of a replica meets the error of a failed log dir: the replica is offline, and another broker leads.

    The log dir is requested for the replicas of two topics. Its broker is to lead one of them. A broker that chooses a
    log dir itself takes the other one. Once the log dir is healed, both replicas are created.
    """
    log_dir = cluster.brokers[0].log_dirs[0]

    def create(number: int) -> list[Topic]:
        led, followed = (Topic(cluster, f"{name}-{number}", 1) for name in ("led", "followed"))
        request_in(log_dir, led, followed)
        return [led, followed]

    topics = created_as_fails(
        cluster, log_dir, create, lambda led, followed: check_offline(log_dir, led[0], followed[0])
    )
    StateCheck(cluster, *topics).check()
    for topic in topics:
        check_no_replica_twice(topic)


def created_as_fails(
    cluster: Cluster, log_dir: LogDir, create: Callable[[int], Sequence[Topic]], check: Callable[..., None]
) -> Sequence[Topic]:
    """Let a log dir fail as its broker creates replicas there, until a creation meets the error first.

    Then heal the log dir.

    :param create: requests the topics of a try, by its number, and returns them
    :param check: is given these topics while the log dir has failed and a creation met the error
    :returns: the topics of the last try
    :raises Inconclusive: another access met the error first, each time
    """
    victim = log_dir.broker
    for number in range(1, TRIES + 1):
        await_gap(log_dir)
        with injected(Chmod000(log_dir)) as fault:
            topics = create(number)
            check_noticed(fault)
            met = creation_met_error(fault, *topics)
            if met:
                check(*topics)
        victim.restart()
        cluster.await_healthy(failure=PromiseBroken)
        if met:
            return topics
        cluster.delete_topics(*topics)
    raise Inconclusive(f"{victim} noticed the failed log dir before it created a replica there, {TRIES} times")


@scenario(
    "kip-112/creation-fails-in-emptier",
    kip=112,
    plan="1. Topic gets created: the log dir with the fewest replicas fails as the broker creates one there",
    judged=False,
)
def test_creation_fails_in_emptier(cluster: Cluster) -> None:
    """The creation of a replica meets the error of a failed log dir: the broker creates it in its good one, and leads.

    The broker chooses the log dir with the fewest replicas first.
    """
    victim = cluster.brokers[0]
    fuller = cluster.create_topic("filler", partitions=1)[0].log_dir_on(victim)
    emptier = other_dir(fuller)
    assignment = [victim.id, *(broker.id for broker in cluster.others(victim))]

    def create(number: int) -> list[Topic]:
        orders = Topic(cluster, f"orders-{number}", 1)
        cluster.request_topics(NewTopic(name=orders.name, assignment={0: assignment}))
        return [orders]

    [orders] = created_as_fails(cluster, emptier, create, lambda orders: check_created_beside(emptier, orders[0]))
    check_no_replica_twice(orders)


def check_created_beside(failed: LogDir, partition: Partition) -> None:
    """The broker has created the replica in its other log dir, is in the ISR with all others, and leads."""
    victim, cluster = failed.broker, partition.cluster

    def seen() -> tuple[LogDir | None, int | None, set[int]]:
        state = partition.describe(cluster.others(victim)[0])
        return victim.log_dir_of(partition.topic, partition.index), state.leader, set(state.isr)

    should = (other_dir(failed), victim.id, {broker.id for broker in cluster.brokers})
    await_until(
        seen,
        lambda seen: seen == should,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{victim} to create {partition} in {should[0]}, since {failed} has failed, and to lead all others",
        retry_on=(NoAnswer, KeyError),
        failure=PromiseBroken,
    )


def await_gap(log_dir: LogDir) -> None:
    """Wait until the broker writes no checkpoint in this log dir for a quarter of a second, for :data:`GAP_S` at most.

    It writes each checkpoint file every half second. So the wait ends when it has just written all of them within a
    quarter of a second. Without a replica, it writes no high watermarks. Before 3.8, it writes no recovery points for
    30 s after a start.

    On a crowded machine there may be no such moment. The try goes on then, and the broker's log shows what came first.
    """
    files = [log_dir.path / name for name in (RECOVERY_POINTS, HIGH_WATERMARKS)]

    def written() -> list[int]:
        return sorted(file.stat().st_mtime_ns for file in files if file.exists())

    before = written()[-1]

    def in_gap() -> bool:
        *earlier, newest = written()
        others = [at for at in earlier if newest - at <= 4 * QUARTER_NS]
        just_written = newest != before and all(newest - at <= QUARTER_NS for at in others)
        return just_written or time.time_ns() - newest > 4 * QUARTER_NS

    with contextlib.suppress(AwaitTimeout):
        await_until(
            in_gap,
            timeout_s=GAP_S,
            poll_s=0.005,
            what=f"{log_dir.broker} to write its checkpoints in {log_dir}, one soon after the other",
        )


def request_in(log_dir: LogDir, led: Topic, followed: Topic) -> None:
    """Create two topics with replicas on all brokers; the log dir's broker is to lead the first, and not the second.

    Their replicas on that broker are requested to be in this log dir.
    """
    victim, others = log_dir.broker, [broker.id for broker in led.cluster.others(log_dir.broker)]
    for topic in (led, followed):
        with contextlib.suppress(Refused):  # the broker remembers the log dir, and refuses (KIP-113)
            victim.admin.alter_replica_log_dir(topic.name, 0, str(log_dir.path))
    led.cluster.request_topics(
        NewTopic(name=led.name, assignment={0: [victim.id, *others]}),
        NewTopic(name=followed.name, assignment={0: [*others, victim.id]}),
    )


def creation_met_error(fault: LogDirFault, *topics: Topic) -> bool:
    """Whether the broker took the log dir offline because it could not create one of these topics' replicas there."""
    first = first_error(fault)
    names = "|".join(re.escape(str(topic[0])) for topic in topics)
    return first is not None and re.search(f"^Error while creating log for ({names}) in dir", first.text) is not None


def check_offline(log_dir: LogDir, led: Partition, followed: Partition) -> None:
    """Both replicas are offline, and other brokers lead. Builds with :data:`CREATION_ERROR_UNREPORTED` show neither.

    There, the controller learns of the failed log dir, but not of the replicas. The leader of the second partition
    takes the replica out of the ISR, since it does not fetch. The first partition keeps its leader, which refuses
    clients.
    """
    victim, cluster = log_dir.broker, led.cluster
    other = cluster.others(victim)[0]

    def shown() -> str | None:
        states = [partition.describe(other) for partition in (led, followed)]
        if all(victim.id in each.offline_replicas and each.leader not in (None, victim.id) for each in states):
            return "offline"
        unreported = [each for each in states if victim.id not in each.offline_replicas]
        kept = states[0].leader == victim.id and victim.id not in states[1].isr
        return f"not offline: {'; '.join(map(str, unreported))}" if len(unreported) == 2 and kept else None

    seen = await_until(
        shown,
        lambda seen: seen is not None,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the replicas of {led} and {followed} on {victim} to be offline, and others to lead",
        retry_on=(NoAnswer, KeyError),
        failure=PromiseBroken,
    )
    if observe(CREATION_ERROR_UNREPORTED, cluster, deviates=seen != "offline", seen=seen):
        check_refused(lambda: victim.admin.produce(led.topic, 0, b"x"), "KAFKA_STORAGE_ERROR", "")
        return
    state = StateCheck(cluster)
    for partition in (led, followed):
        places = {broker.id: created_in(partition, broker) for broker in cluster.others(victim)}
        state.add_partition(partition.describe(other), {**places, victim.id: log_dir})
    state.log_dir_failed(log_dir)
    state.check()


def created_in(partition: Partition, broker: Broker) -> LogDir:
    """The log dir in which a broker has created its replica, once it has."""
    return await_until(
        lambda: partition.log_dir_on(broker),
        timeout_s=timeouts.RECOVERY_S,
        what=f"{broker} to create {partition}",
        retry_on=(NoAnswer, AwaitTimeout),
        failure=PromiseBroken,
    )
