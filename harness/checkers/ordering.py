"""Checks of order: of a producer's records in the log, and of a consumer's reads.

Kinds:

* reordered: a record of the same producer with a lower seq has a higher first offset in the partition. The first offset
  is the lowest of the record's ack and its reads there. Records that no row of ``produced`` names are
  not compared, nor are reads in another topic than the record was sent to (phantoms). Two records at one offset are a
  conflict, not an order.
  A record that is reordered in two partitions counts once.
* nonmonotonic_read (live consumers and drains): within one session, the offset is not above that of the read before, in
  the order of `position`. Reads of one position, which a history should not have, are ordered by offset.
* redelivered (live consumers; noted): the consumer was handed the offset in an earlier session too.

One row is one read. Two equal rows, as in a part that was copied, make the history invalid.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.checkers.columns import NONE, Ints, alike, joint_key, run_starts
from harness.checkers.encoded_history import EncodedHistory
from harness.checkers.findings import read_findings, record_findings
from harness.checkers.verdict import Anomaly
from harness.errors import HistoryError


def first_offsets(rows: EncodedHistory) -> tuple[Ints, Ints, Ints, Ints]:
    """Find every record's first offset in each partition of its topic.

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
    """Find reordered records."""
    group, record, tp, off = first_offsets(rows)
    # As the key grows with the group, the running maximum never comes from another group.
    height = joint_key(group, off)
    found = np.flatnonzero(height[1:] < np.maximum.accumulate(height)[:-1]) + 1
    if len(found):
        records, at = np.unique(record[found], return_index=True)
        yield record_findings(rows, "reordered", records, tp[found[at]], off[found[at]])


def check_reads(rows: EncodedHistory) -> Iterator[Anomaly]:
    """Find nonmonotonic_read and redelivered.

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
