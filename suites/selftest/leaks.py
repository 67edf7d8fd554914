"""What a long run leaves on the machine, and what grows while it goes on.

``python -m suites.selftest.leaks -- jbod run …``: the run works in a workspace of its own, so that what is left in the
end is its doing: processes with its mark, mounts, loop devices, control groups, ports that are listened on, containers
and networks, folders. Of its own processes that live long (the harness, its workers, Spark) open handles and memory are
read all along; each is compared with what it had in the second quarter of its life, when caches are warm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from suites.selftest.disks import traces

EVERY_S = 2.0
LIVES_LONG_S = 120.0
FEW_HANDLES = 20
"""More than so many handles more than after the first quarter is a leak."""
GROWS_TO = 1.5
"""Of what it had then, in memory: caches and compiled code take their time."""


@dataclass
class Life:
    """What a process had, from one look to the next.

    :ivar seen: seconds, handles, megabytes
    """

    name: str
    seen: list[tuple[float, int, float]] = field(default_factory=list)

    @property
    def lasted_s(self) -> float:
        """Between the first look and the last."""
        return self.seen[-1][0] - self.seen[0][0]

    def quarters(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """The most handles and megabytes that it had in the second quarter of its life, and in the last."""
        start = self.seen[0][0]

        def most(begin: float, end: float) -> tuple[int, float]:
            within = [look for look in self.seen if begin <= (look[0] - start) / self.lasted_s <= end]
            return max(look[1] for look in within), max(look[2] for look in within)

        return most(0.25, 0.5), most(0.75, 1.0)

    def grew(self) -> str | None:
        """What of it grew too much; None where nothing did."""
        (handles, mb), (handles_then, mb_then) = self.quarters()
        if handles_then > handles + FEW_HANDLES:
            return f"{handles_then - handles} more handles"
        return f"{mb_then / mb:.1f} times the memory" if mb_then > GROWS_TO * mb else None


def left(workspace: Path) -> dict[str, list[str]]:
    """What there is of runs in this workspace, whoever made it."""
    marked, listening = [], []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get("JBOD_WORK_DIR") == str(workspace) or "JBOD_RUN" in environment:
                marked.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
                listening += [str(each.laddr) for each in process.net_connections("tcp") if each.status == "LISTEN"]
        except psutil.Error:
            continue
    return {**traces(), "processes": marked, "ports": listening, "folders": _folders(workspace), **_in_docker()}


def _folders(workspace: Path) -> list[str]:
    shared = [each for each in Path("/dev/shm").iterdir() if "jbod" in each.name]
    temporary = [each for each in Path(tempfile.gettempdir()).glob("jbod*") if each != workspace.parent]
    return sorted(map(str, [*(workspace.iterdir() if workspace.exists() else ()), *shared, *temporary]))


def _in_docker() -> dict[str, list[str]]:
    if not shutil.which("docker"):
        return {}
    found = {}
    for what in ("container", "network", "volume"):
        argv = ["docker", what, "ls", "-q", *(["-a"] if what == "container" else [])]
        found[f"{what}s"] = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    return found


def watch(argv: list[str], environment: dict[str, str]) -> tuple[int, dict[int, Life]]:
    """Run a command; its exit code, and the life of each of its processes that were there for long."""
    lives: dict[int, Life] = {}
    began = time.monotonic()
    process = psutil.Popen(argv, env=environment)
    while process.poll() is None:
        for each in [process, *process.children(recursive=True)]:
            try:
                name = each.name()
                if "JBOD_RUN" in each.environ():
                    continue  # a cluster's: it ends with its cases
                life = lives.setdefault(each.pid, Life(name))
                life.seen.append((time.monotonic() - began, each.num_fds(), each.memory_info().rss / (1 << 20)))
            except psutil.Error:
                continue
        time.sleep(EVERY_S)
    return process.returncode, {pid: life for pid, life in lives.items() if life.lasted_s > LIVES_LONG_S}


def main(argv: list[str]) -> int:
    """Run the command, and print what it left and what grew; 1 where there is any of that, else 0."""
    base = Path(tempfile.mkdtemp(prefix="jbod-leaks-"))
    base.chmod(0o755)
    workspace = base / "work"
    workspace.mkdir()
    os.environ["JBOD_WORK_DIR"] = str(workspace)
    before = left(workspace)
    exit_code, lives = watch(argv, dict(os.environ))
    after = {what: sorted(set(those) - set(before[what])) for what, those in left(workspace).items()}
    print(json.dumps({"exit_code": exit_code, "left": after}, indent=2))
    grown = []
    for pid, life in sorted(lives.items()):
        (handles, mb), (handles_then, mb_then) = life.quarters()
        was, became = f"{handles} handles and {mb:.0f} MB", f"{handles_then} and {mb_then:.0f}"
        print(f"{pid} {life.name}, for {life.lasted_s:.0f} s: {was}, in the end {became}")
        grown += [f"{pid} {life.name}: {grew}"] if (grew := life.grew()) else []
    print("grew:", "; ".join(grown) or "nothing")
    shutil.rmtree(base, ignore_errors=True)
    return int(bool(grown or any(after.values())))


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:]))
