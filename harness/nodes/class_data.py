"""Class data for fast JVM starts: half of a broker's start is loading classes, the same each time.

The JVM can map them from an archive instead (``-XX:ArchiveClassesAtExit``, JDK 13 and later): measured with Kafka 4.3.1
on JDK 17, a broker's start costs 1.3 s of CPU instead of 2.8. With four JVMs on two cores, started and restarted in
every case, that is most of what a case waits for. The archive is made once for a build, a mode and a Java, from a
cluster of one broker that is started, asked and stopped; about 50 MB in the cache. A JVM to which it doesn't fit
ignores it, so nothing but speed depends on it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from harness.machine.cache import cache_dir, publish
from harness.nodes.base import Runtime
from harness.releases.versions import Mode

NAME = "classes.jsa"
_LEAST_JAVA = 13

MAKE_OPTION = "-XX:ArchiveClassesAtExit={home}/" + NAME
"""JVM option that leaves an archive in a node's home when it ends in good order."""


def archive_path(runtime: Runtime, mode: Mode) -> Path:
    """Where the archive for this build, mode and Java belongs; class path and Java version are part of its name."""
    what = f"{runtime.build} {os.pathsep.join(runtime.class_path)} {runtime.java_version}"
    return cache_dir() / f"classes-{mode}-{hashlib.sha256(what.encode()).hexdigest()[:16]}" / NAME


def use_options(archive: Path) -> tuple[str, ...]:
    """The JVM options that use the archive."""
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off")


def prepare(runtime: Runtime, mode: Mode, make: Callable[[Path], None], say: Callable[[str], None]) -> None:
    """Have the archive made if it isn't there.

    :param make: runs a cluster with :data:`MAKE_OPTION` and copies the archive that its broker left into the folder
    """
    path = archive_path(runtime, mode)
    major = re.match(r"\d+", runtime.java_version)
    if path.exists() or major is None or int(major[0]) < _LEAST_JAVA:
        return
    say("preparing fast starts, once for this build, mode and Java")
    publish(path.parent, make, lambda folder: (folder / NAME).is_file())
