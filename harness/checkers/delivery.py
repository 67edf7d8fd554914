"""Checks of every record that was sent: is it there, once, where it was acked, and unchanged?

Kinds, by record:

* lost: it counts as written and is in no drain, although a drain passed its place; and it is not excused. It is excused
  if the scenario deleted it, or if compaction may have dropped it.
* undrained: as lost, but no drain passed its place (so the verdict is unknown).
* vanished: a live consumer was handed it, and it is in no drain, although a drain passed that place and nothing excuses
  it there. Records of aborted transactions never vanish. Records of indeterminate ones vanish only if a read_committed
  consumer was handed them.
* duplicated: it was read at two or more places.
* resent: as duplicated, but its client wrote it again in a new producer epoch (noted).
* corrupted: it was read with another CRC-32.
* misplaced: it was acked at one offset and read only at others.
* failed_but_present: its outcome is failed, and it was read.

Some cases are ambiguous. They are judged so that a correct run is never invalid, and a broken one never valid:

* A record acked without an offset, or in an unknown partition, is lost only if its partition (if unknown, every
  partition of its topic) was drained to the end and nothing there can have been deleted or compacted. Else it is
  undrained.
* A record is in a drain if any drain was handed it, at any place, with any isolation. A wrong place is another kind.
* A drain passed an offset if the position in its row is higher, or if it was handed a higher offset.
* A record that compaction may drop is not undrained either, since its absence would show nothing. Compaction may drop
  it if *another* record with its key was sent to the same topic and lies at a higher offset of the same partition. A
  record without a key is never dropped.
* A record that no producer sent is a phantom at each of its places, and not duplicated.
* Idempotence holds within one producer session: a producer id with its epoch (KIP-98). A client that takes a new epoch
  resends what has no answer, and may write it twice. librdkafka does so on *all* partitions when a broker refuses a
  batch that has overtaken another (its issue 4953). If run.json has ``producer_sessions``, a record is resent if
  all of this holds. It is outside transactions. All its places are in one partition, and drains were handed all of
  them. Their batches have one producer id, and epochs that rise with the offsets. If it was acked, the ack names the
  last place. The harness reads the sessions from the segments if a record is there twice and a broker has
  refused such a batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from harness.checkers.columns import NONE, Flags, Ints, joint_key, joint_keys, run_starts
from harness.checkers.encoded_history import (
    ABORTED,
    FAILED,
    IN_DOUBT,
    INDETERMINATE,
    NO_TRANSACTION,
    EncodedHistory,
)
from harness.checkers.findings import record_findings
from harness.checkers.settings import Session
from harness.checkers.verdict import Anomaly


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What the reads show about every record; the columns are as long as ``rows.sent`` unless noted otherwise.

    :ivar sessions: as :attr:`harness.checkers.settings.RunSettings.producer_sessions`
    """

    rows: EncodedHistory
    sessions: Mapping[tuple[str, int], Sequence[Session]]

    @cached_property
    def ours(self) -> Ints:
        """The reads, by index, of records that were sent."""
        return np.flatnonzero(self.rows.record != NONE)

    @cached_property
    def of(self) -> Ints:
        """For each of :attr:`ours`, the index of its record."""
        return self.rows.record[self.ours]

    def any_of_ours(self, chosen: Flags) -> Flags:
        """Which records have a read among `chosen` (as long as :attr:`ours`)."""
        result = np.zeros(len(self.rows.sent), np.bool_)
        result[self.of[chosen]] = True
        return result

    def any_read(self, chosen: Flags) -> Flags:
        """Which records have a read among `chosen` (as long as ``rows.reads``)."""
        return self.any_of_ours(chosen[self.ours])

    @cached_property
    def present(self) -> Flags:
        """Which records were handed to any consumer."""
        return self.any_of_ours(np.ones(len(self.ours), np.bool_))

    @cached_property
    def in_drain(self) -> Flags:
        """Which records were handed to any drain."""
        return self.any_read(self.rows.reads.drain)

    @cached_property
    def tp(self) -> Ints:
        """The partition of each record: where it was acked, else where it was read, else where it was sent to."""
        return self._where(self.rows.sent.tp, self.rows.reads.tp)

    @cached_property
    def off(self) -> Ints:
        """The offset that goes with :attr:`tp`; NONE if unknown."""
        return self._where(self.rows.sent.off, self.rows.reads.off)

    def _where(self, of_sent: Ints, of_reads: Ints) -> Ints:
        record, read = self._placed_by_read
        result = of_sent.copy()
        result[record] = of_reads[read]
        return result

    @cached_property
    def _placed_by_read(self) -> tuple[Ints, Ints]:
        """The records, by index, that were read but not acked at a known offset; and the lowest read of each."""
        reads, unknown = self.rows.reads, self.rows.sent.off[self.of] == NONE
        read, record = self.ours[unknown], self.of[unknown]
        order = np.lexsort((reads.off[read], reads.tp[read], record))
        first = order[run_starts(record[order])]
        return record[first], read[first]

    @cached_property
    def excused(self) -> Flags:
        """Which records the scenario deleted or compaction may have dropped; only records at known offsets."""
        below = self.off < self.rows.log.below[self.tp]
        excused: Flags = (self.off != NONE) & (below | self.replaced(np.arange(len(self.off)), self.tp, self.off))
        return excused

    @cached_property
    def missing(self) -> Flags:
        """Which records count as written, are in no drain and are not excused."""
        return self.rows.sent.written & ~self.in_drain & ~self.excused

    @cached_property
    def passed(self) -> Flags:
        """Which records' places a drain passed; a record at an unknown place only if nothing can excuse it."""
        return self._passed(self.rows.log.past, self.rows.log.to_end)

    @cached_property
    def rc_passed(self) -> Flags:
        """As :attr:`passed`, but for read_committed drains only."""
        return self._passed(self.rows.log.rc_past, self.rows.log.rc_to_end)

    def _passed(self, past: Ints, to_end: Flags) -> Flags:
        log = self.rows.log
        excusable = (log.below[self.tp] > 0) | (log.compacted[self.tp] & (self.rows.sent.key != NONE))
        return np.where(self.off != NONE, to_end[self.tp] | (self.off < past[self.tp]), to_end[self.tp] & ~excusable)

    def replaced(self, record: Ints, tp: Ints, off: Ints) -> Flags:
        """Whether compaction may drop `record` from (`tp`, `off`); all three have one length.

        It may if another record of the same key lies later in the partition and counts as written or is in a drain.
        """
        sent, (by_record, by_tp, by_off) = self.rows.sent, self._replacing
        if not len(by_record):
            return np.zeros(len(record), np.bool_)
        by_place, asked = joint_keys((by_tp, tp), (sent.key[by_record], sent.key[record]))
        # Per partition and key, the highest offset, and the highest of any other record than that one.
        order = np.lexsort((by_off, by_place))[::-1]
        by_place, by_off, by_record = by_place[order], by_off[order], by_record[order]
        places, first, group = np.unique(by_place, return_index=True, return_inverse=True)
        top_off, top_record = by_off[first], by_record[first]
        other = np.flatnonzero(by_record != top_record[group])
        second = np.full(len(places), NONE)
        np.maximum.at(second, group[other], by_off[other])
        at = np.minimum(np.searchsorted(places, asked), len(places) - 1)
        later = np.where(top_record[at] == record, second[at], top_off[at])
        found: Flags = (places[at] == asked) & (sent.key[record] != NONE) & (later > off)
        found &= self.rows.log.compacted[tp]
        return found

    @cached_property
    def _replacing(self) -> tuple[Ints, Ints, Ints]:
        """The records with a key that count as written or are in a drain: (record, tp, off), once for each place."""
        sent, reads, keyed = self.rows.sent, self.rows.reads, self.rows.sent.key != NONE
        acked = np.flatnonzero(sent.written & (sent.off != NONE) & keyed)
        drained = self.ours[reads.drain[self.ours] & keyed[self.of]]
        return (
            np.concatenate([acked, self.rows.record[drained]]),
            np.concatenate([sent.tp[acked], reads.tp[drained]]),
            np.concatenate([sent.off[acked], reads.off[drained]]),
        )

    @cached_property
    def indeterminate_present(self) -> int:
        """How many indeterminate records were handed to any consumer."""
        return int((self.present & (self.rows.sent.outcome == INDETERMINATE)).sum())


