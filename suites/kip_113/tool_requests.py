"""What kafka-reassign-partitions requests from brokers, by the brokers' logs, and with which error it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement, execute
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken, ToolFailed
from harness.waiting import await_until

REQUEST_LOGGER = "kafka.request.logger"
REQUEST_LOGGED = "Completed request:"
TOOLS_CLIENT_ID = "reassign-partitions-tool"


def execution_error(cluster: Cluster, *placements: Placement, timeout_ms: int | None = None) -> str | None:
    """The error of kafka-reassign-partitions --execute; None if it succeeds."""
    try:
        execute(cluster, *placements, timeout_ms=timeout_ms)
    except ToolFailed as error:
        return str(error)
    return None


def refused_requests(partition: Partition, broker: Broker, since: datetime) -> list[datetime]:
    """When the broker refused a request for a log dir of its replica of this partition, by its log."""
    lines = broker.log.lines(since=since)
    return [line.at for line in lines if f"Unable to alter log dirs for {partition} " in line.text]


@contextmanager
def requests_logged(*brokers: Broker) -> Iterator[None]:
    """Inside the block, brokers log each request and its answer (KIP-673)."""
    for broker in brokers:
        broker.admin.set_log_level(broker.id, REQUEST_LOGGER, "DEBUG")
    yield
    for broker in brokers:
        broker.admin.set_log_level(broker.id, REQUEST_LOGGER, None)


LogDirsRequested = dict[tuple[str, int], str | None]
"""The partitions that a request names, each with the log dir that it names; None where it names none."""


def requested(broker: Broker, api: str, topic: str, since: datetime) -> list[LogDirsRequested]:
    """The tool's requests of this kind to the broker, which logs them (:func:`requests_logged`).

    :param api: ALTER_REPLICA_LOG_DIRS or DESCRIBE_LOG_DIRS
    :param topic: leave out requests that do not name it, since the tool may run twice at a time
    """
    found: list[LogDirsRequested] = []
    for line in broker.log.lines(since=since):
        if REQUEST_LOGGED not in line.text:
            continue
        logged, _ = json.JSONDecoder().raw_decode(line.text.partition(REQUEST_LOGGED)[2])
        header, request = logged["requestHeader"], logged["request"]
        if (header["clientId"], header["requestApiKeyName"]) != (TOOLS_CLIENT_ID, api):
            continue
        of_dirs = [(each["path"], each["topics"]) for each in request.get("dirs", ())]
        names = {
            (each["name"] if path else each["topic"], partition): path
            for path, topics in of_dirs or [(None, request["topics"])]
            for each in topics
            for partition in each["partitions"]
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
