"""What is done to the harness itself, and how it comes out: each is a row of the table in harness/README.md.

Killed in the middle, by signal, is in ``test_real_runs.py``; a killed run's clean-up, piece by piece, in
``test_undo.py``; the Docker engine that goes away, in ``test_containers.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness import timeouts
from harness.cluster import boot
from harness.errors import AwaitTimeout
from harness.journal import Journal
from harness.machine.host import abilities
from harness.machine.undo import MARK
from harness.releases.builds import BuildOptions, Builds
from harness.releases.versions import Mode
from harness.spec import ClusterSpec
from harness.waiting import await_until

pytestmark = pytest.mark.cluster

JBOD = Path(sys.executable).with_name("jbod")
CASES = ("kip-112/follower-at-runtime[zk-chmod_000]", "kip-112/follower-at-runtime[zk-chmod_a-w]")


def marked(folder: Path) -> list[int]:
    """Processes of runs that work below this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if MARK in environment and environment.get("JBOD_WORK_DIR") == str(folder):
                found.append(process.pid)
    return found


class Running:
    """``jbod run``, as a process of its own."""

    def __init__(self, folder: Path, work_dir: Path, *cases: str, runs_dir: Path | None = None) -> None:
        self.runs_dir = runs_dir or folder / "runs"
        self.work_dir = work_dir
        self.json = folder / "out.json"
        self.said = folder / "said"
        self.argv = [str(JBOD), "run", *cases, "--runs-dir", str(self.runs_dir), "--json", str(self.json)]
        self.environment = os.environ | {"JBOD_WORK_DIR": str(work_dir)}

    def start(self) -> subprocess.Popen[bytes]:
        with self.said.open("w") as output:
            return subprocess.Popen(self.argv, env=self.environment, stdout=output, stderr=output)

    def await_event(self, words: str, is_alive: Any) -> Path:
        """The run folder whose journal has these words, as soon as there is one."""

        def said() -> Path | None:
            assert is_alive(), self.said.read_text()
            found = (each for each in self.runs_dir.glob("*/events.jsonl") if words in each.read_text())
            return next((each.parent for each in found), None)

        run_dir = await_until(said, timeout_s=240, what=f"{words} in a journal", hint=lambda: self.said.read_text())
        assert run_dir is not None
        return run_dir

    def results(self) -> list[dict[str, Any]]:
        """What came of each case."""
        scenarios: list[dict[str, Any]] = json.loads(self.json.read_text())["scenarios"]
        return scenarios

    def assert_nothing_left(self) -> None:
        """No process, and no folder to work in."""
        assert marked(self.work_dir) == []
        assert list(self.work_dir.iterdir()) == []


@pytest.mark.parametrize("words", ['"node.started"', '"phase": "drain"', '"phase": "teardown"'])
def test_killed_at_any_moment(tmp_path: Path, open_folder: Path, words: str) -> None:
    """kill -9 while brokers start, while logs are read, while all is taken down: ``jbod clean`` finds what is left."""
    running = Running(tmp_path, open_folder, CASES[0])
    harness = running.start()
    running.await_event(words, lambda: harness.poll() is None)
    harness.kill()
    harness.wait(30)
    clean = subprocess.run([JBOD, "clean"], env=running.environment, capture_output=True, text=True, check=False)
    assert clean.returncode == 0, clean.stderr
    running.assert_nothing_left()


def test_the_terminal_is_closed(tmp_path: Path, open_folder: Path) -> None:
    """Its end is a SIGHUP from the kernel, and nowhere to write to: the run cleans up all the same."""
    running = Running(tmp_path, open_folder, CASES[0])
    running.said.touch()
    child, terminal = pty.fork()
    if child == 0:
        os.execve(JBOD, running.argv, running.environment)

    def read() -> None:
        with contextlib.suppress(OSError), running.said.open("wb") as output:
            while said := os.read(terminal, 4096):
                output.write(said)
                output.flush()

    threading.Thread(target=read, daemon=True).start()
    running.await_event('"fault.injected"', lambda: os.waitpid(child, os.WNOHANG) == (0, 0))
    processes = [child, *(each.pid for each in psutil.Process(child).children(recursive=True))]
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) != 0
    await_until(
        lambda: [pid for pid in processes if psutil.pid_exists(pid)],
        lambda left: not left,
        timeout_s=30,
        what="all processes to end",
    )
    running.assert_nothing_left()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    if not abilities({"root"})[0].present:
        pytest.skip("root: only root mounts a file system")
    at = tmp_path / "small"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "jbod-test", at], check=True)
    yield at
    subprocess.run(["umount", "-l", at], check=True)


