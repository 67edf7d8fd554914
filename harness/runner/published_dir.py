"""A folder that every run replaces as a whole, such as Allure's results.

Each run writes into a temporary folder beside it, which is renamed at the end of the run. So the folder always has the
complete results of one run, even if two runs end at the same time.
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
    """Yield a temporary folder that replaces ``shared`` after the block. Folders of killed runs are deleted."""
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
        with suppress(OSError):  # it may not exist
            shared.rename(before)
        with suppress(OSError):  # another run may have just done the same
            own.rename(shared)
        for folder in (before, own):
            shutil.rmtree(folder, ignore_errors=True)
