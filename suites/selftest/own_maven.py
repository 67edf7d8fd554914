"""A Maven repository with made-up releases, such as 90.0.1, in addition to the repositories that Maven asks anyway."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.host.cache import cache_dir
from harness.kafka.distribution import write_sums

# Some repository managers write the XML namespace; Central does not.
_METADATA = '<metadata xmlns="http://maven.apache.org/METADATA/1.1.0"><versioning><versions>{}</versions></versioning></metadata>'
_SETTINGS = (
    "<settings><profiles><profile><id>own</id><repositories><repository><id>own</id><url>file://{}</url></repository>"
    "</repositories></profile></profiles><activeProfiles><activeProfile>own</activeProfile></activeProfiles></settings>"
)


class OwnMaven:
    """Maven and jbod's cache of builds, for commands that the test starts.

    Maven asks Central, too. So a version that is listed here and is not in the cache is really missing.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._repository = folder / "maven-repository"
        self.cache = folder / "own-cache"
        self.cache.mkdir()
        for entry in cache_dir().iterdir():
            if entry.name != "kafka" and not entry.name.startswith("."):
                (self.cache / entry.name).symlink_to(entry)
        home = folder / "home"
        (home / ".m2").mkdir(parents=True)
        (home / ".m2" / "settings.xml").write_text(_SETTINGS.format(self._repository))
        local = Path.home() / ".m2" / "repository"
        patch.setenv("MAVEN_OPTS", f"-Duser.home={home} -Dmaven.repo.local={local}")
        patch.setenv("JBOD_CACHE_DIR", str(self.cache))

    def lists(self, versions: Iterable[str]) -> None:
        """List these releases from now on."""
        folder = self._repository / "org/apache/kafka/kafka_2.13"
        folder.mkdir(parents=True, exist_ok=True)
        listed = "".join(f"<version>{version}</version>" for version in versions)
        (folder / "maven-metadata.xml").write_text(_METADATA.format(listed))

    def has(self, *versions: str) -> None:
        """Put these releases into the cache: two jars each, with a version and nothing else."""
        for version in versions:
            libs = self.cache / "kafka" / f"maven-{version}"
            libs.mkdir(parents=True)
            for name in ("kafka-clients", "kafka_2.13"):
                with zipfile.ZipFile(libs / f"{name}-{version}.jar", "w") as jar:
                    jar.writestr("kafka/kafka-version.properties", f"version={version}\ncommitId=planted\n")
            write_sums(libs)
