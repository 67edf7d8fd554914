"""Holds a follower's fetches, so that a request waits for it as the leader's log dir fails, or another broker leads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager

from faults.base import injected
from faults.held import Held
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.record_requests import UNNAMED, Producer
from harness.waiting import await_until
from suites.checks import promised
from suites.deviations import MARKER_WAITS, WAITING_REQUEST_UNANSWERED
from suites.leadership import await_end, await_offline, lead
from suites.on_disk import check_same_bytes
from suites.races.test_replication import PATIENT
from suites.scenario import NO_FAULT, scenario
from suites.steps import await_checkpoints, write_untracked_records
from suites.untracked_transactions import RECORDS, UntrackedProducer, check_reads, new_producer

ANSWERED_S = 20.0
"""The request's time-out: far longer than a failed log dir takes to be known."""


@scenario(
    "races/failed-before-ack",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: clients get an error, also while they wait",
    judged=False,
    deviations=(WAITING_REQUEST_UNANSWERED,),
    holds=True,
    overrides=PATIENT,
)
def test_failed_before_ack(cluster: Cluster) -> None:
    """The leader's log dir fails while a producer waits for a follower: the producer gets an error at once."""
    orders = create_topic_apart(cluster)
    leader = leader_of(orders[0])
    with ThreadPoolExecutor(1) as apart:
        asked: list[Future[int]] = []

        with (
            fails_before_fetch(orders, by=lambda: asked.append(send_record(leader, apart))),
            promised(cluster, unless=WAITING_REQUEST_UNANSWERED, seen="REQUEST_TIMED_OUT$"),
        ):
            check_error(asked[0])


def send_record(leader: Broker, apart: Executor, producer: Producer = UNNAMED, sequence: int = -1) -> Future[int]:
    """Send a record to the leader, which must wait for its follower."""
    write = functools.partial(Admin(leader.new_connection()).produce, "orders", 0, b"", acks=-1, timeout_s=ANSWERED_S)
    return apart.submit(write, producer=producer, sequence=sequence)


def check_error(asked: Future[int]) -> None:
    """The leader answers the producer with an error, before the request's time-out."""
    try:
        offset = asked.result()
    except Refused as refused:
        if refused.error == "REQUEST_TIMED_OUT":
            raise PromiseBroken(f"{refused}") from refused
    else:
        raise PromiseBroken(f"the leader acked the record at offset {offset}, and its follower did not have it")


@scenario(
    "races/led-by-another-before-ack",
    kip=18,
    plan="ISR: another replica becomes the leader while a producer waits for a follower: the producer gets an error",
    judged=False,
    holds=True,
    overrides=PATIENT,
)
def test_led_by_another_before_ack(cluster: Cluster) -> None:
    """Another replica becomes the leader while a producer waits for a follower: the producer gets an error at once.

    The former leader truncates the record without a restart. As it leads again, it appends the record if the producer
    sends it again: it takes it for none that it has.
    """
    orders = create_topic_apart(cluster)
    leader, [follower] = leader_of(orders[0]), orders[0].followers()
    producer = new_producer(leader)
    check_appended(orders[0], producer, sequence=0, offset=0)
    behind = Held(cluster, follower, "follower-fetches", of_thread=f"ReplicaFetcherThread-0-{leader.id}")
    with ThreadPoolExecutor(1) as apart:
        with injected(behind):
            asked = send_record(leader, apart, producer, sequence=1)
            await_waiting(leader)
            lead(orders[0], follower)
        check_error(asked)
    write_untracked_records(orders, 1)  # acked when the former leader has it, in the place of the truncated record
    check_same_producers(orders[0])
    lead(orders[0], leader)
    check_appended(orders[0], producer, sequence=1, offset=2)
    check_same_producers(orders[0])
    check_same_bytes(orders[0])


def check_appended(partition: Partition, producer: Producer, *, sequence: int, offset: int) -> None:
    """The leader appends the record with this sequence number, at this offset, and acks it."""
    leader = partition.leader()
    write = functools.partial(leader.admin.produce, partition.topic, partition.index, b"", acks=-1)
    try:
        with OwnPart(partition.cluster, "take records", needs_all=False).served():
            got = write(producer=producer, sequence=sequence)
    except Refused as refused:
        raise PromiseBroken(f"{leader} refuses record {sequence} of a producer: {refused}") from refused
    if got != offset:
        raise PromiseBroken(f"{leader} acks record {sequence} of a producer at offset {got}, not {offset}")


def check_same_producers(partition: Partition) -> None:
    """All replicas have the same state of producers: that of the records, which are the same.

    :raises PromiseBroken: they do not, also after a while
    """
    replicas = [partition.leader(), *partition.followers()]
    key = (partition.topic, partition.index)
    await_until(
        lambda: {str(each): each.admin.describe_producers(*key) for each in replicas},
        lambda known: len({*known.values()}) == 1,
        timeout_s=timeouts.REQUEST_S,
        what=f"the replicas of {partition} to have the same state of producers",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )


@scenario(
    "races/failed-before-marker",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: consumers get a transaction that has committed",
    judged=False,
    deviations=(MARKER_WAITS,),
    holds=True,
    overrides=PATIENT,
)
def test_failed_before_marker(cluster: Cluster) -> None:
    """The leader's log dir fails while a transaction's marker waits for a follower: the next leader soon has it."""
    end_as_leader_fails(cluster, commit=True)


@scenario(
    "races/failed-before-abort",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: a transaction that aborts; the broker is back",
    judged=False,
    deviations=(MARKER_WAITS,),
    holds=True,
    overrides=PATIENT,
)
def test_failed_before_abort(cluster: Cluster) -> None:
    """The leader's log dir fails as an abort marker waits: the healed replica truncates it, and follows again.

    As it leads again, it hands readers no aborted record.
    """
    failed, orders = end_as_leader_fails(cluster, commit=False)
    failed.restart()
    cluster.await_healthy(failure=PromiseBroken)
    check_same_bytes(orders[0])
    check_same_producers(orders[0])
    lead(orders[0], failed)
    check_reads(orders, "read_committed", [])


