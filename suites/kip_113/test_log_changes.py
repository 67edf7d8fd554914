"""KIP-113: a replica's log changes while it is moved: it is compacted, expires, is deleted or truncated from.

"The log segments in topicPartition.move directory will be subject to log truncation, log retention in the same way as
the log segments in the source log directory. But we may not do log cleaning on the topicPartition.move". All of them
must be at work again when the move has come to its end, or was called off: else the disk fills up, without a word.

The records are nobody's, so that what becomes of them is no matter of the judge's; a pair works on another topic.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack

from faults.base import injected
from faults.broker import BrokerKilled, BrokerPaused
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster import Cluster
from harness.errors import Inconclusive
from harness.journal import now
from harness.runs.measure import Floors
from harness.topic import Topic
from harness.waiting import await_until
from harness.workload import CaseWorkload
from suites.checks import check_checkpoints, check_delivery, check_no_remains, check_same_bytes, promised
from suites.deviations import CLEANING_STOPS, RETENTION_WAITS
from suites.housekeeping import AT_WORK, COMPACTED, EXPIRING, check_small, outdate
from suites.model import World
from suites.scenario import scenario
from suites.steps import (
    DELETED_SOON,
    SMALL_FETCHES,
    await_moved,
    begin_move,
    check_under_way,
    finish_move,
    moves_held,
    write_as_a_stranger,
)

SETTINGS = SMALL_FETCHES | DELETED_SOON | AT_WORK
NO_FAULT = Floors(faults=0)
ALONE = 200  # records that one leader has, and nobody else, but for what is under way to them
PAUSE_S = 1.0  # well within a session, so that they are in the ISR all the time
CUT_OFF = r"partition=changed-0, dir={path}\] Truncating to offset \d"


def create_beside(cluster: Cluster) -> Topic:
    """The pair's topic; with it there is one more, so that no log dir is ever without a replica."""
    orders = cluster.create_topic("orders")
    cluster.create_topic("beside", partitions=2)
    return orders


def kept_small(cluster: Cluster) -> tuple[Topic, Topic]:
    """Two topics, one compacted and one that expires; both are seen to be at work before anything is moved."""
    topics = cluster.create_topic("accounts", configs=COMPACTED), cluster.create_topic("events", configs=EXPIRING)
    outdate(*topics)
    check_small(*topics, failure=Inconclusive)
    return topics


@scenario(
    "kip-113/outdated-amid-move",
    kip=113,
    plan="segments in topicPartition.move … subject to … log retention; log cleaning may wait",
    floors=NO_FAULT,
    deviations=(RETENTION_WAITS,),
    overrides=SETTINGS,
)
def test_outdated_amid_move(cluster: Cluster, workload: CaseWorkload) -> None:
    """A compacted log and one that expires are outdated amid a move: both are small after it, and are kept so."""
    orders, topics = create_beside(cluster), kept_small(cluster)
    world = World(cluster, orders, *topics)
    mover, *others = cluster.brokers
    there = {topic: other_dir(topic[0].log_dir_on(mover)) for topic in topics}
    with workload.running(orders) as pair:
        with moves_held(mover):
            for topic, log_dir in there.items():
                begin_move(topic[0], log_dir)
            outdate(*topics)
            check_small(*topics, on=others)
            with promised(cluster, unless=RETENTION_WAITS):
                check_small(topics[1], on=[mover], timeout_s=timeouts.CLEANING_S / 4)
            for topic, log_dir in there.items():
                check_under_way(topic[0], log_dir)
        for topic, log_dir in there.items():
            finish_move(world, topic[0], log_dir)
        check_small(*topics)
        outdate(*topics)
        check_small(*topics)
        settled(world, *topics)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-113/outdated-after-cancel",
    kip=113,
    plan="cancel an existing movement of the replica: retention and cleaning go on",
    floors=NO_FAULT,
    deviations=(CLEANING_STOPS,),
    overrides=SETTINGS,
)
def test_outdated_after_cancel(cluster: Cluster, workload: CaseWorkload) -> None:
    """A compacted log and one that expires are outdated after a move was called off: both become small again."""
    orders, topics = create_beside(cluster), kept_small(cluster)
    world = World(cluster, orders, *topics)
    mover, *others = cluster.brokers
    here = {topic: topic[0].log_dir_on(mover) for topic in topics}
    with workload.running(orders) as pair:
        with moves_held(mover):
            for topic, log_dir in here.items():
                begin_move(topic[0], other_dir(log_dir))
                topic[0].move_to(log_dir)
                await_moved(topic[0], log_dir)
        outdate(*topics)
        check_small(*topics, on=others)
        with promised(cluster, unless=CLEANING_STOPS):
            check_small(*topics, on=[mover], timeout_s=timeouts.CLEANING_S / 2)
        settled(world, *topics)
        pair.await_progress(after=now())
    check_delivery(workload)


