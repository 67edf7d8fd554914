"""Chooses the Kafka build of each metadata mode from ``--kafka``, ``--kafka-home``, ``--kafka-tarball`` and ``--mode``.

A named build runs in each mode that it has. If none is named, each mode has its default
(:mod:`harness.kafka.versions`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError, UsageError
from harness.host.cache import cache_dir
from harness.kafka.distribution import Distribution, from_home, from_maven, from_tarball
from harness.kafka.versions import DEFAULT_BUILDS, KafkaVersion, Mode, upgraded_from


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """A build as run.json records it (:meth:`.distribution.Distribution.to_json`)."""

    version: str = "?"
    source: str = ""
    origin: str = ""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options as given, which name at most one build."""

    kafka: str | None = None
    kafka_home: str | None = None
    kafka_tarball: str | None = None
    mode: str | None = None

    @classmethod
    def of(cls, build: Distribution | BuildRecord, mode: str | None = None) -> BuildOptions:
        """The options that choose a build again.

        :raises HarnessError: the record does not name the build, because the case ended before it was known
        """
        option = {"maven": "kafka", "home": "kafka_home", "tarball": "kafka_tarball"}.get(build.source)
        if option is None:
            raise HarnessError("run.json does not name the Kafka build: the case ended before it was known")
        return cls(mode=mode, **{option: str(build.version if option == "kafka" else build.origin)})


@dataclass
class Builds:
    """The builds of a run, fetched when first asked for."""

    _version_of: dict[Mode, KafkaVersion]
    _fetched: dict[KafkaVersion, Distribution] = field(default_factory=dict)

    @classmethod
    def choose(cls, options: BuildOptions) -> Builds:
        """Check the options against each other, and read a named folder or tarball; fetches nothing.

        :raises UsageError: two builds, an unknown mode or version, a mode that the build doesn't have
        :raises DistributionError: the folder or tarball is not a Kafka build
        """
        given_by = {"--kafka-home": options.kafka_home, "--kafka-tarball": options.kafka_tarball}
        for option, value in given_by.items():
            if value == "":
                raise UsageError(f"{option} is empty; name a build, or leave the option out")
        named = [name for name in (options.kafka, *given_by.values()) if name]
        if len(named) > 1:
            raise UsageError(
                f"one build at a time: --kafka, --kafka-home or --kafka-tarball, not {' and '.join(named)}"
            )
        try:
            wanted = None if options.mode is None else Mode(options.mode)
        except ValueError:
            raise UsageError(f"unknown mode {options.mode!r}: zk or kraft") from None
        if options.kafka and "," in options.kafka:
            raise UsageError(f"--kafka {options.kafka}: only `jbod run` takes several builds; name one")
        given: Distribution | None = None
        if options.kafka_home:
            given = from_home(Path(options.kafka_home))
            version = given.version
        elif options.kafka_tarball:
            given = from_tarball(Path(options.kafka_tarball), cache_dir())
            version = given.version
        elif options.kafka is not None:
            version = KafkaVersion.parse(options.kafka)
        else:
            return cls({mode: version for mode, version in DEFAULT_BUILDS.items() if wanted in (None, mode)})
        modes = version.modes()
        if wanted is not None and wanted not in modes:
            hint = "; the last line with ZooKeeper is 3.9: --kafka latest-3.9" if version.at_least(4, 0) else ""
            has = " and ".join(modes) or "none with JBOD"
            raise UsageError(f"Kafka {version} has no mode {wanted}; it has {has}{hint}")
        if not modes:
            raise UsageError(f"Kafka {version} has no mode with JBOD: ZooKeeper from 1.0 to 3.9, KRaft from 3.7")
        return cls({mode: version for mode in modes if wanted in (None, mode)}, {version: given} if given else {})

    def modes(self) -> tuple[Mode, ...]:
        """The modes that this run covers."""
        return tuple(self._version_of)

    def version(self, mode: Mode) -> KafkaVersion:
        """The version that runs in this mode."""
        return self._version_of[mode]

    def of(self, mode: Mode, say: Callable[[str], None] = lambda _line: None) -> Distribution:
        """The build for this mode, from the cache or from Maven.

        :raises UsageError: Maven knows no such version
        :raises EnvironmentLacks, HarnessError: see :func:`.distribution.from_maven`
        """
        return self._fetch(self._version_of[mode], say)

    def earlier(self, mode: Mode, say: Callable[[str], None] = lambda _line: None) -> Distribution:
        """The build from which a cluster is upgraded to the one for this mode (:func:`.versions.upgraded_from`).

        :raises UsageError: there is none, or Maven does not know it
        :raises EnvironmentLacks, HarnessError: see :func:`.distribution.from_maven`
        """
        version = self._version_of[mode]
        earlier = upgraded_from(version, mode)
        if earlier is None:
            raise UsageError(f"there is no release from which a cluster in mode {mode} is upgraded to Kafka {version}")
        return self._fetch(earlier, say)

    def _fetch(self, version: KafkaVersion, say: Callable[[str], None]) -> Distribution:
        if version not in self._fetched:
            self._fetched[version] = from_maven(version, cache_dir(), say=say)
        return self._fetched[version]
