"""States over time, one lane for each broker, log dir, partition and MBean, and the phases and faults.

They come from the journal, and from the brokers' logs where the journal does not say. A log dir is offline from the log
line by which its broker takes it offline until that broker starts again. So run folders from before MBeans were
recorded have this lane too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.events import (
    BrokerEnded,
    BrokersChanged,
    ClusterReady,
    CordonInForce,
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
from reports.folder import RunFolder, node_order

Point = tuple[float, str, str, str]
"""The start, look, text and phrase of a :class:`Span`, which lasts until the next point."""

_ENDS_NODE = (NodeStopped, NodeKilled, NodeEndedByItself, BrokerEnded)


@dataclass(frozen=True, kw_only=True)
class Span:
    """A state from one instant to another, in seconds since the case began.

    :ivar look: its CSS classes in ``timeline.css``
    :ivar text: its label
    :ivar says: the state as a phrase, for the tooltip and the list
    """

    start: float
    end: float
    look: str
    text: str
    says: str

    def to_json(self) -> list[object]:
        """The span in the page's data."""
        return [self.start, self.end, self.look, self.text, self.says]


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The states of one thing; ``quiet`` if nothing ever happened to it, so that the page folds it."""

    name: str
    spans: tuple[Span, ...]
    quiet: bool = False

    def to_json(self) -> dict[str, object]:
        """The lane in the page's data."""
        return {"name": self.name, "quiet": self.quiet, "spans": [span.to_json() for span in self.spans]}


# --- phases and faults ----------------------------------------------------------------------------------------------


def phases(folder: RunFolder) -> Lane:
    """The phases of the case."""
    begun = [(0.0, "boot"), *((folder.at(e.at), e.phase) for e in folder.events if isinstance(e, PhaseEntered))]
    return Lane(name="phase", spans=_spans([(at, "phase", name, f"phase {name}") for at, name in begun], folder.ended))


def faults(folder: RunFolder) -> list[Span]:
    """Each fault, from the start of its injection until it was undone."""
    found = []
    for index, event in enumerate(folder.events):
        if not isinstance(event, FaultInjecting):
            continue
        same = (event.fault, event.target)
        later = [e for e in folder.events[index + 1 :] if isinstance(e, FaultEvent) and (e.fault, e.target) == same]
        undone = next((e for e in later if isinstance(e, FaultUndone)), None)
        proof = next((e for e in later if isinstance(e, FaultInjected)), None)
        end = folder.at(undone.at) if undone else folder.ended
        proven = f"proven after {folder.at(proof.at) - folder.at(event.at):.2f} s" if proof else "NOT PROVEN"
        says = f"{event.fault} on {event.target}: {proven}" + (f", {proof.evidence}" if proof else "")
        found.append(
            Span(
                start=folder.at(event.at),
                end=end,
                look="fault" if proof else "fault unproven",
                text=f"{event.fault} on {event.target}",
                says=says + ("" if undone else "; never undone in this journal"),
            )
        )
    return found


# --- brokers and log dirs -------------------------------------------------------------------------------------------

_NODE_SAYS: Mapping[str, tuple[str, str]] = {
    "node.goes_on": ("up", "keeps running from the case before"),
    "node.started": ("starting", "starts"),
    "node.stopping": ("stopping", "is stopping"),
    "node.stopped": ("down", "stopped, exit code {exit_code}"),
    "broker.ended": ("down", "ended by itself, exit code {exit_code}"),
    "node.ended_by_itself": ("down", "ended by itself, exit code {exit_code}"),
    "node.killed": ("down", "is killed"),
    "node.paused": ("paused", "is paused"),
    "node.resumed": ("up", "is resumed"),
}


def nodes(folder: RunFolder) -> list[Lane]:
    """The states of brokers, controllers and ZooKeeper: starting, up, paused, stopping, down."""
    points: dict[str, list[Point]] = {}
    for event in folder.events:
        at = folder.at(event.at)
        if isinstance(event, NodeEvent | BrokerEnded) and event.kind in _NODE_SAYS:
            look, says = _NODE_SAYS[event.kind]
            points.setdefault(event.node, []).append((at, look, look, says.format_map(dict(event.details()))))
        elif isinstance(event, BrokersChanged | ClusterReady):
            brokers = event.brokers if isinstance(event, BrokersChanged) else ()
            for name, known in points.items():
                number = name.removeprefix("broker-")
                registered = int(number) in brokers if number.isdigit() else True
                if known[-1][1] == "starting" and registered:
                    known.append((at, "up", "up", "is up"))
    lanes = []
    for name in sorted(points, key=node_order):
        looks = [look for _, look, _, _ in points[name]]
        # A node that only starts, and stops with the cluster, is of no interest.
        quiet = looks in (["starting", "up", "down"], ["starting", "up"])
        lanes.append(Lane(name=name, spans=_spans(points[name], folder.ended), quiet=quiet))
    return lanes


def log_dirs(folder: RunFolder) -> list[Lane]:
    """The states of log dirs: good, cordoned, offline, down with the broker, or hurt.

    A log dir is hurt while a fault is in force and the broker has not logged that it is offline.
    """
    lanes = []
    for broker, paths in folder.log_dirs.items():
        for path in paths:
            points: list[Point] = []
            state = {"up": "", "offline": "", "hurt": "", "cordoned": ""}
            for at, key, value in sorted(_log_dir_changes(folder, broker, path)):
                state[key] = value
                if key == "up":
                    state["offline"] = ""
                look, says = _log_dir_look(state)
                points.append((at, look, look, says))
            spans = _spans(points, folder.ended)
            hurt = {span.look for span in spans} & {"hurt", "offline", "cordoned"}
            name = f"broker {broker} {path.name.removeprefix(f'broker-{broker}-')}"
            lanes.append(Lane(name=name, spans=spans, quiet=not hurt))
    return lanes


