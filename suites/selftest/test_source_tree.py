"""The jars for a broker are chosen from a source tree after ``./gradlew jar``, made from a real build's jars."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import DistributionError
from harness.host.cache import cache_dir
from harness.kafka.distribution import Distribution, from_home, from_maven
from harness.kafka.versions import DEFAULT_BUILDS, Mode
from suites.selftest.processes import JBOD

VERSION = DEFAULT_BUILDS[Mode.KRAFT]
SCALA = "2.13.99"
COPIES = f"build/dependant-libs-{SCALA}"
CORE = f"core/build/libs/kafka_2.13-{VERSION}.jar"
CLIENTS = f"clients/build/libs/kafka-clients-{VERSION}.jar"
STORAGE = f"storage/build/libs/kafka-storage-{VERSION}.jar"
_NESTED = {"group-coordinator-api": "group-coordinator/group-coordinator-api", "storage-api": "storage/api"}


@pytest.fixture(scope="module")
def build() -> Distribution:
    return from_maven(VERSION, cache_dir())


@pytest.fixture
def tree(open_folder: Path, build: Distribution) -> Path:
    """A tree with each project's jar in its folder, and the dependencies of core and tools beside their jars."""
    home = open_folder / "kafka"
    home.mkdir()
    (home / "gradlew").touch()
    (home / "gradle.properties").write_text(f"# a comment\nversion={VERSION}\nscalaVersion={SCALA}\ntask=build\n")
    for jar in build.class_path:
        name = jar.name.removesuffix(f"-{VERSION}.jar").removeprefix("kafka-")
        if name == "kafka_2.13":
            _put(jar, home / CORE)
        elif jar.name.startswith("kafka-"):
            _put(jar, home / _NESTED.get(name, name) / "build" / "libs" / jar.name)
        if name not in ("kafka_2.13", "clients", "tools"):
            _put(jar, home / "core" / COPIES / jar.name)
            _put(jar, home / "tools" / COPIES / jar.name)
    return home


def _put(jar: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(jar)


def _add(jar: Path) -> None:
    """Add a file that is no jar, so that its choice would show."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    jar.write_text("not for the class path")


def test_it_is_the_build_that_it_is_made_of(tree: Path, build: Distribution) -> None:
    found = from_home(tree)
    assert (found.version, found.source, found.origin) == (VERSION, "home", str(tree))
    assert (found.sha256, found.commit) == (build.sha256, build.commit)
    assert all(tree in jar.parents for jar in found.class_path)


def test_gradle_properties_are_latin_1(tree: Path, build: Distribution) -> None:
    """They are read in the encoding that Java uses for properties."""
    file = tree / "gradle.properties"
    file.write_bytes("# Größe\n".encode("latin-1") + file.read_bytes())
    assert from_home(tree).version == build.version


def test_what_is_not_for_running_is_left_out(tree: Path) -> None:
    before = from_home(tree)
    for end in ("test", "test-sources", "sources", "javadoc", "scaladoc"):
        for jar in (CORE, CLIENTS, STORAGE):
            _add(tree / jar.replace(".jar", f"-{end}.jar"))
    _add(tree / f"streams/build/libs/kafka-streams-{VERSION}.jar")
    _add(tree / f"connect/file/build/libs/connect-file-{VERSION}.jar")
    _add(tree / f"streams/{COPIES}/rocksdbjni-9.0.0.jar")
    _add(tree / "core/build/dependant-testlibs/junit-5.jar")
    assert from_home(tree) == before


def test_what_was_built_since_wins_over_the_copy_of_it(tree: Path, build: Distribution) -> None:
    """After ``./gradlew :storage:jar``, the project's jar is newer than the copy among the dependencies."""
    (tree / STORAGE).unlink()
    shutil.copyfile(tree / CORE, tree / STORAGE)
    found = from_home(tree)
    assert tree / STORAGE in found.class_path
    assert found.sha256 != build.sha256


def test_of_several_versions_that_of_gradle_properties_is_taken(tree: Path) -> None:
    before = from_home(tree)
    for jar in (CORE, CLIENTS, STORAGE, f"core/{COPIES}/kafka-storage-{VERSION}.jar"):
        _add(tree / jar.replace(str(VERSION), "99.0.0-SNAPSHOT"))
    assert from_home(tree) == before


def test_a_version_that_was_given_to_gradle_is_found(tree: Path, build: Distribution) -> None:
    """It is the newest version among the jars, if ``gradle.properties`` has none of theirs."""
    properties = tree / "gradle.properties"
    properties.write_text(properties.read_text().replace(str(VERSION), "99.0.0-SNAPSHOT"))
    old = tree / CORE.replace(str(VERSION), "98.0.0-SNAPSHOT")
    _add(old)
    os.utime(old, (time.time() - 1e9,) * 2)
    _add(tree / CORE.replace(".jar", "-test.jar"))
    assert from_home(tree).sha256 == build.sha256


def test_scalas_version_may_be_named_as_for_kafkas_own_scripts(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALA_VERSION", "2.12.1")
    with pytest.raises(DistributionError, match=r"no core/build/libs/kafka_2\.12-\*; run \./gradlew jar there"):
        from_home(tree)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda tree: shutil.rmtree(tree / "core/build"), r"isn't built: there is no core/build/libs/kafka_2\.13-\*"),
        (lambda tree: (tree / CLIENTS).unlink(), rf"there is no clients/build/libs/kafka-clients-{VERSION}\.jar"),
        (lambda tree: shutil.rmtree(tree / "tools/build"), "there is no tools/build/libs/kafka-tools"),
        (lambda tree: shutil.rmtree(tree / "core" / COPIES), rf"there is no core/build/dependant-libs-{SCALA}"),
        (lambda tree: [jar.unlink() for jar in tree.rglob("log4j-slf4j*")], "would log nothing"),
        (lambda tree: (tree / "gradlew").unlink(), "has no libs folder and is not a source tree"),
    ],
)
def test_a_tree_that_is_not_built_says_what_to_run(tree: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(tree)
    with pytest.raises(DistributionError, match=says) as caught:
        from_home(tree)
    assert "./gradlew jar" in str(caught.value) or not (tree / "gradlew").exists()


@pytest.mark.cluster
def test_brokers_run_on_it_and_log(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    case = "kip-112/follower-at-runtime[kraft-chmod_000]"
    options = [f"--kafka-home={tree}", f"--runs-dir={tmp_path / 'runs'}", f"--json={out}"]
    done = subprocess.run([JBOD, "run", case, *options], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [result] = json.loads(out.read_text())["scenarios"]
    run_dir = Path(result["run_dir"])
    kafka = json.loads((run_dir / "run.json").read_text())["kafka"]
    assert (kafka["version"], kafka["source"], kafka["origin"]) == (str(VERSION), "home", str(tree))
    assert all("Kafka version" in log.read_text() for log in run_dir.glob("brokers/*/broker.log"))
