"""Checks that the records of one producer lie in one partition in the order in which they were sent.

Kind: reordered.

A record is reordered if a record of its producer with a lower seq has a higher first offset in the partition. The first
offset is the lowest of its ack and its reads there. Not compared are records that no row of ``produced`` names, and
reads in another topic than the record was sent to (a phantom there). Two records at one offset are a conflict and not
reordered. A record that is reordered in two partitions counts once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.checkers.columns import NONE, Ints, joint_key, run_starts
from harness.checkers.encoded_history import EncodedHistory
from harness.checkers.findings import record_findings
from harness.checkers.verdict import Anomaly


def first_offsets(rows: EncodedHistory) -> tuple[Ints, Ints, Ints, Ints]:
    """Every record's first offset in each partition of its topic.

    :returns: columns (group, record, tp, off), sorted by group and seq; a group is one producer in one partition
    """
    sent, reads, log = rows.sent, rows.reads, rows.log
    acked = np.flatnonzero(sent.off != NONE)
    read = np.flatnonzero(rows.record != NONE)
    read = read[log.topic_id[sent.tp[rows.record[read]]] == log.topic_id[reads.tp[read]]]
    record = np.concatenate([acked, rows.record[read]])
    tp, off = np.concatenate([sent.tp[acked], reads.tp[read]]), np.concatenate([sent.off[acked], reads.off[read]])
    group = joint_key(sent.pid[record], tp)
    order = np.lexsort((off, sent.seq[record], group))
    first = order[run_starts(group[order], record[order])]
    return group[first], record[first], tp[first], off[first]


def check_ordering(rows: EncodedHistory) -> Iterator[Anomaly]:
    """Find the kind of this module."""
    group, record, tp, off = first_offsets(rows)
    # As the key grows with the group, the running maximum never comes from another group.
    height = joint_key(group, off)
    found = np.flatnonzero(height[1:] < np.maximum.accumulate(height)[:-1]) + 1
    if len(found):
        records, at = np.unique(record[found], return_index=True)
        yield record_findings(rows, "reordered", records, tp[found[at]], off[found[at]])
