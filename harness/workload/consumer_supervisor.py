"""One live consumer, supervised: its task is started again, where the history says that it was, when it dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from pyspark.sql import SparkSession

from harness.spark.control import STOP, ControlServer
from harness.spark.tasks import Body, SparkTask
from harness.workload.consumer import OUT_OF_RANGE, ConsumerSpec, consume, resume_at

MAX_RESTARTS = 20


class OnEvent(Protocol):
    """Where events go: the journal's ``write``."""

    def __call__(self, kind: str, **fields: Any) -> object:
        """Note one event."""


class LiveConsumer:
    """A live consumer over all its sessions.

    :param body: what its task does
    :param events_of: what of a report is for the journal: a list that only grows, of events and their fields
    """

    def __init__(
        self,
        session: SparkSession,
        server: ControlServer,
        on_event: OnEvent,
        spec: ConsumerSpec,
        *,
        body: Callable[..., Any] = consume,
        events_of: Callable[[dict[str, Any]], list[tuple[str, dict[str, Any]]]] = lambda _: [],
    ) -> None:
        self._body = body
        self._events_of = events_of
        self._session = session
        self._server = server
        self._on_event = on_event
        self._began = spec
        self._spec = spec
        self._read_before = 0
        self._aborting = False  # it may die
        self._stop_at: Mapping[int, int] | None = None
        self._lock = threading.Lock()
        self.restarts = 0
        """How often it was started again."""
        self.broken: str | None = None
        """Why it was not started again; None while all is well."""
        self.done = threading.Event()
        """It has ended: in good order, or for good."""
        self.task = self._start()

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self._began.consumer

    @property
    def spec(self) -> ConsumerSpec:
        """What it was begun with."""
        return self._began

    @property
    def report(self) -> dict[str, Any]:
        """What its task last said."""
        return self.task.channel.progress or {}

    @property
    def read(self) -> int:
        """Records handed to it, over all sessions."""
        return self._read_before + int(self.report.get("read", 0))

    def read_end(self, partition: int) -> int:
        """The next offset that it reads."""
        return int(self.report.get("partitions", {}).get(str(partition), (0, 0))[0])

    def read_sent_at(self, partition: int) -> int:
        """When the newest record that it was handed had been sent, microseconds; 0 is never."""
        return int(self.report.get("partitions", {}).get(str(partition), (0, 0))[1])

    def stop(self, at: Mapping[int, int]) -> None:
        """Let it end as soon as it has read up to these offsets, by partition; :attr:`done` tells."""
        with self._lock:
            self._stop_at = at
            self.task.channel.send(STOP, at=at)

    def let_die(self) -> SparkTask:
        """From now on it is not started again; returns the task to end."""
        with self._lock:  # or it might be started again just now
            self._aborting = True
            return self.task

    def _start(self) -> SparkTask:
        told = 0

        def tell(report: dict[str, Any]) -> None:
            nonlocal told
            for kind, fields in self._events_of(report)[told:]:
                told += 1
                self._on_event(kind, consumer=self.name, **fields)

        body: Body = partial(self._body, self._spec)
        return SparkTask(self._session, self._server, self._spec.task, body, on_end=self._on_task_end, on_report=tell)

    def _on_task_end(self, task: SparkTask) -> None:
        with self._lock:
            if self._aborting or (task.error is None and self._stop_at is not None):
                self.done.set()
                return
            error = task.error or "ended though nobody had told it to"
            self._on_event("consumer.died", consumer=self.name, session=self._spec.session, error=error)
            if self.restarts >= MAX_RESTARTS:
                self.broken = f"consumer {self.name} died {MAX_RESTARTS + 1} times, the last time: {error}"
                self.done.set()
                return
            try:
                starts = resume_at(self._began.run_dir, self.name, self._began.starts)
                self.restarts += 1
                self._read_before = sum(start.position for start in starts.values())
                self._spec = replace(
                    self._began, session=self.restarts, starts=starts, within_log=OUT_OF_RANGE in error
                )
                self.task = self._start()
            except Exception as failure:
                self.broken = f"consumer {self.name} died ({error}) and can't be started again: {failure}"
                self.done.set()
                return
            offsets = {partition: start.offset for partition, start in starts.items()}
            self._on_event("consumer.restarted", consumer=self.name, session=self.restarts, offsets=offsets)
            if self._stop_at is not None:
                self.task.channel.send(STOP, at=self._stop_at)
