"""Checks of brokers' disks: folders, checkpoint files, and the bytes of logs.

The harness reads them from outside Kafka. A broker may serve a duplicate, incomplete or wrong replica for a long time
before a client or a tool shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import PartitionState
from harness.kafka.stored_log import Fingerprint, StoredLog
from harness.waiting import await_until
from suites.replica_files import check_replica_files


def check_no_replica_twice(topic: Topic) -> None:
    """No broker has a replica in two of its log dirs, by the folders on disk."""
    for broker in topic.cluster.brokers:
        for partition in topic.partitions:
            found = [d.path.name for d in broker.log_dirs if d.replica_dir(topic.name, partition.index).is_dir()]
            if len(found) > 1:
                raise PromiseBroken(f"{broker} has {partition} twice, in {' and '.join(found)}")


def check_no_leftovers(cluster: Cluster, topics: Collection[str], timeout_s: float = timeouts.RECOVERY_S) -> None:
    """No live broker has a replica of these topics in two log dirs, or leftovers of one.

    Leftovers are folders that end in ``-delete``, ``-future`` or ``-stray``, and ``.deleted`` files. A finished move
    leaves a ``-delete`` folder, which goes after ``log.segment.delete.delay.ms``. A segment that is no longer needed is
    a ``.deleted`` file, which goes after ``file.delete.delay.ms``. No move leaves a ``-future`` folder
    (``LocalLog.logFutureDirName``).
    """
    await_until(
        lambda: _leftovers(cluster, topics),
        lambda found: not found,
        timeout_s=timeout_s,
        what="no leftovers of replicas to be in any log dir",
        failure=PromiseBroken,
    )


def segment_files(folder: Path) -> set[tuple[str, int]]:
    """The names and inodes of the segments in a folder; a renamed file keeps its inode."""
    return {(path.name, path.stat().st_ino) for path in folder.glob("*.log")}


def check_not_created_again(partition: Partition, log_dir: LogDir, files: set[tuple[str, int]]) -> None:
    """Since its start the broker has created no replica of the partition: it serves the files that it found.

    :param files: the names and inodes of the segments that it found
    """
    broker = log_dir.broker
    made = rf"Created log for partition {re.escape(str(partition))} in"
    if (line := broker.log.first(made, since=broker.started_at)) is not None:
        raise PromiseBroken(f"{broker} created {partition}, though it had a future replica: {line.text}")
    if not files <= segment_files(log_dir.replica_dir(partition.topic, partition.index)):
        raise PromiseBroken(f"{broker} serves {partition} from files other than {files}")


TIME_INDEX_ENTRY = 12  # bytes


def ends_in_zeros(index: Path) -> bool:
    """Whether a time index has room after its entries, as that of an active segment has until the log is closed."""
    return index.read_bytes().endswith(b"\0" * TIME_INDEX_ENTRY)


def check_indexes_trimmed(broker: Broker) -> None:
    """A broker that stopped cleanly has trimmed the time indexes of its replicas and future replicas.

    It loads them at its start without a look at the segments.
    """
    indexes = [index for log_dir in broker.log_dirs for index in log_dir.path.glob("*/*.timeindex")]
    if left := [str(index) for index in indexes if "-delete/" not in str(index) and ends_in_zeros(index)]:
        raise PromiseBroken(f"{broker} stopped cleanly, and left a time index that ends in zeros: {left}")


def check_topic_gone(cluster: Cluster, topic: str, timeout_s: float = timeouts.RECOVERY_S) -> None:
    """No live broker has a replica of a deleted topic, nor a ``-delete`` folder of one."""
    name = re.compile(rf"{re.escape(topic)}-\d+")

    def left() -> list[str]:
        dirs = [log_dir for broker in cluster.live_brokers() for log_dir in _online(broker)]
        return [f"{it.name} in {log_dir}" for log_dir in dirs for it in log_dir.path.iterdir() if name.match(it.name)]

    await_until(
        left,
        lambda found: not found,
        timeout_s=timeout_s,
        what=f"the deleted topic {topic} to be in no log dir",
        failure=PromiseBroken,
    )


def _online(broker: Broker) -> list[LogDir]:
    paths = {state.path for state in broker.describe_log_dirs() if not state.offline}
    return [log_dir for log_dir in broker.log_dirs if str(log_dir.path) in paths]


def _leftovers(cluster: Cluster, topics: Collection[str]) -> list[str]:
    found = []
    for broker in cluster.live_brokers():
        seen: set[str] = set()
        for log_dir in _online(broker):
            for folder in log_dir.path.iterdir():
                if folder.name.rpartition("-")[0] in topics:
                    if folder.name in seen:
                        found.append(f"{folder.name} is on {broker} twice")
                    seen.add(folder.name)
                    found += [f"{file.name} in {folder.name} in {log_dir}" for file in folder.glob("*.deleted")]
                elif any(folder.name.startswith(f"{topic}-") for topic in topics):
                    found.append(f"{folder.name} in {log_dir}")
    return found


CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS)


def check_checkpoints(
    cluster: Cluster,
    topics: Collection[str],
    *,
    begin_midway: Collection[str] = (),
    compacted: Collection[str] = (),
    on: Collection[Broker] | None = None,
    timeout_s: float = timeouts.LOG_DIR_FAILURE_S,
) -> None:
    """Each log dir's checkpoint files name the replicas of these topics that are in it, and no others.

    The next start (``LogManager.loadLogs``) and the cleaner would believe a line about a replica of another log dir. A
    log start offset is written only if it lies inside a segment (``LogManager.checkpointLogStartOffsetsInDir``). A
    cleaner offset is written once the log was cleaned (``LogCleanerManager.doneCleaning``).

    :param begin_midway: the topics whose logs start inside a segment, since records were deleted
    :param compacted: the topics of which all replicas were cleaned; no replica of the others was
    :param on: the brokers to check (default: all that run)
    """
    must = dict.fromkeys(CHECKPOINTS, topics) | {LOG_STARTS: begin_midway, CLEANED: compacted}

    def differences() -> list[str]:
        found = []
        for log_dir in (each for broker in on or cluster.live_brokers() for each in broker.log_dirs):
            here = {path.name for path in log_dir.path.iterdir() if path.name.rpartition("-")[0] in topics}
            for file, those in must.items():
                named = {name for name in log_dir.partitions_in_checkpoint(file) if name.rpartition("-")[0] in topics}
                needed = {name for name in here if name.rpartition("-")[0] in those}
                if not needed <= named <= (needed if file == CLEANED else here):
                    found.append(f"{file} in {log_dir} names {sorted(named)} instead of {sorted(needed)}")
        return found

    await_until(
        differences,
        lambda found: not found,
        timeout_s=timeout_s,
        what="the checkpoint files to name the replicas in their log dirs",
        retry_on=(OSError,),  # a checkpoint is replaced as a whole
        failure=PromiseBroken,
    )


def check_high_watermarks(*topics: Topic) -> None:
    """The checkpointed high watermarks of all replicas reach the ends of the logs, once no client writes to them."""
    cluster = topics[0].cluster
    ends = {f"{topic}-{index}": end for (topic, index), end in cluster.end_offsets(topics).items()}

    def lower() -> list[str]:
        marks = {
            (log_dir, name): mark
            for broker in cluster.live_brokers()
            for log_dir in broker.log_dirs
            for name, mark in log_dir.replicas_on_disk().items()
            if name in ends
        }
        return [f"{mark} of {name} in {log_dir}" for (log_dir, name), mark in marks.items() if mark != ends[name]]

    await_until(
        lower,
        lambda found: not found,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the checkpointed high watermarks to be the end offsets {ends}",
        failure=PromiseBroken,
    )


def logs_of(
    partitions: Collection[Partition], on: Callable[[PartitionState], Collection[int]]
) -> dict[Partition, dict[int, StoredLog]]:
    """The logs of replicas on disk, by partition and broker id. Each broker is asked once for its log dirs.

    :param on: picks the ids of the wanted brokers from a partition's state
    :raises NoAnswer: a broker does not answer, or has no such replica
    """
    cluster = next(iter(partitions)).cluster
    state = cluster.describe()
    replicas_on = cache(lambda id: cluster.broker(id).find_replicas())

    def log_on(id: int, partition: Partition) -> StoredLog:
        key = partition.topic, partition.index
        if key not in replicas_on(id):
            raise NoAnswer(f"broker {id} names no log dir for {partition}")
        return StoredLog(replicas_on(id)[key][0].replica_dir(*key))

    return {each: {id: log_on(id, each) for id in on(state[each.topic, each.index])} for each in partitions}


def leaders_logs(partitions: Collection[Partition]) -> dict[Partition, Fingerprint]:
    """Fingerprints of the leaders' logs of these partitions, for :func:`check_logs_unchanged`.

    :raises NoAnswer: a partition has no leader; or a broker does not answer, or has no such replica
    """
    return {each: log.fingerprint() for each, log in _leaders_stored_logs(partitions)}


def _leaders_stored_logs(partitions: Collection[Partition]) -> list[tuple[Partition, StoredLog]]:
    def leader(state: PartitionState) -> list[int]:
        if state.leader is None:
            raise NoAnswer(f"{state.topic}-{state.partition} has no leader")
        return [state.leader]

    return [(each, log) for each, by_broker in logs_of(partitions, leader).items() for log in by_broker.values()]


def log_bytes(folder: Path) -> bytes:
    """The bytes of all segments in a replica's folder, in order."""
    return b"".join(StoredLog(folder).pieces())


