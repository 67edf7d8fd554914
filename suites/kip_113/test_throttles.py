"""Shows that KIP-113's throttle of moves holds, and that it and the throttle of reassignments are independent.

The KIP's intra.broker.throttled.rate is ``replica.alter.log.dirs.io.max.bytes.per.second`` in every release. It limits
the mean over 11 or, on newer builds, 12 windows of a second (``ReplicationQuotaManagerConfig``, ``SampledStat``).
A shorter measurement cannot show the rate. A raised rate also applies to the seconds before it, so a burst follows. So
the check measures how long it takes to copy as many bytes as the rate allows in twelve seconds. A move without a
throttle ends almost at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from faults.targets import other_dir
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement, execute
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, check_settings
from suites.on_disk import check_logs_unchanged, check_no_leftovers, check_same_bytes, leaders_logs
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import (
    MOVE_THROTTLE,
    SMALL_FETCHES,
    await_no_reassignment,
    begin_move,
    check_reassigning,
    check_under_way,
    finish_move,
    moves_held,
    write_untracked_records,
)

RATE = 200_000  # bytes a second
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")  # of a topic
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")  # of a broker
MEASURED_S, WITHIN = 12, 0.2


@scenario(
    "kip-113/throttle",
    kip=113,
    plan="total throughput used by all ReplicaMoveThread instances does not exceed … intra.broker.throttled.rate",
    floors=NO_FAULT,
    overrides=SMALL_FETCHES,
)
def test_throttle(cluster: Cluster, workload: CaseWorkload) -> None:
    """Moves share their broker's throttle, also after it is raised; a broker with N log dirs copies N replicas at once.

    Another broker has one thread for moves and copies one replica at a time.
    """
    usual, lone = cluster.brokers[:2]
    lone.node.configure({"num.replica.alter.log.dirs.threads": "1"})
    lone.restart()
    cluster.await_healthy()
    orders, bulk = cluster.create_topic("orders"), cluster.create_topic("bulk", partitions=3)
    state = StateCheck(cluster, orders, bulk)
    write_untracked_records(bulk, 16_000, size=1000)
    kept = leaders_logs(bulk.partitions)
    there = {
        broker: [other_dir(partition.log_dir_on(broker)) for partition in bulk.partitions] for broker in (usual, lone)
    }
    with workload.running(orders) as pair:
        with moves_held(usual, lone, rate=RATE):
            began = time.monotonic()
            for log_dirs in there.values():
                for partition, log_dir in zip(bulk.partitions, log_dirs, strict=True):
                    partition.move_to(log_dir)
            check_rate(bulk.partitions, there[usual], RATE, began, before=0)
            check_at_once(bulk.partitions, there[usual], len(usual.log_dirs))
            check_at_once(bulk.partitions, there[lone], 1)
            began, before = time.monotonic(), sum(copied(bulk.partitions, there[usual]))
            usual.configure({MOVE_THROTTLE: str(2 * RATE)})
            check_rate(bulk.partitions, there[usual], 2 * RATE, began, before)
        for log_dirs in there.values():
            for partition, log_dir in zip(bulk.partitions, log_dirs, strict=True):
                finish_move(state, partition, log_dir)
        state.check()
        check_no_leftovers(cluster, {"bulk"})
        pair.await_progress(after=now())
    check_same_bytes(*bulk.partitions)
    check_logs_unchanged(kept)
    check_delivery(workload)


def copied(partitions: Sequence[Partition], there: Sequence[LogDir]) -> list[int]:
    """The bytes that each moving replica has in its new log dir."""
    seen = {
        (state.path, replica.topic, replica.partition): replica.size
        for state in there[0].broker.describe_log_dirs()
        for replica in state.replicas
    }
    return [seen.get((str(to.path), p.topic, p.index), 0) for p, to in zip(partitions, there, strict=True)]


def check_rate(partitions: Sequence[Partition], there: Sequence[LogDir], rate: int, began: float, before: int) -> None:
    """The moves together copy at this rate, give or take a fifth.

    :param rate: bytes a second
    :param began: when the rate was set, in seconds on the monotonic clock
    :param before: bytes that had been copied by then
    """
    broker = there[0].broker
    await_until(
        lambda: sum(copied(partitions, there)),
        lambda size: size - before >= rate * MEASURED_S,
        timeout_s=MEASURED_S / (1 - WITHIN) + timeouts.REQUEST_S,
        what=f"moves on {broker} at {rate} bytes a second to copy {rate * MEASURED_S} more bytes than {before}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    # Bytes beyond these do not count: a burst follows when the windows from before a change of the rate run out.
    seen = rate * MEASURED_S / (time.monotonic() - began)
    broker.journal.write("move.rate", broker=broker.id, rate=rate, seen=round(seen))
    if not 1 - WITHIN <= seen / rate <= 1 + WITHIN:
        raise PromiseBroken(f"moves on {broker} should copy {rate} bytes a second, and copied {seen:.0f}")


def check_at_once(partitions: Sequence[Partition], there: Sequence[LogDir], threads: int) -> None:
    """As many of the moves as there are threads have copied something; those that wait have nothing yet."""
    sizes = copied(partitions, there)
    there[0].broker.journal.write("moves.at_once", broker=there[0].broker.id, threads=threads, bytes=sizes)
    if sum(size > 0 for size in sizes) != threads:
        raise PromiseBroken(f"{threads} moves on {there[0].broker} should copy at once; bytes of each: {sizes}")


@scenario(
    "kip-113/throttles-apart",
    kip=113,
    plan="-throttle … does not affect the quota for replica movement between log directories",
    brokers=4,
    floors=NO_FAULT,
    overrides=SMALL_FETCHES,
)
def test_throttles_apart(cluster: Cluster, workload: CaseWorkload) -> None:
    """A throttled reassignment does not hold the same broker's moves, and held moves do not hold the reassignment."""
    orders, across = cluster.create_topic("orders"), cluster.create_topic("across")[0]
    within = cluster.create_topic("within", replicas=4)
    state = StateCheck(cluster, orders, *(cluster.topics[name] for name in ("across", "within")))
    for topic in (cluster.topics["across"], within):
        write_untracked_records(topic, 2000, size=1000)
    kept = leaders_logs((across, *within.partitions))
    leaving, *staying = map(cluster.broker, across.describe().replicas)
    [coming] = cluster.others(leaving, *staying)
    here = within[0].log_dir_on(coming)
    there = other_dir(here)
    placement = Placement(partition=across, on=(coming, *staying))
    with workload.running(orders) as pair:
        # The tool does not wait until brokers know its throttle, so another throttle is set before.
        for topic in (cluster.topics["across"], within):
            topic.configure(dict.fromkeys(THROTTLED, "*"))
        for broker in cluster.brokers:
            broker.configure(dict.fromkeys(RATES, "1"))
        for broker in cluster.brokers:
            check_settings(broker, dict.fromkeys(RATES, "1"))
        execute(cluster, placement, throttle=2)
        for broker in placement.brokers:
            check_settings(broker, dict.fromkeys(RATES, "2"))
        check_reassigning(cluster, across, failure=PromiseBroken)
        within[0].move_to(there)
        finish_move(state, within[0], there)
        check_reassigning(cluster, across, failure=PromiseBroken)
        with moves_held(coming):
            begin_move(within[0], here, waits=True)
            for broker in cluster.brokers:
                broker.configure(dict.fromkeys(RATES, str(1 << 40)))
            # Not with the tool: its --verify would remove the throttle of moves, too.
            await_no_reassignment(cluster)
            state.reassigned(across, [across.log_dir_on(broker) for broker in placement.brokers])
            state.check()
            check_under_way(within[0], here)
            pair.await_progress(after=now())
        finish_move(state, within[0], here)
        state.check()
        check_no_leftovers(cluster, {"across", "within"})
    check_same_bytes(across, *within.partitions)
    check_logs_unchanged(kept)
    check_delivery(workload)
