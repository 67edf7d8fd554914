"""The only module that runs ``mvn``: it fetches jars, and lists an artifact's versions.

Maven honours the mirrors, proxies and passwords of the user's settings, and resolves dependencies. Each call writes a
pom and runs one goal on it; no Maven project is needed. Maven's local repository is not safe for two processes that
fetch the same file, so only one ``mvn`` that fetches runs at a time.

No goal of Maven lists the versions of an artifact. But if a pom's parent has a range of versions, Maven reads that list
and keeps it in its local repository. :func:`versions_of` gives Maven an empty repository and reads the list there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from harness.errors import EnvironmentLacks, HarnessError, UsageError
from harness.host.cache import cache_dir, locked
from harness.host.programs import run_to_end
from harness.host.scratch import scratch

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_FETCH_S = 300.0
_LIST_S = 60.0

_FETCHING = re.compile(r"Downloading from \S+: \S+/([^/\s]+\.jar)$")
_NOT_THERE = re.compile(r"Could not find artifact (\S+)|Failure to find (\S+)|(\S+) was not found in ")
# An artifact in Maven's words: group:artifact:type[:classifier]:version.
_ARTIFACT = re.compile(r"([\w.-]+):([\w.-]+):\w+(?::[\w.-]+)?:([\w.-]+)")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>jbod</groupId><artifactId>fetch</artifactId><version>1</version><packaging>pom</packaging>
{}</project>
"""


class ArtifactNotFound(UsageError):
    """None of the user's repositories has a named artifact; ``coordinate`` is its coordinate."""

    def __init__(self, coordinate: str) -> None:
        super().__init__(f"{coordinate} is not on Maven Central or your mirrors")
        self.coordinate = coordinate


def silent(_line: str) -> None:
    """Drop a line: the default of ``say``, for callers that show no progress."""


def copy_dependencies(
    coordinates: Sequence[str],
    into: Path,
    *,
    transitive: bool = True,
    say: Callable[[str], None] = silent,
    timeout_s: float = _FETCH_S,
) -> None:
    """Put these artifacts' jars, and those that they need at run time, into a folder.

    It is not atomic: no other process should read the folder yet (:func:`harness.host.cache.publish`).

    :param coordinates: ``group:artifact:version[:classifier]``; where versions conflict, these win
    :param transitive: False for exactly the artifacts named
    :param say: called with one line for each jar that is downloaded; jars that Maven has already get none
    :raises ArtifactNotFound: none of the repositories has one of ``coordinates``
    :raises EnvironmentLacks: no mvn, it can't reach its repositories, or takes longer than ``timeout_s``
    :raises HarnessError: mvn failed for another reason; the error has its first ``[ERROR]`` line
    """

    def announce(line: str) -> None:
        if fetching := _FETCHING.search(line):
            say(f"fetching {fetching[1]}")

    names = ("groupId", "artifactId", "version", "classifier")
    dependencies = "".join(
        f"<dependency>{''.join(map(_element, names, escape(coordinate).split(':')))}</dependency>\n"
        for coordinate in coordinates
    )
    arguments = (f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into.absolute()}")
    with locked(cache_dir() / "maven.lock"), scratch("maven") as folder:
        status, lines = _mvn(
            folder,
            _element("dependencies", dependencies),
            *arguments,
            f"-DexcludeTransitive={str(not transitive).lower()}",
            timeout_s=timeout_s,
            on_line=announce,
        )
    if status != 0:
        raise _failure(status, lines, coordinates)


def versions_of(artifact: str, *, say: Callable[[str], None] = silent) -> tuple[str, ...]:
    """The versions of an artifact that the user's repositories list, as text, in no order.

    :param artifact: ``group:artifact``
    :param say: called with one line for each repository that didn't answer, if another one did
    :raises EnvironmentLacks: no mvn, or none of its repositories lists the artifact
    :raises HarnessError: a list can't be read
    """
    names = ("groupId", "artifactId", "version")
    # No version is in this range, so mvn reads the lists and then fails before it fetches anything.
    parent = "".join(map(_element, names, (*escape(artifact).split(":"), "[99999,)"))) + "<relativePath/>"
    with scratch("maven") as folder:
        repository = folder / "repository"
        status, lines = _mvn(
            folder,
            _element("parent", parent),
            f"-Dmaven.repo.local={repository}",
            "validate",
            timeout_s=_LIST_S,
        )
        lists = sorted(repository.rglob("maven-metadata-*.xml"))
        try:
            found = {str(each.text) for file in lists for each in ElementTree.parse(file).iterfind(".//{*}version")}
        except (ElementTree.ParseError, OSError) as error:
            raise HarnessError(f"Maven's list of versions of {artifact} can't be read: {error}") from error
    unreachable = [_short(line) for line in lines if "Could not transfer metadata" in line]
    if found:
        for line in unreachable:
            say(f"some versions of {artifact} may be missing: {line}")
        return tuple(found)
    if unreachable:
        raise EnvironmentLacks(f"mvn can't list the versions of {artifact}: {unreachable[0]}")
    if any("No versions matched" in line for line in lines):
        raise EnvironmentLacks(f"none of Maven's repositories lists versions of {artifact}, or Maven is set offline")
    raise _failure(status, lines, ())


def _element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>"


def _mvn(
    folder: Path, body: str, *arguments: str, timeout_s: float, on_line: Callable[[str], object] = silent
) -> tuple[int, list[str]]:
    """Run mvn on a pom with this body in the folder; return its status and its lines."""
    program = shutil.which("mvn")
    if program is None:
        raise EnvironmentLacks("mvn is not on the PATH; it fetches Kafka: apt-get install maven")
    pom = folder / "pom.xml"
    pom.write_text(_POM.format(body))
    argv = [program, "-B", "-U", "-f", str(pom), *arguments]
    try:
        return run_to_end(argv, cwd=folder, timeout_s=timeout_s, on_line=on_line)
    except subprocess.TimeoutExpired as error:
        last = error.output or "nothing"
        raise EnvironmentLacks(f"mvn did not end within {timeout_s:.0f} s; its last line: {last}") from error


def _failure(status: int, lines: Sequence[str], coordinates: Sequence[str]) -> HarnessError | ArtifactNotFound:
    """The error for a failed mvn, made from its first ``[ERROR]`` line, else from its last line."""
    errors = [text for line in lines if line.startswith("[ERROR]") and (text := line.removeprefix("[ERROR]").strip())]
    telling = (errors or lines[-1:] or ["nothing"])[0]
    for match in _NOT_THERE.finditer(telling):
        artifact = _ARTIFACT.search(match[1] or match[2] or match[3])
        named = [c for c in coordinates if artifact and c.split(":")[:3] == list(artifact.groups())]
        if named:
            return ArtifactNotFound(named[0])
    telling = _short(telling)
    if re.search(r"Could not transfer|failed to transfer|could not be resolved|Could not find artifact", telling):
        return EnvironmentLacks(f"mvn can't fetch what it needs; can its repositories or mirrors be reached? {telling}")
    if "JAVA_HOME" in telling:
        return EnvironmentLacks(f"mvn finds no Java: {telling}")
    return HarnessError(f"mvn failed with status {status}: {telling}")


def _short(line: str) -> str:
    line = line.removeprefix("[WARNING]").strip().removesuffix("-> [Help 1]").strip()
    return f"{line[:200]} … {line[-400:]}" if len(line) > 600 else line
