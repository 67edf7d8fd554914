"""Known deviations over all cases: which were seen, which are mended, and how a candidate differs from its baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.runner.deviation import NotedDeviation, State
from reports.rows import Row

_ORDER: Mapping[State, int] = {"mended": 0, "seen": 1, "undeclared": 2}
Key = tuple[int, str, str, str]
"""By which a deviation is the same in two run folders: its KIP, what that says, what builds do, and the issue."""


def _key(noted: NotedDeviation) -> Key:
    return noted.kip, noted.promised, noted.actual, noted.issue


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A deviation in one state, with the cases that have it so."""

    deviation: NotedDeviation
    rows: list[Row] = field(default_factory=list)


def noted(rows: Iterable[Row]) -> list[Noted]:
    """The mended ones first, those that scenarios don't declare last."""
    found: dict[tuple[Key, State], Noted] = {}
    for row in rows:
        for each in row.deviations:
            found.setdefault((_key(each), each.state), Noted(deviation=each)).rows.append(row)
    return sorted(found.values(), key=lambda each: _ORDER[each.deviation.state])


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A deviation of a candidate, or of its baseline.

    :ivar candidate: the cases in which the candidate was seen to deviate
    :ivar baseline: those in which the baseline was
    :ivar mended: those in which the candidate keeps the promise: it is newer than all builds on which the deviation was
        confirmed, or the declaration ends before it and the baseline was seen to deviate there
    :ivar state: of the candidate; ``unseen`` where it shows nothing either way
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
        """The candidate keeps the promise, and does not deviate anywhere."""
        return self.state == "mended"


def compare_deviations(cases: Iterable[tuple[str, Sequence[Row], Sequence[Row]]]) -> list[Compared]:
    """Each deviation once; those that the candidate alone shows first.

    :param cases: the id of each, with the candidate's and the baseline's runs of it
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
    """Whether the runs of a case all came out valid, and none shows this deviation: its promise was checked, and held.

    A scenario that looks for a deviation of the build and sees neither is not valid.
    """
    ran = [row for row in rows if row.verdict != "skipped"]
    shown = {_key(each) for row in ran for each in row.deviations}
    return bool(ran) and all(row.verdict == "valid" for row in ran) and _key(deviation) not in shown


class _Sides:
    """The cases that show one deviation, by side and by whether it was seen there or is mended, in order."""

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
