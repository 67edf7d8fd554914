"""Shrinks a failing schedule: plays it and ever smaller parts of it, as long as they fail.

The whole schedule is played again first, several times. If it never fails again, there is no search. If it fails only
sometimes, a part counts as not failing only after as many plays. A night sets a time limit. Then the first failure is
enough, and each part is played once. Only the smallest part is played several times, at the end.
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

TRIES = 3
"""How often the whole schedule is played at the start, and the smallest part at the end."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of shrinking a schedule.

    :ivar file: the file of the smallest schedule, for ``jbod run schedules --schedule FILE``; None if nothing failed
    :ivar fails: how often it failed in ``of`` plays; 1 of 1 if there was no time, and it is only known to have failed
        once
    """

    run_dir: str
    steps_before: int
    steps: list[dict[str, Any]]
    file: str | None
    fails: int
    of: int


def shrink_run(run_dir: Path, options: Sequence[str], say: Callable[[str], None], until: float = math.inf) -> Shrunk:
    """Find the smallest part of the schedule in a run folder that is still invalid, and write it beside the schedule.

    :param options: options of ``jbod run`` that choose the build, the backend and one mode
    :param until: no part is begun after this time, in monotonic seconds
    :raises HarnessError: a part could not be played, so its outcome is unknown
    """
    schedule = json.loads((run_dir / "run.json").read_text())["schedule"]
    steps = schedule["steps"]

    limited, cut_short = until < math.inf, False

    def play(candidates: Sequence[Sequence[Any]]) -> list[bool | None]:
        if time.monotonic() >= until:
            return [None] * len(candidates)
        failing = _failing(run_dir, schedule, candidates, options, until)
        known = [each for each in failing if each is not None]
        say(f"  {sum(known)} of {len(known)} fail, of {', '.join(str(len(each)) for each in candidates)} steps")
        return failing

    def again(part: Sequence[Any]) -> tuple[int, int]:
        known = [each for each in play([part] * TRIES) if each is not None]
        return (sum(known), len(known)) if known else (1, 1)  # no time left; it failed when it was found

    fails, of = (1, 1) if limited else again(steps)
    times = 1 if fails == of else TRIES

    def search(candidates: Sequence[Sequence[Any]]) -> list[bool]:
        nonlocal cut_short
        failing = [False] * len(candidates)
        for _ in range(times):
            held = [number for number, fails in enumerate(failing) if not fails]
            for number, fails in zip(held, play([candidates[each] for each in held]) if held else (), strict=True):
                failing[number] = bool(fails)
                cut_short |= fails is None
        return failing

    smallest = shrink(steps, search) if fails else steps
    if cut_short:
        unlimited = f"a search without a limit: {shrink_command(run_dir)}"
        say(f"  no time left, and a smaller part may fail too; {unlimited}")
    if limited or len(smallest) < len(steps):
        fails, of = again(smallest)
    if not fails and len(smallest) == len(steps):
        say(f"  the schedule did not fail again in {of} plays: nothing to shrink")
        return Shrunk(run_dir=str(run_dir), steps_before=len(steps), steps=steps, file=None, fails=0, of=of)
    kept = schedule | {"steps": smallest, "fails": fails, "of": of}
    file = write_atomically(run_dir / "smallest.json", json.dumps(kept, indent=2) + "\n")
    say(f"  {len(smallest)} of {len(steps)} steps are left and fail {fails} of {of} times: {file}")
    return Shrunk(
        run_dir=str(run_dir),
        steps_before=len(steps),
        steps=smallest,
        file=str(file),
        fails=fails,
        of=of,
    )


def shrink_command(run_dir: str | Path) -> str:
    """Return the command that searches without a time limit."""
    return shlex.join(["jbod", "shrink", str(run_dir)])


def play_command(file: str | Path, run: Mapping[str, Any]) -> str:
    """Return the command that plays a schedule on the build and backend of its original run.

    :param run: run.json of the original run
    """
    chosen = arguments_of({**vars(BuildOptions.recorded(run)), "backend": run["backend"]})
    return shlex.join(["jbod", "run", SCHEDULES, *chosen, f"--schedule={file}"])


def _failing(
    run_dir: Path, schedule: dict[str, Any], candidates: Sequence[Sequence[Any]], options: Sequence[str], until: float
) -> list[bool | None]:
    """Play these parts in one run. Returns whether each was invalid, or None if there was no time for it."""
    files = [
        write_atomically(run_dir / f"candidate-{number}.json", json.dumps(schedule | {"steps": list(steps)}))
        for number, steps in enumerate(candidates)
    ]
    wanted = [f"--schedule={file}" for file in files]
    if until < math.inf:
        wanted.append(f"--stop-after={max(0.0, until - time.monotonic()):.3f}")
    where = f"--runs-dir={run_dir / 'shrinking'}"  # not the runs folder, whose ledger must not count parts
    run = run_apart(RANDOM_SCHEDULES, f"--seed={schedule['seed'] or 0}", *wanted, *options, where, quiet=True)
    for file in files:
        file.unlink()
    cases = {case["id"].rpartition("-")[2].rstrip("]"): case for case in run.cases}
    for case in cases.values():
        out_of_time = case["verdict"] == "skipped" and time.monotonic() >= until
        if case["verdict"] in ("error", "skipped") and not out_of_time:  # must not count as not failing
            raise HarnessError(f"a part of the schedule could not be played: {case['reason']}")
    if len(cases) < len(candidates):
        raise HarnessError(f"{len(candidates) - len(cases)} parts of the schedule were not played")
    verdicts = [cases[str(number)]["verdict"] for number in range(len(candidates))]
    return [None if verdict == "skipped" else verdict == "invalid" for verdict in verdicts]
