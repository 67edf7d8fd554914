"""A checkout with planted suites, for commands that start runs: nights, qualifications, repetitions, shrinking.

The harness is a copy of the real one, with its command line, pytest, run folders, ledger, JSON and schedules. Only the
outcome of a case is planted: a test writes down each play's verdict. No broker and no Spark starts. A Kafka build is
two jars with a version and nothing else. ``--jobs auto`` sees one free core unless a test plants another machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from suites.selftest.processes import JBOD

_ROOT = Path(__file__).parents[2]

_BACKEND = '''
"""A backend that makes no nodes; it lacks what the backend of processes lacks."""
from harness.cluster.nodes.backends import BACKENDS, BackendKind
from harness.cluster.nodes.node import Runtime

RUNTIME = Runtime(java=("false",), java_version="8", class_path=(), build="")  # too old for an archive of classes
BACKENDS["planted"] = BackendKind(
    runtime=lambda *_: RUNTIME, make=lambda site: exit("no node is planted"), lacks=BACKENDS["process"].lacks
)
'''

_ROOM = '''

def room() -> Room:
    """The planted machine."""
    import json

    return Room(busy=0, **json.loads((Path(os.environ["JBOD_PLANTED"]) / "room.json").read_text()))
'''

_PLAYS = '''
"""The planted cases: their outcomes are in plays.json."""
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

from harness.crowding import EASY, PATIENCE, CrowdedTime
from harness.errors import BuildLacks, HarnessError, Inconclusive, PromiseBroken
from harness.runner.run import run_of
from harness.cluster.spec import ClusterSpec
from harness.waiting import await_until

HERE = Path(os.environ["JBOD_PLANTED"])


def play(case, mode, config, always=None):
    """Play the case's next planted outcome; "valid" if none is planted.

    :param always: outcomes in place of the planted ones
    """
    run = run_of(config)
    build = run.builds.of(mode)
    case.record_cluster(ClusterSpec(mode=mode, backend=run.backend), build)
    with (HERE / "played").open("a+") as file:
        file.seek(0)
        before = [line.split() for line in file].count([case.id.id, str(build.version)])
        file.write(f"{case.id.id} {build.version}\\n")
    plays = json.loads((HERE / "plays.json").read_text())
    words = (always or plays.get(f"{case.id.id} {build.version}") or plays.get(case.id.id, "valid")).split()
    word = words[min(before, len(words) - 1)]
    crowding = CrowdedTime(crowded_share=1.0, per_core_mean=EASY * PATIENCE) if word == "crowded" else CrowdedTime()
    case._crowding = SimpleNamespace(so_far=lambda: crowding)  # that of the machine that runs the test is left out
    if word == "deviates":
        case.journal.write("deviation.seen", kip=112, does="planted deviation", lasts=False)
    if word == "waits":
        await_until(lambda: False, timeout_s=120, what="its end, which is not its own")
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word.startswith("lacks"):
        if word != "lacks":
            fault = {"fault": "planted", "target": "planted", "broker": 1, "noticed_by": None, "explains": ()}
            case.journal.write("fault.injecting", **fault)
        try:
            raise BuildLacks(f"Kafka {build.version} has no planted tool")
        except BuildLacks:
            if word != "lacks-wrapped":
                raise
            raise PromiseBroken("planted: what came of it")
    troubles = {"invalid": PromiseBroken, "unknown": Inconclusive, "error": HarnessError}
    if word in troubles:
        raise troubles[word](f"planted: {word}")
'''

_PROBE = '''
"""A probe that finds what lacks.json has; no broker of a planted build can start."""
import json
import os
from pathlib import Path

import click

from harness.kafka.builds import Builds
from harness.runner.qualifying import build_options

HERE = Path(os.environ["JBOD_PLANTED"])


@click.command()
@click.argument("build")
@click.option("--mode")
@click.option("--json", "json_file")
def probe(build, mode, json_file):
    builds = Builds.choose(build_options(build, mode))
    with (HERE / "probed").open("a") as file:
        file.write(f"{build}\\n")
    told = json.loads((HERE / "lacks.json").read_text())
    lean = {"id": "planted", "kind": "tool", "what": "the planted tool", "state": "missing", "seen": "planted"}
    lean |= {"skips": True, "without": "these cases are skipped", "needed_by": told["needed_by"]}
    modes = {str(mode): {"starts": told["cause"] is None, "cause": told["cause"]} for mode in builds.modes()}
    leans = [lean | {"mode": mode} for mode in modes] if told["needed_by"] else []
    code = 3 if told["cause"] else 2 if leans else 0
    distribution = builds.of(builds.modes()[0])
    content = {"schema": 1, "kafka": str(distribution.version), "sha256": distribution.sha256}
    Path(json_file).write_text(json.dumps(content | {"modes": modes, "leans": leans, "exit_code": code}))
    return code
'''

_CASES = '''
import pytest
from harness.runner.deviation import Deviation
from harness.kafka.versions import Mode, VersionRange
from suites.kip_112.plays import play
from suites.scenario import scenario

DEVIATION = Deviation(
    kip=112, promised="nothing", actual="planted deviation", issue="none", builds=VersionRange(),
    deterministic=False, pollutes=False,
)


@scenario("kip-112/planted", kip=112, plan="planted", judged=False, deviations=(DEVIATION,))
@pytest.mark.parametrize("letter", "abc")
def test_planted(case, mode, request, letter):
    """It comes out as it is written down."""
    play(case, mode, request.config)


@scenario("network/planted", kip=112, plan="planted", judged=False, needs=("own networks",))
def test_cut_off(case, mode, request):
    """It can't be played here."""
    raise AssertionError("it can't be played here")
