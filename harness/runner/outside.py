"""Locates test files outside the suites, and names their cases."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
"""The folder that contains ``harness`` and ``suites``: a checkout, or a site-packages folder."""

SUITES = ROOT / "suites"


def outside(file: Path) -> Path | None:
    """Return the absolute path of a file that is not in the suites; None if it is."""
    file = file.resolve()
    return None if file.is_relative_to(SUITES) else file


def selector_of(case_id: str, file: str | Path | None) -> str:
    """Return the selector of a case: its id, or ``file::id`` if it is outside the suites.

    :param file: the file outside the suites; None for a case of the suites
    """
    return case_id if file is None else f"{file}::{case_id}"


def collection(selectors: Sequence[str]) -> list[str]:
    """Return pytest's arguments that collect and select these cases; without selectors, all suites but ``selftest``.

    If all selectors are files or folders outside the suites, pytest reads its settings there, as plain pytest does.
    Otherwise node ids are relative to :data:`ROOT`, whatever the working directory, and pytest reads no settings.

    :raises UsageError: a file does not exist or is not a Python file
    """
    chosen: list[str] = []
    others: list[str] = []
    for selector in selectors:
        path, colons, rest = selector.partition("::")
        if colons or _is_path(path):
            found = _find(path)
            if outside(found):
                others.append(str(found))
            else:
                found = found.relative_to(ROOT)
            selector = f"{found}{colons}{rest}"
        chosen.append(selector)
    selects = [f"--select={selector}" for selector in chosen]
    if others and len(others) == len(chosen):
        return [*dict.fromkeys(others), *selects]
    settings = ["-c", os.devnull, f"--rootdir={ROOT}", f"--confcutdir={ROOT}"]
    return [*settings, str(SUITES), f"--ignore={SUITES / 'selftest'}", *dict.fromkeys(others), *selects]


def _is_path(word: str) -> bool:
    """Return whether a selector is a path. A bare word is an id, even if a folder outside the suites has this name."""
    if word.endswith((".py", "/")) or word.startswith((".", "/")):
        return True
    return Path(word).exists() and ("/" in word or outside(Path(word)) is None)


def _find(path: str) -> Path:
    """Return the absolute path; ``suites/…`` is found from any working directory."""
    for place in (Path(path), ROOT / path):
        if place.is_file() and place.suffix != ".py":
            raise UsageError(f"{path} is not a Python file")
        if place.exists():
            return place.resolve()
    raise UsageError(f"no such file: {path}")


def unknown(selector: str, near: Iterable[str]) -> UsageError:
    """Return the error for a selector that selects no case.

    :param near: the most similar selector, or nothing
    """
    if selector.startswith("/") and "::" not in selector:
        return UsageError(f"no scenario in {selector}: mark a test with @scenario of suites.scenario")
    for each in near:
        return UsageError(f"unknown selector {selector!r}; did you mean {each!r}?")
    if Path(selector).is_dir():
        return UsageError(f"unknown selector {selector!r}; for the folder write ./{selector}")
    return UsageError(f"unknown selector {selector!r}; see `jbod list`")
