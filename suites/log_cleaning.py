"""Logs that Kafka keeps small, by compaction or by retention, and the check that it does.

A log is outdated on purpose: a few megabytes of which hardly any need stay. Then every replica must become small again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from kafka.record import MemoryRecords

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import JbodError, PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.on_disk import log_in
from suites.scenario import scenario
from suites.steps import HOLDS_MOVES, write_untracked_records

SEGMENT = 1 << 20  # the least that Kafka 4 allows
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT),
    "min.cleanable.dirty.ratio": "0.01",
}
EXPIRING = {"cleanup.policy": "delete", "segment.bytes": str(SEGMENT), "retention.bytes": str(SEGMENT)}

# Broker settings with which the cleaner and retention look often: each 15 s and 5 min by default.
AT_WORK = {"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "200"}

_WRITTEN, _KEYS = 2500, 10

# Fresh: a cleaner that was stopped stays so for a partition's name, also when its topic is deleted and made anew.
of_the_cleaner = functools.partial(scenario, kip=113, overrides=HOLDS_MOVES | AT_WORK, fresh=True)


def outdate(*topics: Topic) -> None:
    """Write more than two segments of ten keys over and over, of which little more than the active one need stay."""
    for topic in topics:
        write_untracked_records(topic, _WRITTEN, size=1000, keys=_KEYS)


def until_at_work(cluster: Cluster) -> float:
    """Seconds until the brokers that run delete what has expired and what was renamed to be deleted.

    0 on builds with ``log.initial.task.delay.ms``, a second here; on others the rest of :data:`timeouts.FIRST_TASKS_S`
    since the last start.
    """
    if cluster.distribution.version.has_initial_task_delay:
        return 0.0
    started = max(broker.started_at for broker in cluster.live_brokers())
    return max(0.0, timeouts.FIRST_TASKS_S - (now() - started).total_seconds())


def check_small(
    *topics: Topic,
    on: Sequence[Broker] | None = None,
    timeout_s: float = timeouts.CLEANING_S,
    failure: type[JbodError] = PromiseBroken,
) -> None:
    """What is outdated goes: no log of the topics' first partitions stays larger than two segments.

    :param on: the replicas of these brokers (default: of all)
    :param timeout_s: from when all brokers may be expected to be at it (:func:`until_at_work`)
    :param failure: what it means if one does
    """
    partitions = [topic[0] for topic in topics]

    def large() -> list[str]:
        return [
            f"{broker} has {size} bytes of {partition}"
            for partition in partitions
            for broker in (_brokers_of(partition) if on is None else on)
            if (size := _size(partition, broker)) is None or size > 2 * SEGMENT
        ]

    await_until(
        large,
        lambda found: not found,
        timeout_s=timeout_s + until_at_work(topics[0].cluster),
        what=f"what is outdated in {', '.join(map(str, partitions))} to be gone",
        retry_on=(NoAnswer,),
        failure=failure,
    )


def check_whole(compacted: Topic, expiring: Topic, broker: Broker) -> None:
    """What of :func:`outdate` must stay is in the broker's logs: the last value of each key; the end without a gap.

    :raises PromiseBroken: it isn't
    """
    ends = compacted.cluster.end_offsets((compacted, expiring))

    def missing() -> list[str]:
        last = {key: value for _, key, value in _records(compacted[0], broker)}
        wanted = {str(number % _KEYS): f"stranger {number}" for number in range(_WRITTEN)}
        tail = [offset for offset, _, _ in _records(expiring[0], broker)]
        end = ends[expiring.name, 0]
        found = [f"{compacted[0]} has {last} as the last values"] if last != wanted else []
        if not tail or tail != list(range(tail[0], end)):
            found.append(f"{expiring[0]} has {len(tail)} records from {tail[:1]} on, and ends at {end}")
        return found

    await_until(
        missing,
        lambda found: not found,
        timeout_s=timeouts.REQUEST_S,
        what=f"what must stay of {compacted} and {expiring} to be in the logs of {broker}",
        retry_on=(NoAnswer, FileNotFoundError),  # the cleaner puts other segments in place of these
        failure=PromiseBroken,
    )


def _records(partition: Partition, broker: Broker) -> list[tuple[int, str, str]]:
    """Offset, key and value of each record in a broker's log of a partition, as it is on disk."""
    folder = partition.log_dir_on(broker).replica_dir(partition.topic, partition.index)
    batches, found = MemoryRecords(log_in(folder)), []
    while (batch := batches.next_batch()) is not None:
        found += [(record.offset, record.key.decode(), record.value.decode().strip()) for record in batch]
    return found


def stays_large(topic: Topic, broker: Broker) -> str:
    """What :func:`check_small` says, as a regular expression, if the one log that stays large is this broker's."""
    return rf"last seen: \['{broker} has \d+ bytes of {topic[0]}'\]$"


def _brokers_of(partition: Partition) -> list[Broker]:
    return [partition.leader(), *partition.followers()]


def _size(partition: Partition, broker: Broker) -> int | None:
    found = broker.find_replica(partition.topic, partition.index)
    return found and found[1].size
