"""Kafka's own command-line programs in a JVM that stays, for what is asked of them at each step.

A JVM of its own for every question is what an operator starts, and what :mod:`harness.releases.tools` does; it costs
0.4 s of CPU, of which all but some 10 ms go into starting: at four questions a step and 350 steps, more than the rest
of a run. So the programs' ``main`` is called where they are loaded already, with the same arguments, and what they
print is what is read. They end by ``Exit.exit`` (``org.apache.kafka.common.utils.Exit``, as Kafka's own tests use it),
which here notes the exit code and leaves the JVM alive.

One JVM for each build and process of the harness, by py4j, as Spark's is. It ends with the process, however that ends,
since its standard input does.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import threading
import time
from contextlib import suppress
from functools import reduce
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from harness import timeouts
from harness.errors import HarnessError, ToolFailed
from harness.machine.java import java_command
from harness.releases.distribution import Distribution
from harness.releases.tools import FAST_START, reason
from harness.releases.versions import Tool

_STOP_S = 10.0
_HEAP = "-Xmx128m"

_standing: dict[tuple[Path, ...], _ToolsJvm] = {}
_changing = threading.Lock()


def tool_lines(distribution: Distribution, tool: Tool, *arguments: str) -> list[str]:
    """What a tool prints, run to its end.

    :raises ToolFailed: it ends with an error
    :raises HarnessError: it takes longer than :data:`harness.timeouts.TOOL_S`, or its JVM ended
    """
    with _changing:
        jvm = _standing.get(distribution.class_path) or _ToolsJvm(distribution)
        _standing[distribution.class_path] = jvm
    return jvm.run(tool, *arguments)


def end_tools() -> None:
    """End this process's JVMs, whatever state they are in."""
    with _changing:
        while _standing:
            _, jvm = _standing.popitem()
            jvm.end()


class _ToolsJvm:
    """One JVM with one build's tools; they print to its one standard output, so that one runs at a time."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
        [java, *options] = java_command()
        try:
            port, token, self._process = launch_gateway(
                classpath=os.pathsep.join(map(str, distribution.class_path)),
                javaopts=[*options, *FAST_START, _HEAP],
                java_path=java,
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
            )
        except (OSError, ValueError, Py4JError) as error:
            raise HarnessError(f"a JVM for Kafka's tools did not start: {error}") from error
        # Nothing of Java's is let go of when Python pleases: what there is stays, but for what _call detaches.
        at = GatewayParameters(
            port=port, auth_token=token, read_timeout=timeouts.TOOL_S, enable_memory_management=False
        )
        self._gateway = JavaGateway(gateway_parameters=at)
        self._alone = threading.Lock()
        self._printed, self._logged = self._caught("setOut"), self._caught("setErr")
        jvm = self._gateway.jvm
        self._codes = jvm.java.util.ArrayDeque()
        # An Exit.Procedure that adds what it is first given, the exit code, to them.
        procedure = jvm.Class.forName("org.apache.kafka.common.utils.Exit$Procedure")
        noted = jvm.java.beans.EventHandler.create(procedure, self._codes, "add", "")
        jvm.org.apache.kafka.common.utils.Exit.setExitProcedure(noted)

    def _caught(self, set_stream: str) -> JavaObject:
        """Where from now on goes what is printed to one of the standard streams."""
        io = self._gateway.jvm.java.io
        caught = io.ByteArrayOutputStream()
        getattr(self._gateway.jvm.System, set_stream)(io.PrintStream(caught, True, "UTF-8"))
        return caught

    def run(self, tool: Tool, *arguments: str) -> list[str]:
        """See :func:`tool_lines`."""
        with self._alone:
            began = time.monotonic()
            try:
                code, printed, logged = self._call(self._distribution.main_class(tool), *arguments)
            except BaseException as error:
                self._give_up()
                if not isinstance(error, Py4JError | OSError):
                    raise
                if time.monotonic() - began >= timeouts.TOOL_S:
                    raise HarnessError(f"kafka-{tool} did not end within {timeouts.TOOL_S:.0f} s") from error
                told = f"kafka-{tool} did not get to its end, its JVM no longer answers: {error}"
                raise HarnessError(told) from error
        if code != 0:
            raise ToolFailed(f"kafka-{tool} ended with exit code {code}: {reason(printed, logged)}")
        return printed

    def _call(self, main_class: str, *arguments: str) -> tuple[int, list[str], str]:
        """Exit code, lines printed, and what went to standard error."""
        given = self._gateway.new_array(self._gateway.jvm.String, len(arguments))
        for at, argument in enumerate(arguments):
            given[at] = argument
        for each in (self._printed, self._logged):
            each.reset()
        self._codes.clear()
        thrown = ""
        try:
            reduce(getattr, main_class.split("."), self._gateway.jvm).main(given)
        except Py4JJavaError as error:  # also of those, in Scala, that exit and find themselves alive
            thrown = str(error.java_exception)
            self._gateway.detach(error.java_exception)
        finally:
            self._gateway.detach(given)
        code = self._codes.peekFirst()
        if code is None:
            code = int(bool(thrown))
        return code, self._printed.toString("UTF-8").splitlines(keepends=True), self._logged.toString("UTF-8") or thrown

    def _give_up(self) -> None:
        """Nobody knows what it still does, and would print among what the next one does: the next gets another JVM."""
        with _changing:
            if _standing.get(self._distribution.class_path) is self:
                del _standing[self._distribution.class_path]
        self.end()

    def end(self) -> None:
        """It ends with its standard input, or else by SIGKILL."""
        self._gateway.close()
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


atexit.register(end_tools)
logging.getLogger("py4j").addHandler(logging.NullHandler())  # or Python prints what is said as errors anyway
