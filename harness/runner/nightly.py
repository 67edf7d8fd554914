"""Runs the fixed suites, the least recently run cases first, and then random schedules, within a time budget.

The fixed suites are all except controls and random schedules. Half of the budget goes to them. If it is too short for
all of them, each gets its turn over several nights (:mod:`harness.runner.ledger`). Chosen cases run oldest first, each
followed by the cases that share its cluster. The night lists the cases that were not begun, and is inconclusive if one
of them is ``overdue``. A schedule that fails is shrunk within the budget (:data:`TO_SHRINK`). Random schedules do not
begin if one usually takes longer than the time left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from harness.errors import EXIT_INCONCLUSIVE, EXIT_NOTHING_RAN, HarnessError, JbodError, worst
from harness.history.run_folder import read_run_json
from harness.journal import now
from harness.runner import ledger, results
from harness.runner.at_once import JobsOption
from harness.runner.case_result import CaseResult
from harness.runner.shrinking import Shrunk, shrink_command, shrink_run
from harness.runner.subrun import SubRun, run_apart
from harness.runner.suite_kinds import RANDOM_SCHEDULES

TO_SHRINK = 0.25
"""The share of the time for random schedules that is kept for shrinking failed ones."""
START_S = 15.0
"""Seconds that a run takes in addition to its cases, for Python, pytest and Spark."""


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """The cases of the fixed suites on this machine.

    :ivar planned: the cases that can run here, by id
    :ivar unable: the reason for each case that cannot run here, because of the machine, the backend or the build
    :ivar lacking: the cases of ``unable`` that the build supports, but not the machine or backend
    """

    planned: Mapping[str, ledger.Planned]
    unable: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, ledger.Planned] = field(default_factory=dict)

    def known(self, entries: Iterable[ledger.Entry], backend: str) -> list[ledger.Entry]:
        """Return the ledger entries of these builds and this backend."""
        return ledger.alike(entries, {**self.planned, **self.lacking}, backend)

    def owed(self, entries: Iterable[ledger.Entry], backend: str) -> dict[str, ledger.Planned]:
        """Return the cases that have to run.

        These include cases that cannot run here any more but were valid or invalid once. A machine that lost an ability
        must not make a night valid.
        """
        last = ledger.last_run(self.known(entries, backend))
        return {**self.planned, **{id: planned for id, planned in self.lacking.items() if id in last}}

    def why_not(self) -> list[str]:
        """Return one line for each reason why cases cannot run."""
        return [
            f"cannot run here, because {why}: {', '.join(id for id, its in self.unable.items() if its == why)}"
            for why in dict.fromkeys(self.unable.values())
        ]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a night runs, on which build and backend, and for how long.

    :ivar budget_s: seconds for the whole night
    :ivar every: a fixed case is overdue after this long without a run
    :ivar jobs: the value of ``--jobs`` for each run
    :ivar at_once: the expected number of cases at once
    :ivar options: options of ``jbod run``, such as the build's
    """

    fixed: Fixed
    backend: str
    budget_s: float
    seed: int
    runs_dir: Path
    every: timedelta
    jobs: JobsOption
    at_once: int
    options: Sequence[str]

    @property
    def run_options(self) -> list[str]:
        """The options that all runs of the night have in common."""
        return [*self.options, f"--backend={self.backend}", f"--runs-dir={self.runs_dir}", f"--jobs={self.jobs}"]

    def junit(self, half: str) -> str:
        """Return the option for the JUnit file of one half of the night."""
        return f"--junit={self.runs_dir.parent / f'junit-{half}.xml'}"

    def entries(self) -> list[ledger.Entry]:
        """Return the ledger entries of the night's builds and backend."""
        return self.fixed.known(ledger.read(self.runs_dir), self.backend)


