"""Finds the hold that makes a rare failure frequent (``jbod pin``).

The case runs again without a hold, to see how rare the failure is. A few runs then note which points threads came to
while faults were in force. Each of these points is held in one run, longer each time until the case fails, and then
again: a race may need luck even with the right hold. The holds with which it failed are tried for all times, in a few
runs each: a failure may have been luck, and neither the shortest nor the longest time need be the best. If it fails
again, the best are tried in as many runs as the case without a hold. If the case still does not fail in each run, the
best hold is tried for the longer times that a few runs did not need, and then beside a hold at each other point: in a
race, two threads may each have to wait. A hold delays a thread and changes nothing else, so a failure with it is a
failure of Kafka.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.events import FaultInjecting, HoldOver
from harness.journal import read_journal
from harness.runner.case_result import CaseResult
from harness.runner.hold_option import CONTROLLERS, OTHERS, STRUCK, WHERE, HoldOption
from harness.runner.subrun import run_beside
from harness.waiting import CROWDED

_NOTED = 3
"""The runs that note which points threads come to: in a race, a thread does not come to each point in each run."""
_BEST = 3
"""How many of the holds with which the case failed are tried for longer times."""
_FEW = 3
"""The fewest runs with a hold for one time, and those with two holds."""
_BOTH_S = ((2.0, 1.0), (1.0, 2.0))
"""How long the threads of two holds are held, if their points allow so much: one of them goes on first."""
_CONFIRMED = 2
"""How many of those that are best in a few runs are tried in all runs."""
_TO_CONFIRM = 0.5
"""The share of the time that is kept for more runs with the best holds."""
_NOTHING_ALIKE = re.compile(r"[\d./:\[\]-]+|'[^']*'")
_CROWDING = re.compile(rf"^{CROWDED} \(.*?\)(?:, [\d.]+ s in all)?: ")
"""How a reason begins if the machine was crowded; the failure follows."""


Holds = tuple[HoldOption, ...]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """How often the case failed with holds.

    :ivar of: the runs that came out valid or invalid; the others show nothing
    """

    holds: Holds
    fails: int
    of: int

    @property
    def at_least(self) -> float:
        """The share of runs in which it fails, as if one more had not: few runs show little."""
        return self.fails / (self.of + 1)

    @property
    def always(self) -> bool:
        """Whether it fails in each run."""
        return self.fails == self.of > 0

    def __str__(self) -> str:
        return f"{' + '.join(map(str, self.holds)) or 'no hold'}: {self.fails} of {self.of}"


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The result of a search.

    :ivar best: the holds with which the case fails most often; None if it never failed more often with any
    """

    before: Tried
    best: Tried | None


