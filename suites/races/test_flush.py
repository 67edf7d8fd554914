"""Holds the flush of a rolled segment until the log's folder has another name.

A broker flushes a segment in another thread than the one that rolls it, and some time later. Meanwhile a topic may be
deleted, or a move may end. That is daily operation, and no log dir may go offline for it (KIP-112, "Metrics").
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from faults.base import injected
from faults.held import Held
from faults.targets import follower_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from harness.errors import Inconclusive
from harness.kafka.versions import VersionRange
from harness.runner.deviation import Expectation
from harness.waiting import await_until
from suites.checks import check_logged, no_log_dir_fails
from suites.deviations import GOOD_LOG_DIR_OFFLINE
from suites.moves import SMALL_FETCHES, await_moved, moves_held
from suites.observing import expectation_of
from suites.scenario import scenario
from suites.steps import await_checkpoints, write_untracked_records

ROLLS = {"segment.bytes": str(1 << 20)}
"""The smallest segments since Kafka 4.0."""
A_SEGMENT = 1100
"""So many records of 1,000 bytes roll one segment."""
FLUSH = "LocalLog.flush("
"""The flush of segments; other methods flush the folder after they have written a checkpoint into it."""


def create_topics(cluster: Cluster) -> Topic:
    """The topic whose segments roll; another one gives each log dir of each broker a replica, and so checkpoints."""
    others = cluster.create_topic("others", partitions=4, replicas=3)
    orders = cluster.create_topic("orders", replicas=3, configs=ROLLS)
    write_untracked_records(others, 40)
    return orders


@scenario(
    "races/flushed-after-move",
    kip=113,
    plan="a move ends while the flush of a rolled segment is due: no log dir goes offline",
    issue="KAFKA-19571",
    judged=False,
    builds=VersionRange.parse(">=3.7.0"),
    deviations=(GOOD_LOG_DIR_OFFLINE,),
    holds=True,
)
def test_flushed_after_move(cluster: Cluster) -> None:
    """A replica moves while the flush of its rolled segment is due: no log dir goes offline."""
    orders = create_topics(cluster)
    mover = follower_of(orders[0])
    here = orders[0].log_dir_on(mover)
    known = expectation_of(GOOD_LOG_DIR_OFFLINE, cluster) is not Expectation.NONE
    flush = Held(
        cluster,
        mover,
        "rolled-segment-flushed",
        about=str(here.path / "orders-0"),
        by=lambda: write_untracked_records(orders, A_SEGMENT, size=1000),
    )
    with no_log_dir_fails(cluster, expected=GOOD_LOG_DIR_OFFLINE if known else None):
        with injected(flush):
            orders[0].move_to(other_dir(here))
            await_moved(orders[0], other_dir(here))
            # The broker closes the log of the source after it has ended the move, and logs the end of the swap last.
            replaced = "successfully replaced with the future replica"
            check_logged(mover, replaced, flush.injected_at, timeouts.REQUEST_S, failure=Inconclusive)
        await_checkpoints(other_dir(here), 4)


@scenario(
    "races/deleted-before-flush",
    kip=112,
    plan="Metrics: a topic is deleted while the flush of a rolled segment is due, and no log dir goes offline",
    issue="KAFKA-15391",
    judged=False,
    builds=VersionRange.parse(">=3.1.0"),
    holds=True,
)
def test_deleted_before_flush(cluster: Cluster) -> None:
    """A topic is deleted as the folder of its log is about to be flushed: no log dir goes offline."""
    orders = create_topics(cluster)
    broker = follower_of(orders[0])
    log_dir = orders[0].log_dir_on(broker)
    folder = log_dir.path / "orders-0"
    flush = Held(
        cluster,
        broker,
        "folder-flushed",
        caller=FLUSH,
        about=str(folder),
        by=lambda: write_untracked_records(orders, A_SEGMENT, size=1000),
    )
    with no_log_dir_fails(cluster):
        with injected(flush):
            cluster.delete_topics(orders)
            await_renamed(broker, folder)
        await_checkpoints(log_dir, 4)


@scenario(
    "races/swapped-before-flush",
    kip=113,
    plan="a move ends while the folder of the future replica is about to be flushed: no log dir goes offline",
    issue="KAFKA-15572",
    judged=False,
    builds=VersionRange.parse(">=3.1.0"),
    holds=True,
    overrides=SMALL_FETCHES,
)
def test_swapped_before_flush(cluster: Cluster) -> None:
    """A move ends as the folder of the future replica is about to be flushed: no log dir goes offline."""
    orders = create_topics(cluster)
    write_untracked_records(orders, 3 * A_SEGMENT, size=1000)
    mover = follower_of(orders[0])
    there = other_dir(orders[0].log_dir_on(mover))
    flush = Held(
        cluster,
        mover,
        "folder-flushed",
        caller=FLUSH,
        about=f"{there.path}/orders-0 -future",
        by=lambda: orders[0].move_to(there),
    )
    with no_log_dir_fails(cluster):
        with ExitStack() as slow:  # else the move may end before the flush of its first segment
            slow.enter_context(moves_held(mover, rate=1 << 20))
            with injected(flush):
                slow.close()
                await_moved(orders[0], there)
        await_checkpoints(there, 4)


def await_renamed(broker: Broker, folder: Path) -> None:
    """Wait until the broker has renamed the folder of a deleted replica."""
    await_until(
        folder.exists,
        lambda there: not there,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{broker} to rename {folder}",
    )