def check_delivery(delivery: Delivery) -> Iterator[Anomaly]:
    """Find the kinds of this module."""
    rows, sent, reads = delivery.rows, delivery.rows.sent, delivery.rows.reads
    ours, of = delivery.ours, delivery.of

    place = joint_key(reads.tp, reads.off)[ours]
    some_place = np.full(len(sent), NONE)
    some_place[of] = place
    doubled = delivery.any_of_ours(place != some_place[of])
    at_ack = delivery.any_of_ours((reads.tp[ours] == sent.tp[of]) & (reads.off[ours] == sent.off[of]))
    resent = _resent(delivery, doubled)
    kinds = {
        "lost": delivery.missing & delivery.passed,
        "undrained": delivery.missing & ~delivery.passed,
        "vanished": _vanished(delivery),
        "duplicated": doubled & ~resent,
        "resent": resent,
        "corrupted": delivery.any_of_ours(reads.crc[ours] != sent.crc[of]),
        "misplaced": (sent.off != NONE) & delivery.present & ~at_ack,
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
    chosen = counted[delivery.of]  # Live reads only: none of these records is in a drain.
    candidates, record = delivery.ours[chosen], delivery.of[chosen]
    tp, off = reads.tp[candidates], reads.off[candidates]
    gone = (log.to_end[tp] | (off < log.past[tp])) & (off >= log.below[tp]) & ~delivery.replaced(record, tp, off)
    result = np.zeros(len(sent), np.bool_)
    result[record[gone]] = True
    return result


def _resent(delivery: Delivery, doubled: Flags) -> Flags:
    """The doubled records that their client itself wrote again, in another epoch."""
    result = np.zeros_like(doubled)
    if not delivery.sessions:
        return result
    rows, reads = delivery.rows, delivery.rows.reads
    in_drain: dict[int, dict[tuple[int, int], bool]] = defaultdict(dict)  # by record and place
    chosen = (doubled & (rows.sent.txo == NO_TRANSACTION))[delivery.of]
    for read, record in zip(delivery.ours[chosen].tolist(), delivery.of[chosen].tolist(), strict=True):
        place = int(reads.tp[read]), int(reads.off[read])
        in_drain[record][place] = in_drain[record].get(place, False) or bool(reads.drain[read])
    for record, of_record in in_drain.items():
        places = sorted(of_record)
        sessions = [session for tp, off in places if (session := _session(delivery, tp, off)) is not None]
        result[record] = (
            len(sessions) == len(places)
            and all(of_record.values())
            and places[0][0] == places[-1][0]
            and all(a.producer_id == b.producer_id and a.epoch < b.epoch for a, b in pairwise(sessions))
            and rows.sent.off[record] in (NONE, places[-1][1])
        )
    return result


def _session(delivery: Delivery, tp: int, off: int) -> Session | None:
    """The producer session in whose batch the offset lies; None if unknown."""
    sessions = delivery.sessions.get(delivery.rows.places[tp], ())
    at = bisect_right(sessions, off, key=lambda session: session.first) - 1
    return sessions[at] if at >= 0 and off <= sessions[at].last else None
