"""Does what one producer sent to one partition lie there in the order in which it was sent?

Kind: reordered.

A record's first offset in a partition is the lowest of its ack and its reads there; it is out of order if a record
with a lower seq has a higher one. A record of another topic that turns up (a phantom there) is not compared, and
neither is one that nobody sent. Equal first offsets are a conflict, not an order. A record that is out of order in
two partitions counts once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.checkers.encoded_history import NONE, EncodedHistory, Ints, joint_key
from harness.checkers.findings import Findings, record_findings


def first_offsets(rows: EncodedHistory) -> tuple[Ints, Ints, Ints, Ints]:
    """Every record's first offset in each partition of its topic: (group, record, tp, off), ordered by group and seq.

    A group is one producer's records in one partition.
    """
    sent, reads, log = rows.sent, rows.reads, rows.log
    acked = np.flatnonzero(sent.off != NONE)
    read = np.flatnonzero(rows.record != NONE)
    read = read[log.tid[sent.tp[rows.record[read]]] == log.tid[reads.tp[read]]]
    record = np.concatenate([acked, rows.record[read]])
    tp, off = np.concatenate([sent.tp[acked], reads.tp[read]]), np.concatenate([sent.off[acked], reads.off[read]])
    if not len(record):
        return record, record, tp, off
    group = joint_key(sent.pid[record], tp)
    order = np.lexsort((off, sent.seq[record], group))
    group, record, tp, off = group[order], record[order], tp[order], off[order]
    first = np.r_[True, (group[1:] != group[:-1]) | (record[1:] != record[:-1])]
    return group[first], record[first], tp[first], off[first]


def check_ordering(rows: EncodedHistory) -> Iterator[Findings]:
    """Findings of this family."""
    group, record, tp, off = first_offsets(rows)
    if not len(record):
        return
    # Keys that grow with the group keep one running maximum from reaching into the next group.
    height = joint_key(group, off)
    found = np.flatnonzero(np.r_[False, height[1:] < np.maximum.accumulate(height)[:-1]])
    if len(found):
        records, at = np.unique(record[found], return_index=True)
        yield record_findings(rows, "reordered", records, tp[found[at]], off[found[at]])