def end_as_leader_fails(cluster: Cluster, *, commit: bool) -> tuple[Broker, Topic]:
    """The leader's log dir fails before a follower has the marker of a transaction; the next leader soon has it.

    Returns the broker that led, and the topic.
    """
    orders = create_topic_apart(cluster)
    failed = leader_of(orders[0])
    [elsewhere] = (broker for broker in cluster.brokers if broker.id not in orders[0].describe().replicas)
    cluster.create_topics(NewTopic(name="__transaction_state", assignment={0: [elsewhere.id]}))
    producer = UntrackedProducer(orders, "ended")
    producer.write()
    with fails_before_fetch(orders, by=lambda: producer.write(commit=commit, count=0)) as follower:
        with promised(cluster, unless=MARKER_WAITS, seen="; last seen: 0$") as outcome:
            await_ended(follower, timeouts.REQUEST_S)
        if outcome.deviates:
            await_ended(follower, timeouts.PROGRESS_S)
    return failed, orders


def await_ended(leader: Broker, timeout_s: float) -> None:
    """Wait until read_committed consumers of this leader can read beyond the transaction.

    :raises PromiseBroken: they cannot
    """
    await_until(
        lambda: leader.admin.last_stable_offset("orders", 0),
        lambda offset: offset == RECORDS + 1,
        timeout_s=timeout_s,
        what=f"the last stable offset of orders-0 on {leader} to be {RECORDS + 1}",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )


@scenario(
    "races/one-follower-behind",
    kip=18,
    plan="a producer writes to two partitions at once, and the follower of one of them is slow",
    floors=NO_FAULT,
    judged=False,
    holds=True,
    overrides=PATIENT,
)
def test_one_follower_behind(cluster: Cluster) -> None:
    """A request with records for two partitions waits for a follower of one of them: it is answered after that."""
    leader, slow, quick = cluster.brokers
    assignment = {0: [leader.id, slow.id], 1: [leader.id, quick.id]}
    [orders] = cluster.create_topics(NewTopic(name="orders", assignment=assignment))
    with ThreadPoolExecutor(1) as apart:
        asked: list[Future[dict[int, int]]] = []

        def ask() -> None:
            client = Admin(leader.new_connection())
            write = functools.partial(client.produce_together, orders.name, {0: b"slow", 1: b"quick"})
            asked.append(apart.submit(write, acks=-1, timeout_s=ANSWERED_S))

        behind = Held(cluster, slow, "follower-fetches", of_thread=f"ReplicaFetcherThread-0-{leader.id}", by=ask)
        with injected(behind):
            await_end(leader, 1, failure=Inconclusive, partition=1)
            check_waits(asked[0], orders[0])
        check_acked(asked[0])


def check_waits(asked: Future[dict[int, int]], partition: Partition) -> None:
    """The request is not answered while a follower of the partition does not have its record."""
    leader = partition.leader()
    await_checkpoints(partition.log_dir_on(leader), 2)
    if leader.admin.end_offset(partition.topic, partition.index):
        raise Inconclusive(f"the held follower has the record of {partition}")
    if asked.done():
        answer = asked.exception() or f"the offsets {asked.result()}"
        raise PromiseBroken(f"{leader} answered before the follower of {partition} had the record: {answer}")


def check_acked(asked: Future[dict[int, int]]) -> None:
    """The leader acks the records of all partitions."""
    try:
        asked.result()
    except Refused as refused:
        raise PromiseBroken(f"a request whose records are on all replicas was refused: {refused}") from refused


def create_topic_apart(cluster: Cluster) -> Topic:
    """Create ``orders``, with a leader and one follower that fetches another partition, too, of the other log dir.

    No broker waits for the end of a held fetcher thread that has another partition.

    :raises Inconclusive: a broker has both in one log dir
    """
    leader, follower, _ = cluster.brokers
    made = [
        cluster.create_topics(NewTopic(name=name, assignment={0: [leader.id, follower.id]}))
        for name in ("orders", "others")
    ]
    [orders], [others] = made
    if orders[0].log_dir_on(leader) == others[0].log_dir_on(leader):
        raise Inconclusive(f"{leader} has {orders} and {others} in one log dir")
    return orders


@contextmanager
def fails_before_fetch(orders: Topic, *, by: Callable[[], object]) -> Iterator[Broker]:
    """The leader appends what ``by`` sends, and its log dir fails before the follower has it. The follower then leads.

    Yields the follower.
    """
    cluster, leader = orders.cluster, leader_of(orders[0])
    [follower] = orders[0].followers()
    log_dir = orders[0].log_dir_on(leader)
    behind = Held(cluster, follower, "follower-fetches", of_thread=f"ReplicaFetcherThread-0-{leader.id}")
    with injected(behind), injected(Held(cluster, leader, "leader-appended", about="orders-0", by=by)) as appended:
        appended.undo()
        await_waiting(leader)
        with injected(Chmod000(log_dir)):
            await_offline(orders[0], leader)
            behind.undo()
            yield follower


def await_waiting(leader: Broker) -> None:
    """Wait until a produce request, or a marker, waits for followers.

    :raises Inconclusive: none does
    """
    mbeans = leader.mbeans
    assert mbeans is not None
    await_until(
        mbeans.waiting_produce_requests,
        timeout_s=timeouts.REQUEST_S,
        what=f"a request to wait for followers on {leader}",
        retry_on=(NoAnswer,),
        failure=Inconclusive,
    )
