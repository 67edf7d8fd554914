"""Which cases reach which places: the suites run once on a build that notes its places."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.host.atomic_write import write_atomically
from suites.mutants.automatic.places import NotingBuild, passed_in
from suites.mutants.measuring import ALL, TOGETHER, Measuring, parts


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What a case reached.

    :ivar places: the numbers of the places
    """

    case: str
    duration_s: float
    places: tuple[int, ...]


async def measure_reach(
    measuring: Measuring, build: NotingBuild, at_once: int, say: Callable[[str], None]
) -> Mapping[str, Reached]:
    """Run each case of the suites, unless an earlier call did; return what each of them reached, by case.

    What a case reaches only says on which mutants it is tried, so the result of another revision of jbod still counts.

    :param at_once: how many runs at once
    """
    file = measuring.how.runs_dir / "trials" / f"reach-{measuring.name(build.home)}.json"
    known = {each.case: each for each in ([] if measuring.how.fresh else _read(file))}
    cases = measuring.cases(measuring.how.suites or (ALL,))
    missing = [case for case in cases if case not in known]
    places = asyncio.Semaphore(at_once)

    async def run(some: Sequence[str]) -> None:
        async with places:
            for trial in await measuring.run(some, measuring.options(build.home), measuring.how.seed):
                if trial.run_dir is None or trial.verdict == "skipped":
                    say(f"which places {trial.case} reaches is unknown: {trial.reason}")
                    continue
                passed = tuple(sorted(passed_in(Path(trial.run_dir))))
                known[trial.case] = Reached(case=trial.case, duration_s=trial.duration_s, places=passed)
                say(f"{trial.case} reaches {len(passed)} of {len(build.places)} places ({trial.verdict})")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, msgspec.json.encode([*known.values()]).decode())

    await asyncio.gather(*map(run, parts(missing, (TOGETHER,))))
    return {case: known[case] for case in cases if case in known}


def _read(file: Path) -> list[Reached]:
    with suppress(FileNotFoundError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=list[Reached])
    return []
