"""A Kafka build: where it comes from (Maven, a folder, a source tree, a tarball), its jars, its version, its checksum.

Brokers and tools run as plain ``java -cp``, not by ``bin/*.sh``: Maven has no scripts, and the scripts choose heap, GC
and log folders, which the harness decides. So a build is a class path and the facts of its version
(:mod:`harness.kafka.versions`).

A build from Maven or a tarball is kept in the cache and checked against its checksum each time (0.1 s for 60 MB); a
damaged one is made again. A folder (``--kafka-home``) is used in place.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from harness.errors import BuildLacks, DistributionError, EnvironmentLacks, HarnessError, UsageError
from harness.host.broker_user import broker_user
from harness.host.cache import make_open_dir, publish
from harness.host.java import java_version
from harness.host.programs import run_to_end
from harness.kafka.main_classes import main_class
from harness.kafka.maven import ArtifactNotFound, copy_dependencies, silent
from harness.kafka.source_tree import is_source_tree, jars_of
from harness.kafka.tarball import unpack
from harness.kafka.versions import KafkaVersion, Tool

Source = Literal["maven", "home", "tarball"]

# Jars that are left out of the class path, as by bin/kafka-run-class.sh.
NOT_TO_RUN = re.compile(r"-(test|test-sources|src|sources|scaladoc|javadoc)\.jar$|^connect-file.*\.jar$|^\.")
_SUMS = "build.json"

MUTANT_JAR = "0-jbod-mutant.jar"
"""The jar with the changed classes of a mutant (:mod:`suites.mutants`). By its name, it comes first."""
MUTANT_SAYS = "jbod mutant "
"""What the changed code of a mutant prints first on standard error."""
_MUTANT_ID = "META-INF/jbod-mutant"
_PROBE_S = 10.0

# pyspark's version; its Kafka connector needs exactly these jars beyond those in pyspark.
_SPARK = "4.2.0"
_SPARK_KAFKA = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_SPARK}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{_SPARK}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)

_JOLOKIA = "2.6.0"


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A Kafka build that can be run.

    :ivar origin: the Maven coordinate, the folder or the tarball
    :ivar class_path: its jars, absolute, sorted by name; all readable by the brokers' user
    :ivar sha256: of the lines that ``LC_ALL=C sha256sum *.jar`` prints for these jars
    :ivar commit: Kafka's source commit, from the build's properties; empty if they have none
    :ivar archive_sha256: of the tarball; None for other sources
    :ivar scripts: its ``bin`` folder; None if it has none, as from Maven
    """

    version: KafkaVersion
    source: Source
    origin: str
    class_path: tuple[Path, ...]
    sha256: str
    commit: str = ""
    archive_sha256: str | None = None
    scripts: Path | None = None

    def main_class(self, tool: Tool | str) -> str:
        """The main class of a tool.

        :param tool: a :class:`Tool` or its value, such as "dump-log"
        :raises BuildLacks: this build has no such tool
        """
        try:
            return main_class(self.class_path, self.scripts, Tool(tool))
        except BuildLacks as error:
            raise BuildLacks(f"Kafka {self.version} {error}") from error

    @property
    def uses_log4j2(self) -> bool:
        """Whether it logs by log4j 2 (``-Dlog4j2.configurationFile``), as since 4.0; else by log4j 1 or reload4j
        (``-Dlog4j.configuration``).
        """
        return any(jar.name.startswith("log4j-core-") for jar in self.class_path)

    @property
    def mutant(self) -> str | None:
        """The id of the mutant in this build (:data:`MUTANT_JAR`); None if it is as Kafka made it."""
        mutated = next((jar for jar in self.class_path if jar.name == MUTANT_JAR), None)
        if mutated is None:
            return None
        try:
            with zipfile.ZipFile(mutated) as jar:
                return jar.read(_MUTANT_ID).decode()
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise DistributionError(f"{mutated} doesn't say which mutant it is: {error}") from error

    def to_json(self) -> dict[str, object]:
        """The build as run.json records it."""
        return {
            "version": str(self.version),
            "source": self.source,
            "origin": self.origin,
            "sha256": self.sha256,
            "commit": self.commit,
            "archive_sha256": self.archive_sha256,
            "jars": len(self.class_path),
        }


def from_maven(version: KafkaVersion, cache: Path, *, say: Callable[[str], None] = silent) -> Distribution:
    """A release from Maven Central or the user's mirrors, kept in the cache.

    A snapshot is fetched each time, since it may have changed, and each content of it has a folder of its own.

    :raises UsageError: there is no such version
    :raises EnvironmentLacks, HarnessError: it can't be fetched (:func:`harness.kafka.maven.copy_dependencies`), or this
        Java doesn't run it
    """
    builds = cache / "kafka"

    def fetch(folder: Path) -> None:
        say(f"Kafka {version}: fetching it with mvn")
        try:
            copy_dependencies(version.coordinates, folder, say=say)
        except ArtifactNotFound as error:
            if "org.apache.kafka:" not in error.coordinate:
                raise EnvironmentLacks(f"{error}; Kafka {version} needs it to log") from error
            raise UsageError(
                f"Kafka {version} is not on Maven Central or your mirrors; for a build of your own there are "
                "--kafka-tarball and --kafka-home"
            ) from error
        write_sums(folder)

    if version.is_snapshot:
        make_open_dir(builds)
        with tempfile.TemporaryDirectory(prefix=".snapshot-", dir=builds) as staging:
            fetch(Path(staging))
            name = f"maven-{version}-{_stored_sum(Path(staging))[:12]}"
            folder = publish(builds / name, partial(shutil.copytree, staging, dirs_exist_ok=True), is_sound)
    else:
        target = builds / f"maven-{version}"
        if target.exists() and not is_sound(target):
            say(f"Kafka {version}: the cached build is damaged, fetching it again")
        folder = publish(target, fetch, is_sound)
    return _distribution(folder, "maven", version.coordinates[0], sha256=_stored_sum(folder))


