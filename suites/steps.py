"""Steps that scenarios of several suites share. Many of them check what they did."""

from __future__ import annotations

import functools
import math
import operator
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from confluent_kafka import KafkaError, Producer

from faults.base import Fault, injected
from faults.broker import BrokerKilled
from faults.log_dir import LogDirFault
from faults.segment import BitsFlipped
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, LogDir
from harness.cluster.own_part import OwnPart
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.quorum.zookeeper import LogDirEvents, ZooKeeperQuorum
from harness.cluster.reassign import Placement, execute, verify
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, JbodError, PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Tool
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Deviation
from harness.waiting import await_until
from harness.workload.pair import Pair
from suites.checks import (
    check_not_enough_replicas,
    check_noticed,
    check_notified,
    check_rebuilt,
    check_settings,
    promised,
    refuses_to_start,
)
from suites.deviations import CANCELLED_REPLICA_STAYS, MOVE_NEVER_ENDS
from suites.followers_behind import injected_ahead
from suites.observations import metadata_log
from suites.observing import observe
from suites.on_disk import check_no_leftovers
from suites.state_check import StateCheck

UNWRITABLE = r"Failed to write meta\.properties due to"
"""The log line of a broker that ends at its start because it cannot write to a log dir."""

ALL_DIRS_FAILED = r"Shutdown broker because all log dirs in .* have failed"
NO_DIR_USABLE = r"Shutdown broker because none of the specified log dirs"
"""The log lines of a broker that ends because it has no good log dir: at run time, and at its start."""

FOUND_TWICE = r"Duplicate log directories for \S+ are found in both (\S+) and (\S+)\."
"""The log line of a broker that refuses to start because it has a replica in two log dirs."""


def delete_by_hand(broker: Broker, replica_dir: Path) -> None:
    """Delete a replica's folder, as a broker that found the replica twice asks its operator to do."""
    broker.node.run_as_user(["rm", "-r", str(replica_dir)])
    broker.journal.write("replica.deleted_by_hand", partition=replica_dir.name, log_dir=str(replica_dir.parent))


def leave_future_replica_alone(partition: Partition, log_dir: LogDir) -> Path:
    """Make the replica in this log dir a future replica without a current one; returns its folder.

    Its broker must be down. It finds this state if the disk with the replica was replaced.
    """
    assert not log_dir.broker.is_alive
    replica = log_dir.replica_dir(partition.topic, partition.index)
    future = replica.rename(log_dir.path / marked(partition, "future"))
    log_dir.broker.journal.write("move.copy_left_alone", partition=str(partition), copy=str(future))
    return future


def marked(partition: Partition, suffix: str) -> str:
    """A replica's folder name with one of Kafka's suffixes (``LocalLog.logDeleteDirName``, ``logFutureDirName``)."""
    return f"{partition}.{uuid.uuid4().hex}-{suffix}"


@contextmanager
def log_dirs_failed(
    state: StateCheck, *faults: LogDirFault, check_at_end: bool = True, ahead: Topic | None = None
) -> Iterator[LogDirFault]:
    """Inside the block, log dirs have failed: all sources agree on it, and each broker has noticed its fault.

    At the end of the block all sources must still agree. So no log dir has come back by itself, and untouched
    partitions have the same leaders. Then the faults are undone on the disk. The brokers, and ``state``, count the log
    dirs as failed until :func:`restart_after_healing`. Blocks may be nested. Yields the first fault.

    :param check_at_end: False: the block does more than it reports to ``state``, so leave out the check at its end
    :param ahead: the topic whose leaders get ahead of their followers before they fail
    """
    with injected(*faults) if ahead is None else injected_ahead(ahead, *faults):
        for fault in faults:
            state.log_dir_failed(fault.log_dir)
        state.check()
        for fault in faults:
            check_noticed(fault)
        check_others_checkpointed(state, *{fault.broker for fault in faults})
        yield faults[0]
        if check_at_end:
            state.check()


