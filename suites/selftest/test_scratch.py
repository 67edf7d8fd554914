"""A scratch folder is removed after its block; if the process was killed, the next clean-up removes it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.host import undo
from harness.host.scratch import scratch, scratch_folder, sweep_scratch

DIES = """
import os
from harness.host.scratch import scratch
with scratch("subrun"):
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def temp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JBOD_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setattr(tempfile, "tempdir", None)  # forget the folder that was found before
    return tmp_path


def test_a_folder_goes_with_its_block(temp_dir: Path) -> None:
    with scratch("maven") as folder:
        (folder / "pom.xml").write_text("")
    assert list(temp_dir.iterdir()) == []


def test_what_a_killed_process_left_goes_with_a_clean_up_and_nothing_else(temp_dir: Path) -> None:
    mine = scratch_folder("spark")
    for other in ("jbod-0", "jbod-ports", "jbod-docker-x1", "jbod-subrun-abc-1", "other-subrun-1-x"):
        (temp_dir / other).mkdir()
    before = set(temp_dir.iterdir())
    assert subprocess.run([sys.executable, "-c", DIES], check=False).returncode == -9
    assert len(set(temp_dir.iterdir()) - before) == 1
    undo.clean()
    assert set(temp_dir.iterdir()) - {temp_dir / "work"} == before
    assert mine.is_dir()
    assert sweep_scratch() == 0
