"""What is measured of a fault, by the names of run.json (:mod:`harness.measure.fault_costs`), in the words of all
pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Cost(NamedTuple):
    """A figure's heading, and what it is."""

    words: str
    says: str


COSTS: Mapping[str, Cost] = {
    "noticed_s": Cost("broker noticed", "until the broker's log, or another broker's metadata, says so"),
    "controller_told_s": Cost("controller told", "until the controller's log says so"),
    "other_leader_s": Cost(
        "other leader",
        "until every partition that the broker led and lost by this fault had another leader; “never” where one had "
        "none before the fault's end, or the next fault on or stop of the same broker",
    ),
    "first_ack_s": Cost(
        "first ack again",
        "until acks came again after the longest pause in one partition, where that was an interruption: at least "
        "0.2 s, and five times the usual pause",
    ),
    "produce_gap_s": Cost("no ack", "the longest pause between two acks in one partition"),
    "consume_gap_s": Cost("no read", "the longest pause between two reads of one partition"),
    "recovered_s": Cost(
        "back in sync",
        "from its end, or its broker's start after that, until the broker is back in every ISR that had lost it",
    ),
}
