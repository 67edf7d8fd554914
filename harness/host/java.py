"""The Java of brokers and tools: ``JAVA_HOME``'s, else the one on the PATH, as in Kafka's own scripts."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.errors import EnvironmentLacks
from harness.host.programs import run_to_end

PROBE_S = 10.0
HOW_TO_GET = "apt-get install openjdk-17-jre-headless"
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""JVM options for a cheap start on few cores."""


def java_command() -> list[str]:
    """The command that starts Java.

    :raises EnvironmentLacks: there is none
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentLacks(f"JAVA_HOME is {home}, which has no bin/java; correct or unset it")
        return [str(java)]
    found = shutil.which("java")
    if found is None:
        raise EnvironmentLacks(f"java is not on the PATH and JAVA_HOME is not set: {HOW_TO_GET}")
    return [found]


def javac() -> str:
    """The compiler beside :func:`java_command`, or on the PATH.

    :raises EnvironmentLacks: there is none
    """
    java = Path(java_command()[0]).resolve()
    found = shutil.which("javac", path=str(java.parent)) or shutil.which("javac")
    if found is None:
        raise EnvironmentLacks("javac is not beside java: apt-get install openjdk-17-jdk-headless")
    return found


def java_version(prefix: Sequence[str] = ()) -> tuple[int, str]:
    """Major version and full version of :func:`java_command`; asked once (0.05 s), then remembered.

    :param prefix: the prefix of the command, such as :meth:`harness.host.broker_user.BrokerUser.command`
    :raises EnvironmentLacks: there is no Java, it can't be run, or prints no version
    """
    return _ask(tuple(prefix), tuple(java_command()))


@functools.cache
def _ask(prefix: tuple[str, ...], command: tuple[str, ...]) -> tuple[int, str]:
    argv = [*prefix, *command, "-XX:-UsePerfData", "-version"]
    try:
        _, lines = run_to_end(argv, cwd=Path("/"), timeout_s=PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentLacks(f"{command[0]} can't be run: {error}") from error
    # 1.8.0_422 before 9, 17.0.15 since, 25 for a first release.
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', "\n".join(lines))
    if match is None:
        raise EnvironmentLacks(f"{command[0]} -version prints no version; it prints: {(lines or ['nothing'])[0]}")
    return int(match[2]), match[1]
