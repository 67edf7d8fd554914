"""Finds a small subset of items that still fails: delta debugging (Zeller & Hildebrandt 2002, "Simplifying and
isolating").

Not a library, because each trial needs a whole cluster. All candidates of a round are passed at once, so that they can
run side by side in one Spark session. Of the candidates that fail, the smallest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], failing: Callable[[list[list[T]]], list[bool]]) -> list[T]:
    """Return a subset of ``items``, in their order, that fails, and does not fail when any single item is left out.

    If failures are not deterministic, the search may stop early. The result has failed at least once.

    :param items: known to fail
    :param failing: returns which of these candidates fail; each is a subset of ``items``, and none is passed twice
    """
    smallest, parts = list(items), 2
    known: dict[tuple[int, ...], bool] = {}
    while len(smallest) > 1:
        parts = min(parts, len(smallest))
        size = -(-len(smallest) // parts)
        chunks = [range(start, min(start + size, len(smallest))) for start in range(0, len(smallest), size)]
        wanted = [[smallest[index] for index in chunk] for chunk in chunks]
        if len(chunks) > 2:  # with two parts, each is the complement of the other
            # Complements come first, because time may run out. The parts lie in larger ones that just did not fail.
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
