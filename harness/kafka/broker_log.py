"""A broker's text log, read by time and pattern.

The harness sets the layout (:data:`LAYOUT`) for log4j 1 and 2, in UTC with milliseconds, to compare with the journal. A
line without a time at its beginning belongs to the one before it (a stack trace).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

LAYOUT = "[%d{yyyy-MM-dd HH:mm:ss,SSS}] %p %m (%c)%n"
_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] (\w+) (.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One event of a broker's log; ``text`` includes the lines of its stack trace."""

    at: datetime
    level: str
    text: str


class BrokerLog:
    """The log file of one node over all its restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, *, since: datetime | None = None) -> Iterator[LogLine]:
        """The events in the file since ``since``, oldest first; ``since`` is truncated to milliseconds."""
        return self._matching(None, since)

    def first(self, pattern: str, *, since: datetime | None = None) -> LogLine | None:
        """The first event whose text matches the regular expression anywhere; None if there is none."""
        return next(self._matching(re.compile(pattern), since), None)

    def matching(self, pattern: str, *, since: datetime | None = None) -> Iterator[LogLine]:
        """The events whose text matches the regular expression anywhere, oldest first."""
        return self._matching(re.compile(pattern), since)

    def _matching(self, pattern: re.Pattern[str] | None, since: datetime | None) -> Iterator[LogLine]:
        """The matching events; it compares times as text, which is fast: a wait calls this 20 times a second."""
        earliest = "" if since is None else since.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        for chunk in re.split(r"\n(?=\[\d{4}-)", self._text()):
            if (match := _LINE.match(chunk)) is None or match[1] < earliest:
                continue
            if pattern is None or pattern.search(match[3]):
                at = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
                yield LogLine(at=at, level=match[2], text=match[3])

    def tail(self, count: int = 15) -> str:
        """The last ``count`` lines of the file, as they are."""
        return "\n".join(self._text().splitlines()[-count:])

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
