"""KIP-113's tools and protocol side by side: what one begins the others see, and all say what the disks show.

kafka-reassign-partitions is what operators move replicas with; kafka-log-dirs and DescribeLogDirs are where they look.
All of them are compared with the one model (:mod:`suites.sources`): with each other, and with the folders on disk.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.targets import follower_of, other_dir
from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.doors.admin import NewTopic
from harness.doors.tool_answers import describe_log_dirs
from harness.doors.wire import NoAnswer
from harness.errors import Inconclusive, PromiseBroken, ToolFailed
from harness.journal import now
from harness.log_dir import HIGH_WATERMARKS, LogDir
from harness.reassign import Placement, cancel, execute, generate, verify
from harness.runs.measure import Floors
from harness.topic import Partition, Topic
from harness.waiting import await_until
from harness.workload import CaseWorkload
from suites.checks import check_delivery, promised
from suites.deviations import EMPTIED_DIR_NAMED, GROWTH_NOT_CANCELLED, HALF_EXECUTED, NO_LOG_DIRS_OPTION
from suites.meanwhile import meanwhile
from suites.model import World
from suites.on_disk import check_checkpoints, check_no_remains
from suites.scenario import scenario
from suites.sources import log_dirs_tool
from suites.steps import (
    HOLDS_MOVES,
    MOVE_THROTTLE,
    await_reassigned,
    check_reassigning,
    check_under_way,
    finish_move,
    moves_held,
    reassign,
    replicas_after,
)

AMPLE = 1 << 30
LEAVES_LATE = {"log.segment.delete.delay.ms": "15000"}  # what a move leaves lies there while tools are asked
REPLICATION_THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
TRIES = 10
NOWHERE = "no-such-topic"
CROWD = 50  # partitions of each topic that keeps a broker busy
NO_FAULT = Floors(faults=0)


@scenario(
    "kip-113/tools-within",
    kip=113,
    plan="Scripts: kafka-reassign-partitions with log_dirs, kafka-log-dirs; on one broker",
    floors=NO_FAULT,
    deviations=(NO_LOG_DIRS_OPTION, EMPTIED_DIR_NAMED),
    overrides=HOLDS_MOVES,
)
def test_tools_within(cluster: Cluster, workload: CaseWorkload) -> None:
    """The tool begins a move with a throttle, shows it, cancels it with its throttle, and then carries it out."""
    orders = cluster.create_topic("orders")
    mover = follower_of(orders[0])
    here = orders[0].log_dir_on(mover)
    there = other_dir(here)
    world = World(cluster, orders)
    brokers = map(cluster.broker, orders[0].describe().replicas)
    placement = Placement(partition=orders[0], on=tuple(there if broker == mover else broker for broker in brokers))
    with workload.running(orders, record_bytes=1000) as pair:
        pair.await_count(500)
        world.learn(create_beside(cluster, mover, there))
        with moves_held(mover):  # the tool doesn't wait until the broker has heard of its throttle
            execute(cluster, placement, log_dirs_throttle=2)
            check_throttle(mover, "2")
            world.reassigning(orders[0])
            check_under_way(orders[0], there)
            world.moving(orders[0], there)
            world.check(also=[log_dirs_tool])
            check_says(cluster, placement, f"Reassignment of replica {orders[0]}-{mover.id} is still in progress.")
            check_asked_for(cluster, orders, here)
            check_lag_told(orders[0], there)
            mover.configure(LEAVES_LATE)
            cancel(cluster, placement)
            check_throttle(mover, None)
            finish_move(world, orders[0], here)
            with lying_there(orders[0], there):
                world.check(also=[log_dirs_tool])
            mover.configure(dict.fromkeys(LEAVES_LATE))
            where = f"from log dir {here.path} to {there.path}"
            check_says(cluster, placement, f"Partition {orders[0]} on {mover} is not being moved {where}.")
            execute(cluster, placement, log_dirs_throttle=AMPLE)
            check_throttle(mover, str(AMPLE))
            await_reassigned(cluster, world, placement, timeout_s=timeouts.MOVE_S)
            check_throttle(mover, None)
            world.check(also=[log_dirs_tool])
            named = rf"last seen: \[.{HIGH_WATERMARKS} in {here} names \['{orders[0]}'\] instead of \[\].\]$"
            with promised(cluster, unless=EMPTIED_DIR_NAMED, seen=named):
                check_checkpoints(cluster, {"orders"}, timeout_s=timeouts.REQUEST_S)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_throttle(broker: Broker, rate: str | None, *settings: str) -> None:
    """The broker's moves are throttled to this rate, as the tool was told, or no more.

    :param settings: those that the tool sets (default: :data:`MOVE_THROTTLE`)
    :raises PromiseBroken: they are not
    """
    wanted = dict.fromkeys(settings or (MOVE_THROTTLE,), rate)

    def seen() -> dict[str, str | None]:
        own = broker.admin.dynamic_configs(broker.id).own
        return {setting: own.get(setting) for setting in wanted}

    await_until(
        seen,
        lambda seen: seen == wanted,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the throttles of {broker} to be {wanted}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def check_lag_told(partition: Partition, log_dir: LogDir) -> None:
    """Of a copy that is held on its way into this log dir, kafka-log-dirs shows how far it is behind, as the protocol
    does just before and just after: it grows as the pair writes.

    :raises PromiseBroken: it shows another lag
    """
    cluster, broker = partition.cluster, log_dir.broker

    def by_protocol() -> int:
        found = broker.find_replica(partition.topic, partition.index, is_future=True)
        assert found is not None
        return found[1].offset_lag

    before = by_protocol()
    shown = describe_log_dirs(cluster.distribution, cluster.bootstrap, [broker.id], "--topic-list", partition.topic)
    after = by_protocol()
    told = [replica.offset_lag for state in shown[broker.id] for replica in state.replicas if replica.is_future]
    broker.journal.write("move.lag_told", partition=str(partition), protocol=[before, after], tool=told)
    if len(told) != 1 or not before <= told[0] <= after:
        raise PromiseBroken(
            f"kafka-log-dirs shows the copy of {partition} as {told} records behind, and it is by {before} to {after}"
        )


@contextmanager
def lying_there(partition: Partition, log_dir: LogDir) -> Iterator[None]:
    """What is left of a copy, marked for deletion, lies in this log dir before the block and after it: whoever looks
    meanwhile finds it there, and nobody is to tell of it as of a replica.

    :raises Inconclusive: it doesn't
    """
    left = [*log_dir.path.glob(f"{partition}.*-delete")]
    yield
    if not left or not all(folder.is_dir() for folder in left):
        raise Inconclusive(f"nothing of {partition} that is marked for deletion lay in {log_dir} all the while")
    log_dir.broker.journal.write("remains.seen", partition=str(partition), folders=[folder.name for folder in left])


def create_beside(cluster: Cluster, broker: Broker, log_dir: LogDir) -> Topic:
    """A topic that nobody asks Kafka's tools for, in this log dir of this broker: the other is to be empty."""
    beside = cluster.create_topic("beside")
    if beside[0].log_dir_on(broker) != log_dir:
        beside[0].move_to(log_dir)
    await_until(
        lambda: beside[0].log_dir_on(broker),
        lambda there: there == log_dir,
        timeout_s=timeouts.MOVE_S,
        what=f"{beside[0]} to be in {log_dir}",
    )
    return beside


