"""A thread in a task that writes the history while the task's main thread keeps up with Kafka.

It takes tens of milliseconds under high load to turn lists into Arrow columns, and columns into Parquet. In the main
thread that would look like a gap of Kafka. So the main thread hands over what it has gathered ten times a second. This
thread counts it, publishes the progress and writes a part at least every second.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa

from harness.history.tables import SCHEMAS, HistoryWriter, TableName

HAND_OVER_S = 0.1
PART_S = 0.7
_BACKLOG = 100  # batches that may wait for the disk before the main thread waits too

B = TypeVar("B")


class PartWriter(Generic[B]):
    """Writes batches of one table as parts, in a thread of its own. All methods raise the error that ended the thread.

    :param stem: starts the names of the parts; no other writer of this table has it
    :param rows_of: turns one batch into rows of the table, and counts and publishes progress; runs in the thread
    """

    def __init__(self, run_dir: Path, table: TableName, stem: str, rows_of: Callable[[B], pa.Table]) -> None:
        self._writer = HistoryWriter(run_dir, table, stem)
        self._schema = SCHEMAS[table]
        self._rows_of = rows_of
        self._batches: queue.Queue[B | threading.Event | None] = queue.Queue(_BACKLOG)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def add(self, batch: B | threading.Event | None) -> None:
        """Hand over a batch; waits only if the disk is far behind.

        An event is set when all batches before it are on disk; None ends the thread.
        """
        while True:
            self._check()
            try:
                return self._batches.put(batch, timeout=1.0)
            except queue.Full:
                continue

    def written(self) -> threading.Event:
        """Return an event that is set when all batches handed over so far are on disk."""
        event = threading.Event()
        self.add(event)
        return event

    def flush(self) -> None:
        """Wait until all that was handed over is on disk."""
        event = self.written()
        while not event.wait(1.0):
            self._check()

    def close(self) -> None:
        """Write what is left, and wait until it is on disk."""
        self.add(None)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            # So that a run that ends before its first record can be judged.
            self._writer.write(self._schema.empty_table())
            rows: list[pa.Table] = []
            written_at = time.monotonic()
            ending = False
            wanted: list[threading.Event] = []
            while not ending:
                wait_s = max(0.0, written_at + PART_S - time.monotonic()) if rows else PART_S
                try:
                    batch = self._batches.get(timeout=wait_s)
                    if batch is None:
                        ending = True
                    elif isinstance(batch, threading.Event):
                        wanted.append(batch)
                    else:
                        rows.append(self._rows_of(batch))
                except queue.Empty:
                    pass
                if rows and (ending or wanted or time.monotonic() - written_at >= PART_S):
                    table = pa.concat_tables(rows)
                    rows = []
                    if table.num_rows:
                        self._writer.write(table)
                    written_at = time.monotonic()
                while wanted:
                    wanted.pop().set()
            self._writer.close()
        except BaseException as error:
            self._error = error
