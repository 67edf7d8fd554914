"""Selectors: a KIP, a suite, a scenario id, a case id.

``kip-112``, ``kafkatest-parity`` (the part before the slash), ``kip-112/leader-at-runtime``,
``kip-112/leader-at-runtime[kraft-chmod_000]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from harness.errors import UsageError

T = TypeVar("T")


class Selection:
    """What was asked for by name; falsy where nothing was."""

    def __init__(self, selectors: Sequence[str]) -> None:
        self._selectors = tuple(selectors)

    def __bool__(self) -> bool:
        return bool(self._selectors)

    def among(self, cases: Mapping[str, T]) -> list[T]:
        """The values of the cases that any selector names, in their own order.

        :raises UsageError: a selector names none of them
        """
        chosen: set[str] = set()
        for selector in self._selectors:
            hits = {id for id in cases if selector in names_of(id)}
            if not hits:
                known = sorted({name for id in cases for name in names_of(id)})
                near = get_close_matches(selector, known, n=1)
                raise UsageError(
                    f"unknown selector {selector!r}" + (f"; did you mean {near[0]!r}?" if near else "; see `jbod list`")
                )
            chosen |= hits
        return [value for id, value in cases.items() if id in chosen]


def names_of(case_id: str) -> tuple[str, str, str]:
    """The three selectors that name a case: its suite, its scenario, itself."""
    scenario = case_id.partition("[")[0]
    return scenario.partition("/")[0], scenario, case_id
