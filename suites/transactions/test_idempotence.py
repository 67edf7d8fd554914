"""Shows that brokers recognise a batch that an idempotent producer sends again, and refuse one after a gap (KIP-98).

Each broker must know this, since each may be the next leader. A follower notes the sequence numbers of the batches that
it fetches. After a stop, a broker reads them from a snapshot, and after a crash, or if that has rotted, from the
batches.

Brokers know producers by their ids. So no two producers may have the same id, whichever brokers gave them theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from faults.base import injected
from faults.broker import BrokerKilled, BrokerStopped
from faults.segment import ProducerSnapshotFlipped
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.record_requests import Producer
from suites.checks import check_refused
from suites.leadership import lead
from suites.on_disk import check_same_bytes
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import brokers_down, make_leader
from suites.untracked_transactions import new_producer

WRITTEN = 7
REMEMBERED = range(WRITTEN - 5, WRITTEN)
"""A leader remembers the last five batches of a producer; after a restart from a snapshot, at least the last."""
BLOCK = 1000
"""The number of ids that the controller, or ZooKeeper, gives a broker at once."""
TRIMMED = 2
"""The number of a producer's records that are deleted, all that it wrote."""
LAST_SEQUENCE = (1 << 31) - 1
EXPIRES_OFTEN = {"producer.id.expiration.check.interval.ms": "500"}
"""Broker settings: brokers look for expired producers twice a second (default: every 10 min)."""


@scenario(
    "transactions/sequence-numbers",
    kip=112,
    plan="a producer sends its last batches again, to each leader in turn",
    judged=False,
    overrides=EXPIRES_OFTEN,
)
def test_sequence_numbers(cluster: Cluster) -> None:
    """An idempotent producer sends its last batches again after failovers and restarts: none is written twice."""
    ledger, trimmed = cluster.create_topic("ledger"), cluster.create_topic("trimmed")
    state = StateCheck(cluster, ledger, trimmed)
    given = set[int]()
    check_new_ids([*cluster.brokers, *[cluster.brokers[0]] * BLOCK, *cluster.brokers], given)
    producer = new_producer(leader_of(ledger[0]))
    for number in range(WRITTEN):
        write(ledger[0], producer, number)
    check_remembered(ledger[0], producer, REMEMBERED)
    without_records = write_and_delete(trimmed[0])
    for end in (BrokerStopped, BrokerKilled):
        ended = leader_of(ledger[0])
        with brokers_down(state, end(ended)):
            check_remembered(ledger[0], producer, REMEMBERED if end is BrokerStopped else REMEMBERED[-1:])
        make_leader(cluster, state, ended)
        check_remembered(ledger[0], producer, REMEMBERED[-1:])
        if end is BrokerStopped:  # after a crash, a broker may know only what its records show
            check_known_without_records(trimmed[0], without_records)
        check_new_ids(cluster.brokers, given)  # all have been restarted
    check_rot_discarded(state, ledger[0], producer)
    write(ledger[0], producer, WRITTEN)
    check_wraps(ledger[0])
    check_new_epoch(ledger[0])
    check_same_bytes(ledger[0])


def check_new_ids(brokers: Iterable[Broker], given: set[int]) -> None:
    """Each of these brokers, in this order, gives an id that no broker has given before; it is added to ``given``."""
    for broker in brokers:
        id = new_producer(broker).id
        if id in given:
            raise PromiseBroken(f"{broker} gave a new producer the id {id}, which another producer has")
        given.add(id)


def write(partition: Partition, producer: Producer, number: int, *, offset: int | None = None) -> None:
    """Write record ``number`` of the producer with acks=all.

    :param offset: its offset must be this one (default: the number)
    """
    got = send(partition, producer, number)
    if got != (number if offset is None else offset):
        raise PromiseBroken(f"{partition.leader()} answers offset {got} for record {number} of {partition}")


