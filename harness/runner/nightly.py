"""A night: the fixed suites, those first that ran longest ago, then random schedules, within a budget of time.

Half of the budget goes to the fixed suites, so that a budget that is too short for all of them gets round to each in
turn, night after night (:mod:`harness.runner.ledger`), and the random ones always get their half. Which cases fit is
decided by their age; of those that do the oldest comes first, and with it those that share its cluster. A case that
is not begun in time is not begun; the night says which were left, and is not green where one was left for longer than
it may be (``overdue``). A failing schedule is shrunk, within the budget too (:data:`TO_SHRINK`). Of the night's second
half nothing is begun that usually takes longer than what is left.
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
"""So much of the time of random schedules is kept for shrinking those that fail."""
START_S = 15.0
"""What a run takes beside its cases: Python, pytest, Spark."""


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """The fixed suites on this machine.

    :ivar planned: the cases that can be run here, by their ids
    :ivar unable: of the others why they can't: what the machine, the backend or the build doesn't have
    :ivar lacking: those of them that the build has, and the machine or the backend can't do
    """

    planned: Mapping[str, ledger.Planned]
    unable: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, ledger.Planned] = field(default_factory=dict)

    def known(self, entries: Iterable[ledger.Entry], backend: str) -> list[ledger.Entry]:
        """What of a ledger is of these builds, and of this backend."""
        return ledger.alike(entries, {**self.planned, **self.lacking}, backend)

    def owed(self, entries: Iterable[ledger.Entry], backend: str) -> dict[str, ledger.Planned]:
        """What has to run: what can be run here, and what can't any more but has shown something once, since a machine
        that has lost an ability is no reason for a green night.
        """
        last = ledger.last_run(self.known(entries, backend))
        return {**self.planned, **{id: planned for id, planned in self.lacking.items() if id in last}}

    def why_not(self) -> list[str]:
        """What can't be run, a line for each reason."""
        return [
            f"can't be run here, because {why}: {', '.join(id for id, its in self.unable.items() if its == why)}"
            for why in dict.fromkeys(self.unable.values())
        ]


@dataclass(kw_only=True)
class Night:
    """What came of it.

    :ivar seed: of the schedules, and of all that is left to chance
    :ivar codes: of its runs
    :ivar left: cases of :meth:`Fixed.owed` that were not begun, and when each was last run
    :ivar overdue: those of them that had to run
    :ivar unable: cases that can't be run here, and why
    """

    seed: int = 0
    cases: list[CaseResult] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    left: dict[str, datetime | None] = field(default_factory=dict)
    overdue: list[str] = field(default_factory=list)
    unable: Mapping[str, str] = field(default_factory=dict)
    shrunk: list[Shrunk] = field(default_factory=list)

    def exit_code(self) -> int:
        """The worst of all; what had to run and didn't leaves the night inconclusive, and so does a half of it of which
        nothing ran."""
        ran = [code for code in self.codes if code != EXIT_NOTHING_RAN]
        is_whole = len(ran) in (0, len(self.codes)) and not self.overdue
        return worst([*(ran or self.codes), *([] if is_whole else [EXIT_INCONCLUSIVE])])

    def to_json(self) -> dict[str, object]:
        """The content of ``--json``: that of one run, and what only a night has."""
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
    """Run it.

    :param every: the longest that a fixed case may go without being run
    :param options: of ``jbod run``, such as the build's
    """
    night, began, ends = Night(seed=seed, unable=fixed.unable), now(), time.monotonic() + budget_s
    before = fixed.known(ledger.read(runs_dir), backend)
    common = [*options, f"--backend={backend}", f"--runs-dir={runs_dir}", f"--jobs={jobs}"]

    def keep(run: SubRun) -> SubRun:
        night.cases += run.cases
        night.codes.append(run.exit_code)
        if not run.cases:
            say(f"it ended with exit code {run.exit_code}, and didn't say how its cases came out")
        return run

    chosen = fitting(ledger.longest_ago(fixed.planned, before), before, budget_s / 2 * jobs)
    say(f"fixed suites: {len(chosen)} of {len(fixed.planned)} cases, those first that ran longest ago")
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
    # By the ledger, too: a run that was killed has told of nothing else.
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
        begin_by = ends - case.duration_s - START_S  # a part takes no longer than the whole
        if time.monotonic() >= begin_by:
            say(f"not shrunk, for want of time: {case.case.id}: {again}")
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

    One whose run folder can't be read, or that failed before its first step, tells of none.
    """
    done = steps = 0
    for run_dir in filter(None, (case.run_dir for case in played)):
        with suppress(JbodError):
            run = read_run_json(run_dir)
            done, steps = done + run.get("steps_done", 0), steps + run.get("steps", 0)
    return done, steps


def fitting(cases: Sequence[str], entries: Sequence[ledger.Entry], seconds: float) -> list[str]:
    """The first of the cases that take so long together, and at least one."""
    chosen: list[str] = []
    for case in cases:
        seconds -= ledger.usual_s(case, entries)
        if seconds < 0 and chosen:
            break
        chosen.append(case)
    return chosen
