"""Finds what a long run leaves on the machine, and which of its processes grow.

``python -m suites.selftest.leaks -- jbod run …`` gives the run its own workspace and folder for temporary files.
At the end it looks there, and for the mark of the run's clusters on processes, control groups, containers and networks.

Meanwhile it reads the open handles and the memory of the run's long-lived processes (the harness, its workers, Spark).
For each it compares the last quarter of its life with the second one, when caches are warm. The figure of a quarter is
what the process had in nine tenths of the time: a leak stays between two cases, while a large cluster comes and goes.

Exit code 0: nothing was left or grew; 1: something was; 2: the run was not valid, or too short to compare quarters.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harness.host.marked_processes import MARK
from suites.selftest.disks import traces

EVERY_S = 2.0
LIVES_LONG_S = 120.0
FEW_HANDLES = 20
"""So many more handles than in the second quarter are no leak yet."""
GROWS_TO = 1.5
"""The memory that may be added to that of the second quarter, as a share of it: caches and compiled code grow."""
SHARED = ("jbod-ports", "pytest-of-*")
"""What all runs of a machine have in common: the locks of their ports, empty files; pytest's folders of the last three.
"""


@dataclass
class Life:
    """A process's handles and memory over its life.

    :ivar seen: seconds, handles, megabytes
    """

    name: str
    seen: list[tuple[float, int, float]] = field(default_factory=list)

    @property
    def lasted_s(self) -> float:
        """Seconds between the first look and the last."""
        return self.seen[-1][0] - self.seen[0][0]

    def least(self, quarter: int) -> tuple[float, float]:
        """The handles and megabytes that it had in nine tenths of a quarter of its life, from 0 to 3, or more."""
        start = self.seen[0][0]
        within = [look for look in self.seen if quarter <= 4 * (look[0] - start) / self.lasted_s <= quarter + 1]
        within = within or self.seen[-1:]
        handles, mb = (sorted(look[what] for look in within) for what in (1, 2))
        return handles[len(within) // 10], mb[len(within) // 10]

    def grew(self) -> str | None:
        """What grew too much, in words; None if nothing did."""
        (handles, mb), (handles_then, mb_then) = self.least(1), self.least(3)
        if handles_then > handles + FEW_HANDLES:
            return f"{handles_then - handles:.0f} more handles"
        return f"{mb_then / mb:.1f} times the memory" if mb_then > GROWS_TO * mb else None


def left(base: Path, marks: Collection[str]) -> dict[str, list[str]]:
    """What is there of a run.

    :param base: the folder with its workspace and its temporary files
    :param marks: those of its clusters
    """
    groups = [str(path) for level in ("*", "*/*") for path in Path("/sys/fs/cgroup").glob(f"{level}/jbod-*")]
    found = {
        "processes": _processes(base, marks),
        "control groups": [group for group in groups if any(mark in group for mark in marks)],
        "folders": sorted(
            str(path)
            for folder in base.iterdir()
            for path in folder.iterdir()
            if not any(path.match(shared) for shared in SHARED)
        ),
        **{what: those for what, those in traces().items() if what in ("mounts", "loops", "limits")},
    }
    if shutil.which("docker"):
        for what, every in (("container", ["-a"]), ("network", []), ("volume", [])):
            argv = ["docker", what, "ls", *every, "--format", "{{.Names}}" if what == "container" else "{{.Name}}"]
            names = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
            found[f"{what}s"] = [name for name in names if any(mark in name for mark in marks)]
    return found


def _processes(base: Path, marks: Collection[str]) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            ours = str(environment.get("JBOD_WORK_DIR")).startswith(f"{base}/") or environment.get(MARK) in marks
            if ours and process.pid != os.getpid():
                ports = [each.laddr.port for each in process.net_connections("tcp") if each.status == "LISTEN"]
                found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}, which listens on {ports or 'nothing'}")
        except psutil.Error:
            continue
    return found


def watch(argv: list[str], environment: dict[str, str]) -> tuple[int, list[tuple[int, Life]], set[str]]:
    """Run a command; returns its exit code, its long-lived processes, and the marks of its clusters."""
    lives: dict[tuple[int, float], Life] = {}
    marks = set[str]()
    began = time.monotonic()
    process = psutil.Popen(argv, env=environment)
    while process.poll() is None:
        for each in [process, *process.children(recursive=True)]:
            try:
                if (mark := each.environ().get(MARK)) is not None:
                    marks.add(mark)  # it ends with its cluster
                    continue
                life = lives.setdefault((each.pid, each.create_time()), Life(each.name()))
                life.seen.append((time.monotonic() - began, each.num_fds(), each.memory_info().rss / (1 << 20)))
            except psutil.Error:
                continue
        with suppress(psutil.TimeoutExpired):
            process.wait(EVERY_S)
    long = [(pid, life) for (pid, _), life in sorted(lives.items()) if life.lasted_s > LIVES_LONG_S]
    return process.returncode, long, marks


def main(argv: list[str]) -> int:
    """Run the command, and print what it left and what grew."""
    base = Path(tempfile.mkdtemp(prefix="leaks-"))
    base.chmod(0o755)
    for name in ("work", "tmp"):
        (base / name).mkdir()
    os.environ |= {"JBOD_WORK_DIR": str(base / "work"), "TMPDIR": str(base / "tmp")}
    exit_code, lives, marks = watch(argv, dict(os.environ))
    remains = left(base, marks)
    print(json.dumps({"exit_code": exit_code, "clusters": len(marks), "left": remains}, indent=2))
    for pid, life in lives:
        quarters = ", ".join("{:.0f} and {:.0f}".format(*life.least(quarter)) for quarter in range(4))
        at_most = f"{max(look[1] for look in life.seen)} and {max(look[2] for look in life.seen):.0f}"
        told = f"handles and MB, at least, by quarters {quarters}; at most {at_most}"
        print(f"{pid} {life.name}, for {life.lasted_s:.0f} s: {told}")
    grown = [f"{pid} {life.name}: {grew}" for pid, life in lives if (grew := life.grew())]
    print("grew:", "; ".join(grown) or "nothing")
    if any(remains.values()):
        print(f"it is all there still; JBOD_WORK_DIR={base / 'work'} jbod clean takes back what can be")
    else:
        shutil.rmtree(base, ignore_errors=True)
    if grown or any(remains.values()):
        return 1
    return 2 if exit_code or not lives else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:]))