def test_the_disk_of_the_runs_folder_fills_up(tmp_path: Path, open_folder: Path, small_disk: Path) -> None:
    """Nothing that is seen then counts, least of all against Kafka: an error, and what to do about it."""
    running = Running(tmp_path, open_folder, CASES[0], runs_dir=small_disk)
    harness = running.start()
    running.await_event('"fault.injected"', lambda: harness.poll() is None)
    with contextlib.suppress(OSError), (small_disk / "somebody-elses").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    assert harness.wait(240) == 3, running.said.read_text()
    [result] = running.results()
    assert result["verdict"] == "error"
    assert "No space left on device" in result["reason"]
    assert "--runs-dir" in result["reason"]
    running.assert_nothing_left()
    # And with the disk still full the next run does not begin.
    again = running.start()
    assert again.wait(60) == 3
    assert "can't be written: No space left on device; see --runs-dir" in running.said.read_text()


def test_sparks_jvm_is_killed(tmp_path: Path, open_folder: Path) -> None:
    """As the kernel does where memory is short: the case is an error that names Spark, the next one has another."""
    running = Running(tmp_path, open_folder, *CASES)
    harness = running.start()
    running.await_event('"fault.injected"', lambda: harness.poll() is None)
    [spark] = [each for each in psutil.Process(harness.pid).children() if "SparkSubmit" in " ".join(each.cmdline())]
    spark.send_signal(signal.SIGKILL)
    assert harness.wait(360) == 3, running.said.read_text()
    first, second = running.results()
    assert (first["verdict"], second["verdict"]) == ("error", "valid"), running.said.read_text()
    assert "Spark" in first["reason"]
    running.assert_nothing_left()


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
"""What time it is, to a whole run with all its processes, as if the machine's clock had been set."""


@pytest.fixture
def clock() -> Iterator[tuple[Path, dict[str, str]]]:
    """A file with the seconds by which the clock is ahead, and the environment of those to whom it is."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc: not on the PATH: apt-get install gcc libc6-dev")
    with tempfile.TemporaryDirectory(prefix="jbod-test-clock-") as at:
        folder = Path(at)
        folder.chmod(0o755)
        ahead, library = folder / "ahead", folder / "clock.so"
        ahead.write_bytes(struct.pack("l", 0))
        subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=CLOCK.encode(), check=True)
        yield ahead, {"LD_PRELOAD": str(library), "JBOD_TEST_CLOCK": str(ahead)}


def test_the_clock_is_set_back(tmp_path: Path, open_folder: Path, clock: tuple[Path, dict[str, str]]) -> None:
    """Who wrote before whom can't be told by it any more: the case is unknown, and says why."""
    ahead, environment = clock
    running = Running(tmp_path, open_folder, CASES[0])
    running.environment |= environment
    harness = running.start()
    running.await_event('"fault.injected"', lambda: harness.poll() is None)
    with ahead.open("r+b") as file:
        file.write(struct.pack("l", -3))
    assert harness.wait(240) == 2, running.said.read_text()
    [result] = running.results()
    assert result["verdict"] == "unknown"
    assert "clock was set by -3.0 s" in result["reason"]
    running.assert_nothing_left()


def test_two_runs_at_once_do_not_meet(tmp_path: Path, open_folder: Path) -> None:
    """The same case twice, in the same folders: each comes out as if it were alone."""
    runs = [Running(tmp_path / name, open_folder, CASES[0], runs_dir=tmp_path / "runs") for name in ("a", "b")]
    for each in runs:
        each.json.parent.mkdir()
    harnesses = [each.start() for each in runs]
    for each, harness in zip(runs, harnesses, strict=True):
        assert harness.wait(240) == 0, each.said.read_text()
    assert len({each.results()[0]["run_dir"] for each in runs}) == 2
    runs[0].assert_nothing_left()


def test_a_broker_hangs_while_it_starts(tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a controller that isn't there: the cluster is given up, and the error says who was waited for."""
    monkeypatch.setenv("JBOD_WORK_DIR", str(open_folder))
    monkeypatch.setattr(timeouts, "BOOT_S", 15.0)
    with pytest.raises(AwaitTimeout, match=r"1 brokers and a controller.*broker-1 logged last: "):
        boot(
            ClusterSpec(mode=Mode.KRAFT, brokers=1, overrides={"controller.quorum.voters": "100@127.0.0.1:1"}),
            Builds.choose(BuildOptions()).of(Mode.KRAFT),
            run_id="selftest-hangs",
            record_dir=tmp_path,
            journal=Journal(None),
        )
    assert marked(open_folder) == []
    assert list(open_folder.iterdir()) == []


def test_a_broker_hangs_while_it_stops(tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed when its time is over, and the journal says so."""
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
        cluster.brokers[0].pause()
        cluster.brokers[0].stop()
        assert [event["after_s"] for event in journal.of_kind("node.stop_timed_out")] == [2.0]
        assert not cluster.brokers[0].is_alive
    finally:
        cluster.stop()
    assert marked(open_folder) == []
    assert list(open_folder.iterdir()) == []
