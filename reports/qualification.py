"""Compares a candidate with a baseline: one answer, and for each case what held, what it cost, and what differs.

Verdicts are compared without statistics: one broken guarantee is enough, if the baseline was seen to keep it and never
to break it. Times are compared by :mod:`reports.noise`. A difference is named only if it is more than noise, and at
least 0.1 s and a fifth of the baseline's figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from harness.errors import EXIT_HARNESS, EXIT_INCONCLUSIVE, EXIT_INVALID, EXIT_NOTHING_RAN, EXIT_VALID
from harness.measure.fault_costs import FaultCosts
from reports.costs import COSTS
from reports.curves import Curve, make_curves
from reports.deviations import ComparedDeviation, compare_deviations
from reports.index import Answer
from reports.noise import Runs, beyond_chance, holm, signed_rank
from reports.rows import VERDICTS, Row, RunsRead, count_cases, grouped

_RARE = 0.05
_MATTERS_S = 0.1
_MATTERS_SHARE = 0.2
_IN_SECONDS = ", s"
"""How the name of a scenario's own figure ends if it is a time; the others are ratios, and are not compared."""
OWN_FIGURES = "figures of the scenario"
"""Stands for a fault in :attr:`ComparedCase.faults`, where it has the times that the scenario itself measured."""

Change = Literal["broke", "uncompared", "broken", "unshown", "wavers", "mended", "held", "only baseline's"]
CHANGES: Mapping[Change, str] = {
    "broke": "broken by the candidate only",
    "uncompared": "broken by the candidate, with no result for the baseline",
    "broken": "broken by both",
    "unshown": "not shown for the candidate",
    "only baseline's": "ran for the baseline only",
    "wavers": "differs from run to run",
    "mended": "broken by the baseline only",
    "held": "held",
}
"""The name of each change in the pages, the worst change first."""
ALONE: Mapping[Change, str] = {**CHANGES, "broke": "broken"}
"""The names of changes without a baseline."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure of one fault of one case, in seconds: one value for each run of the candidate and the baseline.

    :ivar chance: the probability that noise alone makes a difference as large (:func:`reports.noise.beyond_chance`);
        None if there are too few runs
    """

    name: str
    candidate: tuple[float, ...]
    baseline: tuple[float, ...]
    chance: float | None = None

    @property
    def medians(self) -> tuple[float | None, float | None]:
        """The medians of the baseline and of the candidate."""
        return (median(self.baseline) if self.baseline else None, median(self.candidate) if self.candidate else None)

    @property
    def difference_s(self) -> float:
        """How much longer the candidate takes; 0 if either has no value."""
        baseline, candidate = self.medians
        return 0.0 if baseline is None or candidate is None else candidate - baseline

    @property
    def differs(self) -> bool:
        """Whether the difference is more than noise and large enough to matter."""
        matters = abs(self.difference_s) >= max(_MATTERS_S, _MATTERS_SHARE * (self.medians[0] or 0.0))
        return self.chance is not None and self.chance <= _RARE and matters


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """The runs of one case on both builds.

    :ivar faults: the measures of each fault, by its name, and those of :data:`OWN_FIGURES`
    """

    id: str
    kip: int
    mode: str
    backend: str
    change: Change
    candidate: Sequence[Row]
    baseline: Sequence[Row]
    faults: Mapping[str, tuple[Measure, ...]]

    @property
    def is_compared(self) -> bool:
        """Whether the baseline has a verdict to compare with."""
        return bool(_standings(self.baseline) & {"valid", "invalid"})

    @property
    def why(self) -> str:
        """The reason of the candidate's worst run; of several, the newest."""
        return self._worst.says if self._worst else ""

    @property
    def rerun(self) -> str:
        """The command to run it again."""
        return self._worst.rerun if self._worst else ""

    @property
    def _worst(self) -> Row | None:
        if self.change in ("held", "mended"):
            return None
        wrong = [row for row in reversed(self.candidate) if row.standing != "valid"]
        return min(wrong, key=lambda row: VERDICTS.index(row.standing), default=None)


