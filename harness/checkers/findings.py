"""Makes an anomaly of what a checker found: counts the findings and names the first ones as examples.

A finding is a record, an offset, a read or a transaction, depending on the kind. The order of the examples does not
depend on the order of the rows. An example has what is known of it: producer, seq, topic, partition and offset; also
consumer, session and position of a read; or the transaction.
"""

from __future__ import annotations

import numpy as np

from harness.checkers.columns import NONE, Ints
from harness.checkers.drain_extent import NOWHERE
from harness.checkers.encoded_history import EncodedHistory
from harness.checkers.verdict import KINDS, MAX_EXAMPLES, Anomaly, Example, VerdictWord


def record_findings(rows: EncodedHistory, kind: str, records: Ints, tp: Ints, off: Ints) -> Anomaly:
    """The anomaly for findings that are records: indices into ``sent``, and the place of each."""
    sent = rows.sent
    top = _first(tp, off, sent.pid[records], sent.seq[records])
    examples = tuple(
        {"producer": rows.producers[sent.pid[records[i]]], "seq": int(sent.seq[records[i]])}
        | _place(rows, tp[i], off[i])
        for i in top
    )
    return _anomaly(kind, len(records), examples)


def read_findings(rows: EncodedHistory, kind: str, found: Ints) -> Anomaly:
    """The anomaly for findings that are reads: indices into ``reads``."""
    reads = rows.reads
    top = found[
        _first(reads.tp[found], reads.off[found], reads.cid[found], reads.session[found], reads.position[found])
    ]
    examples = tuple(
        {
            "consumer": rows.consumers[reads.cid[read]].name,
            "session": int(reads.session[read]),
            "position": int(reads.position[read]),
        }
        | _record_read(rows, read)
        | _place(rows, reads.tp[read], reads.off[read])
        for read in top
    )
    return _anomaly(kind, len(found), examples)


def offset_findings(
    rows: EncodedHistory, kind: str, tp: Ints, off: Ints, read: Ints, cid: Ints | None = None
) -> Anomaly:
    """The anomaly for findings that are offsets, or offsets of a consumer.

    :param read: for each offset, the index of a read there; NONE if there is only an ack
    :param cid: for each offset, the consumer
    """
    top = _first(tp, off, np.zeros(len(tp), np.int64) if cid is None else cid)
    examples = tuple(
        ({} if cid is None else {"consumer": rows.consumers[cid[i]].name})
        | ({} if read[i] == NONE else _record_read(rows, read[i]))
        | _place(rows, tp[i], off[i])
        for i in top
    )
    return _anomaly(kind, len(tp), examples)


def transaction_findings(rows: EncodedHistory, kind: str, transactions: Ints, leads_to: VerdictWord) -> Anomaly:
    """The anomaly for findings that are transactions: indices, in the order of the examples."""
    examples = tuple({"transaction": rows.transactions[i]} for i in transactions[:MAX_EXAMPLES])
    return Anomaly(kind=kind, count=len(transactions), leads_to=leads_to, examples=examples)


def _anomaly(kind: str, count: int, examples: tuple[Example, ...]) -> Anomaly:
    return Anomaly(kind=kind, count=count, leads_to=KINDS[kind].leads_to, examples=examples)


def _first(*columns: Ints) -> Ints:
    """The indices of the first rows in the order of `columns`, the first of them the most significant."""
    return np.lexsort(columns[::-1])[:MAX_EXAMPLES]


def _record_read(rows: EncodedHistory, read: np.integer) -> Example:
    reads = rows.reads
    return {
        "producer": None if reads.pid[read] == NONE else rows.producers[reads.pid[read]],
        "seq": int(reads.seq[read]) if reads.named[read] else None,
    }


def _place(rows: EncodedHistory, tp: np.integer, off: np.integer) -> Example:
    topic, partition = rows.places[int(tp)]
    return {
        "topic": topic,
        "partition": None if partition == NOWHERE else partition,
        "offset": None if off == NONE else int(off),
    }
