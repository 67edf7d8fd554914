"""Collects all results of a run from pytest's reports, and derives the exit code and ``--json``.

With ``--jobs`` cases end in other processes. So the results come from the reports, which pytest-xdist sends to this
process. Without ``--jobs`` pytest passes the same reports.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.errors import EXIT_HARNESS, EXIT_INCONCLUSIVE, EXIT_INVALID, EXIT_VALID, worst
from harness.host.atomic_write import write_atomically
from harness.journal import now
from harness.runner.at_once import AtOnce
from harness.runner.case_result import CaseResult
from harness.runner.deviation import State
from harness.runner.ledger import note

RESULTS_FILES = "results-*.json"
"""The file that each run leaves beside its run folders: the content of ``--json``, and the cases that never
began."""

VERDICT_CODES = {"valid": EXIT_VALID, "invalid": EXIT_INVALID, "unknown": EXIT_INCONCLUSIVE, "error": EXIT_HARNESS}
_STATES: Mapping[str, State] = {"deviations": "seen", "mended": "mended", "undeclared": "undeclared"}
"""The fields of ``totals`` that count cases with a deviation of this state."""


def to_json(cases: Sequence[CaseResult], exit_code: int, seed: int) -> dict[str, object]:
    """Return the content of ``--json``."""
    totals = {word: sum(case.verdict == word for case in cases) for word in (*VERDICT_CODES, "skipped")}
    states = [{each.state for each in case.deviations} for case in cases]
    return {
        "schema": 1,
        "exit_code": exit_code,
        "seed": seed,
        "scenarios": [case.to_json() for case in cases],
        "totals": totals | {name: sum(state in of for of in states) for name, state in _STATES.items()},
    }


class Overdue(NamedTuple):
    """A case that had to run in a night and did not, and when it last ran."""

    id: str
    kafka: str
    backend: str
    last: datetime | None


def write_night(
    runs_dir: Path, began: datetime, overdue: Sequence[Overdue], skipped: Sequence[Mapping[str, object]]
) -> None:
    """Write the overdue and skipped cases of a night beside its results, for the report. Writes nothing if there are
    none.

    :param skipped: entries of ``scenarios`` for the cases that this machine or backend cannot run
    """
    if overdue or skipped:
        last_runs = {each.id: each.last.isoformat() if each.last else None for each in overdue}
        on = {each.id: {"kafka": each.kafka, "backend": each.backend} for each in overdue}
        content = {"schema": 1, "started_at": began.isoformat(), "scenarios": [*skipped]}
        _leave(runs_dir, began, "night", content | {"overdue": last_runs, "overdue_on": on})


def _leave(runs_dir: Path, began: datetime, which: str, content: Mapping[str, object]) -> None:
    """Write a results file for this moment (:data:`RESULTS_FILES`) into the runs folder."""
    with suppress(OSError):  # a full disk was reported already, and must not change the exit code
        runs_dir.mkdir(parents=True, exist_ok=True)
        name = RESULTS_FILES.replace("*", f"{began:%Y%m%dT%H%M%S}-{which}")
        write_atomically(runs_dir / name, json.dumps(content, indent=2) + "\n")


def write_json(path: Path | None, content: Mapping[str, object], say: Callable[[str], None]) -> int:
    """Write the file of ``--json``, if one is asked for.

    :returns: the exit code in the content; if the file cannot be written, the worse of that and EXIT_HARNESS
    """
    code = int(str(content["exit_code"]))
    if path is None:
        return code
    try:
        write_atomically(path, json.dumps(content, indent=2) + "\n")
    except OSError as error:  # a broken promise (1) still wins over this error (3)
        say(f"cannot write --json {path}: {error.strerror}")
        return worst([code, EXIT_HARNESS])
    return code


class Results:
    """A pytest plugin that collects the results and sets the exit code.

    :param on: the ``backend``, and the version of ``kafka`` for each mode
    :param no_skips: whether a skipped case makes the run inconclusive
    :ivar at_once: how many cases run at once
    :ivar cases: the results of the scenarios in the order in which they ended; after the run in the order of the suites
    """

    def __init__(
        self,
        seed: int,
        json_file: Path | None,
        runs_dir: Path,
        argv: Sequence[str],
        say: Callable[[str], None],
        on: Mapping[str, object],
        *,
        no_skips: bool = False,
    ) -> None:
        self.cases: list[CaseResult] = []
        self._seed = seed
        self._json_file = json_file
        self._runs_dir = runs_dir
        self._argv = argv
        self._say = say
        self._on = on
        self.no_skips = no_skips
        self.at_once = AtOnce()
        self._started_at = now()
        self._wanted: list[str] = []
        self._ended: set[str] = set()
        self._other_codes: list[int] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests that must end."""
        self._wanted = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Note the tests that must end, as a worker collected them."""
        self._wanted = ids

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a report. A scenario's teardown report has its result."""
        if report.when == "teardown":
            self._ended.add(report.nodeid)
        if (result := CaseResult.attached_to(report, self._seed)) is not None:
            self.cases.append(result)
            note(self._runs_dir, result)
        elif report.when not in ("setup", "call", "teardown"):
            self._other_codes.append(EXIT_HARNESS)  # xdist reports a worker that died
        elif "scenario" not in report.keywords:
            if report.failed:
                self._other_codes.append(EXIT_INVALID)
            elif report.when == "call" and report.passed:
                self._other_codes.append(EXIT_VALID)

    @pytest.hookimpl(tryfirst=True)  # before JUnit's file, which fails on a full disk
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Set the exit code and write the JSON."""
        if session.config.option.collectonly:
            return
        session.exitstatus = self._exit_code(session, int(exitstatus))
        self.cases.sort(key=lambda each: self._wanted.index(each.case.nodeid))
        content = to_json(self.cases, int(session.exitstatus), self._seed) | {"jobs": self.at_once.to_json()}
        if self.cases:  # for the reports, because a case that was skipped or never began has no run folder
            more = {
                "started_at": self._started_at.isoformat(),
                "ended_at": now().isoformat(),
                "argv": list(self._argv),
                "not_reached": [nodeid for nodeid in self._wanted if nodeid not in self._ended],
                **self._on,
            }
            _leave(self._runs_dir, self._started_at, secrets.token_hex(3), content | more)
        session.exitstatus = write_json(self._json_file, content, self._say)

    def _exit_code(self, session: pytest.Session, pytests: int) -> int:
        """Return one exit code for all tests.

        A missing case, or anything that pytest calls failed, must not come out as a pass.
        """
        of_skips = {"skipped": EXIT_INCONCLUSIVE} if self.no_skips else {}
        known = VERDICT_CODES | of_skips
        codes = [known[each.verdict] for each in self.cases if each.verdict in known] + self._other_codes
        if pytests in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            return worst([*codes, pytests])
        if pytests == pytest.ExitCode.INTERRUPTED:
            # Ctrl-C, or a suite that cannot be imported. Promises that were broken before still count.
            unreadable = session.testsfailed and not any(codes)
            return worst([*codes, EXIT_HARNESS if unreadable else EXIT_INCONCLUSIVE])
        if not any(codes) and (session.testsfailed or set(self._wanted) - self._ended):
            codes.append(EXIT_HARNESS)
        return worst(codes)