@dataclass(frozen=True, kw_only=True)
class Overall:
    """One figure over all cases of a mode.

    :ivar cases: how many cases have it on both sides; the same case in another backend counts as another one
    :ivar ratio: the median over the cases of candidate / baseline
    :ivar difference_s: the median over the cases of candidate - baseline
    :ivar chance: the probability of such a difference by noise alone, corrected for all figures of all modes
    """

    name: str
    mode: str
    cases: int
    ratio: float
    difference_s: float
    chance: float


@dataclass(frozen=True, kw_only=True)
class Qualification:
    """The data of the qualification page.

    :ivar names: the names of candidate and baseline; the second is empty without a baseline
    :ivar missing: by reason, the cases without a result for the candidate, or without one to compare it with
    :ivar differing: the measures that differ, with their cases and faults
    :ivar mended: the deviations mended since the baseline; without one, since the builds known to deviate
    :ivar repeats: how many runs of a case both sides have
    :ivar curves: with a line for each side
    """

    answer: Answer
    names: tuple[str, str]
    cases: Sequence[ComparedCase]
    totals: Mapping[Change, int]
    overall: Sequence[Overall]
    missing: Sequence[tuple[str, Sequence[str]]]
    differing: Sequence[tuple[ComparedCase, str, Measure]]
    deviations: Sequence[ComparedDeviation]
    mended: Sequence[ComparedDeviation]
    repeats: str
    curves: Sequence[Curve]
    notes: Sequence[str]

    @property
    def exit_code(self) -> int:
        """The exit code of ``jbod qualify``; 3 instead of 2 if the harness failed in each run of a case."""
        if all(row.verdict == "skipped" for case in self.cases for row in case.candidate):
            return EXIT_NOTHING_RAN
        failed = any(case.change == "unshown" and _standings(case.candidate) == {"error"} for case in self.cases)
        not_shown = EXIT_HARNESS if failed else EXIT_INCONCLUSIVE
        return {"valid": EXIT_VALID, "invalid": EXIT_INVALID, "unknown": not_shown}[self.answer.verdict]

    @property
    def changes(self) -> Mapping[Change, str]:
        """What each change is called on this page."""
        return CHANGES if self.names[1] else ALONE


def qualify(candidate: RunsRead, baseline: RunsRead | None) -> Qualification:
    """Compare the runs of two builds, or judge one alone."""
    ours, theirs = (grouped(of.rows if of else (), lambda row: (row.id, row.backend)) for of in (candidate, baseline))
    alone = baseline is None
    cases = [_case(key, ours.get(key, ()), theirs.get(key, ()), alone) for key in sorted({*ours, *theirs})]
    cases = _with_chances(cases)
    names = _names(candidate.rows, baseline.rows if baseline else None)
    totals: dict[Change, int] = {change: sum(case.change == change for case in cases) for change in CHANGES}
    differing = [(c, fault, m) for c in cases for fault, of in c.faults.items() for m in of if m.differs]
    overall = _overall(cases)
    deviations = compare_deviations((case.id, case.candidate, case.baseline) for case in cases)
    mended = [each for each in deviations if each.is_mended and (alone or each.baseline)]
    sides = {"candidate": candidate, **({"baseline": baseline} if baseline else {})}
    uncompared = 0 if alone else sum(case.change == "held" and not case.is_compared for case in cases)
    fewest = [min(len(case.candidate), len(case.baseline)) for case in cases if case.candidate and case.baseline]
    return Qualification(
        answer=_answer(names, totals, differing, uncompared, len(mended), sum(bool(d.undeclared) for d in deviations)),
        names=names,
        cases=sorted(cases, key=lambda case: (list(CHANGES).index(case.change), case.id)),
        totals=totals,
        overall=overall,
        missing=_missing(cases, alone),
        differing=sorted(differing, key=lambda each: -abs(each[2].difference_s)),
        deviations=deviations,
        mended=mended,
        curves=make_curves({name: of.rows for name, of in zip(names, sides.values(), strict=False)}),
        repeats=f"{min(fewest)} to {max(fewest)}" if fewest else "no",
        notes=[f"{side}: {note}" for side, of in sides.items() for note in (*_several_builds(of.rows), *of.notes)],
    )


