"""``jbod qualify`` runs the right cases, as often as needed, and resumes; here on planted cases.

``test_reports_qualification.py`` tests its page and its answer.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from harness.waiting import await_until
from suites.selftest.planted import Planted

A, B, C = (f"kip-112/planted[kraft-{letter}]" for letter in "abc")


def qualify(planted: Planted, *arguments: str | Path) -> tuple[int, str, dict[str, Any], Counter[str]]:
    """Run ``jbod qualify``; returns its exit code, output, JSON, and the plays of cases."""
    before = Counter(planted.played())
    code, output = planted.jbod("qualify", "kip-112", "--backend=planted", "--json=out.json", *arguments)
    result = json.loads((planted.folder / "out.json").read_text())
    return code, output, result, Counter(planted.played()) - before


def test_it_goes_on_where_it_was_left_and_runs_what_wavers_three_times(planted: Planted) -> None:
    """A qualification that was killed resumes when it is started again; runs of another build do not count for it."""
    candidate, baseline = planted.kafka("4.3.1"), planted.kafka("4.3.0")
    planted.plays({B: "invalid valid valid invalid", C: "waits"})
    with planted.start("qualify", "kip-112", "--backend=planted", f"--candidate={candidate}") as process:
        await_until(planted.played, lambda cases: len(cases) == 3, timeout_s=120, what="the last case to begin")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        await_until(  # its run must end, too; otherwise both would run the same cases
            lambda: [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE],
            lambda left: not left,
            timeout_s=60,
            what="its run to end",
        )
        process.communicate()

    planted.plays({B: "invalid valid valid invalid"})
    code, output, result, ran = qualify(planted, "network", f"--candidate={candidate}", f"--baseline={baseline}")
    again = {f"{B} 4.3.1": 2, f"{C} 4.3.1": 1}
    assert (code, ran) == (1, again | {f"{A} 4.3.0": 1, f"{B} 4.3.0": 3, f"{C} 4.3.0": 1})
    assert result["cases"] == {A: "held", B: "broken", C: "held", "network/planted[kraft]": "unshown"}
    assert "not shown: own networks: processes share this machine's network" in output
    assert result["rerun"][B].startswith("jbod repro ")
    assert (planted.folder / "reports" / "qualify" / "report" / "qualification.html").is_file()

    code, output = planted.jbod("qualify", "kip-112", "--backend=planted", f"--candidate={baseline}")
    assert code == 4
    assert "candidate has runs of Kafka 4.3.1 (sha256 " in " ".join(output.split())
    assert "give another --out" in output


def test_what_left_no_trace_is_not_forgotten_and_runs_the_next_time(planted: Planted) -> None:
    """A case whose run was killed, as by the kernel when memory is short, must run; otherwise nothing qualifies."""
    new = f"--candidate={planted.kafka('4.3.1')}"
    planted.plays({B: "killed"})
    code, output, result, ran = qualify(planted, new)
    assert (code, ran) == (3, {f"{A} 4.3.1": 1, f"{B} 4.3.1": 2})
    assert result["cases"] == {A: "held", B: "unshown", C: "unshown"}
    assert "candidate: 1 case never began" in result["notes"]
    assert f"did not report it: {C}" in output

    planted.plays({})
    code, _, result, ran = qualify(planted, new)
    assert (code, ran) == (0, {f"{B} 4.3.1": 1, f"{C} 4.3.1": 1})
    assert result["cases"] == {A: "held", B: "held", C: "held"}
    assert result["answer"].startswith("Qualified: Kafka 4.3.1 ")


def test_what_ran_less_often_than_asked_does_not_qualify(planted: Planted) -> None:
    """All cases were valid once, and a case's second run was an error: with ``--repeats=2`` that does not qualify."""
    planted.plays({A: "valid error error", B: "valid", C: "valid"})
    code, _, result, _ = qualify(planted, f"--candidate={planted.kafka('4.3.1')}", "--repeats=2")
    assert (code, result["answer"]) == (2, "Not shown: 1 case ran less often than asked")
    assert f"candidate: 1 case ran less often than asked: {A}" in result["notes"]
    assert result["cases"] == {A: "held", B: "held", C: "held"}
