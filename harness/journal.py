"""The journal of a case: an append-only list of events, and ``events.jsonl`` in the run folder.

Each event is written and flushed at once, so a run that was killed has all that happened before. The kinds are in
:mod:`harness.events`. Any thread may write. A full disk does not raise here, because the clean-up writes too;
``Journal.failure`` keeps the error, and the case then ends as an error (:mod:`harness.runner.case_outcome`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from harness import events
from harness.events import Event, Note

E = TypeVar("E", bound=Event)
_STEP_S = 0.05
_TOGETHER_S = 0.01


def now() -> datetime:
    """Now, in UTC, with microseconds."""
    return datetime.now(UTC)


def _both_clocks() -> tuple[datetime, float]:
    """Now, by the machine's clock and by the monotonic one; read again if the thread was preempted between the two."""
    while True:
        before, at, after = time.monotonic(), now(), time.monotonic()
        if after - before < _TOGETHER_S:
            return at, after


class Journal:
    """The journal of one case; a ``None`` path keeps it in memory only (``cluster up``).

    :ivar events: all events, oldest first
    :ivar listener: called with each event after it was written, in the thread that wrote it
    :ivar failure: the error that keeps events out of the file; None if it has all of them
    """

    def __init__(self, path: Path | None) -> None:
        self.failure: OSError | None = None
        self.listener: Callable[[Event], None] | None = None
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8") if path else None
        self.events: list[Event] = []

    def write(self, kind: str, **fields: object) -> datetime:
        """Append one event; returns its instant.

        :param fields: by their names in JSON; a value that JSON can't hold is written as text
        :raises TypeError: the kind has a class in :mod:`harness.events`, and these are not its fields
        """
        with self._lock:  # also around the clocks, or two threads might append in another order
            at, monotonic_s = _both_clocks()
            content = {"at": at.isoformat(timespec="microseconds"), "monotonic_s": round(monotonic_s, 6), "kind": kind}
            line = json.dumps(content | fields, default=str)
            event = events.from_json(json.loads(line))  # as a reader of the file will see it
            if isinstance(event, Note) and kind in events.KINDS:
                raise TypeError(f"{line} does not have the fields of {events.KINDS[kind].__name__}")
            self.events.append(event)
            if self._file and self.failure is None:
                try:
                    self._file.write(line + "\n")
                    self._file.flush()
                except OSError as error:
                    self.failure = error
        if self.listener is not None:
            self.listener(event)
        return at

    def follow_process(self) -> None:
        """From now on, also receive the events of :func:`note`, until the journal is closed."""
        _running.add(self)

    def of(self, kind: type[E]) -> Iterator[E]:
        """The events of a class, oldest first."""
        return (event for event in list(self.events) if isinstance(event, kind))

    def clock_stepped_s(self) -> float:
        """How far the machine's clock was set forward or back during the journal, in seconds; 0.0 if it was not.

        The two times of each event show it: only one of them follows that clock. A time server slews both by less than
        a thousandth, which does not count as a step.
        """
        ahead = [event.at.timestamp() - event.monotonic_s for event in list(self.events)]
        farthest = max((each - ahead[0] for each in ahead), key=abs, default=0.0)
        return round(farthest, 3) if abs(farthest) >= _STEP_S else 0.0

    def close(self) -> None:
        """Close the file; no event may follow."""
        _running.discard(self)
        with self._lock:
            if self._file:
                with contextlib.suppress(OSError):  # closing writes once more what the disk refused
                    self._file.close()
                self._file = None


_running: WeakSet[Journal] = WeakSet()


def note(kind: str, **fields: object) -> None:
    """Append an event to the journal of the case that runs in this process, if one runs.

    For code that has no journal, because it is also used without a case: waits, and calls of Kafka's tools.
    """
    for journal in tuple(_running):
        journal.write(kind, **fields)


def read_journal(run_dir: Path) -> Iterator[Event]:
    """Yield the events of a run folder, oldest first; none if it has no journal. A line that was cut off ends it."""
    try:
        lines = (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield events.from_json(json.loads(line))
        except ValueError:
            return