def _missing(cases: Sequence[ComparedCase], alone: bool) -> list[tuple[str, Sequence[str]]]:
    found: dict[str, list[str]] = {}
    for case in cases:
        if case.change == "unshown":
            found.setdefault(case.why, []).append(case.id)
        elif case.change == "only baseline's":
            found.setdefault("ran for the baseline and not for the candidate", []).append(case.id)
        elif not alone and not case.is_compared:
            found.setdefault("the baseline has no result to compare with", []).append(case.id)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def _names(ours: Sequence[Row], theirs: Sequence[Row] | None) -> tuple[str, str]:
    """The names of candidate and baseline. Equal versions are named by their side."""
    candidate, baseline = (", ".join(sorted({row.kafka for row in rows})) or "?" for rows in (ours, theirs or ()))
    if theirs is None:
        return f"Kafka {candidate}", ""
    if candidate == baseline:
        return f"candidate {candidate}", f"baseline {baseline}"
    return f"Kafka {candidate}", f"Kafka {baseline}"


def _several_builds(rows: Sequence[Row]) -> list[str]:
    """A note for each mode with runs of several builds, because they count as repeats of one build."""
    return [
        f"mode {mode} has runs of several builds, which count as one: {', '.join(sorted(versions))}"
        for mode, of in sorted(grouped(rows, lambda row: row.mode).items())
        if len(versions := {row.kafka for row in of}) > 1
    ]


def _case(key: tuple[str, str], ours: Sequence[Row], theirs: Sequence[Row], alone: bool) -> ComparedCase:
    known = (*ours, *theirs)[0]
    return ComparedCase(
        id=key[0],
        kip=known.kip,
        mode=known.mode,
        backend=key[1],
        change=_change(_standings(ours), _standings(theirs), alone),
        candidate=ours,
        baseline=theirs,
        faults=_measures(ours, theirs),
    )


def _standings(rows: Sequence[Row]) -> set[str]:
    """The standings of a case's runs. Errors and skips count only if there is nothing else."""
    return {row.standing for row in rows if row.verdict not in ("error", "skipped")} or {row.standing for row in rows}


def _change(ours: set[str], theirs: set[str], alone: bool) -> Change:
    """The change of a case, from the standings of its runs.

    :param alone: there is no baseline
    """
    if "invalid" in ours:
        if "invalid" in theirs:
            return "broken"
        return "broke" if alone or "valid" in theirs else "uncompared"
    if not ours:
        return "only baseline's"
    if ours != {"valid"}:
        return "wavers" if "valid" in ours else "unshown"
    if "invalid" in theirs:
        return "mended"
    return "held"


def _measures(ours: Sequence[Row], theirs: Sequence[Row]) -> dict[str, tuple[Measure, ...]]:
    def values(rows: Sequence[Row], fault: str, cost: str) -> tuple[float, ...]:
        return tuple(value for row in rows if (value := _figure(row, fault, cost)) is not None)

    rows = (*ours, *theirs)
    figures = {fault: tuple(COSTS) for row in rows for fault in _faults(row)}
    if own := dict.fromkeys(name for row in rows for name in row.measured if name.endswith(_IN_SECONDS)):
        figures[OWN_FIGURES] = tuple(own)
    return {
        fault: tuple(
            Measure(name=figure, candidate=values(ours, fault, figure), baseline=values(theirs, fault, figure))
            for figure in of
        )
        for fault, of in figures.items()
    }


def _faults(row: Row) -> dict[str, FaultCosts]:
    """A row's proven faults by name. Faults of one name are numbered, because the brokers that they hit are random."""
    found: dict[str, FaultCosts] = {}
    for fault in row.faults:
        if fault.proven:
            count = sum(name.split(" ")[0] == fault.name for name in found)
            found[fault.name + (f" {count + 1}" if count else "")] = fault
    return found


def _figure(row: Row, fault: str, cost: str) -> float | None:
    if fault == OWN_FIGURES:
        return row.measured.get(cost)
    found = _faults(row).get(fault)
    return None if found is None else found.figure(cost)


def _with_chances(cases: Sequence[ComparedCase]) -> list[ComparedCase]:
    """The cases with the chance of each measure."""
    found = []
    for case, chances in zip(cases, beyond_chance([_runs(case) for case in cases]), strict=True):
        left = iter([None if np.isnan(chance) else float(chance) for chance in chances])
        faults = {
            fault: tuple(replace(measure, chance=next(left)) for measure in of) for fault, of in case.faults.items()
        }
        found.append(replace(case, faults=faults))
    return found