def check_says(cluster: Cluster, placement: Placement, line: str) -> None:
    """kafka-reassign-partitions --verify says this one thing of what is not done.

    :raises PromiseBroken: it says something else
    """
    said = verify(cluster, placement)
    if said != [line]:
        raise PromiseBroken(f"kafka-reassign-partitions --verify says {said} instead of {line!r}")


def check_asked_for(cluster: Cluster, topic: Topic, log_dir: LogDir) -> None:
    """kafka-log-dirs shows the brokers and topics that it is asked for, and DescribeLogDirs the partitions; no others.

    :raises PromiseBroken: it shows something else
    """
    broker, topics = log_dir.broker, ("--topic-list", topic.name)
    ask = functools.partial(describe_log_dirs, cluster.distribution, cluster.bootstrap, [broker.id], *topics)
    seen = ask()
    shown = {(id, replica.topic) for id, states in seen.items() for state in states for replica in state.replicas}
    if shown != {(broker.id, topic.name)}:
        raise PromiseBroken(f"kafka-log-dirs shows {sorted(shown)}, and was asked for {topic} on {broker}")
    described = {
        (replica.topic, replica.partition, state.path)
        for state in broker.admin.describe_log_dirs((topic.name, 0), (NOWHERE, 0))
        for replica in state.replicas
        if not replica.is_future
    }
    if described != {(topic.name, 0, str(log_dir.path))}:
        raise PromiseBroken(f"DescribeLogDirs shows {sorted(described)}, and was asked for {topic[0]} in {log_dir}")
    with promised(cluster, unless=NO_LOG_DIRS_OPTION, seen="log-dirs is not a recognized option"):
        try:
            paths = [state.path for state in ask("--log-dirs", str(log_dir.path))[broker.id]]
        except ToolFailed as error:
            raise PromiseBroken(str(error)) from error
        if paths != [str(log_dir.path)]:
            raise PromiseBroken(f"kafka-log-dirs shows {paths}, and was asked for {log_dir}")


