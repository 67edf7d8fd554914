"""Of every record that was sent: is it there, once, where it was acked, and as it was sent?

Kinds: lost, undrained, vanished, duplicated, resent, corrupted, misplaced, failed_but_present.

Corners that the contract leaves open, and how they are judged here (never in favour of a broken run, never against a
right one):

* A record acked without an offset, or in an unknown partition, is lost only where its partition (all of its topic's)
  was drained to the end and nothing there can have been deleted or compacted; else it is undrained.
* A record is in a drain if any drain was handed it, wherever and in whatever isolation; that it lies elsewhere than
  it should is another kind.
* A drain got past an offset if its position is higher, or if it was handed a higher one, whatever it noted.
* A record that a compacted topic may drop is not undrained either: its absence would mean nothing. What replaces it
  is *another* record with its key that was sent to the same topic, at a higher offset of the same partition; a record
  without a key is never replaced.
* A record is vanished if, of the places where live consumers were handed it, there is one that a drain passed and
  that is neither deleted nor replaced. Records of aborted transactions never are.
* Only records that were sent can be duplicated; what nobody sent is a phantom wherever it is.
* What Kafka promises an idempotent producer is of one session, its producer id with its epoch (KIP-98). A client that
  takes a new epoch sends anew what it has no answer to, and doubles it by itself: librdkafka does, on *all* partitions,
  when a broker refuses a batch that has overtaken another on its way (its issue 4953). Where run.json says in which
  session's batches the offsets lie (``producer_sessions``; the harness asks the segments if anything is there twice and
  a broker has refused such a batch), a record is resent and not duplicated if it looks as such a client leaves it: not
  in a transaction, all copies in one partition and handed to drains, in batches of one producer id whose epochs rise
  with the offsets, and acked, if it was, at the last one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from harness.checkers.encoded_history import (
    ABORTED,
    FAILED,
    IN_DOUBT,
    INDETERMINATE,
    NO_TRANSACTION,
    NONE,
    EncodedHistory,
    Flags,
    Ints,
    joint_key,
    joint_keys,
)
from harness.checkers.findings import Findings, record_findings
from harness.checkers.settings import Session


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What the reads say of every record; the columns are as long as ``rows.sent`` unless said otherwise."""

    rows: EncodedHistory
    sessions: Mapping[tuple[str, int], Sequence[Session]]
    """As :attr:`harness.checkers.settings.RunSettings.producer_sessions`."""

    @cached_property
    def ours(self) -> Ints:
        """The reads, by index, of records that were sent."""
        return np.flatnonzero(self.rows.record != NONE)

    @cached_property
    def of(self) -> Ints:
        """For each of :attr:`ours`, the index of its record."""
        return self.rows.record[self.ours]

    def any_read(self, chosen: Flags) -> Flags:
        """Which records have a read among `chosen` (as long as ``rows.reads``)."""
        result = np.zeros(len(self.rows.sent), np.bool_)
        result[self.of[chosen[self.ours]]] = True
        return result

    @cached_property
    def present(self) -> Flags:
        """Handed to any consumer."""
        return self.any_read(np.ones(len(self.rows.reads), np.bool_))

    @cached_property
    def in_drain(self) -> Flags:
        """Handed to any drain."""
        return self.any_read(self.rows.reads.drain)

    @cached_property
    def a_read(self) -> Ints:
        """A read of the record, by index, the same one whatever the order of rows; NONE where there is none."""
        reads = self.rows.reads
        order = np.lexsort((reads.off[self.ours], reads.tp[self.ours]))[::-1]
        result = np.full(len(self.rows.sent), NONE)
        result[self.of[order]] = self.ours[order]
        return result

    @cached_property
    def tp(self) -> Ints:
        """Where the record lies, as far as is known: where it was acked, else read, else sent to."""
        sent, reads = self.rows.sent, self.rows.reads
        if not len(reads):
            return sent.tp
        return np.where((sent.off == NONE) & (self.a_read != NONE), reads.tp[self.a_read], sent.tp)

    @cached_property
    def off(self) -> Ints:
        """The offset that goes with :attr:`tp`; NONE where it isn't known."""
        sent, reads = self.rows.sent, self.rows.reads
        if not len(reads):
            return sent.off
        return np.where((sent.off == NONE) & (self.a_read != NONE), reads.off[self.a_read], sent.off)

    @cached_property
    def excused(self) -> Flags:
        """The scenario itself can have made the record go: deleted it, or had it compacted away."""
        known = self.off != NONE
        below: Flags = known & (self.off < self.rows.log.below[self.tp])
        replaced = self.replaced(np.arange(len(self.rows.sent)), self.tp, self.off)
        excused: Flags = below | (known & replaced)
        return excused

    @cached_property
    def missing(self) -> Flags:
        """Counts as written, is in no drain, and is not excused."""
        return self.rows.sent.written & ~self.in_drain & ~self.excused

    @cached_property
    def passed(self) -> Flags:
        """Some drain was where the record lies; of one whose place isn't known, only if nothing can excuse it."""
        return self._passed(self.rows.log.past, self.rows.log.to_end)

    @cached_property
    def rc_passed(self) -> Flags:
        """Some read_committed drain was where the record lies."""
        return self._passed(self.rows.log.rc_past, self.rows.log.rc_to_end)

    def _passed(self, past: Ints, to_end: Flags) -> Flags:
        log = self.rows.log
        excusable = (log.below[self.tp] > 0) | (log.compacted[self.tp] & (self.rows.sent.key != NONE))
        return np.where(self.off != NONE, to_end[self.tp] | (self.off < past[self.tp]), to_end[self.tp] & ~excusable)

    def replaced(self, record: Ints, tp: Ints, off: Ints) -> Flags:
        """Whether compaction may drop `record` from (`tp`, `off`), all three of one length.

        It may if another record of the same key lies later in the partition and counts as written or is in a drain.
        """
        sent, reads, log = self.rows.sent, self.rows.reads, self.rows.log
        if not log.compacted.any():
            return np.zeros(len(record), np.bool_)
        acked = np.flatnonzero(sent.written & (sent.off != NONE) & (sent.key != NONE))
        drained = self.ours[reads.drain[self.ours] & (sent.key[self.of] != NONE)]
        by_record = np.concatenate([acked, self.rows.record[drained]])
        by_off = np.concatenate([sent.off[acked], reads.off[drained]])
        by_place, asked = joint_keys(
            (np.concatenate([sent.tp[acked], reads.tp[drained]]), tp), (sent.key[by_record], sent.key[record])
        )
        # Per partition and key, the highest offset, and the highest of any other record than that one.
        order = np.lexsort((by_off, by_place))[::-1]
        by_place, by_off, by_record = by_place[order], by_off[order], by_record[order]
        places, first = np.unique(by_place, return_index=True)
        top_off, top_record = by_off[first], by_record[first]
        group = np.searchsorted(places, by_place)
        other = np.flatnonzero(by_record != top_record[group])
        second = np.full(len(places), NONE)
        np.maximum.at(second, group[other], by_off[other])
        if not len(places):
            return np.zeros(len(record), np.bool_)
        at = np.minimum(np.searchsorted(places, asked), len(places) - 1)
        later = np.where(top_record[at] == record, second[at], top_off[at])
        found: Flags = (places[at] == asked) & (sent.key[record] != NONE) & log.compacted[tp] & (later > off)
        return found

    @cached_property
    def indeterminate_present(self) -> int:
        """How many indeterminate records were handed to any consumer."""
        return int((self.present & (self.rows.sent.outcome == INDETERMINATE)).sum())


