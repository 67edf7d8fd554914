"""Checks that each consumer was handed a partition's offsets upwards, and notes what it was handed again.

Kinds: nonmonotonic_read (live consumers and drains), redelivered (live consumers; noted, Kafka may do so).

* nonmonotonic_read: within one session, the offset is not above that of the read before, by `position`. Reads of one
  position, which a history should not have, are ordered by offset.
* redelivered: the consumer was handed the offset in an earlier session too.

One row is one read. The same row twice, as in a copied part, is no valid history, and not two reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.checkers.columns import alike, joint_key, run_starts
from harness.checkers.encoded_history import EncodedHistory
from harness.checkers.findings import read_findings
from harness.checkers.verdict import Anomaly
from harness.errors import HistoryError


def check_reads(rows: EncodedHistory) -> Iterator[Anomaly]:
    """Find the kinds of this module.

    :raises HistoryError: a read has two rows
    """
    reads = rows.reads
    stay = joint_key(reads.cid, reads.tp)
    in_session = joint_key(stay, reads.session)
    order = np.lexsort((reads.off, reads.position, in_session))
    same, off = alike(in_session[order]), reads.off[order]
    twice = order[1:][same & alike(reads.position[order], off)]
    if len(twice):
        topic, partition = rows.places[reads.tp[twice[0]]]
        raise HistoryError(
            f"history/consumed has two rows for one read {len(twice)} times, e.g. of "
            f"{rows.consumers[reads.cid[twice[0]]].name} at {topic}-{partition}@{reads.off[twice[0]]}"
        )
    back = order[1:][same & (off[1:] <= off[:-1])]
    if len(back):
        yield read_findings(rows, "nonmonotonic_read", back)

    live = np.flatnonzero(~reads.drain)
    if not len(live) or reads.session[live].min() == reads.session[live].max():
        return
    place = joint_key(stay[live], reads.off[live])
    order = np.lexsort((reads.session[live], place))
    place, session = place[order], reads.session[live][order]
    starts = run_starts(place)
    first = np.repeat(session[starts], np.diff(np.r_[starts, len(place)]))
    again = live[order[session > first]]
    if len(again):
        yield read_findings(rows, "redelivered", again)
