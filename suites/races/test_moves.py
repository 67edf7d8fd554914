"""Holds threads of a broker while a replica moves between its log dirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from faults.base import injected
from faults.broker import BrokerKilled
from faults.held import Held
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of, other_dir
from harness.cluster.cluster import Cluster
from harness.cluster.holds import Hold, Who
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import AwaitTimeout, Inconclusive, PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.versions import Mode, VersionRange
from harness.timeouts import MOVE_S, REQUEST_S
from harness.waiting import await_until
from suites.checks import check_logged, promised
from suites.deviations import (
    CORRECTED_LOG_DIR_NOT_LED,
    FOLLOWER_STOPS,
    MOVED_BEFORE_THROTTLE,
    MOVES_STOP,
    OLD_LOG_DIR_REPORTED,
    PROMOTED_BEHIND,
)
from suites.leadership import await_active, await_end, await_offline, elect, lead_again
from suites.moves import SMALL_FETCHES, await_moved, begin_move, moves_held
from suites.observing import observe
from suites.on_disk import check_not_created_again, segment_files
from suites.scenario import scenario
from suites.steps import await_replica, leave_future_replica_alone, write_untracked_records

QUEUED_S = 2.0
"""The time in which a broker applies the controller's change, and queues its own report: some 20 ms. On a crowded
machine it is four times as long, which is as long as a hold may last."""
SWAPPED_S = 1.5
"""A move of a megabyte takes less, if nothing holds it. On a crowded machine it is four times as long, which is still
less than a hold may last."""


@scenario(
    "races/moved-before-throttle",
    kip=113,
    plan="2. Complete replica data movement: the throttle holds a move also while its broker starts",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.7.0"),
    judged=False,
    deviations=(MOVED_BEFORE_THROTTLE,),
    holds=True,
    overrides=SMALL_FETCHES,
)
def test_moved_before_throttle(cluster: Cluster) -> None:
    """A broker restarts with a throttled move, and is slow to apply its configuration: the move waits for it."""
    orders = cluster.create_topic("orders", replicas=3)
    write_untracked_records(orders, 1000, size=1000)
    mover = follower_of(orders[0])
    there = other_dir(orders[0].log_dir_on(mover))
    with moves_held(mover):
        begin_move(orders[0], there)
        mover.stop()
        with injected(Held(cluster, mover, "configs-applied", by=mover.start)):
            swapped = happens_in_time((there.path / "orders-0").is_dir)
        seen = f"{there} has the replica before {mover} has applied its configuration: {swapped}"
        observe(MOVED_BEFORE_THROTTLE, cluster, deviates=swapped, seen=seen)
        cluster.await_healthy()
    await_moved(orders[0], there)


@scenario(
    "races/moves-while-assigned",
    kip=113,
    plan="2. Complete replica data movement: a move ends, though an earlier log dir of the replica is reported late",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    holds=True,
)
def test_moves_while_assigned(cluster: Cluster) -> None:
    """A broker is slow to report the log dir of a new replica, which moves meanwhile: the move ends."""
    leader, mover, third = cluster.brokers
    orders = Topic(cluster, "orders", 1)
    placed = NewTopic(name="orders", assignment={0: [leader.id, mover.id, third.id]})
    first_report = Held(cluster, mover, "assignments-sent", by=lambda: cluster.request_topics(placed))
    with injected(first_report):
        here = await_replica(mover, orders[0], REQUEST_S)
        write_untracked_records(orders, 100)
        there = other_dir(here)
        copies = Held(cluster, mover, "move-reads", about="orders-0", by=lambda: orders[0].move_to(there))
        with injected(copies):
            stale = Held(
                cluster,
                mover,
                "assignment-queued",
                of_thread="metadata-loader",
                by=lambda: elect(orders[0], third),
            )
            with injected(stale):
                queued = Held(
                    cluster,
                    mover,
                    "assignment-queued",
                    of_thread="ReplicaAlterLogDirs",
                    by=copies.undo,
                )
                with injected(queued):
                    pass
    await_moved(orders[0], there)


@scenario(
    "races/moved-again",
    kip=113,
    plan="2. Complete replica data movement: a move that was cancelled and asked for again ends",
    issue="KAFKA-16365",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.7.0,<3.9.0"),
    judged=False,
    holds=True,
)
def test_moved_again(cluster: Cluster) -> None:
    """A move is cancelled and asked for again while the broker has yet to report its log dir: the move ends."""
    orders = cluster.create_topic("orders", replicas=3)
    write_untracked_records(orders, 100)
    mover = follower_of(orders[0])
    here = orders[0].log_dir_on(mover)
    there = other_dir(here)
    report = Held(cluster, mover, "assignment-taken-up", by=lambda: orders[0].move_to(there))
    with injected(report):
        orders[0].move_to(here)
        orders[0].move_to(there)
    await_moved(orders[0], there)


@scenario(
    "races/promoted-behind",
    kip=113,
    plan="2. Complete replica data movement: the broker dies after the controller has accepted the move",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    deviations=(PROMOTED_BEHIND,),
    holds=True,
)
def test_promoted_behind(cluster: Cluster) -> None:
    """A broker dies as a move is about to end, and the future replica lacks the last records: they stay."""
    orders = cluster.create_topic("orders", replicas=1)
    write_untracked_records(orders, 100)
    mover = leader_of(orders[0])
    there = other_dir(orders[0].log_dir_on(mover))
    accepted = Held(cluster, mover, "assignments-sent", by=lambda: orders[0].move_to(there))
    with injected(accepted), injected(Held(cluster, mover, "move-reads", about="orders-0")):
        write_untracked_records(orders, 10)
        with injected(Held(cluster, mover, "assignments-answered", by=accepted.undo)):
            BrokerKilled(mover).inject()
    mover.start()
    cluster.await_healthy()
    with promised(cluster, unless=PROMOTED_BEHIND, seen=r" to be 110; last seen: 100$") as outcome:
        await_end(mover, 110, failure=PromiseBroken)
    if not outcome.deviates:
        await_moved(orders[0], there)
    if (place := orders[0].log_dir_on(mover)) != there:
        raise Inconclusive(f"the controller had accepted the move to {there}, and {orders[0]} is in {place}")


@scenario(
    "races/killed-after-move",
    kip=113,
    plan="3. topicPartition.move exists but topicPartition doesn't … no bad log directory: the move has just ended",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    deviations=(OLD_LOG_DIR_REPORTED,),
    holds=True,
)
def test_killed_after_move(cluster: Cluster) -> None:
    """A broker dies as a move has ended: as it starts, the future replica without a current one becomes current."""
    orders = cluster.create_topic("orders")
    write_untracked_records(orders, 100)
    mover = follower_of(orders[0])
    there = other_dir(orders[0].log_dir_on(mover))
    with old_log_dir_assigned(orders[0], there) as correction:
        if correction:
            BrokerKilled(mover).inject()
    if not correction:
        seen = f"{mover} does not report the old log dir as the controller accepts the move"
        observe(OLD_LOG_DIR_REPORTED, cluster, deviates=False, seen=seen)
        return
    files = segment_files(leave_future_replica_alone(orders[0], there))
    mover.start()
    cluster.await_healthy()
    with promised(cluster, unless=OLD_LOG_DIR_REPORTED, seen=f"^{mover} created {orders[0]}, though"):
        check_not_created_again(orders[0], there, files)
    await_moved(orders[0], there)


def is_held_in_time(hold: Hold) -> bool:
    """Whether the hold gets a thread within :data:`QUEUED_S`."""
    try:
        hold.await_thread(QUEUED_S)
    except AwaitTimeout:
        return False
    return True


@contextmanager
def old_log_dir_assigned(partition: Partition, there: LogDir) -> Iterator[Held | None]:
    """Move a replica; inside the block it has moved, the controller has it in the old log dir, and the broker is late.

    The broker sees that the controller has the replica in another log dir: in the new one before the swap, and so in
    the old one after it. Yields the hold of the correction, or None if the broker does not report the old log dir.
    """
    cluster, mover = partition.cluster, there.broker
    answered = Held(cluster, mover, "assignments-answered", by=lambda: partition.move_to(there))
    before_swap = Hold(cluster, mover.node, "assignment-queued", Who(thread="metadata-loader"))
    with ExitStack() as held:
        held.callback(before_swap.release)
        held.callback(answered.undo)
        before_swap.begin()
        answered.inject()
        if not is_held_in_time(before_swap):
            yield None
            return
        answered.undo()
        await_moved(partition, there)
        corrects = Held(cluster, mover, "assignment-queued", of_thread="metadata-loader", by=before_swap.release)
        yield held.enter_context(injected(corrects))


@scenario(
    "races/old-log-dir-fails",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: a replica has just moved from it",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    deviations=(CORRECTED_LOG_DIR_NOT_LED,),
    holds=True,
)
def test_old_log_dir_fails(cluster: Cluster) -> None:
    """A replica has moved to another log dir, and the old log dir fails: the replica leads."""
    orders = cluster.create_topic("orders", replicas=1)
    write_untracked_records(orders, 100)
    mover = leader_of(orders[0])
    here = orders[0].log_dir_on(mover)
    there = other_dir(here)
    with ExitStack() as failed:
        with old_log_dir_assigned(orders[0], there) as correction:
            if not correction:
                raise Inconclusive(f"{mover} does not report the old log dir as the controller accepts the move")
            # The thread that is held first has a lock that the broker needs to take a log dir offline.
            with injected(Held(cluster, mover, "assignments-sent", by=correction.undo)):
                failed.enter_context(injected(Chmod000(here)))
                await_offline(orders[0], mover)
        lead_again(orders[0], mover, unless=CORRECTED_LOG_DIR_NOT_LED)
        await_end(mover, 100, failure=PromiseBroken)


@scenario(
    "races/moved-by-hand",
    kip=112,
    plan="4. … or remove the bad log directory from broker config: its logs were moved to a good one",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    deviations=(CORRECTED_LOG_DIR_NOT_LED,),
    holds=True,
)
def test_moved_by_hand(cluster: Cluster) -> None:
    """The only replica of a partition is moved by hand, its log dir is removed, and its broker reports late: it leads.

    The broker is active before it reports the log dir of the replica to the controller.
    """
    orders = cluster.create_topic("orders", replicas=1)
    write_untracked_records(orders, 100)
    broker = leader_of(orders[0])
    here = orders[0].log_dir_on(broker)
    there = other_dir(here)
    broker.stop()
    here.replica_dir("orders", 0).rename(there.replica_dir("orders", 0))
    broker.use_log_dirs(there)
    with injected(Held(cluster, broker, "assignments-sent", by=broker.start)):
        await_active(cluster, broker)
    lead_again(orders[0], broker, unless=CORRECTED_LOG_DIR_NOT_LED)
    await_end(broker, 100, failure=PromiseBroken)


@scenario(
    "races/moves-beside-failed-leader",
    kip=113,
    plan="2. Complete replica data movement: moves between good log dirs end, though another log dir fails",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.9.0"),
    judged=False,
    deviations=(MOVES_STOP,),
    holds=True,
    log_dirs=3,
    overrides={"num.replica.alter.log.dirs.threads": "1"},
)
def test_moves_beside_failed_leader(cluster: Cluster) -> None:
    """A replica moves from a log dir, which fails as the replica becomes the leader: other moves end."""
    orders, others = cluster.create_topic("orders"), cluster.create_topic("others", partitions=3)
    mover = follower_of(orders[0])
    failing = orders[0].log_dir_on(mover)
    moving = next(each for each in others.partitions if each.log_dir_on(mover) != failing)
    [there] = set(mover.log_dirs) - {failing, moving.log_dir_on(mover)}
    fault = Chmod000(failing)
    with ExitStack() as ends:
        # The thread must still compare the ends of the two logs of orders-0 when the failure is met.
        reads = Held(cluster, mover, "move-reads", about=str(moving), by=lambda: moving.move_to(there))
        ends.enter_context(injected(reads))
        orders[0].move_to(moving.log_dir_on(mover))
        ends.callback(fault.undo)
        handled = Held(cluster, mover, "log-dir-taken-offline", about=str(failing.path), by=fault.inject)
        ends.enter_context(injected(handled))
        elect(orders[0], mover)
        # It meets the failure as it becomes the leader.
        met = "Skipped the become-leader state change for orders-0"
        check_logged(mover, met, handled.injected_at, REQUEST_S, failure=Inconclusive)
        reads.undo()
        handled.undo()
        with promised(
            cluster,
            unless=MOVES_STOP,
            seen=str(moving),
            logged=lambda: mover.log.first(MOVES_STOP.failures, since=handled.injected_at),
        ):
            await_moved(moving, there, MOVE_S / 2)
    mover.restart()
    cluster.await_healthy()
    await_moved(moving, there)


@scenario(
    "races/swapped-before-append",
    kip=113,
    plan="2. Complete replica data movement: the follower goes on with the log that has replaced its own",
    builds=VersionRange.parse(">=3.8.0"),  # older ones keep the old log for longer than a hold may last
    judged=False,
    deviations=(FOLLOWER_STOPS,),
    holds=True,
    overrides=SMALL_FETCHES,
)
def test_swapped_before_append(cluster: Cluster) -> None:
    """A thread is slow to append records. Meanwhile the log is replaced and deleted: the follower goes on."""
    orders = cluster.create_topic("orders", replicas=2)
    write_untracked_records(orders, 100)
    leader, mover = leader_of(orders[0]), follower_of(orders[0])
    here = orders[0].log_dir_on(mover)
    appends = Held(
        cluster,
        mover,
        "follower-log-looked-up",
        about="orders-0",
        skip=2,  # each fetch of a series tells the follower a higher high watermark
        by=lambda: write_untracked_records(orders, 400, size=1000, to=leader),
    )
    with injected(appends):
        orders[0].move_to(other_dir(here))
        await_moved(orders[0], other_dir(here))
        await_deleted(here)
    write_untracked_records(orders, 10)  # once its leader has given up a follower that does not fetch
    state = orders[0].describe(leader)
    observe(FOLLOWER_STOPS, cluster, deviates=mover.id not in state.isr, seen=state)


def await_deleted(log_dir: LogDir) -> None:
    """Wait until the broker has deleted the log that a move has replaced.

    :raises Inconclusive: it stays
    """
    await_until(
        lambda: [folder.name for folder in log_dir.path.glob("orders-0*")],
        lambda names: not names,
        timeout_s=REQUEST_S,
        what=f"no log of orders-0 to be in {log_dir}",
        failure=Inconclusive,
    )


def happens_in_time(look: Callable[[], bool]) -> bool:
    """Whether ``look`` becomes true within :data:`SWAPPED_S`."""
    try:
        await_until(look, timeout_s=SWAPPED_S, what="the swap", poll_s=0.02)
    except AwaitTimeout:
        return False
    return True