def send(partition: Partition, producer: Producer, sequence: int) -> int:
    """Write a record of the producer with acks=all; returns its offset.

    :raises RefusedOwnPart: the leader refuses it
    """
    admin, value = partition.leader().admin, f"record {sequence}".encode()
    with OwnPart(partition.cluster, "take records", needs_all=False).served():
        return admin.produce(partition.topic, partition.index, value, acks=-1, producer=producer, sequence=sequence)


def check_remembered(partition: Partition, producer: Producer, numbers: Iterable[int]) -> None:
    """The leader answers a batch that it has with its offset, refuses one after a gap, and appends nothing."""
    leader, key = partition.leader(), (partition.topic, partition.index)
    for number in numbers:
        try:
            write(partition, producer, number)
        except Refused as refused:
            raise PromiseBroken(f"{leader} refuses record {number}, which it has: {refused}") from refused
    ahead = functools.partial(leader.admin.produce, *key, b"ahead", acks=-1, producer=producer, sequence=WRITTEN + 2)
    check_refused(ahead, "OUT_OF_ORDER_SEQUENCE_NUMBER", "")
    end = leader.admin.end_offset(*key)
    if end != WRITTEN:
        raise PromiseBroken(f"{leader} appended records of {partition} that it had: it ends at {end}, not at {WRITTEN}")


def write_and_delete(partition: Partition) -> Producer:
    """Write two records of a new producer and one of another, and delete the first two; returns the producer."""
    leader = partition.leader()
    producer = new_producer(leader)
    for number in range(TRIMMED):
        write(partition, producer, number)
    write(partition, new_producer(leader), 0, offset=TRIMMED)
    partition.delete_records(TRIMMED)
    return producer


def check_known_without_records(partition: Partition, producer: Producer) -> None:
    """The leader answers the last batch of a producer of which it has no record with its offset, and appends nothing.

    A producer's state does not go with its records, but when the producer expires (KIP-360). After a clean stop, only
    the broker's snapshot of producers has it.
    """
    leader = partition.leader()
    if leader.admin.start_offset(partition.topic, partition.index) != TRIMMED:
        raise Inconclusive(f"{leader} has the records of the producer of {partition}")
    write(partition, producer, TRIMMED - 1)


def check_rot_discarded(state: StateCheck, partition: Partition, producer: Producer) -> None:
    """A broker that starts with a flipped bit in its snapshot of producers discards it, and knows the last batches."""
    leader = partition.leader()
    log_dir = partition.log_dir_on(leader)
    with injected(BrokerStopped(leader)):
        state.broker_gone(leader)
        state.check()
        with injected(ProducerSnapshotFlipped(log_dir, partition.topic, partition.index)):
            leader.start()
            state.broker_back(leader)
            state.check(timeouts.RECOVERY_S)
    lead(partition, leader)
    check_remembered(partition, producer, REMEMBERED[-1:])


def check_wraps(partition: Partition) -> None:
    """The leader takes the sequence number 0 after the greatest one."""
    leader = partition.leader()
    producer = new_producer(leader)
    for sequence in (LAST_SEQUENCE, 0, 1):
        try:
            send(partition, producer, sequence)
        except Refused as refused:
            raise PromiseBroken(
                f"{leader} refuses the sequence number {sequence}, though it is the next one: {refused}"
            ) from refused


def check_new_epoch(partition: Partition) -> None:
    """The leader appends what a producer writes in a new epoch, whose sequence numbers begin at 0 again."""
    old = new_producer(partition.leader())
    new = Producer(id=old.id, epoch=old.epoch + 1)
    offsets = [send(partition, producer, sequence) for producer in (old, new) for sequence in (0, 1)]
    if offsets != [*range(offsets[0], offsets[0] + 4)]:
        raise PromiseBroken(
            f"a producer wrote two records, and two in a new epoch: {partition.leader()} answers the offsets {offsets}"
        )
