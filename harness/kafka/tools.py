"""Kafka's command-line tools, each run in a JVM of its own.

The JVMs share an archive of classes if there is one (:mod:`harness.host.class_data`). They run as plain ``java -cp``,
as brokers do (:mod:`harness.kafka.distribution`), but as the harness's user, who can read what a fault has closed to
the brokers' user.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from harness.errors import HarnessError, ToolFailed, ToolTooLate
from harness.host import class_data
from harness.host.java import FAST_START, java_command, java_version
from harness.journal import note
from harness.kafka.distribution import MUTANT_SAYS, Distribution
from harness.kafka.security import Bootstrap
from harness.kafka.versions import Tool

_ARCHIVE_S = 60.0
_NOTED_CHARACTERS = 300
_QUIET = "-Xlog:disable"  # the JVM's lines about its archive would be among the tool's output
_PASSWORD = re.compile(r"(?<=password=)[^\],]+")
_LOGGING = ("log4j:", "SLF4J:")  # lines of the logging libraries about themselves


def tool_command(distribution: Distribution, tool: Tool, *arguments: str) -> list[str]:
    """The command that runs a tool of this build.

    :raises EnvironmentLacks: there is no Java
    """
    return _command(distribution, tool, _archive_options(distribution), *arguments)


def _command(distribution: Distribution, tool: Tool, options: Iterable[str], *arguments: str) -> list[str]:
    class_path = os.pathsep.join(map(str, distribution.class_path))
    return [*java_command(), *FAST_START, *options, "-cp", class_path, distribution.main_class(tool), *arguments]


def _archive(distribution: Distribution) -> Path:
    return class_data.archive_path(
        "tools",
        build=distribution.sha256,
        class_path=[str(jar) for jar in distribution.class_path],
        java_version=java_version()[1],
    )


def _archive_options(distribution: Distribution) -> tuple[str, ...]:
    with suppress(HarnessError):  # for example, there is no cache; only speed depends on it
        archive = _archive(distribution)
        if archive.exists():
            return (*class_data.use_options(archive), _QUIET)
    return ()


def archive_classes(distribution: Distribution, bootstrap: Bootstrap) -> None:
    """Make the archive of classes that tools share, if it is missing: run kafka-topics on this cluster.

    :raises HarnessError: the cache can't be written, or kafka-topics left no archive
    """

    def make(folder: Path) -> None:
        options = (class_data.MAKE_OPTION.format(home=folder), _QUIET)
        command = _command(distribution, Tool.TOPICS, options, *bootstrap.of_tool(Tool.TOPICS), "--describe")
        with suppress(subprocess.TimeoutExpired):  # then there is no archive
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ARCHIVE_S, check=False)

    class_data.prepare(_archive(distribution), java_version()[1], make)


@contextmanager
def tool_output(distribution: Distribution, tool: Tool, *arguments: str, timeout_s: float) -> Iterator[IO[str]]:
    """Run a tool to its end and yield its output as a temporary file, since a dump may be as long as a log.

    :raises ToolFailed: it ends with an error; ToolTooLate if it takes longer than ``timeout_s``
    """
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            done = subprocess.run(
                tool_command(distribution, tool, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            note_call(tool, arguments, began, None)
            raise ToolTooLate(f"kafka-{tool} did not end within {timeout_s:.0f} s") from None
        note_call(tool, arguments, began, done.returncode, done.stderr)
        output.seek(0)
        if done.returncode != 0:
            raise ToolFailed(f"kafka-{tool} ended with exit code {done.returncode}: {reason(output, done.stderr)}")
        yield output


def note_call(tool: Tool, arguments: Sequence[str], began: float, exit_code: int | None, errors: str = "") -> None:
    """Note in the journal of the case that a tool was called.

    :param began: when, on the monotonic clock
    :param exit_code: None if it did not end in time, or its JVM was lost
    :param errors: its standard error, where the code of a mutant says that it ran
    """
    given = _PASSWORD.sub("…", " ".join(arguments))[:_NOTED_CHARACTERS]
    took_s = round(time.monotonic() - began, 3)
    reached = [line for line in errors.splitlines() if line.startswith(MUTANT_SAYS)]
    of_mutant = {"mutant": reached} if reached else {}
    note("tool.called", tool=str(tool), arguments=given, took_s=took_s, exit_code=exit_code, **of_mutant)


def reason(output: Iterable[str], errors: str) -> str:
    """Why a tool failed: the lines that it printed for an error, else the last line that it logged or printed.

    A line that ends with a colon is followed by what it announces.
    """
    printed = [line.strip() for line in output if line.strip()]
    causes = [
        f"{line} {after}" if line.endswith(":") else line
        for line, after in itertools.pairwise([*printed, ""])
        if line.startswith(("Error", "Caused by: ", "Could not "))
    ]
    logged = [
        line
        for line in errors.strip().splitlines()
        if not line.lstrip().startswith(("at ", "... ", MUTANT_SAYS, *_LOGGING))
    ]
    return "; ".join(causes) or (logged or printed or ["it printed nothing"])[-1]
