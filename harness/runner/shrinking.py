"""Finds the smallest part of a failing schedule that still fails: delta debugging (Zeller & Hildebrandt 2002).

The whole schedule is played again first, several times. If it never fails again, there is nothing to find. If it fails
only sometimes, each part is played up to as many times, and fails if any play fails. With a time limit, as in a night,
each part is played once, and only the smallest is played again.

No library does the search, because each trial needs a whole cluster. All candidates of a round are played in one run,
side by side in one Spark session.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, TypeVar

from harness.errors import HarnessError
from harness.history.run_folder import RunRecord
from harness.host.atomic_write import write_atomically
from harness.kafka.builds import BuildOptions
from harness.runner.set_option import options_of
from harness.runner.subrun import arguments_of, run_apart
from harness.runner.suite_kinds import RANDOM_SCHEDULES, SCHEDULES

T = TypeVar("T")
StepJson = Mapping[str, object]
"""A step of a schedule, as its JSON has it."""


class ScheduleJson(TypedDict):
    """The fields of a schedule's JSON that are read here."""

    seed: int | None
    steps: list[StepJson]


TRIES = 3
"""How often the whole schedule is played at the start, and the smallest part at the end."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of shrinking a schedule.

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
    """Find the smallest part of the schedule in a run folder that is still invalid, and write it beside the schedule.

    :param options: options of ``jbod run`` that choose the build, the backend and one mode
    :param until: no part is begun after this time, in monotonic seconds
    :raises HarnessError: a part could not be played, so its outcome is unknown
    """
    schedule: ScheduleJson = json.loads((run_dir / "run.json").read_text())["schedule"]
    steps = schedule["steps"]
    plays = _Plays(run_dir=run_dir, schedule=schedule, options=options, until=until, say=say)
    limited = until < math.inf
    fails, of = (1, 1) if limited else plays.again(steps)
    if fails < of:
        plays.times = TRIES
    smallest = smallest_failing(steps, plays.which_fail) if fails else steps
    if plays.cut_short:
        unlimited = f"to search from the start without a limit: {shrink_command(run_dir)}"
        say(f"  no time left, and a smaller part may fail too; {unlimited}")
    if limited or len(smallest) < len(steps):
        fails, of = plays.again(smallest)
    if not fails and len(smallest) == len(steps):
        say(f"  the schedule did not fail again in {of} plays: nothing to shrink")
        return Shrunk(run_dir=str(run_dir), steps_before=len(steps), steps=steps, file=None, fails=0, of=of)
    kept = {**schedule, "steps": smallest, "fails": fails, "of": of}
    file = write_atomically(run_dir / "smallest.json", json.dumps(kept, indent=2) + "\n")
    say(f"  {len(smallest)} of {len(steps)} steps are left and fail {fails} of {of} times: {file}")
    return Shrunk(run_dir=str(run_dir), steps_before=len(steps), steps=smallest, file=str(file), fails=fails, of=of)


@dataclass(kw_only=True)
class _Plays:
    """Plays parts of one schedule, for as long as there is time.

    :ivar times: how often a part is played before it counts as one that does not fail
    :ivar cut_short: some part was not played for want of time
    """

    run_dir: Path
    schedule: ScheduleJson
    options: Sequence[str]
    until: float
    say: Callable[[str], None]
    times: int = 1
    cut_short: bool = False

    def which_fail(self, candidates: Sequence[Sequence[StepJson]]) -> list[bool]:
        """Return whether each part failed in any of its plays."""
        failing = [False] * len(candidates)
        for _ in range(self.times):
            left = [number for number, fails in enumerate(failing) if not fails]
            if left:
                for number, fails in zip(left, self._play([candidates[each] for each in left]), strict=True):
                    failing[number] = bool(fails)
                    self.cut_short |= fails is None
        return failing

    def again(self, part: Sequence[StepJson]) -> tuple[int, int]:
        """Play a part again. Return how often it failed, and of how many plays.

        If no time is left, this is (1, 1): the part failed when it was found.
        """
        known = [fails for fails in self._play([part] * TRIES) if fails is not None]
        return (sum(known), len(known)) if known else (1, 1)

    def _play(self, candidates: Sequence[Sequence[StepJson]]) -> list[bool | None]:
        """Play these parts in one run. Returns whether each was invalid, or None if there was no time for it."""
        if time.monotonic() >= self.until:
            return [None] * len(candidates)
        failing = self._run(candidates)
        known = [fails for fails in failing if fails is not None]
        self.say(f"  {sum(known)} of {len(known)} fail, of {', '.join(str(len(each)) for each in candidates)} steps")
        return failing

    def _run(self, candidates: Sequence[Sequence[StepJson]]) -> list[bool | None]:
        """Play these parts in one run; returns what :meth:`_play` returns.

        :raises HarnessError: a part could not be played
        """
        files = [
            write_atomically(
                self.run_dir / f"candidate-{number}.json", json.dumps({**self.schedule, "steps": list(steps)})
            )
            for number, steps in enumerate(candidates)
        ]
        wanted = [f"--schedule={file}" for file in files]
        if self.until < math.inf:
            wanted.append(f"--stop-after={max(0.0, self.until - time.monotonic()):.3f}")
        where = f"--runs-dir={self.run_dir / 'shrinking'}"  # not the runs folder, whose ledger must not count parts
        seed = f"--seed={self.schedule['seed'] or 0}"
        run = run_apart(RANDOM_SCHEDULES, seed, *wanted, *self.options, where, quiet=True)
        for file in files:
            file.unlink()
        cases = {case.case.id.rpartition("-")[2].rstrip("]"): case for case in run.cases}
        for case in cases.values():
            out_of_time = case.verdict == "skipped" and time.monotonic() >= self.until
            if case.verdict in ("error", "skipped") and not out_of_time:  # must not count as not failing
                raise HarnessError(f"a part of the schedule could not be played: {case.reason}")
        if len(cases) < len(candidates):
            missing = len(candidates) - len(cases)
            raise HarnessError(
                f"{missing} of {len(candidates)} parts of the schedule were not played: "
                f"the run ended with exit code {run.exit_code}"
            )
        verdicts = [cases[str(number)].verdict for number in range(len(candidates))]
        return [None if verdict == "skipped" else verdict == "invalid" for verdict in verdicts]


def smallest_failing(items: Sequence[T], failing: Callable[[list[list[T]]], list[bool]]) -> list[T]:
    """Return a subset of ``items``, in their order, that fails, and does not fail when any single item is left out.

    If failures are not deterministic, the search may stop early. The result has failed at least once.

    :param items: known to fail
    :param failing: returns which of these candidates fail; each is a subset of ``items``, and none is passed twice
    """
    smallest, parts = list(items), 2
    known: dict[tuple[int, ...], bool] = {}
    while len(smallest) > 1:
        parts = min(parts, len(smallest))
        size = -(-len(smallest) // parts)
        chunks = [range(start, min(start + size, len(smallest))) for start in range(0, len(smallest), size)]
        wanted = [[smallest[index] for index in chunk] for chunk in chunks]
        if len(chunks) > 2:  # with two parts, each is the complement of the other
            # Complements come first, because time may run out. Each part lies in a larger one that just did not fail.
            wanted = [[smallest[i] for i in range(len(smallest)) if i not in chunk] for chunk in chunks] + wanted
        new = [candidate for candidate in wanted if _key(candidate) not in known]
        known |= zip(map(_key, new), failing(new) if new else [], strict=True)
        failed = [candidate for candidate in wanted if known[_key(candidate)]]
        if failed:
            smallest = min(failed, key=len)
            parts = 2
        elif size == 1:
            break
        else:
            parts *= 2
    return smallest


def _key(candidate: Sequence[T]) -> tuple[int, ...]:
    return tuple(map(id, candidate))


def shrink_command(run_dir: str | Path) -> str:
    """Return the command that searches without a time limit."""
    return shlex.join(["jbod", "shrink", str(run_dir)])


def play_command(file: str | Path, run: RunRecord) -> str:
    """Return the command that plays a schedule on the build and backend of its original run."""
    build = vars(BuildOptions.of(run.kafka, run.mode))
    unusual = options_of(run.profile, run.settings, run.listener_security)
    chosen = arguments_of({**build, "backend": run.backend, **unusual})
    return shlex.join(["jbod", "run", SCHEDULES, *chosen, f"--schedule={file}"])
