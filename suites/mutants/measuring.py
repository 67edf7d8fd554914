"""Runs cases on mutants until it is clear what became of each mutant, several mutants at once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, repeat
from math import ceil
from pathlib import Path

from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode
from harness.runner.qualifying import Wanted, cases_of, side
from harness.runner.selection import names_of
from harness.runner.subrun import run_beside
from harness.runner.suite_kinds import not_asked
from suites.mutants.builds import MutatedBuild
from suites.mutants.outcome import BLAMED_AFTER, Decision, decide
from suites.mutants.trial import Trial, Trials, valid_runs

ALL = "all"
"""The suite that is all of them, but those that a qualification leaves out."""
_BACKEND = "process"
_TWIN_RUNS = 2
"""How often a case runs on the unchanged build, at most: it may be unknown only because the machine was busy."""
_SHORT = 240
TOGETHER = 12
"""How many unlikely cases share a run: a run starts Spark once, and a few clusters."""
_UNSURE = (1, 3, 6)
"""How many cases share a run on an automatic mutant, of which each may as well be caught at once as by none."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A mutant on one build in one mode, with its trials."""

    build: MutatedBuild
    kafka: str
    decision: Decision
    trials: tuple[Trial, ...]

    def to_json(self) -> dict[str, object]:
        """Return the entry of ``mutants`` in ``--json``."""
        mutant, decision = self.build.mutant, self.decision
        return {
            "id": mutant.id,
            "defect": mutant.defect,
            "promise": mutant.promise,
            "area": mutant.area,
            "kafka": self.kafka,
            "mode": str(self.build.mode),
            "outcome": str(decision.outcome),
            "case": decision.case,
            "seconds": decision.seconds,
            "says": decision.says,
            "trials": [vars(trial) for trial in self.trials],
        }