def check_others_checkpointed(state: StateCheck, *brokers: Broker) -> None:
    """Brokers with a failed log dir go on writing recovery points and log starts into their other log dirs.

    It looks only at brokers that write these at least once a second. Without ``log.initial.task.delay.ms``, a broker
    writes none on schedule in its first 30 s.

    :raises PromiseBroken: a broker does not write them
    """
    if not state.cluster.distribution.version.has_initial_task_delay:
        return
    able = [each for each in brokers if each.id not in state.dead | state.slow and _checkpoints_often(each)]
    good = [log_dir for broker in able for log_dir in broker.log_dirs if log_dir not in state.failed]
    before = {(each, file): each.written_at(file) for each in good for file in (RECOVERY_POINTS, LOG_STARTS)}
    await_until(
        lambda: [f"{file} in {each}" for (each, file), at in before.items() if each.written_at(file) == at],
        lambda unwritten: not unwritten,
        timeout_s=timeouts.QUESTION_S,
        what=f"{', '.join(map(str, able))} to go on writing checkpoints into log dirs that have not failed",
        watch=state.cluster.check_nodes,
        failure=PromiseBroken,
    )


def _checkpoints_often(broker: Broker) -> bool:
    names = "log.flush.offset.checkpoint.interval.ms", "log.flush.start.offset.checkpoint.interval.ms"
    return all(int(broker.node.spec.properties.get(name, "60000")) <= OFTEN_MS for name in names)


def check_stays_offline(state: StateCheck, log_dir: LogDir) -> None:
    """A healed log dir stays offline until its broker is restarted (KIP-112, "4. … fix the disk").

    :raises PromiseBroken: the log dir comes back, while the broker writes checkpoints into its other log dirs
    :raises Inconclusive: the broker writes no checkpoints, so this shows nothing
    """
    for other in log_dir.broker.log_dirs:
        if other not in state.failed:
            await_checkpoints(other, 2)
    state.check()


def check_some_leaderless(state: StateCheck, lone: Topic) -> None:
    """At least one partition of a topic with one replica is expected to have no leader now.

    :raises Inconclusive: no partition of it is in a failed log dir
    """
    if all(state.expected(lone.name, partition.index).leader for partition in lone.partitions):
        raise Inconclusive(f"no failed log dir has a partition of {lone}, so each has a leader")


@contextmanager
def notifications(cluster: Cluster, victim: Broker) -> Iterator[LogDirEvents | None]:
    """ZooKeeper mode: inside the block this broker, and no other, notifies the controller of one failed log dir."""
    if not isinstance(cluster.quorum, ZooKeeperQuorum):
        yield None
        return
    with cluster.quorum.log_dir_events() as events:
        yield events
        check_notified(events, victim)


def one_partition_per_log_dir(cluster: Cluster, name: str = "orders") -> Topic:
    """Create a topic of two partitions; every broker has one of them in each of its two log dirs.

    One partition is in the log dir that fails. The other one must not be touched.

    :raises Inconclusive: a broker has both in one log dir
    """
    topic = cluster.create_topic(name, partitions=2, replicas=3)
    for broker in cluster.brokers:
        if len({partition.log_dir_on(broker) for partition in topic.partitions}) != len(broker.log_dirs):
            raise Inconclusive(f"{broker} has both partitions of {topic} in one log dir")
    return topic


