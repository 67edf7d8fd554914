"""Shows the interfaces of KIP-113's tools, and what kafka-reassign-partitions requests from brokers, and for how long.

Options, output and Java methods are compared with the KIP's "Scripts" and "AdminClient". The brokers' request logs show
what the tool sends. It repeats its request until the replica exists, for 10 s by default.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from faults.targets import other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.reassign import Placement, execute, verify
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken, ToolFailed
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.request_log import requests_logged
from harness.kafka.tools_jvm import public_methods, tool_lines
from harness.kafka.versions import Mode, Tool, VersionRange
from harness.waiting import await_until
from suites.background import in_background
from suites.checks import check_promised_or_known
from suites.deviations import (
    ADMIN_CLIENT_RENAMED,
    LOG_DIRS_KEYS_RENAMED,
    LOG_DIRS_NOT_REQUESTED,
    LOG_DIRS_OPTIONS_RENAMED,
)
from suites.kip_113.tool_requests import (
    LogDirsRequested,
    check_requested,
    execution_error,
    refused_requests,
    requested,
)
from suites.moves import SMALL_FETCHES, await_moved
from suites.reassignments import await_no_reassignment
from suites.scenario import NO_FAULT, scenario

TRIES = 10
DEFAULT_S, WITHIN = 10, 0.2  # the tool's time-out, and the share of it by which the measured one may differ
AMPLE_MS = 4_000 * DEFAULT_S  # a time-out of the tool within which the replica exists, also on a slow machine
JSON_REQUESTS = VersionRange.parse(">=2.8.0")  # KIP-673


@scenario(
    "kip-113/tools-asked",
    kip=113,
    plan="Scripts, AdminClient: options, output, methods; retries AlterReplicaDirRequest; timeout is 10 seconds",
    judged=False,
    floors=NO_FAULT,
    overrides=SMALL_FETCHES,  # the settings of similar scenarios, so that they share a cluster
    builds=JSON_REQUESTS,
    deviations=(
        LOG_DIRS_OPTIONS_RENAMED,
        LOG_DIRS_KEYS_RENAMED,
        LOG_DIRS_NOT_REQUESTED,
        ADMIN_CLIENT_RENAMED,
    ),
)
def test_tools_asked(cluster: Cluster) -> None:
    """kafka-reassign-partitions requests the log dirs in its file, until the replicas exist or 10 s have passed."""
    with ThreadPoolExecutor(1) as pool:
        # In ZooKeeper mode the replica exists before the tool sends its request. The tool is the same in both modes.
        waiting = asked_too_early(cluster, pool, "late") if cluster.spec.mode is Mode.KRAFT else None
        orders = create_on_all(cluster, "orders", 3)
        check_methods(cluster)
        check_options(orders)
        check_keys(orders)
        check_requests(orders)
        check_refused_in_part(orders)
        if waiting:
            check_timed_out(waiting)
            check_retried(asked_too_early(cluster, pool, "later", timeout_ms=AMPLE_MS))


def create_on_all(cluster: Cluster, name: str, partitions: int) -> Topic:
    """Create a topic with the same replicas for each partition: one on each broker."""
    ids = [broker.id for broker in cluster.brokers]
    [topic] = cluster.create_topics(NewTopic(name=name, assignment=dict.fromkeys(range(partitions), ids)))
    return topic


# --- interfaces -------------------------------------------------------------------------------------------------------

ADMIN = "org.apache.kafka.clients.admin"
KEPT = {
    "Admin": {
        "DescribeReplicaLogDirsResult describeReplicaLogDirs"
        "(Collection<TopicPartitionReplica>,DescribeReplicaLogDirsOptions)"
    },
    "DescribeReplicaLogDirsResult": {
        "Map<TopicPartitionReplica, KafkaFuture<ReplicaLogDirInfo>> values()",
        "KafkaFuture<Map<TopicPartitionReplica, ReplicaLogDirInfo>> all()",
    },
    "DescribeReplicaLogDirsOptions": {"T timeoutMs(Integer)", "Integer timeoutMs()"},
    "DescribeLogDirsOptions": {"T timeoutMs(Integer)", "Integer timeoutMs()"},
    "ReplicaInfo": {"long size()"},
}
"""The methods, by class, that releases have as in the KIP, apart from names of classes."""
PROMISED = {
    "Admin": {
        "DescribeLogDirsResult describeLogDirs(Map<Integer, Collection<String>>,DescribeLogDirsOptions)",
        "AlterReplicaDirResult alterReplicaDir(Map<TopicPartitionReplica, String>,AlterReplicaDirOptions)",
    }
}
KNOWN = {
    "Admin": {
        "DescribeLogDirsResult describeLogDirs(Collection<Integer>,DescribeLogDirsOptions)",
        "AlterReplicaLogDirsResult alterReplicaLogDirs(Map<TopicPartitionReplica, String>,AlterReplicaLogDirsOptions)",
    },
    "AlterReplicaLogDirsOptions": {"T timeoutMs(Integer)", "Integer timeoutMs()"},
    "AlterReplicaLogDirsResult": {
        "Map<TopicPartitionReplica, KafkaFuture<Void>> values()",
        "KafkaFuture<Void> all()",
    },
    "DescribeLogDirsResult": {
        "Map<Integer, KafkaFuture<Map<String, LogDirDescription>>> descriptions()",
        "KafkaFuture<Map<Integer, Map<String, LogDirDescription>>> allDescriptions()",
    },
    "LogDirDescription": {"ApiException error()", "Map<TopicPartition, ReplicaInfo> replicaInfos()"},
    "ReplicaInfo": {"long offsetLag()", "boolean isFuture()"},
    "DescribeReplicaLogDirsResult$ReplicaLogDirInfo": {
        "String getCurrentReplicaLogDir()",
        "String getFutureReplicaLogDir()",
        "long getFutureReplicaOffsetLag()",
    },
}
"""The methods of releases that have other names or arguments in the KIP (:data:`PROMISED`)."""


def check_methods(cluster: Cluster) -> None:
    """Kafka's Java client has the KIP's methods; builds with :data:`ADMIN_CLIENT_RENAMED` have some of other names."""
    if missing := missing_methods(cluster, KEPT):
        raise PromiseBroken(f"kafka-clients lacks {missing}")
    lacks = missing_methods(cluster, PROMISED), missing_methods(cluster, KNOWN)
    check_promised_or_known(
        ADMIN_CLIENT_RENAMED,
        cluster,
        [not each for each in lacks],
        promised=[True, False],
        known=[False, True],
    )


def missing_methods(cluster: Cluster, wanted: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The methods that the classes of the build's kafka-clients lack, by class."""
    found = {}
    for name, methods in wanted.items():
        has = {_short(method) for method in public_methods(cluster.distribution, f"{ADMIN}.{name}")}
        if lacks := methods - has:
            found[name] = lacks
    return found


