"""Shows that KIP-113's throttle of moves holds, and that it and the throttle of reassignments are independent.

The KIP's intra.broker.throttled.rate is ``replica.alter.log.dirs.io.max.bytes.per.second`` in every release.
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
from suites.kip_113.copy_rates import RATE, check_rate, copied
from suites.leadership import check_not_preferred
from suites.moves import MOVE_THROTTLE, SMALL_FETCHES, begin_move, check_under_way, finish_move, moves_held
from suites.on_disk import check_logs_unchanged, check_no_leftovers, check_same_bytes, leaders_logs
from suites.reassignments import RATES, await_no_reassignment, check_reassigning, throttle_replication
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import write_untracked_records


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
    """A throttled reassignment does not hold the same broker's moves, and held moves do not hold the reassignment.

    Another partition of its topic is not throttled. That one's reassignment ends, and the throttled one stays listed.
    """
    orders, [across, beside] = cluster.create_topic("orders"), cluster.create_topic("across", partitions=2).partitions
    within = cluster.create_topic("within", replicas=4)
    state = StateCheck(cluster, orders, *(cluster.topics[name] for name in ("across", "within")))
    for topic in (cluster.topics["across"], within):
        write_untracked_records(topic, 2000 * len(topic), size=1000)
    kept = leaders_logs((across, beside, *within.partitions))
    leaving, *staying = map(cluster.broker, across.describe().replicas)
    [coming] = cluster.others(leaving, *staying)
    here = within[0].log_dir_on(coming)
    there = other_dir(here)
    placement = Placement(partition=across, on=(coming, *staying))
    with workload.running(orders) as pair:
        # The tool does not wait until brokers know its throttle, so another throttle is set before.
        of_across = ",".join(f"{across.index}:{broker.id}" for broker in cluster.brokers)
        throttle_replication(cluster.topics["across"], rate=1, replicas=of_across)
        throttle_replication(within, rate=1)
        execute(cluster, placement, throttle=2)
        for broker in placement.brokers:
            check_settings(broker, dict.fromkeys(RATES, "2"))
        check_reassigning(cluster, across)
        check_not_preferred(across)
        reassign_beside(state, beside)
        check_reassigning(cluster, across)
        within[0].move_to(there)
        finish_move(state, within[0], there)
        check_reassigning(cluster, across)
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
    check_same_bytes(across, beside, *within.partitions)
    check_logs_unchanged(kept)
    check_delivery(workload)


def reassign_beside(state: StateCheck, partition: Partition) -> None:
    """Reassign a partition while another one's reassignment is under way, and wait until it has ended."""
    leaving, *staying = map(state.cluster.broker, partition.describe().replicas)
    [coming] = state.cluster.others(leaving, *staying)
    state.cluster.reassign(partition, [*staying, coming])
    await_until(
        lambda: [each for each in state.cluster.reassignments() if each.partition == partition.index],
        lambda under_way: not under_way,
        timeout_s=timeouts.MOVE_S,
        what=f"the reassignment of {partition}, which is not throttled, to end",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    state.reassigned(partition, [partition.log_dir_on(broker) for broker in (*staying, coming)])
