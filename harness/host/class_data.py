"""Class data archives, which the JVM maps at its start instead of loading classes (JDK 13 and later).

With Kafka 4.3.1 on JDK 17, a broker's start takes 1.3 s of CPU instead of 2.8, a tool's run 0.5 s instead of 1.0. JVM
starts are most of what a case waits for. An archive is made once for a build, a use and a Java: 25 to 50 MB in the
cache. A JVM ignores an archive that doesn't fit it, so only speed depends on it.
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
"""JVM option that writes an archive into ``{home}`` when the JVM exits normally."""


def archive_path(use: str, *, build: str, class_path: Sequence[str], java_version: str) -> Path:
    """The path of the archive; each use, build, class path and Java has a folder of its own.

    :param use: a name for the JVMs that share it, such as a metadata mode
    """
    what = f"{build} {os.pathsep.join(class_path)} {java_version}"
    return cache_dir() / f"classes-{use}-{hashlib.sha256(what.encode()).hexdigest()[:16]}" / NAME


def use_options(archive: Path) -> tuple[str, ...]:
    """The JVM options that use the archive."""
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off")


def prepare(archive: Path, java_version: str, make: Callable[[Path], None]) -> None:
    """Make the archive if it is missing and this Java can make one.

    :param make: runs a JVM with :data:`MAKE_OPTION` and leaves the archive in the folder
    :raises HarnessError: ``make`` left no archive, or the cache can't be written
    """

    def make_it(folder: Path) -> None:
        make(folder)
        if not (folder / NAME).is_file():
            raise HarnessError(f"Java {java_version} made no class data archive")

    major = re.match(r"\d+", java_version)
    if not archive.exists() and major is not None and int(major[0]) >= _LEAST_JAVA:
        publish(archive.parent, make_it, lambda folder: (folder / NAME).is_file())
