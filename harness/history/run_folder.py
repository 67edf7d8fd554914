"""Reads ``run.json`` of a run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, UsageError


def read_run_json(run_dir: Path) -> dict[str, Any]:
    """The content of ``run.json``.

    :raises UsageError: there is no such run folder
    :raises HarnessError: ``run.json`` is missing or cut off
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
