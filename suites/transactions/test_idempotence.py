"""Shows that brokers recognise a batch that an idempotent producer sends again, and refuse one after a gap (KIP-98).

Each broker must know this, since each may be the next leader. A follower notes the sequence numbers of the batches that
it fetches. After a stop, a broker reads them from a snapshot, and after a crash from the batches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from faults.broker import BrokerKilled, BrokerStopped
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import Producer, Refused
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.checks import check_refused
from suites.on_disk import check_same_bytes
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import brokers_down, make_leader

WRITTEN = 7
REMEMBERED = range(WRITTEN - 5, WRITTEN)
"""A leader remembers the last five batches of a producer; after a restart from a snapshot, at least the last."""


@scenario(
    "transactions/sequence-numbers",
    kip=112,
    plan="a producer sends its last batches again, to each leader in turn",
    judged=False,
)
def test_sequence_numbers(cluster: Cluster) -> None:
    """An idempotent producer sends its last batches again after failovers and restarts: none is written twice."""
    ledger = cluster.create_topic("ledger")
    state = StateCheck(cluster, ledger)
    producer = await_until(
        leader_of(ledger[0]).admin.init_producer_id,
        timeout_s=timeouts.REQUEST_S,
        what="a broker to give a producer id",
        retry_on=(NoAnswer, Refused),  # ZooKeeper, or the controller, first gives the broker a block of ids
    )
    for number in range(WRITTEN):
        write(ledger[0], producer, number)
    check_remembered(ledger[0], producer, REMEMBERED)
    for end in (BrokerStopped, BrokerKilled):
        ended = leader_of(ledger[0])
        with brokers_down(state, end(ended)):
            check_remembered(ledger[0], producer, REMEMBERED if end is BrokerStopped else REMEMBERED[-1:])
        make_leader(cluster, state, ended)
        check_remembered(ledger[0], producer, REMEMBERED[-1:])
    write(ledger[0], producer, WRITTEN)
    check_same_bytes(ledger[0])


def write(partition: Partition, producer: Producer, number: int) -> None:
    """Write record ``number`` of the producer with acks=all; its offset must be the number."""
    send = partition.leader().admin.produce
    value = f"record {number}".encode()
    offset = send(partition.topic, partition.index, value, acks=-1, producer=producer, sequence=number)
    if offset != number:
        raise PromiseBroken(f"{partition.leader()} answers offset {offset} for record {number} of {partition}")


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
