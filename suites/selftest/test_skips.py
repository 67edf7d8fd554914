"""Skipped cases are in the last line of a run, and may make it inconclusive; on planted cases."""

from __future__ import annotations

import pytest

from harness.cli.console import skips_line
from suites.selftest.case_results import case_result
from suites.selftest.planted import Planted

SKIPPED = "kip-112/planted[kraft-b]"
WHY = "Kafka 4.3.1 has no planted tool"


def test_skips_are_counted_by_reason() -> None:
    """The most frequent reason comes first. Without a skip there is no line."""
    reasons = ("no mounts", "no mounts", "no Docker")
    cases = [case_result(f"kip-0/{n}", "skipped", reason=reason) for n, reason in enumerate(reasons)]
    line = skips_line([case_result(), *cases])
    assert line is not None
    assert line.plain == "SKIPPED 3 of 4 cases: 2: no mounts; 1: no Docker"
    assert "red" in str(line.style)
    assert skips_line([case_result()]) is None


@pytest.mark.parametrize(
    ("options", "selected", "code", "last"),
    [
        ([], "kip-112", 0, f"SKIPPED 1 of 3 cases: 1: {WHY}"),
        (["--no-skips"], "kip-112", 2, f"SKIPPED 1 of 3 cases: 1: {WHY}; --no-skips: exit code 2"),
        ([], SKIPPED, 5, f"SKIPPED 1 of 1 cases: 1: {WHY}"),
        (["--no-skips"], SKIPPED, 2, f"SKIPPED 1 of 1 cases: 1: {WHY}; --no-skips: exit code 2"),
    ],
    ids=["some are skipped", "none may be", "all are skipped", "all are skipped and none may be"],
)
def test_the_last_line_of_a_run_and_its_exit_code(
    planted: Planted, options: list[str], selected: str, code: int, last: str
) -> None:
    planted.plays({SKIPPED: "lacks"})
    kafka = planted.kafka("4.3.1")
    found, output = planted.jbod("run", selected, "--backend=planted", f"--kafka-home={kafka}", "--seed=7", *options)
    assert (found, output.splitlines()[-1]) == (code, last)
