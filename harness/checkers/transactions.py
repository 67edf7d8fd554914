"""Checks that each transaction is there as a whole or not at all, and that read_committed hides aborted ones.

Kinds: partial_transaction, aborted_read.

* partial_transaction: a committed transaction has an acked record that is in no drain. Or an indeterminate transaction
  has, failed records aside, some in a read_committed drain and others in none. Only read_committed drains count
  there, since another drain does not show whether the transaction was committed. The verdict is unknown if every
  missing record lies beyond what was drained. A record at an unknown place counts as beyond, unless its partition (if
  unknown, every partition of its topic) was drained to the end and nothing there can have been deleted or compacted.
* aborted_read: a read_committed consumer was handed a record of an aborted transaction. An indeterminate transaction
  was aborted if one of its records is in a drain, and a read_committed drain passed the record without showing it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.checkers.columns import NONE, Flags, Ints
from harness.checkers.delivery import Delivery
from harness.checkers.encoded_history import ABORTED, FAILED, IN_DOUBT
from harness.checkers.findings import read_findings, transaction_findings
from harness.checkers.verdict import Anomaly, VerdictWord
from harness.errors import HistoryError


def check_transactions(delivery: Delivery) -> Iterator[Anomaly]:
    """Find the kinds of this module.

    :raises HistoryError: a transaction has records of two outcomes
    """
    rows, sent, reads = delivery.rows, delivery.rows.sent, delivery.rows.reads
    if not rows.transactions:
        return
    inside = np.flatnonzero(sent.transaction != NONE)
    outcome = np.full(len(rows.transactions), NONE)
    outcome[sent.transaction[inside]] = sent.txo[inside]
    two = np.unique(sent.transaction[inside][sent.txo[inside] != outcome[sent.transaction[inside]]])
    if len(two):
        raise HistoryError(
            f"history/produced has {len(two)} transactions of two outcomes, e.g. {rows.transactions[two[0]]}"
        )

    aborted = reads.rc[delivery.ours] & (sent.txo[delivery.of] == ABORTED)
    found = np.union1d(delivery.ours[aborted], _reads_of_aborted_in_doubt(delivery))
    if len(found):
        yield read_findings(rows, "aborted_read", found)

    def of_any(records: Flags) -> Flags:
        """The transactions of any of the records."""
        result = np.zeros(len(rows.transactions), np.bool_)
        result[sent.transaction[np.flatnonzero(records & (sent.transaction != NONE))]] = True
        return result

    in_doubt = (sent.txo == IN_DOUBT) & (sent.outcome != FAILED)
    in_rc_drain = delivery.any_read(reads.drain & reads.rc)
    unseen = in_doubt & ~in_rc_drain & ~delivery.excused
    partial = of_any(delivery.missing) | (of_any(unseen) & of_any(in_doubt & in_rc_drain))
    sure = of_any((delivery.missing & delivery.passed) | (unseen & delivery.rc_passed))
    if partial.any():
        shown = np.concatenate([np.flatnonzero(partial & sure), np.flatnonzero(partial & ~sure)])
        leads_to: VerdictWord = "invalid" if (partial & sure).any() else "unknown"
        yield transaction_findings(rows, "partial_transaction", shown, leads_to)


def _reads_of_aborted_in_doubt(delivery: Delivery) -> Ints:
    """The reads by live read_committed consumers of indeterminate transactions that, as drains show, were aborted."""
    sent, reads, log = delivery.rows.sent, delivery.rows.reads, delivery.rows.log
    only_uncommitted = delivery.in_drain & ~delivery.any_read(reads.drain & reads.rc)
    counted = (sent.txo == IN_DOUBT) & only_uncommitted
    candidates = delivery.ours[counted[delivery.of] & (reads.rc & ~reads.drain)[delivery.ours]]
    tp, off, record = reads.tp[candidates], reads.off[candidates], delivery.rows.record[candidates]
    passed = (log.rc_to_end[tp] | (off < log.rc_past[tp])) & (off >= log.below[tp])
    result: Ints = candidates[passed & ~delivery.replaced(record, tp, off)]
    return result
