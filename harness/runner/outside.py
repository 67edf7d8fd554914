"""Scenarios outside the suites, in files of a team's own: where they are, and how their cases are named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
"""The folder that harness and suites are in: a checkout, or where packages are installed."""

SUITES = ROOT / "suites"


def outside(file: Path) -> Path | None:
    """The absolute path of a file that is not in the suites; None where it is."""
    file = file.resolve()
    return None if file.is_relative_to(SUITES) else file


def selector_of(case_id: str, file: str | Path | None) -> str:
    """What selects a case: its id; for one outside the suites ``file::id``.

    :param file: the file outside the suites; None for a case of the suites
    """
    return case_id if file is None else f"{file}::{case_id}"


def collection(selectors: Sequence[str]) -> list[str]:
    """pytest's arguments that collect and select what the selectors name; without any, all suites but the selftest.

    Where all of them are files or folders outside the suites, pytest finds its settings there, as plain pytest does.
    Else node ids begin at :data:`ROOT`, wherever pytest runs, and no settings are read.

    :raises UsageError: there is no such file, or it is not Python
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
    """Whether it is no id. A bare word is one, also where a folder outside the suites has its name."""
    if word.endswith((".py", "/")) or word.startswith((".", "/")):
        return True
    return Path(word).exists() and ("/" in word or outside(Path(word)) is None)


def _find(path: str) -> Path:
    """The absolute path; ``suites/…`` is found from any working directory."""
    for place in (Path(path), ROOT / path):
        if place.is_file() and place.suffix != ".py":
            raise UsageError(f"{path} is not a Python file")
        if place.exists():
            return place.resolve()
    raise UsageError(f"no such file: {path}")


def unknown(selector: str, near: Iterable[str]) -> UsageError:
    """The error for a selector that selects no case.

    :param near: the selector that is most like it, if any is
    """
    if selector.startswith("/") and "::" not in selector:
        return UsageError(f"no scenario in {selector}: mark a test with @scenario of suites.scenario")
    for each in near:
        return UsageError(f"unknown selector {selector!r}; did you mean {each!r}?")
    if Path(selector).is_dir():
        return UsageError(f"unknown selector {selector!r}; for the folder say ./{selector}")
    return UsageError(f"unknown selector {selector!r}; see `jbod list`")
