"""The page of a measuring: the score, the matrix of mutants and scenarios, and the scenarios that caught none."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.pages import write_page
from suites.mutants.measuring import Measured
from suites.mutants.mutant import Mutant
from suites.mutants.outcome import Outcome, score
from suites.mutants.trial import Trial

PAGE = "index.html"
_COLOURS = {Outcome.CAUGHT: "valid", Outcome.THROUGH: "invalid", Outcome.NOT_REACHED: "unknown"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a scenario said of a mutant.

    :ivar colour: the class of its style
    """

    text: str = ""
    colour: str = ""
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class MutantRow:
    """A mutant on one build in one mode."""

    id: str
    build: str
    defect: str
    promise: str
    outcome: Outcome
    says: str
    reached: int
    cells: tuple[Cell, ...]

    @property
    def colour(self) -> str:
        """The class of the outcome's style."""
        return _COLOURS.get(self.outcome, "error" if self.outcome.counts else "skipped")

    @property
    def is_survivor(self) -> bool:
        """Whether it counts, and was not caught."""
        return self.outcome.counts and self.outcome is not Outcome.CAUGHT


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The content of the page.

    :ivar never_red: scenarios that ran and caught no mutant
    :ivar median_s: of the times until a mutant was caught; None if none was
    """

    caught: int
    of: int
    builds: tuple[str, ...]
    scenarios: tuple[str, ...]
    rows: tuple[MutantRow, ...]
    outcomes: tuple[tuple[str, int], ...]
    never_red: tuple[str, ...]
    median_s: float | None

    @property
    def headline(self) -> str:
        """The score."""
        share = f" ({self.caught / self.of:.0%})" if self.of else ""
        return f"{self.caught} of {self.of} defects caught{share}"

    @property
    def verdict(self) -> str:
        """The class of the headline's style."""
        return "skipped" if not self.of else "valid" if self.caught == self.of else "invalid"

    @property
    def says(self) -> str:
        """What the denominator has."""
        left_out = len(self.rows) - self.of
        return f"{left_out} left out: no cluster comes up, no test can see it, or not measured" if left_out else ""


def write_matrix(path: Path, measured: Sequence[Measured]) -> Path:
    """Write the page."""
    return write_page(path, "mutants.html", matrix=matrix_of(measured))


def matrix_of(measured: Sequence[Measured]) -> Matrix:
    """Arrange the results of a measuring."""
    scenarios = tuple(sorted({_scenario(trial) for each in measured for trial in each.trials}))
    rows, red = [], set[str]()
    for each in measured:
        of = {name: [trial for trial in each.trials if _scenario(trial) == name] for name in scenarios}
        red |= {name for name, trials in of.items() if any(trial.is_red_for(each.build.mutant) for trial in trials)}
        mutant, decision = each.build.mutant, each.decision
        rows.append(
            MutantRow(
                id=mutant.id,
                build=f"{each.kafka} {each.build.mode}",
                defect=mutant.defect,
                promise=mutant.promise,
                outcome=decision.outcome,
                says=decision.says,
                reached=max((trial.reached for trial in each.trials), default=0),
                cells=tuple(_cell(trials, mutant) for trials in of.values()),
            )
        )
    caught, counted = score([each.decision for each in measured])
    times = [each.decision.seconds for each in measured if each.decision.seconds is not None]
    return Matrix(
        caught=caught,
        of=counted,
        builds=tuple(dict.fromkeys(row.build for row in rows)),
        scenarios=scenarios,
        rows=tuple(rows),
        outcomes=tuple(Counter(str(row.outcome) for row in rows).most_common()),
        never_red=tuple(name for name in scenarios if name not in red),
        median_s=statistics.median(times) if times else None,
    )


def _scenario(trial: Trial) -> str:
    return trial.case.partition("[")[0]


def _cell(trials: Sequence[Trial], mutant: Mutant) -> Cell:
    if not trials:
        return Cell()
    title = "; ".join(f"{trial.case} {trial.verdict} {trial.reason[:200]}".strip() for trial in trials)
    red = [trial.duration_s for trial in trials if trial.is_red_for(mutant)]
    if red:
        return Cell(text=f"{statistics.median(red):.0f}", colour="valid", title=title)
    verdicts = {trial.verdict for trial in trials}
    for verdict, text in (("invalid", "≠"), ("error", "?"), ("unknown", "?"), ("valid", "✓")):
        if verdict in verdicts:
            return Cell(text=text, colour=verdict if text != "✓" else "dim", title=title)
    return Cell(text="–", colour="skipped", title=title)
