"""Shows that a move keeps a log's producer state and its aborted transactions (KIP-113, 2.).

A log has more than records. It has the state of its producers (last sequence numbers and open transactions, in
snapshots on disk) and the index of aborted transactions. The future replica builds both from the records that are
copied, as a follower does (``UnifiedLog.appendAsFollower``). The broker uses them from the swap on. Without them, the
leader would accept duplicates, forget open transactions, and hand aborted records to readers.
"""

from __future__ import annotations

from collections.abc import Sequence

from faults.base import injected
from faults.broker import BrokerStopped
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.metadata import ProducerState
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from harness.workload.producer import Transactions
from suites.checks import check_delivery
from suites.deviations import REFUSED_AFTER_SWAP, REFUSED_AFTER_SWAP_IN_KRAFT
from suites.moves import SMALL_FETCHES, begin_move, check_under_way, finish_move, moves_held
from suites.observing import observe
from suites.on_disk import check_same_bytes
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import make_leader
from suites.untracked_transactions import UntrackedProducer, check_reads

_REFUSED = "INVALID_TXN_STATE"
REFUSED_AFTER = {Mode.ZK: REFUSED_AFTER_SWAP, Mode.KRAFT: REFUSED_AFTER_SWAP_IN_KRAFT}
"""What builds of each mode are known for."""


@scenario(
    "kip-113/transactions",
    kip=113,
    plan="2. Complete replica data movement: the leader's, under transactions",
    floors=NO_FAULT,
    overrides=SMALL_FETCHES,
    deviations=tuple(REFUSED_AFTER.values()),
)
def test_transactions(cluster: Cluster, workload: CaseWorkload) -> None:
    """Leaders' replicas move during transactions: open ones stay open, aborted ones aborted, also after a restart.

    One of them has no aborted transaction before it moves, and has one afterwards.
    """
    orders = cluster.create_topic("orders")
    replicas = orders[0].describe().replicas
    alike = [NewTopic(name=name, replicas=3, assignment={0: replicas}) for name in ("ledger", "later")]
    ledger, later = cluster.create_topics(*alike)
    state = StateCheck(cluster, orders, ledger, later)
    mover = leader_of(orders[0])
    ends = {topic[0]: other_dir(topic[0].log_dir_on(mover)) for topic in (orders, ledger, later)}
    workload.expect_errors(_REFUSED)
    with workload.running(orders, record_bytes=1000, transactional=Transactions()) as pair:
        pair.await_count(500)
        before, amid = UntrackedProducer(ledger, "before"), UntrackedProducer(ledger, "amid")
        kept, aborted = before.write(commit=True), before.write(commit=False)
        left_open = before.write()
        aborts_later = UntrackedProducer(later, "later")
        kept_later = aborts_later.write(commit=True)
        with moves_held(mover):
            for partition, there in ends.items():
                begin_move(partition, there, waits=partition.topic != orders.name)
                state.move_held(partition, there)
            kept_too, aborted_too = amid.write(commit=True), amid.write(commit=False)
            left_open_too = amid.write()
            known = mover.admin.describe_producers(ledger.name, 0)
            for partition, there in ends.items():
                check_under_way(partition, there)
        for partition, there in ends.items():
            finish_move(state, partition, there)
        check_producers_known(ledger[0], known)
        check_reads(ledger, "read_committed", kept)  # later records wait for the end of the open transactions
        ended, ended_too = before.write(commit=True), amid.write(commit=False)
        committed = [*kept, *left_open, *kept_too, *ended]
        everything = [*kept, *aborted, *left_open, *kept_too, *aborted_too, *left_open_too, *ended, *ended_too]
        check_reads(ledger, "read_committed", committed)
        check_reads(ledger, "read_uncommitted", everything)
        aborts_later.write(commit=False)  # the first one in its log, so the broker makes its index only now
        check_reads(later, "read_committed", kept_later)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    with injected(BrokerStopped(mover)):  # a clean stop: after a crash it would rebuild its indexes
        state.broker_gone(mover)
        state.check()
    state.broker_back(mover)
    state.check(timeouts.RECOVERY_S)
    make_leader(cluster, state, mover)  # the reads now show what it found on its disks
    check_reads(ledger, "read_committed", committed)
    check_reads(ledger, "read_uncommitted", everything)
    check_reads(later, "read_committed", kept_later)
    check_same_bytes(ledger[0], later[0])
    check_delivery(workload)
    check_refused_once(cluster, workload)


def check_refused_once(cluster: Cluster, workload: CaseWorkload) -> None:
    """No record was refused as the leader's replica was swapped; a build that is known for it may refuse one
    transaction."""
    refused = workload.refused.get(_REFUSED)
    if refused is None:
        return
    broken = PromiseBroken(str(refused))
    if len(refused.transactions) > 1:  # one swap
        raise broken
    observe(REFUSED_AFTER[cluster.spec.mode], cluster, deviates=True, seen=refused, broken=broken)


def check_producers_known(partition: Partition, before: Sequence[ProducerState]) -> None:
    """The leader has the same producer state as before the move: two producers with open transactions."""
    leader = partition.leader()
    known = leader.admin.describe_producers(partition.topic, partition.index)
    leader.journal.write("producers.known", partition=str(partition), producers=[str(each) for each in known])
    if known != before or [each.open_since is None for each in known] != [False, False]:
        raise PromiseBroken(f"the producer state of {partition} on {leader} is {list(known)}, and was {list(before)}")
