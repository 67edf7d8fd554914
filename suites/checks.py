"""What "validate client/cluster state" of KIP-112's test plan means, as checks that a scenario calls by name.

"Brokers are all running and show expected error message; topic description shows expected results for all topics; a
pair of producer and consumer can successfully produce/consume from a topic without message loss or duplication."
Running brokers, topic description and log dirs are :meth:`suites.model.World.check`; the message is
:func:`check_noticed`; the pair without loss or duplication is :func:`check_delivery`.
"""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from faults.base import Fault
from faults.log_dir import LOG_DIR_STOPPED
from faults.segment import IndexByteFlipped
from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.deviation import Deviation
from harness.doors.admin import Refused
from harness.doors.broker_log import LogLine
from harness.doors.wire import NoAnswer
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.log_dir import LogDir
from harness.quorum.zookeeper import LogDirEvents
from harness.topic import Partition, Topic
from harness.waiting import await_until
from harness.workload import CaseWorkload
from suites.deviations import is_expected
from suites.meanwhile import meanwhile


def check_noticed(fault: Fault, since: datetime | None = None) -> None:
    """The broker's log shows the message by which it says that it noticed the fault.

    :raises PromiseBroken: it doesn't, within the time that noticing may take
    """
    assert fault.noticed_by is not None, f"{fault} names no log line by which a broker notices it"
    line = check_says(fault.broker, fault.noticed_by, since or fault.injected_at)
    fault.broker.journal.write(
        "fault.noticed", broker=fault.broker.id, logged_at=line.at.isoformat(), line=line.text[:300]
    )


def check_says(broker: Broker, saying: str, since: datetime) -> LogLine:
    """The broker's log has such a line (a regular expression); the first one.

    :raises PromiseBroken: it hasn't, within the time that noticing may take
    """
    line = await_until(
        lambda: broker.log.first(saying, since=since),
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{broker} to log /{saying}/",
        watch=broker.node.check_alive,
        failure=PromiseBroken,
        hint=f"looked in {broker.log.path}",
    )
    assert line is not None
    return line


def check_notified(events: LogDirEvents, broker: Broker) -> None:
    """ZooKeeper: the broker told the controller that a log dir failed, in one znode, which is gone (KIP-112).

    :raises PromiseBroken: there was none, it said something else, or it is still there
    """
    wanted = [{"version": 1, "broker": broker.id, "event": 1}]
    await_until(
        lambda: (list(events.seen().values()), events.left()),
        lambda found: found == (wanted, []),
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"one notification {wanted[0]}, and none that is left",
        failure=PromiseBroken,
    )
    broker.journal.write("log_dir.notified", broker=broker.id, znodes=events.seen())


FLUSHED_TOO_LATE = r"(?s)Error while flushing log for \S+ in dir {path} .*ClosedChannelException"
"""What KAFKA-19571 says of the log dir that it takes offline: a rolled segment's files were closed before its flush."""


@contextmanager
def no_log_dir_fails(cluster: Cluster, *, expected: Deviation | None = None) -> Iterator[Collection[str]]:
    """Inside the block no broker ever counts a log dir offline, nor says in its log that it stops serving one.

    The MBeans of every broker that runs are read some times a second; the logs have what happened in between. Yields
    what was counted so far, which should stay empty.

    :param expected: what is known of the build: then a log dir must go offline, and each for that reason
    :raises PromiseBroken: one does, also where the block fails for that reason; or none does where it is expected
    :raises Inconclusive: a broker's MBeans could hardly ever be read
    """
    start = now()
    samples, counted = collections.Counter[int](), set[str]()

    def sample() -> None:
        for broker in cluster.live_brokers():
            assert broker.mbeans is not None
            with contextlib.suppress(NoAnswer):
                metrics = broker.mbeans.describe_broker()
                samples[broker.id] += 1
                offline = [path for path, is_offline in metrics.log_dir_offline.items() if is_offline]
                if metrics.offline_log_dirs or offline:
                    counted.add(f"{broker} counted {metrics.offline_log_dirs} log dirs offline: {offline}")

    try:
        with meanwhile(sample, every_s=0.2) as errors:
            yield counted
    finally:
        stopped = LOG_DIR_STOPPED.format(path=r"(\S+)")
        said = {
            f"{broker} said: {line.text[:300]}": broker.log.first(
                FLUSHED_TOO_LATE.format(path=re.escape(str(path[1]))), since=start
            )
            for broker in cluster.brokers
            for line in broker.log.lines(since=start)
            if (path := re.search(stopped, line.text))
        }
        otherwise = [each for each, cause in said.items() if cause is None]
        if (said or counted) and not expected:
            raise PromiseBroken(f"nothing was done to any log dir, and {'; '.join([*sorted(counted), *said])}")
        if expected and otherwise:
            raise PromiseBroken(f"a log dir went offline, and not by {expected.issue}: {'; '.join(otherwise)}")
    if errors:
        raise errors[0]
    if expected and not said:
        raise PromiseBroken(expected.gone)
    cluster.journal.write("log_dirs.watched", samples=dict(samples), counted=sorted(counted), said=[*said])
    if any(samples[broker.id] < 10 for broker in cluster.brokers):
        raise Inconclusive(f"the MBeans of some broker could hardly be read: {dict(samples)} times")


