"""Which Java runs brokers and tools: ``JAVA_HOME``'s, else the one on the PATH, as Kafka's own scripts choose."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.errors import EnvironmentLacks

PROBE_S = 10.0
HOW_TO_GET = "apt-get install openjdk-17-jre-headless"
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""The JVM options of processes that are cheap in start and on few cores."""


def java_command() -> list[str]:
    """The command that starts Java.

    :raises EnvironmentLacks: there is none
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentLacks(f"JAVA_HOME is {home} and has no bin/java; set it right or unset it")
        return [str(java)]
    found = shutil.which("java")
    if found is None:
        raise EnvironmentLacks(f"java is not on the PATH and JAVA_HOME is not set: {HOW_TO_GET}")
    return [found]


def java_version(prefix: Sequence[str] = ()) -> tuple[int, str]:
    """Major version and full version of :func:`java_command`, asked of it (a JVM start, 0.05 s; then remembered).

    :param prefix: what to put before the command, such as :meth:`harness.host.broker_user.BrokerUser.command`
    :raises EnvironmentLacks: there is none, it can't be run, or doesn't say
    """
    return _ask(tuple(prefix), tuple(java_command()))


@functools.cache
def _ask(prefix: tuple[str, ...], command: tuple[str, ...]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [*prefix, *command, "-XX:-UsePerfData", "-version"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentLacks(f"{command[0]} can't be run: {error}") from error
    # 1.8.0_422 before 9, 17.0.15 since, 25 for a first release.
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', done.stdout)
    if match is None:
        lines = [line for line in done.stdout.splitlines() if line.strip()] or ["nothing"]
        raise EnvironmentLacks(f"{command[0]} -version does not say a version but: {lines[0]}")
    return int(match[2]), match[1]
