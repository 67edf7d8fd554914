"""A verdict, the anomalies that it rests on, and the table of all kinds of anomaly.

The table is apart from the checkers, so that one place shows which kinds count against Kafka.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

VerdictWord = Literal["valid", "invalid", "unknown"]
Example = dict[str, str | int | None]
SCHEMA = 1
MAX_EXAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of anomaly: the verdict that it leads to, and the sentence that describes it."""

    leads_to: VerdictWord
    sentence: str

    def says(self, count: int) -> str:
        """The sentence for this number of findings."""
        return re.sub("<(.*?)\\|(.*?)>", r"\1" if count == 1 else r"\2", self.sentence).format(n=count)


# By verdict, in the order in which they are shown, the worst first; <for one finding|for another number of them>.
_SENTENCES: Mapping[VerdictWord, Mapping[str, str]] = {
    "invalid": {
        "lost": "{n} acked <record is|records are> in no drain although <its partition was|their partitions were> "
        "read past <it|them>",
        "vanished": "{n} <record was handed to a live consumer and is|records were handed to live consumers and are> "
        "in no drain, although <its partition was|their partitions were> read past <it|them>",
        "corrupted": "{n} <record was read with another CRC-32 than it was|records were read with other CRC-32s than "
        "they were> sent with",
        "conflicting_offset": "{n} <offset holds two different records|offsets hold two different records each>, by "
        "acks and reads",
        "misplaced": "{n} <record was|records were> acked at one offset and read only at others",
        "duplicated": "{n} <record was|records were> read at more than one place",
        "reordered": "{n} <record lies below a record that its producer|records lie below records that their "
        "producers> had sent earlier to the same partition",
        "phantom": "{n} <offset was read that holds a record|offsets were read that hold records> that no "
        "producer sent there",
        "failed_but_present": "{n} <record was read although sending it|records were read although sending them> had "
        "failed for good",
        "hidden": "{n} <offset was not shown to a drain that got past it, though its isolation should show it and "
        "another drain has it|offsets were not shown to drains that got past them, though their isolations should "
        "show them and other drains have them>",
        "skipped": "{n} <offset was passed over by a live consumer, yet a drain has it|offsets were passed over by "
        "live consumers, yet a drain has them>",
        "nonmonotonic_read": "{n} <read within a session went to an offset not above the one|reads within a session "
        "went to offsets not above the ones> before",
        "aborted_read": "{n} <read by a read_committed consumer gave a record of an aborted transaction|reads by "
        "read_committed consumers gave records of aborted transactions>",
        "partial_transaction": "{n} <transaction is|transactions are> there in part only",
    },
    "unknown": {
        "undrained": "{n} acked <record lies|records lie> beyond what any drain reached",
        "held_back": "{n} <partition holds|partitions hold> records that count as written, and no read_committed "
        "drain got as far as them, though <another drain|other drains> did",
        "unrecorded": "{n} <record was sent and has|records were sent and have> no row in history/produced: <a "
        "part|parts> of the history <is|are> missing",
        "no_load": "nothing was acked, so nothing was put to the test",
    },
    "valid": {
        "resent": "{n} <record was written once more by its client, which had taken a new producer epoch|records were "
        "written once more by their clients, which had taken new producer epochs> (noted, allowed)",
        "redelivered": "{n} <read came again in a later session|reads came again in later sessions> (noted, allowed)",
    },
}

KINDS: Mapping[str, Kind] = {
    name: Kind(leads_to=leads_to, sentence=sentence)
    for leads_to, kinds in _SENTENCES.items()
    for name, sentence in kinds.items()
}


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """All findings of one kind: how many, and at most :data:`MAX_EXAMPLES` examples in a fixed order."""

    kind: str
    count: int
    leads_to: VerdictWord
    examples: tuple[Example, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The anomaly as verdict.json has it."""
        return {"kind": self.kind, "count": self.count, "examples": list(self.examples)}

    def sentence(self) -> str:
        """The anomaly as one plain sentence with the first example."""
        text = KINDS[self.kind].says(self.count)
        if self.leads_to != KINDS[self.kind].leads_to:
            allowed = self.leads_to == "valid"
            text += f" ({'allowed here' if allowed else 'all that is missing lies beyond what was drained'})"
        if self.examples:
            text += f", e.g. {_named(self.examples[0])}"
        return text


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The counts that a verdict rests on: numbers of records, except ``read``, the number of rows of ``consumed``."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    indeterminate: int = 0
    indeterminate_present: int = 0
    read: int = 0

    @classmethod
    def of(cls, outcomes: Iterable[int], read: int) -> Counts:
        """The counts of a history.

        :param outcomes: how many records were acked, failed and are indeterminate
        """
        acked, failed, indeterminate = map(int, outcomes)
        sent = acked + failed + indeterminate
        return cls(sent=sent, acked=acked, failed=failed, indeterminate=indeterminate, read=read)

    def as_json(self) -> dict[str, int]:
        """The counts as verdict.json has them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one run: valid, invalid or unknown; unknown is never a pass."""

    run_id: str
    verdict: VerdictWord
    counts: Counts
    anomalies: tuple[Anomaly, ...] = ()
    reasons: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The verdict as verdict.json has it."""
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "counts": self.counts.as_json(),
            "anomalies": [anomaly.as_json() for anomaly in self.anomalies],
        }

    def text(self) -> str:
        """The text of verdict.json; the same findings give the same bytes."""
        return json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"


def conclude(run_id: str, counts: Counts, anomalies: Iterable[Anomaly]) -> Verdict:
    """The verdict that follows from `anomalies`: invalid wins over unknown; none, or only noted ones, is valid."""
    order = list(KINDS)
    shown = tuple(sorted(anomalies, key=lambda anomaly: order.index(anomaly.kind)))
    words = {anomaly.leads_to for anomaly in shown}
    verdict: VerdictWord = "invalid" if "invalid" in words else "unknown" if "unknown" in words else "valid"
    reasons = tuple(anomaly.sentence() for anomaly in shown)
    return Verdict(run_id=run_id, verdict=verdict, counts=counts, anomalies=shown, reasons=reasons)


def could_not_decide(run_id: str, counts: Counts, why: str) -> Verdict:
    """The verdict of a judge that failed: unknown, with the reason."""
    return Verdict(run_id=run_id, verdict="unknown", counts=counts, reasons=(f"the judge could not decide: {why}",))


def _named(example: Example) -> str:
    """An example in the short form ``p0 #17 at orders-0@16``, as far as it is known."""
    if "transaction" in example:
        return f"{example['transaction']}"
    words = []
    if example.get("consumer") is not None:
        words.append(f"{example['consumer']}:")
    if example.get("producer") is not None:
        words.append(f"{example['producer']} #{example.get('seq')} at")
    place = str(example["topic"])
    if example["partition"] is not None:
        place += f"-{example['partition']}"
        if example["offset"] is not None:
            place += f"@{example['offset']}"
    return " ".join([*words, place])
