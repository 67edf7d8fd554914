"""The figures of ``jbod bench``: each with its goal, the machine's load, and whether the goal is reached."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Literal

from harness.errors import EXIT_INCONCLUSIVE, EXIT_NOTHING_RAN, EXIT_VALID


class Part(StrEnum):
    """A part of the bench, by its name for ``--only``."""

    SUITE = "suite"
    PAIR = "pair"
    STARTS = "starts"
    HOLDS = "holds"
    JUDGE = "judge"
    ALL_SUITES = "all-suites"


QUICK = tuple(part for part in Part if part is not Part.ALL_SUITES)
"""The parts that are measured by default."""

State = Literal["reached", "missed", "no goal", "skipped", "not shown"]
Unit = Literal["s", "×", "%", "/s", "MiB", "cases"]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A bound for a figure.

    :ivar at_least: whether the figure must not be below the bound; else it must not be above it
    """

    bound: float
    at_least: bool

    def is_reached(self, value: float) -> bool:
        """Return whether a figure is within the bound."""
        return value >= self.bound if self.at_least else value <= self.bound


def at_most(bound: float) -> Goal:
    """Return the goal of a figure that must not be above the bound."""
    return Goal(bound=bound, at_least=False)


def at_least(bound: float) -> Goal:
    """Return the goal of a figure that must not be below the bound."""
    return Goal(bound=bound, at_least=True)


@dataclass(frozen=True, kw_only=True)
class Load:
    """The machine's load while a figure was measured: threads that ran or were ready to run, of all programs.

    :ivar before: their mean number in the minute before the measurement
    :ivar after: the same in its last minute
    """

    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.before:.1f} → {self.after:.1f}"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A row of the table.

    :ivar value: None if it was not measured; ``why`` then has the reason
    :ivar goal: None: the figure has none
    :ivar load: None if it was not measured
    :ivar skipped: whether this machine lacks something for it; any other missing figure makes the bench inconclusive
    """

    part: Part
    name: str
    unit: Unit
    value: float | None = None
    goal: Goal | None = None
    load: Load | None = None
    why: str = ""
    skipped: bool = False

    @property
    def state(self) -> State:
        """Whether the goal is reached, or why that is open."""
        if self.value is None:
            return "skipped" if self.skipped else "not shown"
        if self.goal is None:
            return "no goal"
        return "reached" if self.goal.is_reached(self.value) else "missed"

    def row(self) -> tuple[str, str, str, str, str]:
        """Return the cells of its row: name, figure, goal, load, state."""
        goal = "" if self.goal is None else f"{'≥' if self.goal.at_least else '≤'} {_text(self.goal.bound, self.unit)}"
        value = self.why if self.value is None else _text(self.value, self.unit)
        return (f"{self.part}: {self.name}", value, goal, str(self.load or ""), self.state)

    def to_json(self) -> dict[str, object]:
        """Return the entry of ``figures`` in ``--json``."""
        goal = self.goal and {"at_least" if self.goal.at_least else "at_most": self.goal.bound}
        return asdict(self) | {"goal": goal, "state": self.state}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a part of the bench, or all of it, has measured.

    :ivar details: the single measurements behind the figures, as further fields of ``--json``
    """

    figures: Sequence[Figure] = ()
    details: Mapping[str, object] = field(default_factory=dict)


class LoadWatch:
    """Notes the machine's load when it begins, and again for the figures."""

    def __init__(self) -> None:
        self._before = os.getloadavg()[0]

    def marked(self, figures: Sequence[Figure]) -> list[Figure]:
        """Return the figures with the load since the watch began."""
        load = Load(before=round(self._before, 2), after=round(os.getloadavg()[0], 2))
        return [each if each.value is None else replace(each, load=load) for each in figures]


def _text(value: float, unit: Unit) -> str:
    match unit:
        case "s" | "×":
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"
        case "%":
            return f"{value:.0f} %"
        case "/s":
            return f"{value:,.0f}/s"
    return f"{value:,.0f} {unit}"


def tally(figures: Sequence[Figure]) -> str:
    """Return the last line: how many goals are reached, and how many figures are missing."""
    counts = Counter(figure.state for figure in figures)
    missing = "".join(f", {counts[state]} {state}" for state in ("skipped", "not shown") if counts[state])
    return f"{counts['reached']} of {counts['reached'] + counts['missed']} goals reached{missing}"


def exit_code(figures: Sequence[Figure]) -> int:
    """Return the exit code. A missed goal does not change it, because it is no promise of Kafka."""
    states = {figure.state for figure in figures}
    if "not shown" in states:
        return EXIT_INCONCLUSIVE
    return EXIT_NOTHING_RAN if states <= {"skipped"} else EXIT_VALID