def _short(method: str) -> str:
    """A method without modifiers and packages: ``KafkaFuture<Void> all()``."""
    return re.sub(r"(\w+[.$])+(?=\w)", "", re.sub(r"^public (abstract )?", "", method))


def check_options(orders: Topic) -> None:
    """kafka-log-dirs has the KIP's options; builds with :data:`LOG_DIRS_OPTIONS_RENAMED` have others instead."""
    cluster = orders.cluster
    options = log_dirs_options(orders)
    kips = {"--bootstrap-server": "--zookeeper", "--broker-list": "--broker", "--topic-list": "--topics"}
    log_dirs_of(cluster, options)  # so a refusal below is about the one option that differs
    refusals = {}
    for option, of_kip in kips.items():
        renamed = {of_kip if each == option else each: value for each, value in options.items()}
        try:
            log_dirs_of(cluster, renamed)
        except ToolFailed as error:
            refusals[of_kip] = str(error).rpartition(": ")[2]
    known = {option: f"{option.removeprefix('--')} is not a recognized option" for option in kips.values()}
    check_promised_or_known(LOG_DIRS_OPTIONS_RENAMED, cluster, refusals, promised={}, known=known)


def log_dirs_options(orders: Topic) -> dict[str, str]:
    """The options of kafka-log-dirs for the topic's replicas on the first broker."""
    words = iter(orders.cluster.bootstrap.of_tool(Tool.LOG_DIRS))
    return {**dict(zip(words, words, strict=True)), "--broker-list": "1", "--topic-list": orders.name}


def log_dirs_of(cluster: Cluster, options: Mapping[str, str]) -> object:
    """The JSON that kafka-log-dirs --describe prints."""
    words = [word for option in options.items() for word in option]
    lines = tool_lines(cluster.distribution, Tool.LOG_DIRS, "--describe", *words)
    return json.loads(next(line for line in lines if line.startswith("{")))


KIPS_KEYS = {
    "": {"version", "log dirs"},
    "log dirs[]": {"is_live", "path", "partitions"},
    "log dirs[].partitions[]": {"topic", "partition", "size", "offset_lag", "is_temporary"},
}
KEYS = {
    "": {"version", "brokers"},
    "brokers[]": {"broker", "logDirs"},
    "brokers[].logDirs[]": {"logDir", "error", "partitions"},
    "brokers[].logDirs[].partitions[]": {"partition", "size", "offsetLag", "isFuture"},
}
"""The keys of each JSON object that kafka-log-dirs prints, by the path to it: in the KIP, and in releases."""