def from_home(home: Path) -> Distribution:
    """The folder of an unpacked release, or a source tree that Gradle has built, used in place.

    :raises UsageError: there is no such folder
    :raises DistributionError: it is not a Kafka build that can run
    """
    home = _named("--kafka-home", home)
    try:
        if not home.exists():
            raise UsageError(f"--kafka-home {home}: there is no such folder")
        if not home.is_dir():
            raise DistributionError(f"--kafka-home {home} is a file; a tarball goes to --kafka-tarball")
        if (home / "libs").is_dir():
            return _distribution(home / "libs", "home", str(home), scripts=home / "bin")
        if not is_source_tree(home):
            raise DistributionError(
                f"--kafka-home {home} is not a Kafka build: it has no libs folder and is not a source tree"
            )
        jars = jars_of(home, to_run=lambda jar: not NOT_TO_RUN.search(jar.name))
        return _distribution(home, "home", str(home), jars=jars, scripts=home / "bin")
    except OSError as error:
        raise DistributionError(f"--kafka-home {home} can't be read: {error.strerror}: {error.filename}") from error


def from_tarball(file: Path, cache: Path, *, say: Callable[[str], None] = silent) -> Distribution:
    """A release or release candidate in a ``kafka_2.13-X.tgz``, unpacked into the cache once for each content.

    :raises UsageError: there is no such file
    :raises DistributionError: it is broken, unsafe to unpack or not a Kafka build; nothing of it stays in the cache
    """
    file = _named("--kafka-tarball", file)
    try:
        if not file.exists():
            raise UsageError(f"--kafka-tarball {file}: there is no such file")
        if not file.is_file():
            raise DistributionError(f"--kafka-tarball {file} is not a file; a folder goes to --kafka-home")
        checksum = _sha256(file)
    except OSError as error:
        raise DistributionError(f"--kafka-tarball {file} can't be read: {error.strerror}") from error

    def make(folder: Path) -> None:
        say(f"unpacking {file.name}")
        unpacked = folder / "unpacked"
        unpacked.mkdir()
        unpack(file, unpacked)
        homes = [home for home in (unpacked, *sorted(unpacked.iterdir())) if (home / "libs").is_dir()]
        if len(homes) > 1:
            names = " and ".join(home.name for home in homes)
            raise DistributionError(f"--kafka-tarball {file} contains several Kafka builds: {names}; keep only one")
        if not homes:
            raise DistributionError(
                f"--kafka-tarball {file} contains no Kafka build: neither it nor its top folder has a libs folder"
            )
        for name in ("libs", "bin"):
            if (homes[0] / name).is_dir():
                (homes[0] / name).rename(folder / name)
        shutil.rmtree(unpacked)
        # Before it is published, so that a tarball that is not a Kafka build leaves nothing in the cache.
        _distribution(folder / "libs", "tarball", str(file), to_run=False)
        write_sums(folder / "libs")

    folder = publish(cache / "kafka" / f"tarball-{checksum[:16]}", make, lambda folder: is_sound(folder / "libs"))
    libs = folder / "libs"
    return _distribution(
        libs, "tarball", str(file), sha256=_stored_sum(libs), archive_sha256=checksum, scripts=folder / "bin"
    )


def spark_kafka_jars(cache: Path, *, say: Callable[[str], None] = silent) -> tuple[Path, ...]:
    """The jars that pyspark needs beyond its own for its Kafka source; from the cache or from Maven.

    :raises EnvironmentLacks, HarnessError: they can't be fetched, see :func:`harness.kafka.maven.copy_dependencies`
    """
    folder = cache / "spark" / f"kafka-connector-{_SPARK}"
    return _artifacts(folder, _SPARK_KAFKA, f"Spark {_SPARK}: fetching its Kafka connector with mvn", "Spark", say)


def jolokia_agent(cache: Path, *, say: Callable[[str], None] = silent) -> Path:
    """Jolokia's JVM agent, which serves MBeans (:mod:`harness.kafka.mbeans`); from the cache or from Maven.

    :raises EnvironmentLacks, HarnessError: it can't be fetched, see :func:`harness.kafka.maven.copy_dependencies`
    """
    coordinate = f"org.jolokia:jolokia-agent-jvm:{_JOLOKIA}:javaagent"
    what = f"Jolokia {_JOLOKIA}: fetching it with mvn"
    return _artifacts(cache / f"jolokia-{_JOLOKIA}", [coordinate], what, "reading MBeans", say)[0]


