"""Folders in the temp dir for what is needed for a moment only: they go with it, or with the next clean-up.

Whoever is killed can't remove what is its own, so a folder's name says whose it is: ``jbod-<what for>-<pid>-…``. That
of a process that is no more is nobody's. An id that is in use again keeps a folder a while longer, and no more harm is
done; a folder with nothing to undo (:mod:`harness.host.undo`) needs no log of its own.
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
    """A new empty folder, which its maker removes, or :func:`sweep_scratch` once its maker has ended."""
    return Path(tempfile.mkdtemp(prefix=f"jbod-{what_for}-{os.getpid()}-"))


@contextmanager
def scratch(what_for: str) -> Iterator[Path]:
    """A new empty folder, inside the block."""
    folder = scratch_folder(what_for)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_scratch() -> int:
    """Remove the folders of processes that are no more; returns how many."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob("jbod-*"):
        named = _NAME.fullmatch(folder.name)
        if named and not psutil.pid_exists(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)
            removed += not folder.exists()
    return removed
