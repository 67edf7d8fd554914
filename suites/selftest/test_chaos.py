"""Faults of the harness's own surroundings come out as the table in harness/README.md says.

Other rows of the table: ``test_real_runs.py`` has signals in the middle of a run, ``test_undo.py`` the clean-up after a
killed run, and ``test_containers.py`` an engine that goes away.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness import timeouts
from harness.cluster.cluster import boot
from harness.cluster.spec import ClusterSpec
from harness.crowding import Crowding, Deadline
from harness.errors import EXIT_HARNESS, EXIT_INCONCLUSIVE, EXIT_VALID, PromiseBroken
from harness.host.abilities import ability
from harness.host.java import java_command
from harness.journal import Journal
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.versions import Mode
from harness.waiting import await_until
from suites.selftest.journal_lines import lines_of
from suites.selftest.processes import JBOD, SMALL_NODES, InTerminal, Running, marked, small_case

pytestmark = pytest.mark.cluster

CASES = ("kip-112/follower-at-runtime[zk-chmod_000]", "kip-112/follower-at-runtime[zk-chmod_a-w]")


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path, open_folder: Path) -> Iterator[Start]:
    """Starts runs; after the test, all that still run are ended and cleaned up."""
    runs: list[Running] = []

    def begin(
        *cases: str, kind: type[Running] = Running, env: Mapping[str, str] | None = None, **options: Any
    ) -> Running:
        run = kind(tmp_path / f"run-{len(runs)}", open_folder, *cases, **options)
        run.environment |= env or {}
        runs.append(run)
        run.start()
        return run

    yield begin
    for run in runs:
        run.kill()
        subprocess.run([JBOD, "clean"], env=run.environment, capture_output=True, check=False)


@pytest.fixture
def small(open_folder: Path) -> Iterator[str]:
    """The selector of a small case."""
    with tempfile.TemporaryDirectory(prefix="jbod-test-small-") as folder:
        yield small_case(Path(folder))


@pytest.mark.parametrize("words", ['"node.started"', '"phase": "drain"', '"phase": "teardown"'])
def test_killed_at_any_moment(start: Start, small: str, words: str) -> None:
    """SIGKILL while brokers start, logs are drained or the cluster stops: ``jbod clean`` removes what is left."""
    run = start(CASES[0] if "drain" in words else small)
    run.await_event(words)
    run.kill()
    clean = subprocess.run([JBOD, "clean"], env=run.environment, capture_output=True, text=True, check=False)
    assert clean.returncode == 0, clean.stderr
    run.assert_nothing_left()


def test_killed_while_a_thread_is_held(start: Start) -> None:
    """SIGKILL amid a hold: the kernel ends the nodes, and ``jbod clean`` removes the orders for them."""
    run = start("races/flushed-after-move[zk]")
    run.await_event('"fault.injected"')
    run.kill()
    clean = subprocess.run([JBOD, "clean"], env=run.environment, capture_output=True, text=True, check=False)
    assert clean.returncode == 0, clean.stderr
    run.assert_nothing_left()


def test_the_terminal_is_closed(start: Start) -> None:
    """The kernel sends SIGHUP, and output fails: the run cleans up; its exit code does not say that Kafka failed."""
    run = start(CASES[0], kind=InTerminal)
    assert isinstance(run, InTerminal)
    run.await_event('"fault.injected"')
    family = [run.pid, *(each.pid for each in psutil.Process(run.pid).children(recursive=True))]
    run.close()
    assert run.await_end() in (EXIT_INCONCLUSIVE, EXIT_HARNESS)
    await_until(
        lambda: [pid for pid in family if psutil.pid_exists(pid)],
        lambda left: not left,
        timeout_s=30,
        what="all processes to end",
    )
    run.assert_nothing_left()


@pytest.mark.parametrize(("moment", "last"), [("inject", "fault.injected"), ("heal", "fault.healing")])
def test_it_stands_still_until_somebody_presses_enter(start: Start, small: str, moment: str, last: str) -> None:
    """``--pause-at`` waits for Enter while the fault is in force and the cluster is up; a verdict follows.

    It waits at each fault; this case has one.
    """
    run = start(small, f"--pause-at={moment}", kind=InTerminal)
    assert isinstance(run, InTerminal)
    run.await_said("press Enter to go on")
    [journal] = run.runs_dir.glob("*/events.jsonl")

    def events(kind: str) -> list[dict[str, Any]]:
        return [event for event in map(json.loads, journal.read_text().splitlines()) if event["kind"] == kind]

    [fault] = events(last)
    assert f"{last}: {fault['fault']} on {fault['target']}" in run.said.read_text()
    assert len(run.nodes()) == SMALL_NODES
    assert events("fault.undone") == []
    run.press_enter()
    assert run.await_end() == EXIT_VALID, run.said.read_text()
    assert len(events("fault.undone")) == 1
    run.assert_nothing_left()


def test_the_terminal_is_closed_while_it_stands_still(start: Start, small: str) -> None:
    """A paused run whose terminal is closed ends, and cleans up."""
    run = start(small, "--pause-at=inject", kind=InTerminal)
    assert isinstance(run, InTerminal)
    run.await_said("press Enter to go on")
    assert len(run.nodes()) == SMALL_NODES
    run.close()
    assert run.await_end() in (EXIT_INCONCLUSIVE, EXIT_HARNESS)
    run.assert_nothing_left()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    if not ability("tmpfs mounts").present:
        pytest.skip("tmpfs mounts: only root mounts a file system")
    at = tmp_path / "small"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "jbod-test", at], check=True)
    yield at
    subprocess.run(["umount", "-l", at], check=True)


def test_the_disk_of_the_runs_folder_fills_up(start: Start, small_disk: Path) -> None:
    """The case is an error that says what to do, whatever else was seen."""
    run = start(CASES[0], runs_dir=small_disk)
    run.await_event('"fault.injected"')
    with contextlib.suppress(OSError), (small_disk / "somebody-elses").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    assert run.await_end() == EXIT_HARNESS, run.said.read_text()
    [result] = run.results()
    assert result["verdict"] == "error"
    assert "No space left on device" in result["reason"]
    assert "--runs-dir" in result["reason"]
    run.assert_nothing_left()
    # While the disk is full, the next run does not begin.
    run.start()
    assert run.await_end() == EXIT_HARNESS
    refusal = r"cannot write to the runs folder \S+: No space left on device; see --runs-dir"
    assert re.search(refusal, run.said.read_text())


@pytest.mark.parametrize("words", ['"fault.injected"', pytest.param('"drain.began"', marks=pytest.mark.weekly)])
def test_sparks_jvm_is_killed(start: Start, words: str) -> None:
    """The kernel kills it when memory is short: the case is an error that names Spark; the next case gets a new JVM."""
    run = start(*CASES)
    run.await_event(words)
    [spark] = [each for each in psutil.Process(run.pid).children() if "SparkSubmit" in " ".join(each.cmdline())]
    spark.send_signal(signal.SIGKILL)
    assert run.await_end() == EXIT_HARNESS, run.said.read_text()
    first, second = run.results()
    assert (first["verdict"], second["verdict"]) == ("error", "valid"), run.said.read_text()
    assert "Spark's JVM has ended" in first["reason"]
    run.assert_nothing_left()


CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *ahead_s = MAP_FAILED;

__attribute__((constructor)) static void open_clock(void) {
    int file = open(getenv("JBOD_TEST_CLOCK"), O_RDONLY);
    if (file >= 0) ahead_s = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && clock == CLOCK_REALTIME && ahead_s != MAP_FAILED) at->tv_sec += *ahead_s;
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    at->tv_sec = precise.tv_sec;
    at->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (at) *at = precise.tv_sec;
    return precise.tv_sec;
}
"""
"""A library that changes the time for a run and its processes, as if the machine's clock had been set."""


