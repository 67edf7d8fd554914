"""Steps that scenarios of several suites share. Many of them check what they did."""

from __future__ import annotations

import functools
import operator
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
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
    refuses_to_start,
)
from suites.followers_behind import injected_ahead
from suites.observing import observe
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
def flipped_while_down(
    state: StateCheck, flip: BitsFlipped, end: Callable[[Broker], Fault] = BrokerKilled
) -> Iterator[None]:
    """Kill a broker, flip bits on its disk, and start it: it rebuilds the file. The block runs once it is back.

    :param end: how the broker ends
    :raises PromiseBroken: the broker loads the flipped bits, or sources disagree
    """
    broker = flip.broker
    with injected(end(broker)):
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
