"""Shows that fetches wait for records, and only for them. Otherwise no record is lost, but time or CPU is.

If a record did not wake them, each write with acks=all would take up to ``replica.fetch.wait.max.ms``. If they did not
wait, followers and consumers would ask again and again. An answer that no record changes must not wait: the wait
is for "enough data" (``fetch.max.wait.ms``). Errors, a diverging leader epoch (KIP-595) and the redirect to a nearer
replica (KIP-392) are such answers.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import Admin
from harness.kafka.versions import VersionRange
from suites.checks import check_refused
from suites.kip_36.layouts import NEAREST, racks_of
from suites.scenario import NO_FAULT, scenario

WAIT_S = 8.0
"""``replica.fetch.wait.max.ms`` here, and how long consumers wait: far longer than a record takes to all replicas."""
IN_VAIN_S = 1.0
"""How long a consumer waits for a record that does not come."""
TIMES = 5
"""How often it is tried; the median tolerates pauses of the machine."""
NAMES_DIVERGING_EPOCH = VersionRange.parse(">=2.7")
"""The builds that compare the last fetched epoch of a fetch (KIP-595)."""


@scenario(
    "logs/waiting-fetches",
    kip=18,
    plan="ISR: followers and a consumer, which wait for records, get one as soon as it is there",
    judged=False,
    floors=NO_FAULT,
    racks=("a", "b", "c"),
    overrides={
        "replica.fetch.wait.max.ms": f"{WAIT_S * 1000:.0f}",
        "replica.lag.time.max.ms": "30000",
    }
    | NEAREST,
)
def test_waiting_fetches(cluster: Cluster) -> None:
    """A record wakes the fetches that wait for it: it is acked and read soon. Without one, they wait.

    What a record would not change is answered without a wait: errors, redirects, and records that are there.
    Consumers of followers are not asked for new records: a follower may hear of a high watermark after
    ``replica.fetch.wait.max.ms``.
    """
    [orders] = cluster.create_topic("orders", replicas=3).partitions
    consumer = Admin(orders.leader().new_connection())
    check_waits(orders, consumer)
    acked, read = zip(*(seconds_awaited(orders, consumer) for _ in range(TIMES)), strict=True)
    for what, each in ("an ack", acked), ("a consumer", read):
        if (median := statistics.median(each)) > WAIT_S / 2:
            raise PromiseBroken(
                f"{what} took {median:.1f} s: fetches that wait for a record, for up to {WAIT_S:.0f} s, were not woken"
            )
    check_answered_at_once(orders, consumer)


def check_waits(partition: Partition, consumer: Admin) -> None:
    """A fetch is answered without records only after the time that it may wait."""
    end, began = consumer.end_offset(partition.topic, partition.index), time.monotonic()
    records = consumer.await_records(partition.topic, partition.index, end, wait_s=IN_VAIN_S)
    if (took := time.monotonic() - began) < 0.9 * IN_VAIN_S:
        raise PromiseBroken(
            f"a fetch that may wait for {IN_VAIN_S:.0f} s was answered after {took:.2f} s with {len(records)} bytes of "
            f"{partition}, which nothing was written to"
        )


def check_answered_at_once(partition: Partition, consumer: Admin) -> None:
    """A fetch that may wait is answered without a wait if no record could change the answer."""
    key, end = (partition.topic, partition.index), consumer.end_offset(partition.topic, partition.index)
    epoch, nearest = partition.describe().leader_epoch, partition.followers()[0]
    rack = racks_of([nearest])[nearest.id] or ""
    waiting = functools.partial(consumer.fetch, *key, wait_s=WAIT_S)

    def is_read() -> None:
        if not waiting(end - 1):
            raise PromiseBroken(f"{partition} ends at {end}, and a fetch of its last record got none")

    def is_redirected() -> None:
        if (to := consumer.replica_to_read(*key, end - 1, rack=rack, wait_s=WAIT_S)) != nearest.id:
            raise PromiseBroken(f"the leader sends a consumer in rack {rack!r} to broker {to}, instead of {nearest}")

    def diverges() -> None:
        # The leader's records are all of its epoch: one more of that epoch is not in its log.
        found = consumer.diverging_epoch(*key, end + 1, last_epoch=epoch, wait_s=WAIT_S)
        if found != (epoch, end):
            raise PromiseBroken(f"a log with a record more than {partition} leaves it at {found}, not {(epoch, end)}")

    beyond, unknown = functools.partial(waiting, end + 1), functools.partial(waiting, end, leader_epoch=epoch + 1)
    asks: dict[str, Callable[[], None]] = {
        "a record that is there": is_read,
        "an offset beyond the end": lambda: check_refused(beyond, "OFFSET_OUT_OF_RANGE", ""),
        "a leader epoch that is not yet": lambda: check_refused(unknown, "UNKNOWN_LEADER_EPOCH", ""),
        "a replica in the consumer's rack": is_redirected,
    }
    if partition.cluster.distribution.version in NAMES_DIVERGING_EPOCH:
        asks["an end that diverges"] = diverges
    took = {what: statistics.median(map(_seconds, [ask] * 3)) for what, ask in asks.items()}
    partition.cluster.journal.write("fetches.answered", seconds=took)
    if late := {what: f"{seconds:.1f} s" for what, seconds in took.items() if seconds > WAIT_S / 2}:
        raise PromiseBroken(
            f"fetches that may wait {WAIT_S:.0f} s for records waited in vain, since none helps: {late}"
        )


def _seconds(ask: Callable[[], None]) -> float:
    began = time.monotonic()
    ask()
    return time.monotonic() - began


def seconds_awaited(partition: Partition, consumer: Admin) -> tuple[float, float]:
    """Write a record with acks=all while a consumer waits for it.

    Returns the seconds until the ack, and until the consumer has the record.
    """
    leader, waiting = partition.leader().admin, Barrier(2)
    end = leader.end_offset(partition.topic, partition.index)

    def await_record() -> float:
        waiting.wait()
        consumer.await_records(partition.topic, partition.index, end, wait_s=WAIT_S)
        return time.monotonic()

    with ThreadPoolExecutor(1) as apart:
        read = apart.submit(await_record)
        waiting.wait()
        began = time.monotonic()
        leader.produce(partition.topic, partition.index, b"awaited", acks=-1, timeout_s=2 * WAIT_S)
        acked = time.monotonic()
        return acked - began, read.result() - began
