"""Kafka's own command-line programs, each run as one short JVM of its own.

Started as plain ``java -cp``, like the brokers (:mod:`harness.releases.distribution`), and by the harness's own user: a
tool only reads what it is pointed at, and must be able to where a broker's user no longer is.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from harness.errors import HarnessError, ToolFailed
from harness.machine.java import java_command
from harness.releases.distribution import Distribution
from harness.releases.versions import Tool

_FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto")


def tool_command(distribution: Distribution, tool: Tool, *arguments: str) -> list[str]:
    """The command that runs a tool of this build.

    :raises EnvironmentLacks: there is no Java
    """
    class_path = os.pathsep.join(map(str, distribution.class_path))
    return [*java_command(), *_FAST_START, "-cp", class_path, distribution.main_class(tool), *arguments]


@contextmanager
def tool_output(distribution: Distribution, tool: Tool, *arguments: str, timeout_s: float) -> Iterator[IO[str]]:
    """Run a tool to its end and read what it printed; from a file, since a dump may be as long as a log.

    :raises ToolFailed: it ends with an error
    :raises HarnessError: it takes longer than ``timeout_s``
    """
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
            raise HarnessError(f"kafka-{tool} did not end within {timeout_s:.0f} s") from None
        output.seek(0)
        if done.returncode != 0:
            raise ToolFailed(f"kafka-{tool} ended with exit code {done.returncode}: {_why(output, done.stderr)}")
        yield output


_LOGGING = ("log4j:", "SLF4J:")  # of itself


def _why(output: IO[str], errors: str) -> str:
    """What a tool that failed gave as its reason: some print it, with the causes below or as the last they say, others
    log it.
    """
    printed = [line.strip() for line in output if line.strip()]
    said = [line for line in printed if line.startswith(("Error", "Caused by: "))]
    logged = [line for line in errors.strip().splitlines() if not line.lstrip().startswith(("at ", *_LOGGING))]
    return "; ".join(said) or (logged or printed or ["it printed nothing"])[-1]
