"""Of every place (topic, partition, offset) that was acked or read: one record, ours, and shown to who should see it?

Kinds: conflicting_offset, phantom, skipped.

Corners that the contract leaves open, and how they are judged here:

* What is not one of ours has no name; two such reads are of the same record if all that was read of them (producer,
  seq, CRC-32) is the same.
* A record of ours that is read in a topic that it was not sent to is a phantom there: nobody sent it to that topic.
  So is one that was acked at no known offset and is read in another partition than the one that it was sent to, where
  that is known (for one that was, there is `misplaced`).
* A consumer that read with both isolations is asked only for what read_committed shows. A phantom belongs to no
  transaction, so everybody should see it. A record of an indeterminate transaction that only read_uncommitted drains
  have need not have been shown to a read_committed consumer; a read_uncommitted one is shown all that is in the log.
* Another consumer of the group is another live one: a drain reads everything on its own account, in no group.
* That a compacted topic may drop a record excuses nobody from being shown one that a drain has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from harness.checkers.delivery import Delivery
from harness.checkers.findings import Findings, offset_findings
from harness.checkers.rows import ABORTED, IN_DOUBT, NONE, Flags, Ints, Rows, joint_key


def check_places(delivery: Delivery) -> Iterator[Findings]:
    """Findings of this family."""
    rows, sent, reads = delivery.rows, delivery.rows.sent, delivery.rows.reads
    acked = np.flatnonzero(sent.off != NONE)
    tp, off = np.concatenate([reads.tp, sent.tp[acked]]), np.concatenate([reads.off, sent.off[acked]])
    _, index, group = np.unique(joint_key(tp, off), return_index=True, return_inverse=True)
    tp, off = tp[index], off[index]
    read_group = group[: len(reads)]

    # A read at each place, for the examples; the lowest consumer's, whatever the order of rows.
    a_read = np.full(len(tp), NONE)
    order = np.lexsort((reads.position, reads.session, reads.cid))[::-1]
    a_read[read_group[order]] = order

    who = np.concatenate([_identities(rows), acked])
    first = np.full(len(tp), NONE)
    first[group] = who
    conflict = np.zeros(len(tp), np.bool_)
    conflict[group[who != first[group]]] = True
    phantom = np.zeros(len(tp), np.bool_)
    phantom[read_group[_phantoms(rows)]] = True
    for kind, found in (("conflicting_offset", conflict), ("phantom", phantom)):
        if found.any():
            yield offset_findings(rows, kind, tp[found], off[found], a_read[found])

    at, cid = _skipped(delivery, tp, off, read_group)
    if len(at):
        yield offset_findings(rows, "skipped", tp[at], off[at], a_read[at], cid)


def _identities(rows: Rows) -> Ints:
    """For every read a number that says which record was read; for one that was sent, its index in ``sent``."""
    reads = rows.reads
    unsent = np.flatnonzero(rows.record == NONE)
    crc = np.where(reads.named, NONE, reads.crc)  # A name says enough, without one the content must.
    seq = reads.seq[unsent]
    named = reads.named[unsent].astype(np.int64)
    result = rows.record.copy()
    _, ranks = np.unique(joint_key(reads.pid[unsent], seq, named, crc[unsent]), return_inverse=True)
    result[unsent] = len(rows.sent) + ranks
    return result


def _phantoms(rows: Rows) -> Flags:
    sent, reads, log = rows.sent, rows.reads, rows.log
    result: Flags = rows.record == NONE
    ours = np.flatnonzero(~result)
    of = rows.record[ours]
    other_topic = log.tid[sent.tp[of]] != log.tid[reads.tp[ours]]
    other_partition = (sent.off[of] == NONE) & log.known[sent.tp[of]] & (sent.tp[of] != reads.tp[ours])
    result[ours] = other_topic | other_partition
    return result


def _skipped(delivery: Delivery, tp: Ints, off: Ints, read_group: Ints) -> tuple[Ints, Ints]:
    """The places (sorted by `tp` and `off`) that a live consumer was not handed, each with the consumer."""
    rows, sent, reads, log = delivery.rows, delivery.rows.sent, delivery.rows.reads, delivery.rows.log
    of = np.where(rows.record == NONE, 0, rows.record)
    txo = np.where(rows.record == NONE, NONE, sent.txo[of]) if len(sent) else np.full(len(reads), NONE)
    in_rc_drain = delivery.any_read(reads.drain & reads.rc)
    committed = in_rc_drain[of] if len(sent) else np.zeros(len(reads), np.bool_)
    to_all = (txo != ABORTED) & ((txo != IN_DOUBT) | committed)
    drained, shown = np.zeros(len(tp), np.bool_), np.zeros(len(tp), np.bool_)
    drained[read_group[reads.drain]] = True
    shown[read_group[reads.drain & to_all]] = True
    drained &= off >= log.below[tp]
    shown &= drained

    live = np.flatnonzero(~reads.drain)
    by_group = defaultdict(list)
    for cid, consumer in enumerate(rows.consumers):
        if consumer.live:
            by_group[consumer.group].append(cid)
    order = live[np.argsort(reads.cid[live], kind="stable")]
    starts = np.searchsorted(reads.cid[order], np.arange(len(rows.consumers) + 1))
    tp_starts = np.searchsorted(tp, np.arange(len(rows.partitions) + 1))
    handed = np.zeros(len(tp), np.bool_)
    found: list[tuple[Ints, int]] = []
    for cids in by_group.values():
        of_group = np.concatenate([order[starts[cid] : starts[cid + 1]] for cid in cids])
        handed[read_group[of_group]] = True
        for cid in cids:
            own = order[starts[cid] : starts[cid + 1]]
            wanted = shown if reads.rc[own].any() else drained
            own_groups = np.sort(read_group[own])
            for partition in np.unique(tp[own_groups]):
                within = own_groups[
                    np.searchsorted(own_groups, tp_starts[partition]) : np.searchsorted(
                        own_groups, tp_starts[partition + 1]
                    )
                ]
                span = slice(int(within[0]), int(within[-1]) + 1)
                passed_over = np.flatnonzero(wanted[span] & ~handed[span]) + span.start
                if len(passed_over):
                    found.append((passed_over, cid))
        handed[read_group[of_group]] = False
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([at for at, _ in found]), np.repeat([cid for _, cid in found], [len(at) for at, _ in found])
