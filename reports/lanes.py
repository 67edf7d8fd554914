"""States over time, a lane each: brokers, log dirs, partitions, MBeans, faults, phases.

From the journal, and from the brokers' own words where the journal doesn't say: a log dir counts as offline from the
line by which its broker takes it offline to that broker's next start, so that a page can be made of any run folder,
also of one from before the MBeans were recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.events import (
    BrokerEnded,
    BrokersChanged,
    ClusterReady,
    CordonInForce,
    Event,
    FaultEvent,
    FaultInjected,
    FaultInjecting,
    FaultUndone,
    MBeansChanged,
    NodeEndedByItself,
    NodeEvent,
    NodeGoesOn,
    NodeKilled,
    NodeStarted,
    NodeStopped,
    PartitionChanged,
    PhaseEntered,
    TopicDeleted,
)
from reports.folder import RunFolder

_ENDS_NODE = (NodeStopped, NodeKilled, NodeEndedByItself, BrokerEnded)


@dataclass(frozen=True, kw_only=True)
class Span:
    """A state that held from one instant to another, in seconds from the case's beginning.

    :ivar look: how it is drawn, one of the classes that ``page.css`` has
    :ivar text: what is written on it; ``says`` is all there is to say of it
    """

    start: float
    end: float
    look: str
    text: str
    says: str

    def to_json(self) -> list[Any]:
        """As the page has it."""
        return [self.start, self.end, self.look, self.text, self.says]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One thing's states; ``quiet`` where nothing ever changed, so that it may be folded away."""

    name: str
    spans: tuple[Span, ...]
    quiet: bool = False

    def to_json(self) -> dict[str, Any]:
        """As the page has it."""
        return {"name": self.name, "quiet": self.quiet, "spans": [span.to_json() for span in self.spans]}


# --- phases and faults ----------------------------------------------------------------------------------------------


def phases(folder: RunFolder) -> Lane:
    """What the harness was about."""
    points = [(0.0, "boot"), *((folder.at(e.at), e.phase) for e in folder.events if isinstance(e, PhaseEntered))]
    return Lane(name="phase", spans=tuple(_until_next(points, folder.ended, lambda p: ("phase", p, f"phase {p}"))))


def faults(folder: RunFolder) -> list[tuple[FaultInjecting, Span]]:
    """Each fault from the beginning of its injection until it was undone, with the event that began it."""
    found = []
    for index, event in enumerate(folder.events):
        if not isinstance(event, FaultInjecting):
            continue
        later = [e for e in folder.events[index + 1 :] if _same_fault(e, event)]
        undone = next((e for e in later if isinstance(e, FaultUndone)), None)
        proof = next((e for e in later if isinstance(e, FaultInjected)), None)
        end = folder.at(undone.at) if undone else folder.ended
        proven = f"proven after {folder.at(proof.at) - folder.at(event.at):.2f} s" if proof else "NOT PROVEN"
        says = f"{event.fault} on {event.target}: {proven}" + (f", {proof.evidence}" if proof else "")
        span = Span(
            start=folder.at(event.at),
            end=end,
            look="fault" if proof else "fault unproven",
            text=f"{event.fault} on {event.target}",
            says=says + ("" if undone else "; never undone in this journal"),
        )
        found.append((event, span))
    return found


def _same_fault(event: Event, other: FaultEvent) -> bool:
    return isinstance(event, FaultEvent) and (event.fault, event.target) == (other.fault, other.target)


# --- brokers and log dirs -------------------------------------------------------------------------------------------

_NODE_SAYS: Mapping[str, tuple[str, str]] = {
    "node.goes_on": ("up", "goes on, from the case before"),
    "node.started": ("starting", "starts"),
    "node.stopping": ("stopping", "is told to stop"),
    "node.stopped": ("down", "has ended, exit code {exit_code}"),
    "broker.ended": ("down", "has ended by itself, exit code {exit_code}"),
    "node.ended_by_itself": ("down", "has ended by itself, exit code {exit_code}"),
    "node.killed": ("down", "is killed"),
    "node.paused": ("paused", "is paused"),
    "node.resumed": ("up", "is resumed"),
}


