"""Checks of every place (topic, partition, offset) that was acked or read: which record is there, and who got it?

Kinds, by place:

* conflicting_offset: acks and reads there are of two different records.
* phantom: a record was read there that no producer sent there.
* skipped: a drain has it, and a live consumer passed it by: it lies between the first and the last offset that the
  consumer was handed in the partition, and no consumer of the group was handed it.
* hidden: a drain passed it and was not handed it, though another drain has it.
* held_back (by partition): all read_committed drains stopped before a record that counts as written and that another
  drain has (so the verdict is unknown).

Skipped and hidden expect only what the reader's isolation shows. Some cases are ambiguous and are judged like this:

* A record that is not one of ours has no name. Two such reads are of one record if producer, seq and CRC-32 are equal.
* A record of ours is a phantom in a topic that it was not sent to. In another partition of its topic, it is `misplaced`
  if it was acked at a known offset; else it is a phantom, if the partition that it was sent to is known.
* read_committed shows a phantom too, since it belongs to no transaction. It shows a record of an indeterminate
  transaction if a read_committed drain has it. read_uncommitted shows all that is in the log.
* A record whose promised row in ``produced`` is missing is no phantom, and it may have been aborted.
* A consumer that read with both isolations is expected to show only what read_committed shows.
* A drain is in no group: it reads everything for itself.
* If two consumers of a group read one range of offsets each, and none of the group read between the ranges, the one
  that continued above passed over what lies between. If one of the group reads read_committed, only what that shows is
  expected there.
* Compaction excuses no live consumer, since a drain has the record: it was there. A drain that came later may have
  missed it, if another record may have replaced it or if its key is unknown.
* A drain is expected to show what lies below its own position. What lies behind an open transaction is held_back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.checkers.columns import NONE, Flags, Ints, joint_key, run_bounds
from harness.checkers.delivery import Delivery
from harness.checkers.encoded_history import ABORTED, IN_DOUBT, EncodedHistory
from harness.checkers.findings import offset_findings
from harness.checkers.settings import Group
from harness.checkers.verdict import Anomaly

Found = tuple[Ints, Ints]
"""Places, by index, and for each place the consumer that was not handed its record."""


def check_places(delivery: Delivery) -> Iterator[Anomaly]:
    """Find the kinds of this module."""
    rows, sent, reads = delivery.rows, delivery.rows.sent, delivery.rows.reads
    acked = np.flatnonzero(sent.off != NONE)
    tp, off = np.concatenate([reads.tp, sent.tp[acked]]), np.concatenate([reads.off, sent.off[acked]])
    _, index, group = np.unique(joint_key(tp, off), return_index=True, return_inverse=True)
    tp, off = tp[index], off[index]
    places = _Places(rows=rows, tp=tp, off=off, of_read=group[: len(reads)])

    def findings(kind: str, at: Ints, cid: Ints | None = None) -> Iterator[Anomaly]:
        if len(at):
            yield offset_findings(rows, kind, tp[at], off[at], places.a_read[at], cid)

    who = np.concatenate([_identities(rows), acked])
    one = np.full(len(tp), NONE)
    one[group] = who
    yield from findings("conflicting_offset", np.unique(group[who != one[group]]))
    yield from findings("phantom", np.unique(places.of_read[_phantoms(rows)]))
    to_all = _to_all(delivery)
    yield from findings("skipped", *_skipped(places, to_all))
    yield from findings("hidden", *_hidden(places, delivery, to_all))
    held_back, past = _held_back(places)
    if len(held_back):
        yield offset_findings(rows, "held_back", held_back, past, np.full(len(held_back), NONE))


def _identities(rows: EncodedHistory) -> Ints:
    """A number per read, equal for reads of the same record; of a record that was sent, its index in ``sent``."""
    reads = rows.reads
    unsent = np.flatnonzero(rows.record == NONE)
    crc = np.where(reads.named, NONE, reads.crc)  # A read with a name is of that record, whatever its CRC-32.
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
    other_topic = log.topic_id[sent.tp[of]] != log.topic_id[reads.tp[ours]]
    other_partition = (sent.off[of] == NONE) & log.known[sent.tp[of]] & (sent.tp[of] != reads.tp[ours])
    result[ours] = other_topic | other_partition
    return result


@dataclass(frozen=True, kw_only=True)
class _Places:
    """All places that were acked or read, sorted by `tp` and `off`.

    :ivar of_read: for every read, the index of its place
    """

    rows: EncodedHistory
    tp: Ints
    off: Ints
    of_read: Ints

    @cached_property
    def a_read(self) -> Ints:
        """A read at each place, the first one by consumer, session and position; NONE where there is only an ack."""
        reads = self.rows.reads
        result = np.full(len(self.tp), NONE)
        order = np.lexsort((reads.position, reads.session, reads.cid))[::-1]
        result[self.of_read[order]] = order
        return result

    @cached_property
    def starts(self) -> Ints:
        """By partition, the index of its first place; the last entry is the number of places."""
        return np.searchsorted(self.tp, np.arange(len(self.rows.places) + 1))

    def any_read(self, chosen: Flags | Ints) -> Flags:
        """Which places have one of the `chosen` reads."""
        result = np.zeros(len(self.tp), np.bool_)
        result[self.of_read[chosen]] = True
        return result

    def wanted(self, drained: Flags, to_all: Flags) -> tuple[Flags, Flags]:
        """The places that must be shown to read_uncommitted, and those that must be shown to read_committed.

        :param drained: the reads by drains that show that something is there
        :param to_all: the reads of records that read_committed shows too
        """
        there = self.off >= self.rows.log.below[self.tp]
        return self.any_read(drained) & there, self.any_read(drained & to_all) & there


def _to_all(delivery: Delivery) -> Flags:
    """The reads of records that read_committed shows too."""
    rows, sent, reads = delivery.rows, delivery.rows.sent, delivery.rows.reads
    if not len(sent):
        return ~rows.unrecorded
    txo = np.where(rows.record == NONE, NONE, sent.txo[rows.record])
    committed = delivery.any_read(reads.drain & reads.rc)[rows.record]
    result: Flags = (txo != ABORTED) & ((txo != IN_DOUBT) | committed) & ~rows.unrecorded
    return result


def _skipped(places: _Places, to_all: Flags) -> Found:
    """The places that live consumers passed over, each with the consumer that continued above it."""
    rows, reads = places.rows, places.rows.reads
    everything, shown = places.wanted(reads.drain, to_all)
    groups: dict[Group, list[int]] = defaultdict(list)
    for cid, consumer in enumerate(rows.consumers):
        if consumer.live:
            groups[consumer.group].append(cid)
    found: list[tuple[Ints, int]] = []
    for members in groups.values():
        own = {cid: np.unique(places.of_read[reads.cid == cid]) for cid in members}
        unread = np.ones(len(places.tp), np.bool_)
        for each in own.values():
            unread[each] = False
        expected = {cid: unread & (shown if rows.consumers[cid].read_committed else everything) for cid in members}
        of_group = np.logical_and.reduce(list(expected.values()))
        spans = []
        for cid, each in own.items():
            first, last = run_bounds(places.tp[each])
            spans += [(start, end, cid) for start, end in zip(each[first].tolist(), each[last].tolist(), strict=True)]
        reached = -1
        for start, end, cid in sorted(spans):
            found.append((np.flatnonzero(expected[cid][start:end]) + start, cid))
            if reached >= places.starts[places.tp[start]]:  # Another member read in this partition below.
                found.append((np.flatnonzero(of_group[reached + 1 : start]) + reached + 1, cid))
            reached = max(reached, end)
    return _together(found)


def _hidden(places: _Places, delivery: Delivery, to_all: Flags) -> Found:
    """The places that drains passed and were not handed."""
    rows, reads, log = places.rows, places.rows.reads, places.rows.log
    drained = reads.drain.copy()
    if log.compacted.any():
        at = np.flatnonzero(drained & log.compacted[reads.tp])
        record = rows.record[at]
        drained[at] = (record != NONE) & ~delivery.replaced(record, reads.tp[at], reads.off[at])
    everything, shown = places.wanted(drained, to_all)
    found = []
    for cid, reached in rows.reached.items():
        passed_over = ~places.any_read(reads.cid == cid)
        passed_over &= shown if rows.consumers[cid].read_committed else everything
        for tp, past in reached.items():
            start, end = places.starts[tp : tp + 2]
            end = start + np.searchsorted(places.off[start:end], past)
            found.append((np.flatnonzero(passed_over[start:end]) + start, cid))
    return _together(found)


def _held_back(places: _Places) -> tuple[Ints, Ints]:
    """The partitions that are held back, and the offset where the last read_committed drain stopped."""
    rows, reads, sent = places.rows, places.rows.reads, places.rows.sent
    past = np.full(len(rows.places), -1)
    for cid, reached in rows.reached.items():
        for tp, offset in reached.items() if rows.consumers[cid].read_committed else ():
            past[tp] = max(past[tp], offset)
    ours = np.flatnonzero(reads.drain & (rows.record != NONE))
    ours = ours[sent.written[rows.record[ours]] & (reads.off[ours] >= rows.log.below[reads.tp[ours]])]
    stopped = past[reads.tp[ours]]
    held_back = np.unique(reads.tp[ours[(stopped >= 0) & (reads.off[ours] >= stopped)]])
    return held_back, past[held_back]


def _together(found: Sequence[tuple[Ints, int]]) -> Found:
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([at for at, _ in found]), np.repeat([cid for _, cid in found], [len(at) for at, _ in found])
