"""Shows that compaction keeps what readers of committed records need (KIP-98, "Log compaction").

A record that is newer than another one of its key makes the older one obsolete only once its transaction is committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from suites.leadership import lead
from suites.log_cleaning import COMPACTED, FREQUENT_CLEANING, check_logs_small, write_outdated_records
from suites.scenario import scenario
from suites.untracked_transactions import UntrackedProducer, check_last_values, last_values

KEYS = 10
MORE_THAN_TWO = 2500  # records of 1 kB: more than two segments


@scenario(
    "logs/transactions-compacted",
    kip=112,
    plan="compaction of transactions that are open, aborted and committed, on each replica",
    judged=False,
    overrides=FREQUENT_CLEANING,
)
def test_transactions_compacted(cluster: Cluster) -> None:
    """Compaction meets open, aborted and committed transactions: readers get the last committed value of each key.

    They get the tombstone of a deleted key, too, since ``delete.retention.ms`` is a day.
    """
    ledger, cleaned = (cluster.create_topic(name, configs=COMPACTED) for name in ("ledger", "cleaned"))
    first, second = (UntrackedProducer(ledger, name) for name in ("first", "second"))
    committed = last_values(first.write(commit=True, count=KEYS, keys=KEYS), KEYS)
    second.write(count=MORE_THAN_TWO, keys=KEYS - 1)
    # The open transaction holds compaction back, so only another log can show that each cleaner had its turn.
    write_outdated_records(cleaned)
    check_logs_small(cleaned)
    check_on_each_replica(ledger, committed)
    second.write(commit=False, count=0)
    check_logs_small(ledger)
    check_on_each_replica(ledger, committed)
    [*_, deleted] = committed
    first.delete(deleted)
    committed = last_values(second.write(commit=True, count=MORE_THAN_TWO, keys=KEYS - 1), KEYS - 1)
    check_logs_small(ledger)
    check_on_each_replica(ledger, {**committed, deleted: None})


def check_on_each_replica(topic: Topic, committed: Mapping[bytes, bytes | None]) -> None:
    """Whichever replica leads, read_committed consumers get these as the last values of all keys."""
    [log] = topic.partitions
    for broker in (log.leader(), *log.followers()):
        lead(log, broker)
        check_last_values(topic, "read_committed", committed)