def await_replica(broker: Broker, partition: Partition, timeout_s: float = timeouts.RECOVERY_S) -> LogDir:
    """Wait until a broker has created its replica of a partition; returns the replica's log dir.

    :raises PromiseBroken: it does not create it in time
    """
    log_dir = await_until(
        lambda: broker.log_dir_of(partition.topic, partition.index),
        timeout_s=timeout_s,
        poll_s=0.01,
        what=f"{broker} to create a replica of {partition}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    assert log_dir is not None
    return log_dir


def reassign(cluster: Cluster, state: StateCheck, *placements: Placement, timeout_s: float = timeouts.MOVE_S) -> None:
    """Run kafka-reassign-partitions with ``--execute``, and ``--verify`` until it reports that all is done.

    Then all sources must agree, and no broker may have leftovers or a replica twice.

    :raises PromiseBroken: the reassignment does not end in time; the error has the tool's answer
    """
    execute(cluster, *placements)
    await_reassigned(cluster, state, *placements, timeout_s=timeout_s)


def await_reassigned(cluster: Cluster, state: StateCheck, *placements: Placement, timeout_s: float) -> None:
    """Wait until a reassignment of :func:`harness.cluster.reassign.execute` ended; check it like :func:`reassign`."""
    await_verified(cluster, *placements, timeout_s=timeout_s)
    check_in_named_log_dirs(placements)
    for placement in placements:
        partition = placement.partition
        chosen = [place if isinstance(place, LogDir) else partition.log_dir_on(place) for place in placement.on]
        state.reassigned(partition, chosen)
    state.check(also=[metadata_log])
    check_no_leftovers(cluster, {placement.partition.topic for placement in placements})


def await_verified(
    cluster: Cluster, *placements: Placement, timeout_s: float = timeouts.MOVE_S, preserve_throttles: bool = False
) -> None:
    """Run kafka-reassign-partitions with ``--verify`` until it reports that all is done.

    :raises PromiseBroken: it does not report this in time
    """
    await_until(
        lambda: verify(cluster, *placements, preserve_throttles=preserve_throttles),
        lambda unfinished: not unfinished,
        timeout_s=timeout_s,
        what=f"kafka-reassign-partitions --verify to report that all is done: {'; '.join(map(str, placements))}",
        failure=PromiseBroken,
    )


def check_in_named_log_dirs(placements: Sequence[Placement]) -> None:
    """Right after the tool reported the end, the replicas are in the named log dirs, without future replicas."""
    for partition, log_dir in ((each.partition, place) for each in placements for place in each.on):
        if isinstance(log_dir, LogDir) and (differs := not_moved(partition, log_dir)):
            raise PromiseBroken(
                f"kafka-reassign-partitions reported {partition} as moved into {log_dir}, but {differs}"
            )


def reassign_by_request(state: StateCheck, partition: Partition, *brokers: Broker) -> None:
    """Reassign a partition to these brokers by an AlterPartitionReassignments request (KIP-455), and check the end."""
    reassign_together(state, Placement(partition=partition, on=brokers))


def reassign_together(state: StateCheck, *placements: Placement) -> None:
    """Reassign several partitions in parallel by requests, and wait until all sources agree.

    A replica that is offline stays in its log dir.
    """
    for placement in placements:
        state.cluster.reassign(placement.partition, placement.brokers)
    await_no_reassignment(state.cluster)
    for placement in placements:
        partition = placement.partition
        offline = state.expected(partition.topic, partition.index).offline
        chosen = [
            state.log_dir_of(partition, broker) if broker.id in offline else partition.log_dir_on(broker)
            for broker in placement.brokers
        ]
        state.reassigned(partition, chosen)
    state.check(also=[metadata_log])


def await_no_reassignment(cluster: Cluster, *, timeout_s: float = timeouts.MOVE_S) -> None:
    """Wait until no reassignment is under way.

    :raises PromiseBroken: one takes longer than a replica may take to catch up
    """
    await_until(
        cluster.reassignments,
        lambda under_way: not under_way,
        timeout_s=timeout_s,
        what="all reassignments to end",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def replicas_after(placement: Placement, before: Sequence[int]) -> tuple[int, ...]:
    """The replicas of a partition once no reassignment is under way: those from before, or those of the placement.

    All brokers are asked, since some hear later of the end.

    :raises PromiseBroken: brokers name other replicas, or disagree, for too long
    """
    cluster, partition = placement.partition.cluster, placement.partition
    await_no_reassignment(cluster)
    ends = [{tuple(before)}, {tuple(broker.id for broker in placement.brokers)}]
    [replicas] = await_until(
        lambda: {partition.describe(broker).replicas for broker in cluster.live_brokers()},
        lambda seen: seen in ends,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"all brokers to name the replicas of {partition}: {before}, or those of {placement}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    return replicas


def check_reassigning(cluster: Cluster, partition: Partition, *, failure: type[JbodError] = PromiseBroken) -> None:
    """A reassignment of the partition is under way, and its leader counts it in ReassigningPartitions.

    :param failure: the error if it has ended though its replicas could hardly be copied; Inconclusive where nothing
        proves that a throttle was in force before it began
    """
    under_way = cluster.reassignments()
    if (partition.topic, partition.index) not in {(each.topic, each.partition) for each in under_way}:
        raise failure(f"the reassignment of {partition} ended, though its new replicas could hardly be copied")
    leader = partition.leader()
    if leader.mbeans is not None:
        await_until(
            leader.mbeans.reassigning,
            timeout_s=timeouts.REQUEST_S,
            what=f"{leader} to count the reassignment of {partition} in ReassigningPartitions",
            retry_on=(NoAnswer,),
            failure=failure,
        )
    cluster.journal.write("reassignment.under_way", partition=str(partition))


OF_LEADER, OF_FOLLOWER = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
"""Configs of topics: the replicas that are throttled (KIP-73)."""
RATES = LEADER_RATE, FOLLOWER_RATE = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Configs of brokers, in bytes a second."""


def throttle_replication(*topics: Topic, rate: int, replicas: str = "*") -> None:
    """Throttle replicas of these topics to so many bytes a second on each broker, and wait until that is in force.

    A broker may apply a config together with a reassignment, and the config last. So this waits before one begins.

    :param replicas: the throttled replicas of each topic: all, or a list of ``partition:broker``
    """
    brokers = topics[0].cluster.brokers
    for topic in topics:  # first: a broker that knows its rate then knows this, too
        topic.configure(dict.fromkeys((OF_LEADER, OF_FOLLOWER), replicas))
    for broker in brokers:
        broker.configure(dict.fromkeys(RATES, str(rate)))
    for broker in brokers:
        check_settings(broker, dict.fromkeys(RATES, str(rate)))


def restart_after_healing(state: StateCheck, broker: Broker) -> None:
    """Restart a broker whose log dirs are all good again, and wait until all sources agree."""
    broker.stop()
    state.broker_gone(broker)
    start_after_healing(state, broker)


def start_after_healing(state: StateCheck, broker: Broker) -> None:
    """Start a broker that is down and whose log dirs are all good again, and wait until all sources agree."""
    broker.start()
    state.log_dirs_healed(broker)
    state.check(timeouts.RECOVERY_S)


def ends_as_known(cluster: Cluster, broker: Broker, deviation: Deviation, *, saying: str) -> bool:
    """Whether a broker that was just started ends, as builds with the deviation do; else it has joined.

    :param saying: a regular expression of the log line with which it ends
    :raises PromiseBroken: it does neither, ends for another reason, or does other than is known of the build
    """
    line = refuses_to_start(broker, saying=saying)
    seen = line.text if line else "it starts"
    return observe(deviation, cluster, deviates=line is not None, seen=seen)


def check_not_added(state: StateCheck, partition: Partition, broker: Broker) -> None:
    """A reassignment that was adding a replica on this broker was cancelled: the replica is gone.

    On builds with :data:`CANCELLED_REPLICA_STAYS`, only the broker and the disk still have it, and it is expected from
    here on.
    """
    has_it = f"has a {partition} in"
    counted = rf"the MBeans of {broker} say PartitionCount \d+ instead of \d+"
    besides = rf"the disk {has_it} \1 of {broker}(?:; {counted})?"
    stays = rf"last seen: \['{broker} {has_it} (\S+) of {broker}'\]; besides: {besides}$"
    with promised(state.cluster, unless=CANCELLED_REPLICA_STAYS, seen=stays) as outcome:
        state.check()
    if outcome.deviates:
        kept = broker.log_dir_of(partition.topic, partition.index)
        assert kept is not None, "all sources have just shown that it is there"
        state.replica_kept(partition, kept)
        state.check()


def replace_by_empty_disk(log_dir: LogDir) -> None:
    """Replace a dead disk by an empty one, as an operator does. Its node must be down.

    This is not a fault, and is never undone.
    """
    assert not log_dir.node.is_alive()
    log_dir.path.rename(log_dir.path.with_name(f"{log_dir.path.name}.old"))
    log_dir.node.make_dir(log_dir.path)
    log_dir.broker.journal.write("disk.replaced", log_dir=str(log_dir))


def format_new_dirs(cluster: Cluster, broker: Broker) -> None:
    """Run ``kafka-storage format --ignore-formatted``, which KRaft requires after a disk was replaced.

    :raises PromiseBroken: the tool refuses
    """
    code, said = _format(cluster, broker, "--ignore-formatted")
    if code:
        raise PromiseBroken(f"kafka-storage format --ignore-formatted failed on {broker} with exit code {code}: {said}")
    broker.journal.write("disk.formatted", broker=broker.id, said=said[-300:])


ALREADY_FORMATTED = r"already formatted.*--ignore-formatted"


def check_not_formatted(cluster: Cluster, broker: Broker) -> None:
    """``kafka-storage format`` refuses where one of the log dirs is formatted, says what to do, and formats nothing."""
    before = _formatted(broker)
    code, said = _format(cluster, broker)
    after = _formatted(broker)
    if not code or not re.search(ALREADY_FORMATTED, said, re.DOTALL) or before != after:
        raise PromiseBroken(
            f"kafka-storage format, where {before} were formatted, should refuse with /{ALREADY_FORMATTED}/: "
            f"it ended with exit code {code}, {after} are formatted, and its output is: {said}"
        )
    broker.journal.write("format.refused", broker=broker.id, said=said[-300:])


def _formatted(broker: Broker) -> list[str]:
    return [str(log_dir) for log_dir in broker.log_dirs if (log_dir.path / "meta.properties").exists()]


def _format(cluster: Cluster, broker: Broker, *options: str) -> tuple[int, str]:
    """Run ``kafka-storage format`` with the broker's settings: its exit code and its output."""
    assert isinstance(cluster.quorum, KRaftQuorum)
    cluster_id, config = cluster.quorum.cluster_id, str(broker.node.config)
    done = broker.node.run_tool(Tool.STORAGE, "format", *options, "-t", cluster_id, "-c", config)
    return done.returncode, (done.stderr or done.stdout).strip()


MOVE_THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
MOVES_FREE = {MOVE_THROTTLE: str(1 << 40)}
MOVES_HELD = {MOVE_THROTTLE: "1"}
AMPLE_RATE = 1 << 30
"""Bytes a second: a throttle that holds nothing up."""
# Broker settings for cases that hold moves. The throttle applies after the first fetch, which is up to 1 MB by default.
# A throttled move waits for the backoff, a second by default, and would fall behind its rate.
SMALL_FETCHES = {"replica.fetch.max.bytes": "65536", "replica.fetch.backoff.ms": "100"}
RARE_CHECKPOINTS = dict.fromkeys(
    (
        "replica.high.watermark.checkpoint.interval.ms",
        "log.flush.offset.checkpoint.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
    ),
    "600000",
)
"""Broker settings with which another access to a log dir meets an error before a checkpoint does."""
OFTEN_MS = 1000


@contextmanager
def moves_held(*brokers: Broker, rate: int = 1) -> Iterator[None]:
    """Inside the block, KIP-113's throttle holds moves between the brokers' log dirs.

    :param rate: bytes a second for each broker; with 1 a move stands still after one fetch
    """
    for broker in brokers:
        broker.configure({MOVE_THROTTLE: str(rate)})
    yield
    for broker in brokers:
        broker.configure(MOVES_FREE)


def begin_move(partition: Partition, log_dir: LogDir, *, copying: int | None = None, waits: bool = False) -> None:
    """Begin to move a replica into another log dir of its broker, and check that the move is under way.

    The future replica then has some of the log and not all of it.

    :param copying: see :func:`check_under_way`
    :param waits: the future replica may be empty, since another move is held or earlier moves have used up the rate. A
        thread moves one partition at a time (``LocalLeaderEndPoint.nextReadyPartition``)
    :raises PromiseBroken: the broker accepted the move and does not begin it
    :raises Inconclusive: the move has already ended, or no record was copied
    """
    partition.move_to(log_dir)
    await_begun(partition, log_dir)
    if not waits:
        await_copied(partition, log_dir)
    check_under_way(partition, log_dir, copying=copying)


def await_begun(partition: Partition, log_dir: LogDir) -> None:
    """Wait until the broker has the future replica in this log dir, or already the replica.

    :raises PromiseBroken: it has neither
    """
    find = functools.partial(log_dir.broker.find_replica, partition.topic, partition.index)

    def found() -> list[LogDir]:
        return [each[0] for each in (find(is_future=True), find()) if each is not None]

    await_until(
        found,
        lambda places: log_dir in places,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{log_dir.broker} to begin the move of {partition} into {log_dir}, which it accepted",
        retry_on=(NoAnswer,),
        watch=log_dir.broker.node.check_alive,
        failure=PromiseBroken,
    )


def await_copied(partition: Partition, log_dir: LogDir) -> None:
    """Wait until the future replica in this log dir has some records, or the move has ended.

    :raises PromiseBroken: nothing is copied
    """
    broker = log_dir.broker

    def copied() -> int | None:
        there = broker.log_dir_of(partition.topic, partition.index) == log_dir
        return len(future_log_bytes(partition, log_dir)) or (0 if there else None)

    seen = await_until(
        copied,
        lambda seen: seen is not None,
        timeout_s=timeouts.MOVE_S,
        what=f"some of {partition} to be copied into {log_dir}",
        retry_on=(NoAnswer, FileNotFoundError),
        watch=broker.node.check_alive,
        failure=PromiseBroken,
    )
    broker.journal.write("move.copied", partition=str(partition), to=str(log_dir), bytes=seen)


def check_under_way(partition: Partition, log_dir: LogDir, *, copying: int | None = None) -> None:
    """The move into the log dir has begun and has not ended.

    :param copying: the future replica must be fewer than so many records behind (default: any number)
    :raises Inconclusive: the move has not begun, has ended, or has copied less
    """

    def lag() -> int | None:
        future = log_dir.broker.find_replica(partition.topic, partition.index, is_future=True)
        return future[1].offset_lag if future is not None and future[0] == log_dir else None

    records = await_until(
        lag,
        lambda behind: behind is not None and 0 < behind < (copying or math.inf),
        timeout_s=timeouts.REQUEST_S,
        what=f"the move of {partition} into {log_dir} to be under way",
        retry_on=(NoAnswer,),
        failure=Inconclusive,
    )
    log_dir.broker.journal.write("move.under_way", partition=str(partition), to=str(log_dir), lag=records)


def check_high_watermark_kept(partition: Partition, log_dir: LogDir) -> None:
    """The broker writes the high watermark of a held future replica into the checkpoint of its log dir.

    A future replica that becomes current at a start begins at this offset (KIP-113, 3.).

    :raises PromiseBroken: it does not, though it must write the file twice a second
    """
    await_until(
        lambda: log_dir.offsets_in_checkpoint(HIGH_WATERMARKS),
        lambda offsets: str(partition) in offsets,
        timeout_s=timeouts.QUESTION_S,
        what=f"{HIGH_WATERMARKS} in {log_dir} to name {partition}, whose future replica is there",
        retry_on=(OSError, ValueError),  # the broker replaces the file meanwhile
        watch=log_dir.broker.node.check_alive,
        failure=PromiseBroken,
    )
    log_dir.broker.journal.write("move.high_watermark_kept", partition=str(partition), log_dir=str(log_dir))


def future_log_bytes(partition: Partition, log_dir: LogDir) -> bytes:
    """The bytes of the future replica's log in this log dir, as they are on disk."""
    return b"".join(path.read_bytes() for path in sorted(log_dir.path.glob(f"{partition}.*-future/*.log")))


def await_checkpoints(log_dir: LogDir, count: int) -> None:
    """Wait until the broker has written its high watermarks into this log dir ``count`` more times.

    A scenario that shows that something does not happen waits for this: the broker had the time for it, and worked.

    :raises PromiseBroken: it does not write them, which it must do twice a second
    """
    file = log_dir.path / HIGH_WATERMARKS
    for number in range(count):
        await_until(
            lambda: file.stat().st_mtime_ns,
            functools.partial(operator.ne, file.stat().st_mtime_ns),
            timeout_s=timeouts.QUESTION_S,
            what=f"{log_dir.broker} to write {file.name} in {log_dir}, time {number + 1} of {count}",
            watch=log_dir.broker.node.check_alive,
            failure=PromiseBroken,
        )


def check_nothing_acked(pair: Pair, topic: Topic, leader: Broker, *, since: datetime) -> None:
    """The leader of a too small ISR refuses a record with acks=all, and the pair's producer has got no ack since then.

    The producer's reports come late. So the time of its newest ack is compared, and not the number of its acks.

    :raises PromiseBroken: a record was acked, or refused with another error
    :raises Inconclusive: the leader does not answer, or writes no checkpoints, so this shows nothing
    """
    check_not_enough_replicas(topic, leader)
    # For longer than replica.lag.time.max.ms: a KRaft leader stops waiting for its followers then.
    await_checkpoints(topic[0].log_dir_on(leader), 12)
    acked_at = pair.progress.acked_at
    if acked_at is not None and acked_at > since:
        raise PromiseBroken(
            f"{leader} has fewer replicas in the ISR of {topic} than min.insync.replicas, and acked a record at "
            f"{acked_at.isoformat()}"
        )


ACKNOWLEDGEMENT_FAILED = r"Unexpected error handling \S*AssignmentResponseEvent(?s:.*)updateReassignmentState"
"""The log line of a KRaft broker that fails to handle the controller's acknowledgement of moves."""


def await_moved(partition: Partition, log_dir: LogDir, timeout_s: float = timeouts.MOVE_S) -> None:
    """Wait until the replica is in this log dir and the broker has no future replica of it (KIP-113).

    On builds whose broker loses an acknowledgement, this requests the move again, as an operator would.

    :raises PromiseBroken: the move does not end
    """
    broker = log_dir.broker
    wait = functools.partial(
        await_until,
        lambda: not_moved(partition, log_dir),
        lambda what: what is None,
        timeout_s=timeout_s,
        what=f"{partition} to be in {log_dir}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    try:
        wait()
    except PromiseBroken as error:
        if (line := broker.log.first(ACKNOWLEDGEMENT_FAILED)) is None:
            raise
        observe(MOVE_NEVER_ENDS, partition.cluster, deviates=True, seen=line.text, broken=error)
        partition.move_to(log_dir)
        wait()
    broker.journal.write("move.done", partition=str(partition), to=str(log_dir))


def not_moved(partition: Partition, log_dir: LogDir) -> str | None:
    """Why the move into this log dir has not ended; None if the replica is there and has no future replica."""
    find = functools.partial(log_dir.broker.find_replica, partition.topic, partition.index)
    here, coming = find(), find(is_future=True)
    if coming is not None:
        return f"its future replica in {coming[0]} is {coming[1].offset_lag} records behind"
    return None if here is not None and here[0] == log_dir else f"it is in {here and here[0]}"


def finish_move(state: StateCheck, partition: Partition, log_dir: LogDir) -> None:
    """Wait until a move has ended, and report it to ``state``.

    :raises PromiseBroken: it does not end
    """
    await_moved(partition, log_dir)
    state.moved(partition, log_dir)


def write_untracked_records(
    topic: Topic,
    count: int,
    *,
    size: int = 0,
    keys: int | None = None,
    into: int | None = None,
    to: Broker | None = None,
    age_s: float = 0,
) -> int:
    """Write records that are not in the history: the judge does not expect any of them. Returns their timestamp in ms.

    :param size: least size of each value in bytes
    :param keys: use so many different keys in turn; None: no keys
    :param into: the partition; None: all in turn
    :param to: write to this leader with acks=1, so that followers may miss the records (default: acks=all)
    :param age_s: the timestamp of the records is so many seconds ago
    :raises PromiseBroken: the broker refuses records, or does not answer in time
    :raises Inconclusive: this machine is too busy to say why they are not answered
    """
    bootstrap, acks = (topic.cluster.bootstrap, "all") if to is None else (to.bootstrap, "1")
    most = max(1_000_000, 2 * size)
    client = Producer({**bootstrap.librdkafka, "acks": acks, "batch.size": 16384, "message.max.bytes": most})
    timestamp_ms = round((now().timestamp() - age_s) * 1000)
    own_part, refused = OwnPart(topic.cluster, "take records", needs_all=False), Counter[str]()

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            refused[error.name()] += 1

    for number in range(count):
        value, key = f"untracked {number}".ljust(size), None if keys is None else str(number % keys)
        partition = number % len(topic) if into is None else into
        client.produce(topic.name, value, key, partition=partition, timestamp=timestamp_ms, on_delivery=note)
    left = client.flush(timeouts.PROGRESS_S)
    if refused:
        errors = ", ".join(f"{many} were refused with {error}" for error, many in refused.items())
        raise own_part.undone(f"of {count} records for {topic}, {errors}")
    if left:
        raise own_part.unserved(f"of {count} records for {topic}, {left} were not answered")
    return timestamp_ms


SERVED_ALONE = {"min.insync.replicas": "1"}
"""The configs of a topic whose leader acks records also when no other broker is left."""


def check_serves_alone(
    cluster: Cluster, workload: CaseWorkload, state: StateCheck, broker: Broker, topic: Topic
) -> None:
    """With all other brokers killed, this one leads the topic, and clients that know only this one get through.

    "Now validate that the previous leader can still serve replicas on the good log directories" (KIP-112's test plan).
    The others are started again afterwards, and ``state`` does not hear of it. So this is the last step before healing.
    """
    others = cluster.others(broker)
    with injected(*map(BrokerKilled, others)):
        state.broker_gone(*others)
        state.check()
        with workload.running(topic, via=broker) as pair:
            pair.await_progress(after=now())


@contextmanager
def brokers_down(state: StateCheck, *ends: Fault) -> Iterator[None]:
    """Inside the block, brokers are stopped or killed, and all sources agree; after it they are back in every ISR."""
    with injected(*ends):
        state.broker_gone(*(end.broker for end in ends))
        state.check()
        yield
    for end in ends:
        state.broker_back(end.broker)
    state.check(timeouts.RECOVERY_S)


@contextmanager
def rack_killed(state: StateCheck, rack: Sequence[Broker]) -> Iterator[None]:
    """Inside the block, all brokers of a rack are killed and every partition has a leader. After it they are back.

    :raises PromiseBroken: a partition has no leader, since that rack had all its replicas; or sources disagree
    """
    with brokers_down(state, *map(BrokerKilled, rack)):
        _check_leaders_expected(state)
        yield


def check_led(state: StateCheck) -> None:
    """All sources agree, and every partition has a leader."""
    state.check()
    _check_leaders_expected(state)


def _check_leaders_expected(state: StateCheck) -> None:
    """Every partition has a leader in the state that all sources have just agreed with."""
    unled = {f"{t}-{p}": [*each.replicas] for (t, p), each in state.partitions.items() if each.leader is None}
    if unled:
        raise PromiseBroken(f"no leader: {', '.join(f'{name} on brokers {ids}' for name, ids in unled.items())}")


@contextmanager
def flipped_while_down(state: StateCheck, flip: BitsFlipped) -> Iterator[None]:
    """Kill a broker, flip bits on its disk, and start it: it rebuilds the file. The block runs once it is back.

    :raises PromiseBroken: the broker loads the flipped bits, or sources disagree
    """
    broker = flip.broker
    with injected(BrokerKilled(broker)):
        state.broker_gone(broker)
        state.check()
        with injected(flip):
            broker.start()
            state.broker_back(broker)
            state.check(timeouts.RECOVERY_S)
            check_rebuilt(flip)
            yield


def make_leader(cluster: Cluster, state: StateCheck, broker: Broker) -> None:
    """Make this broker the leader of all its online replicas: the others are killed and started again, and follow it.

    A drain afterwards reads this broker's disks.
    """
    with brokers_down(state, *map(BrokerKilled, cluster.others(broker))):
        pass
