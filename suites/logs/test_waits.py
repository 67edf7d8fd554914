"""Shows that fetches wait for records, and that a record wakes them. Otherwise no record is lost, but time or CPU is.

If a record did not wake them, each write with acks=all would take up to ``replica.fetch.wait.max.ms``. If they did not
wait, followers and consumers would ask again and again.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import Admin
from suites.scenario import NO_FAULT, scenario

WAIT_S = 8.0
"""``replica.fetch.wait.max.ms`` here, and how long consumers wait: far longer than a record takes to all replicas."""
IN_VAIN_S = 1.0
"""How long a consumer waits for a record that does not come."""
TIMES = 5
"""How often it is tried; the median tolerates pauses of the machine."""


@scenario(
    "logs/waiting-fetches",
    kip=18,
    plan="ISR: followers and a consumer, which wait for records, get one as soon as it is there",
    judged=False,
    floors=NO_FAULT,
    overrides={
        "replica.fetch.wait.max.ms": f"{WAIT_S * 1000:.0f}",
        "replica.lag.time.max.ms": "30000",
    },
)
def test_waiting_fetches(cluster: Cluster) -> None:
    """A record wakes the fetches that wait for it: it is acked and read soon. Without one, they wait.

    Consumers of followers are not asked: a follower may hear of a high watermark after ``replica.fetch.wait.max.ms``.
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


def check_waits(partition: Partition, consumer: Admin) -> None:
    """A fetch is answered without records only after the time that it may wait."""
    end, began = consumer.end_offset(partition.topic, partition.index), time.monotonic()
    records = consumer.await_records(partition.topic, partition.index, end, wait_s=IN_VAIN_S)
    if (took := time.monotonic() - began) < 0.9 * IN_VAIN_S:
        raise PromiseBroken(
            f"a fetch that may wait for {IN_VAIN_S:.0f} s was answered after {took:.2f} s with {len(records)} bytes of "
            f"{partition}, which nothing was written to"
        )


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
