"""Are transactions all there or not at all, and does nobody who asked for committed records see an aborted one?

Kinds: aborted_read, partial_transaction.

Of a committed transaction every acked record must be in some drain; one that is missing is enough, and so are all. Of
an indeterminate one, either all records whose sending didn't fail are in a read_committed drain, or none. Corners:

* What was drained is, for an indeterminate transaction, what read_committed drains got past: another drain can't tell
  whether it was committed.
* A read_committed consumer was handed a record of an indeterminate transaction that a read_committed drain got past and
  was not shown, though it is there, as another drain tells: the transaction came to an end, and it was aborted.
* A record whose place nobody knows (neither acked nor read) lies beyond what was drained, unless its partition (where
  that is unknown, all of its topic's) was drained to the end and nothing there can have been deleted or compacted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.checkers.delivery import Delivery
from harness.checkers.encoded_history import ABORTED, FAILED, IN_DOUBT, NONE, Flags
from harness.checkers.findings import Findings, read_findings, transaction_findings
from harness.errors import HistoryError


def check_transactions(delivery: Delivery) -> Iterator[Findings]:
    """Findings of this family.

    :raises HistoryError: a transaction has records of two outcomes
    """
    rows, sent, reads = delivery.rows, delivery.rows.sent, delivery.rows.reads
    if not rows.transactions:
        return
    n = len(rows.transactions)
    inside = np.flatnonzero(sent.transaction != NONE)
    outcome = np.full(n, NONE)
    outcome[sent.transaction[inside]] = sent.txo[inside]
    two = np.unique(sent.transaction[inside][sent.txo[inside] != outcome[sent.transaction[inside]]])
    if len(two):
        name = rows.transactions[int(two[0])]
        raise HistoryError(f"history/produced has {len(two)} transactions of two outcomes, e.g. {name}")

    aborted = np.zeros(len(reads), np.bool_)
    aborted[delivery.ours] = reads.rc[delivery.ours] & (sent.txo[delivery.of] == ABORTED)
    aborted |= _of_no_commit(delivery)
    if aborted.any():
        yield read_findings(rows, "aborted_read", aborted)

    def of_any(chosen: Flags) -> Flags:
        result = np.zeros(n, np.bool_)
        result[sent.transaction[np.flatnonzero(chosen & (sent.transaction != NONE))]] = True
        return result

    in_doubt = (sent.txo == IN_DOUBT) & (sent.outcome != FAILED)
    in_rc_drain = delivery.any_read(reads.drain & reads.rc)
    unseen = in_doubt & ~in_rc_drain & ~delivery.excused
    partial = of_any(delivery.missing) | (of_any(unseen) & of_any(in_doubt & in_rc_drain))
    # Only of those of a transaction that is there in part: a missing record of one that is not there is none.
    sure = of_any((delivery.missing & delivery.passed) | (unseen & delivery.rc_passed))
    for found, unsure in ((partial & sure, False), (partial & ~sure, True)):
        if found.any():
            yield transaction_findings(rows, "partial_transaction", np.flatnonzero(found), unsure=unsure)


def _of_no_commit(delivery: Delivery) -> Flags:
    """Reads of committed records alone that gave one of a transaction that, as drains tell, was then aborted."""
    sent, reads, log = delivery.rows.sent, delivery.rows.reads, delivery.rows.log
    only_uncommitted = delivery.in_drain & ~delivery.any_read(reads.drain & reads.rc)
    counted = (sent.txo == IN_DOUBT) & only_uncommitted
    candidates = delivery.ours[counted[delivery.of] & (reads.rc & ~reads.drain)[delivery.ours]]
    tp, off, record = reads.tp[candidates], reads.off[candidates], delivery.rows.record[candidates]
    passed = (log.rc_to_end[tp] | (off < log.rc_past[tp])) & (off >= log.below[tp])
    result = np.zeros(len(reads), np.bool_)
    result[candidates[passed & ~delivery.replaced(record, tp, off)]] = True
    return result
