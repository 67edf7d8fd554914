"""A case from its set-up to its verdict: what pytest reports about it, and how it ends.

An :class:`OpenCase` is in the stash of its test until the case has ended. The verdict includes the teardown, so a case
ends after the last report of its test.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace

import pytest

from harness.cluster.profile import FAST
from harness.crowding import Deadline
from harness.errors import BuildLacks, HarnessError
from harness.kafka.security import ListenerSecurity
from harness.measure.errors_logged import errors_logged
from harness.measure.fault_costs import FaultCosts, measure_faults
from harness.runner.case import Case, Outcome, rerun_command
from harness.runner.case_outcome import CaseLog, conclude, deviations_of
from harness.runner.case_result import CaseResult
from harness.runner.run import Run, run_of
from harness.runner.scenario import DeclaredCase, case_of
from harness.waiting import CROWDED

_OPEN = pytest.StashKey["OpenCase"]()
_TELLING_S = 10.0
"""The crowding of a case that took fewer seconds says little."""


@dataclass(kw_only=True)
class OpenCase:
    """A case that has not ended.

    :ivar case: None until the run folder exists
    :ivar since_begin: measures the crowding of the machine during the case
    """

    run: Run
    declared: DeclaredCase
    case: Case | None = None
    log: CaseLog = field(default_factory=CaseLog)
    since_begin: Deadline = field(default_factory=lambda: Deadline(0.0))

    def begin(self) -> Case:
        """Create the run folder.

        :raises HarnessError: the runs folder is not writable
        """
        run = self.run
        self.case = run.running = Case.begin(self.declared.identity(run.seed), run.runs_dir, run.argv, run.jobs)
        return self.case

    def conclude(self) -> tuple[Outcome, str]:
        """Return the verdict so far, and the reason. On a crowded machine, a reason for unknown has its figures too."""
        verdict, reason = conclude(
            self.log,
            self.case,
            must_be_judged=self.declared.scenario.judged,
            test_file=self.declared.file,
            deviations=self.run.expected(self.declared),
            in_logs=self.run.expected_in_logs(self.declared),
        )
        crowding = self.since_begin.crowding
        is_told = crowding.stretch == 1.0 or self.since_begin.waited_s < _TELLING_S or CROWDED in reason
        return verdict, reason if verdict != "unknown" or is_told else f"{CROWDED} ({crowding}): {reason}"

    @property
    def again(self) -> str:
        """The command that runs the case again."""
        if self.case is not None:
            return rerun_command(self.case.run_dir)
        return shlex.join(["jbod", "run", self.declared.identity(self.run.seed).selector, *self.run.again])

    def note(self, report: pytest.TestReport, error: BaseException | None) -> None:
        """Note the end of a phase of the test (set-up, call or teardown), and add to its report how to run it again.

        :param error: raised in the phase
        """
        if isinstance(report.longrepr, str) and report.failed:
            report.longrepr += f"\nagain: {self.again}"
        if isinstance(error, pytest.skip.Exception | BuildLacks):
            self.log.skipped = str(error)
            if report.failed:  # BuildLacks: pytest must show the case as skipped
                report.outcome = "skipped"
                report.longrepr = (str(self.declared.file), report.location[1] or 0, str(error))
        elif error is not None or report.failed:
            trouble = error or HarnessError(str(report.longrepr))  # a strict xfail that passed has no error
            self.log.troubles.append(trouble)
            if self.case is not None:
                self.case.journal.write("trouble", error=type(trouble).__name__, says=str(trouble)[:2000])
        self.log.called = self.log.called or (report.when == "call" and error is None)

    def end(self, report: pytest.TestReport) -> None:
        """End the case with one verdict, which goes into the report of the teardown."""
        result = self._ended(self.case) if self.case else self._result()
        result.attach_to(report)
        self.run.running = self.run.workload = None
        if result.verdict not in ("valid", "skipped") and not self.log.troubles:
            report.outcome, report.longrepr = "failed", f"{result.reason}\nagain: {result.rerun}"

    def _result(self) -> CaseResult:
        """Return the result so far, without what only the run folder has."""
        verdict, reason = self.conclude()
        return CaseResult(
            case=self.declared.identity(self.run.seed),
            kafka=str(self.run.version(self.declared)),
            backend=self.run.backend,
            verdict=verdict,
            reason=reason,
            rerun=self.again,
        )

    def _ended(self, case: Case) -> CaseResult:
        """Write the outcome into the run folder. A run folder that cannot be written is an error of the case."""
        faults = self._faults(case)
        result = self._result()
        declared = self.run.expected(self.declared)
        deviations = deviations_of(case, declared) if result.verdict == "valid" else []
        try:
            errors = errors_logged(case.journal.events, case.run_dir)
            case.end(result.verdict, result.reason, faults, deviations, errors)
        except OSError as error:
            case.journal.close()
            why = f"cannot write or read the run folder {case.run_dir}: {error}; see --runs-dir"
            besides = f"{why}; besides: {result.verdict} {result.reason}".rstrip()
            result, deviations = replace(result, verdict="error", reason=besides), []
        return replace(
            result,
            duration_s=case.duration_s(),
            run_dir=case.run_dir,
            phases_s=case.phases_s(),
            awaited_s=case.awaited_s(),
            faults=faults,
            deviations=deviations,
            measured=case.measured,
            kept=case.kept,
            served=case.extra.get("served", ()),
            sha256=str(case.extra.get("kafka", {}).get("sha256", "")),
            crowding=case.crowding,
            interference=case.interference,
            profile=case.extra.get("profile", FAST.name),
            settings=case.extra.get("settings", {}),
            listener_security=case.extra.get("listener_security", ListenerSecurity.PLAINTEXT),
        )

    def _faults(self, case: Case) -> list[FaultCosts]:
        """Measure what the faults cost. If that fails, the case is an error."""
        try:
            return measure_faults(case.journal.events, case.run_dir)
        except Exception as error:
            case.journal.write("measure.failed", error=repr(error))
            self.log.troubles.append(HarnessError(f"the faults' cost could not be measured: {error!r}"))
            return []


def open_case(item: pytest.Item) -> OpenCase | None:
    """Return the open case of a test; None for an ordinary test."""
    if (declared := case_of(item)) is None:
        return None
    return item.stash.setdefault(_OPEN, OpenCase(run=run_of(item.config), declared=declared))


def forget_case(item: pytest.Item) -> None:
    """Drop the case. pytest keeps all tests until the end, and the journal of a case takes some megabytes."""
    del item.stash[_OPEN]