def _log_dir_changes(folder: RunFolder, broker: int, path: Path) -> Iterator[tuple[float, str, str]]:
    """What changes in the ``state`` of a log dir: when, which of its keys, and the new value; empty means no."""
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
    offline_line = re.compile(
        r"(Stopping serving logs in dir|Failed to create or validate data directory|Error while loading log dir) "
        rf"{re.escape(str(path))}(?![\w.-])"
    )
    for line in folder.logs.get(f"broker-{broker}", ()):
        if offline_line.search(line.text):
            yield folder.at(line.at), "offline", line.text.splitlines()[0]


def _log_dir_look(state: Mapping[str, str]) -> tuple[str, str]:
    if not state["up"]:
        return "down", "its broker is down"
    if state["offline"]:
        return "offline", f"offline: {short(state['offline'])}"
    if state["hurt"]:
        return "hurt", f"{state['hurt']} is in force, and the broker has not logged it as offline"
    if state["cordoned"]:
        return "cordoned", "cordoned: gets no new replicas"
    return "good", "good"


# --- partitions -----------------------------------------------------------------------------------------------------


def partitions(folder: RunFolder) -> list[Lane]:
    """The leader, ISR and offline replicas of each partition, as the watcher saw them."""
    changes: dict[tuple[str, int], list[tuple[float, PartitionChanged | None]]] = {}
    for event in folder.events:
        if isinstance(event, PartitionChanged):
            changes.setdefault(event.key, []).append((folder.at(event.at), event))
        elif isinstance(event, TopicDeleted):
            for key, seen in changes.items():
                if key[0] == event.topic:
                    seen.append((folder.at(event.at), None))
    lanes = []
    for (topic, partition), seen in sorted(changes.items()):
        replicas = max(len({*e.isr, *e.offline_replicas}) for _, e in seen if e is not None)
        spans = _spans([(at, *_partition_look(event, replicas)) for at, event in seen], folder.ended)
        lanes.append(Lane(name=f"{topic}-{partition}", spans=spans, quiet=len(seen) == 1))
    return lanes


def _partition_look(event: PartitionChanged | None, replicas: int) -> tuple[str, str, str]:
    """The look, text and phrase of a partition.

    :param event: None if the topic was deleted
    """
    if event is None:
        return "gone", "deleted", "the topic was deleted"
    leader, isr, offline = event.leader, list(event.isr), list(event.offline_replicas)
    looks = ["leaderless" if leader is None else f"leader b{(leader - 1) % 6 + 1}"]
    looks += ["shrunk"] if len(isr) < replicas else []
    looks += ["offline-replicas"] if offline else []
    text = ("no leader" if leader is None else f"{leader}") + f" · ISR {','.join(map(str, isr)) or 'empty'}"
    says = f"leader {leader or 'none'}, epoch {event.leader_epoch}, ISR {isr}, offline replicas {offline or 'none'}"
    return " ".join(looks), text, says


# --- MBeans ---------------------------------------------------------------------------------------------------------


_SHORT = {
    "OfflineLogDirectoryCount": "log dirs",
    "OfflineReplicaCount": "replicas",
    "OfflinePartitionsCount": "partitions",
    "UnderReplicatedPartitions": "under-replicated",
}
"""Short names; the heading of the group says that it counts what is offline."""


def mbeans(folder: RunFolder) -> list[Lane]:
    """The values of each node's MBeans. A value other than 0 stands out."""
    points: dict[tuple[str, str], list[tuple[float, int | None]]] = {}
    for event in folder.events:
        if isinstance(event, MBeansChanged):
            for name, value in event.values.items():
                points.setdefault((name, event.node), []).append((folder.at(event.at), value))
    lanes = []
    for (name, node), values in sorted(points.items(), key=lambda item: (item[0][0], node_order(item[0][1]))):
        spans = _spans([(at, *_count_look(name, value)) for at, value in values], folder.ended)
        quiet = all(value in (0, None) for _, value in values)
        lanes.append(Lane(name=f"{node} {_SHORT.get(name, name)}", spans=spans, quiet=quiet))
    return lanes


def _count_look(name: str, value: int | None) -> tuple[str, str, str]:
    if value is None:
        return "gone", "", f"{name}: no value"
    return ("count zero" if value == 0 else "count"), str(value), f"{name} is {value}"


# --- shared ---------------------------------------------------------------------------------------------------------


def _spans(points: Sequence[Point], end: float) -> tuple[Span, ...]:
    """A span from each point to the next one; equal neighbours become one span."""
    merged = [point for i, point in enumerate(points) if i == 0 or points[i - 1][1:] != point[1:]]
    ends = [at for at, *_ in merged[1:]] + [end]
    return tuple(
        Span(start=at, end=max(at, until), look=look, text=text, says=says)
        for (at, look, text, says), until in zip(merged, ends, strict=True)
    )


def short(text: str, longest: int = 400) -> str:
    """The text, cut to a length, and without the folders above log dirs."""
    text = re.sub(r"(?<![\w/])/[^\s,\]()']*/(?=[^\s/]*log-dir-)", "", text)
    return text if len(text) <= longest else text[: longest - 1] + "…"
