"""What happened in a run, append-only: ``events.jsonl``.

One JSON object a line, flushed at once, so that a run that was killed has all that happened before. Each has ``at``
(UTC, ISO 8601, microseconds), ``monotonic_s`` and ``kind``; the rest depends on the kind (``broker.started``,
``fault.injected``, ``partition.leader`` …). Every thread may write.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def now() -> datetime:
    """The present, in UTC, with microseconds."""
    return datetime.now(UTC)


class Journal:
    """The journal of one run; a ``None`` path keeps it in memory only (``cluster up``).

    :ivar listener: is told of each event once it is written, by the thread that wrote it
    """

    def __init__(self, path: Path | None) -> None:
        self.listener: Callable[[Mapping[str, Any]], None] | None = None
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8") if path else None
        self.events: list[dict[str, Any]] = []

    def write(self, kind: str, **fields: Any) -> datetime:
        """Append one event; returns the instant that it was given."""
        at = now()
        event = {"at": at.isoformat(timespec="microseconds"), "monotonic_s": round(time.monotonic(), 6), "kind": kind}
        event |= fields
        with self._lock:
            self.events.append(event)
            if self._file:
                self._file.write(json.dumps(event, default=str) + "\n")
                self._file.flush()
        if self.listener is not None:
            self.listener(event)
        return at

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        """The events of a kind, oldest first."""
        return (event for event in list(self.events) if event["kind"] == kind)

    def close(self) -> None:
        """No more events."""
        with self._lock:
            if self._file:
                self._file.close()
                self._file = None
