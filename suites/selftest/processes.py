"""``jbod run`` as a process that a test disturbs, and the processes that carry its mark."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from harness.host.marked_processes import MARK
from harness.waiting import await_until

JBOD = Path(sys.executable).with_name("jbod")
HANG_S = 900.0
"""A run that takes longer hangs, in seconds; this is no limit for its speed."""
LEASH_S = 120.0
"""Seconds until the processes of a dead harness must have ended; no limit for their speed either."""


def marked(mark: str) -> list[int]:
    """Processes of a run, by the mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


Result = dict[str, Any]
"""The JSON of a case."""
Results = tuple[int, dict[str, Result]]
"""The exit code of a run, and each case by its id."""


def run(folder: Path, *arguments: str) -> Results:
    """Run ``jbod run`` to its end, with its run folders below ``folder``."""
    out = folder / "out.json"
    done = subprocess.run(
        [JBOD, "run", *arguments, "--runs-dir", folder / "runs", "--json", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,  # a hang, not a measure
        check=False,
    )
    print(done.stdout)
    return done.returncode, {case["id"]: case for case in json.loads(out.read_text())["scenarios"]}


_SMALL = '''
"""A case for tests of what happens to a run: two nodes, one fault, no clients."""

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness.cluster.cluster import Cluster
from harness.kafka.versions import Mode
from suites.checks import check_noticed
from suites.scenario import scenario


@scenario("small/log-dir-fails", kip=112, plan="a log dir fails", modes=(Mode.KRAFT,), brokers=1, judged=False)
def test_log_dir_fails(cluster: Cluster) -> None:
    """A log dir of the only broker fails: the broker notices it."""
    orders = cluster.create_topic("orders", replicas=1)
    with injected(fault := Chmod000(orders[0].log_dir_on(leader_of(orders[0])))):
        check_noticed(fault)
'''
SMALL_NODES = 2


def small_case(folder: Path) -> str:
    """Write a scenario file of another repository into the folder; returns the selector of its one case."""
    (file := folder / "test_small.py").write_text(_SMALL.lstrip())
    return str(file)


class Running:
    """``jbod run``, as a process of its own."""

    def __init__(self, folder: Path, work_dir: Path, *arguments: str, runs_dir: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.runs_dir = runs_dir or folder / "runs"
        self.work_dir = work_dir
        self.json = folder / "out.json"
        self.said = folder / "said"
        self.argv = [str(JBOD), "run", *arguments, "--runs-dir", str(self.runs_dir), "--json", str(self.json)]
        self.environment = os.environ | {"JBOD_WORK_DIR": str(work_dir)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.said.open("w") as output:
            self._process = subprocess.Popen(self.argv, env=self.environment, stdout=output, stderr=output)

    @property
    def pid(self) -> int:
        """Of the harness."""
        assert self._process is not None
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def kill(self) -> None:
        """Kill it by SIGKILL, in any state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def await_end(self) -> int:
        """Its exit code."""
        code = await_until(
            self.ended,
            lambda code: code is not None,
            timeout_s=HANG_S,
            what="the run to end",
            hint=lambda: self.said.read_text(),
        )
        assert code is not None
        return code

    def await_event(self, words: str) -> None:
        """Wait until a journal has these words."""

        seen: set[int] = set()

        def said() -> bool:
            assert self.ended() is None, self.said.read_text()
            found = any(words in each.read_text() for each in self.runs_dir.glob("*/events.jsonl"))
            if not seen:  # reading all of /proc is slow, and the awaited moment may be short
                seen.update(self.nodes())
            return found

        await_until(said, timeout_s=HANG_S, what=f"{words} in a journal", hint=lambda: self.said.read_text())
        assert seen, "a run has brokers, which can be told"

    def await_said(self, words: str) -> None:
        """Wait until its output has these words."""

        def said() -> bool:
            assert self.ended() is None, self.said.read_text()
            return words in self.said.read_text(errors="replace")

        await_until(said, timeout_s=HANG_S, what=f"it to say {words!r}", hint=self.said.read_text)

    def send(self, how: signal.Signals) -> None:
        """Send the harness a signal."""
        assert self._process is not None
        self._process.send_signal(how)

    def nodes(self) -> list[int]:
        """Processes of its clusters."""
        return [pid for each in self.runs_dir.glob("*/run.json") for pid in marked(each.parent.name)]

    def results(self) -> list[dict[str, Any]]:
        """The results of its cases, from its JSON."""
        scenarios: list[dict[str, Any]] = json.loads(self.json.read_text())["scenarios"]
        return scenarios

    def assert_nothing_left(self) -> None:
        """No process of the run is left, and no working folder."""
        assert self.nodes() == []
        assert list(self.work_dir.iterdir()) == []


class InTerminal(Running):
    """``jbod run`` in a terminal of its own."""

    _code: int | None = None

    def start(self) -> None:
        """Start it; its output is read all the time."""
        self.said.touch()
        self._child, self._terminal = pty.fork()
        if self._child == 0:
            try:
                os.execve(JBOD, self.argv, self.environment)
            finally:
                os._exit(127)
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self.said.open("wb", buffering=0) as output:
            while not self._closed.is_set():
                if select.select([self._terminal], [], [], 0.1)[0]:
                    output.write(os.read(self._terminal, 4096))

    def close(self) -> None:
        """Close the terminal."""
        self._closed.set()
        self._reader.join()
        os.close(self._terminal)

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def kill(self) -> None:
        """kill -9."""
        if self.ended() is None:
            os.kill(self._child, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Of the harness."""
        return self._child

    def press_enter(self) -> None:
        """Press Enter in its terminal."""
        os.write(self._terminal, b"\n")
