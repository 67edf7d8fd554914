"""The version of jbod itself: of the installed package, with the git revision of a checkout."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_GIT_S = 10.0


@cache
def own_version() -> str:
    """Return the version in the metadata of the installed package; "?" if it is not installed."""
    try:
        return version("jbod")
    except PackageNotFoundError:
        return "?"


@cache
def own_revision() -> str | None:
    """Return the git revision of the checkout that runs, with ``-dirty`` after it if files differ; None without one."""
    if not (_ROOT / ".git").exists():
        return None
    argv = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no git
        return None
    return done.stdout.strip() or None


def described() -> str:
    """Return version and revision, such as ``0.1.0 (revision 34e2b0b)``."""
    revision = own_revision()
    return own_version() if revision is None else f"{own_version()} (revision {revision})"