def check_keys(orders: Topic) -> None:
    """kafka-log-dirs prints the KIP's keys; builds with :data:`LOG_DIRS_KEYS_RENAMED` print others."""
    seen = keys_of(log_dirs_of(orders.cluster, log_dirs_options(orders)))
    check_promised_or_known(LOG_DIRS_KEYS_RENAMED, orders.cluster, seen, promised=KIPS_KEYS, known=KEYS)


def keys_of(value: object, at: str = "") -> dict[str, set[str]]:
    """The keys of each JSON object in this value, by the path to it."""
    found: dict[str, set[str]] = {}
    if isinstance(value, dict):
        found[at] = set(value)
        for key, inner in value.items():
            for path, keys in keys_of(inner, f"{at}.{key}".removeprefix(".")).items():
                found[path] = found.get(path, set()) | keys
    if isinstance(value, list):
        for inner in value:
            for path, keys in keys_of(inner, f"{at}[]").items():
                found[path] = found.get(path, set()) | keys
    return found


# --- requests ---------------------------------------------------------------------------------------------------------


def check_requests(orders: Topic) -> None:
    """The tool requests exactly the log dirs in its file, from their brokers only. Later it asks only these brokers."""
    cluster, (mover, another, _) = orders.cluster, orders.cluster.brokers
    there = {index: other_dir(orders[index].log_dir_on(mover)) for index in (0, 1)}
    away = other_dir(orders[1].log_dir_on(another))
    plan = [place(orders[0], there[0]), place(orders[1], there[1], away)]
    wanted: dict[Broker, LogDirsRequested] = {
        mover: {(orders.name, index): str(log_dir.path) for index, log_dir in there.items()},
        another: {(orders.name, 1): str(away.path)},
    }
    since = now()
    with ExitStack() as logged:
        for broker in cluster.brokers:
            logged.enter_context(requests_logged(broker.admin, broker.id, broker.log))
        execute(cluster, *plan)
        await_moved(orders[0], there[0])
        await_moved(orders[1], there[1])
        await_moved(orders[1], away)
        for broker in cluster.brokers:  # not before: a broker logs a request after its answer
            requests = [wanted[broker]] if broker in wanted else []
            check_requested(broker, "ALTER_REPLICA_LOG_DIRS", orders.name, *requests, since=since)
        since = now()
        if unfinished := verify(cluster, *plan):
            raise PromiseBroken(f"all replicas are where they should be, but --verify prints {unfinished}")
        check_described(orders, wanted, since)


def check_described(orders: Topic, wanted: Mapping[Broker, LogDirsRequested], since: datetime) -> None:
    """``--verify`` requests the expected partitions and their log dirs from their brokers only."""
    cluster = orders.cluster
    by_log_dir = {broker: [partitions] for broker, partitions in wanted.items()}
    by_partition: dict[Broker, list[LogDirsRequested]] = {
        broker: [dict.fromkeys(partitions)] for broker, partitions in wanted.items()
    }

    def seen() -> dict[Broker, list[LogDirsRequested]]:
        ask = partial(requested, api="DESCRIBE_LOG_DIRS", topic=orders.name, since=since)
        all_requests = {broker: ask(broker) for broker in cluster.brokers}
        return {broker: requests for broker, requests in all_requests.items() if requests}

    requests = await_until(
        seen,
        lambda requests: requests in (by_partition, by_log_dir),
        timeout_s=timeouts.REQUEST_S,
        what=f"--verify to request {by_partition}",
        failure=PromiseBroken,
    )
    check_promised_or_known(LOG_DIRS_NOT_REQUESTED, cluster, requests, promised=by_log_dir, known=by_partition)


def place(partition: Partition, *log_dirs: LogDir) -> Placement:
    """A placement that keeps the partition's brokers, and names these log dirs."""
    named = {log_dir.broker: log_dir for log_dir in log_dirs}
    brokers = map(partition.cluster.broker, partition.describe().replicas)
    return Placement(partition=partition, on=tuple(named.get(broker, broker) for broker in brokers))


def check_refused_in_part(orders: Topic) -> None:
    """The tool ends with an error if one log dir is a relative path; that replica stays, and another moves."""
    cluster, mover = orders.cluster, orders.cluster.brokers[0]
    here, moving = orders[2].log_dir_on(mover), other_dir(orders[0].log_dir_on(mover))
    relative = LogDir(mover, Path(other_dir(here).path.name))
    said = execution_error(cluster, place(orders[0], moving), place(orders[2], relative))
    refused = f"Failed to alter dir for {orders[2]}-{mover.id}"
    if said is None or refused not in said or "LogDirNotFoundException" not in said:
        raise PromiseBroken(f"{relative.path} must be refused; kafka-reassign-partitions prints: {said or 'no error'}")
    await_moved(orders[0], moving)
    if orders[2].log_dir_on(mover) != here or mover.find_replica(orders.name, 2, is_future=True):
        raise PromiseBroken(f"{orders[2]} should have stayed in {here}, since {relative.path} is refused")


