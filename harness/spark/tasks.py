"""Runs one function as one Spark task, beside the driver's own work, and keeps hold of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from harness.spark.control import ABORT, Channel, ControlServer, TaskEndpoint
from harness.spark.session import JVM_DIED, jvm_died

Body = Callable[[TaskEndpoint, Iterable[Any]], Iterator[str]]

STOP_S = 5.0


class SparkTask:
    """A long-running Spark task: a job of one partition, waited for in a thread of its own.

    :param name: once in a run; also the name of the task's control channel and of its Spark job group
    :param body: runs in the Python worker; is given the invitation and an iterator to ignore; must be a function of a
        module that the workers can import (or a ``functools.partial`` of one)
    :param on_end: called with this task when its job has ended, in good order or not, in the task's thread
    :param on_report: called with each of the task's reports, in a thread of its channel
    """

    def __init__(
        self,
        session: SparkSession,
        server: ControlServer,
        name: str,
        body: Body,
        *,
        on_end: Callable[[SparkTask], None] = lambda _: None,
        on_report: Callable[[dict[str, Any]], object] = lambda _: None,
    ) -> None:
        self.name = name
        self._session = session
        self._error: BaseException | None = None
        self._on_end = on_end
        self.channel: Channel
        self._gone = False
        self.channel, invitation = server.open(name, on_close=self._expect_end, on_report=on_report)
        self._thread = threading.Thread(
            target=self._run, args=(partial(body, invitation),), name=f"task-{name}", daemon=True
        )
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the Spark job has not ended yet."""
        return self._thread.is_alive()

    @property
    def error(self) -> str | None:
        """What the task died of, in one line; None while it runs and when it ended in good order."""
        if self._gone:
            return "its Python worker is gone, and Spark has not noticed"
        if self._error is None:
            return None
        return JVM_DIED if jvm_died() else last_line(self._error)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the job; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def end(self) -> None:
        """End the task whatever it does: told to abort, then let go of, then cancelled; 5 s for each at most."""
        self.channel.send(ABORT)
        if self.join(STOP_S):
            return
        self.channel.close()
        self._cancel()
        self.join(STOP_S)

    def _cancel(self) -> None:
        with suppress(Exception):  # a session that is gone has no jobs
            self._session.sparkContext.cancelJobGroup(self.name)

    def _expect_end(self) -> None:
        """The connection has ended, so the task has or is about to; its job must follow.

        It doesn't where a standalone cluster lost its last worker: Spark then waits for another one, for ever.
        """

        def enforce_end() -> None:
            if self.running:
                self._gone = True
                self._cancel()

        timer = threading.Timer(STOP_S, enforce_end)
        timer.daemon = True
        timer.start()

    def _run(self, body: Callable[[Iterable[Any]], Iterator[str]]) -> None:
        context = self._session.sparkContext
        try:
            # Job groups are a property of the thread; interrupting the JVM's task thread ends the Python worker.
            context.setJobGroup(self.name, self.name, interruptOnCancel=True)
            context.parallelize([0], 1).mapPartitions(body).collect()
        except BaseException as error:
            if isinstance(error, OSError | Py4JNetworkError):  # nobody but Spark's JVM is at the other end
                jvm_died(within_s=STOP_S)
            self._error = error
        finally:
            self.channel.close()
            self._on_end(self)


def last_line(error: BaseException) -> str:
    """The one line that says it, out of the pages that Spark makes of a task's error."""
    text = str(error)
    # A Python error: "package.Class: message" ends the worker's traceback, the errors that it came from stand before.
    python = re.findall(r"^[ \t]*(?:\w+\.)*(\w*(?:Error|Exception|Broken): .+)$", text, re.MULTILINE)
    # A worker or executor that went away: Spark says so in the middle of a long line.
    lost = re.findall(r"most recent failure: Lost task .*?\): (?:[\w.$]+: )?(.+)$", text, re.MULTILINE)
    said = [line for line in lost + python if "Traceback" not in line]
    return (said[-1] if said else next(iter(text.splitlines()), type(error).__name__)).strip()[:400]
