"""The examples of the READMEs work as they stand; the examples of a fault and of a scenario run together."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.cluster import boot
from harness.cluster.nodes import backends
from harness.cluster.spec import ClusterSpec
from harness.journal import Journal
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode
from suites.selftest.processes import HANG_S

ROOT = Path(__file__).resolve().parents[2]


OURS = 1
"""The example in suites/README.md of a scenario in another repository; test_installed.py runs it."""


def example(readme: str, number: int = 0) -> str:
    """A block of Python from a README."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / readme).read_text(), flags=re.MULTILINE | re.DOTALL)
    return str(blocks[number])


HOLD = 1
"""The example in faults/README.md of a hold."""


def run_example(tmp_path: Path, text: str) -> dict[str, Any]:
    """Run the one case of a file; returns its result."""
    file = tmp_path / "test_example.py"
    file.write_text(text)
    results = tmp_path / "results.json"
    options = ["-p", "no:cacheprovider", f"--json={results}", f"--runs-dir={tmp_path / 'runs'}", "--mode=kraft"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), str(file), *options],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    [case] = json.loads(results.read_text())["scenarios"]
    assert isinstance(case, dict)
    return case


@pytest.mark.cluster
def test_the_examples_run(tmp_path: Path) -> None:
    """The case is valid, and its fault is proven and noticed."""
    case = run_example(tmp_path, "\n\n".join([example("faults/README.md"), example("suites/README.md")]))
    assert (case["id"], case["verdict"]) == ("example/link-loop[kraft-link_loop]", "valid")
    [fault] = case["faults"]
    assert fault["proven"]
    assert fault["noticed_s"] is not None


@pytest.mark.cluster
def test_the_example_of_a_hold_runs(tmp_path: Path) -> None:
    case = run_example(tmp_path, example("faults/README.md", HOLD))
    assert (case["id"], case["verdict"]) == ("example/slow-flush[kraft]", "valid")
    assert case["interference"] == [{"kind": "hold", "point": "rolled-segment-flushed", "reached": 1}]


@pytest.mark.cluster
def test_the_backend_of_the_example_boots_a_cluster(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes run on the first core only; nodes of other backends do not."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    monkeypatch.setattr(backends, "BACKENDS", dict(backends.BACKENDS))
    exec(compile(example("harness/README.md"), "harness/README.md", "exec"), {})
    distribution = Builds.choose(BuildOptions(mode="kraft")).of(Mode.KRAFT, lambda _line: None)
    for backend, cores in (("pinned", {0}), ("process", os.sched_getaffinity(0))):
        spec = ClusterSpec(mode=Mode.KRAFT, brokers=1, log_dirs=1, backend=backend)
        folder = tmp_path / backend
        cluster = boot(spec, distribution, run_id=f"readme-{backend}", record_dir=folder, journal=Journal(None))
        try:
            assert os.sched_getaffinity(cluster.brokers[0].node.pid() or 0) == cores
        finally:
            cluster.stop()
