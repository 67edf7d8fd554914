"""Shows what a broker does with a log dir that is offline (KIP-18, "Putting LogDirs Directory Offline").

KIP-112 and KIP-113 replaced KIP-18. The scenarios of KIP-112 test most of its rules (``clauses/kip_18.toml``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from faults.base import injected
from faults.log_dir import Chmod000, ReplicaChmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.errors import Inconclusive, PromiseBroken
from harness.host.file_access import in_use, watched
from suites.checks import check_logged, check_noticed
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE
from suites.log_cleaning import COMPACTED, EXPIRING, FREQUENT_CLEANING, check_logs_small, write_outdated_records
from suites.on_disk import check_same_bytes
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import check_stays_offline, log_dirs_failed, restart_after_healing, write_untracked_records

NOT_YET = {"min.cleanable.dirty.ratio": "1", "retention.bytes": "-1"}
"""Configs of a topic that keep outdated records."""
ROLLING = {"segment.ms": "1"}
"""Configs of a topic in which each batch of records begins a segment, and so creates files."""
FROM_NOW_ON = {"min.cleanable.dirty.ratio": "0.01", "retention.bytes": EXPIRING["retention.bytes"]}
"""Configs of a topic that let compaction and retention remove outdated records."""

IO_ERROR = r"Error while [^\n]* {path}[ /]"
"""The log line of an operation on a log dir that met an error, with its stack trace."""


@scenario(
    "kip-18/offline-untouched",
    kip=18,
    plan="Putting LogDirs Directory Offline",
    judged=False,
    overrides=FREQUENT_CLEANING,
)
def test_offline_untouched(cluster: Cluster) -> None:
    """A healed log dir that is still offline is neither read nor written, while the good ones are cleaned.

    All replicas have outdated records. While the log dir is offline, compaction and retention remove those of all
    other replicas. Those in the log dir are removed only after a restart of its broker.
    """
    topics = [
        # one by one, so that they alternate between the log dirs
        cluster.create_topic(f"{name}-{number}", configs=policy | NOT_YET)
        for name, policy in (("compacted", COMPACTED), ("expiring", EXPIRING))
        for number in (1, 2)
    ]
    state = StateCheck(cluster, *topics)
    victim = leader_of(topics[0][0])
    log_dir = topics[0][0].log_dir_on(victim)
    offline = [topic for topic in topics if topic[0].log_dir_on(victim) == log_dir]
    good = [topic for topic in topics if topic not in offline]
    for those in (offline, good):
        if {topic.name.partition("-")[0] for topic in those} != {"compacted", "expiring"}:
            raise Inconclusive(f"{victim} has {', '.join(map(str, offline))} in {log_dir}, and not one of each kind")
    write_outdated_records(*topics)
    with log_dirs_failed(state, Chmod000(log_dir)):
        pass
    with untouched(log_dir):
        for topic in topics:
            topic.configure(FROM_NOW_ON)
            write_untracked_records(topic, 10, keys=10, to=leader_of(topic[0]))
        check_logs_small(*good)
        check_logs_small(*offline, on=cluster.others(victim))
        check_stays_offline(state, log_dir)
    restart_after_healing(state, victim)
    check_logs_small(*offline)


@scenario(
    "kip-18/one-folder",
    kip=18,
    plan="IO Errors: one partition's folder fails, under the leader's append",
    judged=False,
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE,),
)
def test_one_folder(cluster: Cluster) -> None:
    """One partition's folder fails, and its leader's append meets the error: the whole log dir goes offline.

    KIP-112 requires this. KIP-18 would take only this partition offline. The same holds after a restart of the broker.
    """
    orders = cluster.create_topic("orders", partitions=4, replicas=3, configs=ROLLING)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    write_untracked_records(orders, 40)
    with injected(ReplicaChmod000(log_dir, orders[0])) as fault:
        write_untracked_records(orders, 10, into=0)
        state.log_dir_failed(log_dir)
        state.check()
        check_noticed(fault)
        check_append_failed(fault)
        victim.stop()
        state.broker_gone(victim)
        state.check()
        victim.start()
        state.broker_back(victim)
        state.check(timeouts.RECOVERY_S)
    restart_after_healing(state, victim)
    write_untracked_records(orders, 40)
    check_same_bytes(*orders.partitions)


def check_append_failed(fault: ReplicaChmod000) -> None:
    """The first error that the broker logs for the log dir is that of an append by the leader.

    :raises Inconclusive: another access met the error first, such as the flush of a segment that was just rolled
    """
    path = re.escape(str(fault.log_dir.path))
    line = check_logged(fault.broker, IO_ERROR.format(path=path), fault.injected_at)
    if "appendAsLeader" not in line.text:
        raise Inconclusive(f"{fault.broker} met {fault} outside the leader's append: {line.text[:3000]}")
    fault.broker.journal.write("append.failed", broker=fault.broker.id, line=line.text[:300])


@contextmanager
def untouched(log_dir: LogDir) -> Iterator[None]:
    """Inside the block, a broker uses no file of its offline log dir, and has none open.

    :raises PromiseBroken: it has one open, or any process opens, reads, writes, creates, renames or deletes one
    """
    broker = log_dir.broker
    with watched(log_dir.path) as uses:
        check_none_open(log_dir)
        yield
        check_none_open(log_dir)
        if found := uses():
            raise PromiseBroken(f"{log_dir} is offline, and files in it are used: {'; '.join(found[:10])}")
    broker.journal.write("log_dir.untouched", log_dir=str(log_dir))


def check_none_open(log_dir: LogDir) -> None:
    """The broker has no file of the log dir open, and none mapped.

    :raises Inconclusive: it seems to have none of another log dir open either
    """
    pid = log_dir.broker.node.pid()
    assert pid is not None, f"{log_dir.broker} runs"
    if unseen := [str(other) for other in log_dir.broker.log_dirs if other != log_dir and not in_use(other.path, pid)]:
        raise Inconclusive(f"{log_dir.broker} has no file open in {', '.join(unseen)}, which it serves")
    if found := in_use(log_dir.path, pid):
        raise PromiseBroken(f"{log_dir} is offline, and its broker has files of it open: {', '.join(found[:10])}")
