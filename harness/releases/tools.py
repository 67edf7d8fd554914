"""Kafka's own command-line programs, each run as one short JVM of its own.

Most of what such a JVM does is to load classes. The first one of a build that asks a cluster leaves an archive of them
(:mod:`harness.machine.class_data`); all that follow share it, whatever they ask.

Started as plain ``java -cp``, like the brokers (:mod:`harness.releases.distribution`), and by the harness's own user: a
tool only reads what it is pointed at, and must be able to where a broker's user no longer is.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from harness.errors import HarnessError, ToolFailed
from harness.machine import class_data
from harness.machine.java import java_command, java_version
from harness.releases.distribution import Distribution
from harness.releases.versions import Tool

_QUIET = "-Xlog:disable"  # what a JVM says of its archive would be among what the tool says
_FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


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
    command = tool_command(distribution, tool, *arguments)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            done = _run(command, _archive(distribution), output, timeout_s)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"kafka-{tool} did not end within {timeout_s:.0f} s") from None
        output.seek(0)
        if done.returncode != 0:
            raise ToolFailed(f"kafka-{tool} ended with exit code {done.returncode}: {_why(output, done.stderr)}")
        yield output


def _archive(distribution: Distribution) -> Path:
    return class_data.archive_path(
        "tools",
        build=distribution.sha256,
        class_path=[str(jar) for jar in distribution.class_path],
        java_version=java_version()[1],
    )


def _run(command: list[str], archive: Path, output: IO[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run it, with the archive; where there is none yet and this one asks a cluster, it leaves one."""

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        java, *rest = command
        return subprocess.run(
            [java, *options, *rest],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )

    def make(folder: Path) -> None:
        done.append(run(class_data.MAKE_OPTION.format(home=folder), _QUIET))

    done: list[subprocess.CompletedProcess[str]] = []
    if "--bootstrap-server" in command:
        with suppress(HarnessError, OSError):  # no cache to write into costs nothing but speed
            class_data.prepare(archive, java_version()[1], make)
    return done[0] if done else run(*([*class_data.use_options(archive), _QUIET] if archive.exists() else ()))


_LOGGING = ("log4j:", "SLF4J:")  # of itself


def _why(output: IO[str], errors: str) -> str:
    """What a tool that failed gave as its reason: some print it, with the causes below or as the last they say, others
    log it.
    """
    printed = [line.strip() for line in output if line.strip()]
    said = [line for line in printed if line.startswith(("Error", "Caused by: "))]
    logged = [line for line in errors.strip().splitlines() if not line.lstrip().startswith(("at ", *_LOGGING))]
    return "; ".join(said) or (logged or printed or ["it printed nothing"])[-1]
