"""Of every place (topic, partition, offset) that was acked or read: one record, ours, and shown to who should see it?

Kinds: conflicting_offset, phantom, skipped, hidden, held_back.

Corners that the contract leaves open, and how they are judged here:

* What is not one of ours has no name; two such reads are of the same record if all that was read of them (producer,
  seq, CRC-32) is the same.
* A record of ours that is read in a topic that it was not sent to is a phantom there: nobody sent it to that topic.
  So is one that was acked at no known offset and is read in another partition than the one that it was sent to, where
  that is known (for one that was, there is `misplaced`).
* A consumer that read with both isolations is asked only for what read_committed shows. A phantom belongs to no
  transaction, so everybody should see it. A record of an indeterminate transaction that only read_uncommitted drains
  have need not have been shown to a read_committed consumer; a read_uncommitted one is shown all that is in the log.
* A record whose row in ``produced`` has gone (its producer had promised one) is no phantom, and may have been aborted.
* Another consumer of the group is another live one: a drain reads everything on its own account, in no group.
* What lies between what one of a group was handed and what the next one was, and was handed to nobody of it, is put
  down to the one that has what lies next above it: it went on there. If one of the group reads read_committed, what
  read_committed doesn't show may be missing there.
* That a compacted topic may drop a record excuses no live consumer from being shown one that a drain has: it was there.
  A drain may have come later, and need not show what another record may have replaced, or what nobody knows the key of.
* A drain is asked for what lies below its own position: not for what a drain that came later found behind it, and not
  for what lies behind an open transaction (which nobody knows to be hidden: it is held_back).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.checkers.delivery import Delivery
from harness.checkers.encoded_history import ABORTED, IN_DOUBT, NONE, EncodedHistory, Flags, Ints, joint_key
from harness.checkers.findings import Findings, offset_findings

Found = tuple[Ints, Ints]
"""Places, by index, each with the consumer that wasn't handed what lies there."""


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

    places, to_all = _Places(rows=rows, tp=tp, off=off, of_read=read_group), _to_all(delivery)
    for kind, (at, cid) in (("skipped", _skipped(places, to_all)), ("hidden", _hidden(places, delivery, to_all))):
        if len(at):
            yield offset_findings(rows, kind, tp[at], off[at], a_read[at], cid)
    held_back, past = _held_back(places)
    if len(held_back):
        yield offset_findings(rows, "held_back", held_back, past, np.full(len(held_back), NONE))


def _identities(rows: EncodedHistory) -> Ints:
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


def _phantoms(rows: EncodedHistory) -> Flags:
    sent, reads, log = rows.sent, rows.reads, rows.log
    result: Flags = (rows.record == NONE) & ~rows.unrecorded
    ours = np.flatnonzero(rows.record != NONE)
    of = rows.record[ours]
    other_topic = log.tid[sent.tp[of]] != log.tid[reads.tp[ours]]
    other_partition = (sent.off[of] == NONE) & log.known[sent.tp[of]] & (sent.tp[of] != reads.tp[ours])
    result[ours] = other_topic | other_partition
    return result


@dataclass(frozen=True, kw_only=True)
class _Places:
    """All places that were acked or read, in the order of `tp` and `off`, and who was handed what there."""

    rows: EncodedHistory
    tp: Ints
    off: Ints
    of_read: Ints
    """For every read, the index of its place."""

    @cached_property
    def starts(self) -> Ints:
        """By partition, the index of its first place; one more entry for the end."""
        return np.searchsorted(self.tp, np.arange(len(self.rows.partitions) + 1))

    def any_read(self, chosen: Flags | Ints) -> Flags:
        """At which places one of the `chosen` reads was."""
        result = np.zeros(len(self.tp), np.bool_)
        result[self.of_read[chosen]] = True
        return result

    def wanted(self, drained: Flags, to_all: Flags) -> tuple[Flags, Flags]:
        """At which places something of what drains were handed (these of all reads) should have been shown to
        read_uncommitted, and to read_committed: (all of it, and what is :attr:`to_all`), but for what was deleted.
        """
        there = self.off >= self.rows.log.below[self.tp]
        return self.any_read(drained) & there, self.any_read(drained & to_all) & there


