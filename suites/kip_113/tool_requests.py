"""Shows what kafka-reassign-partitions requests from brokers, by their logs, and the error with which it ends."""

from __future__ import annotations

from datetime import datetime

import msgspec

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement, execute
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken, ToolFailed
from harness.kafka.request_log import RequestLog
from harness.waiting import await_until

TOOLS_CLIENT_ID = "reassign-partitions-tool"


def execution_error(
    cluster: Cluster, *placements: Placement, timeout_ms: int | None = None, keep_factor: bool = False
) -> str | None:
    """The error of kafka-reassign-partitions --execute; None if it succeeds. See :func:`execute` for the options."""
    try:
        execute(cluster, *placements, timeout_ms=timeout_ms, keep_factor=keep_factor)
    except ToolFailed as error:
        return str(error)
    return None


def refused_requests(partition: Partition, broker: Broker, since: datetime) -> list[datetime]:
    """When the broker refused a request for a log dir of its replica of this partition, according to its log."""
    lines = broker.log.lines(since=since)
    return [line.at for line in lines if f"Unable to alter log dirs for {partition} " in line.text]


LogDirsRequested = dict[tuple[str, int], str | None]
"""The partitions that a request names, each with the log dir that it names; None where it names none."""


class _Topic(msgspec.Struct):
    """A topic in a request. The fields of its name and, before 3.0, of its partitions differ between the requests."""

    name: str = ""
    topic: str = ""
    partitions: list[int] = []
    partition_index: list[int] = msgspec.field(name="partitionIndex", default_factory=list)


class _Dir(msgspec.Struct):
    path: str | None
    topics: list[_Topic]


class _Request(msgspec.Struct):
    """The fields of AlterReplicaLogDirs (``dirs``) and of DescribeLogDirs (``topics``)."""

    dirs: list[_Dir] = []
    topics: list[_Topic] = []


def requested(broker: Broker, api: str, topic: str, since: datetime) -> list[LogDirsRequested]:
    """The tool's requests of this kind to the broker, which logs its requests.

    :param api: ALTER_REPLICA_LOG_DIRS or DESCRIBE_LOG_DIRS
    :param topic: leave out requests that do not name it, since the tool may run twice at a time
    """
    found: list[LogDirsRequested] = []
    for exchange in RequestLog(log=broker.log, since=since).of(api):
        if exchange.client_id != TOOLS_CLIENT_ID:
            continue
        request = msgspec.convert(exchange.request, type=_Request)
        names: LogDirsRequested = {
            (each.name or each.topic, partition): of_dir.path
            for of_dir in request.dirs or [_Dir(path=None, topics=request.topics)]
            for each in of_dir.topics
            for partition in each.partitions or each.partition_index
        }
        if topic in {name for name, _ in names}:
            found.append(names)
    return found


def check_requested(broker: Broker, api: str, topic: str, *wanted: LogDirsRequested, since: datetime) -> None:
    """The tool has sent the broker these requests of this kind, and no others that name the topic."""
    await_until(
        lambda: requested(broker, api, topic, since),
        lambda seen: seen == [*wanted],
        timeout_s=timeouts.REQUEST_S,
        what=f"{broker} to log these requests {api} of kafka-reassign-partitions: {wanted or 'none'}",
        failure=PromiseBroken,
    )