# --- a replica that does not exist yet --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A run of kafka-reassign-partitions that repeats its request for a log dir, since the replica does not exist.

    :ivar error: the tool's error once it has ended
    :ivar since: when it was started
    """

    placement: Placement
    error: Future[str | None]
    since: datetime

    @property
    def partition(self) -> Partition:
        """The only partition in the tool's file."""
        return self.placement.partition

    @property
    def log_dir(self) -> LogDir:
        """The log dir in the tool's file."""
        [log_dir] = [place for place in self.placement.on if isinstance(place, LogDir)]
        return log_dir

    def refused(self) -> list[datetime]:
        """When the broker refused the tool's requests."""
        return refused_requests(self.partition, self.log_dir.broker, self.since)


def asked_too_early(cluster: Cluster, pool: ThreadPoolExecutor, name: str, *, timeout_ms: int | None = None) -> Waiting:
    """Run the tool for a replica that it adds, and cancel its reassignment before the replica exists.

    :param timeout_ms: the tool's time-out; None: its default
    :raises Inconclusive: the replica existed each time before the tool asked
    """
    for number in range(TRIES):
        topic = cluster.create_topic(f"{name}-{number}", replicas=2)
        has = [cluster.broker(id) for id in topic[0].describe().replicas]
        [coming] = cluster.others(*has)
        placement = Placement(partition=topic[0], on=(coming.log_dirs[-1], *has))
        since = now()
        with cancelling(topic[0]):
            error = pool.submit(execution_error, cluster, placement, timeout_ms=timeout_ms)
            waiting = Waiting(placement=placement, error=error, since=since)
            await_until(
                lambda waiting=waiting: waiting.error.done() or len(waiting.refused()) > 1,  # type: ignore[misc]
                timeout_s=timeouts.TOOL_S,
                what=f"kafka-reassign-partitions to ask for {placement} a second time, or to end",
                failure=PromiseBroken,
            )
        await_no_reassignment(cluster)
        if not waiting.error.done():
            return waiting
        cluster.journal.write("reassignment.asked_late", partition=str(topic[0]), said=waiting.error.result())
    raise Inconclusive(f"{TRIES} times, the replica existed when kafka-reassign-partitions requested its log dir")


@contextmanager
def cancelling(partition: Partition) -> Iterator[None]:
    """Inside the block, each reassignment of the partition is cancelled as soon as it begins."""
    cancel = cancel_of(partition)
    with in_background(cancel, every_s=0.005) as errors:
        yield
    cancel()
    if errors:
        raise errors[0]


def cancel_of(partition: Partition) -> Callable[[], None]:
    """A step that cancels the partition's reassignment, if there is one."""
    admin = partition.leader().admin

    def cancel() -> None:
        try:
            admin.alter_partition_reassignment(partition.topic, partition.index, None)
        except Refused as refusal:
            if refusal.error != "NO_REASSIGNMENT_IN_PROGRESS":
                raise

    return cancel


def check_timed_out(waiting: Waiting) -> None:
    """Without ``--timeout``, the tool repeats its request for 10 s, within a fifth, and then ends with an error.

    It looks at the clock between two requests. So the time may differ by the longest pause between two of them, too;
    this is a tenth of a second, and more on a slow machine.
    """
    said = waiting.error.result()
    asked = waiting.refused()
    seen = (asked[-1] - asked[0]).total_seconds()
    pause = max((later - earlier).total_seconds() for earlier, later in itertools.pairwise(asked))
    waiting.partition.cluster.journal.write(
        "reassignment.timed_out", asked_for_s=round(seen, 3), longest_pause_s=round(pause, 3), said=said
    )
    if said is None or "Timed out before log directory move" not in said:
        raise PromiseBroken(f"kafka-reassign-partitions should time out, and prints: {said or 'no error'}")
    if abs(seen - DEFAULT_S) > WITHIN * DEFAULT_S + pause:
        raise PromiseBroken(f"kafka-reassign-partitions asked for {seen:.1f} s instead of {DEFAULT_S} s")


def check_retried(waiting: Waiting) -> None:
    """Once the replica exists, the repeated request succeeds, and the replica is in the requested log dir."""
    waiting.partition.cluster.reassign(waiting.partition, waiting.placement.brokers)
    if said := waiting.error.result():
        raise PromiseBroken(f"kafka-reassign-partitions should succeed once the replica exists, and prints: {said}")
    await_no_reassignment(waiting.partition.cluster)
    await_moved(waiting.partition, waiting.log_dir)
