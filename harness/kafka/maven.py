"""The one door to ``mvn``.

Maven and not a downloader of our own: it honours what the user's settings say of mirrors, proxies and passwords, and
resolves what a build depends on. One plugin call with a written pom; no Maven project is needed. Maven's local
repository is not safe for two processes that fetch the same file, so only one ``mvn`` of ours runs at a time.

No goal of Maven lists the versions of an artifact. But Maven reads that list for a parent given as a range of versions,
and keeps it in its local repository: :func:`versions_of` gives it an empty one, and reads what is then in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from harness.errors import EnvironmentLacks, HarnessError, UsageError
from harness.host.cache import cache_dir, locked
from harness.host.scratch import scratch

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
TIMEOUT_S = 300.0
LIST_TIMEOUT_S = 60.0

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FETCHING = re.compile(r"Downloading from \S+: \S+/([^/\s]+\.jar)$")
_NOT_THERE = re.compile(r"Could not find artifact (\S+)|Failure to find (\S+)|(\S+) was not found in ")
# An artifact in Maven's words: group:artifact:type[:classifier]:version.
_ARTIFACT = re.compile(r"([\w.-]+):([\w.-]+):\w+(?::[\w.-]+)?:([\w.-]+)")


class ArtifactNotFound(UsageError):
    """None of the user's repositories has something that was asked for by name."""

    def __init__(self, coordinate: str) -> None:
        super().__init__(f"{coordinate} is not on Maven Central or your mirrors")
        self.coordinate = coordinate


def silent(_line: str) -> None:
    """Say nothing."""


