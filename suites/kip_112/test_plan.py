"""Shows KIP-112's system-test plan: its three items, in its order.

The plan's "validated client/cluster state" has four parts. All sources agree on brokers, topics and log dirs
(:meth:`~suites.state_check.StateCheck.check`). The broker logged the expected message
(:func:`~suites.checks.check_noticed`). Producer and consumer get through (``await_progress``). After healing, nothing
was lost or duplicated (:func:`~suites.checks.check_delivery`).

A second partition is in the broker's other log dir. It must keep its leader all the while.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import PLAN_FAULTS, ChmodNoWrite, LogDirFault, Removed
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import AwaitTimeout, PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.runner.case_workload import CaseWorkload
from harness.runner.deviation import Expectation
from harness.waiting import await_until
from harness.workload.pair import Pair
from suites.checks import check_delivery, check_noticed
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE, UNWRITABLE_ENDS_START
from suites.followers_behind import injected_ahead
from suites.observing import expectation_of
from suites.scenario import each_fault, scenario
from suites.state_check import StateCheck
from suites.steps import (
    SERVED_ALONE,
    UNWRITABLE,
    check_serves_alone,
    ends_as_known,
    log_dirs_failed,
    one_partition_per_log_dir,
    rack_killed,
    restart_after_healing,
)


@scenario(
    "kip-112/leader-at-bootstrap",
    kip=112,
    plan="1) Log directory failure discovered during bootstrap",
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE, UNWRITABLE_ENDS_START),
)
@each_fault("fail_log_dir", PLAN_FAULTS)
def test_leader_at_bootstrap(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """A killed leader starts with a failed log dir: it goes on with the good one, and the other brokers lead.

    Brokers of builds with :data:`UNWRITABLE_ENDS_START` end if the log dir is readable; the others then serve on.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with injected_ahead(orders, BrokerKilled(victim)):
            state.broker_gone(victim)
            state.check()
            pair.await_progress(after=now())
            with injected(fail_log_dir(log_dir)) as fault:
                state.log_dir_failed(log_dir)
                victim.start()
                readable = fail_log_dir is ChmodNoWrite
                if not (readable and ends_as_known(cluster, victim, UNWRITABLE_ENDS_START, saying=UNWRITABLE)):
                    state.broker_back(victim)
                    state.check()
                    check_noticed(fault)
                    check_counted_after_change(state, pair, cluster.others(victim)[0])
                pair.await_progress(after=now())
        restart_after_healing(state, victim)
    check_delivery(workload)


def check_counted_after_change(state: StateCheck, pair: Pair, other: Broker) -> None:
    """Builds with :data:`OFFLINE_REPLICAS_COUNTED_LATE` count an offline replica once its partition has changed.

    Another broker is killed and comes back, which changes every ISR. On other builds the replica is counted already.
    """
    if expectation_of(OFFLINE_REPLICAS_COUNTED_LATE, state.cluster) is not Expectation.NONE:
        with rack_killed(state, [other]):
            pair.await_progress(after=now())


@scenario(
    "kip-112/leader-at-runtime",
    kip=112,
    plan="2) Log directory failure discovered on leader during runtime",
    any_profile=True,
)
@each_fault("fail_log_dir", PLAN_FAULTS)
def test_leader_at_runtime(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The leader's log dir fails: another broker leads, and this one, alone, still serves its good log dir."""
    fails_at_runtime(cluster, workload, fail_log_dir, leader_of)


@scenario(
    "kip-112/follower-at-runtime",
    kip=112,
    plan="3) Log directory failure discovered on follower during runtime",
)
@each_fault("fail_log_dir", (*PLAN_FAULTS, Removed))
def test_follower_at_runtime(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """A follower's log dir fails: the leader stays, and the follower's broker, alone, still serves its good log dir."""
    fails_at_runtime(cluster, workload, fail_log_dir, follower_of)


def fails_at_runtime(
    cluster: Cluster,
    workload: CaseWorkload,
    fail_log_dir: type[LogDirFault],
    role: Callable[[Partition], Broker],
) -> None:
    """Run item 2 or 3 of the plan; they differ only in the broker whose log dir fails."""
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = role(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    check_fetchers(orders)
    failed = log_dirs_failed(state, fail_log_dir(log_dir), check_at_end=False, ahead=orders)
    with workload.running(orders) as pair, failed:
        check_fetchers(orders, offline=(orders[0], victim))
        pair.await_progress(after=now())
        pair.stop()
        refunds = cluster.create_topic("refunds", replicas=3, configs=SERVED_ALONE, failure=PromiseBroken)
        state.add_topic(refunds)
        check_serves_alone(cluster, workload, state, victim, refunds)
    victim.restart()
    state.recovered()
    check_delivery(workload)


def check_fetchers(topic: Topic, *, offline: tuple[Partition, Broker] | None = None) -> None:
    """A broker has a partition in one replica fetcher thread if it follows the leader, and in none if it is offline.

    "The replica is no longer considered leader and is removed from any replica fetcher thread" (KIP-112).

    :param offline: the one replica on a failed log dir; None: there is none
    """

    def wrong() -> list[str]:
        found = []
        for broker, partition in itertools.product(topic.cluster.brokers, topic.partitions):
            assert broker.mbeans is not None
            threads = broker.mbeans.fetched(topic.name, partition.index)
            should = 0 if (partition, broker) == offline or broker == partition.leader() else 1
            if len(threads) != should:
                found.append(f"{broker} has {partition} in the threads {threads}, instead of in {should}")
        return found

    await_until(
        wrong,
        lambda found: not found,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the right replica fetcher threads to have {topic}",
        retry_on=(NoAnswer, AwaitTimeout),
        failure=PromiseBroken,
    )
    topic.cluster.journal.write("fetchers.checked", topic=topic.name, offline=offline and f"{offline[0]}, {offline[1]}")
