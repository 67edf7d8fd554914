"""Runs a case on releases from Maven, and counts the runs that a runs folder already has.

The ledger lists the earlier runs, and their run folders have the outcomes. A run whose folder was deleted does not
count, because its deviations are unknown. Runs that ended as error or unknown do not count either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harness.errors import EXIT_USAGE, EnvironmentLacks, JbodError, UsageError
from harness.history.run_folder import read_run_json
from harness.host.cache import cache_dir
from harness.host.java import java_version
from harness.host.scratch import scratch
from harness.kafka.distribution import from_maven
from harness.kafka.versions import KafkaVersion, Mode
from harness.runner import ledger
from harness.runner.bisecting import CaseRun, Trial
from harness.runner.case import CaseId
from harness.runner.deviation import NotedDeviation
from harness.runner.subrun import run_apart

_JUDGED = ("valid", "invalid")


@dataclass(frozen=True, kw_only=True)
class Trials:
    """One case, to be run on any release.

    :ivar case: the seed is that of the first run on a release; each further run adds one
    :ivar repeats: the least number of runs on a release
    :ivar say: called with what runs and how it came out
    """

    case: CaseId
    mode: Mode
    backend: str
    repeats: int
    runs_dir: Path
    say: Callable[[str], None]
    _earlier: dict[str, list[CaseRun]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Read the earlier runs."""
        for entry in ledger.read(self.runs_dir):
            if (entry.id, entry.backend) == (self.case.id, self.backend) and entry.verdict in _JUDGED:
                with suppress(JbodError, msgspec.ValidationError):
                    run_dir = self.runs_dir / entry.run_id
                    run = read_run_json(run_dir)
                    if run.outcome is None or run.deviations is None:
                        continue
                    if run.kafka.source == "maven" and run.file == self.case.file:
                        noted = map(NotedDeviation.from_json, run.deviations)
                        self._earlier.setdefault(entry.kafka, []).append(
                            CaseRun(
                                verdict=run.outcome.verdict,
                                reason=run.outcome.reason,
                                deviations=_shown(noted),
                                run_dir=str(run_dir),
                                earlier=True,
                            )
                        )

    def known(self, kafka: KafkaVersion) -> Trial | None:
        """Return the earlier runs on a release, or None; runs nothing."""
        earlier = self._earlier.get(str(kafka))
        return Trial(kafka=kafka, runs=tuple(earlier)) if earlier else None

    def of(self, kafka: KafkaVersion) -> Trial:
        """Run the case on a release until it has run often enough.

        :raises UsageError: ``jbod run`` refuses these options
        :raises EnvironmentLacks: this machine lacks something to fetch the release
        :raises HarnessError: the release cannot be fetched
        """
        runs = [*self._earlier.get(str(kafka), ())]
        trial = self._run(kafka, runs) if len(runs) < self.repeats else Trial(kafka=kafka, runs=tuple(runs))
        earlier = sum(run.earlier for run in trial.runs)
        from_before = f", {earlier} of them earlier" if earlier else ""
        why = f": {trial.because}" if trial.because else ""
        self.say(f"{kafka}: {'left out' if trial.missing else trial.came_out + from_before}{why}")
        return trial

    def _run(self, kafka: KafkaVersion, runs: list[CaseRun]) -> Trial:
        try:
            kafka.check_java(java_version()[0])
        except EnvironmentLacks as error:
            return Trial(kafka=kafka, runs=(*runs, CaseRun(verdict="error", reason=str(error))))
        try:
            from_maven(kafka, cache_dir(), say=self.say)
        except UsageError as error:
            return Trial(kafka=kafka, runs=tuple(runs), missing=str(error).partition(";")[0])
        while len(runs) < self.repeats:
            self.say(f"{kafka}: run {len(runs) + 1} of {self.repeats} …")
            runs.append(self._run_once(kafka, len(runs)))
            if runs[-1].verdict == "skipped":  # it would be skipped again
                break
        return Trial(kafka=kafka, runs=tuple(runs))

    def _run_once(self, kafka: KafkaVersion, number: int) -> CaseRun:
        with scratch("bisect") as folder:
            done = run_apart(
                self.case.selector,
                f"--kafka={kafka}",
                f"--mode={self.mode}",
                f"--backend={self.backend}",
                f"--seed={self.case.seed + number}",
                f"--runs-dir={self.runs_dir}",
                "--jobs=1",
                f"--junit={folder / 'junit.xml'}",
                f"--allure={folder / 'allure'}",
                quiet=True,
            )
        if done.cases:
            [case] = done.cases
            return CaseRun(
                verdict=case.verdict,
                reason=case.reason,
                deviations=_shown(case.deviations),
                run_dir=str(case.run_dir) if case.run_dir else None,
            )
        if done.exit_code == EXIT_USAGE:
            raise UsageError(
                f"`jbod run {self.case.selector}` on Kafka {kafka} ended with a usage error; see its message above"
            )
        reason = f"its run ended with exit code {done.exit_code} and left no result"
        return CaseRun(verdict="error", reason=reason)


def _shown(deviations: Iterable[NotedDeviation]) -> tuple[str, ...]:
    """Return the deviations that a case showed, in words. Mended deviations are left out."""
    return tuple(sorted({f"{each.actual} ({each.issue})" for each in deviations if each.state != "mended"}))
