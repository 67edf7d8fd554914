"""kafka-reassign-partitions, the tool with which an operator moves replicas between brokers and log dirs (KIP-113).

What is moved where is data (:class:`Placement`); the JSON file that the tool wants, and what it prints, stay in here.
Kafka's own tool and no protocol of ours, because KIP-113's test plan is about what operators run; single requests go
through :mod:`harness.kafka.admin`.

The tool ends with exit code 0 while a move is still going on, and also where it will never come to anything:
``--verify`` says so in words only, so the words are read (``ReassignPartitionsCommand``:
``partitionReassignmentStatesToString``, ``replicaMoveStatesToString``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.host.scratch import scratch
from harness.kafka.tools import tool_output
from harness.kafka.versions import Tool

_DONE = (" is completed.", " is complete.", " completed successfully.")  # the second before 3.4


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one partition's replicas should be.

    :ivar on: one for each replica, the preferred leader first: a log dir, or a broker, which then chooses ("any")
    """

    partition: Partition
    on: tuple[LogDir | Broker, ...]

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """Of each replica, in order."""
        return tuple(place.broker if isinstance(place, LogDir) else place for place in self.on)

    def to_json(self) -> dict[str, object]:
        """As the tool reads it (KIP-113, "Scripts" 2)."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.index,
            "replicas": [broker.id for broker in self.brokers],
            "log_dirs": [str(place.path) if isinstance(place, LogDir) else "any" for place in self.on],
        }

    def __str__(self) -> str:
        return f"{self.partition} on {', '.join(map(str, self.on))}"


def execute(
    cluster: Cluster,
    *placements: Placement,
    throttle: int | None = None,
    log_dirs_throttle: int | None = None,
    timeout_ms: int | None = None,
) -> None:
    """Begin to move replicas; returns when Kafka has taken the order, long before it is carried out.

    :param throttle: bytes a second for what goes from broker to broker; :func:`verify` takes it off again
    :param log_dirs_throttle: bytes a second for what goes from log dir to log dir; :func:`verify` takes it off again
    :param timeout_ms: how long the tool goes on telling brokers a replica's log dir that haven't got the replica yet;
        10 s if it isn't told
    :raises HarnessError: the tool refused or gave up, with what it said
    """
    limits = {
        "--throttle": throttle,
        "--replica-alter-log-dirs-throttle": log_dirs_throttle,
        "--timeout": timeout_ms,
    }
    options = [word for option, limit in limits.items() if limit is not None for word in (option, str(limit))]
    cluster.journal.write("reassignment.executing", placements=list(map(str, placements)), options=options)
    _run_on(cluster, "--execute", placements, *options)


def verify(cluster: Cluster, *placements: Placement) -> list[str]:
    """What is not yet as it should be, in the tool's own words; empty where all is. Takes throttles off when it is.

    :raises HarnessError: the tool failed
    """
    return unfinished(_run_on(cluster, "--verify", placements), placements)


def unfinished(said: Sequence[str], placements: Sequence[Placement]) -> list[str]:
    """Of what ``--verify`` printed, the lines that don't say "done", and whether a line is missing."""
    status = [line for line in said if line.startswith(("Reassignment of ", "There is no ", "Partition "))]
    wanted = sum(1 + sum(isinstance(place, LogDir) for place in placement.on) for placement in placements)
    if len(status) != wanted:
        return [f"{len(status)} lines of status instead of {wanted}", *status]
    return [line for line in status if not line.endswith(_DONE)]


def generate(
    cluster: Cluster, topics: Iterable[Topic], brokers: Iterable[Broker], *, ignore_racks: bool = False
) -> tuple[list[Placement], ...]:
    """What the tool says of the topics (``--generate``): where their replicas are, and where it would put them.

    :param brokers: those among which it may choose
    :param ignore_racks: ``--disable-rack-aware``
    :raises HarnessError: the tool refused, with what it said
    """
    ids = ",".join(str(broker.id) for broker in brokers)
    options = ["--disable-rack-aware"] if ignore_racks else []
    with _as_file({"version": 1, "topics": [{"topic": topic.name} for topic in topics]}) as file:
        arguments = ("--generate", "--topics-to-move-json-file", file, "--broker-list", ids, *options)
        said = _run(cluster, *arguments)
    return tuple(_placements(cluster, json.loads(line)) for line in said if line.startswith("{"))


def _placements(cluster: Cluster, answer: Mapping[str, Any]) -> list[Placement]:
    """As :meth:`Placement.to_json` wrote them."""
    return [
        Placement(
            partition=Partition(cluster, each["topic"], each["partition"]),
            on=tuple(
                cluster.broker(id) if path == "any" else LogDir(cluster.broker(id), Path(path))
                for id, path in zip(each["replicas"], each["log_dirs"], strict=True)
            ),
        )
        for each in answer["partitions"]
    ]


def cancel(cluster: Cluster, *placements: Placement) -> list[str]:
    """Call off what :func:`execute` began; returns what the tool said.

    :raises HarnessError: the tool failed
    """
    cluster.journal.write("reassignment.cancelling", placements=list(map(str, placements)))
    return _run_on(cluster, "--cancel", placements)


def _run_on(cluster: Cluster, action: str, placements: Sequence[Placement], *options: str) -> list[str]:
    content = {"version": 1, "partitions": [placement.to_json() for placement in placements]}
    with _as_file(content) as file:
        return _run(cluster, action, "--reassignment-json-file", file, *options)


def _run(cluster: Cluster, action: str, *options: str) -> list[str]:
    arguments = ("--bootstrap-server", cluster.bootstrap, action, *options)
    with tool_output(cluster.distribution, Tool.REASSIGN, *arguments, timeout_s=timeouts.TOOL_S) as said:
        lines = [line.strip() for line in said]
    cluster.journal.write("reassignment.tool", action=action, said=[line for line in lines if line])
    return lines


@contextmanager
def _as_file(content: Mapping[str, Any]) -> Iterator[str]:
    with scratch("reassignment") as folder:
        file = folder / "reassignment.json"
        file.write_text(json.dumps(content))
        yield str(file)
