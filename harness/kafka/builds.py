"""Which Kafka build each metadata mode runs on: ``--kafka``, ``--kafka-home``, ``--kafka-tarball``, ``--mode``.

Without a build named, each mode runs on its default (:mod:`harness.kafka.versions`); with one, on the modes that it
has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.host.cache import cache_dir
from harness.kafka.distribution import Distribution, from_home, from_maven, from_tarball
from harness.kafka.versions import DEFAULT_BUILDS, KafkaVersion, Mode


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options as given; at most one build."""

    kafka: str | None = None
    kafka_home: str | None = None
    kafka_tarball: str | None = None
    mode: str | None = None

    @classmethod
    def recorded(cls, run: Mapping[str, Any]) -> BuildOptions:
        """Those by which a run.json's build and mode are chosen again.

        :raises KeyError: it doesn't say
        """
        return cls.of(run["kafka"], run["mode"])

    @classmethod
    def of(cls, build: Mapping[str, Any], mode: str | None = None) -> BuildOptions:
        """Those by which a build is chosen, as :meth:`.distribution.Distribution.to_json` tells of it."""
        option = {"maven": "kafka", "home": "kafka_home", "tarball": "kafka_tarball"}[build["source"]]
        return cls(mode=mode, **{option: build["version" if option == "kafka" else "origin"]})


@dataclass
class Builds:
    """The builds of a run, fetched when first asked for."""

    _version_of: dict[Mode, KafkaVersion]
    _fetched: dict[KafkaVersion, Distribution] = field(default_factory=dict)

    @classmethod
    def choose(cls, options: BuildOptions) -> Builds:
        """Check the options against each other; reads a named folder or tarball, fetches nothing.

        :raises UsageError: two builds, an unknown mode, a version that is none, a mode that the build doesn't have
        :raises DistributionError: the folder or tarball is no Kafka
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
        elif options.kafka_tarball:
            given = from_tarball(Path(options.kafka_tarball), cache_dir())
        if given is None and options.kafka is None:
            return cls({mode: version for mode, version in DEFAULT_BUILDS.items() if wanted in (None, mode)})
        version = given.version if given else KafkaVersion.parse(options.kafka or "")
        modes = [mode for mode in Mode if version.has(mode)]
        if wanted is not None and wanted not in modes:
            hint = "; the last line with ZooKeeper is 3.9: --kafka latest-3.9" if version.at_least(4, 0) else ""
            has = " and ".join(modes) or "none with JBOD"
            raise UsageError(f"Kafka {version} has no mode {wanted}; it has {has}{hint}")
        if not modes:
            raise UsageError(f"Kafka {version} has no mode with JBOD: ZooKeeper from 1.0 to 3.9, KRaft from 3.7")
        builds = cls({mode: version for mode in modes if wanted in (None, mode)})
        if given:
            builds._fetched[version] = given
        return builds

    def modes(self) -> tuple[Mode, ...]:
        """The modes that this run covers."""
        return tuple(self._version_of)

    def version(self, mode: Mode) -> KafkaVersion:
        """The version that runs in this mode."""
        return self._version_of[mode]

    def of(self, mode: Mode, say: Callable[[str], None] = lambda _line: None) -> Distribution:
        """The build for this mode, from the cache or from Maven.

        :raises UsageError: Maven knows no such version
        """
        version = self._version_of[mode]
        if version not in self._fetched:
            self._fetched[version] = from_maven(version, cache_dir(), say=say)
        return self._fetched[version]
