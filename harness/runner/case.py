"""A case (a scenario with its parameters, run once) and its run folder.

The run folder (``run.json``, ``events.jsonl``, ``history/``, ``brokers/``, ``verdict.json``) is all that reports,
``jbod check`` and ``jbod repro`` read. run.json is written when the case begins and again when it ends. In between, its
``ended_at`` and ``outcome`` are null.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.checkers.verdict import Verdict
from harness.cluster.spec import ClusterSpec
from harness.crowding import CrowdedTime, CrowdingWatch
from harness.errors import HarnessError, UsageError
from harness.host.atomic_write import write_atomically
from harness.host.facts import machine_facts
from harness.host.own_version import own_revision, own_version
from harness.journal import Journal, now
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode
from harness.measure.errors_logged import ErrorGroup
from harness.measure.fault_costs import FaultCosts
from harness.measure.interference import Interference, holds_in, mutant_in
from harness.runner.deviation import NotedDeviation
from harness.runner.outside import selector_of
from harness.waiting import awaited_s

Outcome = Literal["valid", "invalid", "unknown", "error", "skipped"]
_SHORT_CASE_BYTES = 4 << 20
PHASES = ("boot", "load", "fault", "recover", "drain", "judge", "teardown")


@dataclass(frozen=True, kw_only=True)
class CaseId:
    """Identifies a case: the ids and parameters that ``--json`` has.

    :ivar plan: the item of the KIP's test plan, or the promise, that its scenario checks
    :ivar nodeid: pytest's id of the test
    """

    id: str
    kip: int
    plan: str
    mode: str
    seed: int
    nodeid: str
    issue: str | None = None
    """The Kafka bug that the scenario was written for, such as ``KAFKA-16709``."""
    file: str | None = None
    """The test file, if it is outside the suites."""

    @property
    def selector(self) -> str:
        """The selector for the command line."""
        return selector_of(self.id, self.file)


@dataclass(kw_only=True)
class Case:
    """A running case: its run folder, journal and phase.

    :ivar extra: the content of run.json
    :ivar verdict: the judge's verdict on the history so far; None again when another pair starts
    :ivar shortfalls: reasons why the case has shown nothing, whatever the judge decides
    :ivar measured: figures of the scenario by name; they do not affect the verdict
    :ivar kept: lines that say how to reach the cluster, if it was kept
    :ivar crowding: how crowded the machine was; None before the end
    :ivar mutant: the id of the mutant in its build; None if the build is as Kafka made it
    :ivar interference: what was held or changed inside the nodes; empty before the end
    """

    id: CaseId
    run_dir: Path
    journal: Journal
    extra: dict[str, Any] = field(default_factory=dict)
    phase: str = "boot"
    verdict: Verdict | None = None
    shortfalls: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    kept: Sequence[str] = ()
    crowding: CrowdedTime | None = None
    mutant: str | None = None
    interference: Sequence[Interference] = ()
    _phases_s: dict[str, float] = field(default_factory=dict)
    _awaited_s: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)
    _awaited_before: float = field(default_factory=awaited_s)
    _began: float = field(default_factory=time.monotonic)
    _crowding: CrowdingWatch = field(default_factory=CrowdingWatch)

    @classmethod
    def begin(cls, id: CaseId, runs_dir: Path, argv: Sequence[str], jobs: int = 1) -> Case:
        """Create the run folder and write the first run.json.

        :param jobs: how many cases run at once
        :raises HarnessError: the runs folder is not writable
        """
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", id.id).strip("-")
        run_dir = runs_dir.absolute() / f"{now():%Y%m%dT%H%M%S}-{slug}-{secrets.token_hex(3)}"
        try:
            run_dir.mkdir(parents=True)
            journal = Journal(run_dir / "events.jsonl")
        except OSError as error:
            raise HarnessError(f"cannot create the run folder {run_dir}: {error.strerror}; see --runs-dir") from error
        journal.follow_process()
        case = cls(id=id, run_dir=run_dir, journal=journal)
        case.extra = {
            "schema": 1,
            "run_id": run_dir.name,
            "case": id.id,
            "outcome": None,  # near the top, since people read it too
            "kip": id.kip,
            "plan": id.plan,
            "issue": id.issue,
            "mode": id.mode,
            "seed": id.seed,
            "nodeid": id.nodeid,
            **({"file": id.file} if id.file else {}),
            "run_token": case.run_token,
            "argv": list(argv),
            "jobs": jobs,
            "host": machine_facts(),
            "jbod": {"version": own_version(), "revision": own_revision()},
            "started_at": now().isoformat(),
            "ended_at": None,
        }
        case.record()
        journal.write("case.started", case=id.id, seed=id.seed)
        return case

    @property
    def run_token(self) -> str:
        """The token that marks the records of this case (:mod:`harness.history.record_format`)."""
        return self.run_dir.name[-6:]

    def record(self, **more: object) -> None:
        """Add fields to run.json and write it atomically."""
        self.extra |= more
        write_atomically(self.run_dir / "run.json", json.dumps(self.extra, indent=2, default=str) + "\n")

    def record_cluster(
        self, spec: ClusterSpec, distribution: Distribution, earlier: Distribution | None = None
    ) -> None:
        """Add the build with its checksum and the cluster's shape to run.json.

        :param earlier: the build with which the cluster starts, if the case upgrades it
        """
        self.mutant = distribution.mutant
        self.record(
            **self._interference(),
            kafka=distribution.to_json(),
            **({"upgraded_from": earlier.to_json()} if earlier is not None else {}),
            backend=spec.backend,
            cluster={
                "brokers": spec.brokers,
                "log_dirs": spec.log_dirs,
                "racks": spec.racks,
                "volumes": spec.volumes,
                **({"controllers": spec.controllers, "combined": spec.combined} if spec.mode is Mode.KRAFT else {}),
            },
            overrides=dict(spec.overrides),
            profile=spec.profile.name,
            **({"settings": dict(spec.given)} if spec.given else {}),
        )

    def _interference(self) -> dict[str, object]:
        """The field of run.json for a case in which something was held or changed inside nodes; empty for others."""
        mutants = () if self.mutant is None else (mutant_in(self.run_dir, self.mutant),)
        self.interference = (*mutants, *holds_in(self.journal.events))
        return {"interference": [asdict(each) for each in self.interference]} if self.interference else {}

    def enter(self, phase: str) -> None:
        """Enter a phase. The seconds in each phase are added up, and those in which Kafka was awaited."""
        self._phases_s[self.phase] = self._phases_s.get(self.phase, 0.0) + time.monotonic() - self._since
        self._since = time.monotonic()
        self._awaited_s[self.phase] = self._awaited_s.get(self.phase, 0.0) + awaited_s() - self._awaited_before
        self._awaited_before = awaited_s()
        if phase != self.phase:
            self.phase = phase
            self.journal.write("phase", phase=phase)

    def measure(self, name: str, figure: float) -> None:
        """Record a figure of the scenario, for the table, ``--json`` and run.json."""
        self.measured[name] = round(figure, 3)
        self.journal.write("measured", name=name, figure=self.measured[name])

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Enter a phase for the block, and return to the current phase after it."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def phases_s(self) -> dict[str, float]:
        """Return the seconds spent in each phase so far."""
        self.enter(self.phase)
        return {name: self._phases_s.get(name, 0.0) for name in PHASES}

    def awaited_s(self) -> dict[str, float]:
        """Return the seconds of each phase so far in which the case waited for Kafka."""
        self.enter(self.phase)
        return {name: self._awaited_s.get(name, 0.0) for name in PHASES}

    def duration_s(self) -> float:
        """Return the seconds since the case began."""
        return time.monotonic() - self._began

    def end(
        self,
        verdict: Outcome,
        reason: str,
        faults: Sequence[FaultCosts],
        deviations: Sequence[NotedDeviation],
        errors: Sequence[ErrorGroup],
    ) -> None:
        """Write the outcome and close the journal. The case must not be changed afterwards.

        :param errors: logged errors that no fault explains (:mod:`harness.measure.errors_logged`)
        """
        self.journal.write("case.ended", verdict=verdict, reason=reason)
        self.crowding = self._crowding.so_far()
        self.record(
            ended_at=now().isoformat(),
            outcome={"verdict": verdict, "reason": reason},
            phases_s=self.phases_s(),
            awaited_s=self.awaited_s(),
            faults=[each.to_json() for each in faults],
            deviations=[each.to_json() for each in deviations],
            measured=self.measured,
            crowding=asdict(self.crowding),
            errors_logged=[asdict(each) for each in errors],
            **self._interference(),
        )
        self.journal.close()


def check_runs_dir(runs_dir: Path) -> None:
    """Create the runs folder if necessary, and check that it has room for a short case.

    :raises HarnessError: it is not writable
    """
    probe = runs_dir / f".probe-{secrets.token_hex(4)}"
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(_SHORT_CASE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise HarnessError(f"cannot write to the runs folder {runs_dir}: {error.strerror}; see --runs-dir") from error


def check_json_file(path: Path | None) -> None:
    """Check before the run that the file of ``--json`` can be written.

    :raises UsageError: its folder does not exist, or the path is a folder
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--json {path}: there is no folder {path.absolute().parent}")
    if path.is_dir():
        raise UsageError(f"--json {path}: it is a folder")


def rerun_command(run_dir: Path) -> str:
    """Return the command that runs a case again from its run folder."""
    return f"jbod repro {shlex.quote(str(run_dir))}"
