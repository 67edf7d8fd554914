"""The version of jbod itself: of the installed package, with the git revision of a checkout."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_GIT_S = 10.0
_CODE = ("harness", "faults", "suites", "compose")
_DIRTY = "-dirty"


@cache
def own_version() -> str:
    """Return the version in the metadata of the installed package; "?" if it is not installed."""
    try:
        return version("jbod")
    except PackageNotFoundError:
        return "?"


@cache
def own_revision() -> str | None:
    """Return the git revision of the checkout that runs; None without one.

    It ends with ``-dirty`` if files have changed, or if the folders of the code have new files.
    """
    if not (_ROOT / ".git").exists():
        return None
    revision = _git("describe", "--always", "--dirty", "--exclude=*")
    if not revision or revision.endswith(_DIRTY):
        return revision or None
    return revision if _git("status", "--porcelain", "--untracked-files=all", "--", *_CODE) == "" else revision + _DIRTY


def _git(*arguments: str) -> str | None:
    """Return what git prints; None if it failed."""
    argv = ["git", "-C", str(_ROOT), *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def described() -> str:
    """Return version and revision, such as ``0.1.0 (revision 34e2b0b)``."""
    revision = own_revision()
    return own_version() if revision is None else f"{own_version()} (revision {revision})"
