"""KIP-113's throttle of moves between log dirs, and that of reassignments between brokers: neither binds the other.

What the KIP calls intra.broker.throttled.rate is ``replica.alter.log.dirs.io.max.bytes.per.second`` in every release.
It bounds the mean over the last 11 windows of a second, and the one that is being filled
(``ReplicationQuotaManagerConfig``, ``SampledStat``): a rate can't be told from a shorter look, and one that is raised
holds for the seconds before, too, which are made up for at once. So what is measured is how long twelve seconds' worth
of the rate takes to be copied; a move that nothing throttles is done with it in no time.
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
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery
from suites.on_disk import check_kept, check_no_remains, check_same_bytes, leaders_logs
from suites.scenario import scenario
from suites.state_check import World
from suites.steps import (
    HOLDS_MOVES,
    MOVE_THROTTLE,
    await_no_reassignment,
    begin_move,
    check_reassigning,
    check_under_way,
    finish_move,
    moves_held,
    write_untracked_records,
)

RATE = 200_000
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")  # of a topic
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")  # of a broker
MEASURED_S, WITHIN = 12, 0.2
NO_FAULT = Floors(faults=0)


@scenario(
    "kip-113/throttle",
    kip=113,
    plan="total throughput used by all ReplicaMoveThread instances does not exceed … intra.broker.throttled.rate",
    floors=NO_FAULT,
    overrides=HOLDS_MOVES,
)
def test_throttle(cluster: Cluster, workload: CaseWorkload) -> None:
    """Two moves share their broker's rate, also one that is set midway; with one thread, the second waits."""
    usual, lone = cluster.brokers[:2]
    lone.node.configure({"num.replica.alter.log.dirs.threads": "1"})
    lone.restart()
    cluster.await_healthy()
    orders, bulk = cluster.create_topic("orders"), cluster.create_topic("bulk", partitions=2)
    world = World(cluster, orders, bulk)
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
            check_at_once(bulk.partitions, there[usual], 2)
            check_at_once(bulk.partitions, there[lone], 1)
            began, before = time.monotonic(), sum(copied(bulk.partitions, there[usual]))
            usual.configure({MOVE_THROTTLE: str(2 * RATE)})
            check_rate(bulk.partitions, there[usual], 2 * RATE, began, before)
        for log_dirs in there.values():
            for partition, log_dir in zip(bulk.partitions, log_dirs, strict=True):
                finish_move(world, partition, log_dir)
        world.check()
        check_no_remains(cluster, {"bulk"})
        pair.await_progress(after=now())
    check_same_bytes(*bulk.partitions)
    check_kept(kept)
    check_delivery(workload)


def copied(partitions: Sequence[Partition], there: Sequence[LogDir]) -> list[int]:
    """Bytes that are in the log dir that each of a broker's replicas goes to."""
    seen = {
        (state.path, replica.topic, replica.partition): replica.size
        for state in there[0].broker.describe_log_dirs()
        for replica in state.replicas
    }
    return [seen.get((str(to.path), p.topic, p.index), 0) for p, to in zip(partitions, there, strict=True)]


def check_rate(partitions: Sequence[Partition], there: Sequence[LogDir], rate: int, began: float, before: int) -> None:
    """What these moves copy together takes as long as it should at this rate, give or take a fifth.

    :param began: since when they go at it, on the monotonic clock
    :param before: how much had been copied by then
    :raises PromiseBroken: it doesn't
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
    # Not what was copied by then: when the windows before a change of the rate run out, seconds' worth come at once.
    seen = rate * MEASURED_S / (time.monotonic() - began)
    broker.journal.write("move.rate", broker=broker.id, rate=rate, seen=round(seen))
    if not 1 - WITHIN <= seen / rate <= 1 + WITHIN:
        raise PromiseBroken(f"moves on {broker} were to go at {rate} bytes a second, and went at {seen:.0f}")


def check_at_once(partitions: Sequence[Partition], there: Sequence[LogDir], threads: int) -> None:
    """Of moves under way, so many have been copying; those that wait for a thread have nothing yet.

    :raises PromiseBroken: more or fewer have
    """
    sizes = copied(partitions, there)
    there[0].broker.journal.write("moves.at_once", broker=there[0].broker.id, threads=threads, bytes=sizes)
    if sum(size > 0 for size in sizes) != threads:
        raise PromiseBroken(f"of moves on {there[0].broker}, {threads} should copy at once, and have copied {sizes}")


@scenario(
    "kip-113/throttles-apart",
    kip=113,
    plan="-throttle … does not affect the quota for replica movement between log directories",
    brokers=4,
    floors=NO_FAULT,
    overrides=HOLDS_MOVES,
)
def test_throttles_apart(cluster: Cluster, workload: CaseWorkload) -> None:
    """A held reassignment lets the same broker's moves between log dirs pass, and held moves let the reassignment."""
    orders, across = cluster.create_topic("orders"), cluster.create_topic("across")[0]
    within = cluster.create_topic("within", replicas=4)
    world = World(cluster, orders, *(cluster.topics[name] for name in ("across", "within")))
    for topic in (cluster.topics["across"], within):
        write_untracked_records(topic, 2000, size=1000)
    kept = leaders_logs((across, *within.partitions))
    leaving, *staying = map(cluster.broker, across.describe().replicas)
    [coming] = cluster.others(leaving, *staying)
    here = within[0].log_dir_on(coming)
    there = other_dir(here)
    placement = Placement(partition=across, on=(coming, *staying))
    with workload.running(orders) as pair:
        execute(cluster, placement, throttle=1)
        within.configure(dict.fromkeys(THROTTLED, "*"))
        check_reassigning(cluster, across)
        within[0].move_to(there)
        finish_move(world, within[0], there)
        check_reassigning(cluster, across)
        with moves_held(coming):
            begin_move(within[0], here, waits=True)
            for broker in cluster.brokers:
                broker.configure(dict.fromkeys(RATES, str(1 << 40)))
            # Not by the tool: its --verify would take the throttle of moves off, too.
            await_no_reassignment(cluster)
            world.reassigned(across, [across.log_dir_on(broker) for broker in placement.brokers])
            world.check()
            check_under_way(within[0], here)
            pair.await_progress(after=now())
        finish_move(world, within[0], here)
        world.check()
        check_no_remains(cluster, {"across", "within"})
    check_same_bytes(across, *within.partitions)
    check_kept(kept)
    check_delivery(workload)
