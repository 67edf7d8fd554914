"""Restarts the task of a live consumer that died. The new task begins where the consumer's history ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from pyspark.sql import SparkSession

from harness.errors import PipelineError
from harness.spark.control import STOP, ControlServer, TaskEndpoint
from harness.spark.tasks import ENDED_UNASKED, SparkTask
from harness.workload.consumer import OUT_OF_RANGE, ConsumerSpec, Isolation, consume, resume_at
from harness.workload.progress import ConsumerReport, ReadPartition, Rebalance

MAX_RESTARTS = 20


class OnEvent(Protocol):
    """Receives events, as the journal's ``write`` does."""

    def __call__(self, kind: str, **fields: object) -> object:
        """Note one event."""


class LiveConsumer:
    """A live consumer over all its sessions, the runs of its task.

    :param body: the task, a function such as :func:`harness.workload.consumer.consume`
    :ivar restarts: how often it was restarted
    :ivar broken: why it was not restarted; None while all is well
    :ivar done: set when it has ended, in good order or because it is broken
    """

    def __init__(
        self,
        session: SparkSession,
        server: ControlServer,
        on_event: OnEvent,
        spec: ConsumerSpec,
        *,
        body: Callable[[ConsumerSpec, TaskEndpoint, Iterable[object]], Iterator[str]] = consume,
    ) -> None:
        self.spec = spec
        self.restarts = 0
        self.broken: str | None = None
        self.done = threading.Event()
        self._body = body
        self._session = session
        self._server = server
        self._on_event = on_event
        self._current = spec  # of the session that runs
        self._read_before = 0
        self._aborting = False
        self._stop_at: Mapping[int, int] | None = None
        self._lock = threading.Lock()
        self.task = self._start()

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self.spec.consumer

    @property
    def isolation(self) -> Isolation:
        """Its isolation level."""
        return self.spec.isolation

    @property
    def report(self) -> ConsumerReport:
        """The newest report of its task."""
        return self.task.report

    @property
    def read(self) -> int:
        """How many records it read, over all sessions."""
        return self._read_before + self.report.read

    def check(self) -> None:
        """Raise PipelineError if it is broken."""
        if self.broken is not None:
            raise PipelineError(self.broken)

    def read_end(self, partition: int) -> int:
        """The next offset that it reads."""
        return self.report.partitions.get(partition, ReadPartition()).end

    def read_sent_at(self, partition: int) -> int:
        """When the newest record that it read was sent, in microseconds; 0 is never."""
        return self.report.partitions.get(partition, ReadPartition()).sent_at

    def stop(self, at: Mapping[int, int]) -> None:
        """Let it end when it has read up to these offsets, by partition; returns soon, and sets :attr:`done` later."""
        with self._lock:
            self._stop_at = at
            self.task.channel.send(replace(STOP, at=at))

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within these seconds."""
        return self.done.wait(timeout_s)

    def let_die(self) -> SparkTask[ConsumerReport]:
        """Stop restarting it. Returns its task, which the caller must end."""
        with self._lock:  # it might be restarting just now
            self._aborting = True
            return self.task

    def abort(self) -> None:
        """End it now; may be called twice."""
        self.let_die().end()

    def _start(self) -> SparkTask[ConsumerReport]:
        journaled = 0

        def journal(report: ConsumerReport) -> None:
            nonlocal journaled
            for rebalance in report.rebalances[journaled:]:
                journaled += 1
                self._journal(rebalance)

        return SparkTask(
            self._session,
            self._server,
            self._current.task,
            ConsumerReport(),
            partial(self._body, self._current),
            on_end=self._on_task_end,
            on_report=journal,
        )

    def _journal(self, rebalance: Rebalance) -> None:
        partitions, when = list(rebalance.partitions), rebalance.when
        sessions, committed = _by_name(rebalance.sessions), _by_name(rebalance.committed)
        note = partial(self._on_event, consumer=self.name, partitions=partitions, when=when)
        match rebalance.what:
            case "assigned":
                note("group.assigned", sessions=sessions, committed=committed)
            case "revoked":
                note("group.revoked", committed=committed, error=rebalance.error)
            case "lost":
                note("group.lost")

    def _on_task_end(self, task: SparkTask[ConsumerReport]) -> None:
        with self._lock:
            if self._aborting or (task.error is None and self._stop_at is not None):
                self.done.set()
                return
            error = task.error or ENDED_UNASKED
            self._on_event("consumer.died", consumer=self.name, session=self._current.session, error=error)
            if self.restarts >= MAX_RESTARTS:
                self.broken = f"consumer {self.name} died {MAX_RESTARTS + 1} times, the last time: {error}"
                self.done.set()
                return
            try:
                starts = resume_at(self.spec.run_dir, self.name, self.spec.starts)
                self.restarts += 1
                self._read_before = sum(start.position for start in starts.values())
                self._current = replace(
                    self.spec, session=self.restarts, starts=starts, within_log=OUT_OF_RANGE in error
                )
                self.task = self._start()
            except Exception as failure:
                self.broken = f"consumer {self.name} died ({error}) and can't be restarted: {failure}"
                self.done.set()
                return
            offsets = {partition: start.offset for partition, start in starts.items()}
            self._on_event("consumer.restarted", consumer=self.name, session=self.restarts, offsets=offsets)
            if self._stop_at is not None:
                self.task.channel.send(replace(STOP, at=self._stop_at))


def _by_name(partitions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): number for partition, number in partitions.items()}
