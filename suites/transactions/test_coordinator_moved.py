"""Shows that transactions go on while their coordinator's own log is moved (KIP-113) and reassigned (KIP-455).

``__transaction_state`` is a topic as any other. Its leader is the transaction coordinator, so another one takes over
as its leader's replica leaves.
"""

from __future__ import annotations

import functools
import operator

from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from harness.workload.producer import Transactions
from suites.checks import check_delivery
from suites.moves import finish_move
from suites.on_disk import check_no_leftovers, check_same_bytes
from suites.reassignments import reassign_by_request
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.transactions.test_transactions import DESCRIBES, state_at
from suites.untracked_transactions import new_producer

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
    new_producer(coordinator, "known")
    with workload.running(orders, transactional=Transactions()) as pair:
        pair.await_progress(after=now(), records=RECORDS)
        there = other_dir(log.log_dir_on(coordinator))
        log.move_to(there)
        finish_move(state, log, there)
        state.check()
        pair.await_progress(after=now(), records=RECORDS)
        reassign_by_request(state, log, third, follower)
        check_only_coordinator(log, "known")
        pair.await_progress(after=now(), records=RECORDS)
    check_delivery(workload)
    check_same_bytes(*coordinator_log.partitions)
    check_no_leftovers(cluster, {coordinator_log.name})


def check_only_coordinator(log: Partition, transactional_id: str) -> None:
    """The leader of the coordinator's log knows the transactional id, and the other brokers send clients to it.

    A broker that was the coordinator must forget its transactions. A transactional request would not show that: it also
    fails as the broker cannot write to the log.
    """
    if log.cluster.distribution.version not in DESCRIBES:
        return
    leader = log.leader()
    for broker in log.cluster.live_brokers():
        wanted = "Empty" if broker == leader else "NOT_COORDINATOR"
        await_until(
            functools.partial(_state_or_error, broker, transactional_id),
            functools.partial(operator.eq, wanted),
            timeout_s=timeouts.QUESTION_S,
            what=f"{broker} to answer {wanted} for the transactional id {transactional_id} of {leader}",
            retry_on=(NoAnswer,),
            failure=PromiseBroken,
        )


def _state_or_error(broker: Broker, transactional_id: str) -> str:
    try:
        return state_at(broker, transactional_id)
    except Refused as refused:
        return refused.error