'''

_SCHEDULE = '''
import json

from suites.kip_112.plays import HERE, play


@scenario("schedules/random", kip=112, plan="planted", judged=False, fresh=True)
def test_random(case, mode, request, schedule):
    """It comes out as it is written down, or is invalid where it has all the steps that are."""
    steps = schedule.to_json()["steps"]
    case.record(schedule=schedule.to_json(), steps=len(steps), steps_done=max(0, len(steps) - 1))
    culprits = json.loads((HERE / "culprits.json").read_text())
    if culprits and all(step in steps for step in culprits):
        play(case, mode, request.config, "invalid")
    play(case, mode, request.config)
'''


class Planted:
    """A checkout with planted suites, and the commands that run in it.

    :ivar folder: where commands are run; run folders are in ``reports/runs`` below it
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs_dir = folder / "reports" / "runs"
        self._checkout = folder / "checkout"  # apart from the commands' working directory, whose reports/ is no package
        shutil.copytree(_ROOT / "harness", self._checkout / "harness")
        self._lay_down("harness/host/room.py", (_ROOT / "harness/host/room.py").read_text() + _ROOM)
        for source in (
            path for place in (".", "deviations", "schedules") for path in (_ROOT / "suites" / place).glob("*.py")
        ):
            self._lay_down(source.relative_to(_ROOT), source.read_text())
        schedules = Path("suites/schedules/test_random.py")
        drawn, _, _ = (_ROOT / schedules).read_text().partition("@scenario(")
        self._lay_down(schedules, drawn + _SCHEDULE)
        self._lay_down("suites/selftest/__init__.py", "")
        self._lay_down("suites/kip_112/__init__.py", "")
        self._lay_down("suites/kip_112/plays.py", _PLAYS)
        self._lay_down("suites/kip_112/test_planted.py", _CASES)
        self._lay_down("suites/probe/__init__.py", "")
        self._lay_down("suites/probe/command.py", _PROBE)
        self._lay_down("planted_backend.py", _BACKEND)
        (folder / "work").mkdir()
        self.machine(cores=1, memory_gib=64)
        self.plays({})
        self.culprits([])
        self.lacks([])

    def _lay_down(self, name: str | Path, text: str) -> None:
        (self._checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (self._checkout / name).write_text(text)

    def commit(self, change: str = "") -> None:
        """Commit the checkout, so that it has a revision.

        :param change: a line that is added to the planted cases before the commit
        """
        with (self._checkout / "suites" / "kip_112" / "plays.py").open("a") as file:
            file.write(f"{change}\n")
        (self._checkout / ".gitignore").write_text("__pycache__/\n")
        who = ("-c", "user.name=planted", "-c", "user.email=planted@localhost")
        for arguments in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "planted"]):
            subprocess.run(["git", "-C", self._checkout, *arguments], check=True)

    def add_file(self, name: str) -> Path:
        """Add an empty file to the checkout, which git does not know; returns its path."""
        self._lay_down(name, "")
        return self._checkout / name

    def kafka(self, version: str) -> Path:
        """The home folder of a Kafka of that version, which cannot start."""
        home = self.folder / f"kafka-{version}"
        (home / "libs").mkdir(parents=True)
        for name in (f"kafka_2.13-{version}.jar", f"kafka-clients-{version}.jar"):
            with zipfile.ZipFile(home / "libs" / name, "w") as jar:
                jar.writestr("kafka/kafka-version.properties", f"version={version}\ncommitId=planted\n")
        return home

    def machine(self, *, cores: int, memory_gib: int) -> None:
        """Plant what the machine has from now on, for ``--jobs auto``."""
        (self.folder / "room.json").write_text(json.dumps({"cores": cores, "memory": memory_gib << 30}))

    def plays(self, words: Mapping[str, str]) -> None:
        """Plant the verdicts of cases from now on.

        :param words: by the case's id, or by id and Kafka's version: a word for each play; the last one repeats. A case
            that "deviates" or is "crowded" is valid
        """
        (self.folder / "plays.json").write_text(json.dumps(words))

    def lacks(self, needed_by: Sequence[str], cause: str | None = None) -> None:
        """Plant the probe's findings from now on.

        :param needed_by: the suites that need a missing tool
        :param cause: why no cluster starts; None: one does
        """
        (self.folder / "lacks.json").write_text(json.dumps({"needed_by": needed_by, "cause": cause}))

    def probes(self) -> int:
        """How often builds were probed so far."""
        file = self.folder / "probed"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def culprits(self, steps: Sequence[Mapping[str, object]]) -> None:
        """A schedule that has all these steps is invalid from now on; without steps, none is."""
        (self.folder / "culprits.json").write_text(json.dumps(steps))

    def played(self) -> list[str]:
        """Each play of a case so far: its id and the version of Kafka."""
        file = self.folder / "played"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands."""
        own = {"JBOD_PLANTED": self.folder, "JBOD_WORK_DIR": self.folder / "work", "PYTHONPATH": self._checkout}
        return os.environ | {name: str(value) for name, value in own.items()} | {"PYTEST_PLUGINS": "planted_backend"}

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start ``jbod`` with these arguments."""
        return subprocess.Popen(
            [JBOD, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def jbod(self, *arguments: str | Path) -> tuple[int, str]:
        """Run ``jbod`` to its end; returns its exit code and output."""
        with self.start(*arguments) as process:
            said, _ = process.communicate(timeout=300)  # longer is a hang
        print(said)
        return process.returncode, said
