"""Holds in real brokers: what a run says of them, and what a case with ``--hold`` is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suites.selftest.processes import run

pytestmark = pytest.mark.cluster


def test_a_run_says_where_a_thread_was_held(tmp_path: Path) -> None:
    case = "races/failed-replica-rejoins[kraft]"
    code, results = run(tmp_path, case)
    assert code == 0, results
    folder = Path(results[case]["run_dir"])
    assert json.loads((folder / "run.json").read_text())["interference"] == [
        {"kind": "hold", "point": "isr-change-sent", "reached": 1}
    ]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    [injected] = [event for event in events if event["kind"] == "fault.injected" and event["fault"] == "held"]
    assert "Partition.submitAlterPartition" in injected["evidence"]
    [over] = [event for event in events if event["kind"] == "hold.over"]
    assert over["why"] == "released"
    assert over["held_ms"] > 0


def test_any_case_can_hold_threads(tmp_path: Path) -> None:
    """A valid case stays valid: a slow thread breaks no promise."""
    case = "kip-112/follower-at-runtime[kraft-chmod_000]"
    code, results = run(tmp_path, case, "--hold=log-dir-taken-offline@struck/0.3", "--hold=checkpoint-written@others")
    assert code == 0, results
    points = {each["point"] for each in results[case]["interference"]}
    assert points == {"log-dir-taken-offline", "checkpoint-written"}
    content = json.loads((Path(results[case]["run_dir"]) / "run.json").read_text())
    assert content["holds"] == ["log-dir-taken-offline@struck/0.3", "checkpoint-written@others/0.5"]
