"""What the judge says: a verdict, the anomalies that it rests on, and the table of kinds as data.

The table lives here, apart from the code that finds the kinds, so that what a finding *means* (is a record that was
handed out twice Kafka's fault?) can be read in one place and is the same for every checker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

VerdictWord = Literal["valid", "invalid", "unknown"]
SCHEMA = 1
MAX_EXAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of anomaly: its name, the verdict that it leads to, and how it is told."""

    name: str
    leads_to: VerdictWord
    one: str
    many: str

    def says(self, count: int) -> str:
        """The finding as a clause for people."""
        return self.one if count == 1 else self.many.format(n=count)


# In the order in which they are told: the worst first.
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="lost",
            leads_to="invalid",
            one="1 acked record is in no drain although its partition was read past it",
            many="{n} acked records are in no drain although their partitions were read past them",
        ),
        Kind(
            name="vanished",
            leads_to="invalid",
            one="1 record was handed to a live consumer and is in no drain, although its partition was read past it",
            many="{n} records were handed to live consumers and are in no drain, although their partitions were read "
            "past them",
        ),
        Kind(
            name="corrupted",
            leads_to="invalid",
            one="1 record was read with another CRC-32 than it was sent with",
            many="{n} records were read with other CRC-32s than they were sent with",
        ),
        Kind(
            name="conflicting_offset",
            leads_to="invalid",
            one="1 offset holds two different records, by acks and reads",
            many="{n} offsets hold two different records each, by acks and reads",
        ),
        Kind(
            name="misplaced",
            leads_to="invalid",
            one="1 record was acked at one offset and read only at others",
            many="{n} records were acked at one offset and read only at others",
        ),
        Kind(
            name="duplicated",
            leads_to="invalid",
            one="1 record was read at more than one place",
            many="{n} records were read at more than one place",
        ),
        Kind(
            name="reordered",
            leads_to="invalid",
            one="1 record lies below a record that its producer had sent earlier to the same partition",
            many="{n} records lie below records that their producers had sent earlier to the same partition",
        ),
        Kind(
            name="phantom",
            leads_to="invalid",
            one="1 offset was read that holds a record nobody sent there",
            many="{n} offsets were read that hold records nobody sent there",
        ),
        Kind(
            name="failed_but_present",
            leads_to="invalid",
            one="1 record was read although sending it had failed for good",
            many="{n} records were read although sending them had failed for good",
        ),
        Kind(
            name="hidden",
            leads_to="invalid",
            one="1 offset was not shown to a drain that got past it, though its isolation should show it and another "
            "drain has it",
            many="{n} offsets were not shown to drains that got past them, though their isolations should show them "
            "and other drains have them",
        ),
        Kind(
            name="skipped",
            leads_to="invalid",
            one="1 offset was passed over by a live consumer, yet a drain has it",
            many="{n} offsets were passed over by live consumers, yet a drain has them",
        ),
        Kind(
            name="nonmonotonic_read",
            leads_to="invalid",
            one="1 read within a session went to an offset not above the one before",
            many="{n} reads within a session went to offsets not above the ones before",
        ),
        Kind(
            name="aborted_read",
            leads_to="invalid",
            one="1 read by a read_committed consumer gave a record of an aborted transaction",
            many="{n} reads by read_committed consumers gave records of aborted transactions",
        ),
        Kind(
            name="partial_transaction",
            leads_to="invalid",
            one="1 transaction is there in part only",
            many="{n} transactions are there in part only",
        ),
        Kind(
            name="undrained",
            leads_to="unknown",
            one="1 acked record lies beyond what any drain reached",
            many="{n} acked records lie beyond what any drain reached",
        ),
        Kind(
            name="held_back",
            leads_to="unknown",
            one="1 partition holds records that count as written, and no read_committed drain got as far as them, "
            "though another drain did",
            many="{n} partitions hold records that count as written, and no read_committed drain got as far as them, "
            "though other drains did",
        ),
        Kind(
            name="unrecorded",
            leads_to="unknown",
            one="1 record was sent and has no row in history/produced: a part of the history is missing",
            many="{n} records were sent and have no row in history/produced: parts of the history are missing",
        ),
        Kind(name="no_load", leads_to="unknown", one="", many="nothing was acked, so nothing was put to the test"),
        Kind(
            name="resent",
            leads_to="valid",
            one="1 record was written once more by its client, which had taken a new producer epoch (noted, allowed)",
            many="{n} records were written once more by their clients, which had taken new producer epochs (noted, "
            "allowed)",
        ),
        Kind(
            name="redelivered",
            leads_to="valid",
            one="1 read came again in a later session (noted, allowed)",
            many="{n} reads came again in later sessions (noted, allowed)",
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """All findings of one kind: how many, and at most 20 examples in a fixed order."""

    kind: str
    count: int
    leads_to: VerdictWord
    examples: tuple[Mapping[str, str | int | None], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The anomaly as verdict.json has it."""
        return {"kind": self.kind, "count": self.count, "examples": [dict(example) for example in self.examples]}

    def sentence(self) -> str:
        """The anomaly as one plain sentence with the first example."""
        text = KINDS[self.kind].says(self.count)
        if self.leads_to != KINDS[self.kind].leads_to:
            how = {
                "valid": "allowed here",
                "unknown": "all that is missing lies beyond what was drained",
                "invalid": "",
            }
            text += f" ({how[self.leads_to]})"
        if self.examples:
            text += f", e.g. {_named(self.examples[0])}"
        return text


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the verdict rests on; records but for ``read``, which counts rows of consumed."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    indeterminate: int = 0
    indeterminate_present: int = 0
    read: int = 0

    def as_json(self) -> dict[str, int]:
        """The counts as verdict.json has them."""
        return {
            "sent": self.sent,
            "acked": self.acked,
            "failed": self.failed,
            "indeterminate": self.indeterminate,
            "indeterminate_present": self.indeterminate_present,
            "read": self.read,
        }


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is said about one run: valid, invalid or unknown; unknown is never a pass."""

    run_id: str
    verdict: VerdictWord
    counts: Counts
    anomalies: tuple[Anomaly, ...] = ()
    reasons: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """verdict.json as the contract has it."""
        return {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "counts": self.counts.as_json(),
            "anomalies": [anomaly.as_json() for anomaly in self.anomalies],
        }

    def text(self) -> str:
        """verdict.json's text; the same findings give the same bytes."""
        return json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"


def conclude(run_id: str, counts: Counts, anomalies: Iterable[Anomaly]) -> Verdict:
    """The verdict that follows from `anomalies`: invalid wins over unknown; none, or noted ones only, is valid."""
    order = list(KINDS)
    told = tuple(sorted(anomalies, key=lambda anomaly: order.index(anomaly.kind)))
    words = {anomaly.leads_to for anomaly in told}
    verdict: VerdictWord = "invalid" if "invalid" in words else "unknown" if "unknown" in words else "valid"
    return Verdict(
        run_id=run_id,
        verdict=verdict,
        counts=counts,
        anomalies=told,
        reasons=tuple(anomaly.sentence() for anomaly in told),
    )


def could_not_decide(run_id: str, counts: Counts, why: str) -> Verdict:
    """The verdict of a judge that failed: unknown, with the reason."""
    return Verdict(run_id=run_id, verdict="unknown", counts=counts, reasons=(f"the judge could not decide: {why}",))


def _named(example: Mapping[str, str | int | None]) -> str:
    """An example in the short form ``p0 #17 at orders-0@16``, as far as it is known."""
    if "transaction" in example:
        return f"{example['transaction']}"
    words = []
    if example.get("consumer") is not None:
        words.append(f"{example['consumer']}:")
    if example.get("producer") is not None:
        words.append(f"{example['producer']} #{example.get('seq')}")
    place = f"{example['topic']}" if example.get("topic") is not None else ""
    if place and example.get("partition") is not None:
        place += f"-{example['partition']}"
        if example.get("offset") is not None:
            place += f"@{example['offset']}"
    if place:
        words.append(f"at {place}" if words and not words[-1].endswith(":") else place)
    return " ".join(words)
