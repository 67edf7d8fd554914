"""Runs one function as one long-running Spark task: the driver's handle of it, and its set-up in the worker.

A task runs once. Spark runs a task again when it loses an executor, and does not count every such loss as a failure
(``spark.task.maxFailures``). A second run of a producer would send its records again, and the judge would blame Kafka.
So a task first creates a file that must not exist yet, and a second attempt fails.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Generic

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from harness.errors import PipelineError
from harness.spark.control import ABORT, ControlServer, DriverLink, R, TaskEndpoint
from harness.spark.session import JVM_DIED, jvm_died

Body = Callable[[TaskEndpoint, Iterable[object]], Iterator[str]]

STOP_S = 5.0
ENDED_UNASKED = "ended without being asked to"


def claim(run_dir: Path, task: str) -> None:
    """Claim the only run of this task.

    :raises PipelineError: another attempt has claimed it; the error names that attempt
    """
    path = run_dir / "history" / ".claims" / task
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x") as file:  # O_EXCL: exactly one attempt succeeds
            file.write(f"process {os.getpid()}, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")
    except FileExistsError as error:
        raise PipelineError(
            f"task {task} was started a second time (the first: {path.read_text().strip()}); not run again: it would "
            "send or read the same records once more"
        ) from error


@contextmanager
def claimed(run_dir: Path, task: str, endpoint: TaskEndpoint) -> Iterator[DriverLink]:
    """In the worker: claim the task and connect it to the driver for the block.

    :raises PipelineError: as :func:`claim`
    """
    claim(run_dir, task)
    link = DriverLink(endpoint)
    try:
        yield link
    finally:
        link.close()


class SparkTask(Generic[R]):
    """A long-running Spark task: a job of one partition, and a thread that waits for its end.

    :param name: used once in a run; also names the control channel and the Spark job group
    :param first: see :class:`harness.spark.control.Channel`
    :param body: runs in the Python worker, with the task's endpoint and an iterator to ignore; a function that the
        workers can import, or a ``functools.partial`` of one
    :param on_end: called with this task when its job has ended, cleanly or not, in the task's thread
    :param on_report: called with each report, in a thread of the channel
    """

    def __init__(
        self,
        session: SparkSession,
        server: ControlServer,
        name: str,
        first: R,
        body: Body,
        *,
        on_end: Callable[[SparkTask[R]], None] = lambda _: None,
        on_report: Callable[[R], object] = lambda _: None,
    ) -> None:
        self.name = name
        self._group = f"{name} of process {os.getpid()}"  # several processes may share Spark's JVM
        self._session = session
        self._error: BaseException | None = None
        self._on_end = on_end
        self._worker_gone = False
        self.channel, endpoint = server.open(name, first, on_close=self._expect_end, on_report=on_report)
        self._thread = threading.Thread(
            target=self._run, args=(partial(body, endpoint),), name=f"task-{name}", daemon=True
        )
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the Spark job has not ended yet."""
        return self._thread.is_alive()

    @property
    def report(self) -> R:
        """The newest report."""
        return self.channel.report

    @property
    def error(self) -> str | None:
        """Why the task failed, in one line; None while it runs and if it ended cleanly."""
        if self._worker_gone:
            return "its Python worker is gone, and Spark has not noticed"
        if self._error is None:
            return None
        return JVM_DIED if jvm_died() else last_line(self._error)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the job; returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the task, whatever it is doing: abort it, else drop it and cancel its job; at most 5 s for each."""
        self.channel.send(ABORT)
        if self.join(STOP_S):
            return
        self.channel.close()
        self._cancel()
        self.join(STOP_S)

    def _cancel(self) -> None:
        with suppress(Exception):  # a session that is gone has no jobs
            self._session.sparkContext.cancelJobGroup(self._group)

    def _expect_end(self) -> None:
        """The connection has ended: cancel the job if it does not end within :data:`STOP_S`.

        A standalone cluster that lost its last worker never ends it: Spark waits for another worker.
        """

        def enforce_end() -> None:
            if self.running:
                self._worker_gone = True
                self._cancel()

        timer = threading.Timer(STOP_S, enforce_end)
        timer.daemon = True
        timer.start()

    def _run(self, body: Callable[[Iterable[object]], Iterator[str]]) -> None:
        context = self._session.sparkContext
        try:
            # Job groups are a property of the thread; interrupting the JVM's task thread ends the Python worker.
            context.setJobGroup(self._group, self.name, interruptOnCancel=True)
            context.parallelize([0], 1).mapPartitions(body).collect()
        except BaseException as error:
            if isinstance(error, OSError | Py4JNetworkError):  # the other end of these connections is Spark's JVM
                jvm_died(within_s=STOP_S)
            self._error = error
        finally:
            self.channel.close()
            self._on_end(self)


def last_line(error: BaseException) -> str:
    """The line that names a task's error, found in the pages of text that Spark makes of it."""
    text = str(error)
    # A Python error: "package.Class: message" ends the worker's traceback; the errors that caused it stand before.
    python = re.findall(r"^[ \t]*(?:\w+\.)*(\w*(?:Error|Exception|Broken): .+)$", text, re.MULTILINE)
    # A lost worker or executor: Spark says so in the middle of a long line.
    lost = re.findall(r"most recent failure: Lost task .*?\): (?:[\w.$]+: )?(.+)$", text, re.MULTILINE)
    said = [line for line in lost + python if "Traceback" not in line]
    return (said[-1] if said else next(iter(text.splitlines()), type(error).__name__)).strip()[:400]
