"""Shows how an operator balances a broker's log dirs (KIP-113, "Changes in Operational Procedures").

"Administrator needs to get the partition assignment and their size per log directory using kafka-log-dirs.sh, determine
the reassignment of replicas per log directory per broker, and provide partition to (broker, log_directory) mapping as
input to kafka-reassign-partitions.sh to execute the new assignment." And: "user can also track movement progress".
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Collection, Mapping

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement, execute
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.kafka.stored_log import StoredLog
from harness.kafka.tool_answers import describe_log_dirs
from harness.runner.case import Case
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery
from suites.deviations import MOVE_NEVER_ENDS
from suites.moves import SMALL_FETCHES, finish_move
from suites.on_disk import check_logs_unchanged, check_same_bytes, leaders_logs
from suites.reassignments import await_reassigned
from suites.replica_mbeans import check_no_idle_fetchers
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import write_untracked_records

RATE = 500_000  # bytes a second
Sizes = Mapping[int, tuple[LogDir, int]]  # the log dir and bytes of a topic's replicas on one broker, by partition


@scenario(
    "kip-113/balanced",
    kip=113,
    plan="Changes in Operational Procedures: need to load balance across log directories",
    floors=NO_FAULT,
    overrides=SMALL_FETCHES,
    deviations=(MOVE_NEVER_ENDS,),
)
def test_balanced(cluster: Cluster, workload: CaseWorkload, case: Case) -> None:
    """A broker with all replicas in one log dir is balanced by the KIP's procedure, and its progress can be seen."""
    orders, bulk = cluster.create_topic("orders"), cluster.create_topic("bulk", partitions=4)
    state = StateCheck(cluster, orders, bulk)
    write_untracked_records(bulk, 4000, size=1000)
    # As large as the others together, so two in each log dir are not balanced.
    write_untracked_records(bulk, 3000, size=1000, into=0)
    kept = leaders_logs(bulk.partitions)
    skewed = cluster.brokers[0]
    for partition in bulk.partitions:
        partition.move_to(skewed.log_dirs[0])
        finish_move(state, partition, skewed.log_dirs[0])
    state.check()
    with workload.running(orders) as pair:
        plan = [
            placement_of(cluster, bulk[index], log_dir)
            for index, log_dir in balanced_plan(skewed, sizes_by_tool(skewed, bulk)).items()
        ]
        moved = {each.partition.index for each in plan if each.partition.log_dir_on(skewed) not in each.on}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:  # the moves may end before the tool does
            executed = pool.submit(execute, cluster, *plan, log_dirs_throttle=RATE)
            case.measure("time to completion, as foreseen to real", follow_moves(skewed, bulk, moved))
            executed.result()
        await_reassigned(cluster, state, *plan, timeout_s=timeouts.MOVE_S)
        check_even(skewed, sizes_by_tool(skewed, bulk))
        pair.await_progress(after=now())
    check_same_bytes(*bulk.partitions)
    check_logs_unchanged(kept)
    check_delivery(workload)
    check_no_idle_fetchers(cluster)


def sizes_by_tool(broker: Broker, topic: Topic) -> Sizes:
    """The log dir and size of the topic's replicas on the broker, by kafka-log-dirs.

    :raises PromiseBroken: the disk shows others
    """
    cluster, by_path = topic.cluster, {str(log_dir.path): log_dir for log_dir in broker.log_dirs}
    shown = describe_log_dirs(cluster.distribution, cluster.bootstrap, [broker.id], "--topic-list", topic.name)
    seen = {
        replica.partition: (by_path[state.path], replica.size)
        for state in shown[broker.id]
        for replica in state.replicas
    }
    there = {
        index: (log_dir, StoredLog(folder).size)
        for log_dir in broker.log_dirs
        for index in range(len(topic))
        if (folder := log_dir.replica_dir(topic.name, index)).is_dir()
    }
    if seen != there:
        raise PromiseBroken(f"kafka-log-dirs shows {topic} on {broker} as {seen}, and the disk has {there}")
    return seen


