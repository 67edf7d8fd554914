"""Finds the jars that brokers and tools need in a Kafka source tree that Gradle has built (``./gradlew jar``).

They are those of ``bin/kafka-run-class.sh``: the jars of core, clients and tools, and the dependencies that the build
copied for core and tools (``build/dependant-libs-<Scala version>``). Streams, Connect and examples are left out. A
project's own jar (``*/build/libs``) wins over its copy, which ``./gradlew :storage:jar`` doesn't renew. If a tree has
jars of several versions, as after another checkout, those of gradle.properties' version are taken, else the newest
ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.errors import DistributionError

_OWN_JARS = ("*/build/libs/*.jar", "*/*/build/libs/*.jar")
_KAFKAS = re.compile(r"(kafka|connect)[-_]")
# The bindings of slf4j to log4j 1, to reload4j, and to log4j 2.
_BINDING = re.compile(r"(slf4j-log4j12|slf4j-reload4j|log4j-slf4j2?-impl)-\d")


def is_source_tree(home: Path) -> bool:
    """Whether a folder is a Kafka source tree, built or not."""
    return (home / "gradlew").exists() and (home / "gradle.properties").exists() and (home / "core").is_dir()


def jars_of(home: Path, *, to_run: Callable[[Path], bool]) -> tuple[Path, ...]:
    """The jars to run, each name once, sorted by name.

    :param to_run: whether a jar is needed to run; False for jars of tests and sources
    :raises DistributionError: the tree isn't built, or only in part; the error names what is missing
    """
    properties = _properties(home)
    scala = os.environ.get("SCALA_VERSION") or properties.get("scalaVersion", "")
    binary = ".".join(scala.split(".")[:2])
    core = _built(home, home.glob(f"core/build/libs/kafka_{binary}-*.jar"), f"core/build/libs/kafka_{binary}-*", to_run)
    stem = f"kafka_{binary}-"
    built = {jar.stem.removeprefix(stem): jar for jar in core}
    version = properties.get("version", "")
    if version not in built:  # as with ./gradlew -Pversion=…, or a new version that isn't built yet
        version = max(built, key=lambda each: built[each].stat().st_mtime)
    projects = [built[version]]
    for project in ("clients", "tools"):
        name = f"{project}/build/libs/kafka-{project}-{version}.jar"
        projects += _built(home, home.glob(name), name, to_run)
    own = {jar.name: jar for pattern in _OWN_JARS for jar in home.glob(pattern)}
    jars = {jar.name: jar for jar in projects}
    for project in ("core", "tools"):
        name = f"{project}/build/dependant-libs-{scala}*/*.jar"
        for jar in _built(home, home.glob(name), name, to_run):
            if not _KAFKAS.match(jar.name) or jar.stem.endswith(f"-{version}"):
                jars.setdefault(jar.name, own.get(jar.name, jar))
    if not any(map(_BINDING.match, jars)):
        raise DistributionError(
            f"--kafka-home {home}: its dependant-libs hold no binding of slf4j to log4j, so brokers would log nothing; "
            "run ./gradlew jar there"
        )
    return tuple(jars[name] for name in sorted(jars))


def _built(home: Path, found: Iterable[Path], what: str, to_run: Callable[[Path], bool]) -> list[Path]:
    jars = sorted(filter(to_run, found))
    if not jars:
        raise DistributionError(
            f"--kafka-home {home} is a source tree that isn't built: there is no {what}; run ./gradlew jar there"
        )
    return jars


def _properties(home: Path) -> dict[str, str]:
    """The properties in gradle.properties."""
    lines = (home / "gradle.properties").read_text(encoding="latin-1").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