def nodes(folder: RunFolder) -> list[Lane]:
    """Brokers, controllers, ZooKeeper: starting, up, paused, stopping, down."""
    points: dict[str, list[tuple[float, tuple[str, str]]]] = {}
    for event in folder.events:
        at = folder.at(event.at)
        if isinstance(event, NodeEvent | BrokerEnded) and event.kind in _NODE_SAYS:
            look, says = _NODE_SAYS[event.kind]
            points.setdefault(event.node, []).append((at, (look, says.format_map(dict(event.details())))))
        elif isinstance(event, BrokersChanged | ClusterReady):
            brokers = event.brokers if isinstance(event, BrokersChanged) else ()
            for name, known in points.items():
                number = name.removeprefix("broker-")
                registered = int(number) in brokers if number.isdigit() else True
                if known[-1][1][0] == "starting" and registered:
                    known.append((at, ("up", "is up")))
    lanes = []
    for name in sorted(points, key=_in_order):
        spans = _until_next(points[name], folder.ended, lambda state: (state[0], state[0], state[1]))
        lanes.append(Lane(name=name, spans=tuple(spans), quiet=not _restarted(points[name])))
    return lanes


def _restarted(points: list[tuple[float, tuple[str, str]]]) -> bool:
    """Whether a node did more than to start and, at the end, to go with the cluster."""
    return [look for _, (look, _) in points] not in (["starting", "up", "down"], ["starting", "up"])


def log_dirs(folder: RunFolder) -> list[Lane]:
    """Each log dir: good, cordoned, hurt (a fault is in force and its broker hasn't said so), offline, or its broker is
    down.
    """
    lanes = []
    for broker, paths in folder.log_dirs.items():
        for path in paths:
            points: list[tuple[float, tuple[str, str]]] = []
            state = {"up": "", "offline": "", "hurt": "", "cordoned": ""}
            for at, key, value in sorted(_of_a_log_dir(folder, broker, path)):
                state[key] = value
                if key == "up":
                    state["offline"] = ""
                points.append((at, _worst(state)))
            spans = tuple(_until_next(points, folder.ended, lambda s: (s[0], s[0], s[1])))
            hurt = {span.look for span in spans} & {"hurt", "offline", "cordoned"}
            lanes.append(Lane(name=log_dir_name(broker, path), spans=spans, quiet=not hurt))
    return lanes


def log_dir_name(broker: int, path: Path) -> str:
    """Short, and with its broker in front."""
    return f"broker {broker} {path.name.removeprefix(f'broker-{broker}-')}"


def _of_a_log_dir(folder: RunFolder, broker: int, path: Path) -> Iterator[tuple[float, str, str]]:
    for event in folder.events:
        at = folder.at(event.at)
        if isinstance(event, NodeStarted | NodeGoesOn) and event.node == f"broker-{broker}":
            yield at, "up", "yes"
        elif isinstance(event, _ENDS_NODE) and event.node == f"broker-{broker}":
            yield at, "up", ""
        elif isinstance(event, FaultEvent) and event.target == f"{path.name} of broker {broker}":
            if isinstance(event, FaultInjecting):
                yield at, "hurt", event.fault
            elif isinstance(event, FaultUndone):
                yield at, "hurt", ""
        elif isinstance(event, CordonInForce) and event.broker == broker:
            yield at, "cordoned", "yes" if f"{path.name} of broker {broker}" in event.log_dirs else ""
    said = re.compile(
        r"(Stopping serving logs in dir|Failed to create or validate data directory|Error while loading log dir) "
        rf"{re.escape(str(path))}(?![\w.-])"
    )
    for line in folder.logs.get(f"broker-{broker}", ()):
        if said.search(line.text):
            yield folder.at(line.at), "offline", line.text.splitlines()[0]


def _worst(state: Mapping[str, str]) -> tuple[str, str]:
    if not state["up"]:
        return "down", "its broker is down"
    if state["offline"]:
        return "offline", f"offline: {short(state['offline'])}"
    if state["hurt"]:
        return "hurt", f"{state['hurt']} is in force, and the broker has not said so"
    if state["cordoned"]:
        return "cordoned", "cordoned: no new replica comes to it"
    return "good", "good"


# --- partitions -----------------------------------------------------------------------------------------------------


