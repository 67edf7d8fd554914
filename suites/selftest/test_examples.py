"""The examples of faults/README.md and suites/README.md are what they say: together they are run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = """
from faults.log_dir import LogDirFault, Removed
from faults.targets import leader_of
from harness.cluster import Cluster
from harness.journal import now
from harness.workload import CaseWorkload
from suites.checks import check_delivery
from suites.model import World
from suites.scenario import each_fault, scenario
from suites.steps import failed, restarted_healed
"""


def example(readme: str) -> str:
    """The one block of Python in a README."""
    [block] = re.findall(r"^```python\n(.*?)^```$", (ROOT / readme).read_text(), flags=re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.mark.cluster
def test_the_examples_run(tmp_path: Path) -> None:
    """A newcomer's fault and scenario: valid, with the fault proven and noticed."""
    file = tmp_path / "test_example.py"
    file.write_text("\n\n".join([IMPORTS, example("faults/README.md"), example("suites/README.md")]))
    results = tmp_path / "results.json"
    options = ["-p", "no:cacheprovider", f"--json={results}", f"--runs-dir={tmp_path / 'runs'}", "--mode=kraft"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), str(file), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    [case] = json.loads(results.read_text())["scenarios"]
    assert (case["id"], case["verdict"]) == ("example/link-loop[kraft-link_loop]", "valid")
    [fault] = case["faults"]
    assert fault["proven"]
    assert fault["noticed_s"] is not None
