"""Shows what a balancer does all day: waves of small moves and reassignments, throttled or not, while log dirs fail."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from faults.base import injected
from faults.log_dir import Chmod000
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.workload.pair import Pair
from suites.checks import check_delivery, check_noticed
from suites.moves import SMALL_FETCHES, await_moved, moves_held
from suites.observations import metadata_log
from suites.on_disk import check_no_leftovers
from suites.reassignments import RATES, await_no_reassignment, throttle_replication
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import restart_after_healing

RATE = 200_000
"""Bytes a second: a partition takes a few seconds."""
REASSIGNED = 3
"""The reassignments of a wave."""


@dataclass(frozen=True, kw_only=True)
class Wave:
    """One wave.

    :ivar throttled: its moves and reassignments are limited to RATE on each broker
    :ivar fails: a log dir fails meanwhile
    """

    throttled: bool
    fails: bool


WAVES = tuple(Wave(throttled=throttled, fails=fails) for fails in (False, True) for throttled in (False, True))


@scenario(
    "kip-113/waves",
    kip=113,
    plan="Changes in Operational Procedures: waves of moves and reassignments, as a balancer makes them",
    brokers=4,
    log_dirs=3,
    floors=Floors(faults=sum(wave.fails for wave in WAVES)),
    overrides=SMALL_FETCHES,
)
def test_waves(cluster: Cluster, workload: CaseWorkload) -> None:
    """Many replicas are moved and reassigned in waves, and a log dir fails amid a wave: all others end as requested."""
    ids = [broker.id for broker in cluster.brokers]
    assignment = {number: [ids[number % 4], ids[(number + 1) % 4]] for number in range(12)}
    [orders] = cluster.create_topics(NewTopic(name="orders", assignment=assignment))
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        for number, wave in enumerate(WAVES):
            pair.await_progress(after=now())
            victim = cluster.brokers[number]
            failing = orders[number].log_dir_on(victim) if wave.fails else None
            play(state, pair, wave, failing)
            if failing is not None:
                restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_no_leftovers(cluster, [orders.name])
    check_delivery(workload)


def play(state: StateCheck, pair: Pair, wave: Wave, failing: LogDir | None) -> None:
    """Begin the moves and reassignments of a wave together, fail the log dir, and wait until all are done."""
    cluster = state.cluster
    orders = cluster.topics["orders"]
    moves = dict(moves_apart(orders, failing))
    placements = [*reassignments_apart(orders, moves.keys(), failing)][:REASSIGNED]
    if len(placements) < REASSIGNED:
        raise Inconclusive(f"only {len(placements)} partitions can be reassigned beside {failing}")
    with ExitStack() as wave_over:
        if wave.throttled:
            throttle_replication(orders, rate=RATE)
            wave_over.callback(replication_free, cluster.brokers)
            wave_over.enter_context(moves_held(*cluster.brokers, rate=RATE))
        for placement in placements:
            cluster.reassign(placement.partition, placement.brokers)
        for partition, there in moves.items():
            partition.move_to(there)
        if failing is not None:
            check_noticed(wave_over.enter_context(injected(Chmod000(failing))))
            state.log_dir_failed(failing)
            pair.await_progress(after=now())
        for partition, there in moves.items():
            await_moved(partition, there)
            state.moved(partition, there)
        await_no_reassignment(cluster)
        for placement in placements:
            chosen = [placement.partition.log_dir_on(broker) for broker in placement.brokers]
            state.reassigned(placement.partition, chosen)
        state.check(also=[metadata_log])


def replication_free(brokers: Collection[Broker]) -> None:
    """Remove the rates of reassignments from these brokers."""
    for broker in brokers:
        broker.configure(dict.fromkeys(RATES))


def moves_apart(orders: Topic, failing: LogDir | None) -> Iterator[tuple[Partition, LogDir]]:
    """For each broker a replica of another partition, and a log dir that it can move to; none in the failing one."""
    taken = set[int]()
    for broker in orders.cluster.brokers:
        for partition in orders.partitions:
            if partition.index in taken or broker.id not in partition.describe().replicas:
                continue
            if not in_log_dir(partition, failing):
                here = partition.log_dir_on(broker)
                taken.add(partition.index)
                yield partition, next(log_dir for log_dir in broker.log_dirs if log_dir not in (here, failing))
                break


def reassignments_apart(orders: Topic, moving: Collection[Partition], failing: LogDir | None) -> Iterator[Placement]:
    """For partitions that do not move, a broker more for the first one; none with a replica in the failing log dir."""
    brokers = orders.cluster.brokers
    for partition in orders.partitions:
        if partition in moving or in_log_dir(partition, failing):
            continue
        [first, *kept] = map(orders.cluster.broker, partition.describe().replicas)
        full = failing.broker if failing is not None else None
        added = next(broker for broker in brokers if broker not in (first, *kept, full))
        yield Placement(partition=partition, on=(*kept, added))


def in_log_dir(partition: Partition, log_dir: LogDir | None) -> bool:
    """Whether a replica of the partition is in this log dir."""
    if log_dir is None or log_dir.broker.id not in partition.describe().replicas:
        return False
    return partition.log_dir_on(log_dir.broker) == log_dir
