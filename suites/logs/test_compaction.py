"""Shows that compaction keeps what readers of committed records need (KIP-98, "Log compaction").

A record that is newer than another one of its key makes the older one obsolete only once its transaction is committed.
Compaction also waits for ``min.compaction.lag.ms`` (KIP-58) and for no longer than ``max.compaction.lag.ms`` (KIP-354),
and removes tombstones after ``delete.retention.ms``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.cluster.reassign import Placement
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from harness.journal import now
from harness.waiting import await_until
from suites.checks import check_refused
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
    stored_records,
    write_outdated_records,
)
from suites.on_disk import check_checkpoints, check_topic_gone
from suites.reassignments import replicas_after
from suites.replica_files import check_replica_files
from suites.scenario import NO_FAULT, scenario
from suites.steps import write_untracked_records
from suites.untracked_transactions import UntrackedProducer, check_last_values, last_values, new_producer

KEYS = 10
LARGER_THAN_BUFFER = 500_000
"""Bytes: a cleaner's buffer has half of ``log.cleaner.io.buffer.size``, which is 512 KiB by default."""
NO_TOMBSTONES = {"delete.retention.ms": "0"}
TOMBSTONE_S = 5
BRIEF_TOMBSTONES = {"delete.retention.ms": str(1000 * TOMBSTONE_S)}
DELETED_KEY = b"deleted"
A_SECOND_AT_MOST = {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"}
# Brokers write recovery points and log starts only as replicas are deleted.
DELETION_CHECKPOINTS = {
    "log.flush.offset.checkpoint.interval.ms": "3600000",
    "log.flush.start.offset.checkpoint.interval.ms": "3600000",
}
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
    too young for compaction keeps all of them, and no cleaner has an offset of it. A log that is never dirty enough is
    compacted once its records are a second old. A tombstone stays for ``delete.retention.ms`` and goes after that.
    """
    ledger = cluster.create_topic("ledger", configs=COMPACTED)
    cleaned = cluster.create_topic("cleaned", configs=COMPACTED | NO_TOMBSTONES)
    young = cluster.create_topic("young", configs=COMPACTED | AN_HOUR_LATER)
    overdue = cluster.create_topic("overdue", configs=COMPACTED | A_SECOND_AT_MOST)
    check_policy_enforced(ledger[0])
    UntrackedProducer(cleaned, "third").delete(DELETED_KEY)
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
    if cluster.distribution.version.has_delete_horizons:
        check_tombstone_goes(cluster.create_topic("brief", configs=COMPACTED | BRIEF_TOMBSTONES))
    check_replica_files(ledger[0], cleaned[0], young[0], overdue[0])
    names = {topic.name for topic in (ledger, cleaned, young, overdue)}
    check_checkpoints(cluster, names, compacted=names - {young.name})


def check_tombstone_goes(topic: Topic) -> None:
    """A tombstone stays on each replica for ``delete.retention.ms``, and goes in a later cleaning (KIP-534).

    The time begins with the tombstone's first cleaning.
    """
    written_at = now()
    UntrackedProducer(topic, "brief").delete(DELETED_KEY)
    replicas = topic[0].leader(), *topic[0].followers()

    def with_tombstone() -> list[Broker]:
        write_outdated_records(topic)
        check_logs_small(topic)
        found = [
            each
            for each in replicas
            if any(key == DELETED_KEY.decode() for _, key, _ in stored_records(topic[0], each))
        ]
        age_s = (now() - written_at).total_seconds()
        if len(found) < len(replicas) and age_s < TOMBSTONE_S:
            on = ", ".join(map(str, found)) or "no broker"
            raise PromiseBroken(f"after {age_s:.1f} s, there is a tombstone of {topic} on {on}, not on each")
        return found

    await_until(
        with_tombstone,
        lambda found: not found,
        timeout_s=TOMBSTONE_S + timeouts.CLEANING_S,
        what=f"each replica of {topic} to lose a tombstone in a cleaning {TOMBSTONE_S} s after the first one",
        retry_on=(FileNotFoundError,),
        failure=PromiseBroken,
    )


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
    overrides=FREQUENT_CLEANING | DELETION_CHECKPOINTS,
)
def test_producer_compacted(cluster: Cluster) -> None:
    """A new replica that leads recognises the last batch of an idempotent producer, though its record is compacted.

    No checkpoint file names a replica that is gone, since the topic was reassigned or deleted. A later replica of that
    name would be cleaned and recovered from there.
    """
    cluster.create_topic("beside", partitions=2)  # a broker writes no high watermarks into a log dir without a replica
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
    cluster.delete_topics(other := cluster.create_topic("other", partitions=2))
    check_topic_gone(cluster, other.name)  # brokers then list the replicas that stay
    cluster.reassign(log, [third, second])
    replicas_after(Placement(partition=log, on=(third, second)), (first.id, second.id))
    check_checkpoints(cluster, {resent.name}, on=[first])
    lead(log, third)
    if (again := send()) != offset:
        raise PromiseBroken(f"{third} appended a batch of {log} again that it had at offset {offset}: at {again}")
    check_replica_files(log)
    cluster.delete_topics(resent)
    check_topic_gone(cluster, resent.name)
    check_checkpoints(cluster, {resent.name})


MANY_KEYS = 44_500
"""More than the 43,690 keys whose hashes, of 24 bytes each with their offset, fit into a cleaner's memory of 1 MiB."""


# Each thread has at least 1 MiB of the buffer.
MANY_THREADS = {"log.cleaner.threads": "100", "log.cleaner.dedupe.buffer.size": str(200 << 20)}


@scenario(
    "logs/more-keys-than-fit",
    kip=112,
    plan="compaction of more keys than fit into log.cleaner.dedupe.buffer.size, in several passes",
    judged=False,
    floors=NO_FAULT,
    overrides={"log.cleaner.dedupe.buffer.size": str((1 << 20) + 1), "log.cleaner.backoff.ms": "3600000"},
)
def test_more_keys_than_fit(cluster: Cluster) -> None:
    """A log with more keys than fit into the cleaner's memory is compacted in several passes, and stays cleanable.

    Cleaners pause for an hour until a change of their setting is in force on running brokers (KIP-226). A change that
    the cleaner cannot follow is refused.
    """
    wide = cluster.create_topic("wide", configs=SMALL_SEGMENTS)
    for _ in range(6):
        write_untracked_records(wide, MANY_KEYS, keys=MANY_KEYS)
    wide.configure(COMPACTED)
    check_cleaners_reconfigured(cluster)
    check_logs_small(wide, segments=3)
    check_replica_files(wide[0])


def check_cleaners_reconfigured(cluster: Cluster) -> None:
    """Running brokers clean often from now on, and refuse more than twice as many threads as they have."""
    for broker in cluster.brokers:
        many = functools.partial(broker.admin.set_broker_configs, broker.id, MANY_THREADS)
        check_refused(many, "INVALID_REQUEST", "")
        broker.configure({"log.cleaner.backoff.ms": FREQUENT_CLEANING["log.cleaner.backoff.ms"]})
