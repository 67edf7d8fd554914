"""Selects cases by name: a KIP, a suite, a scenario id, a case id, a pytest node id, a folder.

Examples: ``kip-112``, ``kafkatest-parity`` (a suite, the part of an id before the slash),
``kip-112/leader-at-runtime``, ``kip-112/leader-at-runtime[kraft-chmod_000]``,
``suites/kip_112/test_plan.py::test_leader_at_runtime[kraft-chmod_000]``, ``suites/kip_112/``. A case outside the suites
(:mod:`harness.runner.outside`) has the same selectors. It also has ``/elsewhere/test_ours.py``, alone or with ``::``
and a test or an id.

``kip-18`` selects every scenario that tests a clause of KIP-18. Most of them are in the suites of the KIPs that
replaced it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import TypeVar

from harness.errors import UsageError
from harness.runner.clauses import scenarios_of
from harness.runner.outside import unknown

T = TypeVar("T")

_REPLACED = (18,)
"""The KIPs that others replaced. Their selectors select the scenarios in ``tested_by`` of their clauses."""


class Selection:
    """The selectors of a run; false if there are none."""

    def __init__(self, selectors: Sequence[str]) -> None:
        self._selectors = tuple(selectors)

    def __bool__(self) -> bool:
        return bool(self._selectors)

    def among(
        self, cases: Sequence[T], names_of: Callable[[T], Collection[str]], covered: Callable[[T], bool]
    ) -> list[T]:
        """Return the cases that any selector selects and that this run covers, in their own order.

        :param names_of: returns all selectors of a case
        :param covered: whether this run covers the metadata mode of a case
        :raises UsageError: a selector selects no case, or only cases that this run does not cover although another
            selector selects some that it covers
        """
        named = {selector: [case for case in cases if selector in names_of(case)] for selector in self._selectors}
        for selector, hits in named.items():
            if not hits:
                known = sorted({name for case in cases for name in names_of(case)})
                raise unknown(selector, get_close_matches(selector, known, n=1))
        chosen = [case for case in cases if covered(case) and any(case in hits for hits in named.values())]
        for selector, hits in named.items():
            if chosen and not any(map(covered, hits)):
                raise UsageError(f"{selector!r} has no case in the modes of this run; see --mode and --kafka")
        return chosen

    def place(self, names: Collection[str]) -> int:
        """Return the index of the first selector that is among these names of a case."""
        return next(place for place, selector in enumerate(self._selectors) if selector in names)


def names_of(case_id: str, node_id: str, outside: Path | None = None) -> set[str]:
    """Return the selectors of a case: its suites, its scenario, its id, and their pytest equivalents.

    :param outside: the absolute path of its file, if it is outside the suites
    """
    scenario, function = case_id.partition("[")[0], node_id.partition("[")[0]
    file = function.partition("::")[0]
    folders = {f"{folder}{end}" for folder in PurePosixPath(file).parents[:-1] for end in ("", "/")}
    names = {scenario.partition("/")[0], scenario, case_id, *folders, file, function, node_id}
    names |= {f"kip-{kip}" for kip in _REPLACED if scenario in scenarios_of(kip)}
    if outside is None:
        return names
    by_path = names_of(case_id, f"{outside}::{node_id.partition('::')[2]}")
    return names | by_path | {f"{outside}::{scenario}", f"{outside}::{case_id}"}
