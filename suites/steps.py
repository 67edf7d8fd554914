"""What several suites do in the same words: steps of a scenario that are claims in themselves."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Producer

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import LogDirFault
from faults.segment import BitsFlipped
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import HIGH_WATERMARKS, LogDir
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.cluster.quorum.zookeeper import LogDirEvents, ZooKeeperQuorum
from harness.cluster.reassign import Placement, execute, verify
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Tool
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_noticed, check_notified, check_rebuilt, promised, refuses_to_start
from suites.deviations import CANCELLED_COPY_STAYS, MOVE_NEVER_ENDS, UNWRITABLE_ENDS_START
from suites.observations import metadata_log
from suites.observing import observe
from suites.on_disk import check_no_remains
from suites.state_check import World

UNWRITABLE = r"Failed to write meta\.properties due to"
"""What a broker says that ends as it starts, since it can't write to a log dir."""

ALL_DIRS_FAILED = r"Shutdown broker because all log dirs in .* have failed"
NO_DIR_USABLE = r"Shutdown broker because none of the specified log dirs"
"""What a broker says that ends for want of a good log dir: at run time, and as it starts."""

TWICE = r"Duplicate log directories for \S+ are found in both"
"""What a broker says that refuses to start since it has a replica in two of its log dirs."""


@contextmanager
def log_dirs_failed(world: World, *faults: LogDirFault, told_all: bool = True) -> Iterator[LogDirFault]:
    """Log dirs have failed inside the block: all sources say what the model then does, and each broker that it noticed.

    At its end they say so still: nothing came back by itself, and nobody else leads what nothing has touched. Yields
    the first fault.

    :param told_all: the model is told of all that happens in the block; else it is not compared again
    """
    with injected(*faults):
        for fault in faults:
            world.log_dir_failed(fault.log_dir)
        world.check()
        for fault in faults:
            check_noticed(fault)
        yield faults[0]
        if told_all:
            world.check()


def stays_offline(world: World, log_dir: LogDir) -> None:
    """A log dir that is good again stays offline until its broker is restarted (KIP-112, "4. … fix the disk").

    :raises PromiseBroken: it doesn't, while its broker writes into its other log dirs what it wrote there, too
    :raises Inconclusive: the broker writes nothing, so that nothing is shown
    """
    for other in log_dir.broker.log_dirs:
        if other not in world.failed:
            await_checkpoints(other, 2)
    world.check()


def check_misses_a_leader(world: World, lone: Topic) -> None:
    """Some partition of a topic of one replica has no leader now.

    :raises Inconclusive: none of them was in a log dir that failed
    """
    if all(world.expected(lone.name, partition.index).leader for partition in lone.partitions):
        raise Inconclusive(f"no failed log dir holds any of {lone}; nobody would miss a leader")


@contextmanager
def notifications(cluster: Cluster, victim: Broker) -> Iterator[LogDirEvents | None]:
    """ZooKeeper mode: inside the block the broker, and no other, tells the controller once that a log dir failed."""
    if not isinstance(cluster.quorum, ZooKeeperQuorum):
        yield None
        return
    with cluster.quorum.log_dir_events() as events:
        yield events
        check_notified(events, victim)


def two_dirs(cluster: Cluster) -> Topic:
    """A topic of two partitions, of which every broker has one in each of its log dirs.

    So one is in the log dir that fails and the other beside it, which must not be touched.

    :raises Inconclusive: some log dir has neither
    """
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    for broker in cluster.brokers:
        if len({partition.log_dir_on(broker) for partition in orders.partitions}) != len(broker.log_dirs):
            raise Inconclusive(f"{broker} has both partitions of {orders} in one log dir: nothing lies beside one")
    return orders


def reassign(cluster: Cluster, world: World, *placements: Placement, timeout_s: float = timeouts.MOVE_S) -> None:
    """Replicas are moved with Kafka's own tool, which is asked until it says that all are where they should be.

    Afterwards all sources say so too, and no broker has a second copy of anything, or remains of one.

    :raises PromiseBroken: they did not come there in time; with the tool's words
    """
    execute(cluster, *placements)
    await_reassigned(cluster, world, *placements, timeout_s=timeout_s)


