"""Class data for fast JVM starts: half of a Kafka program's start is loading classes, the same each time.

The JVM can map them from an archive instead (``-XX:ArchiveClassesAtExit``, JDK 13 and later): measured with Kafka 4.3.1
on JDK 17, a broker's start costs 1.3 s of CPU instead of 2.8, a command-line tool's run 0.5 s instead of 1.0. With four
JVMs on two cores, started and restarted in every case, that is most of what a case waits for. An archive is made once
for a build, a use and a Java; 25 to 50 MB in the cache. A JVM to which it doesn't fit ignores it, so nothing but speed
depends on it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.errors import HarnessError
from harness.host.cache import cache_dir, publish

NAME = "classes.jsa"
_LEAST_JAVA = 13

MAKE_OPTION = "-XX:ArchiveClassesAtExit={home}/" + NAME
"""JVM option that leaves an archive in ``{home}`` when the JVM ends in good order."""


def archive_path(use: str, *, build: str, class_path: Sequence[str], java_version: str) -> Path:
    """Where the archive for this use, build and Java belongs; class path and Java version are part of its name.

    :param use: what the JVMs are that share it, such as a metadata mode
    """
    what = f"{build} {os.pathsep.join(class_path)} {java_version}"
    return cache_dir() / f"classes-{use}-{hashlib.sha256(what.encode()).hexdigest()[:16]}" / NAME


def use_options(archive: Path) -> tuple[str, ...]:
    """The JVM options that use the archive."""
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off")


def prepare(archive: Path, java_version: str, make: Callable[[Path], None]) -> None:
    """Have the archive made if it isn't there, and if this Java can.

    :param make: runs a JVM with :data:`MAKE_OPTION` and leaves the archive in the folder
    :raises HarnessError: no archive came of it, or the cache can't be written
    """

    def make_it(folder: Path) -> None:
        make(folder)
        if not (folder / NAME).is_file():
            raise HarnessError(f"Java {java_version} made no class data archive")

    major = re.match(r"\d+", java_version)
    if not archive.exists() and major is not None and int(major[0]) >= _LEAST_JAVA:
        publish(archive.parent, make_it, lambda folder: (folder / NAME).is_file())