class Pinning:
    """A search for one case.

    :param arguments: the selector and the options of ``jbod run`` that run the case again
    :param reason: why it failed
    :param jobs: how many runs go on at once
    :param until: no run is begun after this time, in monotonic seconds
    """

    def __init__(
        self, arguments: Sequence[str], reason: str, *, jobs: int, until: float, say: Callable[[str], None]
    ) -> None:
        self._arguments = arguments
        self._reason = alike(reason)
        self._jobs = jobs
        self._until = until
        self._say = say

    def search(self, points: Collection[str], times: int) -> Pinned:
        """Search for the hold.

        :param points: the points that the build has
        :param times: how often the case runs without a hold, and with each of the best holds
        :raises HarnessError: the case could not be run with all points
        """
        ends, now = self._until, time.monotonic()
        self._until = ends - _TO_CONFIRM * max(0.0, ends - now)
        [before] = self._try([()], times)
        passed = self._passed(points)
        self._say(f"threads came to {len(passed)} places at points while faults were in force")
        single = [HoldOption(point=point, where=where) for point, where in passed]
        few = max(_FEW, times // 4)
        promising = self._promising([(hold,) for hold in single], few)
        self._until = ends
        alone = self._confirmed(promising, times)
        best = _best_of(alone)
        if best is not None and not best.always:
            untried = {(hold,) for hold in _times_of(best.holds[0].longer())} - {each.holds for each in promising}
            longer = [each for each in self._until_always(sorted(untried, key=_seconds), few) if each.always]
            best = _best_of([*alone, *self._confirmed(longer, times)])
        if best is not None and not best.always:
            best = _best_of([best, *self._beside(best.holds[0], single, times)])
        if best is not None and best.at_least <= before.fails / max(1, before.of):
            best = None
        return Pinned(before=before, best=best)

    def _promising(self, single: Sequence[Holds], few: int) -> list[Tried]:
        """The holds with which the case failed more than once; none if the time is over before.

        Each is tried once, then for longer times, then all of them again. Those with which the case fails are tried in
        a few runs for each time.
        """
        for holds in _rounds(single):
            once = self._try(holds, 1)
            failing = [each.holds[0] for each in once if each.fails][:_BEST]
            tried = [each for hold in failing for each in self._until_always([(it,) for it in _times_of(hold)], few)]
            if any(each.fails for each in tried):
                return tried
            if not once:
                break
        return []

    def _beside(self, best: HoldOption, others: Sequence[HoldOption], times: int) -> list[Tried]:
        """The best of the pairs of this hold and another one; none without time."""
        elsewhere = [each for each in others if (each.point, each.where) != (best.point, best.where)]
        done: list[Tried] = []
        for best_s, other_s in _BOTH_S:
            pairs = [(best.lasting(best_s), other.lasting(other_s)) for other in elsewhere]
            done += self._confirmed(self._try(pairs, _FEW), times)
            if any(each.always for each in done):
                break
        return done

    def _confirmed(self, tried: Sequence[Tried], times: int) -> list[Tried]:
        """The best of those that were tried, in new runs."""
        failing = [each for each in tried if each.fails]
        ranked = sorted(failing, key=lambda each: each.at_least, reverse=True)[:_CONFIRMED]
        return self._until_always([each.holds for each in ranked], times)

    def _until_always(self, some: Sequence[Holds], times: int) -> list[Tried]:
        """Try one after the other, up to holds with which the case fails in each run."""
        done: list[Tried] = []
        for holds in some:
            done += self._try([holds], times)
            if done and done[-1].holds == holds and done[-1].always:
                break
        return done

    def _passed(self, points: Collection[str]) -> list[tuple[str, str]]:
        """The points that threads came to, with where; first those that few came to."""
        holds = [HoldOption(point=point, where=where, for_s=0.0) for point in points for where in WHERE]
        cases = [case for each in self._run([holds] * _NOTED) for case in each]
        run_dirs = [case.run_dir for case in cases if case and case.run_dir and case.verdict != "skipped"]
        if not run_dirs:
            why = next((case.reason for case in cases if case), "there was no time")
            raise HarnessError(f"the case could not be run with all points ({why}): nothing shows which of them matter")
        came = Counter(place for run_dir in run_dirs for place in _came(run_dir))
        return sorted(came, key=lambda place: (came[place], WHERE.index(place[1])))

    def _try(self, some: Sequence[Holds], times: int) -> list[Tried]:
        """Run the case several times with each of these in turn, as long as there is time."""
        ran = self._run([holds for _ in range(times) for holds in some])
        tried = []
        for number, holds in enumerate(some):
            cases = [case for each in ran[number :: len(some)] for case in each if case is not None]
            shown = [case for case in cases if case.verdict in ("valid", "invalid")]
            if cases:
                tried.append(Tried(holds=holds, fails=sum(map(self._fails, shown)), of=len(shown)))
                self._say(f"  {tried[-1]}")
        return tried

    def _fails(self, case: CaseResult) -> bool:
        return case.verdict == "invalid" and alike(case.reason) == self._reason

    def _run(self, each: Sequence[Sequence[HoldOption]]) -> list[list[CaseResult | None]]:
        """Run the case once with each of these sets of holds, several at once; no case where there was no time."""

        async def run_all() -> list[list[CaseResult | None]]:
            turns = asyncio.Semaphore(self._jobs)

            async def run_one(holds: Sequence[HoldOption]) -> list[CaseResult | None]:
                async with turns:
                    if time.monotonic() > self._until:
                        return [None]
                    run = await run_beside(*self._arguments, *(f"--hold={hold}" for hold in holds))
                    return [*run.cases] or [None]

            return await asyncio.gather(*map(run_one, each))

        return asyncio.run(run_all())


def alike(reason: str) -> str:
    """The beginning of a reason without numbers and names, which is the same for the same failure."""
    return re.sub(r"\s+", " ", _NOTHING_ALIKE.sub("", _CROWDING.sub("", reason)))[:60]


def _best_of(tried: Sequence[Tried]) -> Tried | None:
    return max(tried, key=lambda each: each.at_least, default=None)


def _seconds(holds: Holds) -> float:
    """How long a thread is held by the longest of these."""
    return max(hold.for_s for hold in holds)


def _rounds(single: Sequence[Holds]) -> Iterator[Sequence[Holds]]:
    """These single holds, each for twice as long, and so on up to the limits of their points; then all of it again."""
    while single:
        holds = single
        while holds:
            yield holds
            holds = _longer(holds)


def _longer(single: Sequence[Holds]) -> Sequence[Holds]:
    """These single holds, each for twice as long; without those whose points do not allow it."""
    return [(longer,) for [hold] in single if (longer := hold.longer()) is not None]


def _times_of(hold: HoldOption | None) -> Iterator[HoldOption]:
    """The hold for its time, and for each longer one up to the limit of its point."""
    while hold is not None:
        yield hold
        hold = hold.longer()


def _came(run_dir: Path) -> Iterator[tuple[str, str]]:
    """The point and the place of each thread that was held, by the journal of a run."""
    events = [*read_journal(run_dir)]
    struck = next((event.struck for event in events if isinstance(event, FaultInjecting)), None)
    return ((event.point, _where(event.node, struck)) for event in events if isinstance(event, HoldOver))


def _where(node: str, struck: str | None) -> str:
    if node == struck:
        return STRUCK
    return CONTROLLERS if node.startswith("controller-") else OTHERS