def await_reassigned(cluster: Cluster, world: World, *placements: Placement, timeout_s: float) -> None:
    """What was begun with :func:`harness.cluster.reassign.execute` comes to its end, as :func:`reassign` has it."""
    await_until(
        lambda: verify(cluster, *placements),
        lambda unfinished: not unfinished,
        timeout_s=timeout_s,
        what=f"kafka-reassign-partitions --verify to say that all is done: {'; '.join(map(str, placements))}",
        failure=PromiseBroken,
    )
    check_there(placements)
    for placement in placements:
        partition = placement.partition
        chosen = [place if isinstance(place, LogDir) else partition.log_dir_on(place) for place in placement.on]
        world.reassigned(partition, chosen)
    world.check(also=[metadata_log])
    check_no_remains(cluster, {placement.partition.topic for placement in placements})


def check_there(placements: Sequence[Placement]) -> None:
    """Where log dirs were named the replicas are there, and no copy is on its way: now, not soon.

    :raises PromiseBroken: one is not there, though it was said to be
    """
    for partition, log_dir in ((each.partition, place) for each in placements for place in each.on):
        if isinstance(log_dir, LogDir) and (differs := not_moved(partition, log_dir)):
            raise PromiseBroken(f"kafka-reassign-partitions said that {partition} was in {log_dir}: {differs}")


def reassign_over_the_wire(world: World, partition: Partition, *brokers: Broker) -> None:
    """A partition is moved to these brokers as clients ask for it (KIP-455), which ends; all sources say so."""
    reassign_together(world, Placement(partition=partition, on=brokers))


def reassign_together(world: World, *placements: Placement) -> None:
    """Several at once, likewise."""
    for placement in placements:
        world.cluster.reassign(placement.partition, placement.brokers)
    await_no_reassignment(world.cluster)
    for placement in placements:
        chosen = [placement.partition.log_dir_on(broker) for broker in placement.brokers]
        world.reassigned(placement.partition, chosen)
    world.check(also=[metadata_log])


