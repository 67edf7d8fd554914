"""Results of cases that never ran, and scenarios that no suite has."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from harness.crowding import CrowdedTime
from harness.runner.case import CaseId, Outcome
from harness.runner.case_result import CaseResult
from harness.runner.deviation import NotedDeviation
from harness.runner.listing import ListedScenario


def case_result(
    id: str = "kip-0/case[kraft]",
    verdict: str = "valid",
    *,
    mode: str = "kraft",
    reason: str = "planted",
    run_dir: str | None = None,
    duration_s: float = 1.0,
    deviations: tuple[NotedDeviation, ...] = (),
    crowding: CrowdedTime | None = None,
) -> CaseResult:
    """The result of a case with this id."""
    return CaseResult(
        case=CaseId(id=id, kip=0, plan="", mode=mode, seed=1, nodeid=id),
        kafka="4.4.0",
        backend="process",
        verdict=next(each for each in get_args(Outcome) if each == verdict),
        reason=reason,
        duration_s=duration_s,
        run_dir=Path(run_dir) if run_dir else None,
        phases_s={},
        faults=[],
        rerun="",
        deviations=deviations,
        crowding=crowding,
    )


def listed_scenario(case: str) -> ListedScenario:
    """The scenario of a case, as ``jbod list`` has it."""
    return ListedScenario(
        id=case.partition("[")[0],
        kip=112,
        plan="",
        issue=None,
        claim="",
        modes=("kraft",),
        kafka=("4.3.1",),
        backends=("process", "docker"),
        cases=(case,),
        unfit={},
        lacks={},
    )


def noted_deviation(actual: str, **fields: str) -> NotedDeviation:
    """A deviation that a case shows; without a state, it is one of an older version of jbod."""
    return NotedDeviation.from_json({"kip": 0, "says": "", "does": actual, "issue": "KAFKA-1"} | fields)
