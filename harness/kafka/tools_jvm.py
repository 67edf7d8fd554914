"""Runs Kafka's command-line tools in one shared JVM for each build, for the calls that every step makes.

A JVM for each call (:mod:`harness.kafka.tools`) costs 0.4 s of CPU, of which the tool itself takes 10 ms. Here the JVM
has loaded the tool already. The harness calls its ``main`` with an operator's arguments and reads its output.

* A tool ends by Kafka's own ``Exit.exit``, which calls a procedure that Kafka's tests can replace. Here that procedure
  keeps the exit code and leaves the JVM alive. For a build without this hook, each call gets a JVM of its own.
* This module starts the JVM and calls it through py4j, as pyspark calls Spark's. The JVM ends when the harness ends,
  because its standard input is then closed.
* Only one thread, which does nothing else, calls py4j: py4j would take Ctrl-C for a lost answer.
* A tool runs in a Java thread, so that Java prints its exception, as in a JVM of its own. If the exception came to
  Python, pyspark's handler for py4j would look for it in Spark's JVM.
* Output goes to a file, since a dump may be as long as a log.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from py4j.java_collections import JavaArray
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject, JVMView, find_jar_path

from harness import timeouts
from harness.crowding import Deadline
from harness.errors import BuildLacks, HarnessError, ToolFailed, ToolTooLate
from harness.host.java import FAST_START, java_command
from harness.kafka.distribution import MUTANT_SAYS, Distribution
from harness.kafka.main_classes import exit_hook
from harness.kafka.tools import note_call, reason, tool_output
from harness.kafka.versions import Tool

_STOP_S = 10.0
_LOOK_S = 0.5
_UNCAUGHT = "Exception in thread "
"""What Java prints first for an exception that ends a thread. Such a tool sets no exit code; it counts as 1."""
_OPTIONS = (*FAST_START, "-Xmx128m", "-XX:+ExitOnOutOfMemoryError")

P = ParamSpec("P")
R = TypeVar("R")

_standing: dict[tuple[Path, ...], _ToolsJvm] = {}
_changing = threading.Lock()


def tool_lines(distribution: Distribution, tool: Tool, *arguments: str) -> list[str]:
    """Run a tool to its end; returns the lines that it prints.

    :raises ToolFailed: it ends with an error; ToolTooLate if it takes longer than
        :data:`harness.timeouts.QUESTION_S` (in a JVM of its own: ``TOOL_S``)
    :raises HarnessError: its JVM did not start, or no longer answers
    """
    hook = exit_hook(distribution.class_path)
    if hook is None:
        with tool_output(distribution, tool, *arguments, timeout_s=timeouts.TOOL_S) as lines:
            return [*lines]
    return _jvm(distribution, hook).run(tool, *arguments)


def ask_java(distribution: Distribution, ask: Callable[[JVMView], R]) -> R:
    """Call Java classes of a build in the JVM of its tools; returns what ``ask`` returns, but not a Java object.

    :raises BuildLacks: the build's tools run in a JVM of their own
    :raises HarnessError: ``ask`` fails, or takes longer than :data:`harness.timeouts.QUESTION_S`
    """
    hook = exit_hook(distribution.class_path)
    if hook is None:
        raise BuildLacks("its jars have no class Exit$Procedure, so its tools share no JVM")
    return _jvm(distribution, hook).ask(ask)


def public_methods(distribution: Distribution, class_name: str) -> frozenset[str]:
    """The public methods of a class in the build's jars, as Java's ``Method.toGenericString`` writes them.

    :raises BuildLacks: the build has no such class, or its tools do not run in a shared JVM
    """

    def ask(jvm: JVMView) -> frozenset[str]:
        # An exception of Java would make pyspark's handler look for its text in Spark's JVM.
        if jvm.ClassLoader.getSystemClassLoader().getResource(f"{class_name.replace('.', '/')}.class") is None:
            return frozenset()
        return frozenset(method.toGenericString() for method in jvm.Class.forName(class_name).getMethods())

    if methods := ask_java(distribution, ask):
        return methods
    raise BuildLacks(f"has no class {class_name}")


def _jvm(distribution: Distribution, hook: str) -> _ToolsJvm:
    """The JVM for the tools of a build; starts it if it does not run."""
    with _changing:
        jvm = _standing.get(distribution.class_path) or _ToolsJvm(distribution, hook)
        _standing[distribution.class_path] = jvm
    return jvm


def end_tools() -> None:
    """End the JVMs of tools that this process has, whatever state they are in."""
    with _changing:
        while _standing:
            _, jvm = _standing.popitem()
            jvm.end()


class _ToolsJvm:
    """The shared JVM for one build's tools; it has one standard output, so one tool runs at a time."""

    def __init__(self, distribution: Distribution, hook: str) -> None:
        """:param hook: see :func:`harness.kafka.main_classes.exit_hook`"""
        self._distribution = distribution
        self._hook = hook
        class_path = os.pathsep.join(map(str, (find_jar_path(), *distribution.class_path)))
        server = ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
        with tempfile.TemporaryFile("w+") as errors:
            self._process = subprocess.Popen(
                [*java_command(), *_OPTIONS, "-cp", class_path, *server],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            self._asker = ThreadPoolExecutor(1, "kafka-tools")
            self._open = ExitStack()
            try:
                self._within(timeouts.BOOT_S, self._prepare)
            except BaseException as error:
                # Before the JVM ends, since py4j asks it for the text of a Java error.
                why = "not in time" if isinstance(error, TimeoutError) else repr(error)
                self.end()
                if not isinstance(error, Exception):
                    raise
                errors.seek(0)
                raise HarnessError(f"a JVM for Kafka's tools did not start: {errors.read().strip() or why}") from None

    def _within(self, timeout_s: float, do: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call ``do`` in the thread that may call py4j.

        :raises TimeoutError: it takes longer, also with the time that a crowded machine adds
            (:mod:`harness.crowding`): a JVM that is ended for being slow has to start again, which takes longer still
        """
        answer, deadline = self._asker.submit(do, *arguments, **named), Deadline(timeout_s)
        while not wait([answer], timeout=min(_LOOK_S, timeout_s)).done:
            if deadline.passed() is not None:
                raise TimeoutError
        return answer.result()

    def _prepare(self) -> None:
        assert self._process.stdout is not None
        # The JVM's warnings come before the port.
        port = next((line for line in self._process.stdout if line.strip().isdigit()), "")
        token = self._process.stdout.readline().strip()
        # Python's garbage collector would call py4j from any thread; _call detaches objects instead.
        at = GatewayParameters(port=int(port), auth_token=token, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=at)
        self._open.callback(self._gateway.close)
        jvm = self._gateway.jvm
        self._printed, self._logged = (self._open.enter_context(_Caught(jvm, each)) for each in ("setOut", "setErr"))
        self._codes = jvm.java.util.ArrayDeque()
        # An Exit.Procedure that adds its first argument, the exit code, to _codes.
        procedure = jvm.Class.forName(f"{self._hook}$Procedure")
        noted = jvm.java.beans.EventHandler.create(procedure, self._codes, "add", "")
        getattr(jvm, self._hook).setExitProcedure(noted)
        self._runnable = jvm.Class.forName("java.lang.Runnable")

    def run(self, tool: Tool, *arguments: str) -> list[str]:
        """The lines that a tool prints; see :func:`tool_lines`."""
        main_class, began = self._distribution.main_class(tool), time.monotonic()
        try:
            code, printed, logged = self._within(timeouts.QUESTION_S, self._call, main_class, *arguments)
        except BaseException as error:
            note_call(tool, arguments, began, None)
            self._give_up()
            if isinstance(error, TimeoutError):
                raise ToolTooLate(f"kafka-{tool} did not end within {timeouts.QUESTION_S:.0f} s") from error
            if not isinstance(error, Exception):
                raise
            raise HarnessError(f"kafka-{tool} did not end: its JVM no longer answers: {error!r}") from None
        note_call(tool, arguments, began, code, logged)
        if code != 0:
            raise ToolFailed(f"kafka-{tool} ended with exit code {code}: {reason(printed, logged)}")
        return printed

    def ask(self, ask: Callable[[JVMView], R]) -> R:
        """Call a function with the JVM's classes, and return its result; see :func:`ask_java`."""

        def asked() -> R:
            try:
                return ask(self._gateway.jvm)
            except Exception as error:  # py4j asks the JVM for the text of a Java error, so in this thread
                raise HarnessError(f"the JVM of Kafka's tools did not answer: {error!r} {error}") from None

        try:
            return self._within(timeouts.QUESTION_S, asked)
        except TimeoutError:
            self._give_up()
            raise HarnessError(f"the JVM of Kafka's tools did not answer within {timeouts.QUESTION_S:.0f} s") from None

    def _call(self, main_class: str, *arguments: str) -> tuple[int, list[str], str]:
        """A tool's exit code, the lines that it printed, and its standard error."""
        given = self._array("String", *arguments)
        call = self._array("Object", given)
        self._printed.clear()
        self._logged.clear()
        self._codes.clear()
        jvm = self._gateway.jvm
        program = jvm.Class.forName(main_class)
        main = jvm.java.beans.Statement(program, "main", call)
        runs_it = jvm.java.beans.EventHandler.create(self._runnable, main, "execute")
        thread = jvm.Thread(runs_it, "main")
        thread.start()
        thread.join()
        for each in (given, call, program, main, runs_it, thread):
            self._gateway.detach(each)
        code, logged = self._codes.peekFirst(), "".join(self._logged.lines())
        if code is None:
            first = next((line for line in logged.splitlines() if not line.startswith(MUTANT_SAYS)), "")
            code = int(first.startswith(_UNCAUGHT))
        return code, self._printed.lines(), logged

    def _array(self, kind: str, *values: object) -> JavaArray:
        """A new Java array of this class of ``java.lang``."""
        array = self._gateway.new_array(getattr(self._gateway.jvm, kind), len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array

    def _give_up(self) -> None:
        """Kill this JVM, whose tool may still run and print; the next call starts another."""
        with _changing:
            if _standing.get(self._distribution.class_path) is self:
                del _standing[self._distribution.class_path]
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Close its standard input, which ends it; kill it if it stays."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._asker.shutdown()
        self._open.close()
        self._process.stdout.close()


class _Caught(AbstractContextManager["_Caught"]):
    """An unlinked file that receives one of the JVM's standard streams."""

    def __init__(self, jvm: JVMView, set_stream: str) -> None:
        with tempfile.NamedTemporaryFile() as named:
            self._file: IO[str] = Path(named.name).open(errors="replace", encoding="utf-8", newline="\n")  # noqa: SIM115
            self._stream: JavaObject = jvm.java.io.FileOutputStream(named.name)
        getattr(jvm.System, set_stream)(jvm.java.io.PrintStream(self._stream, True, "UTF-8"))
        self._channel: JavaObject = self._stream.getChannel()

    def clear(self) -> None:
        """Forget what was printed."""
        self._channel.truncate(0)

    def lines(self) -> list[str]:
        """The lines printed since :meth:`clear`."""
        self._file.seek(0)
        return [*self._file]

    def __exit__(self, *_: object) -> None:
        self._file.close()


atexit.register(end_tools)
logging.getLogger("py4j").addHandler(logging.NullHandler())  # it also logs what it raises
