"""Groups log lines that differ in names and numbers only."""

from __future__ import annotations

import re

_VARYING = (
    (re.compile(r"(?<![\w.])/\S+"), "…"),
    (re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])"), "ID"),
    (re.compile(r"\d+"), "N"),
)


def kind_of(line: str) -> str:
    """Return the line with paths, ids and numbers replaced, so that lines of one kind are equal."""
    for pattern, by in _VARYING:
        line = pattern.sub(by, line)
    return line