def check_ends(broker: Broker, *, exit_code: int, saying: str) -> None:
    """The broker ends by itself, with this exit code and this message.

    :param saying: a regular expression of a line of its log since its last start
    :raises PromiseBroken: it goes on, or ends otherwise
    """
    broker.node.let_end()
    code = await_until(
        broker.node.exit_code,
        lambda code: code is not None,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{broker} to exit",
        failure=PromiseBroken,
        hint=broker.log.tail,
    )
    line = broker.log.first(saying, since=broker.started_at)
    if code != exit_code or line is None:
        raise PromiseBroken(
            f"{broker} ended with exit code {code} instead of {exit_code} and "
            f"{'said' if line else 'did not say'} /{saying}/; its log ends with:\n{broker.log.tail()}"
        )
    broker.journal.write("broker.ended", broker=broker.id, exit_code=code, line=line.text[:300])


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


HIGH_WATERMARKS = "replication-offset-checkpoint"
CHECKPOINTS = ("recovery-point-offset-checkpoint", HIGH_WATERMARKS)


def check_checkpoints(cluster: Cluster, topics: Collection[str], timeout_s: float = timeouts.LOG_DIR_FAILURE_S) -> None:
    """Each log dir's checkpoint files name the replicas that are in it, of these topics, and no others.

    A line that names a replica of another log dir would be believed by the next start (``LogManager.loadLogs``).

    :raises PromiseBroken: one doesn't
    """

    def differences() -> list[str]:
        found = []
        for log_dir in (each for broker in cluster.live_brokers() for each in broker.log_dirs):
            here = {path.name for path in log_dir.path.iterdir() if path.name.rpartition("-")[0] in topics}
            for file in CHECKPOINTS:
                lines = [line.split() for line in (log_dir.path / file).read_text().splitlines()[2:]]
                named = {f"{topic}-{partition}" for topic, partition, _ in lines if topic in topics}
                if named != here:
                    found.append(f"{file} in {log_dir} names {sorted(named)} instead of {sorted(here)}")
        return found

    await_until(
        differences,
        lambda found: not found,
        timeout_s=timeout_s,
        what="the checkpoint files to name what is in their log dirs",
        retry_on=(OSError,),  # a checkpoint is replaced as a whole
        failure=PromiseBroken,
    )


@contextmanager
def promised(cluster: Cluster, *, unless: Deviation, seen: str) -> Iterator[None]:
    """What the block checks must hold, and on builds with the deviation must be broken as these are known to break it.

    :param seen: how its check then words what it sees, as a regular expression so exact that it fits nothing else
    :raises PromiseBroken: it does not hold, on any other build or in any other way; or it does where it is known not to
    """
    expected = is_expected(unless, cluster)
    try:
        yield
    except PromiseBroken as broken:
        if not expected or not re.search(seen, str(broken)):
            raise
        cluster.journal.write("deviation.seen", **unless.to_json(), seen=str(broken))
    else:
        if expected:
            raise PromiseBroken(unless.gone)


def log_of(partition: Partition, broker: Broker) -> bytes:
    """The bytes of a replica's log: all its segments, one after the other."""
    folder = partition.log_dir_on(broker).replica_dir(partition.topic, partition.index)
    return b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.log")))


def check_kept(before: Mapping[Partition, bytes]) -> None:
    """Partitions to which nobody has written since have the logs that they had (:func:`log_of` their leader).

    A partition of one replica that comes back in another log dir comes back empty, and to its clients all is well.

    :raises PromiseBroken: one has another
    """
    await_until(
        lambda: [str(partition) for partition, log in before.items() if log_of(partition, partition.leader()) != log],
        lambda others: not others,
        timeout_s=timeouts.RECOVERY_S,
        what="the partitions that came back to have the logs that they had",
        retry_on=(NoAnswer, OSError),
        failure=PromiseBroken,
    )


