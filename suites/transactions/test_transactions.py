"""Shows that transactions stay whole through a log-dir failure (KIP-112, items 2 and 3 of the test plan).

A transaction is in two logs, the partition's and the coordinator's (``__transaction_state``), so there are two leaders
to lose. The producer commits and aborts all the time. One live consumer and one drain read committed records, another
consumer and drain read all. KIP-98 ("Transactional guarantees") promises that a read_committed consumer gets all
records of a committed transaction, and none of an aborted one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.transaction_requests import describe_transaction
from harness.kafka.versions import VersionRange
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from harness.workload.pair import Pair
from harness.workload.producer import Transactions
from suites.checks import check_delivery, promised
from suites.deviations import COORDINATOR_RELOADED, MARKER_SKIPPED
from suites.observing import observe
from suites.on_disk import check_same_bytes
from suites.scenario import each_role, scenario
from suites.state_check import StateCheck
from suites.steps import check_some_leaderless, log_dirs_failed, restart_after_healing
from suites.untracked_transactions import UntrackedProducer, check_reads

# Ten transactions under the fault, two of them aborted on purpose.
RECORDS = 500
FLOORS = Floors(during=300)
DESCRIBES = VersionRange.parse(">=3.0")
"""The builds that describe transactions (KIP-664)."""
COORDINATOR_STUCK = "completing transaction state transition while it does not have a pending state"
"""The log line of a coordinator whose state no longer fits the record that it wrote."""
# A request that waits for followers when a log dir fails is answered only at its time-out (suites/FINDINGS.md, 2). For
# a transaction's marker that is the broker's request.timeout.ms. For a record of the coordinator's log it is
# transaction.timeout.ms (10 s here). The coordinator then goes on at the next turn of its
# TransactionMarkerChannelManager thread, once each request.timeout.ms if idle. By default that is 30 s.
OVERRIDES = {"request.timeout.ms": "3000"}


@scenario(
    "transactions/leader-log-dir",
    kip=112,
    plan="2) Log directory failure discovered on leader during runtime, under transactions",
    floors=FLOORS,
    overrides=OVERRIDES,
)
def test_leader_log_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """The log dir of the partition's leader fails while transactions run: each transaction stays whole."""
    coordinator_log, orders = create_topics(cluster)
    check_stay_whole(cluster, workload, coordinator_log, orders, orders[0], leader_of)


@scenario(
    "transactions/coordinator-log-dir",
    kip=112,
    plan="2), 3) Log directory failure during runtime, of the transaction coordinator's log",
    floors=FLOORS,
    overrides=OVERRIDES,
    deviations=(COORDINATOR_RELOADED,),
)
@each_role
def test_coordinator_log_dir(cluster: Cluster, workload: CaseWorkload, role: Callable[[Partition], Broker]) -> None:
    """The log dir of the transaction coordinator's log fails, on its leader or a follower: transactions stay whole."""
    coordinator_log, orders = create_topics(cluster)
    check_stay_whole(cluster, workload, coordinator_log, orders, coordinator_log[0], role)


@scenario(
    "transactions/lone-log-dir",
    kip=112,
    plan="2) Log directory failure discovered on leader during runtime, of the only replica, amid a transaction",
    builds=DESCRIBES,
    judged=False,
    overrides=OVERRIDES,
    deviations=(MARKER_SKIPPED,),
)
def test_lone_log_dir(cluster: Cluster) -> None:
    """The log dir of a partition's only replica fails amid a transaction: its commit ends once the log dir is good."""
    coordinator_log = cluster.create_topic("__transaction_state", configs={"cleanup.policy": "compact"})
    victim = coordinator_log[0].followers()[0]  # a new coordinator would send all markers again
    [lone] = cluster.create_topics(NewTopic(name="lone", assignment={0: [victim.id]}))
    state = StateCheck(cluster, coordinator_log, lone)
    log_dir = lone[0].log_dir_on(victim)
    producer = UntrackedProducer(lone, "lone", transactional_id="lone")
    values = producer.write()
    with log_dirs_failed(state, Chmod000(log_dir)):
        check_some_leaderless(state, lone)
        producer.write(commit=True, count=0)  # the coordinator decides, and its marker has to wait for a leader
    restart_after_healing(state, victim)
    await_committed(coordinator_log[0], "lone")
    with promised(cluster, unless=MARKER_SKIPPED, seen=r"lone-0 has no marker .* stable offset is 0,") as outcome:
        check_none_open(lone[0])
    if not outcome.deviates:
        values += producer.write(commit=True)
        check_reads(lone, "read_committed", values)


def await_committed(log: Partition, transactional_id: str) -> None:
    """Wait until the coordinator has completed a transaction.

    :raises PromiseBroken: it does not complete it in time
    """
    await_until(
        lambda: state_at(log.leader(), transactional_id),
        lambda state: state == "CompleteCommit",
        timeout_s=timeouts.PROGRESS_S,
        what=f"the coordinator to complete the transaction of {transactional_id}",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )


def state_at(broker: Broker, transactional_id: str) -> str:
    """The state of a transactional id, as this broker describes it.

    :raises Refused: NOT_COORDINATOR from a broker that is not its coordinator
    """
    with closing(broker.new_connection()) as connection:
        return describe_transaction(connection, transactional_id)


def check_none_open(partition: Partition) -> None:
    """No transaction is open in a partition, since the coordinator has completed all."""
    admin, key = partition.leader().admin, (partition.topic, partition.index)
    stable, end = admin.last_stable_offset(*key), admin.end_offset(*key)
    if stable != end:
        raise PromiseBroken(
            f"{partition} has no marker of a transaction that is complete: its last stable offset is {stable}, and it "
            f"ends at {end}"
        )


def create_topics(cluster: Cluster) -> tuple[Topic, Topic]:
    """Create the coordinator's topic and the producer's, on different log dirs of each broker.

    :raises Inconclusive: a broker has both on one log dir
    """
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
    """Let the log dir of one replica of ``struck`` fail under transactions, and judge the history."""
    state = StateCheck(cluster, coordinator_log, orders)
    victim = role(struck)
    log_dir = struck.log_dir_on(victim)
    with workload.running(orders, transactional=Transactions()) as pair:
        with log_dirs_failed(state, Chmod000(log_dir), ahead=orders):
            await_transactions(pair, state, coordinator_log[0].leader())
        restart_after_healing(state, victim)
    check_delivery(workload)
    check_same_bytes(*coordinator_log.partitions)


def await_transactions(pair: Pair, state: StateCheck, coordinator: Broker) -> None:
    """Transactions go on. Where the coordinator reloaded its log and is stuck, they go on once it is restarted.

    :raises PromiseBroken: they do not go on
    """
    try:
        pair.await_progress(after=now(), records=RECORDS)
    except PromiseBroken as error:
        if (line := coordinator.log.first(COORDINATOR_STUCK)) is None:
            raise
        observe(COORDINATOR_RELOADED, state.cluster, deviates=True, seen=line.text, broken=error)
        coordinator.stop()
        state.broker_gone(coordinator)
        coordinator.start()
        state.broker_back(coordinator)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now(), records=RECORDS)
