"""The seqs that have a row in ``produced``, one bit each: shows exactly whether a record has two rows or none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.checkers.columns import Ints, alike, order_of, run_starts
from harness.errors import HistoryError, Inconclusive

_BITS = 13
MOST_PAGES = 1 << 18
"""The most pages that are kept: 256 MiB. The seqs of each producer start at 0, so that is 2 x 10^9 records."""


class Seqs:
    """The seqs of all producers, in pages of 2^13 bits."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int], npt.NDArray[np.uint8]] = {}
        self._twice: list[tuple[str, int]] = []
        self._rows = 0

    def add(self, names: Sequence[str], pid: Ints, seq: Ints) -> None:
        """Add rows of ``produced``.

        :param pid: indices into `names`
        :raises Inconclusive: the seqs have too many gaps
        """
        self._rows += len(seq)
        order = order_of(pid, seq)
        if order is not None:
            pid, seq = pid[order], seq[order]
        again = np.flatnonzero(alike(pid, seq))
        self._twice += [(names[pid[row]], int(seq[row])) for row in again[:1]]
        page = seq >> _BITS
        starts = run_starts(pid, page)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(seq)], strict=True):
            bits = np.zeros(1 << _BITS, np.bool_)
            bits[seq[start:end] & ((1 << _BITS) - 1)] = True
            self._add_page((names[pid[start]], int(page[start])), np.packbits(bits))

    def update(self, other: Seqs) -> None:
        """Add the rows of another part of the history.

        :raises Inconclusive: as :meth:`add`
        """
        self._rows += other._rows
        self._twice += other._twice
        for name, bits in other._pages.items():
            self._add_page(name, bits)

    def senders(self) -> set[str]:
        """All producers that have a row."""
        return {name for name, _ in self._pages}

    def below(self, name: str, seq: int) -> int:
        """How many of the producer's records below `seq` have a row."""
        whole, bits = seq >> _BITS, seq & ((1 << _BITS) - 1)
        count = sum(
            int(np.bitwise_count(page).sum())
            for (producer, number), page in self._pages.items()
            if producer == name and 0 <= number < whole
        )
        last = self._pages.get((name, whole))
        return count + (0 if last is None else int(np.unpackbits(last)[:bits].sum()))

    def refuse_twice(self) -> None:
        """Check that no record has two rows.

        :raises HistoryError: one has; worded as :attr:`harness.checkers.encoded_history.EncodedHistory.record` does
        """
        if self._twice:
            times = self._rows - sum(int(np.bitwise_count(bits).sum()) for bits in self._pages.values())
            name, seq = min(self._twice)
            raise HistoryError(f"history/produced has two rows for one record {times} times, e.g. for {name} #{seq}")

    def _add_page(self, name: tuple[str, int], bits: npt.NDArray[np.uint8]) -> None:
        known = self._pages.get(name)
        if known is None:
            if len(self._pages) >= MOST_PAGES:
                raise Inconclusive("the seqs of its producers have too many gaps to remember which were sent")
            self._pages[name] = bits
            return
        both = known & bits
        if both.any():
            self._twice.append((name[0], (name[1] << _BITS) + int(np.unpackbits(both).argmax())))
        known |= bits
