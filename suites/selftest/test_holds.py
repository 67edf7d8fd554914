"""Holds: a thread of a JVM waits at a named point until it is released, its limit is over, or its folder is gone.

They are tried on a class of our own, compiled and run here; no Kafka is needed. The points of each build are made, too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from harness.host.cache import cache_dir
from harness.host.java import java_command
from harness.kafka.bytecode.change import Change
from harness.kafka.bytecode.engine import Order, make_jars
from harness.kafka.distribution import from_maven
from harness.kafka.points import missing_points, points_of, read_points, with_points
from harness.kafka.versions import CONFIRMED_BUILDS, DEFAULT_BUILDS, KafkaVersion, Mode
from harness.waiting import await_until
from suites.selftest.java_samples import make_jar

SAMPLE = """
import java.io.BufferedReader;
import java.io.InputStreamReader;

public class Sample {
    static String step(String about) { return "did " + about; }
    public static void main(String[] arguments) throws Exception {
        System.out.println("up");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String about = line;
            new Thread(() -> System.out.println(step(about)), "worker-" + about).start();
        }
    }
}
"""
POINT = {"class": "Sample", "method": "step", "before": '{ jbod.Holds.at("before-step", $1); }'}


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the sample with its point."""
    folder = tmp_path_factory.mktemp("sample")
    sample = make_jar(folder, SAMPLE, "Sample")
    order = Order(id="points", changes=(msgspec.convert(POINT, Change),), jar=folder / "points.jar", kind="points")
    assert make_jars([sample], [order], print) == {order.jar: ""}
    return f"{order.jar}:{sample}"


