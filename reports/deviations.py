"""Known deviations over all cases: which are seen, which are mended, and how candidate and baseline compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.runner.deviation import NotedDeviation, State
from reports.rows import Row

_ORDER: Mapping[State, int] = {"mended": 0, "seen": 1, "undeclared": 2}
Key = tuple[int, str, str, str]
"""Identifies a deviation across run folders: its KIP, what the KIP promises, what builds do, and the issue."""


def _key(noted: NotedDeviation) -> Key:
    return noted.kip, noted.promised, noted.actual, noted.issue


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A deviation in one state, with the runs that have it in this state."""

    deviation: NotedDeviation
    rows: list[Row] = field(default_factory=list)


def noted(rows: Iterable[Row]) -> list[Noted]:
    """All deviations of these runs: mended ones first, undeclared ones last."""
    found: dict[tuple[Key, State], Noted] = {}
    for row in rows:
        for each in row.deviations:
            found.setdefault((_key(each), each.state), Noted(deviation=each)).rows.append(row)
    return sorted(found.values(), key=lambda each: _ORDER[each.deviation.state])


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A deviation of the candidate, the baseline or both.

    :ivar candidate: the cases in which the candidate deviates
    :ivar baseline: the cases in which the baseline deviates
    :ivar mended: the cases in which the candidate keeps the promise. Either it is newer than all confirmed builds, or
        the declaration excludes it and the baseline deviates in this case
    :ivar state: the state for the candidate; ``unseen`` if the candidate shows nothing either way
    """

    kip: int
    says: str
    does: str
    issue: str
    candidate: Sequence[str]
    baseline: Sequence[str]
    mended: Sequence[str]
    state: State | Literal["unseen"]

    @property
    def is_mended(self) -> bool:
        """Whether the candidate keeps the promise, and deviates in no case."""
        return self.state == "mended"


def compare_deviations(cases: Iterable[tuple[str, Sequence[Row], Sequence[Row]]]) -> list[Compared]:
    """Compare all deviations; those of the candidate alone come first.

    :param cases: for each case its id, the candidate's runs and the baseline's runs
    """
    found: dict[Key, _Sides] = {}
    for id, ours, theirs in cases:
        for side, rows in (("ours", ours), ("theirs", theirs)):
            for each in (each for row in rows for each in row.deviations):
                where = "mended" if each.state == "mended" else "seen"
                found.setdefault(_key(each), _Sides()).add(side, where, id, declared=each.state != "undeclared")
        for each in (each for row in theirs for each in row.deviations_in("seen")):
            if each.deterministic and _kept(each, ours):
                found[_key(each)].add("ours", "mended", id, declared=True)
    compared = [
        Compared(
            kip=kip,
            says=says,
            does=does,
            issue=issue,
            candidate=[*sides.of["ours", "seen"]],
            baseline=[*sides.of["theirs", "seen"]],
            mended=[*sides.of["ours", "mended"]],
            state=sides.state,
        )
        for (kip, says, does, issue), sides in found.items()
    ]
    return sorted(compared, key=lambda each: (not each.candidate, bool(each.baseline), each.kip, each.issue))


def _kept(deviation: NotedDeviation, rows: Sequence[Row]) -> bool:
    """Whether the promise was checked and held: all runs of the case are valid, and none shows the deviation.

    A run is not valid if its scenario found neither the promise kept nor the declared deviation.
    """
    ran = [row for row in rows if row.verdict != "skipped"]
    shown = {_key(each) for row in ran for each in row.deviations}
    return bool(ran) and all(row.verdict == "valid" for row in ran) and _key(deviation) not in shown


class _Sides:
    """The cases with one deviation, by side and by whether it is seen or mended there."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], dict[str, None]] = {
            (side, where): {} for side in ("ours", "theirs") for where in ("seen", "mended")
        }
        self._declared = False

    def add(self, side: str, where: str, case: str, *, declared: bool) -> None:
        self.of[side, where][case] = None
        self._declared |= declared and (side, where) == ("ours", "seen")

    @property
    def state(self) -> State | Literal["unseen"]:
        if self.of["ours", "seen"]:
            return "seen" if self._declared else "undeclared"
        return "mended" if self.of["ours", "mended"] else "unseen"