def await_no_reassignment(cluster: Cluster) -> None:
    """No reassignment is under way any more.

    :raises PromiseBroken: one goes on for longer than a replica may take to catch up
    """
    await_until(
        cluster.reassignments,
        lambda under_way: not under_way,
        timeout_s=timeouts.MOVE_S,
        what="all reassignments to end",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def replicas_after(placement: Placement, before: Sequence[int]) -> tuple[int, ...]:
    """Who has the replicas once no reassignment is under way: those from before, or those of a placement.

    A broker may be told last of what has ended, so all are asked.

    :raises PromiseBroken: a broker names others for longer than it may take to be told, or not all name the same
    """
    cluster, partition = placement.partition.cluster, placement.partition
    await_no_reassignment(cluster)
    ends = [{tuple(before)}, {tuple(broker.id for broker in placement.brokers)}]
    [replicas] = await_until(
        lambda: {partition.describe(broker).replicas for broker in cluster.live_brokers()},
        lambda told: told in ends,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"all brokers to name the replicas of {partition}: {before}, or those of {placement}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    return replicas


def check_reassigning(cluster: Cluster, partition: Partition) -> None:
    """A reassignment of the partition has not come to its end.

    :raises Inconclusive: it has, so that its throttle held nothing
    """
    under_way = cluster.reassignments()
    if (partition.topic, partition.index) not in {(each.topic, each.partition) for each in under_way}:
        raise Inconclusive(f"{partition} was reassigned in spite of a throttle of a byte a second")
    cluster.journal.write("reassignment.under_way", partition=str(partition))


def restart_after_healing(world: World, broker: Broker) -> None:
    """A broker, all of whose log dirs are good again, is restarted, and all sources say what the model then does."""
    broker.stop()
    world.broker_gone(broker)
    started_healed(world, broker)


def started_healed(world: World, broker: Broker) -> None:
    """The same of one that is down, as the model knows."""
    broker.start()
    world.log_dirs_back(broker)
    world.check(timeouts.RECOVERY_S)


def ends_unwritable(cluster: Cluster, broker: Broker) -> bool:
    """Whether a broker that was started just now, with a log dir that it can read and not write to, ends by itself;
    else it has joined the cluster.

    :raises PromiseBroken: it does neither; it ends for another reason; or it is not what is known of the build
    """
    line = refuses_to_start(broker, exit_code=1, saying=UNWRITABLE)
    seen = line.text if line else "it starts"
    return observe(UNWRITABLE_ENDS_START, cluster, deviates=line is not None, seen=seen)


def check_not_added(world: World, partition: Partition, broker: Broker) -> None:
    """A reassignment was cancelled that was adding a replica on this broker: it is gone, and all sources agree.

    On builds known to keep it (:data:`CANCELLED_COPY_STAYS`), the broker and the disk say that it is there, all else
    is right, and from here on the model has it so.
    """
    has_it = f"has a {partition} in"
    stays = rf"last seen: \['{broker} {has_it} (\S+) of {broker}'\]; besides: the disk {has_it} \1 of {broker}$"
    with promised(world.cluster, unless=CANCELLED_COPY_STAYS, seen=stays) as outcome:
        world.check()
    if outcome.deviates:
        kept = broker.log_dir_of(partition.topic, partition.index)
        assert kept is not None, "all sources have just said that it is there"
        world.kept(partition, kept)
        world.check()


def replace_by_empty_disk(log_dir: LogDir) -> None:
    """What an operator does with a dead disk: there is an empty one in its place afterwards. Its broker must be down.

    No fault, and never undone: the old disk is gone.
    """
    assert not log_dir.broker.is_alive
    log_dir.path.rename(log_dir.path.with_name(f"{log_dir.path.name}.old"))
    log_dir.broker.node.make_dir(log_dir.path)
    log_dir.broker.journal.write("disk.replaced", log_dir=str(log_dir))


def format_new_dirs(cluster: Cluster, broker: Broker) -> None:
    """``kafka-storage format --ignore-formatted``, which KRaft asks for after a disk was replaced.

    :raises PromiseBroken: it refuses
    """
    code, said = _format(cluster, broker, "--ignore-formatted")
    if code:
        raise PromiseBroken(f"kafka-storage format --ignore-formatted: {said}")
    broker.journal.write("disk.formatted", broker=broker.id, said=said[-300:])


ALREADY_FORMATTED = r"already formatted.*--ignore-formatted"


def check_not_formatted(cluster: Cluster, broker: Broker) -> None:
    """``kafka-storage format`` without ``--ignore-formatted`` refuses where one of the log dirs is formatted, says why
    and what to do, and formats no other.

    :raises PromiseBroken: it doesn't
    """
    before = _formatted(broker)
    code, said = _format(cluster, broker)
    after = _formatted(broker)
    if not code or not re.search(ALREADY_FORMATTED, said, re.DOTALL) or before != after:
        raise PromiseBroken(
            f"kafka-storage format, where {before} were formatted: exit code {code}, and now {after} are; "
            f"it should refuse, and say /{ALREADY_FORMATTED}/; it said: {said}"
        )
    broker.journal.write("format.refused", broker=broker.id, said=said[-300:])


def _formatted(broker: Broker) -> list[str]:
    return [str(log_dir) for log_dir in broker.log_dirs if (log_dir.path / "meta.properties").exists()]


def _format(cluster: Cluster, broker: Broker, *options: str) -> tuple[int, str]:
    """``kafka-storage format`` of all that the broker's settings name: its exit code, and what it said."""
    assert isinstance(cluster.quorum, KRaftQuorum)
    cluster_id, config = cluster.quorum.cluster_id, str(broker.node.config)
    done = broker.node.run_tool(Tool.STORAGE, "format", *options, "-t", cluster_id, "-c", config)
    return done.returncode, (done.stderr or done.stdout).strip()


MOVE_THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
FREE = {MOVE_THROTTLE: str(1 << 40)}
HELD = {MOVE_THROTTLE: "1"}
AMPLE = 1 << 30
"""Bytes a second, by which nothing is held up."""
# Broker settings for cases that hold moves: one is throttled after its first fetch, which may take 1 MB by default; and
# a throttled one looks again after this long, a second by default, in which it would fall behind its rate.
HOLDS_MOVES = {"replica.fetch.max.bytes": "65536", "replica.fetch.backoff.ms": "100"}


@contextmanager
def moves_held(*brokers: Broker, rate: int = 1) -> Iterator[None]:
    """Moves between the brokers' log dirs are throttled inside the block, by KIP-113's throttle.

    :param rate: bytes a second, of each broker; with 1 they stand still after one fetch each
    """
    for broker in brokers:
        broker.configure({MOVE_THROTTLE: str(rate)})
    yield
    for broker in brokers:
        broker.configure(FREE)


def begin_move(partition: Partition, log_dir: LogDir, *, copying: int | None = None, waits: bool = False) -> None:
    """Begin to move a replica into another log dir of its broker, and see that the move is under way: the copy has some
    of the log in it, and not yet all.

    :param copying: as :func:`check_under_way` has it
    :param waits: it may wait with an empty copy: another move of the broker is held, and a thread moves one partition
        at a time (``LocalLeaderEndPoint.nextReadyPartition``); or earlier moves have used up what may be copied
    :raises PromiseBroken: the broker said that it would, and does nothing
    :raises Inconclusive: the move is already done, or no record was copied
    """
    partition.move_to(log_dir)
    await_begun(partition, log_dir)
    if not waits:
        await_copied(partition, log_dir)
    check_under_way(partition, log_dir, copying=copying)


def await_begun(partition: Partition, log_dir: LogDir) -> None:
    """The broker that was told to move a replica into this log dir has a copy of it there, or all of it.

    :raises PromiseBroken: it hasn't
    """
    find = functools.partial(log_dir.broker.find_replica, partition.topic, partition.index)

    def found() -> list[LogDir]:
        return [each[0] for each in (find(is_future=True), find()) if each is not None]

    await_until(
        found,
        lambda places: log_dir in places,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{log_dir.broker} to begin the move of {partition} into {log_dir}, as it said that it would",
        retry_on=(NoAnswer,),
        watch=log_dir.broker.node.check_alive,
        failure=PromiseBroken,
    )


def await_copied(partition: Partition, log_dir: LogDir) -> None:
    """Some of a replica that is on its way into this log dir has come there, or all of it.

    :raises Inconclusive: nothing comes
    """
    broker = log_dir.broker

    def copied() -> int | None:
        there = broker.log_dir_of(partition.topic, partition.index) == log_dir
        return len(copy_of(partition, log_dir)) or (0 if there else None)

    seen = await_until(
        copied,
        lambda seen: seen is not None,
        timeout_s=timeouts.REQUEST_S,
        what=f"some of {partition} to be copied into {log_dir}",
        retry_on=(NoAnswer, FileNotFoundError),
        watch=broker.node.check_alive,
        failure=Inconclusive,
    )
    broker.journal.write("move.copied", partition=str(partition), to=str(log_dir), bytes=seen)


def check_under_way(partition: Partition, log_dir: LogDir, *, copying: int | None = None) -> None:
    """The move into the log dir has begun and has not come to its end, so that what happens now happens amid it.

    :param copying: some of the log's last so many records have been copied by now (default: perhaps none of any)
    :raises Inconclusive: it is not so
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


def copy_of(partition: Partition, log_dir: LogDir) -> bytes:
    """What a move under way has brought into the log dir so far: the bytes of the copy's log, as they are on disk."""
    return b"".join(path.read_bytes() for path in sorted(log_dir.path.glob(f"{partition}.*-future/*.log")))


def await_checkpoints(log_dir: LogDir, count: int) -> None:
    """The broker goes on working: it writes its high watermarks into this log dir so many times more.

    :raises Inconclusive: it doesn't, so that what it doesn't do either meanwhile shows nothing
    """
    file = log_dir.path / HIGH_WATERMARKS
    for number in range(count):
        await_until(
            lambda: file.stat().st_mtime_ns,
            functools.partial(operator.ne, file.stat().st_mtime_ns),
            timeout_s=timeouts.REQUEST_S,
            what=f"{log_dir.broker} to write {file.name} in {log_dir}, the {number + 1}. of {count} times",
            failure=Inconclusive,
        )


ACKNOWLEDGEMENT_FAILED = r"Unexpected error handling \S*AssignmentResponseEvent(?s:.*)updateReassignmentState"
"""What a KRaft broker logs that fails to handle the controller's acknowledgement of moves."""


def await_moved(partition: Partition, log_dir: LogDir, timeout_s: float = timeouts.MOVE_S) -> None:
    """The replica is in this log dir, and no future replica of it is in any of the broker's (KIP-113).

    On builds whose broker loses an acknowledgement the move is asked for again, as an operator would.

    :raises PromiseBroken: it doesn't get there
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
    """Where the replica or a copy of it is instead of in this log dir alone; None where it is there alone."""
    find = functools.partial(log_dir.broker.find_replica, partition.topic, partition.index)
    here, coming = find(), find(is_future=True)
    if coming is not None:
        return f"its copy in {coming[0]} is {coming[1].offset_lag} records behind"
    return None if here is not None and here[0] == log_dir else f"it is in {here and here[0]}"


def finish_move(world: World, partition: Partition, log_dir: LogDir) -> None:
    """A move that was begun comes to its end, and the model knows.

    :raises PromiseBroken: it doesn't
    """
    await_moved(partition, log_dir)
    world.moved(partition, log_dir)


def write_untracked_records(
    topic: Topic,
    count: int,
    *,
    size: int = 0,
    keys: int | None = None,
    into: int | None = None,
    to: Broker | None = None,
) -> None:
    """Records that no producer of the run sent: whoever is handed one of them later was handed what should be gone.

    :param size: bytes of each value, at least
    :param keys: how many different keys they have in turn; None: no keys
    :param into: the partition; None: all in turn
    :param to: the leader, if it alone is to have them, acked before any follower does (default: all, acked by all)
    """
    bootstrap, acks = (topic.cluster.bootstrap, "all") if to is None else (to.bootstrap, "1")
    client = Producer({"bootstrap.servers": bootstrap, "acks": acks, "batch.size": 16384})
    for number in range(count):
        value, key = f"stranger {number}".ljust(size), None if keys is None else str(number % keys)
        client.produce(topic.name, value, key, partition=number % len(topic) if into is None else into)
    left = client.flush(timeouts.PROGRESS_S)
    if left:
        raise Inconclusive(f"{left} of {count} records could not be written to {topic}")


def check_serves_alone(cluster: Cluster, workload: CaseWorkload, world: World, broker: Broker, topic: Topic) -> None:
    """With all other brokers killed, this one leads the topic, and clients that know no other get through.

    "Now validate that the previous leader can still serve replicas on the good log directories" (KIP-112's test plan).
    The others are started again afterwards; the model goes on without them, so this is the last step before healing.
    """
    others = cluster.others(broker)
    with injected(*map(BrokerKilled, others)):
        world.broker_gone(*others)
        world.check()
        with workload.running(topic, via=broker) as pair:
            pair.await_progress(after=now())


@contextmanager
def rack_killed(world: World, rack: Sequence[Broker]) -> Iterator[None]:
    """All brokers of a rack are killed, and every partition is led; after the block they are back.

    :raises PromiseBroken: nobody leads one, since all its replicas were in that rack; or as :meth:`World.check` has it
    """
    with injected(*map(BrokerKilled, rack)):
        world.broker_gone(*rack)
        check_led(world)
        yield
    for broker in rack:
        world.broker_back(broker)
    world.check(timeouts.RECOVERY_S)


def check_led(world: World) -> None:
    """All sources agree with the model, and in it every partition is led.

    :raises PromiseBroken: one isn't
    """
    world.check()
    unled = {f"{t}-{p}": [*each.replicas] for (t, p), each in world.partitions.items() if each.leader is None}
    if unled:
        raise PromiseBroken(f"nobody leads {', '.join(f'{name} on brokers {ids}' for name, ids in unled.items())}")


@contextmanager
def rotten(world: World, flip: BitsFlipped) -> Iterator[None]:
    """A broker is killed, this rots on its disk while it is down, and it makes it anew when it starts: inside the block
    it is back.

    :raises PromiseBroken: it believes what it finds; or as :meth:`World.check` has it
    """
    broker = flip.broker
    with injected(BrokerKilled(broker)):
        world.broker_gone(broker)
        world.check()
        with injected(flip):
            broker.start()
            world.broker_back(broker)
            world.check(timeouts.RECOVERY_S)
            check_rebuilt(flip)
            yield


def make_leader(cluster: Cluster, world: World, broker: Broker) -> None:
    """Let this broker lead all that it has on good log dirs: the others are killed and started again, and follow it.

    What is drained afterwards is what is on this broker's disks.
    """
    others = cluster.others(broker)
    with injected(*map(BrokerKilled, others)):
        world.broker_gone(*others)
        world.check()
    for other in others:
        world.broker_back(other)
    world.check(timeouts.RECOVERY_S)
