"""KIP-113: a replica's log changes while it is moved: it is compacted, expires, is deleted or truncated from.

"The log segments in topicPartition.move directory will be subject to log truncation, log retention in the same way as
the log segments in the source log directory. But we may not do log cleaning on the topicPartition.move". All of them
must be at work again when the move has come to its end, or was called off: else the disk fills up, without a word.

The records are nobody's, so that what becomes of them is no matter of the judge's; a pair works on another topic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import ExitStack

from faults.base import injected
from faults.broker import BrokerKilled, BrokerPaused
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, promised
from suites.deviations import CLEANING_STOPS, CUT_OFF_STAYS, RETENTION_WAITS
from suites.log_cleaning import (
    AT_WORK,
    COMPACTED,
    EXPIRING,
    check_small,
    check_whole,
    of_the_cleaner,
    outdate,
    stays_large,
)
from suites.observing import observe
from suites.on_disk import check_checkpoints, check_no_remains, check_same_bytes
from suites.scenario import scenario
from suites.state_check import World
from suites.steps import (
    HOLDS_MOVES,
    await_moved,
    begin_move,
    check_under_way,
    copy_of,
    finish_move,
    moves_held,
    write_untracked_records,
)

SETTINGS = HOLDS_MOVES | AT_WORK
NO_FAULT = Floors(faults=0)
ALONE = 200  # records that one leader has, and nobody else, but for what is under way to them


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


@of_the_cleaner(
    "kip-113/outdated-amid-move",
    plan="segments in topicPartition.move … subject to … log retention; log cleaning may wait",
    floors=NO_FAULT,
    deviations=(RETENTION_WAITS, CUT_OFF_STAYS),
)
def test_outdated_amid_move(cluster: Cluster, workload: CaseWorkload) -> None:
    """A compacted log and one that expires are outdated amid a move: both are small after it, and are kept so."""
    orders, topics = create_beside(cluster), kept_small(cluster)
    world = World(cluster, orders, *topics)
    mover, *others = cluster.brokers
    there = {topic: other_dir(topic[0].log_dir_on(mover)) for topic in topics}
    with workload.running(orders) as pair:
        with moves_held(mover):
            for topic in reversed(topics):  # of what expires some is copied; the other waits, as its cleaning may
                begin_move(topic[0], there[topic], waits=topic is not topics[1])
            outdate(*topics)
            check_small(*topics, on=others)
            with promised(cluster, unless=RETENTION_WAITS, seen=stays_large(topics[1], mover)):
                check_small(topics[1], on=[mover], timeout_s=timeouts.CLEANING_S / 4)
            for topic, log_dir in there.items():
                check_under_way(topic[0], log_dir)
        for topic, log_dir in there.items():
            finish_move(world, topic[0], log_dir)
        check_small(*topics)
        outdate(*topics)
        check_small(*topics)
        settled(world, *topics, compacted=topics[:1])
        check_whole(*topics, mover)
        pair.await_progress(after=now())
    check_delivery(workload)


@of_the_cleaner(
    "kip-113/outdated-after-cancel",
    plan="cancel an existing movement of the replica: retention and cleaning go on",
    floors=NO_FAULT,
    deviations=(CLEANING_STOPS, CUT_OFF_STAYS),
)
def test_outdated_after_cancel(cluster: Cluster, workload: CaseWorkload) -> None:
    """A compacted log and one that expires are outdated after a move was called off: both become small again."""
    orders, topics = create_beside(cluster), kept_small(cluster)
    world = World(cluster, orders, *topics)
    mover = cluster.brokers[0]
    here = {topic: topic[0].log_dir_on(mover) for topic in topics}
    with workload.running(orders) as pair:
        with moves_held(mover):
            for topic, log_dir in here.items():
                begin_move(topic[0], other_dir(log_dir), waits=True)
                topic[0].move_to(log_dir)
                await_moved(topic[0], log_dir)
        check_still_at_work(world, mover, topics)
        pair.await_progress(after=now())
    check_delivery(workload)


@of_the_cleaner(
    "kip-113/outdated-after-redirect",
    plan="a move is given another log dir: retention and cleaning go on",
    floors=NO_FAULT,
    deviations=(CLEANING_STOPS, CUT_OFF_STAYS),
    log_dirs=3,
)
def test_outdated_after_redirect(cluster: Cluster, workload: CaseWorkload) -> None:
    """A compacted log and one that expires are outdated after a move was pointed to a third log dir: both get small."""
    orders, topics = create_beside(cluster), kept_small(cluster)
    world = World(cluster, orders, *topics)
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
            finish_move(world, topic[0], log_dir)
        check_still_at_work(world, mover, topics)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_still_at_work(world: World, mover: Broker, topics: tuple[Topic, Topic]) -> None:
    """After their moves on a broker were changed, both topics (:func:`kept_small`) are outdated, and get small again.

    :raises PromiseBroken: one doesn't; or, on a build with :data:`CLEANING_STOPS`, one does where it was being moved
    """
    cluster = world.cluster
    outdate(*topics)
    check_small(*topics, on=cluster.others(mover))
    for topic in topics:
        with promised(cluster, unless=CLEANING_STOPS, seen=stays_large(topic, mover)):
            check_small(topic, on=[mover], timeout_s=timeouts.CLEANING_S / 2)
    settled(world, *topics, compacted=topics[:1])
    check_whole(*topics, mover)


def settled(world: World, *topics: Topic, begin_midway: bool = False, compacted: Sequence[Topic] = ()) -> None:
    """All is where the model says, and nothing else is there; nor in the checkpoint files.

    :param begin_midway: records of the topics were deleted amid a segment
    :param compacted: those that the cleaner has cleaned
    """
    names = {topic.name for topic in topics}
    world.check()
    check_cut_off_gone(world.cluster, names)
    check_checkpoints(
        world.cluster,
        names,
        begin_midway=names if begin_midway else (),
        compacted={topic.name for topic in compacted},
    )


def check_cut_off_gone(cluster: Cluster, topics: Collection[str], timeout_s: float = timeouts.RECOVERY_S) -> None:
    """As :func:`check_no_remains`; on builds with :data:`CUT_OFF_STAYS`, segments that a copy under way lost may stay.

    Whether they do is a race: the move ends before or after they are deleted.

    :raises PromiseBroken: something is left; or something else, on those builds
    """
    deleted = rf"'\d+\.\w+\.deleted in (?:{'|'.join(map(re.escape, topics))})-\d+ in [^']+'"
    try:
        check_no_remains(cluster, topics, timeout_s)
    except PromiseBroken as broken:
        if not re.search(rf"last seen: \[{deleted}(?:, {deleted})*\]$", str(broken)):
            raise
        observe(CUT_OFF_STAYS, cluster, deviates=True, seen=broken, broken=broken)


@scenario(
    "kip-113/records-deleted",
    kip=113,
    plan="records are deleted while a replica is moved",
    floors=NO_FAULT,
    overrides=SETTINGS,
    deviations=(CUT_OFF_STAYS,),
)
def test_records_deleted(cluster: Cluster, workload: CaseWorkload) -> None:
    """Records are deleted that a move has copied already: what is left is moved, and nothing else."""
    orders, changed = create_beside(cluster), cluster.create_topic("changed")
    world = World(cluster, orders, changed)
    write_untracked_records(changed, 2000, size=1000)
    mover = follower_of(changed[0])  # a leader would answer only when the copy has heard of it, too
    there = other_dir(changed[0].log_dir_on(mover))
    with workload.running(orders) as pair:
        with moves_held(mover):
            begin_move(changed[0], there, copying=2000)
            changed[0].delete_records(before=1000)
            check_under_way(changed[0], there)
        finish_move(world, changed[0], there)
        settled(world, changed, begin_midway=True)
        check_same_bytes(changed[0], start=1000)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-113/truncated",
    kip=113,
    plan="segments in topicPartition.move … subject to log truncation",
    floors=Floors(during=0),  # with two of three brokers paused, nobody gets through
    overrides=SETTINGS,
    deviations=(CUT_OFF_STAYS,),
)
def test_truncated(cluster: Cluster, workload: CaseWorkload) -> None:
    """A leader dies amid a move, with records that nobody else has: back, it cuts them off both of its copies."""
    orders, changed = create_beside(cluster), cluster.create_topic("changed")
    world = World(cluster, orders, changed)
    write_untracked_records(changed, 5)
    mover = leader_of(changed[0])
    others = cluster.others(mover)
    there = other_dir(changed[0].log_dir_on(mover))
    with workload.running(orders) as pair, moves_held(mover):
        with ExitStack() as down:
            with injected(*map(BrokerPaused, others)):
                write_untracked_records(changed, ALONE, size=1000, to=mover)
                begin_move(changed[0], there, copying=ALONE)
                down.enter_context(injected(BrokerKilled(mover)))
            check_outvoted(changed[0], mover)
            uncut = copy_of(changed[0], there)
            world.broker_gone(mover)
            world.check()
            write_untracked_records(changed, ALONE, size=500)
            pair.await_progress(after=now())
        world.broker_back(mover)
        check_cut_off(changed[0], there, uncut)
        cluster.await_healthy(failure=PromiseBroken)
    finish_move(world, changed[0], there)  # cut to the same end, the two are as one, and the move may be done by now
    world.check(timeouts.RECOVERY_S)
    settled(world, changed)
    check_same_bytes(changed[0])
    check_delivery(workload)


def check_outvoted(partition: Partition, dead: Broker) -> None:
    """Another broker leads in the dead one's place, so that what this one alone had is to be cut off.

    :raises Inconclusive: nobody does, for it was the last of the ISR: the others had been paused for too long
    """
    seen = await_until(
        partition.describe,
        lambda state: state.leader not in (None, dead.id) or state.isr == (dead.id,),
        timeout_s=timeouts.BROKER_FAILURE_S,
        what=f"{dead} not to lead {partition} any more",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    dead.journal.write("partition.led_anew", partition=str(partition), leader=seen.leader, isr=seen.isr)
    if seen.leader is None:
        raise Inconclusive(f"{dead} was the last of the ISR of {partition}: the others were paused for too long")


def check_cut_off(partition: Partition, log_dir: LogDir, uncut: bytes) -> None:
    """The copy on its way into the log dir, or the replica that it has become, no longer begins with all that it had.

    :param uncut: its log's bytes before, with records at the end that are to be cut off
    :raises PromiseBroken: it does
    """
    await_until(
        lambda: [file.read_bytes().startswith(uncut) for file in log_dir.path.glob(f"{partition}*/*.log")],
        lambda is_uncut: is_uncut != [] and not any(is_uncut),
        timeout_s=timeouts.RECOVERY_S,
        what=f"the copy of {partition} in {log_dir} to lose records that its source lost; it had {len(uncut)} bytes",
        retry_on=(OSError,),  # it has just become the replica
        failure=PromiseBroken,
    )
    log_dir.broker.journal.write("move.cut_off", partition=str(partition), to=str(log_dir), bytes_before=len(uncut))
