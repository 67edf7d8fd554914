"""Find the smallest part of a failing schedule that still fails.

The whole schedule is played again first, several times. If it never fails again, there is nothing to find. If it fails
now and then, a part counts as one that does not fail only after as many plays. With a time limit, as in a night, each
part is played once, and only the smallest is played again.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.host.atomic_write import write_atomically
from harness.kafka.builds import BuildOptions
from harness.runner.delta_debugging import shrink
from harness.runner.subrun import arguments_of, run_apart
from harness.runner.suite_kinds import RANDOM_SCHEDULES, SCHEDULES

StepJson = Mapping[str, Any]
"""A step of a schedule, as its JSON has it."""

TRIES = 3
"""How often the whole is played again, and the smallest part in the end, to say how often it fails."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """A failing schedule, made smaller.

    :ivar file: the smallest part, which ``jbod run schedules --schedule FILE`` plays; None if nothing failed again
    :ivar fails: how often it failed in ``of`` more plays; 1 of 1 if there was no time for them
    """

    run_dir: str
    steps_before: int
    steps: Sequence[StepJson]
    file: str | None
    fails: int
    of: int


def shrink_run(run_dir: Path, options: Sequence[str], say: Callable[[str], None], until: float = math.inf) -> Shrunk:
    """The smallest part of the schedule that a run folder records which still comes out invalid; kept beside it.

    :param options: of ``jbod run``, which choose the build, the backend and one mode
    :param until: after that no part is begun, and what has been found will do; in monotonic seconds
    :raises HarnessError: a part could not be played: nothing is known of it then
    """
    schedule = json.loads((run_dir / "run.json").read_text())["schedule"]
    steps: list[StepJson] = schedule["steps"]
    plays = _Plays(run_dir=run_dir, schedule=schedule, options=options, until=until, say=say)
    limited = until < math.inf
    fails, of = (1, 1) if limited else plays.again(steps)
    if fails < of:
        plays.times = TRIES
    smallest = shrink(steps, plays.which_fail) if fails else steps
    if plays.cut_short:
        all_of_it = f"without a limit, from the whole on: {shrink_command(run_dir)}"
        say(f"  there was no time to look on, and a smaller part may fail too; {all_of_it}")
    if limited or len(smallest) < len(steps):
        fails, of = plays.again(smallest)
    if not fails and len(smallest) == len(steps):
        say(f"  it does not fail again, in {of} times: there is nothing to look for")
        return Shrunk(run_dir=str(run_dir), steps_before=len(steps), steps=steps, file=None, fails=0, of=of)
    kept = schedule | {"steps": smallest, "fails": fails, "of": of}
    file = write_atomically(run_dir / "smallest.json", json.dumps(kept, indent=2) + "\n")
    say(f"  {len(smallest)} of {len(steps)} steps are left, which fail {fails} of {of} times: {file}")
    return Shrunk(run_dir=str(run_dir), steps_before=len(steps), steps=smallest, file=str(file), fails=fails, of=of)


@dataclass(kw_only=True)
class _Plays:
    """Plays parts of one schedule, for as long as there is time.

    :ivar times: how often a part is played before it counts as one that does not fail
    :ivar cut_short: some part was not played for want of time
    """

    run_dir: Path
    schedule: Mapping[str, object]
    options: Sequence[str]
    until: float
    say: Callable[[str], None]
    times: int = 1
    cut_short: bool = False

    def which_fail(self, candidates: Sequence[Sequence[StepJson]]) -> list[bool]:
        """Whether each part failed in any of its plays."""
        failing = [False] * len(candidates)
        for _ in range(self.times):
            left = [number for number, fails in enumerate(failing) if not fails]
            if left:
                for number, fails in zip(left, self._play([candidates[each] for each in left]), strict=True):
                    failing[number] = bool(fails)
                    self.cut_short |= fails is None
        return failing

    def again(self, part: Sequence[StepJson]) -> tuple[int, int]:
        """How often a part fails in how many plays; (1, 1) if there was no time, since it failed when it was found."""
        known = [fails for fails in self._play([part] * TRIES) if fails is not None]
        return (sum(known), len(known)) if known else (1, 1)

    def _play(self, candidates: Sequence[Sequence[StepJson]]) -> list[bool | None]:
        """Whether each part comes out invalid, in one run of all; None for one that there was no time for."""
        if time.monotonic() >= self.until:
            return [None] * len(candidates)
        failing = self._run(candidates)
        known = [fails for fails in failing if fails is not None]
        self.say(f"  {sum(known)} of {len(known)} fail, of {', '.join(str(len(each)) for each in candidates)} steps")
        return failing

    def _run(self, candidates: Sequence[Sequence[StepJson]]) -> list[bool | None]:
        """:raises HarnessError: a part could not be played"""
        files = [
            write_atomically(
                self.run_dir / f"candidate-{number}.json", json.dumps({**self.schedule, "steps": list(steps)})
            )
            for number, steps in enumerate(candidates)
        ]
        wanted = [f"--schedule={file}" for file in files]
        if self.until < math.inf:
            wanted.append(f"--stop-after={max(0.0, self.until - time.monotonic()):.3f}")
        where = f"--runs-dir={self.run_dir / 'shrinking'}"  # parts are no cases, so they stay out of the runs folder
        seed = f"--seed={self.schedule['seed'] or 0}"
        run = run_apart(RANDOM_SCHEDULES, seed, *wanted, *self.options, where, quiet=True)
        for file in files:
            file.unlink()
        cases = {case.case.id.rpartition("-")[2].rstrip("]"): case for case in run.cases}
        for case in cases.values():
            out_of_time = case.verdict == "skipped" and time.monotonic() >= self.until
            if case.verdict in ("error", "skipped") and not out_of_time:  # it must not count as a part that holds
                raise HarnessError(f"a part of the schedule could not be played: {case.reason}")
        if len(cases) < len(candidates):
            raise HarnessError(f"{len(candidates) - len(cases)} parts of the schedule were not played")
        verdicts = [cases[str(number)].verdict for number in range(len(candidates))]
        return [None if verdict == "skipped" else verdict == "invalid" for verdict in verdicts]


def shrink_command(run_dir: str | Path) -> str:
    """The command that looks for the smallest part, for as long as it takes."""
    return shlex.join(["jbod", "shrink", str(run_dir)])


def play_command(file: str | Path, run: Mapping[str, Any]) -> str:
    """The command that plays a schedule on the build and in the backend of the run that it comes from.

    :param run: its run.json
    """
    chosen = arguments_of({**vars(BuildOptions.recorded(run)), "backend": run["backend"]})
    return shlex.join(["jbod", "run", SCHEDULES, *chosen, f"--schedule={file}"])
