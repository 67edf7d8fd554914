"""The result of a case: one record that travels to results, ledger and console in the report of the case's teardown.

With ``--jobs`` a case ends in a worker. pytest-xdist sends extra attributes of a report to the controller, but only of
plain types such as text. So the report carries the record as JSON. ``user_properties`` would carry it too, but JUnit
prints those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cluster.profile import FAST
from harness.crowding import PATIENCE, CrowdedTime
from harness.kafka.security import ListenerSecurity
from harness.measure.fault_costs import FaultCosts
from harness.measure.interference import Interference
from harness.runner.case import CaseId, Outcome
from harness.runner.deviation import NotedDeviation
from harness.waiting import CROWDED, TOO_SLOW

if TYPE_CHECKING:
    import pytest


_PLAINTEXT = ListenerSecurity.PLAINTEXT.value


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The result of a case; an entry of ``scenarios`` in ``--json``. The defaults are those of a case that never began.

    :ivar kept: lines that say how to reach the cluster, if it was kept
    :ivar awaited_s: of the seconds of each phase, those in which the case waited for Kafka; empty in older files
    :ivar served: the cases that the cluster had served before (:mod:`harness.runner.cluster_reuse`)
    :ivar sha256: of the Kafka build's jars; empty if the case ended before the build was known
    :ivar crowding: how crowded the machine was; None if the run folder could not be written
    :ivar interference: what was held, thrown or changed inside the brokers
    :ivar profile: the name of its profile (:mod:`harness.cluster.profile`)
    :ivar settings: the broker properties of ``--set``
    :ivar listener_security: what protected the listeners, by the option of that name
    """

    case: CaseId
    kafka: str
    backend: str
    verdict: Outcome
    reason: str
    rerun: str
    duration_s: float = 0.0
    run_dir: Path | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    awaited_s: Mapping[str, float] = field(default_factory=dict)
    faults: Sequence[FaultCosts] = ()
    deviations: Sequence[NotedDeviation] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    kept: Sequence[str] = ()
    served: Sequence[str] = ()
    sha256: str = ""
    crowding: CrowdedTime | None = None
    interference: Sequence[Interference] = ()
    profile: str = FAST.name
    settings: Mapping[str, str] = field(default_factory=dict)
    listener_security: str = _PLAINTEXT

    @property
    def is_of_mutant(self) -> bool:
        """Whether the build had a defect on purpose, so that the case says nothing about Kafka."""
        return any(each.kind == "mutant" for each in self.interference)

    @property
    def is_ordinary(self) -> bool:
        """Whether it counts as a run of its case: the build is as Kafka made it, and the settings are the suites'."""
        usual = self.profile == FAST.name and not self.settings and self.listener_security == _PLAINTEXT
        return usual and not self.is_of_mutant

    @property
    def is_crowded(self) -> bool:
        """Whether its times were measured on a crowded machine."""
        return self.crowding is not None and self.crowding.marks_times

    def starved(self) -> str | None:
        """Return how the case shows that the machine was too slow for it; None if it does not.

        The machine was too slow if the case is unknown for that reason, or if waits got the most time that they may
        get. Time-outs do not make up for an even slower machine.
        """
        if self.verdict == "unknown" and (TOO_SLOW in self.reason or CROWDED in self.reason):
            return f"unknown: {self.reason}"
        if self.crowding is not None and self.crowding.mean.stretch == PATIENCE:
            return f"{CROWDED} ({self.crowding.mean})"
        return None

    def left_room(self) -> bool:
        """Return whether the machine had cores to spare during the case: fewer threads were ready to run than cores."""
        return self.crowding is not None and self.crowding.mean.per_core < 1.0 and not self.crowding.marks_times

    def to_json(self) -> dict[str, object]:
        """Return the entry of ``scenarios`` in ``--json``."""
        entry: dict[str, object] = {
            "id": self.case.id,
            "kip": self.case.kip,
            "plan": self.case.plan,
            "issue": self.case.issue,
            "mode": self.case.mode,
            "kafka": self.kafka,
            "backend": self.backend,
            "verdict": self.verdict,
            "reason": self.reason,
            "duration_s": round(self.duration_s, 3),
            "run_dir": str(self.run_dir) if self.run_dir else None,
            "phases_s": {name: round(seconds, 3) for name, seconds in self.phases_s.items()},
            "awaited_s": {name: round(seconds, 3) for name, seconds in self.awaited_s.items()},
            "faults": [each.to_json() for each in self.faults],
            "rerun": self.rerun,
        }
        deviations = [each.to_json() for each in self.deviations]
        optional = {
            "file": self.case.file,
            "measured": dict(self.measured),
            "kept": list(self.kept),
            "served": list(self.served),
            "kafka_sha256": self.sha256,
            "deviation": next(iter(deviations), None),
            "deviations": deviations,
            "crowding": asdict(self.crowding) if self.crowding else None,
            "crowded": self.is_crowded,
            "interference": [asdict(each) for each in self.interference],
            "profile": self.profile if self.profile != FAST.name else None,
            "settings": dict(self.settings),
            "listener_security": None if self.listener_security == _PLAINTEXT else self.listener_security,
        }
        return entry | {name: value for name, value in optional.items() if value}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], *, nodeid: str = "", seed: int = 0) -> CaseResult:
        """Return the result that :meth:`to_json` wrote, in this or an earlier version.

        :param nodeid: pytest's id of the test, which JSON does not have
        :param seed: the seed of the run, which JSON has only once for all entries
        """
        fields = {name: entry[name] for name in ("kafka", "backend", "verdict", "reason", "duration_s", "phases_s")}
        case = {name: entry[name] for name in ("id", "kip", "plan", "issue", "mode")}
        return cls(
            case=CaseId(**case, nodeid=nodeid, seed=seed, file=entry.get("file")),
            run_dir=Path(entry["run_dir"]) if entry["run_dir"] else None,
            faults=[FaultCosts.from_json(each) for each in entry["faults"]],
            rerun=entry["rerun"],
            deviations=[NotedDeviation.from_json(each) for each in entry.get("deviations", ())],
            awaited_s=entry.get("awaited_s", {}),
            measured=entry.get("measured", {}),
            kept=entry.get("kept", ()),
            served=entry.get("served", ()),
            sha256=entry.get("kafka_sha256", ""),
            crowding=CrowdedTime(**entry["crowding"]) if "crowding" in entry else None,
            interference=[Interference.from_json(each) for each in entry.get("interference", ())],
            profile=entry.get("profile", FAST.name),
            settings=entry.get("settings", {}),
            listener_security=entry.get("listener_security", _PLAINTEXT),
            **fields,
        )

    def attach_to(self, report: pytest.TestReport) -> None:
        """Put the result into the report of the case's teardown, and into the fields that JUnit and pytest print."""
        report.case_result = json.dumps(self.to_json())  # type: ignore[attr-defined]
        report.user_properties += [("verdict", self.verdict), ("again", self.rerun)]
        if self.kept:
            report.sections.append(("cluster kept at teardown", "\n".join(self.kept)))

    @classmethod
    def attached_to(cls, report: pytest.TestReport, seed: int) -> CaseResult | None:
        """Return the result in a report; None if the report has none.

        :param seed: of the run
        """
        text = getattr(report, "case_result", None)
        return None if text is None else cls.from_json(json.loads(text), nodeid=report.nodeid, seed=seed)
