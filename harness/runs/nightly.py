"""A night: the fixed suites, those first that ran longest ago, then random schedules, within a budget of time.

Half of the budget goes to the fixed suites, so that a budget that is too short for all of them gets round to each in
turn, night after night (:mod:`harness.runs.ledger`), and the random ones always get their half. A case that is not
begun in time is not begun; the night says which were left, and is not green where one was left for longer than it may
be (``overdue``). A failing schedule is shrunk, which may take as long again as a quarter of the budget.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from harness.errors import EXIT_INCONCLUSIVE, HarnessError, worst
from harness.journal import now
from harness.machine.whole import write_whole
from harness.runs import ledger
from harness.runs.shrink import shrink
from harness.runs.subrun import SubRun, run_apart

SCHEDULES = "schedules/random"
NOT_FIXED = ("schedules/", "control/")
"""No fixed suites: drawn anew each night; or red where the harness is right, which its own tests look at."""
TRIES = 3
"""How often the smallest failing schedule is played once more, to say how often it fails."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """A failing schedule, made smaller.

    :ivar file: where the smallest is kept; ``jbod run schedules --schedule FILE`` plays it
    :ivar fails: how often it failed when it was played ``of`` times more
    """

    run_dir: str
    steps_before: int
    steps: list[dict[str, Any]]
    file: str
    fails: int
    of: int


@dataclass(kw_only=True)
class Night:
    """What came of it.

    :ivar seed: of the schedules, and of all that is left to chance
    :ivar left: cases that were not begun, and when each was last run
    :ivar overdue: those of them that had to run
    """

    seed: int = 0
    cases: list[dict[str, Any]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    left: dict[str, datetime | None] = field(default_factory=dict)
    overdue: list[str] = field(default_factory=list)
    shrunk: list[Shrunk] = field(default_factory=list)

    def exit_code(self) -> int:
        """The worst of all; what had to run and didn't leaves the night inconclusive."""
        return worst([*self.codes, *([EXIT_INCONCLUSIVE] if self.overdue else [])])

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` has it: a run's, and what only a night has."""
        words = ("valid", "invalid", "unknown", "error", "skipped")
        return {
            "schema": 1,
            "exit_code": self.exit_code(),
            "seed": self.seed,
            "scenarios": self.cases,
            "totals": {word: sum(case["verdict"] == word for case in self.cases) for word in words}
            | {"deviations": sum("deviations" in case for case in self.cases)},
            "left": {id: at.isoformat() if at else None for id, at in self.left.items()},
            "overdue": self.overdue,
            "shrunk": [vars(each) for each in self.shrunk],
        }


def run_night(
    *,
    fixed: Mapping[str, str],
    budget_s: float,
    seed: int,
    runs_dir: Path,
    every: timedelta,
    jobs: int,
    options: Sequence[str],
    say: Callable[[str], None],
) -> Night:
    """Run it.

    :param fixed: the ids of all fixed cases, each with the Kafka version that it runs on
    :param every: the longest that a fixed case may go without being run
    :param options: of ``jbod run``, such as the build's
    """
    night, ends = Night(seed=seed), time.monotonic() + budget_s
    before = [entry for entry in ledger.read(runs_dir) if fixed.get(entry.id, entry.kafka) == entry.kafka]
    common = [*options, f"--runs-dir={runs_dir}", f"--jobs={jobs}"]

    def keep(run: SubRun) -> SubRun:
        night.cases += run.cases
        night.codes.append(run.exit_code)
        return run

    chosen = fitting(ledger.longest_ago(fixed, before), before, budget_s / 2 * jobs)
    say(f"fixed suites: {len(chosen)} of {len(fixed)} cases, those first that ran longest ago")
    if chosen:
        junit = f"--junit={runs_dir.parent / 'junit-fixed.xml'}"
        keep(run_apart(*chosen, f"--seed={seed}", f"--stop-after={budget_s / 2:.0f}", junit, *common))
    remains = ends - time.monotonic()
    count = max(1, int(remains * jobs / ledger.usual_s(SCHEDULES, before)))
    say(f"random schedules: {count} a mode at most, in {remains / 60:.0f} min, from seed {seed}")
    drawn = (f"--seed={seed}", f"--schedules={count}", f"--stop-after={remains:.0f}")
    schedules = keep(run_apart(SCHEDULES, *drawn, f"--junit={runs_dir.parent / 'junit-random.xml'}", *common))
    last, begun = ledger.last_run(before), {case["id"] for case in night.cases if case["verdict"] != "skipped"}
    night.left = {id: last.get(id) for id in fixed if id not in begun}
    night.overdue = [id for id, at in night.left.items() if at is None or now() - at > every]
    for case in schedules.cases:
        if case["verdict"] == "invalid":
            say(f"shrinking {case['id']}: {case['reason'][:200]}")
            try:
                one_mode = [f"--mode={case['mode']}", *common]
                night.shrunk.append(shrink_run(Path(case["run_dir"]), one_mode, say, until=ends + budget_s / 4))
            except HarnessError as error:
                say(f"  {error}; again: jbod shrink {case['run_dir']}")
    return night


def fitting(cases: Sequence[str], entries: Sequence[ledger.Entry], seconds: float) -> list[str]:
    """The first of the cases that take so long together, and at least one."""
    chosen: list[str] = []
    for case in cases:
        seconds -= ledger.usual_s(case, entries)
        if seconds < 0 and chosen:
            break
        chosen.append(case)
    return chosen


def shrink_run(run_dir: Path, options: Sequence[str], say: Callable[[str], None], until: float = math.inf) -> Shrunk:
    """The smallest part of the schedule that a run folder records which still comes out invalid; kept beside it.

    :param options: of ``jbod run``, which choose the build and one mode
    :param until: when to be content with what has been found, in monotonic seconds
    """
    schedule = json.loads((run_dir / "run.json").read_text())["schedule"]

    def play(candidates: Sequence[Sequence[Any]]) -> list[bool]:
        files = [
            write_whole(run_dir / f"candidate-{number}.json", json.dumps(schedule | {"steps": list(steps)}))
            for number, steps in enumerate(candidates)
        ]
        wanted = [f"--schedule={file}" for file in files]
        where = f"--runs-dir={run_dir / 'shrinking'}"  # not among the runs: parts are no cases of anybody's
        seed = f"--seed={schedule['seed'] or 0}"
        run = run_apart(SCHEDULES, seed, *wanted, *options, where, quiet=True)
        cases = {case["id"].rpartition("-")[2].rstrip("]"): case for case in run.cases}
        for file in files:
            file.unlink()
        for case in cases.values():
            if case["verdict"] == "error":  # to take it for one that holds would lead the search astray
                raise HarnessError(f"a part of the schedule could not be played: {case['reason']}")
        if len(cases) < len(candidates):
            raise HarnessError(f"{len(candidates) - len(cases)} parts of the schedule were not played")
        found = [cases[str(number)]["verdict"] == "invalid" for number in range(len(candidates))]
        say(f"  {sum(found)} of {len(found)} parts fail, of {', '.join(str(len(steps)) for steps in candidates)} steps")
        return found

    def search(candidates: Sequence[Sequence[Any]]) -> list[bool]:
        return play(candidates) if time.monotonic() < until else [False] * len(candidates)

    smallest = shrink(schedule["steps"], search)
    if time.monotonic() >= until:
        say("  there was no time to look on: a smaller part may fail too")
    file = write_whole(run_dir / "smallest.json", json.dumps(schedule | {"steps": smallest}, indent=2) + "\n")
    fails = sum(play([smallest] * TRIES))
    say(f"  {len(smallest)} of {len(schedule['steps'])} steps are left, which fail {fails} of {TRIES} times: {file}")
    return Shrunk(
        run_dir=str(run_dir),
        steps_before=len(schedule["steps"]),
        steps=smallest,
        file=str(file),
        fails=fails,
        of=TRIES,
    )