@pytest.fixture
def clock() -> Iterator[tuple[Path, dict[str, str]]]:
    """A file with the seconds by which the clock is ahead, and the environment of a run whose clock is.

    Brokers get no environment from the run, so the JVMs get it from a wrapper of ``java``.
    """
    compiler, java = shutil.which("cc"), Path(java_command()[0]).resolve()
    if compiler is None:
        pytest.skip("cc: not on the PATH: apt-get install gcc libc6-dev")
    with tempfile.TemporaryDirectory(prefix="jbod-test-clock-") as at:
        folder = Path(at)
        (folder / "bin").mkdir()
        ahead, library, wrapper = folder / "ahead", folder / "clock.so", folder / "bin" / "java"
        ahead.write_bytes(struct.pack("l", 0))
        subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=CLOCK.encode(), check=True)
        environment = {"LD_PRELOAD": str(library), "JBOD_TEST_CLOCK": str(ahead)}
        exported = "".join(f"export {name}={value}\n" for name, value in environment.items())
        wrapper.write_text(f'#!/bin/sh\n{exported}exec {java} "$@"\n')
        for each in (folder, folder / "bin", wrapper):
            each.chmod(0o755)
        yield ahead, environment | {"JAVA_HOME": str(folder)}


@pytest.mark.weekly
def test_the_clock_is_set(start: Start, clock: tuple[Path, dict[str, str]]) -> None:
    """The order of events is uncertain then, so the case is unknown, and the reason says so."""
    ahead, environment = clock
    run = start(CASES[0], env=environment)
    run.await_event('"fault.injected"')
    with ahead.open("r+b") as file:
        file.write(struct.pack("l", -3))
    assert run.await_end() == EXIT_INCONCLUSIVE, run.said.read_text()
    [result] = run.results()
    assert result["verdict"] == "unknown"
    assert re.search(r"clock was set by -(2\.9|3\.0)\d s", result["reason"])
    run.assert_nothing_left()