def copy_dependencies(
    coordinates: Sequence[str],
    into: Path,
    *,
    transitive: bool = True,
    say: Callable[[str], None] = silent,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Put these artifacts' jars, and those that they need at run time, into a folder.

    Not atomic by itself: give it a folder that nobody reads yet (:func:`harness.host.cache.publish` does).

    :param coordinates: ``group:artifact:version[:classifier]``; where versions conflict, what is named here wins
    :param transitive: False for exactly the artifacts named
    :param say: is handed one line for each jar that is downloaded, none for those that Maven has already
    :raises ArtifactNotFound: one that was named is in none of the repositories
    :raises EnvironmentLacks: no mvn, or it can't reach its repositories
    :raises HarnessError: mvn failed otherwise, or took longer than ``timeout_s``; with its last error line
    """
    program = _program()
    with locked(cache_dir() / "maven.lock"), scratch("maven") as folder:
        pom = folder / "pom.xml"
        pom.write_text(_pom(coordinates))
        argv = [program, "-B", "-U", "-f", str(pom), f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
        argv += [f"-DoutputDirectory={into.absolute()}", f"-DexcludeTransitive={str(not transitive).lower()}"]
        status, lines = _run(argv, folder, say, timeout_s)
    if status != 0:
        raise _failure(status, lines, coordinates)


def versions_of(
    artifact: str, *, say: Callable[[str], None] = silent, timeout_s: float = LIST_TIMEOUT_S
) -> tuple[str, ...]:
    """The versions of an artifact that the user's repositories list, as they are written there, in no order.

    :param artifact: ``group:artifact``
    :param say: is handed one line for each repository that didn't answer while another did
    :raises EnvironmentLacks: no mvn, or none of its repositories lists the artifact
    :raises HarnessError: a list can't be read
    """
    program = _program()
    with scratch("maven") as folder:
        pom, repository = folder / "pom.xml", folder / "repository"
        pom.write_text(_list_pom(artifact))
        argv = [program, "-B", "-U", "-f", str(pom), f"-Dmaven.repo.local={repository}", "validate"]
        status, lines = _run(argv, folder, silent, timeout_s)  # a failure: no version is in that range
        unreachable = [line for line in lines if "Could not transfer metadata" in line]
        lists = sorted(repository.rglob("maven-metadata-*.xml"))
        try:
            found = {str(each.text) for file in lists for each in ElementTree.parse(file).iterfind(".//{*}version")}
        except (ElementTree.ParseError, OSError) as error:
            raise HarnessError(f"Maven's list of versions of {artifact} can't be read: {error}") from error
    if not found:
        raise _unlisted(artifact, status, lines, unreachable)
    for line in unreachable:
        say(f"some versions of {artifact} may be missing: {_short(line)}")
    return tuple(found)


def _unlisted(artifact: str, status: int, lines: Sequence[str], unreachable: Sequence[str]) -> HarnessError:
    """Why there is no version of an artifact."""
    if unreachable:
        return EnvironmentLacks(f"mvn can't list the versions of {artifact}: {_short(unreachable[0])}")
    if any("No versions matched" in line for line in lines):
        return EnvironmentLacks(f"none of Maven's repositories lists versions of {artifact}, or Maven is set offline")
    failure = _failure(status, lines, ())
    return failure if isinstance(failure, HarnessError) else HarnessError(str(failure))


def _program() -> str:
    program = shutil.which("mvn")
    if program is None:
        raise EnvironmentLacks("mvn is not on the PATH; it fetches Kafka: apt-get install maven")
    return program


def _list_pom(artifact: str) -> str:
    """A pom that makes Maven read the list of versions, and then fail before it fetches one."""
    group, _, name = artifact.partition(":")
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        f"<parent><groupId>{escape(group)}</groupId><artifactId>{escape(name)}</artifactId>"
        "<version>[99999,)</version><relativePath/></parent>\n"
        "<artifactId>list</artifactId><packaging>pom</packaging></project>\n"
    )


def _pom(coordinates: Sequence[str]) -> str:
    dependencies = []
    for coordinate in coordinates:
        names = ("groupId", "artifactId", "version", "classifier")
        parts = zip(names, map(escape, coordinate.split(":")), strict=False)
        dependencies.append(f"<dependency>{''.join(f'<{name}>{part}</{name}>' for name, part in parts)}</dependency>\n")
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>\n'
        "<groupId>jbod</groupId><artifactId>fetch</artifactId><version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{''.join(dependencies)}</dependencies></project>\n"
    )


def _run(argv: Sequence[str], folder: Path, say: Callable[[str], None], timeout_s: float) -> tuple[int, list[str]]:
    """Run mvn; return its status and its lines."""
    process = subprocess.Popen(
        argv,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that the time-out, and Ctrl-C below, end mvn's own children too
    )
    expired = threading.Event()

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def expire() -> None:
        expired.set()
        end()

    timer = threading.Timer(timeout_s, expire)
    timer.daemon = True
    timer.start()
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for raw in process.stdout:
            line = _COLOUR.sub("", raw).rstrip()
            lines.append(line)
            fetching = _FETCHING.search(line)
            if fetching:
                say(f"fetching {fetching[1]}")
        status = process.wait()
    except BaseException:
        end()
        process.wait()
        raise
    finally:
        timer.cancel()
        if process.stdout is not None:
            process.stdout.close()
    if expired.is_set():
        last = next((line for line in reversed(lines) if line), "nothing")
        raise EnvironmentLacks(f"mvn was not done after {timeout_s:.0f} s; its last line: {last}")
    return status, lines


def _failure(status: int, lines: Sequence[str], coordinates: Sequence[str]) -> HarnessError | ArtifactNotFound:
    errors = [line.removeprefix("[ERROR]").strip() for line in lines if line.startswith("[ERROR]")]
    telling = next((line for line in errors if line), "") or next((line for line in reversed(lines) if line), "nothing")
    for match in _NOT_THERE.finditer(telling):
        artifact = _ARTIFACT.search(match[1] or match[2] or match[3])
        named = [c for c in coordinates if artifact and c.split(":")[:3] == list(artifact.groups())]
        if named:
            return ArtifactNotFound(named[0])
    telling = _short(telling)
    if re.search(r"Could not transfer|failed to transfer|could not be resolved|Could not find artifact", telling):
        return EnvironmentLacks(f"mvn can't fetch what it needs; can its repositories or mirrors be reached? {telling}")
    if re.search(r"JAVA_HOME", telling):
        return EnvironmentLacks(f"mvn finds no Java: {telling}")
    return HarnessError(f"mvn failed with status {status}: {telling}")


def _short(line: str) -> str:
    line = line.removeprefix("[WARNING]").strip().removesuffix("-> [Help 1]").strip()
    return f"{line[:200]} … {line[-400:]}" if len(line) > 600 else line
