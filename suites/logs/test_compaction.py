"""Shows that compaction keeps what readers of committed records need (KIP-98, "Log compaction").

A record that is newer than another one of its key makes the older one obsolete only once its transaction is committed.
Compaction also waits for ``min.compaction.lag.ms`` (KIP-58) and for no longer than ``max.compaction.lag.ms`` (KIP-354),
and removes tombstones after ``delete.retention.ms``.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.cluster.reassign import Placement
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from suites.leadership import lead
from suites.log_cleaning import (
    COMPACTED,
    FREQUENT_CLEANING,
    MORE_THAN_TWO,
    NEEDED,
    SMALL_SEGMENTS,
    check_logs_small,
    check_logs_whole,
    check_policy_enforced,
    write_outdated_records,
)
from suites.reassignments import replicas_after
from suites.scenario import NO_FAULT, scenario
from suites.steps import write_untracked_records
from suites.untracked_transactions import UntrackedProducer, check_last_values, last_values, new_producer

KEYS = 10
LARGER_THAN_BUFFER = 500_000
"""Bytes: a cleaner's buffer has half of ``log.cleaner.io.buffer.size``, which is 512 KiB by default."""
NO_TOMBSTONES = {"delete.retention.ms": "0"}
A_SECOND_AT_MOST = {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"}
AN_HOUR_LATER = {"min.compaction.lag.ms": "3600000"}


@scenario(
    "logs/transactions-compacted",
    kip=112,
    plan="compaction of transactions that are open, aborted and committed, on each replica",
    judged=False,
    overrides=FREQUENT_CLEANING,
)
def test_transactions_compacted(cluster: Cluster) -> None:
    """Compaction meets open, aborted and committed transactions: readers get the last committed value of each key.

    They get the tombstone of a deleted key, too, since ``delete.retention.ms`` is a day. In a log where it is 0, the
    second cleaning removes the tombstone. A record there is larger than the cleaner's buffer. A log whose records are
    too young for compaction keeps all of them. A log that is never dirty enough is compacted once its records are a
    second old.
    """
    ledger = cluster.create_topic("ledger", configs=COMPACTED)
    cleaned = cluster.create_topic("cleaned", configs=COMPACTED | NO_TOMBSTONES)
    young = cluster.create_topic("young", configs=COMPACTED | AN_HOUR_LATER)
    overdue = cluster.create_topic("overdue", configs=COMPACTED | A_SECOND_AT_MOST)
    check_policy_enforced(ledger[0])
    UntrackedProducer(cleaned, "third").delete(b"deleted")
    write_untracked_records(cleaned, 1, size=LARGER_THAN_BUFFER, keys=1)
    first, second = (UntrackedProducer(ledger, name) for name in ("first", "second"))
    committed = last_values(first.write(commit=True, count=KEYS, keys=KEYS), KEYS)
    second.write(count=MORE_THAN_TWO, keys=KEYS - 1)
    # The open transaction holds compaction back, so only another log can show that each cleaner had its turn.
    write_outdated_records(cleaned, young, overdue)
    check_logs_small(cleaned, overdue)
    check_on_each_replica(ledger, committed)
    write_outdated_records(cleaned)
    second.write(commit=False, count=0)
    check_logs_small(ledger)
    check_on_each_replica(ledger, committed)
    [*_, deleted] = committed
    first.delete(deleted)
    committed = last_values(second.write(commit=True, count=MORE_THAN_TWO, keys=KEYS - 1), KEYS - 1)
    check_logs_small(ledger, cleaned)
    check_on_each_replica(ledger, {**committed, deleted: None})
    check_last_values(cleaned, "read_committed", NEEDED)
    check_logs_whole(young)


def check_on_each_replica(topic: Topic, committed: Mapping[bytes, bytes | None]) -> None:
    """Whichever replica leads, read_committed consumers get these as the last values of all keys."""
    [log] = topic.partitions
    for broker in (log.leader(), *log.followers()):
        lead(log, broker)
        check_last_values(topic, "read_committed", committed)


@scenario(
    "logs/producer-compacted",
    kip=112,
    plan="compaction of the records of an idempotent producer, and a new replica of its log",
    judged=False,
    floors=NO_FAULT,
    overrides=FREQUENT_CLEANING,
)
def test_producer_compacted(cluster: Cluster) -> None:
    """A new replica that leads recognises the last batch of an idempotent producer, though its record is compacted."""
    resent = cluster.create_topic("resent", replicas=2, configs=COMPACTED)
    [log] = resent.partitions
    first, second = log.leader(), *log.followers()
    [third] = cluster.others(first, second)
    producer = new_producer(log.leader())

    def send() -> int:
        with OwnPart(cluster, "take records", needs_all=False).served():
            return log.leader().admin.produce(
                log.topic, log.index, b"outdated soon", key=b"0", acks=-1, producer=producer, sequence=0
            )

    offset = send()
    write_outdated_records(resent)
    check_logs_small(resent)
    cluster.reassign(log, [third, second])
    replicas_after(Placement(partition=log, on=(third, second)), (first.id, second.id))
    lead(log, third)
    if (again := send()) != offset:
        raise PromiseBroken(f"{third} appended a batch of {log} again that it had at offset {offset}: at {again}")


MANY_KEYS = 44_500
"""More than the 43,690 keys whose hashes, of 24 bytes each with their offset, fit into a cleaner's memory of 1 MiB."""


@scenario(
    "logs/more-keys-than-fit",
    kip=112,
    plan="compaction of more keys than fit into log.cleaner.dedupe.buffer.size, in several passes",
    judged=False,
    floors=NO_FAULT,
    overrides=FREQUENT_CLEANING | {"log.cleaner.dedupe.buffer.size": str((1 << 20) + 1)},
)
def test_more_keys_than_fit(cluster: Cluster) -> None:
    """A log with more keys than fit into the cleaner's memory is compacted in several passes, and stays cleanable."""
    wide = cluster.create_topic("wide", configs=SMALL_SEGMENTS)
    for _ in range(6):
        write_untracked_records(wide, MANY_KEYS, keys=MANY_KEYS)
    wide.configure(COMPACTED)
    check_logs_small(wide, segments=3)
