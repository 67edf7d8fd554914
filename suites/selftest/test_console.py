"""The table of verdicts has the faults and deviations of each case, and a summary of all cases at the end."""

from __future__ import annotations

import io

from rich.console import Console

from harness.cli.console import verdict_table
from suites.selftest.case_results import case_result, noted_deviation


def test_deviations_are_told_by_their_state_and_undeclared_ones_once() -> None:
    apart = noted_deviation("is silent", state="undeclared")
    cases = [
        case_result(
            "kip-0/a",
            deviations=(
                noted_deviation("lies", state="seen"),
                apart,
            ),
        ),
        case_result("kip-0/b", deviations=(noted_deviation("is late", state="mended"),)),
        case_result(
            "kip-0/c",
            deviations=(
                noted_deviation("hides", state="undeclared"),
                apart,
            ),
        ),
        case_result("kip-0/d", deviations=(noted_deviation("as told by an older jbod"),)),
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