@dataclass(frozen=True, kw_only=True)
class How:
    """How mutants are measured.

    :ivar suites: selectors of the cases that are tried after those that should catch a mutant
    :ivar times: how often a case must be red
    :ivar seed: of the first run of a case
    :ivar fresh: whether the trials of an earlier measuring are dropped
    :ivar unchanged: runs folders with runs of the unchanged build, whose valid cases need no further run on it
    """

    runs_dir: Path
    suites: Sequence[str]
    times: int
    seed: int
    fresh: bool
    unchanged: Sequence[Path] = ()

    def trials(self, name: str) -> Trials:
        """The kept trials of this name."""
        return Trials(self.runs_dir / "trials" / f"{name}.json", self.seed, fresh=self.fresh)


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """The measuring of mutants of one build in one mode.

    :ivar say: prints a line of progress
    """

    distribution: Distribution
    mode: Mode
    how: How
    say: Callable[[str], None]
    _twin_locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def measure(self, build: MutatedBuild) -> Measured:
        """Run cases on a mutant until one has caught it, or none is left."""
        name = self.name(build.home)
        if self.how.fresh:
            shutil.rmtree(self.how.runs_dir / "runs" / name, ignore_errors=True)
        trials = self.how.trials(name)
        mutant = build.mutant
        if not mutant.equivalent:
            likely = self.cases(mutant.caught_by)
            rest = [] if mutant.is_automatic else [case for case in self.cases(self.how.suites) if case not in likely]
            sizes = _UNSURE if mutant.is_automatic else (1,)
            if not await self._any_catches(build, trials, likely, sizes):
                await self._any_catches(build, trials, rest, (TOGETHER,))
        twins = {trial.case: trial for trial in self._twins.all}
        return Measured(
            build=build,
            kafka=str(self.distribution.version),
            decision=decide(mutant, trials.all, twins, self.how.times),
            trials=tuple(trials.all),
        )

    async def _any_catches(
        self, build: MutatedBuild, trials: Trials, cases: Sequence[str], sizes: Sequence[int]
    ) -> bool:
        """Run cases until one has caught the mutant; return whether one did.

        :param sizes: how many cases share a run, and clusters; the last size holds for all further runs
        """
        for some in parts(cases, sizes):
            if new := [case for case in some if not trials.of(case)]:
                for trial in await self.run(new, self.options(build.home), self.how.seed):
                    trials.add(trial)
                    self._tell(build.mutant.id, trial)
            for case in some:
                if await self._catches(build, trials, case):
                    return True
        return False

    async def _catches(self, build: MutatedBuild, trials: Trials, case: str) -> bool:
        """Run a case, which ran once, as often as needed; return whether it caught the mutant."""
        while True:
            runs = trials.of(case)
            red = [trial for trial in runs if trial.is_red_for(build.mutant)]
            if all(trial.verdict in ("valid", "skipped") for trial in runs):
                return False
            if (await self._twin(case)).verdict != "valid":
                self.say(f"{build.mutant.id}: {case} is not valid on the unchanged build, so it shows nothing")
                return False
            if not self._goes_on(runs, len(red)):
                return len(red) == len(runs)
            for trial in await self.run([case], self.options(build.home), self.how.seed + len(runs)):
                trials.add(trial)
                self._tell(build.mutant.id, trial)

    def _goes_on(self, runs: Sequence[Trial], red: int) -> bool:
        """Whether another run of the case can change the outcome."""
        if red == len(runs):
            return red < self.how.times
        without = all(trial.verdict in ("error", "unknown") for trial in runs)
        return without and len(runs) < BLAMED_AFTER

    def _tell(self, whose: str, trial: Trial) -> None:
        why = f": {short(trial.reason)}" if trial.reason else ""
        self.say(f"{whose}: {trial.case} {trial.verdict} after {trial.duration_s:.0f} s{why}")

    async def _twin(self, case: str) -> Trial:
        """The last trial of a case on the unchanged build, which runs for all mutants, until it was valid."""
        async with self._twin_locks.setdefault(case, asyncio.Lock()):
            known = self._twins.of(case)
            while len(known) < _TWIN_RUNS and not any(trial.verdict == "valid" for trial in known):
                known += await self.run_unchanged([case])
            return known[-1]

    def likely_twins(self, builds: Sequence[MutatedBuild]) -> list[str]:
        """The cases that the mutants run first, and that did not run on the unchanged build yet."""
        mutants = [build.mutant for build in builds]
        first = [self.cases(each.caught_by)[:1] for each in mutants if not each.equivalent and not each.is_automatic]
        return [case for case in dict.fromkeys(chain.from_iterable(first)) if not self._twins.of(case)]

    async def run_unchanged(self, cases: Sequence[str]) -> list[Trial]:
        """Run cases once on the unchanged build."""
        options = [
            f"--kafka={self.distribution.version}",
            f"--runs-dir={self.how.runs_dir / 'runs' / 'unchanged'}",
        ]
        trials = await self.run(cases, options, self.how.seed)
        for trial in trials:
            self._tell("unchanged build", trial)
            self._twins.add(trial)
        return trials

    async def run(self, cases: Sequence[str], options: Sequence[str], seed: int) -> list[Trial]:
        """Run cases once; a case without a result is an error."""
        selectors = [self._wanted.selector(case) for case in cases]
        done = await run_beside(
            *selectors, *options, f"--mode={self.mode}", f"--seed={seed}", f"--backend={_BACKEND}", "--jobs=1"
        )
        ended = {result.case.id: Trial.of(result, seed) for result in done.cases}
        reason = f"its run ended with exit code {done.exit_code} and left no result"
        lost = Trial(case="", seed=seed, verdict="error", reason=reason)
        return [ended.get(case, replace(lost, case=case)) for case in cases]

    def options(self, home: Path | None) -> list[str]:
        """The options that run cases on a changed build."""
        return [f"--kafka-home={home}", f"--runs-dir={self.how.runs_dir / 'runs' / self.name(home)}"]

    def name(self, home: Path | None) -> str:
        """The name of a changed build in this mode, for files."""
        assert home is not None
        return f"{home.name}-{self.mode}"

    def cases(self, selectors: Sequence[str]) -> list[str]:
        """The cases that selectors name, each once; for all suites, only those that say something about a build."""
        return [*dict.fromkeys(case for selector in selectors for case in self._named(selector))]

    def _named(self, selector: str) -> Sequence[str]:
        if selector == ALL:
            return self._wanted.without(not_asked(_BACKEND)).cases
        return [case for case in self._wanted.cases if selector in names_of(case, "")]

    @cached_property
    def _wanted(self) -> Wanted:
        return cases_of(side("build", str(self.distribution.version), self.how.runs_dir, self.mode), ())

    @cached_property
    def _twins(self) -> Trials:
        build = f"{self.distribution.version}-{self.distribution.sha256[:12]}-{self.mode}"
        twins = self.how.trials(f"unchanged-{build}")
        for runs_dir in self.how.unchanged:
            for trial in valid_runs(runs_dir, self.distribution.sha256, self.mode, _BACKEND):
                if not twins.of(trial.case):
                    twins.add(trial)
        return twins


def parts(cases: Sequence[str], sizes: Sequence[int]) -> Iterator[Sequence[str]]:
    """Cut cases into parts of these sizes; the last size holds for all further parts."""
    at = 0
    for size in chain(sizes, repeat(sizes[-1])):
        if at >= len(cases):
            return
        yield cases[at : at + size]
        at += size


def short(reason: str) -> str:
    """The beginning of a reason, which may quote a log, on one line."""
    line = " ".join(reason.split())
    return line if len(line) <= _SHORT else f"{line[:_SHORT]} …"


async def measure_all(
    measuring: Measuring, builds: Sequence[MutatedBuild], at_once: int, done: Callable[[Measured], None]
) -> list[Measured]:
    """Measure mutants of one build in one mode, so many at once; ``done`` is called for each when it is measured.

    Nearly every mutant is caught by its first case. So those cases run on the unchanged build first: a few together
    share Spark and clusters, and need half the CPU time that they need one by one.
    """
    places = asyncio.Semaphore(at_once)

    async def unchanged(cases: Sequence[str]) -> None:
        async with places:
            await measuring.run_unchanged(cases)

    async def one(build: MutatedBuild) -> Measured:
        async with places:
            measured = await measuring.measure(build)
            done(measured)
            return measured

    twins = measuring.likely_twins(builds)
    size = min(TOGETHER, ceil(len(twins) / at_once)) or 1
    await asyncio.gather(*map(unchanged, parts(twins, (size,))))
    return await asyncio.gather(*map(one, builds))
