"""Shows that transactions go on while their coordinator's own log is moved (KIP-113) and reassigned (KIP-455).

``__transaction_state`` is a topic as any other. Its leader is the transaction coordinator, so another one takes over
as its leader's replica leaves.
"""

from __future__ import annotations

from faults.targets import leader_of, other_dir
from harness.cluster.cluster import Cluster
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from harness.workload.producer import Transactions
from suites.checks import check_delivery
from suites.on_disk import check_no_leftovers, check_same_bytes
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import finish_move, reassign_by_request

RECORDS = 300


@scenario(
    "transactions/coordinator-log-moved",
    kip=113,
    plan="2. How to move replica between log directories: the transaction coordinator's log, then to another broker",
    floors=NO_FAULT,
)
def test_coordinator_log_moved(cluster: Cluster, workload: CaseWorkload) -> None:
    """The coordinator's log moves to the other log dir, and its leader to another broker: transactions go on."""
    coordinator_log = cluster.create_topic("__transaction_state", replicas=2, configs={"cleanup.policy": "compact"})
    orders = cluster.create_topic("orders")
    state = StateCheck(cluster, coordinator_log, orders)
    log = coordinator_log[0]
    coordinator, [follower] = leader_of(log), log.followers()
    [third] = (broker for broker in cluster.brokers if broker not in (coordinator, follower))
    with workload.running(orders, transactional=Transactions()) as pair:
        pair.await_progress(after=now(), records=RECORDS)
        there = other_dir(log.log_dir_on(coordinator))
        log.move_to(there)
        finish_move(state, log, there)
        state.check()
        pair.await_progress(after=now(), records=RECORDS)
        reassign_by_request(state, log, third, follower)
        pair.await_progress(after=now(), records=RECORDS)
    check_delivery(workload)
    check_same_bytes(*coordinator_log.partitions)
    check_no_leftovers(cluster, {coordinator_log.name})
