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
class DeviationRuns:
    """A deviation in one state, with the runs that have it in this state."""

    deviation: NotedDeviation
    rows: list[Row] = field(default_factory=list)


def deviation_runs(rows: Iterable[Row]) -> list[DeviationRuns]:
    """All deviations of these runs: mended ones first, undeclared ones last."""
    found: dict[tuple[Key, State], DeviationRuns] = {}
    for row in rows:
        for each in row.deviations:
            found.setdefault((_key(each), each.state), DeviationRuns(deviation=each)).rows.append(row)
    return sorted(found.values(), key=lambda each: _ORDER[each.deviation.state])


@dataclass(frozen=True, kw_only=True)
class ComparedDeviation:
    """A deviation of the candidate, the baseline or both.

    :ivar candidate: the cases in which the candidate deviates
    :ivar baseline: the cases in which the baseline deviates
    :ivar mended: the cases in which the candidate keeps the promise. Either it is newer than all confirmed builds, or
        the declaration excludes it and the baseline deviates in this case
    :ivar undeclared: the cases in which the candidate deviates and the scenario does not declare it
    :ivar state: the state for the candidate; ``unseen`` if the candidate shows nothing either way
    """

    kip: int
    says: str
    does: str
    issue: str
    candidate: Sequence[str]
    baseline: Sequence[str]
    mended: Sequence[str]
    undeclared: Sequence[str]
    state: State | Literal["unseen"]

    @property
    def is_mended(self) -> bool:
        """Whether the candidate keeps the promise, and deviates in no case."""
        return self.state == "mended"


def compare_deviations(cases: Iterable[tuple[str, Sequence[Row], Sequence[Row]]]) -> list[ComparedDeviation]:
    """Compare all deviations; those of the candidate alone come first.

    :param cases: for each case its id, the candidate's runs and the baseline's runs
    """
    found: dict[Key, _Cases] = {}
    for id, ours, theirs in cases:
        for each in (each for row in ours for each in row.deviations):
            of = found.setdefault(_key(each), _Cases())
            (of.mended if each.state == "mended" else of.candidate)[id] = None
            if each.state == "undeclared":
                of.undeclared[id] = None
        for each in (each for row in theirs for each in row.deviations):
            of = found.setdefault(_key(each), _Cases())
            if each.state != "mended":
                of.baseline[id] = None
            if each.state == "seen" and each.deterministic and _kept(each, ours):
                of.mended[id] = None
    compared = [
        ComparedDeviation(
            kip=kip,
            says=says,
            does=does,
            issue=issue,
            candidate=[*of.candidate],
            baseline=[*of.baseline],
            mended=[*of.mended],
            undeclared=[*of.undeclared],
            state=of.state,
        )
        for (kip, says, does, issue), of in found.items()
    ]
    return sorted(compared, key=lambda each: (not each.candidate, bool(each.baseline), each.kip, each.issue))


@dataclass
class _Cases:
    """The cases with one deviation, in order; the fields are those of :class:`ComparedDeviation`."""

    candidate: dict[str, None] = field(default_factory=dict)
    baseline: dict[str, None] = field(default_factory=dict)
    mended: dict[str, None] = field(default_factory=dict)
    undeclared: dict[str, None] = field(default_factory=dict)

    @property
    def state(self) -> State | Literal["unseen"]:
        if self.candidate:
            return "undeclared" if self.candidate.keys() == self.undeclared.keys() else "seen"
        return "mended" if self.mended else "unseen"


def _kept(deviation: NotedDeviation, rows: Sequence[Row]) -> bool:
    """Whether the promise was checked and held: all runs of the case are valid, and none shows the deviation.

    A run is not valid if its scenario found neither the promise kept nor the declared deviation.
    """
    ran = [row for row in rows if row.verdict != "skipped"]
    shown = {_key(each) for row in ran for each in row.deviations}
    return bool(ran) and all(row.verdict == "valid" for row in ran) and _key(deviation) not in shown
