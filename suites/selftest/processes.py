"""``jbod run`` as a process to which things are done, and which processes it has, by the mark that each carries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.machine.undo import MARK
from harness.waiting import await_until

JBOD = Path(sys.executable).with_name("jbod")


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
        """Begin."""
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
        """kill -9; whatever it is doing, or did."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def await_end(self, timeout_s: float = 240) -> int:
        """Its exit code."""
        code = await_until(
            self.ended,
            lambda code: code is not None,
            timeout_s=timeout_s,
            what="the run to end",
            hint=lambda: self.said.read_text(),
        )
        assert code is not None
        return code

    def await_event(self, words: str) -> None:
        """Until a journal has these words."""

        seen: set[int] = set()

        def said() -> bool:
            assert self.ended() is None, self.said.read_text()
            found = any(words in each.read_text() for each in self.runs_dir.glob("*/events.jsonl"))
            if not seen:  # reading all of /proc takes its time, and what is awaited may be over soon
                seen.update(self.nodes())
            return found

        await_until(said, timeout_s=240, what=f"{words} in a journal", hint=lambda: self.said.read_text())
        assert seen, "a run has brokers, which can be told"

    def send(self, how: signal.Signals) -> None:
        """A signal to the harness."""
        assert self._process is not None
        self._process.send_signal(how)

    def nodes(self) -> list[int]:
        """Processes of its clusters."""
        return [pid for each in self.runs_dir.glob("*/run.json") for pid in marked(each.parent.name)]

    def results(self) -> list[dict[str, Any]]:
        """What came of each case."""
        scenarios: list[dict[str, Any]] = json.loads(self.json.read_text())["scenarios"]
        return scenarios

    def assert_nothing_left(self) -> None:
        """No process, and no folder to work in."""
        assert self.nodes() == []
        assert list(self.work_dir.iterdir()) == []
