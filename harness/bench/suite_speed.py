"""Measures how long whole suites take, with as many cases at once as ``jbod run`` chooses."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.bench.figures import Figure, LoadWatch, Measured, Part, Unit, at_most
from harness.history.run_folder import read_run_json
from harness.journal import now
from harness.runner.case_result import CaseResult
from harness.runner.subrun import run_apart

PARITY = "kafkatest-parity"
NO_CASE = "no case ended"


@dataclass(frozen=True, kw_only=True)
class SpeedGoals:
    """The goals of a run; None: no goal.

    :ivar wall_s: for the wall time of all cases
    :ivar first_s: for the time until the first verdict
    :ivar own_share: for the harness's own share of the cases, in per cent
    """

    wall_s: float | None = None
    first_s: float | None = None
    own_share: float | None = None


PARITY_GOALS = SpeedGoals(wall_s=75.0, first_s=20.0, own_share=15.0)
ALL_GOALS = SpeedGoals(wall_s=900.0, own_share=15.0)


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """The measurements of one ``jbod run``.

    :ivar wall_s: from the start of the command to its end
    :ivar cpu_s: of all processes that the command started and that ended before it
    :ivar first_s: from the start of the command to the first verdict; None if no case ended
    """

    wall_s: float
    cpu_s: float
    cases: Sequence[CaseResult]
    first_s: float | None = None

    def figures(self, part: Part, goals: SpeedGoals) -> list[Figure]:
        """Return its rows of the table.

        The harness's own share of the cases is what is left of them without the waits for Kafka.
        """
        ran = [case for case in self.cases if case.verdict != "skipped"]
        if not ran or self.first_s is None:
            return [Figure(part=part, name="wall", unit="s", why=NO_CASE)]
        case_s = sum(sum(case.phases_s.values()) for case in ran)
        kafkas = 100 * sum(sum(case.awaited_s.values()) for case in ran) / case_s
        skipped = len(self.cases) - len(ran)
        not_valid = sum(case.verdict != "valid" for case in ran)
        besides = f", {skipped} more skipped" if skipped else ""
        name = f"not valid, of {len(ran)} cases{besides}"
        return [
            _row(part, f"{len(ran)} cases, wall", "s", self.wall_s, goals.wall_s),
            _row(part, "first verdict", "s", self.first_s, goals.first_s),
            _row(part, "CPU of all processes", "s", self.cpu_s, None),
            _row(part, "waits for Kafka, of a case", "%", kafkas, None),
            _row(part, "the harness's own share of a case", "%", 100 - kafkas, goals.own_share),
            _row(part, name, "cases", not_valid, 0.0),
        ]

    def details(self) -> dict[str, object]:
        """Return the measurements of each case, for ``--json``."""
        return {
            "wall_s": round(self.wall_s, 3),
            "first_verdict_s": self.first_s and round(self.first_s, 3),
            "cpu_s": round(self.cpu_s, 3),
            "cases": [
                {name: case.to_json()[name] for name in ("id", "verdict", "duration_s", "phases_s", "awaited_s")}
                for case in self.cases
            ],
        }


def measure_suites(part: Part, arguments: Sequence[str], goals: SpeedGoals, say: Callable[[str], None]) -> Measured:
    """Run cases with ``--jobs auto``.

    :param arguments: selectors, and options of the build
    """
    say(f"running {' '.join(arguments)}")
    watch = LoadWatch()
    found = _run(arguments)
    return Measured(figures=watch.marked(found.figures(part, goals)), details={part: found.details()})


def _run(arguments: Sequence[str]) -> SuiteRun:
    began_at, began, cpu_before = now(), time.monotonic(), _cpu_s()
    run = run_apart(*arguments, "--jobs=auto", quiet=True)
    wall_s = time.monotonic() - began
    ends = [
        datetime.fromisoformat(read_run_json(case.run_dir).started_at).timestamp() + case.duration_s
        for case in run.cases
        if case.run_dir is not None
    ]
    return SuiteRun(
        wall_s=wall_s,
        cpu_s=_cpu_s() - cpu_before,
        cases=run.cases,
        first_s=min(ends) - began_at.timestamp() if ends else None,
    )


def _cpu_s() -> float:
    """Return the CPU seconds of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(part: Part, name: str, unit: Unit, value: float, bound: float | None) -> Figure:
    goal = None if bound is None else at_most(bound)
    return Figure(part=part, name=name, unit=unit, value=round(value, 2), goal=goal)
