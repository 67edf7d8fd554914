"""Lists Kafka's releases on Maven Central or the user's mirrors, and resolves ``latest`` and ``latest-3.9``.

The releases are what Maven lists (:func:`harness.kafka.maven.versions_of`), without release candidates, snapshots and
vendors' builds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from harness.errors import UsageError
from harness.host.cache import cache_dir
from harness.kafka.distribution import from_maven
from harness.kafka.maven import silent, versions_of
from harness.kafka.versions import KafkaVersion

LATEST = "latest"
_LINE = re.compile(rf"{LATEST}(?:-(\d{{1,4}})(?:\.(\d{{1,4}}))?)?")
_RELEASE = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}")
_HIGHEST = 9999
_LINES_SHOWN = 6

_known: dict[str, tuple[KafkaVersion, ...]] = {}


def settle(kafka: str | None, say: Callable[[str], None] = silent) -> str | None:
    """Replace each ``latest`` or ``latest-LINE`` in ``--kafka`` by a version; asks Maven only if there is one.

    :param kafka: a version or several, with commas between them; None if the option was not given
    :param say: called with a line for each version found, and for what was fetched
    :raises UsageError: such a word names no line of releases
    :raises EnvironmentLacks, HarnessError: Maven can't be asked, see :func:`harness.kafka.maven.versions_of`
    """
    if kafka is None:
        return None
    words = kafka.split(",")
    return ",".join(str(_newest(word.strip(), say)) if word.strip().startswith(LATEST) else word for word in words)


def between(low: KafkaVersion, high: KafkaVersion, say: Callable[[str], None] = silent) -> tuple[KafkaVersion, ...]:
    """The releases between two versions, these included if they are releases, in numeric order.

    :raises EnvironmentLacks, HarnessError: Maven can't be asked
    """
    artifacts = dict.fromkeys(map(_artifact, (low, high)))
    return tuple(sorted(each for artifact in artifacts for each in _listed(artifact, say) if low <= each <= high))


def _newest(word: str, say: Callable[[str], None]) -> KafkaVersion:
    """The newest release for ``latest`` or ``latest-3.9`` that can be fetched; mirrors may list more than they have."""
    match = _LINE.fullmatch(word)
    if match is None:
        raise UsageError(f"--kafka {word}: say latest, or the newest of a line with latest-4 or latest-3.9")
    line = tuple(int(number) for number in match.groups() if number is not None)
    major, minor = (*line, _HIGHEST, _HIGHEST)[:2]
    artifact = _artifact(KafkaVersion(major=major, minor=minor, patch=0))
    listed = _listed(artifact, say)
    for version in sorted(listed, reverse=True):
        if version.release[: len(line)] != line:
            continue
        try:
            from_maven(version, cache_dir(), say=say)
        except UsageError:
            say(f"Kafka {version} is listed by your Maven repositories, but none of them has it")
            continue
        say(f"Kafka {word} is {version}")
        return version
    raise UsageError(f"--kafka {word}: no such release on Maven Central or your mirrors; there is {_lines_of(listed)}")


def _artifact(version: KafkaVersion) -> str:
    """``group:artifact`` of the broker's jar."""
    return version.coordinates[0].rpartition(":")[0]


def _listed(artifact: str, say: Callable[[str], None]) -> tuple[KafkaVersion, ...]:
    """The releases whose broker jar is this artifact; asks Maven once, so that a process sees one list."""
    if artifact not in _known:
        versions = map(KafkaVersion.parse, filter(_RELEASE.fullmatch, versions_of(artifact, say=say)))
        _known[artifact] = tuple(version for version in versions if _artifact(version) == artifact)
    return _known[artifact]


def _lines_of(versions: Iterable[KafkaVersion]) -> str:
    lines = [*dict.fromkeys(f"{each.major}.{each.minor}" for each in sorted(versions))]
    return ", ".join(["…", *lines[-_LINES_SHOWN:]] if len(lines) > _LINES_SHOWN else lines) or "none"
