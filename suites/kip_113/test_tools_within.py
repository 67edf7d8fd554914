"""Shows that KIP-113's tools, the protocol and the disks agree about a move on one broker ("Scripts").

Operators move replicas with kafka-reassign-partitions, and look with kafka-log-dirs and DescribeLogDirs. All of them,
and the folders on disk, are compared with one expected state (:mod:`suites.observations`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from faults.targets import follower_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import HIGH_WATERMARKS, LogDir
from harness.cluster.reassign import Placement, cancel, execute, verify
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken, ToolFailed
from harness.journal import now
from harness.kafka.tool_answers import describe_log_dirs
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, check_settings, promised
from suites.deviations import EMPTIED_DIR_NAMED, NO_LOG_DIRS_OPTION
from suites.moves import MOVE_THROTTLE, SMALL_FETCHES, check_under_way, finish_move, moves_held
from suites.on_disk import check_checkpoints
from suites.reassignments import AMPLE_RATE, await_reassigned
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck

DELETE_LATE = {"log.segment.delete.delay.ms": "25000"}  # the folder that a move leaves stays while the tools are asked
STAYS = timedelta(seconds=20)
"""The folder was left up to five seconds before a scenario looks for it."""
NOWHERE = "no-such-topic"


@scenario(
    "kip-113/tools-within",
    kip=113,
    plan="Scripts: kafka-reassign-partitions with log_dirs, kafka-log-dirs; on one broker",
    floors=NO_FAULT,
    deviations=(NO_LOG_DIRS_OPTION, EMPTIED_DIR_NAMED),
    overrides=SMALL_FETCHES,
)
def test_tools_within(cluster: Cluster, workload: CaseWorkload) -> None:
    """kafka-reassign-partitions begins a throttled move, shows it, cancels it, and then carries it out."""
    orders = cluster.create_topic("orders")
    mover = follower_of(orders[0])
    here = orders[0].log_dir_on(mover)
    there = other_dir(here)
    state = StateCheck(cluster, orders)
    brokers = map(cluster.broker, orders[0].describe().replicas)
    # The other replicas are in their log dirs, so these moves have ended as the tool begins.
    places = (there if broker == mover else orders[0].log_dir_on(broker) for broker in brokers)
    placement = Placement(partition=orders[0], on=tuple(places))
    with workload.running(orders, record_bytes=1000) as pair:
        pair.await_count(500)
        state.add_topic(create_beside(cluster, mover, there))
        with moves_held(mover):  # the tool does not wait until the broker knows the throttle
            execute(cluster, placement, log_dirs_throttle=2)
            check_settings(mover, {MOVE_THROTTLE: "2"})
            state.reassigning(orders[0])
            check_under_way(orders[0], there)
            state.move_held(orders[0], there)
            state.check()
            check_verify_says(
                cluster, placement, f"Reassignment of replica {orders[0]}-{mover.id} is still in progress."
            )
            check_settings(mover, {MOVE_THROTTLE: "2"})
            check_filters(cluster, orders, here)
            check_lag_shown(orders[0], there)
            mover.configure(DELETE_LATE)
            cancel(cluster, placement)
            check_settings(mover, {MOVE_THROTTLE: None})
            finish_move(state, orders[0], here)
            with deleted_folder_present(orders[0], there):
                state.check()
            mover.configure(dict.fromkeys(DELETE_LATE))
            where = f"from log dir {here.path} to {there.path}"
            check_verify_says(cluster, placement, f"Partition {orders[0]} on {mover} is not being moved {where}.")
            execute(cluster, placement, log_dirs_throttle=AMPLE_RATE)
            check_settings(mover, {MOVE_THROTTLE: str(AMPLE_RATE)})
            await_reassigned(cluster, state, placement, timeout_s=timeouts.MOVE_S)
            check_settings(mover, {MOVE_THROTTLE: None})
            state.check()
            named = rf"last seen: \[.{HIGH_WATERMARKS} in {here} names \['{orders[0]}'\] instead of \[\].\]$"
            with promised(cluster, unless=EMPTIED_DIR_NAMED, seen=named):
                check_checkpoints(cluster, {"orders"}, timeout_s=timeouts.REQUEST_S)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_lag_shown(partition: Partition, log_dir: LogDir) -> None:
    """kafka-log-dirs shows the lag of the held future replica in this log dir.

    The lag grows as the pair writes, so the tool's value must lie between those of DescribeLogDirs before and after.
    """
    cluster, broker = partition.cluster, log_dir.broker

    def by_protocol() -> int:
        found = broker.find_replica(partition.topic, partition.index, is_future=True)
        assert found is not None
        return found[1].offset_lag

    before = by_protocol()
    shown = describe_log_dirs(cluster.distribution, cluster.bootstrap, [broker.id], "--topic-list", partition.topic)
    after = by_protocol()
    lags = [replica.offset_lag for state in shown[broker.id] for replica in state.replicas if replica.is_future]
    broker.journal.write("move.lag_told", partition=str(partition), protocol=[before, after], tool=lags)
    if len(lags) != 1 or not before <= lags[0] <= after:
        raise PromiseBroken(
            f"kafka-log-dirs shows lag {lags} of the future replica of {partition}, and it is {before} to {after}"
        )


@contextmanager
def deleted_folder_present(partition: Partition, log_dir: LogDir) -> Iterator[None]:
    """A cancelled move leaves a ``-delete`` folder of the partition in this log dir, which stays there in the block.

    So no source may show it as a replica in the block.

    :raises PromiseBroken: there is no such folder, or it was deleted before ``log.segment.delete.delay.ms``
    :raises Inconclusive: the block took longer than that
    """
    since = now()
    left = [*log_dir.path.glob(f"{partition}.*-delete")]
    yield
    if not left or not all(folder.is_dir() for folder in left):
        gone = f"no -delete folder of {partition} was in {log_dir} all the while"
        late = now() - since >= STAYS
        raise Inconclusive(gone) if left and late else PromiseBroken(f"{gone}, with {DELETE_LATE}")
    log_dir.broker.journal.write("remains.seen", partition=str(partition), folders=[folder.name for folder in left])


def create_beside(cluster: Cluster, broker: Broker, log_dir: LogDir) -> Topic:
    """Create another topic, with its replica on this broker in this log dir: the other log dir can become empty."""
    beside = cluster.create_topic("beside")
    if beside[0].log_dir_on(broker) != log_dir:
        beside[0].move_to(log_dir)
    await_until(
        lambda: beside[0].log_dir_on(broker),
        lambda there: there == log_dir,
        timeout_s=timeouts.MOVE_S,
        what=f"{beside[0]} to be in {log_dir}",
        failure=PromiseBroken,
    )
    return beside


def check_verify_says(cluster: Cluster, placement: Placement, line: str) -> None:
    """kafka-reassign-partitions --verify prints exactly this line about what is not done."""
    said = verify(cluster, placement)
    if said != [line]:
        raise PromiseBroken(f"kafka-reassign-partitions --verify prints {said} instead of {line!r}")


def check_filters(cluster: Cluster, topic: Topic, log_dir: LogDir) -> None:
    """kafka-log-dirs shows only the requested brokers and topics, and DescribeLogDirs only the requested partitions."""
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
