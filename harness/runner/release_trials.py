"""A case's runs on releases from Maven: those that a runs folder has, and as many more as it takes.

The ledger says which there are, and the run folders how they came out; a run whose folder is gone is run again, as it
can't be said any more which deviations it showed. What showed nothing (an error, an unknown) is run again as well.
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

    :ivar case: with the seed of its first run on a release; the next one has the next
    :ivar repeats: how often it is run on a release, at least
    :ivar say: is told what runs, and how it came out
    """

    case: CaseId
    mode: Mode
    backend: str
    repeats: int
    runs_dir: Path
    say: Callable[[str], None]
    _earlier: dict[str, list[CaseRun]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Read what there is."""
        for entry in ledger.read(self.runs_dir):
            if (entry.id, entry.backend) == (self.case.id, self.backend) and entry.verdict in _JUDGED:
                with suppress(JbodError, KeyError, TypeError, msgspec.ValidationError):
                    run_dir = self.runs_dir / entry.run_id
                    run = read_run_json(run_dir)
                    if run["kafka"]["source"] == "maven" and run.get("file") == self.case.file:
                        outcome, noted = run["outcome"], map(NotedDeviation.from_json, run["deviations"])
                        self._earlier.setdefault(entry.kafka, []).append(
                            CaseRun(
                                verdict=outcome["verdict"],
                                reason=outcome["reason"],
                                deviations=_shown(noted),
                                run_dir=str(run_dir),
                                earlier=True,
                            )
                        )

    def known(self, kafka: KafkaVersion) -> Trial | None:
        """What is known of a release without a run."""
        earlier = self._earlier.get(str(kafka))
        return Trial(kafka=kafka, runs=tuple(earlier)) if earlier else None

    def of(self, kafka: KafkaVersion) -> Trial:
        """Run it on a release, as often as it takes.

        :raises UsageError: ``jbod run`` refuses these options
        :raises EnvironmentLacks, HarnessError: the release can't be fetched
        """
        runs = [*self._earlier.get(str(kafka), ())]
        trial = self._run(kafka, runs) if len(runs) < self.repeats else Trial(kafka=kafka, runs=tuple(runs))
        earlier = sum(run.earlier for run in trial.runs)
        from_before = f", {earlier} of them before" if earlier else ""
        why = f": {trial.because}" if trial.because else ""
        self.say(f"{kafka}: {'left out' if trial.missing else trial.came_out + from_before}{why}")
        return trial

    def _run(self, kafka: KafkaVersion, runs: list[CaseRun]) -> Trial:
        try:
            kafka.check_java(java_version()[0])
        except EnvironmentLacks as error:
            return Trial(
                kafka=kafka, runs=(*runs, CaseRun(verdict="error", reason=str(error), deviations=(), run_dir=None))
            )
        try:
            from_maven(kafka, cache_dir(), say=self.say)
        except UsageError as error:
            return Trial(kafka=kafka, runs=tuple(runs), missing=str(error).partition(";")[0])
        while len(runs) < self.repeats:
            self.say(f"{kafka}: run {len(runs) + 1} of {self.repeats} …")
            runs.append(self._run_once(kafka, len(runs)))
            if runs[-1].verdict == "skipped":  # as it would be the next time
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
                f"`jbod run {self.case.selector}` on Kafka {kafka} ended with a usage error, which is told above"
            )
        reason = f"its run ended with exit code {done.exit_code} and left no result"
        return CaseRun(verdict="error", reason=reason, deviations=(), run_dir=None)


def _shown(deviations: Iterable[NotedDeviation]) -> tuple[str, ...]:
    """The deviations that a case showed, in words; one that was looked for and not seen does not count."""
    return tuple(sorted({f"{each.actual} ({each.issue})" for each in deviations if each.state != "mended"}))
