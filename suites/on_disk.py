"""What lies on brokers' disks, against what should: folders, checkpoint files, and the bytes of logs.

Read from outside Kafka, whatever it says of them: a replica that is there twice, or half, or with other records, may
serve for long before anybody is told.
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
from harness.waiting import await_until
from suites.stored_log import Fingerprint, StoredLog


def check_one_copy(topic: Topic) -> None:
    """On every broker each replica lies in one log dir, and nowhere twice: by the folders on disk.

    :raises PromiseBroken: a broker has two folders of a partition
    """
    for broker in topic.cluster.brokers:
        for partition in topic.partitions:
            found = [d.path.name for d in broker.log_dirs if d.replica_dir(topic.name, partition.index).is_dir()]
            if len(found) > 1:
                raise PromiseBroken(f"{broker} has {partition} twice, in {' and '.join(found)}")


def check_no_remains(cluster: Cluster, topics: Collection[str], timeout_s: float = timeouts.RECOVERY_S) -> None:
    """On every broker that runs, each log dir holds whole replicas of these topics only, and no replica lies twice.

    What a finished move leaves, a folder ``….<uuid>-delete``, goes after ``log.segment.delete.delay.ms``; a move that
    ended in any way leaves no ``….<uuid>-future`` (``LocalLog.logFutureDirName``), and nobody a ``-stray``. A segment
    that is no longer needed, ``….deleted``, goes after ``file.delete.delay.ms``.

    :raises PromiseBroken: something else is there
    """
    await_until(
        lambda: _remains(cluster, topics),
        lambda found: not found,
        timeout_s=timeout_s,
        what="no remains of replicas to be in any log dir",
        failure=PromiseBroken,
    )


def check_gone(cluster: Cluster, topic: str, timeout_s: float = timeouts.RECOVERY_S) -> None:
    """No broker that runs has a replica of a topic that was deleted, neither under its name nor on its way out.

    :raises PromiseBroken: one has
    """
    name = re.compile(rf"{re.escape(topic)}-\d+")

    def left() -> list[str]:
        dirs = [log_dir for broker in cluster.live_brokers() for log_dir in _online(broker)]
        return [f"{it.name} in {log_dir}" for log_dir in dirs for it in log_dir.path.iterdir() if name.match(it.name)]

    await_until(
        left,
        lambda found: not found,
        timeout_s=timeout_s,
        what=f"{topic}, which was deleted, to be in no log dir",
        failure=PromiseBroken,
    )


def _online(broker: Broker) -> list[LogDir]:
    paths = {state.path for state in broker.describe_log_dirs() if not state.offline}
    return [log_dir for log_dir in broker.log_dirs if str(log_dir.path) in paths]


def _remains(cluster: Cluster, topics: Collection[str]) -> list[str]:
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
    """Each log dir's checkpoint files name the replicas that are in it, of these topics, and no others.

    A line that names a replica of another log dir would be believed by the next start (``LogManager.loadLogs``), and by
    the cleaner. Where a log begins is written down only if it is amid a segment
    (``LogManager.checkpointLogStartOffsetsInDir``), how far it has been cleaned once it has been.

    :param begin_midway: those of the topics from which records were deleted, with what is left of their segment
    :param compacted: those of which all replicas have been cleaned
    :param on: brokers (default: all that run)
    :raises PromiseBroken: one doesn't
    """
    must = dict.fromkeys(CHECKPOINTS, topics) | {LOG_STARTS: begin_midway, CLEANED: compacted}

    def differences() -> list[str]:
        found = []
        for log_dir in (each for broker in on or cluster.live_brokers() for each in broker.log_dirs):
            here = {path.name for path in log_dir.path.iterdir() if path.name.rpartition("-")[0] in topics}
            for file, those in must.items():
                named = {name for name in log_dir.named_in(file) if name.rpartition("-")[0] in topics}
                needed = {name for name in here if name.rpartition("-")[0] in those}
                if not needed <= named <= here:
                    found.append(f"{file} in {log_dir} names {sorted(named)} instead of {sorted(needed)}")
        return found

    await_until(
        differences,
        lambda found: not found,
        timeout_s=timeout_s,
        what="the checkpoint files to name what is in their log dirs",
        retry_on=(OSError,),  # a checkpoint is replaced as a whole
        failure=PromiseBroken,
    )


def logs_of(
    partitions: Collection[Partition], on: Callable[[PartitionState], Collection[int]]
) -> dict[Partition, dict[int, StoredLog]]:
    """Replicas' logs, by broker; each broker is asked once where they are, however many there are.

    :param on: of a partition's state the brokers whose replicas are wanted
    :raises NoAnswer: a broker doesn't answer, or knows of no such replica
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
    """What the leader's log of each partition is known by, for :func:`check_kept`.

    :raises NoAnswer: nobody leads one; a broker doesn't answer, or knows of no such replica
    """

    def leader(state: PartitionState) -> list[int]:
        if state.leader is None:
            raise NoAnswer(f"nobody leads {state.topic}-{state.partition}")
        return [state.leader]

    found = logs_of(partitions, leader).items()
    return {each: log.fingerprint() for each, by_broker in found for log in by_broker.values()}


def log_in(folder: Path) -> bytes:
    """The bytes of the log in a replica's folder: all its segments, one after the other."""
    return b"".join(StoredLog(folder).pieces())


def check_kept(before: Mapping[Partition, Fingerprint], timeout_s: float = timeouts.RECOVERY_S) -> None:
    """Partitions to which nobody has written since have the logs that they had (:func:`leaders_logs`).

    A partition of one replica that comes back in another log dir comes back empty, and to its clients all is well.

    :raises PromiseBroken: one has another
    """
    await_until(
        lambda: [str(each) for each, log in leaders_logs(before).items() if log != before[each]],
        lambda others: not others,
        timeout_s=timeout_s,
        what="the partitions that came back to have the logs that they had",
        retry_on=(NoAnswer, OSError),
        failure=PromiseBroken,
    )


def check_same_bytes(*partitions: Partition, start: int = 0) -> None:
    """The replicas' logs of each come to be the same, byte for byte, wherever their segments begin; nobody writes any
    more.

    What a drain reads is the leader's log alone; a move may as well be a follower's.

    :param start: the logs' first offset: what is below it may be there or not
    :raises PromiseBroken: they don't
    """
    left, seen_before = list(partitions), list[str]()

    def differences() -> list[str]:
        found: list[str] = []
        for partition, logs in logs_of(left, lambda state: state.replicas).items():
            if differs := _differences(logs, start):
                found.append(f"the replicas of {partition} are not the same: {'; '.join(differs)}")
                # Nobody has anything left to fetch, and nobody has put another segment in place of one meanwhile.
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