def _runs(case: ComparedCase) -> Runs:
    """The times of a case for the statistics: a row for each run, a column for each measure."""
    columns = [(fault, measure.name) for fault, of in case.faults.items() for measure in of]

    def table(rows: Sequence[Row]) -> np.ndarray:
        times = [[_figure(row, *column) for column in columns] for row in rows]
        return np.array(times, dtype=float).reshape(len(rows), len(columns))

    return Runs(ours=table(case.candidate), theirs=table(case.baseline), kinds=tuple(cost for _, cost in columns))


def _overall(cases: Sequence[ComparedCase]) -> list[Overall]:
    found = []
    for mode in sorted({case.mode for case in cases}):
        for cost in COSTS:
            figures = (_over_its_faults(case, cost) for case in cases if case.mode == mode)
            pairs = [pair for pair in figures if pair is not None]
            if pairs:
                found.append(
                    Overall(
                        name=cost,
                        mode=mode,
                        cases=len(pairs),
                        ratio=median((ours + 0.01) / (theirs + 0.01) for theirs, ours in pairs),
                        difference_s=median(ours - theirs for theirs, ours in pairs),
                        chance=signed_rank([ours - theirs for theirs, ours in pairs]),
                    )
                )
    chances = holm([each.chance for each in found])
    return [replace(each, chance=chance) for each, chance in zip(found, chances, strict=True)]


def _over_its_faults(case: ComparedCase, cost: str) -> tuple[float, float] | None:
    """The baseline's and the candidate's median over the faults of a case, because these are not independent."""
    medians = [measure.medians for of in case.faults.values() for measure in of if measure.name == cost]
    pairs = [(theirs, ours) for theirs, ours in medians if theirs is not None and ours is not None]
    if not pairs:
        return None
    return median(theirs for theirs, _ in pairs), median(ours for _, ours in pairs)


def _answer(
    names: tuple[str, str],
    totals: Mapping[Change, int],
    differing: Sequence[tuple[ComparedCase, str, Measure]],
    uncompared: int,
    mended: int,
    undeclared: int,
) -> Answer:
    """The answer.

    :param uncompared: how many cases held for which the baseline has no result
    :param mended: how many known deviations are mended
    :param undeclared: how many deviations the candidate shows in cases that do not declare them
    """
    ours, theirs = names
    slower = sum(measure.difference_s > 0 for _, _, measure in differing)
    words = CHANGES if theirs else ALONE
    says = ", ".join(f"{count} {words[change]}" for change, count in totals.items() if count)
    says += f"; {len(differing)} times differ beyond noise, {slower} of them longer" if differing else ""
    says += f"; {mended} known deviation{'' if mended == 1 else 's'} mended" if mended else ""
    says += f"; {undeclared} undeclared deviation{'' if undeclared == 1 else 's'}" if undeclared else ""
    unshown = totals["unshown"] + totals["only baseline's"] + totals["wavers"]
    where_by_change: dict[Change, str] = {
        "broke": f" where {theirs} keeps it" if theirs else "",
        "uncompared": f" for which {theirs} has no result",
    }
    broke = [f"in {count_cases(totals[change])}{where}" for change, where in where_by_change.items() if totals[change]]
    if broke:
        headline = f"Not qualified: {ours} breaks a guarantee {', and '.join(broke)}"
        return Answer(verdict="invalid", headline=headline, says=says)
    if totals["broken"]:
        headline = f"Not qualified: {ours} breaks a guarantee in {count_cases(totals['broken'])}, as {theirs} does"
        return Answer(verdict="invalid", headline=headline, says=says)
    if unshown or not totals["held"] + totals["mended"]:
        headline = f"Not shown: {count_cases(unshown)} gave no reliable result for {ours}"
        return Answer(verdict="unknown", headline=headline if unshown else "Nothing ran", says=says or "no case ran")
    headline = f"Qualified: {ours} kept every guarantee in {count_cases(totals['held'] + totals['mended'])}"
    if uncompared:
        headline += f"; {theirs} has no result for {uncompared} of them"
    if slower:
        headline += f"; {slower} times are longer than {theirs}'s"
    return Answer(verdict="valid", headline=headline, says=says)
