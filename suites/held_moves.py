"""Decides, by a broker's log, whether a held move may have ended during a restart of that broker.

In KRaft a starting broker applies partitions before configurations (``BrokerMetadataPublisher.onMetadataUpdate``). So
it goes on with its moves before it knows their throttle: for some 50 ms, or 500 ms on a busy machine. A move that ends
in that time is :data:`suites.deviations.MOVED_BEFORE_THROTTLE`. A move that ends in the next ten seconds
(:data:`BYTES_EXPIRE_S`) should have been held: the case is invalid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness import timeouts
from harness.cluster.broker import Broker, config_change_pattern
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.broker_log import LogLine
from harness.waiting import await_until
from suites.deviations import MOVED_BEFORE_THROTTLE
from suites.observing import observe

METADATA_APPLIED = r"Finished waiting for the initial broker metadata update to be published"
"""The log line of a KRaft broker that has applied all metadata of its start, configurations included."""


BYTES_EXPIRE_S = 10.0
"""A broker's throttle counts the bytes of the last 11 windows of a second, the current one included; newer builds count
one more (``ReplicationQuotaManagerConfig``, ``SampledStat``). When the bytes of a fetch no longer count, the throttle
allows one more fetch, whatever the rate."""


def swap_pattern(partition: str) -> str:
    """A regular expression for the line that a broker logs before a future replica replaces its replica.

    ``LogManager.replaceCurrentWithFutureLog`` writes it.
    """
    return rf"Attempting to replace current log .* for {re.escape(partition)}(?![\w.-])"


def check_ended_before_throttle(cluster: Cluster, partition: str, to: LogDir) -> None:
    """If a held move ended during a restart of its broker, it ended before the broker had its configuration.

    :param partition: such as ``orders-0``
    :param to: the log dir in which all sources show the replica
    :raises PromiseBroken: it ended later; or the broker logs no configuration, or no end of the move, since its start
    :raises Inconclusive: it ended while the broker applied its metadata, or so long afterwards that the throttle
        allowed one more fetch, which may have been the last; or the broker does not log that it applied its metadata
    """
    broker = to.broker
    await_until(
        lambda: broker.log.first(METADATA_APPLIED, since=broker.started_at),
        timeout_s=timeouts.REQUEST_S,
        what=f"{broker} to log that it has applied the metadata of its start: /{METADATA_APPLIED}/",
        watch=broker.node.check_alive,
        failure=Inconclusive,
    )
    lines = list(broker.log.lines(since=broker.started_at))
    ended = _indexes(lines, swap_pattern(partition))
    applied = _indexes(lines, METADATA_APPLIED)[0]
    configured = [index for index in _indexes(lines, config_change_pattern(broker.id)) if index < applied]
    held = f"the move of {partition} into {to} should be held by its throttle"
    if not ended:
        raise PromiseBroken(f"{held}, and has ended; {broker} logs no line /{swap_pattern(partition)}/ since its start")
    end = lines[ended[-1]]
    if not configured:
        raise PromiseBroken(f"{held}, and ended: {end.text[:300]}; {broker} has started without its configuration")
    configuration = lines[configured[0]]
    seen = _in_order(broker, end, configuration)
    if (end.at - configuration.at).total_seconds() >= BYTES_EXPIRE_S:
        raise Inconclusive(f"{held}, and ended when the throttle allowed one more fetch, which shows nothing: {seen}")
    if ended[-1] > applied:
        raise PromiseBroken(f"{held}, and ended after {broker} had its configuration: {seen}")
    if ended[-1] > configured[0]:
        raise Inconclusive(f"{held}, and ended while {broker} applied its configuration, which shows nothing: {seen}")
    broken = PromiseBroken(f"{held}, and ended before {broker} had its configuration: {seen}")
    observe(MOVED_BEFORE_THROTTLE, cluster, deviates=True, seen=seen, broken=broken)


def _indexes(lines: Sequence[LogLine], pattern: str) -> list[int]:
    return [index for index, line in enumerate(lines) if re.search(pattern, line.text)]


def _in_order(broker: Broker, *lines: LogLine) -> str:
    """What the broker logged, oldest first, with the times."""
    logged = [f"{line.at.isoformat()} {line.text[:200]}" for line in sorted(lines, key=lambda line: line.at)]
    return f"{broker} logs {'; '.join(logged)}"