@scenario(
    "kip-113/tools-across",
    kip=113,
    plan='Scripts: kafka-reassign-partitions with log_dirs and "any"; across brokers',
    brokers=4,
    floors=NO_FAULT,
    deviations=(HALF_EXECUTED,),
    overrides=HOLDS_MOVES,  # as its like have them
)
def test_tools_across(cluster: Cluster, workload: CaseWorkload) -> None:
    """Replicas go elsewhere, into a log dir or any, as the tool proposes, or in a hurry; a bad order does nothing."""
    orders, beside = cluster.create_topic("orders"), cluster.create_topic("beside", partitions=2)
    world = World(cluster, orders, beside)
    with workload.running(orders) as pair:
        coming, staying = someone_else(cluster, orders[0])
        for place in coming.log_dirs:  # whichever it would have taken by itself
            placement = Placement(partition=orders[0], on=(place, *staying))
            execute(cluster, placement, throttle=AMPLE, log_dirs_throttle=AMPLE)
            check_throttle(coming, str(AMPLE), MOVE_THROTTLE, *REPLICATION_THROTTLES)
            await_reassigned(cluster, world, placement, timeout_s=timeouts.MOVE_S)
            for broker in cluster.brokers:
                check_throttle(broker, None, MOVE_THROTTLE, *REPLICATION_THROTTLES)
        pair.await_progress(after=now())
        chosen = cluster.brokers[1:]
        current, proposed = generate(cluster, [beside], chosen)
        for placement in current:
            check_current(world, placement)
        if len(current) != len(beside) or len(proposed) != len(beside):
            raise PromiseBroken(
                f"--generate shows {len(current)} and proposes {len(proposed)} of {len(beside)} partitions"
            )
        if any(len(set(placement.brokers) & set(chosen)) != 3 for placement in proposed):
            raise PromiseBroken(f"--generate proposes {', '.join(map(str, proposed))} for 3 replicas on {chosen}")
        reassign(cluster, world, *proposed)
        check_impatient(cluster, world, beside[0])
        coming, staying = someone_else(cluster, beside[0])
        nowhere = LogDir(coming, Path("/nowhere"))
        now_on = map(cluster.broker, check_not_executed(Placement(partition=beside[0], on=(nowhere, *staying))))
        world.reassigned(beside[0], [beside[0].log_dir_on(broker) for broker in now_on])
        world.check(also=[log_dirs_tool])
        pair.await_progress(after=now())
    check_no_remains(cluster, {"orders", "beside"})
    check_delivery(workload)


def someone_else(cluster: Cluster, partition: Partition) -> tuple[Broker, list[Broker]]:
    """The one broker that has no replica of the partition, and all of those that have one but the first."""
    replicas = [cluster.broker(id) for id in partition.describe().replicas]
    [coming] = cluster.others(*replicas)
    return coming, replicas[1:]


def check_impatient(cluster: Cluster, world: World, partition: Partition) -> None:
    """With ``--timeout 0`` the tool tells a log dir once, and gives up where the replica is yet to come; what it has
    told stands: the replica comes into this log dir.

    So that it is yet to come, its broker has others to make first. That it was asked too early is in its log.

    :raises PromiseBroken: the tool asks again, or does not give up, or ends with another error, or the replica comes
        elsewhere
    :raises Inconclusive: the replica was always there before it asked
    """
    for _ in range(TRIES):
        coming, staying = someone_else(cluster, partition)
        placement = Placement(partition=partition, on=(coming.log_dirs[-1], *staying))
        since = now()
        with crowded(cluster, coming):
            said = what_it_says(cluster, placement, timeout_ms=0)
        await_reassigned(cluster, world, placement, timeout_s=timeouts.MOVE_S)
        too_early = sum(
            f"Unable to alter log dirs for {partition} " in line.text for line in coming.log.lines(since=since)
        )
        cluster.journal.write("reassignment.impatient", partition=str(partition), too_early=too_early, said=said)
        if check_gave_up(said, too_early):
            return
    raise Inconclusive(f"{TRIES} times, {partition} was already there when kafka-reassign-partitions told its log dir")


def what_it_says(cluster: Cluster, placement: Placement, *, timeout_ms: int | None = None) -> str | None:
    """Why kafka-reassign-partitions ends with an error; None where it doesn't."""
    try:
        execute(cluster, placement, timeout_ms=timeout_ms)
    except ToolFailed as error:
        return str(error)
    return None


