"""Shows that brokers know their transactions after a restart and after a crash, and fence old producers (KIP-98).

A log's transactions are on its leader's disk three times: in the records themselves, in snapshots of the state of its
producers, and in each segment's index of aborted transactions. A clean stop writes all of it. After a crash, the broker
builds it again from the records.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import closing

from faults.base import injected
from faults.broker import BrokerKilled, BrokerPaused, BrokerStopped
from faults.segment import AbortsForgotten
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import ProducerState
from harness.kafka.record_requests import Producer
from harness.kafka.transaction_requests import write_marker
from harness.kafka.versions import VersionRange
from harness.waiting import await_until
from suites.checks import check_refused
from suites.log_cleaning import SMALL_SEGMENTS
from suites.on_disk import check_same_bytes
from suites.reassignments import reassign_by_request
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import brokers_down, flipped_while_down, make_leader
from suites.transactions.test_idempotence import EXPIRES_OFTEN
from suites.untracked_transactions import UntrackedProducer, check_reads

SUPERSEDED = "_FENCED|PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"
ABANDONED_MS = 8000  # the time-out of a transaction: far longer than its records take
VERIFIES = VersionRange.parse(">=3.6")
"""The builds that verify that a transaction has begun before they write its records (KIP-890)."""
BUMPS_EPOCH = VersionRange.parse(">=4.2")
"""The builds whose leaders know by a marker's epoch that it is of an earlier transaction (KIP-890, KIP-1228)."""
CHANGES_EXPIRY = VersionRange.parse(">=3.5")
"""The builds that change ``producer.id.expiration.ms`` at run time (KIP-854)."""
MANY = 700  # records: the second transaction begins in one segment and ends in the next


@scenario(
    "transactions/restarted-with-open",
    kip=112,
    plan="transactions in several segments, open and aborted, over a clean stop and a crash of a broker",
    judged=False,
    overrides=EXPIRES_OFTEN,
)
def test_restarted_with_open(cluster: Cluster) -> None:
    """A broker is stopped and killed amid transactions, and then leads: readers get each whole, or not at all.

    While it is down, the index of aborted transactions of its oldest segment rots. It finds that as it starts, also
    after the clean stop (``TransactionIndex.sanityCheck``), and builds the index again from the records.
    Then it dies with a marker that it was sent: the coordinator sends the marker to the next leader.
    """
    ledger = cluster.create_topic("ledger", configs=SMALL_SEGMENTS)
    coordinator_log = cluster.create_topic("__transaction_state", configs={"cleanup.policy": "compact"})
    state = StateCheck(cluster, ledger, coordinator_log)
    broker = ledger[0].leader()
    first, second, third = (UntrackedProducer(ledger, name) for name in ("first", "second", "third"))
    everything = [*second.write(commit=False), *(committed := first.write(commit=True, count=MANY))]
    everything = [*everything, *second.write(commit=False, count=MANY)]
    overlapped, ended = first.write(), second.write(count=MANY)
    kept = third.write(commit=True, count=MANY)
    second.write(commit=False, count=0)  # aborted before the transaction that began earlier
    first.write(commit=False, count=0)
    everything, committed = [*everything, *overlapped, *ended, *kept], [*committed, *kept]
    check_reads(ledger, "read_committed", committed)
    for end in (BrokerStopped, BrokerKilled):
        everything += first.write(commit=False, count=MANY)  # after the last clean stop, so a crash must find it
        left_open = second.write()
        rots = AbortsForgotten(ledger[0].log_dir_on(broker), ledger.name, 0)
        with flipped_while_down(state, rots, end):
            pass
        make_leader(cluster, state, broker)
        hidden = third.write(commit=True)
        check_reads(ledger, "read_committed", committed)  # later records wait for the open transaction
        second.write(commit=True, count=0)
        everything, committed = [*everything, *left_open, *hidden], [*committed, *left_open, *hidden]
        check_reads(ledger, "read_committed", committed)
        check_reads(ledger, "read_uncommitted", everything)
    if cluster.distribution.version in CHANGES_EXPIRY:
        committed = [*committed, *check_open_does_not_expire(ledger, began=second, ended=third)]
        check_reads(ledger, "read_committed", committed)
    reassign_by_request(state, coordinator_log[0], *cluster.others(broker))  # no marker ends with its coordinator
    committed = [*committed, *first.write()]
    with injected(BrokerPaused(broker)):
        first.write(commit=True, count=0)  # the coordinator answers before the leader has the marker
        with brokers_down(state, BrokerKilled(broker)):
            check_reads(ledger, "read_committed", committed)
    check_same_bytes(*ledger.partitions)


