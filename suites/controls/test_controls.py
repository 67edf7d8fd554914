"""Controls: clusters on which something really goes wrong, so that the verdict must be ``invalid`` and name the kind.

They show that the judge and the checks find real harm. ``suites/selftest/test_controls_real.py`` runs them, and fails
if one comes out otherwise. The green twin of each is the same case without the harm, and must be ``valid``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from faults.base import Fault, injected
from faults.broker import BrokerKilled, BrokerPaused
from faults.file_system import PowerCut
from faults.log_dir import Chmod000
from faults.segment import AbortsBackdated, AbortsMisattributed, ByteFlipped
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import Inconclusive
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.versions import Mode
from harness.measure.floors import Floors
from harness.runner.case import Case
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until, let_pass
from harness.workload.client_config import ClientConfig
from harness.workload.producer import Transactions
from suites.checks import check_delivery, check_noticed, no_log_dir_fails
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import rack_killed

UNSAFE = {"acks": "1", "enable.idempotence": False}
SAFE = {"acks": "all", "enable.idempotence": True}
# One request for each record, and a retry as soon as it is refused.
ONE_BY_ONE = {"batch.num.messages": 1, "linger.ms": 0, "retry.backoff.ms": 1, "retry.backoff.max.ms": 1}


@scenario(
    "control/unclean-election",
    kip=112,
    plan="control: lost",
    floors=Floors(during=0),
    overrides={"unclean.leader.election.enable": "true"},
)
@pytest.mark.parametrize("config", [UNSAFE, SAFE], ids=["lost", "green"])
def test_unclean_election(cluster: Cluster, workload: CaseWorkload, config: ClientConfig) -> None:
    """Followers are paused and the leader is killed: with acks=1 acked records are lost, with acks=all none."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    leader = leader_of(orders[0])
    with workload.running(orders, producer_config=config) as pair, ExitStack() as killed:
        with injected(*map(BrokerPaused, orders[0].followers())) as pause:
            if config is UNSAFE:
                for _ in range(3):  # the followers had already asked for the first acked records
                    pair.await_acked(after=now())
            else:
                let_pass(0.5, since=pause.injected_monotonic_s)
            killed.enter_context(injected(BrokerKilled(leader)))
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("control/paused-leader", kip=112, plan="control: duplicated", floors=Floors(during=0))
@pytest.mark.parametrize("idempotent", [False, True], ids=["duplicated", "green"])
def test_paused_leader(cluster: Cluster, workload: CaseWorkload, idempotent: bool) -> None:
    """The leader is paused for longer than the producer waits: a producer without idempotence writes records twice."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    config = {"enable.idempotence": idempotent, "socket.timeout.ms": 400, "request.timeout.ms": 400}
    with workload.running(orders, producer_config=config) as pair:
        # Clients look for overdue requests once a second. The pause is longer than that, and shorter than a session, so
        # that the broker stays the leader. Three times, since a client may just have looked.
        for _ in range(3):
            with injected(BrokerPaused(leader_of(orders[0]))) as pause:
                let_pass(1.6, since=pause.injected_monotonic_s)
            pair.await_progress(after=now())
    check_delivery(workload)


@scenario("control/not-enough-replicas", kip=112, plan="control: reordered", floors=Floors(during=0))
@pytest.mark.parametrize("idempotent", [False, True], ids=["reordered", "green"])
def test_not_enough_replicas(cluster: Cluster, workload: CaseWorkload, idempotent: bool) -> None:
    """One of several requests in flight is refused: a producer that is not idempotent sends it again, out of order."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    several = {} if idempotent else {"enable.idempotence": False, "max.in.flight.requests.per.connection": 20}
    # At 150 records a second, a machine with two busy cores never caught up: the queue grew to 9000 records.
    with workload.running(orders, producer_config=ONE_BY_ONE | several, rate_per_s=50) as pair:
        with injected(BrokerKilled(orders[0].followers()[0])) as killed:
            state.broker_gone(killed.broker)
            state.check()
            for _ in range(12):
                orders.configure({"min.insync.replicas": "3"})  # of which two are left
                let_pass(0.2)
                orders.configure({"min.insync.replicas": "1"})
                pair.await_acked(after=now())
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "control/new-epoch",
    kip=112,
    plan="control: duplicated, resent",
    floors=Floors(during=0),
    brokers=4,
    modes=(Mode.KRAFT,),
)
@pytest.mark.parametrize("idempotent", [False, True], ids=["duplicated", "green"])
def test_new_epoch(cluster: Cluster, workload: CaseWorkload, case: Case, idempotent: bool) -> None:
    """A producer sees one batch overtaken by the next, takes a new epoch, and sends again what was in flight elsewhere.

    The client does that, not Kafka; a producer that is not idempotent has no epochs. One partition has too few replicas
    now and then, so that one of several requests is refused and the next is not. The other partition waits for a paused
    follower, so that requests are in flight.
    """
    [orders] = cluster.create_topics(NewTopic(name="orders", replicas=2, assignment={0: (1, 2), 1: (3, 4)}))
    state = StateCheck(cluster, orders)
    several = {"max.in.flight.requests.per.connection": 5, "request.timeout.ms": 100, "enable.idempotence": idempotent}
    with workload.running(orders, producer_config=ONE_BY_ONE | several, rate_per_s=150) as pair:
        with injected(BrokerKilled(cluster.broker(2))) as killed:
            state.broker_gone(killed.broker)
            state.check()
            overtaken = 0
            for _ in range(10):
                with injected(BrokerPaused(cluster.broker(4))) as pause:  # for less than its session
                    for _ in range(4):
                        orders.configure({"min.insync.replicas": "2"})
                        let_pass(0.2)
                        orders.configure({"min.insync.replicas": "1"})
                        let_pass(0.2)
                pair.await_progress(after=now())
                overtaken += cluster.broker(1).log.first("OutOfOrderSequence", since=pause.injected_at) is not None
                if overtaken == 4 or not idempotent:
                    break
        pair.await_progress(after=now())
    check_delivery(workload)
    assert case.verdict is not None
    if idempotent and not any(anomaly.kind == "resent" for anomaly in case.verdict.anomalies):
        raise Inconclusive(f"the client has sent nothing again: {case.verdict.reasons}")


