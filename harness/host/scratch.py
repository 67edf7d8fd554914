"""Short-lived folders in the temp dir, which the next clean-up removes if their maker was killed.

A folder's name has its maker's process id: ``jbod-<what for>-<pid>-…``. If another process has
reused the id, the folder only stays longer. A folder alone needs no undo log (:mod:`harness.host.undo`).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_NAME = re.compile(r"jbod-[a-z]+-(\d+)-.+")


def scratch_folder(what_for: str) -> Path:
    """A new empty folder; its maker removes it, or :func:`sweep_scratch` after the maker's end."""
    return Path(tempfile.mkdtemp(prefix=f"jbod-{what_for}-{os.getpid()}-"))


@contextmanager
def scratch(what_for: str) -> Iterator[Path]:
    """A new empty folder that exists inside the block."""
    folder = scratch_folder(what_for)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_scratch() -> int:
    """Remove the folders of processes that have ended; returns how many."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob("jbod-*"):
        named = _NAME.fullmatch(folder.name)
        if named and not psutil.pid_exists(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)
            removed += not folder.exists()
    return removed
