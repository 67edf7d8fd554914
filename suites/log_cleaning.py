"""Checks that Kafka keeps logs small by compaction and by retention.

A scenario writes a few megabytes of outdated records. Then every replica's log must become small again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from kafka.record import MemoryRecords

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.checks import check_refused
from suites.moves import SMALL_FETCHES
from suites.on_disk import log_bytes
from suites.scenario import scenario
from suites.steps import write_untracked_records

SEGMENT = 1 << 20  # the least that Kafka 4 allows; a thousand records of 1 kB
SMALL_SEGMENTS = {"segment.bytes": str(SEGMENT)}
COMPACTED = SMALL_SEGMENTS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
EXPIRING = SMALL_SEGMENTS | {"cleanup.policy": "delete", "retention.bytes": str(SEGMENT)}

# Broker settings: the cleaner and retention run every 0.2 s. By default they run every 15 s and every 5 min.
FREQUENT_CLEANING = {"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "200"}

MORE_THAN_TWO = 2500  # records of 1 kB: more than two segments
_KEYS, _SIZE = 10, 1000

NEEDED = {str(number % _KEYS).encode(): f"untracked {number}".ljust(_SIZE).encode() for number in range(MORE_THAN_TWO)}
"""The last value of each key of :func:`write_outdated_records`."""

# Fresh: a stopped cleaner stays stopped for a partition's name, also after its topic was deleted and created again.
cleaner_scenario = functools.partial(scenario, kip=113, overrides=SMALL_FETCHES | FREQUENT_CLEANING, fresh=True)


def write_outdated_records(*topics: Topic) -> None:
    """Write 2500 records of 1 kB with ten keys in turn: more than two segments, of which little must stay."""
    for topic in topics:
        write_untracked_records(topic, MORE_THAN_TWO, size=_SIZE, keys=_KEYS)


def until_cleaning_s(cluster: Cluster) -> float:
    """Seconds until the live brokers delete expired segments and ``-delete`` folders for the first time.

    0 on builds with ``log.initial.task.delay.ms``, which is a second here. On others the rest of
    :data:`timeouts.FIRST_TASKS_S` since the last start.
    """
    if cluster.distribution.version.has_initial_task_delay:
        return 0.0
    started = max(broker.started_at for broker in cluster.live_brokers())
    return max(0.0, timeouts.FIRST_TASKS_S - (now() - started).total_seconds())


def check_logs_small(
    *topics: Topic,
    on: Sequence[Broker] | None = None,
    segments: int = 2,
    timeout_s: float = timeouts.CLEANING_S,
) -> None:
    """Outdated records are removed: no log of the topics' first partitions stays larger than two segments.

    :param on: check the replicas of these brokers only (default: of all)
    :param segments: the size of a clean log at most, in segments
    :param timeout_s: seconds from when all brokers clean (:func:`until_cleaning_s`)
    """
    partitions = [topic[0] for topic in topics]

    def large() -> list[str]:
        return [
            f"{broker} has {size} bytes of {partition}"
            for partition in partitions
            for broker in (_brokers(partition) if on is None else on)
            if (size := _size(partition, broker)) is None or size > segments * SEGMENT
        ]

    await_until(
        large,
        lambda found: not found,
        timeout_s=timeout_s + until_cleaning_s(topics[0].cluster),
        what=f"outdated records of {', '.join(map(str, partitions))} to be removed",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def check_logs_whole(topic: Topic) -> None:
    """No record of :func:`write_outdated_records` is removed from the logs of the topic's first partition."""
    [log] = topic.partitions
    for broker in _brokers(log):
        found = len(stored_records(log, broker))
        if found != MORE_THAN_TWO:
            raise PromiseBroken(
                f"{broker} has {found} of {MORE_THAN_TWO} records of {log}, which must not be compacted yet"
            )


def check_policy_enforced(compacted: Partition) -> None:
    """The leader of a compacted log refuses records without a key, and to delete records below an offset (KIP-107)."""
    admin, key = compacted.leader().admin, (compacted.topic, compacted.index)
    check_refused(functools.partial(admin.produce, *key, b"no key", acks=-1), "INVALID_RECORD", "")
    check_refused(functools.partial(admin.delete_records, *key, 0), "POLICY_VIOLATION", "")


def check_needed_records(compacted: Topic, expiring: Topic, broker: Broker) -> None:
    """The broker's logs have what must stay of :func:`write_outdated_records`.

    The compacted log must have the last value of each key. The expiring log must reach its end without a gap.
    """
    ends = compacted.cluster.end_offsets((compacted, expiring))

    def missing() -> list[str]:
        last = {key: value for _, key, value in stored_records(compacted[0], broker)}
        wanted = {key.decode(): value.decode().strip() for key, value in NEEDED.items()}
        tail = [offset for offset, _, _ in stored_records(expiring[0], broker)]
        end = ends[expiring.name, 0]
        found = [f"{compacted[0]} has {last} as the last values"] if last != wanted else []
        if not tail or tail != list(range(tail[0], end)):
            found.append(f"{expiring[0]} has {len(tail)} records from {tail[:1]} on, and ends at {end}")
        return found

    await_until(
        missing,
        lambda found: not found,
        timeout_s=timeouts.REQUEST_S,
        what=f"the logs of {broker} to have what must stay of {compacted} and {expiring}",
        retry_on=(NoAnswer, FileNotFoundError),  # the cleaner replaces segments meanwhile
        failure=PromiseBroken,
    )


def stored_records(partition: Partition, broker: Broker) -> list[tuple[int, str, str]]:
    """Offset, key and value of each record in a replica's log on disk; a tombstone has an empty value.

    :raises FileNotFoundError: the cleaner replaced a segment meanwhile
    """
    folder = partition.log_dir_on(broker).replica_dir(partition.topic, partition.index)
    batches, found = MemoryRecords(log_bytes(folder)), []
    while (batch := batches.next_batch()) is not None:
        found += [(record.offset, record.key.decode(), (record.value or b"").decode().strip()) for record in batch]
    return found


def _brokers(partition: Partition) -> list[Broker]:
    return [partition.leader(), *partition.followers()]


def stays_large(topic: Topic, broker: Broker) -> str:
    """A regular expression of the error of :func:`check_logs_small` if only this broker's log stays large."""
    return rf"last seen: \['{broker} has \d+ bytes of {topic[0]}'\]$"


def _size(partition: Partition, broker: Broker) -> int | None:
    found = broker.find_replica(partition.topic, partition.index)
    return found and found[1].size