def _artifacts(
    folder: Path, coordinates: Sequence[str], what: str, needed_for: str, say: Callable[[str], None]
) -> tuple[Path, ...]:
    """The jars of exactly these artifacts, in a folder of the cache."""

    def fetch(folder: Path) -> None:
        say(what)
        try:
            copy_dependencies(coordinates, folder, transitive=False, say=say)
        except ArtifactNotFound as error:
            raise EnvironmentLacks(f"{error}; {needed_for} needs it") from error
        write_sums(folder)

    return _jars(publish(folder, fetch, is_sound))


def _named(option: str, path: Path) -> Path:
    """The absolute path in an option.

    :raises UsageError: it begins with the home (``~name``) of an unknown user
    """
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{option} {path}: {str(error).rstrip('.')}") from error


def is_sound(libs: Path) -> bool:
    """Whether a cached folder of jars still has the checksum with which it was made."""
    try:
        return _stored_sum(libs) == _sum_of(_jars(libs))
    except (OSError, HarnessError):
        return False


def _jars(libs: Path) -> tuple[Path, ...]:
    return tuple(sorted(jar for jar in libs.glob("*.jar") if not NOT_TO_RUN.search(jar.name)))


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sum_of(jars: Iterable[Path]) -> str:
    lines = "".join(f"{_sha256(jar)}  {jar.name}\n" for jar in jars)
    return hashlib.sha256(lines.encode()).hexdigest()


def write_sums(libs: Path) -> None:
    """Store the checksum of a folder of jars, for :func:`is_sound`."""
    (libs / _SUMS).write_text(json.dumps({"schema": 1, "sha256": _sum_of(_jars(libs))}) + "\n")


def _stored_sum(libs: Path) -> str:
    try:
        return str(json.loads((libs / _SUMS).read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HarnessError(f"{libs / _SUMS} can't be read: {error}") from error


def _distribution(
    libs: Path,
    source: Source,
    origin: str,
    *,
    sha256: str | None = None,
    archive_sha256: str | None = None,
    scripts: Path | None = None,
    jars: tuple[Path, ...] | None = None,
    to_run: bool = True,
) -> Distribution:
    """The build in a folder of jars.

    :param jars: the jars, if they are not all in ``libs`` itself
    :param to_run: check too that brokers can run it here
    :raises DistributionError: it is not a Kafka build, or the brokers' user can't read it
    """
    jars = jars or _jars(libs)
    core = [jar for jar in jars if re.match(r"kafka_2\.\d+-\d", jar.name)]
    clients = [jar for jar in jars if re.match(r"kafka-clients-\d", jar.name)]
    if len(core) != 1 or len(clients) != 1:
        found = ", ".join(jar.name for jar in core + clients) or "none"
        raise DistributionError(
            f"{origin} is not a Kafka build: {libs} must have one kafka_2.* and one kafka-clients jar, and has {found}"
        )
    if ":" in str(libs):
        raise DistributionError(f"{libs} has a colon in its name, which a Java class path can't have")
    broken = [jar.name for jar in jars if not zipfile.is_zipfile(jar)]
    if broken:
        raise DistributionError(f"{origin} has broken jars in {libs}: {', '.join(broken)}")
    facts = _facts(clients[0])
    try:
        version = KafkaVersion.parse(facts.get("version", ""))
    except UsageError as error:
        raise DistributionError(f"{origin}: {clients[0].name} doesn't say its version: {error}") from error
    if to_run:
        version.check_java(java_version()[0])
        _check_readable(jars)
    return Distribution(
        version=version,
        source=source,
        origin=origin,
        class_path=jars,
        sha256=sha256 or _sum_of(jars),
        commit=facts.get("commitId", ""),
        archive_sha256=archive_sha256,
        scripts=scripts if scripts and scripts.is_dir() else None,
    )


def _facts(clients: Path) -> dict[str, str]:
    """The jar's kafka-version.properties, which Kafka's AppInfoParser reads too."""
    try:
        with zipfile.ZipFile(clients) as jar:
            text = jar.read("kafka/kafka-version.properties").decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DistributionError(f"{clients} doesn't say which Kafka it is: {error}") from error
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def _check_readable(jars: Iterable[Path]) -> None:
    """Check that the brokers' user can read every jar.

    :raises DistributionError: it can't read one of them
    """
    user = broker_user()
    if not user.drop or shutil.which("setpriv") is None:
        return
    script = 'for jar; do [ -r "$jar" ] || { echo "$jar"; exit 1; }; done'
    argv = [*user.command(), "sh", "-c", script, "sh", *map(str, jars)]
    status, lines = run_to_end(argv, cwd=Path("/"), timeout_s=_PROBE_S)
    if status:
        what = lines[0] if lines else "the jars"
        raise DistributionError(
            f"brokers run as uid {user.uid} and can't read {what}; open it and the folders above it (chmod a+rX), "
            "put the build elsewhere, or name a user in JBOD_BROKER_USER"
        )
