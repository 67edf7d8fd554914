"""The fewest items that still fail: delta debugging (Zeller & Hildebrandt 2002, "Simplifying and isolating").

Ours and not a library's, because each trial is a cluster's life: the candidates of a round are handed over together, so
that they can run side by side in one Spark session, and what a library for source files has beyond that (trees, caches
on disk) is of no use to a dozen steps. Of a round's failing candidates the smallest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], failing: Callable[[list[list[T]]], list[bool]]) -> list[T]:
    """A part of ``items``, in their order, that fails, and that doesn't as a whole when any one item is left out.

    With failures that don't come every time it may stop early; what it returns has failed at least once.

    :param items: what is known to fail
    :param failing: which of these candidates fail; each is a part of ``items``, none is asked for twice
    """
    smallest, parts = list(items), 2
    known: dict[tuple[int, ...], bool] = {}
    while len(smallest) > 1:
        parts = min(parts, len(smallest))
        size = -(-len(smallest) // parts)
        chunks = [range(start, min(start + size, len(smallest))) for start in range(0, len(smallest), size)]
        wanted = [[smallest[index] for index in chunk] for chunk in chunks]
        if len(chunks) > 2:  # of two parts each is what the other leaves
            # What a part leaves comes before the parts, which lie in larger ones that have just held: not each may
            # get its turn where time is short.
            wanted = [[smallest[i] for i in range(len(smallest)) if i not in chunk] for chunk in chunks] + wanted
        new = [candidate for candidate in wanted if _key(candidate) not in known]
        known |= zip(map(_key, new), failing(new) if new else [], strict=True)
        failed = [candidate for candidate in wanted if known[_key(candidate)]]
        if failed:
            smallest = min(failed, key=len)
            parts = 2
        elif size == 1:
            break
        else:
            parts *= 2
    return smallest


def _key(candidate: Sequence[T]) -> tuple[int, ...]:
    return tuple(map(id, candidate))
