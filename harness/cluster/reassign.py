"""Runs kafka-reassign-partitions, the tool that moves replicas between brokers and between log dirs (KIP-113).

A :class:`Placement` says where a partition's replicas should be; this module writes the tool's JSON file and reads its
output. Single requests go through :mod:`harness.kafka.admin`; this module exists because KIP-113's test plan is about
what operators run.

The exit code is 0 while a move is in progress, and also if the move can never complete. Only the text of ``--verify``
tells the two apart, so this module reads the text (``ReassignPartitionsCommand``:
``partitionReassignmentStatesToString``, ``replicaMoveStatesToString``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition, Topic
from harness.host.scratch import scratch
from harness.kafka.metadata import Reassignment
from harness.kafka.tools import tool_output
from harness.kafka.versions import Tool

_LISTED = re.compile(
    r"(?P<topic>\S+)-(?P<partition>\d+): replicas: (?P<replicas>[\d,]+)\."
    r"(?: adding: (?P<adding>[\d,]+)\.)?(?: removing: (?P<removing>[\d,]+)\.)?"
)
_DONE = (" is completed.", " is complete.", " completed successfully.")  # the second before 3.4


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the replicas of one partition should be.

    :ivar on: for each replica, the preferred leader first: a log dir, or a broker that chooses the log dir ("any")
    """

    partition: Partition
    on: tuple[LogDir | Broker, ...]

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """The broker of each replica, in order."""
        return tuple(place.broker if isinstance(place, LogDir) else place for place in self.on)

    def to_json(self) -> dict[str, object]:
        """The partition's entry in the tool's JSON file (KIP-113, "Scripts" 2)."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.index,
            "replicas": [broker.id for broker in self.brokers],
            "log_dirs": [str(place.path) if isinstance(place, LogDir) else "any" for place in self.on],
        }

    def __str__(self) -> str:
        return f"{self.partition} on {', '.join(map(str, self.on))}"


class _Assignment(msgspec.Struct):
    """A partition in a :class:`_Plan`."""

    topic: str
    partition: int
    replicas: list[int]
    log_dirs: list[str]


class _Plan(msgspec.Struct):
    """A JSON object that ``--generate`` or ``--execute`` prints."""

    partitions: list[_Assignment]


def execute(
    cluster: Cluster,
    *placements: Placement,
    throttle: int | None = None,
    log_dirs_throttle: int | None = None,
    timeout_ms: int | None = None,
    keep_factor: bool = False,
) -> list[Placement]:
    """Begin to move replicas; returns when Kafka has accepted the request, before the moves complete.

    :param throttle: bytes a second between brokers; :func:`verify` removes it
    :param log_dirs_throttle: bytes a second between log dirs; :func:`verify` removes it
    :param timeout_ms: how long the tool repeats AlterReplicaLogDirs to a broker that does not have the replica yet;
        None: the tool's default, 10 s
    :param keep_factor: pass ``--disallow-replication-factor-change`` (KIP-860)
    :returns: the current placements that the tool prints, for a rollback
    :raises FailedOwnPart: the tool refused or gave up; with its output
    """
    limits = {
        "--throttle": throttle,
        "--replica-alter-log-dirs-throttle": log_dirs_throttle,
        "--timeout": timeout_ms,
    }
    options = [word for option, limit in limits.items() if limit is not None for word in (option, str(limit))]
    options += ["--disallow-replication-factor-change"] if keep_factor else []
    cluster.journal.write("reassignment.executing", placements=list(map(str, placements)), options=options)
    output = _run_on(cluster, "--execute", placements, *options)
    return [current for of_plan in _plans(cluster, output) for current in of_plan]


def verify(cluster: Cluster, *placements: Placement, preserve_throttles: bool = False) -> list[str]:
    """The tool's lines about moves that are not complete; empty if all are. Removes throttles if all are.

    :param preserve_throttles: pass ``--preserve-throttles``
    :raises FailedOwnPart: the tool failed
    """
    options = ["--preserve-throttles"] if preserve_throttles else []
    return unfinished(_run_on(cluster, "--verify", placements, *options), placements)


def unfinished(output: Sequence[str], placements: Sequence[Placement]) -> list[str]:
    """The lines of ``--verify`` about moves that are not complete; all lines if one is missing."""
    status = [line for line in output if line.startswith(("Reassignment of ", "There is no ", "Partition "))]
    wanted = sum(1 + sum(isinstance(place, LogDir) for place in placement.on) for placement in placements)
    if len(status) != wanted:
        return [f"{len(status)} status lines instead of {wanted}", *status]
    return [line for line in status if not line.endswith(_DONE)]


def generate(
    cluster: Cluster, topics: Iterable[Topic], brokers: Iterable[Broker], *, ignore_racks: bool = False
) -> tuple[list[Placement], ...]:
    """The placements that ``--generate`` prints for the topics: the current ones and the proposed ones.

    :param brokers: the brokers to choose from
    :param ignore_racks: pass ``--disable-rack-aware``
    :raises FailedOwnPart: the tool refused; with its output
    """
    ids = ",".join(str(broker.id) for broker in brokers)
    options = ["--disable-rack-aware"] if ignore_racks else []
    content = {"version": 1, "topics": [{"topic": topic.name} for topic in topics]}
    output = _run_with(cluster, "--generate", "--topics-to-move-json-file", content, "--broker-list", ids, *options)
    return tuple(_plans(cluster, output))


def _plans(cluster: Cluster, output: Iterable[str]) -> list[list[Placement]]:
    """The placements of each JSON object in the tool's output."""
    plans = [msgspec.json.decode(line, type=_Plan) for line in output if line.startswith("{")]
    return [[_placement(cluster, each) for each in plan.partitions] for plan in plans]


