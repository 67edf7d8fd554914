"""The thread in a task that writes the history while the task's main thread keeps up with Kafka.

Turning lists into Arrow columns and columns into Parquet takes tens of milliseconds when the load is high; done on the
data path it would look like a gap of Kafka's. So the main thread hands over what it has gathered ten times a second,
and this thread counts it, publishes the progress and writes a part at least each second.
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
# So many batches may wait for the disk before the main thread waits too.
_BACKLOG = 100

B = TypeVar("B")


class PartWriter(Generic[B]):
    """Takes batches, keeps rows, writes parts.

    :param stem: starts the names of the parts; no other writer of this table has it
    :param rows_of: turns one batch into rows of the table; also where progress is counted and published. Runs in this
        thread
    """

    def __init__(self, run_dir: Path, table: TableName, stem: str, rows_of: Callable[[B], pa.Table]) -> None:
        self._writer = HistoryWriter(run_dir, table, stem)
        self._schema = SCHEMAS[table]
        self._rows_of = rows_of
        self._batches: queue.Queue[B | threading.Event | None] = queue.Queue(_BACKLOG)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def add(self, batch: B) -> None:
        """Hand over a batch; waits only where the disk is far behind. Raises what the thread died of."""
        self._put(batch)

    def written(self) -> threading.Event:
        """Ask for what was handed over so far to be written; the event is set when it is on disk."""
        event = threading.Event()
        self._put(event)
        return event

    def flush(self) -> None:
        """Return when all that was handed over is on disk. Raises what the thread died of."""
        event = self.written()
        while not event.wait(1.0):
            self._check()

    def _put(self, what: B | threading.Event) -> None:
        while True:
            self._check()
            try:
                return self._batches.put(what, timeout=1.0)
            except queue.Full:
                continue

    def close(self) -> None:
        """Write what is left; returns when it is on disk. Raises what the thread died of."""
        while self._thread.is_alive():
            try:
                self._batches.put(None, timeout=1.0)
                break
            except queue.Full:
                continue
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            # A table without rows has a part without rows: a run that ends before the first record can be judged.
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
