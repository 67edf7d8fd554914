"""Checks the rate at which throttled replicas are copied, between log dirs (KIP-113) or between brokers (KIP-73).

A throttle limits the mean over 11 or, on newer builds, 12 windows of a second (``ReplicationQuotaManagerConfig``,
``SampledStat``). A shorter measurement cannot show the rate. A raised rate also applies to the seconds before it, so a
burst follows. So the check measures how long it takes to copy as many bytes as the rate allows in twelve seconds.
Without a throttle, a copy ends almost at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness import timeouts
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until

RATE = 200_000  # bytes a second
MEASURED_S, WITHIN = 12, 0.2


def copied(partitions: Sequence[Partition], there: Sequence[LogDir]) -> list[int]:
    """The bytes that each moving replica has in its new log dir; all of these are on one broker."""
    seen = {
        (state.path, replica.topic, replica.partition): replica.size
        for state in there[0].broker.describe_log_dirs()
        for replica in state.replicas
    }
    return [seen.get((str(to.path), p.topic, p.index), 0) for p, to in zip(partitions, there, strict=True)]


def check_rate(partitions: Sequence[Partition], there: Sequence[LogDir], rate: int, began: float, before: int) -> None:
    """The replicas together are copied at this rate, give or take a fifth.

    :param rate: bytes a second
    :param began: when the rate was set, in seconds on the monotonic clock
    :param before: bytes that had been copied by then
    """
    broker, names = there[0].broker, " and ".join(map(str, partitions))
    await_until(
        lambda: sum(copied(partitions, there)),
        lambda size: size - before >= rate * MEASURED_S,
        timeout_s=MEASURED_S / (1 - WITHIN) + timeouts.REQUEST_S,
        what=f"{names} to be copied at {rate} bytes a second: {rate * MEASURED_S} more bytes than {before}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    # Bytes beyond these do not count: a burst follows when the windows from before a change of the rate run out.
    seen = rate * MEASURED_S / (time.monotonic() - began)
    broker.journal.write("copy.rate", broker=broker.id, partitions=names, rate=rate, seen=round(seen))
    if not 1 - WITHIN <= seen / rate <= 1 + WITHIN:
        raise PromiseBroken(
            f"{names} should be copied to {broker} at {rate} bytes a second, and the rate is {seen:.0f}"
        )
