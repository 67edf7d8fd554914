"""Results of cases that never ran."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from harness.runner.case import CaseId, CaseResult, Outcome
from harness.runner.deviation import NotedDeviation


def case_result(
    id: str = "kip-0/case[kraft]",
    verdict: str = "valid",
    *,
    mode: str = "kraft",
    reason: str = "planted",
    run_dir: str | None = None,
    duration_s: float = 1.0,
    deviations: tuple[NotedDeviation, ...] = (),
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
    )


def noted_deviation(actual: str, **fields: str) -> NotedDeviation:
    """A deviation that a case shows; without a state, it is one of an older version of jbod."""
    return NotedDeviation.from_json({"kip": 0, "says": "", "does": actual, "issue": "KAFKA-1"} | fields)
