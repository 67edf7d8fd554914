"""A folder of which there is one for all runs: each writes its own beside it, which takes its place when the run ends.

So it is always that of one run, and whole, also where two run at once.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


@contextmanager
def published_dir(shared: Path) -> Iterator[Path]:
    """The folder of this run, inside the block; what killed runs left of theirs goes."""
    for left in shared.parent.glob(f".{shared.name}-*"):
        pid = left.name.removeprefix(f".{shared.name}-").partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    own = shared.with_name(f".{shared.name}-{os.getpid()}-{secrets.token_hex(3)}")
    own.mkdir(parents=True)
    try:
        yield own
    finally:
        before = own.with_name(f"{own.name}-before")
        with suppress(OSError):  # there was none
            shared.rename(before)
        with suppress(OSError):  # another run that ends just now was quicker
            own.rename(shared)
        for folder in (before, own):
            shutil.rmtree(folder, ignore_errors=True)