@pytest.mark.parametrize("clients", [False, pytest.param(True, marks=pytest.mark.weekly)])
def test_two_runs_at_once_do_not_meet(start: Start, tmp_path: Path, small: str, clients: bool) -> None:
    """Two runs of the same case, in the same folders, each end as if they were alone."""
    runs = [start(CASES[0] if clients else small, runs_dir=tmp_path / "runs") for _ in range(2)]
    for run in runs:
        assert run.await_end() == EXIT_VALID, run.said.read_text()
    assert len({run.results()[0]["run_dir"] for run in runs}) == 2
    runs[0].assert_nothing_left()


def test_a_broker_hangs_while_it_starts(tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that waits for a missing controller: the reason names the promise and the broker."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    monkeypatch.setattr(timeouts, "BOOT_S", 15.0)
    monkeypatch.setattr(Deadline, "crowding", Crowding())  # on a crowded machine a silent broker shows nothing
    with pytest.raises(PromiseBroken, match=r"^Kafka must .*1 brokers and a controller.*broker-1 logged last: "):
        boot(
            ClusterSpec(mode=Mode.KRAFT, brokers=1, overrides={"controller.quorum.voters": "100@127.0.0.1:1"}),
            Builds.choose(BuildOptions()).of(Mode.KRAFT),
            run_id="selftest-hangs",
            record_dir=tmp_path,
            journal=Journal(None),
        )
    assert marked("selftest-hangs") == []
    assert list(open_folder.iterdir()) == []


def test_a_broker_hangs_while_it_stops(tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed after its time-out, and the journal says so."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    monkeypatch.setattr(timeouts, "STOP_S", 2.0)
    journal = Journal(None)
    cluster = boot(
        ClusterSpec(mode=Mode.KRAFT, brokers=1),
        Builds.choose(BuildOptions()).of(Mode.KRAFT),
        run_id="selftest-hangs",
        record_dir=tmp_path,
        journal=journal,
    )
    try:
        assert len(marked("selftest-hangs")) == 2
        cluster.brokers[0].pause()
        cluster.brokers[0].stop()
        assert [event["after_s"] for event in lines_of(journal, "node.stop_timed_out")] == [2.0]
        assert not cluster.brokers[0].is_alive
    finally:
        cluster.stop()
    assert marked("selftest-hangs") == []
    assert list(open_folder.iterdir()) == []
