"""Each kind of step can be played, on real clusters in both modes; half of a night consists of such steps.

The order leaves no step out: first the steps that break nothing, then each fault with its healing.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from faults.broker import BrokerKilled
from faults.file_system import Eio
from faults.network import CutOff, CutOffOneWay
from faults.slow import Slow
from suites.schedules.schedule import _WEIGHTS, Schedule, Step
from suites.selftest.needs import require
from suites.selftest.processes import HANG_S, JBOD

pytestmark = pytest.mark.cluster

STEPS = (
    Step(do="quiet"),
    Step(do="begin_move"),
    Step(do="create_topic"),
    Step(do="end_move"),
    Step(do="move", role="follower", pick=1),
    Step(do="rot", pick=2),
    Step(do="reassign", pick=1),
    Step(do="replace"),
    Step(do="restart", role="follower"),
    Step(do="lose_controller"),
    Step(do="delete_topic"),
    Step(do="slow_disk", fault=Slow.name),
    Step(do="heal"),
    Step(do="fail_log_dir", fault=Eio.name, role="coordinator"),
    Step(do="heal"),
    Step(do="end_broker", fault=BrokerKilled.name, role="controller"),
    Step(do="heal"),
)
CUTS = (
    Step(do="cut_off", fault=CutOff.name),
    Step(do="cut_off", fault=CutOffOneWay.name, role="follower"),
    Step(do="cut_off", fault=CutOffOneWay.name, role="controller"),
    Step(do="begin_move"),
    Step(do="cut_off", fault=CutOff.name, role="coordinator"),
    Step(do="end_move"),
)


@pytest.mark.parametrize("mode", ["kraft", pytest.param("zk", marks=pytest.mark.weekly)])
@pytest.mark.parametrize(
    ("schedule", "backend"),
    [
        pytest.param(Schedule(steps=STEPS, volumes=True), "process", id="processes"),
        pytest.param(Schedule(steps=CUTS), "docker", id="containers", marks=pytest.mark.docker),
    ],
)
def test_each_kind_of_step_is_played(tmp_path: Path, schedule: Schedule, backend: str, mode: str) -> None:
    """The journal shows that each step was done, and the case is valid."""
    assert {step.do for step in (*STEPS, *CUTS)} == {*_WEIGHTS}
    if backend == "docker":
        require("docker", "compose", "container image")
    file, out = tmp_path / "schedule.json", tmp_path / "out.json"
    file.write_text(json.dumps(schedule.to_json()))
    argv: list[str | Path] = [
        JBOD,
        "run",
        "schedules",
        f"--schedule={file}",
        f"--backend={backend}",
        f"--mode={mode}",
        f"--runs-dir={tmp_path / 'runs'}",
    ]
    done = subprocess.run([*argv, f"--json={out}"], capture_output=True, text=True, timeout=HANG_S, check=False)
    print(done.stdout, done.stderr)
    [case] = json.loads(out.read_text())["scenarios"]
    if case["verdict"] == "skipped":
        pytest.skip(case["reason"])
    assert (case["mode"], case["verdict"]) == (mode, "valid"), case["reason"]
    events = [json.loads(line) for line in (Path(case["run_dir"]) / "events.jsonl").read_text().splitlines()]
    assert [event["reason"] for event in events if event["kind"] == "step.passed_over"] == []
    assert [event["step"] for event in events if event["kind"] == "step.done"] == [str(step) for step in schedule.steps]
