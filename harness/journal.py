"""What happened in a run, append-only: ``events.jsonl``.

One JSON object a line, flushed at once, so that a run that was killed has all that happened before. Each has ``at``
(UTC, ISO 8601, microseconds), ``monotonic_s`` and ``kind``; the rest depends on the kind (``node.started``,
``fault.injected``, ``partition.changed`` …). Every thread may write, and none is ended by a disk that takes no more:
what is written to clean up must not fail for it. The case that it belongs to has shown nothing then
(:mod:`harness.runner.case_outcome`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_STEP_S = 0.05
_TOGETHER_S = 0.01


def now() -> datetime:
    """The present, in UTC, with microseconds."""
    return datetime.now(UTC)


def _both_clocks() -> tuple[datetime, float]:
    """The present by the machine's clock and by the monotonic one; read again where the processor was away between."""
    while True:
        before, at, after = time.monotonic(), now(), time.monotonic()
        if after - before < _TOGETHER_S:
            return at, after


class Journal:
    """The journal of one run; a ``None`` path keeps it in memory only (``cluster up``).

    :ivar listener: is told of each event once it is written, by the thread that wrote it
    :ivar failure: why the file has not all events; None where it has
    """

    def __init__(self, path: Path | None) -> None:
        self.failure: OSError | None = None
        self.listener: Callable[[Mapping[str, Any]], None] | None = None
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8") if path else None
        self.events: list[dict[str, Any]] = []

    def write(self, kind: str, **fields: Any) -> datetime:
        """Append one event; returns the instant that it was given."""
        with self._lock:  # the clocks too, or two threads might append theirs in another order
            at, monotonic_s = _both_clocks()
            event = {"at": at.isoformat(timespec="microseconds"), "monotonic_s": round(monotonic_s, 6), "kind": kind}
            event |= fields
            self.events.append(event)
            if self._file and self.failure is None:
                try:
                    self._file.write(json.dumps(event, default=str) + "\n")
                    self._file.flush()
                except OSError as error:
                    self.failure = error
        if self.listener is not None:
            self.listener(event)
        return at

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        """The events of a kind, oldest first."""
        return (event for event in list(self.events) if event["kind"] == kind)

    def clock_stepped_s(self) -> float:
        """By how many seconds somebody set the machine's clock, forward or back, while this was written: the farthest
        that it ever was from where it began; 0.0 where nobody did. Told by the events' two times, of which one is of
        the clock; what a time server does to both alike, by less than a thousandth, is no step.
        """
        ahead = [datetime.fromisoformat(event["at"]).timestamp() - event["monotonic_s"] for event in list(self.events)]
        farthest = max((each - ahead[0] for each in ahead), key=abs, default=0.0)
        return round(farthest, 3) if abs(farthest) >= _STEP_S else 0.0

    def close(self) -> None:
        """No more events."""
        with self._lock:
            if self._file:
                with contextlib.suppress(OSError):  # what could not be written is tried once more
                    self._file.close()
                self._file = None
