"""Shows KIP-113's system-test plan: both items, in its order.

"Validate client/cluster state" means the same as in KIP-112's plan (``suites/kip_112/test_plan.py``). After a move, no
broker may have a replica twice, or leftovers (:func:`~suites.on_disk.check_no_leftovers`). "Run
kafka-reassign-partitions.sh to periodically verify" runs that tool (:mod:`harness.cluster.reassign`).
"""

from __future__ import annotations

from contextlib import ExitStack

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of, other_dir
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement
from harness.errors import Inconclusive
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.reassignments import reassign
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed


@scenario(
    "kip-113/move-replicas",
    kip=113,
    plan="1) Move replica between disks on the same broker and across brokers",
    floors=NO_FAULT,
)
def test_move_replicas(cluster: Cluster, workload: CaseWorkload) -> None:
    """Three single replicas move, each to its broker's other log dir, then to an unused log dir of the next broker.

    Then all brokers are killed and started, so that the drain reads what they find in the new log dirs.
    """
    orders = cluster.create_topic("orders", partitions=3, replicas=1)
    state = StateCheck(cluster, orders)
    with workload.running(orders) as pair:
        left = {partition.leader(): partition.log_dir_on(partition.leader()) for partition in orders.partitions}
        here = [Placement(partition=p, on=(other_dir(left[p.leader()]),)) for p in orders.partitions]
        reassign(cluster, state, *here)
        pair.await_progress(after=now())
        # The log dir that a broker's first replica left is its unused one.
        there = [Placement(partition=p, on=(left[next_broker(cluster, p.leader())],)) for p in orders.partitions]
        reassign(cluster, state, *there)
        pair.await_progress(after=now())
    with injected(*map(BrokerKilled, cluster.brokers)):
        state.broker_gone(*cluster.brokers)
    state.recovered()
    check_delivery(workload)


def next_broker(cluster: Cluster, broker: Broker) -> Broker:
    """The broker after this one; the first after the last."""
    return cluster.brokers[(cluster.brokers.index(broker) + 1) % len(cluster.brokers)]


@scenario(
    "kip-113/bad-log-dirs",
    kip=113,
    plan="2) Verify that bad log directories discovered during runtime do not affect replicas on the good ones",
)
def test_bad_log_dirs(cluster: Cluster, workload: CaseWorkload) -> None:
    """One topic is on all first log dirs, one on all second ones; these fail one by one: the first topic is untouched.

    The topics are created in the other order, so that the tool has replicas to move.
    """
    second, first = (cluster.create_topic(name) for name in ("topic2", "topic1"))
    state = StateCheck(cluster, first, second)
    for topic, number in ((first, 0), (second, 1)):
        brokers = map(cluster.broker, topic[0].describe().replicas)
        wanted = tuple(broker.log_dirs[number] for broker in brokers)
        if all(topic[0].log_dir_on(log_dir.broker) == log_dir for log_dir in wanted):
            raise Inconclusive(f"{topic} is already in these log dirs: the tool moves nothing")
        reassign(cluster, state, Placement(partition=topic[0], on=wanted))
    leader, follower = leader_of(first[0]), follower_of(first[0])
    last = next(broker for broker in cluster.brokers if broker not in (leader, follower))
    with workload.running(first) as pair, ExitStack() as failing:
        with workload.running(second) as other:
            for broker in (follower, leader):
                failing.enter_context(log_dirs_failed(state, Chmod000(broker.log_dirs[1])))
                pair.await_progress(after=now())
                other.await_progress(after=now())
        failing.enter_context(log_dirs_failed(state, Chmod000(last.log_dirs[1])))
        pair.await_progress(after=now())
        pair.stop()
    for broker in cluster.brokers:
        broker.restart()
    state.recovered()
    check_delivery(workload)
