"""The figures of a fault (:class:`harness.measure.fault_costs.FaultCosts`), in the words of all pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Cost(NamedTuple):
    """The heading of a figure, and its definition."""

    words: str
    says: str


COSTS: Mapping[str, Cost] = {
    "noticed_s": Cost("broker noticed", "until the broker logs it, or another broker no longer lists the broker"),
    "controller_told_s": Cost("controller noticed", "until the controller logs it"),
    "other_leader_s": Cost(
        "other leader",
        "until every partition whose leadership the broker lost by this fault had another leader; “never” if one had "
        "none until the fault ended, or until the next fault on this broker or its next stop",
    ),
    "first_ack_s": Cost(
        "first ack again",
        "until the ack after the longest pause in one partition, if that pause was an interruption: at least 0.2 s, "
        "and five times the usual pause",
    ),
    "produce_gap_s": Cost("no ack", "the longest pause between two acks in one partition"),
    "consume_gap_s": Cost("no read", "the longest pause between two reads of one partition"),
    "recovered_s": Cost(
        "back in sync",
        "from the fault's end, or the broker's next start, until the broker was back in every ISR that it had left",
    ),
}
