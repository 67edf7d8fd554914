"""What a case's page draws, as data: everything on one axis of time, in seconds from the case's beginning.

Kept apart from how it is drawn, so that it can be tested without a browser; ``assets/timeline.js`` knows the shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.events import FaultInjecting, Trouble
from harness.measure.fault_costs import FaultCosts
from reports import lanes
from reports.clients import Clients, Name, look_at_clients, to_json
from reports.costs import COSTS
from reports.folder import RunFolder
from reports.lanes import Lane, Span
from reports.lines import Mark, harness_events, log_lines

JUDGE = "the judge"
_TROUBLES = {"PromiseBroken": "a promise is broken", "Inconclusive": "nothing is shown"}
_SILENT_LANES = 8
_MBEANS = "MBeans: how many are offline"
_PARTITIONS = "partitions: leader · ISR"
_KEYS = {_PARTITIONS: "coloured by leader; underlined amber: not all replicas in sync, red: replicas offline"}


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """An example of the verdict's, where it is known when; or what ended the scenario, such as a promise that it found
    broken.

    :ivar at: when the record was sent, of a transaction the first of its records; None where nobody knows of any
    :ivar by: who says so
    :ivar stories: those told of it, by their places among all
    """

    at: float | None
    by: str
    kind: str
    says: str
    stories: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A case's page, all of it that has a time.

    :ivar groups: lanes by what they are of, in the order in which they are shown
    :ivar notes: what of the run folder is damaged
    :ivar cut: what is there and not shown
    """

    end: float
    began_ms: float
    clients: Clients
    faults: Sequence[tuple[Span, FaultCosts | None]]
    groups: Sequence[tuple[str, Sequence[Lane]]]
    marks: Sequence[Mark]
    anomalies: Sequence[Anomaly]
    stories: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    cut: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """As the page has it."""
        return {
            "end": self.end,
            "began_ms": self.began_ms,
            "bin_s": self.clients.bin_s,
            "x": list(self.clients.middles),
            "charts": [
                {"name": "throughput", "unit": "records/s", "lines": [to_json(x) for x in self.clients.throughput]},
                {"name": "latency", "unit": "ms", "log": True, "lines": [to_json(x) for x in self.clients.latency]},
            ],
            "faults": [[*span.to_json(), costs.to_json() if costs else {}] for span, costs in self.faults],
            "costs": {name: cost.words for name, cost in COSTS.items()},
            "groups": [
                {"name": name, "key": _KEYS.get(name, ""), "lanes": [lane.to_json() for lane in of]}
                for name, of in self.groups
                if of
            ],
            "marks": [mark.to_json() for mark in self.marks],
            "anomalies": [[each.at, each.by, each.kind, each.says, list(each.stories)] for each in self.anomalies],
            "stories": [_story(story) for story in self.stories],
        }


def make_timeline(folder: RunFolder) -> Timeline:
    """Gather it from a run folder."""
    examples = list(_examples(folder))
    named = [name for _, example in examples for name in _named(example)]
    torn = [example["transaction"] for _, example in examples if "transaction" in example]
    clients = look_at_clients(folder, named, torn)
    lines, cut = log_lines(folder)
    return Timeline(
        end=folder.ended,
        began_ms=folder.began.timestamp() * 1000,
        clients=clients,
        faults=_with_costs(folder, lanes.faults(folder)),
        groups=(
            ("", (lanes.phases(folder),)),
            ("clients without", _silent(clients)),
            ("brokers", lanes.nodes(folder)),
            ("log dirs", lanes.log_dirs(folder)),
            (_PARTITIONS, lanes.partitions(folder)),
            (_MBEANS, lanes.mbeans(folder)),
        ),
        marks=sorted([*lines, *harness_events(folder)], key=lambda mark: mark.at),
        anomalies=[*_troubles(folder), *_judged(examples, clients, folder.stories)],
        stories=folder.stories,
        notes=(*folder.notes, *clients.notes),
        cut=cut,
    )


def _troubles(folder: RunFolder) -> Iterator[Anomaly]:
    """What ended the scenario, or its setting up or taking down; but for the judge's word, which has examples."""
    for event in folder.events:
        if isinstance(event, Trouble):
            kind = _TROUBLES.get(event.error) or event.error
            yield Anomaly(at=folder.at(event.at), by="the scenario", kind=kind, says=event.says)


def _judged(
    examples: Iterable[tuple[str, Mapping[str, Any]]], clients: Clients, stories: Sequence[Mapping[str, Any]]
) -> Iterator[Anomaly]:
    told = {(story["producer"], story["seq"]): index for index, story in enumerate(stories)}
    for kind, example in examples:
        names = clients.of_transactions.get(example.get("transaction", ""), _named(example))
        yield Anomaly(
            at=min((clients.sent[name] for name in names if name in clients.sent), default=None),
            by=JUDGE,
            kind=kind,
            says=", ".join(f"{key} {value}" for key, value in example.items() if value is not None),
            stories=[told[name] for name in names if name in told],
        )


def _examples(folder: RunFolder) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for anomaly in (folder.verdict or {}).get("anomalies", ()):
        for example in anomaly.get("examples", ()):
            yield anomaly["kind"], example


def _named(example: Mapping[str, Any]) -> Sequence[Name]:
    """The record that an example names, if it does."""
    producer, seq = example.get("producer"), example.get("seq")
    return () if producer is None or seq is None else ((producer, seq),)


def _with_costs(
    folder: RunFolder, found: Sequence[tuple[FaultInjecting, Span]]
) -> list[tuple[Span, FaultCosts | None]]:
    """Each fault with what it cost; run.json has the same order."""
    costs = folder.faults
    return [(span, costs[index] if index < len(costs) else None) for index, (_, span) in enumerate(found)]


def _silent(clients: Clients) -> list[Lane]:
    """A lane for each partition whose clients went without, those that did for the longest first."""
    found = []
    for silence in clients.silences:
        for what, spans in (("ack", silence.no_ack), ("read", silence.no_read)):
            name = f"{silence.topic}-{silence.partition} no {what}"
            drawn = tuple(
                Span(start=a, end=b, look=f"without {what}", text=f"{b - a:.2f} s", says=f"{name} for {b - a:.3f} s")
                for a, b in spans
            )
            found.append((max((b - a for a, b in spans), default=0.0), Lane(name=name, spans=drawn, quiet=not spans)))
    longest = sorted(found, key=lambda each: -each[0])
    shown = {lane.name for _, lane in longest[:_SILENT_LANES]}
    return [Lane(name=lane.name, spans=lane.spans, quiet=lane.quiet or lane.name not in shown) for _, lane in found]


def _story(story: Mapping[str, Any]) -> dict[str, Any]:
    return {key: story.get(key) for key in ("producer", "seq", "kinds", "summary", "timeline", "replicas")}
