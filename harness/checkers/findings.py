"""What a checker hands to the judge: for each kind, what was found, as columns of one shape.

A finding is one counted thing (a record, an offset, a read, a transaction; the kind says which) with what is known of
where it is. Names come back only for the few that are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.checkers.drain_extent import NOWHERE
from harness.checkers.encoded_history import NONE, EncodedHistory, Flags, Ints
from harness.checkers.verdict import MAX_EXAMPLES

Example = Mapping[str, str | int | None]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All findings of one kind; columns that a kind doesn't have are left out."""

    kind: str
    count: int
    examples: tuple[Example, ...]
    unsure: bool = False
    """What is missing lies beyond what was drained, in all of them: unknown instead of invalid."""


def record_findings(rows: EncodedHistory, kind: str, records: Ints, tp: Ints, off: Ints) -> Findings:
    """Findings that are records, by their places in ``sent``; `tp` and `off` are one entry for each of them."""
    sent = rows.sent
    top = _first(tp, off, sent.pid[records], sent.seq[records])
    return Findings(
        kind=kind,
        count=len(records),
        examples=tuple(
            _record(rows, sent.pid[records[i]], sent.seq[records[i]], True) | _place(rows, tp[i], off[i]) for i in top
        ),
    )


def read_findings(rows: EncodedHistory, kind: str, found: Flags | Ints) -> Findings:
    """Findings that are reads."""
    reads = rows.reads
    at = np.flatnonzero(found) if found.dtype == np.bool_ else found
    top = at[_first(reads.tp[at], reads.off[at], reads.cid[at], reads.session[at], reads.position[at])]
    return Findings(
        kind=kind,
        count=len(at),
        examples=tuple(
            _reader(rows, i)
            | _record(rows, reads.pid[i], reads.seq[i], bool(reads.named[i]))
            | _place(rows, reads.tp[i], reads.off[i])
            for i in top
        ),
    )


def offset_findings(
    rows: EncodedHistory, kind: str, tp: Ints, off: Ints, read: Ints, cid: Ints | None = None
) -> Findings:
    """Findings that are offsets, or offsets of a consumer; `read` is a read at each, NONE where only an ack was."""
    reads = rows.reads
    who = np.zeros(len(tp), np.int64) if cid is None else cid
    top = _first(tp, off, who)
    examples = []
    for i in top:
        example: dict[str, str | int | None] = {}
        if cid is not None:
            example["consumer"] = rows.consumers[int(cid[i])].name
        if read[i] != NONE:
            example |= _record(rows, reads.pid[read[i]], reads.seq[read[i]], bool(reads.named[read[i]]))
        examples.append(example | _place(rows, tp[i], off[i]))
    return Findings(kind=kind, count=len(tp), examples=tuple(examples))


def transaction_findings(rows: EncodedHistory, kind: str, transactions: Ints, *, unsure: bool) -> Findings:
    """Findings that are transactions, by their ids."""
    top = np.sort(transactions)[:MAX_EXAMPLES]
    examples = tuple({"transaction": rows.transactions[int(i)]} for i in top)
    return Findings(kind=kind, count=len(transactions), examples=examples, unsure=unsure)


def _first(*columns: Ints) -> Ints:
    """The places of the first 20 rows in the order of `columns`, the first of them the most significant."""
    return np.lexsort(columns[::-1])[:MAX_EXAMPLES]


def _record(rows: EncodedHistory, pid: np.int64, seq: np.int64, named: bool) -> dict[str, str | int | None]:
    producer = rows.producers[int(pid)] if pid != NONE else None
    return {"producer": producer, "seq": int(seq) if named else None}


def _reader(rows: EncodedHistory, read: np.int64) -> dict[str, str | int | None]:
    reads = rows.reads
    return {
        "consumer": rows.consumers[int(reads.cid[read])].name,
        "session": int(reads.session[read]),
        "position": int(reads.position[read]),
    }


def _place(rows: EncodedHistory, tp: np.int64, off: np.int64) -> dict[str, str | int | None]:
    partition = rows.partitions[int(tp)]
    return {
        "topic": partition.topic,
        "partition": None if partition.partition == NOWHERE else partition.partition,
        "offset": None if off == NONE else int(off),
    }