def balanced_plan(broker: Broker, sizes: Sizes) -> dict[int, LogDir]:
    """A log dir for each replica: largest replica first, each to the log dir with the fewest bytes at that point."""
    loads = dict.fromkeys(broker.log_dirs, 0)
    plan = {}
    for partition, (_, size) in sorted(sizes.items(), key=lambda item: item[1][1], reverse=True):
        plan[partition] = min(loads, key=lambda log_dir: loads[log_dir])
        loads[plan[partition]] += size
    return plan


def placement_of(cluster: Cluster, partition: Partition, log_dir: LogDir) -> Placement:
    """A placement that moves only the replica on the log dir's broker, into this log dir."""
    brokers = map(cluster.broker, partition.describe().replicas)
    return Placement(partition=partition, on=tuple(log_dir if each == log_dir.broker else each for each in brokers))


def follow_moves(broker: Broker, topic: Topic, moved: Collection[int]) -> float:
    """Watch the moves of a topic's replicas on a broker until they have ended, as a user can.

    DescribeLogDirs shows each future replica (``isFuture``). Its lag never rises, since no client writes. At least one
    lag is seen between its first and its last value. More is not required: a megabyte may move between two looks.

    :param moved: the partitions whose replicas should move; a move may end before the first look
    :returns: the expected seconds divided by the real ones. The expected seconds are the bytes that are left to copy at
        the first look, divided by the throttle's rate
    :raises PromiseBroken: a lag rises, no lag shows progress, or another replica moves
    """
    lags: dict[int, list[int]] = {}
    began_at, left = 0.0, 0

    def look() -> int:
        nonlocal began_at, left
        seen = [r for state in broker.describe_log_dirs() for r in state.replicas if r.topic == topic.name]
        future = [replica for replica in seen if replica.is_future]
        for replica in future:
            lags.setdefault(replica.partition, []).append(replica.offset_lag)
        wanted = {replica.partition for replica in future}
        began_at = began_at or (time.monotonic() if future else 0.0)
        left = left or sum(r.size * (-1 if r.is_future else 1) for r in seen if r.partition in wanted)
        return len(future)

    await_until(
        look,
        lambda under_way: not under_way and bool(lags),
        timeout_s=timeouts.MOVE_S,
        what=f"the moves of {topic} on {broker} to be seen, and to end",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    foreseen, took = left / RATE, time.monotonic() - began_at
    broker.journal.write("move.followed", lags=lags, bytes=left, foreseen_s=round(foreseen, 3), took_s=round(took, 3))
    if not lags.keys() <= set(moved):
        raise PromiseBroken(f"partitions {sorted(moved)} of {topic} should move on {broker}, and {sorted(lags)} do")
    for partition, seen in lags.items():
        if seen != sorted(seen, reverse=True):
            raise PromiseBroken(f"the lag of {topic}-{partition}'s future replica on {broker} rose: {seen}")
    if all(len(set(seen)) < 3 for seen in lags.values()):
        raise PromiseBroken(f"the lags of {topic}'s future replicas on {broker} show no progress: {lags}")
    return foreseen / took


def check_even(broker: Broker, sizes: Sizes) -> None:
    """The log dirs are balanced: moving the smallest replica of the fullest to the emptiest would not help."""
    loads = dict.fromkeys(broker.log_dirs, 0)
    for log_dir, size in sizes.values():
        loads[log_dir] += size
    broker.journal.write("log_dirs.loaded", bytes={str(log_dir): load for log_dir, load in loads.items()})
    fullest, emptiest = max(loads, key=loads.__getitem__), min(loads, key=loads.__getitem__)
    smallest = min(size for log_dir, size in sizes.values() if log_dir == fullest)
    if loads[fullest] - loads[emptiest] > smallest:
        raise PromiseBroken(
            f"{broker} is not balanced; bytes by log dir: { ({str(log_dir): load for log_dir, load in loads.items()}) }"
        )
