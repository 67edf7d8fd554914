"""The table of verdicts has the faults and deviations of each case, and a summary of all cases at the end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.cli.console import ConsoleReporter, summary, verdict_table
from harness.crowding import CrowdedTime
from harness.runner.results import Results
from harness.runner.run import Run
from suites.selftest.case_results import case_result, noted_deviation
from suites.selftest.fakes import fake


def test_deviations_are_reported_by_their_state_in_each_case() -> None:
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
        "deviates: lies (issue: KAFKA-1)",
        "deviates, undeclared: is silent (issue: KAFKA-1)",
        "mended: is late (issue: KAFKA-1)",
        "deviates, undeclared: hides (issue: KAFKA-1)",
        "deviates, undeclared: is silent (issue: KAFKA-1)",
        "deviates: as told by an older jbod (issue: KAFKA-1)",
    ]


def test_times_on_a_crowded_machine_are_marked() -> None:
    def table(*shares: float) -> str:
        cases = [case_result(f"kip-0/{share}", crowding=CrowdedTime(crowded_share=share)) for share in shares]
        out = io.StringIO()
        Console(file=out, width=200).print(verdict_table([*cases, case_result("kip-0/unknown")]))
        return out.getvalue()

    marked = table(0.4, 0.6)
    assert [line.split("│")[1].strip() for line in marked.splitlines() if " 1.0† " in line] == ["kip-0/0.6"]
    assert "† measured on a crowded machine: longer than on an idle one" in marked
    assert "†" not in table(0.5)


def test_a_valid_case_with_an_undeclared_deviation_says_so_on_its_line_and_in_the_summary(tmp_path: Path) -> None:
    apart = noted_deviation("is silent", state="undeclared")
    cases = [case_result("kip-0/a", deviations=(apart, noted_deviation("lies"))), case_result("kip-0/b")]
    results = fake(Results, cases=cases)
    out = io.StringIO()
    console = Console(file=out, width=200)
    reporter = ConsoleReporter(console, Console(file=io.StringIO()))
    reporter._run = fake(Run, results=results, runs_dir=tmp_path, seed=1, unusual=[])
    reporter.pytest_runtest_logreport(pytest.TestReport("x", ("x", 0, "x"), {}, "passed", None, "teardown"))
    console.print(summary(reporter._run))
    shown = out.getvalue()
    assert shown.count("deviates, undeclared: is silent (issue: KAFKA-1)") == 1
    assert "lies" not in shown
    assert "2 valid  1 with an undeclared deviation  " in shown