def settled(world: World, *topics: Topic) -> None:
    """All is where the model says, and nothing else is there."""
    names = {topic.name for topic in topics}
    world.check()
    check_no_remains(world.cluster, names)
    check_checkpoints(world.cluster, names)


@scenario(
    "kip-113/records-deleted",
    kip=113,
    plan="records are deleted while a replica is moved",
    floors=NO_FAULT,
    overrides=SETTINGS,
)
def test_records_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """Records are deleted that a move has copied already: what is left is moved, and nothing else."""
    orders, changed = create_beside(cluster), cluster.create_topic("changed")
    world = World(cluster, orders, changed)
    write_as_a_stranger(changed, 2000, size=1000)
    mover = follower_of(changed[0])  # a leader would answer only when the copy has heard of it, too
    there = other_dir(changed[0].log_dir_on(mover))
    with workload.running(orders) as pair:
        with moves_held(mover):
            begin_move(changed[0], there)
            changed[0].delete_records(before=1000)
            check_under_way(changed[0], there)
        finish_move(world, changed[0], there)
        settled(world, changed)
        check_same_bytes(changed[0], start=1000)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-113/truncated",
    kip=113,
    plan="segments in topicPartition.move … subject to log truncation",
    floors=Floors(during=0),  # with two of three brokers paused, nobody gets through
    overrides=SETTINGS,
)
def test_truncated(cluster: Cluster, workload: CaseWorkload) -> None:
    """A leader dies amid a move, with records that nobody else has: back, it cuts them off both of its copies."""
    orders, changed = create_beside(cluster), cluster.create_topic("changed")
    world = World(cluster, orders, changed)
    write_as_a_stranger(changed, 5)
    mover = leader_of(changed[0])
    others = cluster.others(mover)
    there = other_dir(changed[0].log_dir_on(mover))
    with workload.running(orders) as pair, moves_held(mover):
        with ExitStack() as down:
            with injected(*map(BrokerPaused, others)) as pause:
                write_as_a_stranger(changed, ALONE, size=1000, to=mover)
                begin_move(changed[0], there)
                await_until(
                    lambda: check_under_way(changed[0], there),
                    lambda behind: behind < ALONE,
                    timeout_s=timeouts.REQUEST_S,
                    what=f"the copy of {changed[0]} to have some of the records that are about to be cut off",
                    failure=Inconclusive,
                )
                down.enter_context(injected(BrokerKilled(mover)))
                paused_s = time.monotonic() - pause.injected_monotonic_s
            if paused_s > PAUSE_S:
                raise Inconclusive(f"{len(others)} brokers were paused for {paused_s:.1f} s, and may have left the ISR")
            world.broker_gone(mover)
            world.check()
            write_as_a_stranger(changed, ALONE, size=500)
            pair.await_progress(after=now())
        world.broker_back(mover)
        world.check(timeouts.RECOVERY_S)
        await_until(
            lambda: mover.log.first(CUT_OFF.format(path=re.escape(str(there.path))), since=mover.started_at),
            timeout_s=timeouts.REQUEST_S,
            what=f"{mover} to say that it cuts off the end of the copy of {changed[0]} in {there}",
            failure=Inconclusive,
        )
        check_under_way(changed[0], there)
    finish_move(world, changed[0], there)
    settled(world, changed)
    check_same_bytes(changed[0])
    check_delivery(workload)
