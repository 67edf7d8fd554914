"""The data of a case's page: everything on one time axis, in seconds since the case began.

The data is separate from the drawing, so that it can be tested without a browser. ``assets/timeline.js`` draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from harness.events import Trouble
from harness.history.run_folder import Example
from harness.measure.fault_costs import FaultCosts
from reports import lanes
from reports.clients import Clients, Name, look_at_clients
from reports.costs import COSTS
from reports.folder import RunFolder, StoryRecord
from reports.lanes import Lane, Span
from reports.lines import Mark, harness_events, log_lines

JUDGE = "the judge"
_TROUBLES = {"PromiseBroken": "a promise is broken", "Inconclusive": "nothing is shown"}
_LONGEST_INTERRUPTIONS = 8
_MBEANS = "MBeans: how many are offline"
_PARTITIONS = "partitions: leader · ISR"
_KEYS = {
    _PARTITIONS: "colour: the leader; underlined amber: not all replicas are in sync; underlined red: replicas offline"
}


@dataclass(frozen=True, kw_only=True)
class MarkedAnomaly:
    """An example of an anomaly in the verdict, or the error that ended the scenario.

    :ivar at: when the record was sent, or the first record of the transaction; None if unknown
    :ivar by: who found it: the judge or the scenario
    :ivar stories: the indexes of its stories among those of the timeline
    """

    at: float | None
    by: str
    kind: str
    says: str
    stories: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Everything on a case's page that has a time.

    :ivar groups: groups of lanes, with their headings, in the order of the page
    :ivar notes: one sentence for each damaged file
    :ivar cut: one sentence for each log of which only a part is shown
    """

    end: float
    began_ms: float
    clients: Clients
    faults: Sequence[tuple[Span, FaultCosts | None]]
    groups: Sequence[tuple[str, Sequence[Lane]]]
    marks: Sequence[Mark]
    anomalies: Sequence[MarkedAnomaly]
    stories: Sequence[StoryRecord]
    notes: Sequence[str]
    cut: Sequence[str]

    def to_json(self) -> dict[str, object]:
        """The data that the page embeds."""
        throughput, latency = ([asdict(line) for line in of] for of in (self.clients.throughput, self.clients.latency))
        return {
            "end": self.end,
            "began_ms": self.began_ms,
            "bin_s": self.clients.bin_s,
            "x": list(self.clients.middles),
            "charts": [
                {"name": "throughput", "unit": "records/s", "lines": throughput},
                {"name": "latency", "unit": "ms", "log": True, "lines": latency},
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
            "stories": [asdict(story) for story in self.stories],
        }


def make_timeline(folder: RunFolder) -> Timeline:
    """Gather the data from a run folder."""
    examples = [(anomaly.kind, example) for anomaly in folder.anomalies for example in anomaly.examples]
    records = [name for _, example in examples for name in _named(example)]
    transactions = [str(example["transaction"]) for _, example in examples if "transaction" in example]
    clients = look_at_clients(folder, records, transactions)
    lines, cut = log_lines(folder)
    faults = lanes.faults(folder)
    return Timeline(
        end=folder.ended,
        began_ms=folder.began.timestamp() * 1000,
        clients=clients,
        # run.json has the costs in the same order; of a case that was cut off it has none.
        faults=[(span, folder.faults[n] if n < len(folder.faults) else None) for n, span in enumerate(faults)],
        groups=(
            ("", (lanes.phases(folder),)),
            ("clients without", _interruptions(clients)),
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


def _troubles(folder: RunFolder) -> Iterator[MarkedAnomaly]:
    for event in folder.events:
        if isinstance(event, Trouble):
            kind = _TROUBLES.get(event.error) or event.error
            yield MarkedAnomaly(at=folder.at(event.at), by="the scenario", kind=kind, says=event.says)


def _judged(
    examples: Iterable[tuple[str, Example]], clients: Clients, stories: Sequence[StoryRecord]
) -> Iterator[MarkedAnomaly]:
    story_of = {(story.producer, story.seq): index for index, story in enumerate(stories)}
    for kind, example in examples:
        names = clients.of_transactions.get(str(example.get("transaction")), _named(example))
        yield MarkedAnomaly(
            at=min((clients.sent[name] for name in names if name in clients.sent), default=None),
            by=JUDGE,
            kind=kind,
            says=", ".join(f"{key} {value}" for key, value in example.items() if value is not None),
            stories=[story_of[name] for name in names if name in story_of],
        )


def _named(example: Example) -> Sequence[Name]:
    """The record that an example names, if any."""
    producer, seq = example.get("producer"), example.get("seq")
    return ((producer, seq),) if isinstance(producer, str) and isinstance(seq, int) else ()


def _interruptions(clients: Clients) -> list[Lane]:
    """Two lanes for each partition, without acks and without reads; only the longest interruptions are not folded."""
    found = []
    for silence in clients.silences:
        for what, stretches in (("ack", silence.no_ack), ("read", silence.no_read)):
            name = f"{silence.topic}-{silence.partition} no {what}"
            spans = tuple(
                Span(start=a, end=b, look=f"without {what}", text=f"{b - a:.2f} s", says=f"{name} for {b - a:.3f} s")
                for a, b in stretches
            )
            longest = max((b - a for a, b in stretches), default=0.0)
            found.append((longest, Lane(name=name, spans=spans, quiet=not spans)))
    shown = sorted(found, key=lambda each: -each[0])[:_LONGEST_INTERRUPTIONS]
    return [each[1] if each in shown else replace(each[1], quiet=True) for each in found]