@scenario("control/deleted-records", kip=112, plan="control: lost, vanished", floors=NO_FAULT)
@pytest.mark.parametrize("declared", [False, True], ids=["lost", "green"])
def test_deleted_records(cluster: Cluster, workload: CaseWorkload, case: Case, declared: bool) -> None:
    """Records are deleted with DeleteRecords: they count as lost, unless the run declares that it deleted them."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    with workload.running(orders):
        pass
    first = orders[0].delete_records(before=50)
    if declared:
        case.record(deleted_below={"orders": {"0": first}})
    check_delivery(workload)


@scenario("control/flipped-byte", kip=112, plan="control: corrupted", floors=NO_FAULT)
@pytest.mark.parametrize("mended", [False, True], ids=["corrupted", "green"])
def test_flipped_byte(cluster: Cluster, workload: CaseWorkload, case: Case, mended: bool) -> None:
    """A bit of a record's value flips on the leader's disk: readers get another value than was sent."""
    record_flips(cluster, workload, case, leader_of, mended=mended)


@scenario("control/follower-differs", kip=112, plan="control: a replica that no client reads", floors=NO_FAULT)
@pytest.mark.parametrize("mended", [False, True], ids=["differs", "green"])
def test_follower_differs(cluster: Cluster, workload: CaseWorkload, case: Case, mended: bool) -> None:
    """A bit of a record's value flips on a follower's disk: no reader sees it, and the comparison of replicas does."""
    record_flips(cluster, workload, case, follower_of, mended=mended)


def record_flips(
    cluster: Cluster, workload: CaseWorkload, case: Case, role: Callable[[Partition], Broker], *, mended: bool
) -> None:
    """A bit flips on this broker's disk; the history is judged before or, if ``mended``, after it is flipped back."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    with workload.running(orders):
        pass
    text = f"jbod {case.run_token} p0 60 ".encode()
    judge_harmed(workload, ByteFlipped(orders[0].log_dir_on(role(orders[0])), "orders", 0, text=text), mended=mended)


def judge_harmed(workload: CaseWorkload, harm: Fault, *, mended: bool) -> None:
    """Judge the history under the harm or, if ``mended``, after it."""
    with injected(harm):
        if not mended:
            check_delivery(workload)
    if mended:
        check_delivery(workload)


