"""Was each consumer handed a partition's offsets upwards, and what came again after it had started again?

Kinds: nonmonotonic_read (of live consumers and drains), redelivered (of live consumers; noted, not held against Kafka).

The order within a session is that of `position`; rows of one position (which a history should not have) are taken in
the order of their offsets. A consumer that appears in both roles is two consumers. One event is one row: a row that is
there twice, or a part that was copied, is no history, and not two reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.checkers.encoded_history import EncodedHistory, joint_key
from harness.checkers.findings import Findings, read_findings
from harness.errors import HistoryError


def check_reads(rows: EncodedHistory) -> Iterator[Findings]:
    """Findings of this family.

    :raises HistoryError: a row is there twice
    """
    reads = rows.reads
    if not len(reads):
        return
    stay = joint_key(reads.cid, reads.tp)
    in_session = joint_key(stay, reads.session)
    order = np.lexsort((reads.off, reads.position, in_session))
    same = in_session[order][1:] == in_session[order][:-1]
    twice = same & (reads.position[order][1:] == reads.position[order][:-1])
    twice &= reads.off[order][1:] == reads.off[order][:-1]
    if twice.any():
        row = order[1:][twice][0]
        where = rows.partitions[int(reads.tp[row])]
        raise HistoryError(
            f"history/consumed has two rows for one read {int(twice.sum())} times, e.g. of "
            f"{rows.consumers[int(reads.cid[row])].name} at {where.topic}-{where.partition}@{reads.off[row]}"
        )
    back = order[1:][same & (reads.off[order][1:] <= reads.off[order][:-1])]
    if len(back):
        yield read_findings(rows, "nonmonotonic_read", back)

    live = np.flatnonzero(~reads.drain)
    if not len(live) or reads.session[live].min() == reads.session[live].max():
        return
    place = joint_key(stay[live], reads.off[live])
    order = np.lexsort((reads.session[live], place))
    place, session = place[order], reads.session[live][order]
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    first = np.repeat(session[starts], np.diff(np.r_[starts, len(place)]))
    again = live[order[session > first]]
    if len(again):
        yield read_findings(rows, "redelivered", again)