def _placement(cluster: Cluster, assignment: _Assignment) -> Placement:
    on = tuple(
        cluster.broker(id) if path == "any" else LogDir(cluster.broker(id), Path(path))
        for id, path in zip(assignment.replicas, assignment.log_dirs, strict=True)
    )
    return Placement(partition=Partition(cluster, assignment.topic, assignment.partition), on=on)


def cancel(cluster: Cluster, *placements: Placement) -> list[str]:
    """Cancel the moves that :func:`execute` began; returns the tool's output.

    :raises FailedOwnPart: the tool failed
    """
    cluster.journal.write("reassignment.cancelling", placements=list(map(str, placements)))
    return _run_on(cluster, "--cancel", placements)


def list_under_way(cluster: Cluster) -> list[Reassignment]:
    """The reassignments that ``--list`` prints (KIP-455).

    :raises FailedOwnPart: the tool failed
    """

    def ids(text: str | None) -> tuple[int, ...]:
        return tuple(map(int, text.split(","))) if text else ()

    return [
        Reassignment(
            topic=found["topic"],
            partition=int(found["partition"]),
            replicas=ids(found["replicas"]),
            adding=ids(found["adding"]),
            removing=ids(found["removing"]),
        )
        for line in _run(cluster, "--list")
        if (found := _LISTED.fullmatch(line))
    ]


def _run_on(cluster: Cluster, action: str, placements: Sequence[Placement], *options: str) -> list[str]:
    content = {"version": 1, "partitions": [placement.to_json() for placement in placements]}
    return _run_with(cluster, action, "--reassignment-json-file", content, *options)


def _run_with(cluster: Cluster, action: str, file_option: str, content: object, *options: str) -> list[str]:
    """Run the tool on a JSON file with this content; returns its output."""
    with scratch("reassignment") as folder:
        file = folder / "reassignment.json"
        file.write_text(json.dumps(content))
        return _run(cluster, action, file_option, str(file), *options)


def _run(cluster: Cluster, action: str, *options: str) -> list[str]:
    """Run the tool; returns its output."""
    arguments = (*cluster.bootstrap.of_tool(Tool.REASSIGN), action, *options)
    with (
        OwnPart(cluster, f"carry out kafka-reassign-partitions {action}", needs_all=False).served(),
        tool_output(cluster.distribution, Tool.REASSIGN, *arguments, timeout_s=timeouts.TOOL_S) as output,
    ):
        lines = [line.strip() for line in output]
    cluster.journal.write("reassignment.tool", action=action, said=[line for line in lines if line])
    return lines
