"""The run folder as its readers find it: what ``run.json`` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, UsageError


def read_run_json(run_dir: Path) -> dict[str, Any]:
    """What a run folder says of itself.

    :raises UsageError: there is no such folder
    :raises HarnessError: it has no run.json, or one that is cut off
    """
    if not run_dir.is_dir():
        raise UsageError(f"no such run folder: {run_dir}")
    path = run_dir / "run.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise HarnessError(f"{path} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise HarnessError(f"{path} is no JSON object")
    return content