@dataclass(frozen=True, kw_only=True)
class Night:
    """The result of a night.

    :ivar seed: of the schedules and all other random choices
    :ivar codes: the exit codes of its runs
    :ivar left: the cases of :meth:`Fixed.owed` that were not begun, and when each last ran
    :ivar overdue: the cases of ``left`` that never ran, or last ran longer ago than :attr:`Plan.every`
    :ivar unable: the cases that cannot run here, and why
    """

    seed: int = 0
    cases: Sequence[CaseResult] = ()
    codes: Sequence[int] = ()
    left: Mapping[str, datetime | None] = field(default_factory=dict)
    overdue: Sequence[str] = ()
    unable: Mapping[str, str] = field(default_factory=dict)
    shrunk: Sequence[Shrunk] = ()

    def exit_code(self) -> int:
        """Return the worst exit code.

        The night is inconclusive if an overdue case did not run, or if nothing ran in one of its two halves.
        """
        ran = [code for code in self.codes if code != EXIT_NOTHING_RAN]
        is_whole = len(ran) in (0, len(self.codes)) and not self.overdue
        return worst([*(ran or self.codes), *([] if is_whole else [EXIT_INCONCLUSIVE])])

    def to_json(self) -> dict[str, object]:
        """Return the content of ``--json``: that of a run, and the fields of a night."""
        return results.to_json(self.cases, self.exit_code(), self.seed) | {
            "left": {id: at.isoformat() if at else None for id, at in self.left.items()},
            "overdue": list(self.overdue),
            "unable": dict(self.unable),
            "shrunk": [vars(each) for each in self.shrunk],
        }


def run_night(plan: Plan, say: Callable[[str], None]) -> Night:
    """Run the fixed suites and the random schedules, and shrink the schedules that failed."""
    began, ends = now(), time.monotonic() + plan.budget_s
    before = plan.entries()
    fixed = run_fixed(plan, before, say)
    schedules = run_random(plan, before, ends - time.monotonic(), say)
    runs = [*fixed, schedules]
    cases = [case for run in runs for case in run.cases]
    left = _not_begun(plan, before, cases)
    overdue = [id for id, at in left.items() if at is None or now() - at > plan.every]
    _write_overdue(plan, began, {id: left[id] for id in overdue})
    return Night(
        seed=plan.seed,
        cases=cases,
        codes=[run.exit_code for run in runs],
        left=left,
        overdue=overdue,
        unable=plan.fixed.unable,
        shrunk=_shrink_failed(plan, schedules.cases, ends, say),
    )


def run_fixed(plan: Plan, before: Sequence[ledger.Entry], say: Callable[[str], None]) -> list[SubRun]:
    """Run the fixed cases that fit into half of the budget, in one run; no run if there is no case.

    :param before: the ledger entries of earlier runs
    """
    half_s = plan.budget_s / 2
    chosen = fitting(ledger.longest_ago(plan.fixed.planned, before), before, half_s * plan.at_once)
    say(f"fixed suites: {len(chosen)} of {len(plan.fixed.planned)} cases, the least recently run first")
    if not chosen:
        return []
    limits = (f"--seed={plan.seed}", f"--stop-after={half_s:.0f}", plan.junit("fixed"))
    return [_run(say, *chosen, *limits, *plan.run_options)]


def run_random(plan: Plan, before: Sequence[ledger.Entry], left_s: float, say: Callable[[str], None]) -> SubRun:
    """Run as many random schedules as fit into the time left, less what is kept for shrinking.

    :param before: the ledger entries of earlier runs
    :param left_s: seconds until the end of the night
    """
    usual_s = ledger.usual_s(RANDOM_SCHEDULES, before)
    begin_within_s = min(left_s * (1 - TO_SHRINK), left_s - usual_s)
    if begin_within_s > 0:
        count = max(1, int(begin_within_s * plan.at_once / max(1.0, usual_s)))
        say(
            f"random schedules: {count} a mode at most, begun within {begin_within_s / 60:.0f} min, "
            f"from seed {plan.seed}"
        )
        limits = (f"--seed={plan.seed}", f"--schedules={count}", f"--stop-after={begin_within_s:.0f}")
        run = _run(say, RANDOM_SCHEDULES, *limits, plan.junit("random"), *plan.run_options)
    else:
        say(f"random schedules: none; one takes {usual_s:.0f} s, and {max(0, left_s):.0f} s are left")
        run = SubRun(exit_code=EXIT_NOTHING_RAN)
    played = [case for case in run.cases if case.verdict != "skipped"]
    done, steps = steps_done(played)
    of_steps = f"; {done} of {steps} steps done" if steps else ""
    say(f"random schedules: {len(played)} played, {len(run.cases) - len(played)} skipped{of_steps}")
    return run