def _to_all(delivery: Delivery) -> Flags:
    """Which reads are of what read_committed shows too."""
    rows, sent, reads = delivery.rows, delivery.rows.sent, delivery.rows.reads
    if not len(sent):
        return ~rows.unrecorded
    txo = np.where(rows.record == NONE, NONE, sent.txo[rows.record])
    committed = delivery.any_read(reads.drain & reads.rc)[rows.record]
    result: Flags = (txo != ABORTED) & ((txo != IN_DOUBT) | committed) & ~rows.unrecorded
    return result


def _skipped(places: _Places, to_all: Flags) -> Found:
    """The places that live consumers were not handed, each with the consumer that is to be asked why."""
    rows, reads = places.rows, places.rows.reads
    everything, shown = places.wanted(reads.drain, to_all)
    live = np.flatnonzero(~reads.drain)
    order = live[np.argsort(reads.cid[live], kind="stable")]
    starts = np.searchsorted(reads.cid[order], np.arange(len(rows.consumers) + 1))
    groups = defaultdict(list)
    for cid, consumer in enumerate(rows.consumers):
        if consumer.live:
            groups[consumer.group].append((cid, np.sort(places.of_read[order[starts[cid] : starts[cid + 1]]])))
    found: list[tuple[Ints, int]] = []
    for members in groups.values():
        passed_over = np.ones(len(places.tp), np.bool_)
        for _, own in members:
            passed_over[own] = False
        asked = {cid: shown if rows.consumers[cid].read_committed else everything for cid, _ in members}
        of_group = shown if any(asked[cid] is shown for cid in asked) else everything
        spans = []
        for cid, own in members:
            first = np.flatnonzero(np.r_[True, places.tp[own][1:] != places.tp[own][:-1]])
            last = np.r_[first[1:], len(own)] - 1
            spans += [(start, end, cid) for start, end in zip(own[first].tolist(), own[last].tolist(), strict=True)]
        reached = -1
        for start, end, cid in sorted(spans):
            found.append((np.flatnonzero(asked[cid][start:end] & passed_over[start:end]) + start, cid))
            if reached >= places.starts[places.tp[start]]:  # A member before this one was in the partition.
                gap = slice(reached + 1, max(reached + 1, start))
                found.append((np.flatnonzero(of_group[gap] & passed_over[gap]) + gap.start, cid))
            reached = max(reached, end)
    return _together(found)


def _hidden(places: _Places, delivery: Delivery, to_all: Flags) -> Found:
    """The places that drains were not handed, each with the drain."""
    rows, reads, log = places.rows, places.rows.reads, places.rows.log
    drained = reads.drain.copy()
    if log.compacted.any():
        at = np.flatnonzero(drained & log.compacted[reads.tp])
        record = rows.record[at]
        drained[at] = (record != NONE) & ~delivery.replaced(record, reads.tp[at], reads.off[at])
    everything, shown = places.wanted(drained, to_all)
    found = []
    for cid in np.unique(rows.reached.cid):
        passed_over = ~places.any_read(reads.drain & (reads.cid == cid))
        passed_over &= shown if rows.consumers[cid].read_committed else everything
        own = rows.reached.cid == cid
        for tp, past in zip(rows.reached.tp[own], rows.reached.past[own], strict=True):
            start, end = places.starts[tp : tp + 2]
            end = start + np.searchsorted(places.off[start:end], past)
            found.append((np.flatnonzero(passed_over[start:end]) + start, int(cid)))
    return _together(found)


def _held_back(places: _Places) -> tuple[Ints, Ints]:
    """The partitions in which read_committed drains all stopped before what they should see; and where they did."""
    rows, reads, sent = places.rows, places.rows.reads, places.rows.sent
    past = np.full(len(rows.partitions), -1)
    committed = np.array([consumer.read_committed for consumer in rows.consumers], np.bool_)[rows.reached.cid]
    np.maximum.at(past, rows.reached.tp[committed], rows.reached.past[committed])
    ours = np.flatnonzero(reads.drain & (rows.record != NONE))
    ours = ours[sent.written[rows.record[ours]] & (reads.off[ours] >= rows.log.below[reads.tp[ours]])]
    tp = np.unique(reads.tp[ours[(past[reads.tp[ours]] >= 0) & (reads.off[ours] >= past[reads.tp[ours]])]])
    return tp, past[tp]


def _together(found: Sequence[tuple[Ints, int]]) -> Found:
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([at for at, _ in found]), np.repeat([cid for _, cid in found], [len(at) for at, _ in found])