def check_open_does_not_expire(ledger: Topic, began: UntrackedProducer, ended: UntrackedProducer) -> list[bytes]:
    """A producer with an open transaction does not expire, though an idle one that wrote later does.

    Returns what both write and commit.
    """
    partition = ledger[0]
    leader, key = partition.leader(), (partition.topic, partition.index)
    leader.configure({"producer.id.expiration.ms": "1000"})  # a day by default
    values = [*began.write(), *ended.write(commit=True)]
    left = await_until(
        lambda: leader.admin.describe_producers(*key),
        lambda known: len(known) <= 1,
        timeout_s=timeouts.QUESTION_S,
        what=f"{leader} to forget the idle producers of {partition}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    leader.configure({"producer.id.expiration.ms": None})
    began.write(commit=True, count=0)
    if [each.open_since is not None for each in left] != [True]:
        raise PromiseBroken(
            f"{leader} knows {left} of {partition}, instead of the one producer with an open transaction"
        )
    return values


@scenario(
    "transactions/zombie-producer",
    kip=112,
    plan="a producer that is superseded amid a transaction, and does not know it; another one that never comes back",
    judged=False,
    overrides={
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",  # 10 s by default
        "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",  # an hour by default
    },
)
def test_zombie_producer(cluster: Cluster) -> None:
    """A transactional id is taken over: the old producers' transactions are aborted, and they write and end none.

    Then a producer abandons a transaction: Kafka aborts it after its time-out, and readers go on behind it. A producer
    that was idle until then writes again, since transactional ids expire after a week only.
    """
    ledger = cluster.create_topic("ledger")
    take_over = functools.partial(UntrackedProducer, ledger, transactional_id="shared")
    writes = take_over("writes")
    kept, aborted = writes.write(commit=True), writes.write()
    commits = take_over("commits")
    aborted += commits.write()
    aborts = take_over("aborts")
    aborted += aborts.write()
    new = take_over("new")
    began = new.write()
    for attempt in (
        functools.partial(commits.write, commit=True, count=0),
        functools.partial(aborts.write, commit=False, count=0),
        functools.partial(writes.write, count=1),
    ):
        check_fenced(cluster, attempt)
        check_reads(ledger, "read_committed", kept)  # the new producer's transaction is not committed
        began += new.write(count=1)  # nor aborted
    check_stale_markers_refused(ledger[0])
    new.write(commit=True, count=0)
    check_reads(ledger, "read_committed", [*kept, *began])
    abandoned = UntrackedProducer(ledger, "abandoned", timeout_ms=ABANDONED_MS).write()
    unended = open_producer(ledger[0])
    behind = new.write(commit=True)
    await_all_ended(ledger[0])
    check_marker_taken_again(ledger[0], unended.producer)
    behind += new.write(commit=True)
    check_reads(ledger, "read_committed", [*kept, *began, *behind])
    check_reads(ledger, "read_uncommitted", [*kept, *aborted, *began, *abandoned, *behind])
    check_same_bytes(*ledger.partitions)
    check_ends_without_topic(cluster)
    if cluster.distribution.version in VERIFIES:
        check_unbegun_refused(ledger[0])


def check_ends_without_topic(cluster: Cluster) -> None:
    """A transaction ends though its topic was deleted amid it, so another producer can take over its id."""
    doomed = cluster.create_topic("doomed")
    producer = UntrackedProducer(doomed, "outlives", transactional_id="outlives")
    producer.write()
    cluster.delete_topics(doomed)
    producer.write(commit=True, count=0)
    UntrackedProducer(doomed, "successor", transactional_id="outlives")


def check_unbegun_refused(partition: Partition) -> None:
    """The leader refuses a record of a transaction that has not begun: no coordinator would ever end it."""
    coordinator = Partition(partition.cluster, "__transaction_state", 0).leader()
    with OwnPart(partition.cluster, "give producers ids", needs_all=False).served():
        producer = coordinator.admin.init_producer_id("unbegun")
    write = functools.partial(partition.leader().admin.produce, partition.topic, partition.index, b"unbegun", acks=-1)
    unbegun = functools.partial(write, producer=producer, sequence=0, transactional_id="unbegun")
    check_refused(unbegun, "INVALID_TXN_STATE", "")


def check_stale_markers_refused(partition: Partition) -> None:
    """The leader refuses to end the open transaction by a marker of an earlier coordinator or transaction.

    An earlier transaction's marker that is late has the epoch of the next transaction, if each has its own (KIP-890).
    """
    leader, key = partition.leader(), (partition.topic, partition.index)
    known = leader.admin.describe_producers(*key)
    began = open_producer(partition)
    producer = Producer(id=began.producer, epoch=began.epoch)
    with closing(leader.new_connection()) as connection:
        end = functools.partial(write_marker, connection, *key, producer)
        earlier = functools.partial(end, coordinator_epoch=began.coordinator_epoch - 1)
        check_refused(earlier, "TRANSACTION_COORDINATOR_FENCED", "")
        if partition.cluster.distribution.version in BUMPS_EPOCH:
            late = functools.partial(end, coordinator_epoch=began.coordinator_epoch, epoch_bumped=True)
            check_refused(late, "INVALID_PRODUCER_EPOCH", "")
    if (now_known := leader.admin.describe_producers(*key)) != known:
        raise PromiseBroken(f"{leader} refused markers of {partition}, and its producers are {now_known}, not {known}")


def open_producer(partition: Partition) -> ProducerState:
    """The only producer of which the leader has an open transaction.

    :raises Inconclusive: there is none, such as after its time-out, or several
    """
    leader = partition.leader()
    known = leader.admin.describe_producers(partition.topic, partition.index)
    began = [each for each in known if each.open_since is not None]
    if len(began) != 1:
        raise Inconclusive(f"{leader} has {len(began)} open transactions of {partition}, not one")
    return began[0]


def check_marker_taken_again(partition: Partition, id: int) -> None:
    """The leader takes the marker that ended the producer's last transaction once more, and no transaction is open.

    A coordinator sends a marker until it gets an answer, so it may send one that the leader has.
    """
    leader, key = partition.leader(), (partition.topic, partition.index)
    [ended] = (each for each in leader.admin.describe_producers(*key) if each.producer == id)
    with closing(leader.new_connection()) as connection:
        try:
            write_marker(
                connection,
                *key,
                Producer(id=id, epoch=ended.epoch),
                coordinator_epoch=ended.coordinator_epoch,
                commit=False,
                epoch_bumped=partition.cluster.distribution.version in BUMPS_EPOCH,
            )
        except Refused as refused:
            raise PromiseBroken(f"{leader} refuses a marker of {partition} that it has: {refused}") from refused
    await_all_ended(partition)


def check_fenced(cluster: Cluster, attempt: Callable[[], object]) -> None:
    """A superseded producer is fenced at its first attempt to end its transaction, or to write."""
    try:
        attempt()
    except PromiseBroken as refused:
        if not re.search(SUPERSEDED, str(refused)):
            raise PromiseBroken(f"a superseded producer was refused, but not fenced: {refused}") from refused
        cluster.journal.write("producer.fenced", error=str(refused))
    else:
        raise PromiseBroken("a superseded producer was not fenced: it wrote to its transaction, or ended one")


def await_all_ended(partition: Partition) -> None:
    """Wait until no transaction is open.

    :raises PromiseBroken: one stays open for too long after its time-out
    """
    leader, key = partition.leader(), (partition.topic, partition.index)
    await_until(
        lambda: (leader.admin.last_stable_offset(*key), leader.admin.end_offset(*key)),
        lambda offsets: offsets[0] == offsets[1],
        timeout_s=ABANDONED_MS / 1000 + timeouts.QUESTION_S,
        what=f"the last stable offset of {partition} to reach its end, since each transaction has a time-out",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )
