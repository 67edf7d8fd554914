"""Kafka versions and what differs between them: modes, features, Java, Maven coordinates.

Only this module compares version numbers. If a build's jars have the answer, the harness reads them instead, since a
table knows nothing of the next release (:mod:`harness.kafka.main_classes`). Vendors' builds ("3.9.2-vendor1") count as
the release whose number they carry.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from harness.errors import EnvironmentLacks, UsageError

Release = tuple[int, int, int]


class Mode(StrEnum):
    """Where a cluster keeps its metadata."""

    ZK = "zk"
    KRAFT = "kraft"


class Tool(StrEnum):
    """A program in a Kafka build, by the name of its script in ``bin`` without "kafka-"."""

    BROKER = "broker"
    ZOOKEEPER = "zookeeper"
    STORAGE = "storage"
    CONFIGS = "configs"
    FEATURES = "features"
    CLUSTER = "cluster"
    METADATA_QUORUM = "metadata-quorum"
    TOPICS = "topics"
    REASSIGN = "reassign"
    LOG_DIRS = "log-dirs"
    LEADER_ELECTION = "leader-election"
    DUMP_LOG = "dump-log"
    VERIFIABLE_PRODUCER = "verifiable-producer"
    VERIFIABLE_CONSUMER = "verifiable-consumer"
    PRODUCER_PERF = "producer-perf"
    CONFIG_DOCS = "config-docs"  # has no script; prints the documentation of broker configs


_NUMBERS = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:[-.]([0-9A-Za-z]+(?:[-._][0-9A-Za-z]+)*))?", re.ASCII)
_RC = re.compile(r"rc-?(\d+)", re.IGNORECASE)


@functools.total_ordering
@dataclass(frozen=True, kw_only=True)
class KafkaVersion:
    """A Kafka version: ``3.9.2``, ``4.3.0-rc1``, ``4.4.0-SNAPSHOT``.

    Ordered as released: a snapshot, then the candidates, then the release, then vendors' builds of it. Features and
    ranges use only :attr:`release`: 4.3.0-rc1 has what 4.3.0 has.

    :ivar qualifier: the text after the three numbers, with its separator; empty for a release
    """

    major: int
    minor: int
    patch: int
    qualifier: str = ""

    @classmethod
    def parse(cls, text: str) -> KafkaVersion:
        """Read a version as Maven and Kafka write it.

        :raises UsageError: it isn't one
        """
        match = _NUMBERS.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is not a Kafka version; they look like 4.3.1, 3.9.2, 4.3.0-rc1, 4.4.0-SNAPSHOT")
        major, minor, patch, _ = match.groups()
        return cls(major=int(major), minor=int(minor), patch=int(patch), qualifier=text.strip()[match.end(3) :])

    def __str__(self) -> str:
        """As :meth:`parse` read it."""
        return f"{self.major}.{self.minor}.{self.patch}{self.qualifier}"

    def __lt__(self, other: KafkaVersion) -> bool:
        """Whether it comes before another; the class has the order."""
        return self._order() < other._order()

    def _order(self) -> tuple[Release, int, int, str]:
        bare = self.qualifier[1:]
        candidate = _RC.fullmatch(bare)
        if self.is_snapshot:
            return self.release, -2, 0, bare
        if candidate:
            return self.release, -1, int(candidate[1]), bare
        return self.release, 1 if bare else 0, 0, bare

    @property
    def release(self) -> Release:
        """The three numbers."""
        return self.major, self.minor, self.patch

    @property
    def is_snapshot(self) -> bool:
        """Whether the same version may be another build tomorrow."""
        return self.qualifier.upper().endswith("SNAPSHOT")

    def at_least(self, *numbers: int) -> bool:
        """Whether its release is not below these numbers: ``at_least(4, 3)`` holds for 4.3.0-rc1."""
        return self.release >= numbers

    def has(self, mode: Mode) -> bool:
        """Whether this build has the mode with JBOD: ZooKeeper from 1.0 (KIP-112) to 3.9, KRaft from 3.7 (KIP-858)."""
        if mode is Mode.ZK:
            return self.at_least(1, 0) and not self.at_least(4, 0)
        return self.at_least(3, 7)

    def modes(self) -> tuple[Mode, ...]:
        """The modes that it :meth:`has`."""
        return tuple(mode for mode in Mode if self.has(mode))

    @property
    def describes_topics_by_bootstrap(self) -> bool:
        """Whether ``kafka-topics`` has ``--bootstrap-server`` (KIP-377); before, the tool asks ZooKeeper."""
        return self.at_least(2, 2)

    @property
    def creates_topics_by_zookeeper(self) -> bool:
        """Whether it has ``kafka-topics --create --zookeeper``, which places replicas itself (KIP-36, KAFKA-12596)."""
        return not self.at_least(3, 0)

    @property
    def reads_pem(self) -> bool:
        """Whether it reads keys and certificates in PEM files (KIP-651)."""
        return self.at_least(2, 7)

    @property
    def has_delete_horizons(self) -> bool:
        """Whether tombstones go ``delete.retention.ms`` after their first cleaning (KIP-534); before, some never go."""
        return self.at_least(3, 1)

    @property
    def has_initial_task_delay(self) -> bool:
        """Whether it has ``log.initial.task.delay.ms``; without it, a broker deletes nothing in its first 30 s."""
        return self.at_least(3, 8)

    @property
    def upgrades_features_by_release(self) -> bool:
        """Whether it has ``kafka-features upgrade --release-version`` (KIP-1022); before, ``--metadata`` does it."""
        return self.at_least(4, 0)

    @property
    def has_cordoned_log_dirs(self) -> bool:
        """Whether it has ``cordoned.log.dirs`` (KIP-1066). They need :data:`CORDON_METADATA_VERSION`, 4.3's default."""
        return self.at_least(4, 3)

    def check_java(self, major: int) -> None:
        """Check that this build's brokers run on this Java.

        Tried on 17 and 25: 1.1.1, 2.4.1, 3.7.2 and 3.9.2 start; 2.0.0, 2.2.2 and 2.3.1 never reach ZooKeeper.

        :raises EnvironmentLacks: they don't
        """
        if self.at_least(4, 0) and major < 17:
            raise EnvironmentLacks(
                f"Kafka {self} needs Java 17 or later (KIP-1013), and this is {major}; set JAVA_HOME"
            )
        if self.at_least(2, 0) and not self.at_least(2, 4) and major > 13:
            raise EnvironmentLacks(
                f"Kafka {self} needs Java 13 or earlier, and this is {major}: its ZooKeeper client finds no server on "
                "later ones (ZOOKEEPER-3779); 1.1 and 2.4 run on any"
            )

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The Maven artifacts that brokers and tools need, also to log, as ``group:artifact:version``.

        From 2.4 to 3.9 a build depends on log4j 1 or reload4j, before 2.4 on neither. Since 4.0 it lacks slf4j's
        binding to log4j 2, and has an old log4j-core or none, so all three are named.
        """
        # Scala 2.13 builds begin with 2.4 (as published; 2.3.1 and before have 2.12).
        scala = "2.13" if self.at_least(2, 4) else "2.12"
        kafka = (f"org.apache.kafka:kafka_{scala}:{self}", f"org.apache.kafka:kafka-tools:{self}")
        if self.at_least(4, 0):
            log4j = ("log4j-slf4j-impl", "log4j-core", "log4j-api")
            return (*kafka, *(f"org.apache.logging.log4j:{artifact}:{LOG4J2}" for artifact in log4j))
        return kafka if self.at_least(2, 4) else (*kafka, "org.slf4j:slf4j-log4j12:1.7.30")


LOG4J2 = "2.25.4"

CORDON_METADATA_VERSION = "4.3-IV0"

CONFIRMED_BUILDS: Mapping[Mode, tuple[KafkaVersion, ...]] = MappingProxyType(
    {
        mode: tuple(map(KafkaVersion.parse, releases.split()))
        for mode, releases in {
            Mode.ZK: "3.7.2 3.8.1 3.9.2",
            Mode.KRAFT: "3.7.2 3.8.1 3.9.2 4.0.2 4.1.2 4.2.2 4.3.1 4.4.0",
        }.items()
    }
)
"""The newest release of each line on which the declared deviations (:mod:`suites.deviations`) are confirmed.

A newer release (:func:`is_newer_than`) may have fixed one.
"""

# The newest of each line that jbod is tested with; 3.9 is the last with ZooKeeper.
DEFAULT_BUILDS: Mapping[Mode, KafkaVersion] = MappingProxyType(
    {Mode.ZK: KafkaVersion.parse("3.9.2"), Mode.KRAFT: KafkaVersion.parse("4.4.0")}
)


_UPGRADED_FROM: Mapping[Mode, tuple[KafkaVersion, ...]] = MappingProxyType(
    {
        mode: tuple(map(KafkaVersion.parse, releases.split()))
        for mode, releases in {Mode.ZK: "2.8.2", Mode.KRAFT: "3.8.1 3.9.2 4.0.2 4.3.1 4.4.0"}.items()
    }
)
"""The releases from which a cluster is upgraded, oldest first; a new release becomes the last one here."""


def upgraded_from(version: KafkaVersion, mode: Mode) -> KafkaVersion | None:
    """The release from which a cluster is upgraded to this version: the newest one of an earlier line.

    None if there is none with this mode.
    """
    earlier = [each for each in _UPGRADED_FROM[mode] if each.release[:2] < version.release[:2]]
    return max(earlier, default=None)


def is_newer_than(confirmed: Sequence[KafkaVersion], version: KafkaVersion) -> bool:
    """Whether a version is newer than all confirmed ones of its line; if its line has none, than all confirmed ones.

    4.1.3 counts as newer although 4.3.1 is confirmed: a fix may have come to its branch later.
    """
    of_its_line = [each.release for each in confirmed if each.release[:2] == version.release[:2]]
    return version.release > max(of_its_line or [each.release for each in confirmed])


_OPERATORS: Mapping[str, Callable[[Release, Release], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_BOUND = re.compile(rf"({'|'.join(_OPERATORS)})\s*(\d+)(?:\.(\d+))?(?:\.(\d+))?")
Bounds = tuple[tuple[str, Release], ...]


@dataclass(frozen=True, kw_only=True)
class VersionRange:
    """The builds that something holds for: ``>=4.3.0,<4.4.0``; empty for all.

    ``<4.0.2 | >=4.1.0,<4.1.2`` is either of the two, as for a bug that was fixed on several branches.

    :ivar any_of: alternatives, one of which must hold; each is pairs of an operator (``>= > <= < ==``) and a release,
        which must all hold
    """

    any_of: tuple[Bounds, ...] = ((),)

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read ranges separated by ``|``, each as bounds separated by commas; missing numbers are 0.

        :raises UsageError: it isn't a range
        """
        if not text.strip():
            return cls()
        return cls(any_of=tuple(cls._bounds(part, text) for part in text.split("|")))

    @staticmethod
    def _bounds(part: str, text: str) -> Bounds:
        bounds: list[tuple[str, Release]] = []
        for bound in part.split(","):
            match = _BOUND.fullmatch(bound.strip())
            if match is None:
                raise UsageError(
                    f"{text!r} is not a range of Kafka versions, such as >=4.3.0,<4.4.0 or <4.0.2 | >=4.1.0,<4.1.2"
                )
            sign, major, minor, patch = match.groups()
            bounds.append((sign, (int(major), int(minor or 0), int(patch or 0))))
        return tuple(bounds)

    def __contains__(self, version: KafkaVersion) -> bool:
        """Whether the version's release lies within; 4.4.0-SNAPSHOT counts as 4.4.0."""
        return any(all(_OPERATORS[sign](version.release, of) for sign, of in bounds) for bounds in self.any_of)

    def __str__(self) -> str:
        """As :meth:`parse` reads it."""
        return " | ".join(
            ",".join(f"{sign}{'.'.join(map(str, release))}" for sign, release in bounds) for bounds in self.any_of
        )


ANY_BUILD = VersionRange()