@contextmanager
def running(class_path: str, holds: Path) -> Iterator[subprocess.Popen[str]]:
    """The sample runs, and takes its orders from this folder."""
    argv = [*java_command(), f"-Djbod.holds={holds}", "-cp", class_path, "Sample"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert heard(process) == "up"
            do(process, "first")  # loads the class that watches the folder
            assert heard(process) == "did first"
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    """The next line that the sample prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def do(process: subprocess.Popen[str], about: str) -> None:
    """Let a thread of the sample do a step."""
    assert process.stdin is not None
    process.stdin.write(f"{about}\n")
    process.stdin.flush()


def hold(folder: Path, name: str = "h", **fields: object) -> None:
    """Write a hold, and wait until the sample knows it."""
    content = {"point": "before-step", "limit_ms": 60_000, **fields}
    made = folder / f"{name}.new"
    made.write_text("".join(f"{key}={value}\n" for key, value in content.items()))
    made.rename(folder / f"{name}.hold")
    answer(folder, f"{name}.armed")


def answer(folder: Path, name: str) -> str:
    """What the sample answers, as soon as it does."""
    await_until((folder / name).exists, timeout_s=30.0, what=f"the answer {name}", poll_s=0.01, for_kafka=False)
    return (folder / name).read_text()


def test_a_thread_is_held_until_it_is_released(class_path: str, tmp_path: Path) -> None:
    with running(class_path, tmp_path) as process:
        do(process, "early")
        assert heard(process) == "did early"
        hold(tmp_path, about="t-0")
        do(process, "t-1")
        assert heard(process) == "did t-1"  # the hold is not for it
        do(process, "t-0")
        there = answer(tmp_path, "h.1.there").splitlines()
        assert there[0].endswith(" worker-t-0")
        assert there[1] == "t-0"
        assert there[2].startswith("Sample.step(")
        do(process, "t-0 again")
        assert heard(process) == "did t-0 again"  # one thread is held, and no more
        (tmp_path / "h.hold").unlink()
        assert heard(process) == "did t-0"
        assert answer(tmp_path, "h.1.over").startswith("released ")


def test_a_limit_ends_a_hold_and_some_may_pass_first(class_path: str, tmp_path: Path) -> None:
    with running(class_path, tmp_path) as process:
        hold(tmp_path, skip=1, threads=2, limit_ms=100)
        for about in ("a", "b", "c", "d"):
            do(process, about)
        assert sorted(heard(process) for _ in range(4)) == ["did a", "did b", "did c", "did d"]
        for number in (1, 2):
            why, held_ms = answer(tmp_path, f"h.{number}.over").split()
            assert why == "limit"
            assert int(held_ms) >= 100
        assert not (tmp_path / "h.3.there").exists()


def test_words_thread_and_caller_choose_who_is_held(class_path: str, tmp_path: Path) -> None:
    with running(class_path, tmp_path) as process:
        hold(tmp_path, "other-thread", thread="nobody")
        hold(tmp_path, "other-caller", caller="nowhere")
        do(process, "a")
        assert heard(process) == "did a"
        hold(tmp_path, "this", about="t-0 d2", thread="worker-", caller="Sample.step")
        do(process, "t-0")
        assert heard(process) == "did t-0"
        do(process, "d2 t-0")
        assert answer(tmp_path, "this.1.there").splitlines()[0].endswith(" worker-d2 t-0")


def test_a_folder_that_goes_releases_all(class_path: str, tmp_path: Path) -> None:
    holds = tmp_path / "holds"
    with running(class_path, holds) as process:
        holds.mkdir()  # it may come after the process
        hold(holds)
        do(process, "a")
        answer(holds, "h.1.there")
        for file in holds.iterdir():
            file.unlink()
        holds.rmdir()
        assert heard(process) == "did a"


DEFAULT = [(DEFAULT_BUILDS[Mode.KRAFT], Mode.KRAFT), (DEFAULT_BUILDS[Mode.ZK], Mode.ZK)]
OLDER = [(version, mode) for mode in Mode for version in CONFIRMED_BUILDS[mode] if (version, mode) not in DEFAULT]
OLDEST = (KafkaVersion.parse("2.8.2"), Mode.ZK)


@pytest.mark.parametrize(
    ("version", "mode"),
    [*DEFAULT, *(pytest.param(*each, marks=pytest.mark.weekly) for each in (*OLDER, OLDEST))],
    ids=str,
)
def test_each_point_is_in_the_build(version: KafkaVersion, mode: Mode) -> None:
    build = with_points(from_maven(version, cache_dir()), mode)
    assert missing_points(build) == {}
    assert build.class_path[0].is_file()
    assert len(points_of(build.version, mode)) > 25


def test_a_point_has_a_change_and_is_held_in_it() -> None:
    for point in read_points().values():
        for change in point.changes:
            assert "HOLD(" in (change.before or change.after or change.with_ or ""), point.id


def test_a_point_that_the_build_lacks_is_named_and_left_out(tmp_path: Path) -> None:
    """As on a release whose classes have changed: all other points can be used."""
    (tmp_path / "nowhere.toml").write_text(
        'meaning = "A thread is nowhere"\nsubject = "nothing"\n'
        '[[change]]\nclass = "kafka.cluster.Partition"\nmethod = "noSuchMethod"\nbefore = "{ HOLD(null); }"\n'
    )
    points = {**read_points(), **read_points(tmp_path)}
    build = with_points(from_maven(DEFAULT_BUILDS[Mode.KRAFT], cache_dir()), Mode.KRAFT, points=points)
    assert missing_points(build) == {"nowhere": "kafka.cluster.Partition has no method noSuchMethod"}
    assert build.class_path[0].is_file()


def test_without_the_point_that_loads_the_holds_there_is_none(tmp_path: Path) -> None:
    """A node would answer no hold until it comes to a point."""
    (tmp_path / "process-begins.toml").write_text(
        'meaning = "The process begins"\nsubject = "nothing"\n'
        '[[change]]\nclass = "kafka.Kafka"\nmethod = "noSuchMethod"\nbefore = "{ HOLD(null); }"\n'
    )
    points = {"isr-change-sent": read_points()["isr-change-sent"], **read_points(tmp_path)}
    build = with_points(from_maven(DEFAULT_BUILDS[Mode.KRAFT], cache_dir()), Mode.KRAFT, points=points)
    why = "kafka.Kafka has no method noSuchMethod"
    assert missing_points(build) == {"process-begins": why, "isr-change-sent": f"needs process-begins: {why}"}