def check_same_bytes(partition: Partition, start: int = 0) -> None:
    """Its replicas' logs come to be the same, byte for byte, wherever their segments begin; nobody writes any more.

    What a drain reads is the leader's log alone; a move may as well be a follower's.

    :param start: the log's first offset: what is below it may be there or not
    :raises PromiseBroken: they don't
    """

    def differences() -> list[str]:
        logs = {}
        for broker in (partition.leader(), *partition.followers()):
            logs[broker] = log_of(partition, broker)
        longest = max(logs.values(), key=len)
        found = [
            f"{broker} has {len(log)} bytes from offset {_begins(log)} on, another {len(longest)} from "
            f"{_begins(longest)}, and they differ from byte {_first_difference(log, longest)} on"
            for broker, log in logs.items()
            if not longest.endswith(log) or (log != longest and not _begins(longest) < _begins(log) <= start)
        ]
        if found and len(set(map(len, logs.values()))) == 1:  # nobody has anything left to fetch
            raise PromiseBroken(f"the replicas of {partition} are not the same: {'; '.join(found)}")
        return found

    await_until(
        differences,
        lambda found: not found,
        timeout_s=timeouts.RECOVERY_S,
        what=f"the replicas of {partition} to be the same",
        retry_on=(NoAnswer, OSError),
        failure=PromiseBroken,
    )


def _first_difference(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _begins(log: bytes) -> int:
    """The offset with which a log's first batch begins: its first field."""
    return int.from_bytes(log[:8])


def check_not_noticed(fault: Fault, log_dir: LogDir) -> None:
    """The broker never said that it stopped serving the log dir, and describes it as good.

    :raises PromiseBroken: it took it offline
    """
    broker = log_dir.broker
    line = broker.log.first(LOG_DIR_STOPPED.format(path=re.escape(str(log_dir.path))), since=fault.injected_at)
    if line is not None:
        raise PromiseBroken(f"{log_dir} gave no error, and {broker} took it offline: {line.text[:300]}")
    errors = [state.error for state in broker.describe_log_dirs() if state.path == str(log_dir.path) and state.error]
    if errors:
        raise PromiseBroken(f"{log_dir} gave no error, and {broker} describes it as {errors[0]}")


def check_rebuilt(flip: IndexByteFlipped) -> None:
    """The flipped bit of an index is gone: Kafka has made the index anew.

    :raises PromiseBroken: it is still there
    """
    if flip.still_flipped():
        raise PromiseBroken(
            f"{flip.broker} loaded {flip.target} as it was, with a position far behind the segment's end"
        )


def check_delivery(workload: CaseWorkload) -> None:
    """Drain the healed cluster and judge the whole history: nothing lost, nothing twice, nothing out of place.

    What a drain reads is the leaders' logs; so all replicas are compared with them too, byte for byte: one that came
    back with a hole, or with other records, would else be found by the next election.

    The judge's word, and the floors that the load must have reached, bind the case whether or not a scenario heeds them
    (:mod:`harness.runs.outcomes`); here they end it.

    :raises PromiseBroken: the verdict is invalid, or a replica is not as the others
    :raises Inconclusive: it is unknown
    """
    verdict = workload.drain_and_judge()
    if verdict.verdict != "valid":
        raise {"invalid": PromiseBroken, "unknown": Inconclusive}[verdict.verdict]("; ".join(verdict.reasons))
    for topic in workload.topics:
        for partition in topic.partitions:
            check_same_bytes(partition)


T = TypeVar("T")


def check_refused(ask: Callable[[], object], error: str, saying: str) -> None:
    """Kafka refuses what it is asked, with this error.

    :param saying: a regular expression of its message
    :raises PromiseBroken: it does it, or refuses otherwise
    """
    try:
        ask()
    except Refused as refusal:
        if refusal.error == error and re.search(saying, refusal.message or ""):
            return
        raise PromiseBroken(f"{refusal}, instead of {error} with /{saying}/") from refusal
    raise PromiseBroken(f"it was done, where {error} is promised")


def check_known(deviation: Deviation, cluster: Cluster, seen: T, *, promised: T, known: T) -> None:
    """What was seen is what the KIP promises; of a build that is known to deviate, what it is known to do.

    :raises PromiseBroken: it isn't; with "no longer deviates" where such a build keeps the promise
    """
    expected = is_expected(deviation, cluster)
    if expected and seen == promised:
        raise PromiseBroken(f"{deviation.gone}; seen: {seen}")
    should = known if expected else promised
    if seen != should:
        raise PromiseBroken(f"{deviation.says}; seen: {seen}, instead of {should}")
