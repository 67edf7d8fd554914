"""A failing schedule is played, and then parts of it, ever smaller ones, as long as they fail.

The whole is played again first, several times: one that never fails again is not looked through, and where it fails now
and then, a part is taken for one that holds only after as many plays. Where time is limited, as in a night, there is
none for that: that the whole failed is known, each part is played once, and only what is left in the end again.
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
"""How often the whole is played again, and the smallest part in the end, to say how often it fails."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """A failing schedule, made smaller.

    :ivar file: where the smallest is kept; ``jbod run schedules --schedule FILE`` plays it. None where nothing failed
    :ivar fails: how often it failed when it was played ``of`` times more; 1 of 1 where there was no time for that, and
        what is known is that it failed once
    """

    run_dir: str
    steps_before: int
    steps: list[dict[str, Any]]
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
        return (sum(known), len(known)) if known else (1, 1)  # no time for that; it failed when it was found

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
        all_of_it = f"without a limit, from the whole on: {shrink_command(run_dir)}"
        say(f"  there was no time to look on, and a smaller part may fail too; {all_of_it}")
    if limited or len(smallest) < len(steps):
        fails, of = again(smallest)
    if not fails and len(smallest) == len(steps):
        say(f"  it does not fail again, in {of} times: there is nothing to look for")
        return Shrunk(run_dir=str(run_dir), steps_before=len(steps), steps=steps, file=None, fails=0, of=of)
    kept = schedule | {"steps": smallest, "fails": fails, "of": of}
    file = write_atomically(run_dir / "smallest.json", json.dumps(kept, indent=2) + "\n")
    say(f"  {len(smallest)} of {len(steps)} steps are left, which fail {fails} of {of} times: {file}")
    return Shrunk(
        run_dir=str(run_dir),
        steps_before=len(steps),
        steps=smallest,
        file=str(file),
        fails=fails,
        of=of,
    )


def shrink_command(run_dir: str | Path) -> str:
    """The command that looks for the smallest part, for as long as it takes."""
    return shlex.join(["jbod", "shrink", str(run_dir)])


def play_command(file: str | Path, run: Mapping[str, Any]) -> str:
    """The command that plays a schedule on the build and in the backend of the run that it comes from.

    :param run: its run.json
    """
    chosen = arguments_of({**vars(BuildOptions.recorded(run)), "backend": run["backend"]})
    return shlex.join(["jbod", "run", SCHEDULES, *chosen, f"--schedule={file}"])


def _failing(
    run_dir: Path, schedule: dict[str, Any], candidates: Sequence[Sequence[Any]], options: Sequence[str], until: float
) -> list[bool | None]:
    """Which parts come out invalid, played in one run; None of one that there was no time for any more."""
    files = [
        write_atomically(run_dir / f"candidate-{number}.json", json.dumps(schedule | {"steps": list(steps)}))
        for number, steps in enumerate(candidates)
    ]
    wanted = [f"--schedule={file}" for file in files]
    if until < math.inf:
        wanted.append(f"--stop-after={max(0.0, until - time.monotonic()):.3f}")
    where = f"--runs-dir={run_dir / 'shrinking'}"  # not among the runs: parts are no cases of anybody's
    run = run_apart(RANDOM_SCHEDULES, f"--seed={schedule['seed'] or 0}", *wanted, *options, where, quiet=True)
    for file in files:
        file.unlink()
    cases = {case["id"].rpartition("-")[2].rstrip("]"): case for case in run.cases}
    for case in cases.values():
        out_of_time = case["verdict"] == "skipped" and time.monotonic() >= until
        if case["verdict"] in ("error", "skipped") and not out_of_time:  # taken for one that holds it would mislead
            raise HarnessError(f"a part of the schedule could not be played: {case['reason']}")
    if len(cases) < len(candidates):
        raise HarnessError(f"{len(candidates) - len(cases)} parts of the schedule were not played")
    verdicts = [cases[str(number)]["verdict"] for number in range(len(candidates))]
    return [None if verdict == "skipped" else verdict == "invalid" for verdict in verdicts]