def check_logs_unchanged(before: Mapping[Partition, Fingerprint], timeout_s: float = timeouts.RECOVERY_S) -> None:
    """The leaders' logs of partitions that were not written to are the same as before (:func:`leaders_logs`).

    If Kafka recreates the only replica of a partition in another log dir, it is empty, and clients see no error. The
    error has the size of each log that differs, and the first offset of its segments.
    """

    def changed() -> list[str]:
        found = [(each, log) for each, log in _leaders_stored_logs(before) if log.fingerprint() != before[each]]
        return [f"{each} has {log}, and had {before[each][0]} bytes" for each, log in found]

    await_until(
        changed,
        lambda others: not others,
        timeout_s=timeout_s,
        what="the partitions that no client writes to have the same logs as before",
        retry_on=(NoAnswer, OSError),
        failure=PromiseBroken,
    )


def check_same_bytes(*partitions: Partition, start: int = 0) -> None:
    """The replicas of each partition have the same log, byte for byte, wherever their segments begin.

    The other files in the replicas' folders must fit the logs, too (:mod:`suites.replica_files`). Call it when no
    client writes any more. A drain reads the leader's log only, so it cannot show what a follower has.

    :param start: compare from this offset on; a replica need not have the records before it
    """
    left, seen_before = list(partitions), list[str]()

    def differences() -> list[str]:
        found: list[str] = []
        for partition, logs in logs_of(left, lambda state: state.replicas).items():
            if differs := _differences(logs, start):
                found.append(f"the replicas of {partition} are not the same: {'; '.join(differs)}")
                # No follower has anything left to fetch, and no segment was replaced meanwhile.
                if len({log.size for log in logs.values()}) == 1 and found[-1] in seen_before:
                    raise PromiseBroken(found[-1])
            else:
                left.remove(partition)
        seen_before[:] = found
        return found

    await_until(
        differences,
        lambda found: not found,
        timeout_s=timeouts.RECOVERY_S,
        what=f"the replicas of {', '.join(map(str, partitions))} to be the same",
        retry_on=(NoAnswer, OSError),
        failure=PromiseBroken,
    )
    check_replica_files(*partitions)


def _differences(logs: Mapping[int, StoredLog], start: int) -> list[str]:
    longest = max(logs.values(), key=lambda log: log.size)
    found = []
    for id, log in logs.items():
        if log is longest:
            continue
        another = log.first_difference(longest, skip=longest.size - log.size)
        if another is None and (log.size == longest.size or longest.begins() < log.begins() <= start):
            continue
        found.append(
            f"broker {id} has {log.size} bytes from offset {log.begins()} on, another {longest.size} from "
            f"{longest.begins()}, and they differ from byte {log.first_difference(longest)} on"
        )
    return found