def partitions(folder: RunFolder) -> list[Lane]:
    """Each partition's leader, ISR and offline replicas, as the watcher saw them."""
    changes: dict[tuple[str, int], list[tuple[float, PartitionChanged | None]]] = {}
    for event in folder.events:
        if isinstance(event, PartitionChanged):
            changes.setdefault(event.key, []).append((folder.at(event.at), event))
        elif isinstance(event, TopicDeleted):
            for key, points in changes.items():
                if key[0] == event.topic:
                    points.append((folder.at(event.at), None))
    lanes = []
    for (topic, partition), points in sorted(changes.items()):
        replicas = max(len({*e.isr, *e.offline_replicas}) for _, e in points if e is not None)
        spans = tuple(_until_next(points, folder.ended, _partition_look(replicas)))
        lanes.append(Lane(name=f"{topic}-{partition}", spans=spans, quiet=len(points) == 1))
    return lanes


def _partition_look(replicas: int) -> Callable[[PartitionChanged | None], tuple[str, str, str]]:
    def look(event: PartitionChanged | None) -> tuple[str, str, str]:
        if event is None:
            return "gone", "deleted", "the topic was deleted"
        leader, isr, offline = event.leader, list(event.isr), list(event.offline_replicas)
        classes = ["leaderless" if leader is None else f"leader b{(leader - 1) % 6 + 1}"]
        classes += ["shrunk"] if len(isr) < replicas else []
        classes += ["offline-replicas"] if offline else []
        text = ("no leader" if leader is None else f"{leader}") + f" · ISR {','.join(map(str, isr)) or 'empty'}"
        says = f"leader {leader or 'none'}, epoch {event.leader_epoch}, ISR {isr}, offline replicas {offline or 'none'}"
        return " ".join(classes), text, says

    return look


# --- MBeans ---------------------------------------------------------------------------------------------------------


_SHORT = {
    "OfflineLogDirectoryCount": "log dirs",
    "OfflineReplicaCount": "replicas",
    "OfflinePartitionsCount": "partitions",
    "UnderReplicatedPartitions": "under-replicated",
}
"""In a group of lanes that says that they are offline; the MBean's name is in each lane's title."""


def mbeans(folder: RunFolder) -> list[Lane]:
    """What each node's MBeans counted; other than 0 stands out."""
    points: dict[tuple[str, str], list[tuple[float, int | None]]] = {}
    for event in folder.events:
        if isinstance(event, MBeansChanged):
            for name, value in event.values.items():
                points.setdefault((name, event.node), []).append((folder.at(event.at), value))
    lanes = []
    for (name, node), values in sorted(points.items(), key=lambda item: (item[0][0], _in_order(item[0][1]))):
        changed = [p for i, p in enumerate(values) if i == 0 or values[i - 1][1] != p[1]]
        spans = tuple(_until_next(changed, folder.ended, partial(_count_look, name)))
        quiet = all(value in (0, None) for _, value in changed)
        lanes.append(Lane(name=f"{node} {_SHORT.get(name, name)}", spans=spans, quiet=quiet))
    return lanes


def _count_look(name: str, value: int | None) -> tuple[str, str, str]:
    if value is None:
        return "gone", "", f"{name}: not there"
    return ("count zero" if value == 0 else "count"), str(value), f"{name} is {value}"


# --- shared ---------------------------------------------------------------------------------------------------------


def _until_next(
    points: Iterable[tuple[float, Any]], end: float, look: Callable[[Any], tuple[str, str, str]]
) -> Iterator[Span]:
    """A span for each point until the next one; of neighbours that look and say the same, one."""
    known = [(at, *look(value)) for at, value in points]
    merged = [point for i, point in enumerate(known) if i == 0 or known[i - 1][1:] != point[1:]]
    ends = [point[0] for point in merged[1:]] + [end]
    for (at, classes, text, says), until in zip(merged, ends, strict=True):
        yield Span(start=at, end=max(at, until), look=classes, text=text, says=says)


def _in_order(node: str) -> tuple[bool, int, str]:
    number = node.removeprefix("broker-")
    return not number.isdigit(), int(number) if number.isdigit() else 0, node


def short(text: str, longest: int = 400) -> str:
    """No longer than so many characters, and without the folders above a log dir."""
    text = re.sub(r"(?<![\w/])/[^\s,\]()']*/(?=[^\s/]*log-dir-)", "", text)
    return text if len(text) <= longest else text[: longest - 1] + "…"
