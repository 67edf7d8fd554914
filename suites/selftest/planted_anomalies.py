"""Anomalies that are planted in a history that :mod:`harness.bench.histories` generates, one of each kind."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.bench.histories import ABORTED, ABORTED_OF, Plant, crc_of
from harness.checkers.columns import Ints
from harness.checkers.large_history.fingerprints import Columns


def _at(reads: Columns, sent: Columns, row: int) -> int:
    """The index of the read of the record at index `row`."""
    return int(np.flatnonzero((reads["pid"] == sent["pid"][row]) & (reads["seq"] == sent["seq"][row]))[0])


def _without(reads: Columns, row: int) -> None:
    for name in reads:
        reads[name] = np.delete(reads[name], row)


def _again(reads: Columns, row: int, **other: int) -> None:
    """Append a copy of the read at index `row`, as the last one of its partition, with `other` values."""
    last = reads["position"][reads["partition"] == reads["partition"][row]].max() + 1
    for name in reads:
        reads[name] = np.append(reads[name], {"position": last, **other}.get(name, reads[name][row]))


def _exchange(columns: Columns, one: int, two: int, *names: str) -> None:
    for name in names:
        columns[name][[one, two]] = columns[name][[two, one]]


def _lost(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    _without(live, _at(live, sent, -30))
    _without(drain, _at(drain, sent, -30))


def _vanished(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    _without(drain, _at(drain, sent, -60))


def _undrained(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    """The last record lies beyond what was drained."""
    _without(live, _at(live, sent, -1))
    _without(drain, _at(drain, sent, -1))
    ends[-1] = sent["offset"][-1]


def _duplicated(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    """The first record is read at the end of its partition too."""
    zero = np.zeros(1, np.int64)
    _again(drain, 0, pid=0, seq=0, crc32=int(crc_of(zero, zero)[0]), offset=int(ends[0]))
    ends[0] += 1


def _corrupted(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    drain["crc32"][_at(drain, sent, -90)] ^= 1


def _conflicting_offset(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    _again(live, _at(live, sent, -120), offset=int(sent["offset"][-110]), session=1)


def _misplaced(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    for reads in (live, drain):
        reads["offset"][_at(reads, sent, -150)] = ends[-1]
    ends[-1] += 1


def _reordered(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    """Two consecutive records of one producer in one partition are swapped."""
    pairs = [(columns, _at(columns, sent, -180), _at(columns, sent, -181)) for columns in (live, drain)]
    for columns, one, two in [*pairs, (sent, -180, -181)]:
        _exchange(columns, one, two, "offset")
    for columns, one, two in pairs:
        _exchange(columns, one, two, "position")


def _phantom(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    _again(drain, 0, pid=-1, offset=int(ends[0]))
    ends[0] += 1


def _failed_but_present(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    sent["outcome"][-210] = 1


def _skipped(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    _without(live, _at(live, sent, -240))


def _nonmonotonic_read(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    _exchange(live, _at(live, sent, -270), _at(live, sent, -271), "position")


def _redelivered(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    _again(live, _at(live, sent, -300), session=1)


def _aborted_read(sent: Columns, live: Columns, drain: Columns, ends: Ints) -> None:
    """A record of the last aborted transaction of the slice."""
    row = int(np.flatnonzero(sent["transaction"] % ABORTED_OF == ABORTED)[-1])
    near = int(np.flatnonzero(live["partition"] == sent["partition"][row])[-1])
    _again(live, near, **{name: int(sent[name][row]) for name in ("pid", "seq", "offset", "crc32")}, session=1)


PLANTS: Mapping[str, Plant] = {
    plant.__name__[1:]: plant
    for plant in (
        _lost,
        _vanished,
        _undrained,
        _duplicated,
        _corrupted,
        _conflicting_offset,
        _misplaced,
        _reordered,
        _phantom,
        _failed_but_present,
        _skipped,
        _nonmonotonic_read,
        _redelivered,
        _aborted_read,
    )
}
"""By kind. ``aborted_read`` needs transactions; with transactions, ``lost`` shows ``partial_transaction`` too."""
