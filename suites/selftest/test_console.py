"""The table of verdicts: what stands below a case, and what is told of all cases at its end."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.console import Console

from harness.cli.console import verdict_table
from harness.runner.case import CaseId, CaseResult


def result(case: str, *deviations: Mapping[str, object]) -> CaseResult:
    return CaseResult(
        case=CaseId(id=case, kip=0, plan="", mode="kraft", seed=1, nodeid=case),
        kafka="4.4.0",
        backend="process",
        verdict="valid",
        reason="",
        duration_s=1.0,
        run_dir=None,
        phases_s={},
        faults=[],
        rerun="",
        deviations=deviations,
    )


def told(does: str, **state: str) -> Mapping[str, object]:
    return {"does": does, "issue": "KAFKA-1"} | state


def test_deviations_are_told_by_their_state_and_undeclared_ones_once() -> None:
    apart = told("is silent", state="undeclared")
    cases = [
        result("kip-0/a", told("lies", state="seen"), apart),
        result("kip-0/b", told("is late", state="mended")),
        result("kip-0/c", told("hides", state="undeclared"), apart),
        result("kip-0/d", told("as told by an older jbod")),
    ]
    out = io.StringIO()
    Console(file=out, width=200).print(verdict_table(cases))
    lines = [line.strip("│ ").partition("  ")[0] for line in out.getvalue().splitlines() if "KAFKA-1" in line]
    assert [line.split(" │")[0].strip() for line in lines] == [
        "deviates: lies (KAFKA-1)",
        "mended: is late (KAFKA-1)",
        "deviates: as told by an older jbod (KAFKA-1)",
        "deviates, seen in 2 cases that do not declare it: is silent (KAFKA-1)",
        "deviates, seen in 1 case that does not declare it: hides (KAFKA-1)",
    ]