def _run(say: Callable[[str], None], *arguments: str) -> SubRun:
    run = run_apart(*arguments)
    if not run.cases:
        say(f"the run ended with exit code {run.exit_code} and without results")
    return run


def _not_begun(plan: Plan, before: Sequence[ledger.Entry], cases: Iterable[CaseResult]) -> dict[str, datetime | None]:
    """Return the cases that have to run and were not begun in the night, and when each last ran.

    :param cases: the results of the night. The ledger counts too: a run that was killed leaves no other result
    """
    known = {entry.run_id for entry in before}
    begun = {case.case.id for case in cases if case.verdict != "skipped"}
    begun |= {entry.id for entry in plan.entries() if entry.run_id not in known}
    last = ledger.last_run(before)
    return {id: last.get(id) for id in plan.fixed.owed(before, plan.backend) if id not in begun}


def _write_overdue(plan: Plan, began: datetime, overdue: Mapping[str, datetime | None]) -> None:
    """Write the overdue cases, and those that this machine or backend cannot run, for the report.

    :param overdue: when each case last ran
    """
    planned = {**plan.fixed.planned, **plan.fixed.lacking}
    skipped = [
        {"id": id, **vars(case), "backend": plan.backend, "verdict": "skipped", "reason": plan.fixed.unable[id]}
        for id, case in plan.fixed.lacking.items()
    ]
    had_to_run = [results.Overdue(id, planned[id].kafka, plan.backend, last) for id, last in overdue.items()]
    results.write_night(plan.runs_dir, began, had_to_run, skipped)


def _shrink_failed(
    plan: Plan, schedules: Iterable[CaseResult], ends: float, say: Callable[[str], None]
) -> list[Shrunk]:
    """Shrink the schedules that failed, for as long as there is time.

    :param ends: when the night ends, in monotonic seconds
    """
    shrunk: list[Shrunk] = []
    for case in schedules:
        if case.verdict != "invalid" or case.run_dir is None:
            continue
        again = shrink_command(case.run_dir)
        begin_by = ends - case.duration_s - START_S  # part of a schedule takes no longer than all of it
        if time.monotonic() >= begin_by:
            say(f"not shrunk, no time left: {case.case.id}: {again}")
            continue
        say(f"shrinking {case.case.id}: {case.reason[:200]}")
        try:
            shrunk.append(
                shrink_run(case.run_dir, [f"--mode={case.case.mode}", *plan.run_options], say, until=begin_by)
            )
        except (HarnessError, OSError) as error:  # the night has a result without it, even if the disk is full
            say(f"  not shrunk: {error}; again: {again}")
    return shrunk


def steps_done(played: Sequence[CaseResult]) -> tuple[int, int]:
    """Return how many steps of these schedules were done, and how many they have.

    The other steps were passed over or not reached. A run whose folder cannot be read, or that failed before its first
    step, counts as no steps.
    """
    done = steps = 0
    for run_dir in filter(None, (case.run_dir for case in played)):
        with suppress(JbodError):
            run = read_run_json(run_dir)
            done, steps = done + run.steps_done, steps + run.steps
    return done, steps


def fitting(cases: Sequence[str], entries: Sequence[ledger.Entry], seconds: float) -> list[str]:
    """Return the first cases that fit into this time together, and at least one."""
    chosen: list[str] = []
    for case in cases:
        seconds -= ledger.usual_s(case, entries)
        if seconds < 0 and chosen:
            break
        chosen.append(case)
    return chosen
