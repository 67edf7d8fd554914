"""Shows that compaction keeps what readers of committed records need (KIP-98, "Log compaction").

A record that is newer than another one of its key makes the older one obsolete only once its transaction is committed.
Compaction also waits for ``min.compaction.lag.ms`` (KIP-58) and for no longer than ``max.compaction.lag.ms`` (KIP-354),
and removes tombstones after ``delete.retention.ms``.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from suites.leadership import lead
from suites.log_cleaning import (
    COMPACTED,
    FREQUENT_CLEANING,
    MORE_THAN_TWO,
    NEEDED,
    check_logs_small,
    check_logs_whole,
    check_policy_enforced,
    write_outdated_records,
)
from suites.scenario import scenario
from suites.steps import write_untracked_records
from suites.untracked_transactions import UntrackedProducer, check_last_values, last_values

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