def check_gave_up(said: str | None, too_early: int) -> bool:
    """Whether the tool with ``--timeout 0`` was put to the test and gave up.

    :param said: why it ended with an error
    :param too_early: how often it was told that the replica is yet to come
    :raises PromiseBroken: it was, and didn't; or it gave up for another reason
    """
    gave_up = said is not None and "Timed out before log directory move" in said
    if too_early > 1 or gave_up != bool(too_early) or (said and not gave_up):
        raise PromiseBroken(
            f"kafka-reassign-partitions --timeout 0 was told {too_early} times that the replica is yet to come, and "
            f"should give up at the first; it said {said or 'that all is well'}"
        )
    return gave_up


@contextmanager
def crowded(cluster: Cluster, broker: Broker) -> Iterator[None]:
    """Inside the block the broker has replicas to make, which nobody needs: what it is told to make next comes later.

    Making them, it answers no order to move one (``ReplicaManager.replicaStateChangeLock``), but between two lots.
    """

    def one_more() -> None:
        new = NewTopic(
            name=f"crowd-{uuid.uuid4().hex[:8]}", replicas=1, assignment={index: [broker.id] for index in range(CROWD)}
        )
        cluster.create_topics(new)

    with meanwhile(*[one_more] * 3, every_s=0) as errors:
        yield
    if errors:
        raise errors[0]


def check_current(world: World, placement: Placement) -> None:
    """What the tool takes for the present assignment is the model's; not every build's names the log dirs.

    :raises PromiseBroken: it isn't
    """
    partition = placement.partition
    wanted = world.expected(partition.topic, partition.index).replicas
    wrong = [
        place
        for place in placement.on
        if isinstance(place, LogDir) and (partition.topic, partition.index) not in world.replicas_in(place)
    ]
    if tuple(broker.id for broker in placement.brokers) != wanted or wrong:
        raise PromiseBroken(f"--generate shows {placement} instead of {wanted}, and wrong are {wrong}")


def check_not_executed(placement: Placement) -> tuple[int, ...]:
    """An order that a broker refuses is refused as a whole; returns who has the replicas afterwards.

    :raises PromiseBroken: the tool says nothing of it, or some of it is carried out (not on builds known to do it)
    """
    cluster, before = placement.partition.cluster, placement.partition.describe().replicas
    said = what_it_says(cluster, placement)
    if said is None or "Failed to alter dir" not in said:
        raise PromiseBroken(f"{placement} can't be carried out, and kafka-reassign-partitions says {said or 'nothing'}")
    after = replicas_after(placement, before)
    half = f"went from {before} to {tuple(broker.id for broker in placement.brokers)}"
    with promised(cluster, unless=HALF_EXECUTED, seen=f"{re.escape(half)}$"):
        if after != before:
            raise PromiseBroken(f"{placement} was refused, and the replicas went from {before} to {after}")
    return after


@scenario(
    "kip-113/growth-cancelled",
    kip=455,
    plan="kafka-reassign-partitions --cancel",
    floors=NO_FAULT,
    deviations=(GROWTH_NOT_CANCELLED,),
    overrides=HOLDS_MOVES,
)
def test_growth_cancelled(cluster: Cluster, workload: CaseWorkload) -> None:
    """A partition is on its way to a replica more, held by a throttle, and the tool cancels it: no replica is added."""
    orders = cluster.create_topic("orders", replicas=2)
    world = World(cluster, orders)
    has = [cluster.broker(id) for id in orders[0].describe().replicas]
    [more] = cluster.others(*has)
    placement = Placement(partition=orders[0], on=(*has, more))
    with workload.running(orders, record_bytes=1000) as pair:
        pair.await_count(500)
        execute(cluster, placement, throttle=1)
        check_reassigning(cluster, orders[0])
        cancel(cluster, placement)
        before = tuple(broker.id for broker in has)
        on = replicas_after(placement, before)
        grown = f"on {tuple(broker.id for broker in placement.brokers)}"
        with promised(cluster, unless=GROWTH_NOT_CANCELLED, seen=f"{re.escape(grown)}$"):
            if on != before:
                raise PromiseBroken(f"{placement} was cancelled, and the replicas are on {on}")
        pair.await_progress(after=now())
    world.reassigned(orders[0], [orders[0].log_dir_on(cluster.broker(id)) for id in on])
    world.check()
    check_no_remains(cluster, {"orders"})
    check_delivery(workload)