def check_delivery(delivery: Delivery) -> Iterator[Findings]:
    """Findings of this family."""
    rows, sent, reads = delivery.rows, delivery.rows.sent, delivery.rows.reads
    ours, of = delivery.ours, delivery.of

    place = joint_key(reads.tp, reads.off)
    first = np.full(len(sent), NONE)
    first[of] = place[ours]
    elsewhere = np.zeros(len(reads), np.bool_)
    elsewhere[ours] = place[ours] != first[of]
    bad_crc = np.zeros(len(reads), np.bool_)
    bad_crc[ours] = reads.crc[ours] != sent.crc[of]
    at_ack = np.zeros(len(reads), np.bool_)
    at_ack[ours] = (reads.tp[ours] == sent.tp[of]) & (reads.off[ours] == sent.off[of])

    doubled = delivery.any_read(elsewhere)
    resent = _resent(delivery, doubled)
    kinds = {
        "lost": delivery.missing & delivery.passed,
        "undrained": delivery.missing & ~delivery.passed,
        "vanished": _vanished(delivery),
        "duplicated": doubled & ~resent,
        "resent": resent,
        "corrupted": delivery.any_read(bad_crc),
        "misplaced": (sent.off != NONE) & delivery.present & ~delivery.any_read(at_ack),
        "failed_but_present": (sent.outcome == FAILED) & delivery.present,
    }
    for kind, found in kinds.items():
        records = np.flatnonzero(found)
        if len(records):
            yield record_findings(rows, kind, records, delivery.tp[records], delivery.off[records])


def _vanished(delivery: Delivery) -> Flags:
    sent, reads, log = delivery.rows.sent, delivery.rows.reads, delivery.rows.log
    rc_live = delivery.any_read(reads.rc & ~reads.drain)
    counted = ~delivery.in_drain & (sent.txo != ABORTED) & ((sent.txo != IN_DOUBT) | rc_live)
    candidates = delivery.ours[counted[delivery.of]]  # All of them live: none of these records is in a drain.
    tp, off, record = reads.tp[candidates], reads.off[candidates], delivery.rows.record[candidates]
    gone = (log.to_end[tp] | (off < log.past[tp])) & (off >= log.below[tp]) & ~delivery.replaced(record, tp, off)
    result = np.zeros(len(sent), np.bool_)
    result[record[gone]] = True
    return result


def _resent(delivery: Delivery, doubled: Flags) -> Flags:
    """Those of the doubled records that their client itself wrote anew, in another epoch."""
    result = np.zeros_like(doubled)
    if not delivery.sessions:
        return result
    rows, reads = delivery.rows, delivery.rows.reads
    drained: dict[int, dict[tuple[int, int], bool]] = defaultdict(dict)
    for read, record in zip(delivery.ours, delivery.of, strict=True):
        if doubled[record] and rows.sent.txo[record] == NO_TRANSACTION:
            copies, place = drained[int(record)], (int(reads.tp[read]), int(reads.off[read]))
            copies[place] = copies.get(place, False) or bool(reads.drain[read])
    for record, copies in drained.items():
        places = sorted(copies)
        sessions = [session for tp, off in places if (session := _session(delivery, tp, off)) is not None]
        result[record] = (
            len(sessions) == len(places)
            and all(copies.values())
            and places[0][0] == places[-1][0]
            and all(a.producer_id == b.producer_id and a.epoch < b.epoch for a, b in pairwise(sessions))
            and rows.sent.off[record] in (NONE, places[-1][1])
        )
    return result


def _session(delivery: Delivery, tp: int, off: int) -> Session | None:
    """The producer session in whose batch the offset lies, as far as is known."""
    partition = delivery.rows.partitions[tp]
    sessions = delivery.sessions.get((partition.topic, partition.partition), ())
    at = bisect_right(sessions, off, key=lambda session: session.first) - 1
    return sessions[at] if at >= 0 and off <= sessions[at].last else None