@scenario("control/misattributed-aborts", kip=112, plan="control: aborted_read", floors=NO_FAULT)
@pytest.mark.parametrize("mended", [False, True], ids=["aborted_read", "green"])
def test_misattributed_aborts(cluster: Cluster, workload: CaseWorkload, mended: bool) -> None:
    """The leader's index of aborted transactions names another producer: read_committed readers get aborted records."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    with workload.running(orders, transactional=Transactions()) as pair:
        pair.await_progress(after=now(), records=300)  # one of five transactions, of 50 records each, is aborted
    judge_harmed(workload, AbortsMisattributed(orders[0].log_dir_on(leader_of(orders[0])), "orders", 0), mended=mended)


@scenario("control/backdated-aborts", kip=112, plan="control: hidden", floors=NO_FAULT)
@pytest.mark.parametrize("mended", [False, True], ids=["hidden", "green"])
def test_backdated_aborts(cluster: Cluster, workload: CaseWorkload, mended: bool) -> None:
    """The leader's index has aborted transactions begin too early: read_committed readers miss committed records."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    with workload.running(orders, transactional=Transactions(abort_every=2)) as pair:
        # Fifteen transactions are aborted, and about half of them begin at a fitting offset.
        pair.await_progress(after=now(), records=1500)
    judge_harmed(workload, AbortsBackdated(orders[0].log_dir_on(leader_of(orders[0])), "orders", 0), mended=mended)


RACKS_UNKNOWN, RACKS_KNOWN = (
    SimpleNamespace(cluster={}),
    SimpleNamespace(cluster={"racks": ("a", "a", "b", "b", "c", "c")}),
)


@scenario("control/rack-fails", kip=36, plan="control: a topic dies with its rack", floors=Floors(during=0), brokers=6)
@pytest.mark.parametrize("racks", [RACKS_UNKNOWN, RACKS_KNOWN], ids=["unavailable", "green"])
def test_rack_fails(cluster: Cluster, workload: CaseWorkload, racks: SimpleNamespace) -> None:
    """Two brokers of one rack are killed: if Kafka does not know the racks, some partition had both replicas there.

    Thirty partitions cover every pair of six brokers in ZooKeeper mode; in KRaft, six cover all neighbours.
    """
    orders = cluster.create_topic("orders", partitions=30, replicas=2)
    state = StateCheck(cluster, orders)
    with workload.running(orders, rate_per_s=1500) as pair, rack_killed(state, cluster.brokers[:2]):
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("control/log-dir-offline", kip=112, plan="control: a log dir is taken offline", floors=NO_FAULT)
@pytest.mark.parametrize("broken", [True, False], ids=["offline", "green"])
def test_log_dir_offline(cluster: Cluster, workload: CaseWorkload, broken: bool) -> None:
    """A log dir fails while none should: the check names the broker and the log dir."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    victim = leader_of(orders[0])
    with no_log_dir_fails(cluster), workload.running(orders) as pair, ExitStack() as stack:
        if broken:
            check_noticed(stack.enter_context(injected(Chmod000(orders[0].log_dir_on(victim)))))
        pair.await_progress(after=now(), records=5000)
    check_delivery(workload)


@scenario("control/broker-ends", kip=112, plan="control: a broker ends by itself", floors=NO_FAULT)
@pytest.mark.parametrize("by_itself", [True, False], ids=["unmissed", "green"])
def test_broker_ends(cluster: Cluster, workload: CaseWorkload, by_itself: bool) -> None:
    """A follower ends by itself before the scenario restarts it: nothing is lost, and the check names the broker."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    follower = follower_of(orders[0])
    with workload.running(orders) as pair:
        if by_itself:
            pid = follower.node.pid()
            assert pid is not None
            os.kill(pid, signal.SIGTERM)
            await_until(lambda: not follower.node.is_alive(), timeout_s=timeouts.STOP_S, what=f"{follower} to end")
        follower.restart()
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "control/power-cut-everywhere",
    kip=112,
    plan="control: lost",
    floors=NO_FAULT,
    volumes="ext4",
    needs=PowerCut.needs,
)
@pytest.mark.parametrize("synced", [False, True], ids=["lost", "green"])
def test_power_cut_everywhere(cluster: Cluster, workload: CaseWorkload, synced: bool) -> None:
    """All brokers lose power at once: acked records are lost on every replica, unless the topic syncs each write."""
    orders = cluster.create_topic(
        "orders", partitions=1, replicas=3, configs={"flush.messages": "1"} if synced else None
    )
    with workload.running(orders):
        pass
    with injected(*map(PowerCut, cluster.brokers)):
        pass
    cluster.await_healthy(failure=Inconclusive)
    with workload.running(orders):
        pass
    check_delivery(workload)
