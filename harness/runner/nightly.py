"""Runs the fixed suites, longest ago first, and then random schedules, within a time budget.

Half of the budget goes to the fixed suites. If it is too short for all of them, each gets its turn over several nights
(:mod:`harness.runner.ledger`). The age of a case decides whether it is chosen. Chosen cases run oldest first, each
followed by the cases that share its cluster. The result lists the cases that were not begun, and is inconclusive if one
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
from harness.runner.case import CaseResult
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


@dataclass(kw_only=True)
class Night:
    """The result of a night.

    :ivar seed: of the schedules and all other random choices
    :ivar codes: the exit codes of its runs
    :ivar left: the cases of :meth:`Fixed.owed` that were not begun, and when each last ran
    :ivar overdue: the cases of ``left`` that had to run
    :ivar unable: the cases that cannot run here, and why
    """

    seed: int = 0
    cases: list[CaseResult] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    left: dict[str, datetime | None] = field(default_factory=dict)
    overdue: list[str] = field(default_factory=list)
    unable: Mapping[str, str] = field(default_factory=dict)
    shrunk: list[Shrunk] = field(default_factory=list)

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
            "overdue": self.overdue,
            "unable": dict(self.unable),
            "shrunk": [vars(each) for each in self.shrunk],
        }


def run_night(
    *,
    fixed: Fixed,
    backend: str,
    budget_s: float,
    seed: int,
    runs_dir: Path,
    every: timedelta,
    jobs: int,
    options: Sequence[str],
    say: Callable[[str], None],
) -> Night:
    """Run a night.

    :param every: a fixed case is overdue after this long without a run
    :param options: options of ``jbod run``, such as the build's
    """
    night, began, ends = Night(seed=seed, unable=fixed.unable), now(), time.monotonic() + budget_s
    before = fixed.known(ledger.read(runs_dir), backend)
    common = [*options, f"--backend={backend}", f"--runs-dir={runs_dir}", f"--jobs={jobs}"]

    def keep(run: SubRun) -> SubRun:
        night.cases += run.cases
        night.codes.append(run.exit_code)
        if not run.cases:
            say(f"the run ended with exit code {run.exit_code} and without results")
        return run

    chosen = fitting(ledger.longest_ago(fixed.planned, before), before, budget_s / 2 * jobs)
    say(f"fixed suites: {len(chosen)} of {len(fixed.planned)} cases, longest ago first")
    if chosen:
        junit = f"--junit={runs_dir.parent / 'junit-fixed.xml'}"
        keep(run_apart(*chosen, f"--seed={seed}", f"--stop-after={budget_s / 2:.0f}", junit, *common))
    left, takes = ends - time.monotonic(), ledger.usual_s(RANDOM_SCHEDULES, before)
    remains = min(left * (1 - TO_SHRINK), left - takes)
    if remains > 0:
        count = max(1, int(remains * jobs / max(1.0, takes)))
        say(f"random schedules: {count} a mode at most, begun within {remains / 60:.0f} min, from seed {seed}")
        drawn = (f"--seed={seed}", f"--schedules={count}", f"--stop-after={remains:.0f}")
        schedules = keep(
            run_apart(RANDOM_SCHEDULES, *drawn, f"--junit={runs_dir.parent / 'junit-random.xml'}", *common)
        )
    else:
        say(f"random schedules: none; one takes {takes:.0f} s, and {max(0, left):.0f} s are left")
        schedules = SubRun(exit_code=EXIT_NOTHING_RAN, cases=())
        night.codes.append(schedules.exit_code)
    played = [case for case in schedules.cases if case.verdict != "skipped"]
    done, steps = steps_done(played)
    of_steps = f"; {done} of {steps} steps done" if steps else ""
    say(f"random schedules: {len(played)} played, {len(schedules.cases) - len(played)} not{of_steps}")
    known = {entry.run_id for entry in before}
    noted = [entry for entry in fixed.known(ledger.read(runs_dir), backend) if entry.run_id not in known]
    # The ledger, too: a run that was killed leaves no other result.
    begun = {case.case.id for case in night.cases if case.verdict != "skipped"} | {entry.id for entry in noted}
    last, owed = ledger.last_run(before), fixed.owed(before, backend)
    night.left = {id: last.get(id) for id in owed if id not in begun}
    night.overdue = [id for id, at in night.left.items() if at is None or now() - at > every]
    skipped = [
        {"id": id, **vars(planned), "backend": backend, "verdict": "skipped", "reason": fixed.unable[id]}
        for id, planned in fixed.lacking.items()
    ]
    overdue = [results.Overdue(id, owed[id].kafka, backend, night.left[id]) for id in night.overdue]
    results.write_night(runs_dir, began, overdue, skipped)
    for case in schedules.cases:
        if case.verdict != "invalid" or case.run_dir is None:
            continue
        again = shrink_command(case.run_dir)
        begin_by = ends - case.duration_s - START_S  # part of a schedule takes no longer than all of it
        if time.monotonic() >= begin_by:
            say(f"not shrunk, no time left: {case.case.id}: {again}")
            continue
        say(f"shrinking {case.case.id}: {case.reason[:200]}")
        try:
            one_mode = [f"--mode={case.case.mode}", *common]
            night.shrunk.append(shrink_run(case.run_dir, one_mode, say, until=begin_by))
        except (HarnessError, OSError) as error:  # a full disk is no reason to forget the night
            say(f"  {error}; again: {again}")
    return night


def steps_done(played: Sequence[CaseResult]) -> tuple[int, int]:
    """Of the steps of these schedules how many were done, the others passed over or not got to; and how many there are.

    A run whose folder cannot be read, or that failed before its first step, counts as no steps.
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
