"""Kafka builds from Maven, folders and tarballs: which are accepted or refused, and how a damaged cache is mended."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest

from harness.errors import DistributionError, HarnessError, UsageError
from harness.host.broker_user import broker_user
from harness.host.cache import cache_dir, cache_path, publish
from harness.host.java import java_command
from harness.kafka.distribution import Distribution, from_home, from_maven, from_tarball, is_sound, spark_kafka_jars
from harness.kafka.versions import DEFAULT_BUILDS, KafkaVersion, Mode

ZK_BUILD = DEFAULT_BUILDS[Mode.ZK]


@pytest.fixture(scope="module")
def build() -> Distribution:
    return from_maven(ZK_BUILD, cache_dir())


@pytest.fixture
def cache(open_folder: Path) -> Path:
    return open_folder / "cache"


@pytest.fixture
def home(open_folder: Path, build: Distribution) -> Path:
    """A small Kafka folder, with the two jars that make it one."""
    home = open_folder / "my kafka"
    (home / "libs").mkdir(parents=True)
    for jar in build.class_path:
        if jar.name.startswith(("kafka_2.13-", "kafka-clients-")):
            shutil.copyfile(jar, home / "libs" / jar.name)
    return home


# --- from Maven -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", Mode)
def test_the_default_builds_run_as_the_brokers_user(mode: Mode) -> None:
    build = from_maven(DEFAULT_BUILDS[mode], cache_dir())
    assert mode in build.version.modes()
    argv = [*broker_user().command(), *java_command(), "-XX:TieredStopAtLevel=1", "-cp"]
    argv += [":".join(map(str, build.class_path)), build.main_class("topics"), "--version"]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.split()[:1] == [str(build.version)]
    # Without a logging library on the class path it would print "SLF4J: Failed to load class …".
    assert "SLF4J" not in done.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda jar: jar.unlink(),
        lambda jar: jar.write_bytes(jar.read_bytes()[:-1]),
        lambda jar: jar.rename(jar.with_name("renamed.jar")),
        lambda jar: jar.with_name("more.jar").write_bytes(b""),
        lambda jar: jar.with_name("build.json").unlink(),
        lambda jar: jar.with_name("build.json").write_text('{"sha256"'),
    ],
)
def test_any_damage_is_noticed(build: Distribution, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    libs = tmp_path / "libs"
    shutil.copytree(build.class_path[0].parent, libs)
    assert is_sound(libs)
    damage(libs / build.class_path[3].name)
    assert not is_sound(libs)


def test_two_processes_that_find_a_damaged_build_at_once_fetch_it_once(build: Distribution, open_folder: Path) -> None:
    cache = open_folder / "cache"
    libs = cache / "kafka" / f"maven-{ZK_BUILD}"
    shutil.copytree(build.class_path[0].parent, libs)
    jar = libs / build.class_path[-1].name
    content = bytearray(jar.read_bytes())
    content[len(content) // 2] ^= 1
    jar.write_bytes(content)
    code = (
        "import sys; from pathlib import Path; from harness.kafka.distribution import from_maven; "
        "from harness.kafka.versions import KafkaVersion; "
        "print(from_maven(KafkaVersion.parse(sys.argv[1]), Path(sys.argv[2]), say=print).sha256)"
    )
    argv = [sys.executable, "-c", code, str(ZK_BUILD), str(cache)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].splitlines() for process in both]
    assert [lines[-1] for lines in said] == [build.sha256] * 2
    assert any("damaged" in line for lines in said for line in lines)
    assert sum("fetching it with mvn" in line for lines in said for line in lines) == 1
    assert from_maven(ZK_BUILD, cache, say=pytest.fail).sha256 == build.sha256
    assert [path.name for path in libs.parent.iterdir() if not path.name.endswith(".lock")] == [libs.name]


def test_a_version_that_was_never_released_is_a_usage_error(cache: Path) -> None:
    with pytest.raises(UsageError, match=r"Kafka 9\.9\.9 is not on Maven Central or your mirrors; "):
        from_maven(KafkaVersion.parse("9.9.9"), cache)
    assert [path.name for path in (cache / "kafka").iterdir()] == [".maven-9.9.9.lock"]


def test_sparks_connector_is_four_jars() -> None:
    names = sorted(jar.name.rsplit("-", 1)[0] for jar in spark_kafka_jars(cache_dir()))
    connector = ["spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"]
    assert names == ["commons-pool2", "kafka-clients", *connector]


# --- the cache ------------------------------------------------------------------------------------------------------


def test_a_maker_that_was_killed_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    target = tmp_path / "entry"
    code = (
        "import sys, time; from pathlib import Path; from harness.host.cache import publish\n"
        "def make(folder):\n"
        "    (folder / 'half').write_text('x'); print('half', flush=True); sys.stdin.read()\n"
        "publish(Path(sys.argv[1]), make)"
    )
    argv = [sys.executable, "-c", code, str(target)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        process.kill()
    assert not target.exists()
    publish(target, lambda folder: folder.joinpath("whole").touch())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".entry.lock", "entry"]
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_what_is_cached_can_be_read_by_all_whatever_the_umask(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").touch()
        (folder / "link").symlink_to("/etc/shadow")

    before = os.umask(0o077)
    try:
        publish(tmp_path / "new" / "entry", make)
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*[a-z]")}
    del modes["new/entry/link"]
    assert modes == {
        "new": 0o755,
        "new/.entry.lock": 0o644,
        "new/entry": 0o755,
        "new/entry/sub": 0o755,
        "new/entry/sub/file": 0o644,
    }


def test_a_maker_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = publish(tmp_path / "entry", lambda folder: folder.joinpath("old").touch())
    with pytest.raises(HarnessError, match="broke"):
        publish(target, lambda _: (_ for _ in ()).throw(HarnessError("broke")), lambda _: False)
    assert [path.name for path in target.iterdir()] == ["old"]


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JBOD_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    assert cache_path().is_dir()
    monkeypatch.delenv("JBOD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_path() == (Path("/var/cache/jbod") if os.geteuid() == 0 else tmp_path / "jbod")


def test_a_cache_below_a_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JBOD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(HarnessError, match="JBOD_CACHE_DIR"):
        cache_dir()


# --- a folder -------------------------------------------------------------------------------------------------------


def test_a_folder_is_used_where_it_lies(home: Path) -> None:
    build = from_home(home)
    assert (build.version, build.source, build.origin) == (ZK_BUILD, "home", str(home))
    assert [jar.parent for jar in build.class_path] == [home / "libs"] * 2
    by_hand = "LC_ALL=C sha256sum *.jar | sha256sum"
    assert build.sha256 == subprocess.check_output(by_hand, shell=True, cwd=home / "libs", text=True).split()[0]


def test_jars_that_kafkas_own_script_leaves_out_are_left_out(home: Path) -> None:
    before = from_home(home)
    for name in ("kafka_2.13-3.9.2-test.jar", "kafka-clients-3.9.2-javadoc.jar", "._kafka-clients-3.9.2.jar"):
        (home / "libs" / name).write_text("not for the class path")
    assert from_home(home) == before


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        from_home(tmp_path / "nowhere")


def _empty(home: Path) -> None:
    shutil.rmtree(home / "libs")


def _like_a_file(home: Path) -> None:
    shutil.rmtree(home)
    home.touch()


def _two_in_one(home: Path) -> None:
    shutil.copy(next(home.glob("libs/kafka_*")), home / "libs" / "kafka_2.12-1.0.0.jar")


def _cut(jar: Path) -> None:
    jar.write_bytes(jar.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_empty, "no libs folder"),
        (_like_a_file, "is a file"),
        (_two_in_one, "is not a Kafka build"),
        (lambda home: next(home.glob("libs/kafka_*")).unlink(), "is not a Kafka build"),
        (lambda home: _cut(next(home.glob("libs/kafka_*"))), r"broken jars in .*kafka_2\.13"),
        (lambda home: _cut(next(home.glob("libs/kafka-clients*"))), "broken jars"),
    ],
)
def test_a_folder_that_is_no_kafka_is_refused(home: Path, spoil: Callable[[Path], object], says: str) -> None:
    spoil(home)
    with pytest.raises(DistributionError, match=says):
        from_home(home)


def test_a_folder_with_a_colon_is_refused(home: Path) -> None:
    with pytest.raises(DistributionError, match="colon"):
        from_home(home.rename(home.with_name("a:b")))


def test_a_folder_that_brokers_cannot_read_is_refused(home: Path) -> None:
    home.chmod(0o700 if broker_user().drop else 0)
    try:
        with pytest.raises(DistributionError, match=r"can't (read|be read)"):
            from_home(home)
    finally:
        home.chmod(0o755)


# --- a tarball ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "top"), [("w:gz", "kafka_2.13-9"), ("w", "any name")])
def test_a_tarball_is_unpacked_once(home: Path, tmp_path: Path, cache: Path, mode: str, top: str) -> None:
    file = tmp_path / "candidate.tgz"
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]
        archive.add(home, top)
    said: list[str] = []
    build = from_tarball(file, cache, say=said.append)
    assert said == ["unpacking candidate.tgz"]
    assert (build.version, build.source, build.origin) == (ZK_BUILD, "tarball", str(file))
    assert build.sha256 == from_home(home).sha256
    assert from_tarball(file, cache, say=pytest.fail) == build
    build.class_path[0].write_bytes(b"damaged")
    assert from_tarball(file, cache, say=said.append) == build
    assert len(said) == 2


def _member(name: str, **fields: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(member, key, value)
    return member


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE
EVIL = {
    "absolute": [_member("{outside}/jbod-evil")],
    "climbs": [_member("kafka/../../evil")],
    "climbs at once": [_member("../evil")],
    "link to an absolute path": [_member("kafka/evil", type=LINK, linkname="/etc/passwd")],
    "link that climbs": [_member("kafka/evil", type=LINK, linkname="../../../evil")],
    "through a link": [_member("kafka/evil", type=LINK, linkname=".."), _member("kafka/evil/evil2")],
    "over a link": [_member("kafka/evil", type=LINK, linkname="other"), _member("kafka/evil")],
    "link through a link": [
        _member("evil", type=LINK, linkname="kafka"),
        _member("kafka/x/evil2", type=LINK, linkname="../../evil/.."),
    ],
    "hard link that climbs": [_member("kafka/evil", type=HARD, linkname="../evil")],
    "hard link to an absolute path": [_member("kafka/evil", type=HARD, linkname="/etc/passwd")],
    "hard link to nothing": [_member("kafka/evil", type=HARD, linkname="kafka/nothing")],
    "twice": [_member("kafka/evil"), _member("kafka/evil")],
    "below a file": [_member("kafka/evil"), _member("kafka/evil/evil2")],
    "over a folder": [_member("kafka/libs/../libs/evil")],
    "device": [_member("kafka/evil", type=tarfile.CHRTYPE, devmajor=1, devminor=5)],
    "block device": [_member("kafka/evil", type=tarfile.BLKTYPE, devmajor=7)],
    "pipe": [_member("kafka/evil", type=tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("case", EVIL)
def test_an_evil_tarball_is_refused_whole(
    home: Path, open_folder: Path, cache: Path, tmp_path: Path, case: str
) -> None:
    file = open_folder / "evil.tar"
    with tarfile.open(file, "w") as archive:
        archive.add(home, "kafka")
        for member in map(copy, EVIL[case]):
            member.name = member.name.format(outside=tmp_path)
            archive.addfile(member, io.BytesIO())
    before = set(open_folder.rglob("*"))
    with pytest.raises(DistributionError, match=r"not unpacked: its member '.*evil.*' "):
        from_tarball(file, cache)
    made = set(open_folder.rglob("*")) - before
    assert {path.name for path in made if not path.is_dir()} == {next(cache.rglob("*.lock")).name}
    assert not (tmp_path / "jbod-evil").exists()


def test_a_tarball_with_a_link_of_its_own_is_taken(home: Path, tmp_path: Path, cache: Path) -> None:
    with tarfile.open(tmp_path / "linked.tar", "w") as archive:
        archive.add(home, "kafka")
        archive.addfile(_member("kafka/libs/link.jar", type=LINK, linkname=next(home.glob("libs/kafka_*")).name))
    assert len(from_tarball(tmp_path / "linked.tar", cache).class_path) == 3


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.97])
def test_a_tarball_that_is_cut_off_is_refused(tmp_path: Path, cache: Path, mode: str, keep: float) -> None:
    content = os.urandom(100_000)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode=mode) as archive:  # type: ignore[call-overload]
        archive.addfile(_member("kafka/libs/some.jar", size=len(content)), io.BytesIO(content))
    file = tmp_path / "cut.tgz"
    file.write_bytes(whole.getvalue()[: int(keep * len(content))])
    with pytest.raises(DistributionError, match="cut off"):
        from_tarball(file, cache)


def test_a_tar_that_ends_between_two_members_is_cut_off(home: Path, tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "cut.tar"
    with tarfile.open(file, "w") as archive:
        archive.add(home, "kafka")
        end = archive.offset
        archive.addfile(_member("kafka/LICENSE"))
    file.write_bytes(file.read_bytes()[:end])
    with pytest.raises(DistributionError, match="end mark"):
        from_tarball(file, cache)


def test_a_flipped_bit_in_the_compressed_end_is_noticed(home: Path, tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "flipped.tgz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(home, "kafka")
    content = bytearray(file.read_bytes())
    content[-6] ^= 1  # in gzip's CRC-32
    file.write_bytes(content)
    with pytest.raises(DistributionError, match="broken or cut off"):
        from_tarball(file, cache)


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip", b"plain text\n" * 100, b""])
def test_what_is_no_tarball_is_refused(tmp_path: Path, cache: Path, content: bytes) -> None:
    (tmp_path / "x.tgz").write_bytes(content)
    with pytest.raises(DistributionError, match="not a tarball") as refused:
        from_tarball(tmp_path / "x.tgz", cache)
    assert "\n" not in str(refused.value)


def test_a_tarball_with_two_kafkas_is_refused(tmp_path: Path, cache: Path) -> None:
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        for top in ("kafka_2.13-4.3.1", "kafka_2.13-4.4.0"):
            archive.addfile(_member(f"{top}/libs/some.jar"))
    with pytest.raises(DistributionError, match=r"several Kafka builds: kafka_2\.13-4\.3\.1 and kafka_2\.13-4\.4\.0"):
        from_tarball(tmp_path / "x.tgz", cache)


@pytest.mark.parametrize("option", ["--kafka-home", "--kafka-tarball"])
def test_the_home_of_a_user_that_there_is_not_is_a_usage_error(option: str, cache: Path) -> None:
    path = Path("~no-such-user/kafka")
    with pytest.raises(UsageError, match=f"{option} ~no-such-user/kafka: Could not determine home directory"):
        from_home(path) if option == "--kafka-home" else from_tarball(path, cache)


def test_a_tarball_without_kafka_is_refused_and_not_kept(tmp_path: Path, cache: Path) -> None:
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        archive.addfile(_member("something/README"))
    with pytest.raises(DistributionError, match="contains no Kafka build"):
        from_tarball(tmp_path / "x.tgz", cache)
    assert all(path.name.endswith(".lock") for path in (cache / "kafka").iterdir())


def test_a_tarball_that_is_not_there_is_a_usage_error_and_a_folder_is_not(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        from_tarball(tmp_path / "nowhere.tgz", cache)
    with pytest.raises(DistributionError, match="--kafka-home"):
        from_tarball(tmp_path, cache)
