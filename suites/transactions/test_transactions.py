"""Transactions through a log-dir failure: whole or not at all, whatever fails in the middle of one.

A transaction is spread over two logs, the partition's and the coordinator's (``__transaction_state``), so there are two
leaders to lose. The producer commits and aborts all the time; one live consumer reads what is committed, another one
everything, and so do two drains afterwards. What is promised (KIP-98, "Transactional guarantees"): a read_committed
consumer is handed all records of a committed transaction and none of an aborted one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive
from harness.journal import now
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.workload.producer import Transactions
from suites.checks import check_delivery
from suites.on_disk import check_same_bytes
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing

# Ten transactions under the fault, two of them aborted on purpose.
RECORDS = 500
FLOORS = Floors(during=300)
# A record that waits for followers when a log dir fails is not answered before its time-out, whoever leads by then
# (suites/FINDINGS.md, 2). For a transaction's marker that is request.timeout.ms of the broker. For a record of the
# coordinator's log it is transaction.timeout.ms (10 s here), and then the coordinator goes on at the next turn of its
# TransactionMarkerChannelManager's thread: with nothing else to do, one each request.timeout.ms. By default, 30 s.
OVERRIDES = {"request.timeout.ms": "3000"}


@scenario(
    "transactions/leader-log-dir",
    kip=112,
    plan="2) Log directory failure discovered on leader during runtime, under transactions",
    floors=FLOORS,
    overrides=OVERRIDES,
)
def test_leader_log_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """The log dir of the partition's leader fails while transactions run: each stays whole."""
    coordinator_log, orders = create_topics(cluster)
    check_stay_whole(cluster, workload, coordinator_log, orders, orders[0], leader_of)


@scenario(
    "transactions/coordinator-log-dir",
    kip=112,
    plan="2), 3) Log directory failure during runtime, of the transaction coordinator's log",
    floors=FLOORS,
    overrides=OVERRIDES,
)
@pytest.mark.parametrize("role", [leader_of, follower_of], ids=["leader", "follower"])
def test_coordinator_log_dir(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """A log dir with the transaction coordinator's log fails while transactions run: each ends, and stays whole."""
    coordinator_log, orders = create_topics(cluster)
    check_stay_whole(cluster, workload, coordinator_log, orders, coordinator_log[0], role)


def create_topics(cluster: Cluster) -> tuple[Topic, Topic]:
    """The coordinator's topic and the producer's, each on log dirs of its own."""
    coordinator_log = cluster.create_topic("__transaction_state", configs={"cleanup.policy": "compact"})
    orders = cluster.create_topic("orders")
    for broker in cluster.brokers:
        if coordinator_log[0].log_dir_on(broker) == orders[0].log_dir_on(broker):
            raise Inconclusive(f"{broker} has {coordinator_log[0]} and {orders[0]} on one log dir")
    return coordinator_log, orders


def check_stay_whole(
    cluster: Cluster,
    workload: CaseWorkload,
    coordinator_log: Topic,
    orders: Topic,
    struck: Partition,
    role: Callable[[Partition], Broker],
) -> None:
    """With transactions on ``orders``, one replica's log dir fails; they go on, and all that they left is judged."""
    state = StateCheck(cluster, coordinator_log, orders)
    victim = role(struck)
    log_dir = struck.log_dir_on(victim)
    with workload.running(orders, transactional=Transactions()) as pair:
        with log_dirs_failed(state, Chmod000(log_dir)):
            pair.await_progress(after=now(), records=RECORDS)
        restart_after_healing(state, victim)
    check_delivery(workload)
    check_same_bytes(*coordinator_log.partitions)
