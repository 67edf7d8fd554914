"""``--jobs auto``: how many cases run at once on which machine, and how the run goes on with fewer, or more again.

The last tests run pytest-xdist on planted cases (:mod:`suites.selftest.planted`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from xdist.remote import Producer

from harness.crowding import EASY, PATIENCE, CrowdedTime
from harness.host import room as room_module
from harness.host.room import LOOKS, Room, busy_cores, memory_left, quotas, room
from harness.runner.at_once import MOST, ROOMY_CASES, AtOnce, Change, choose
from harness.runner.case_result import CaseResult
from harness.runner.results import Results
from harness.runner.run import Run
from harness.runner.scheduling import Adjusting, SpecAffinityScheduler
from suites.selftest.case_results import case_result
from suites.selftest.fakes import fake
from suites.selftest.planted import Planted
from suites.selftest.test_scheduling import Worker

GIB = 1 << 30
TOO_CROWDED = CrowdedTime(per_core_mean=EASY * PATIENCE)


@pytest.mark.parametrize(
    ("cores", "busy", "gib", "cases", "count"),
    [
        (2, 0, 21, 126, 3),
        (2, 1, 21, 126, 1),
        (2, 2, 21, 126, 1),
        (2, 0, 7, 126, 2),
        (2, 0, 2, 126, 1),
        (2, 0, -1, 126, 1),
        (2, 0, 21, 2, 2),
        (2, 0, 21, 1, 1),
        (2, 0, 21, 0, 1),
        (1, 0, 21, 126, 1),
        (0.5, 0, 21, 126, 1),
        (1.5, 0, 21, 126, 2),
        (4, 0, 64, 126, 6),
        (16, 8, 512, 126, 12),
        (16, 0, 24, 126, 8),
        (128, 0, 1024, 400, MOST),
    ],
)
def test_how_many_at_once(cores: float, busy: int, gib: int, cases: int, count: int) -> None:
    assert choose(Room(cores=cores, busy=busy, memory=gib * GIB), cases).count == count


@pytest.mark.parametrize(
    ("room", "cases", "line"),
    [
        (Room(cores=2, busy=0, memory=21 * GIB), 9, "--jobs auto: 3 at once (2 cores, 21 GiB free)"),
        (Room(cores=4, busy=1, memory=9 * GIB), 9, "--jobs auto: 3 at once (4 cores, 1 of them busy, 9 GiB free)"),
        (Room(cores=1, busy=0, memory=21 * GIB), 9, "--jobs auto: 1 at once (1 core, 21 GiB free)"),
        (Room(cores=8, busy=0, memory=64 * GIB), 2, "--jobs auto: 2 at once (8 cores, 64 GiB free, 2 cases)"),
    ],
)
def test_the_line_says_why(room: Room, cases: int, line: str) -> None:
    assert str(choose(room, cases)) == line


def test_busy_cores_are_those_that_were_not_idle() -> None:
    """Waiting for a disk is idle; a core that a hypervisor took away is busy."""
    before = {"cpu0": [5, 0, 0, 9, 0, 0, 0, 0], "cpu1": [5, 0, 0, 9, 0, 0, 0, 0], "cpu2": [0] * 8}
    after = {"cpu0": [5, 0, 0, 60, 49, 0, 0, 0], "cpu1": [55, 10, 10, 9, 0, 0, 0, 25], "cpu2": [0] * 8}
    assert busy_cores(before, after) == 1.0
    assert busy_cores({}, {}) == 0.0


def groups(folder: Path, cgroup: str, files: Mapping[str, object]) -> tuple[Path, Path]:
    """A file system of control groups, and a proc file system in which this process is in a group."""
    (folder / "proc" / str(os.getpid())).mkdir(parents=True)
    (folder / "proc" / str(os.getpid()) / "cgroup").write_text(cgroup)
    for name, content in files.items():
        (folder / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "groups" / name).write_text(f"{content}\n")
    return folder / "groups", folder / "proc"


@pytest.mark.parametrize(
    ("cgroup", "files", "found"),
    [
        (
            "0::/a/b\n",
            {"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000", "cpu.max": "800000 100000"},
            [1.5, 8],
        ),
        ("0::/not/here\n", {"cpu.max": "200000 100000"}, [2]),
        ("4:cpu,cpuacct:/c\n", {"cpu/c/cpu.cfs_quota_us": 300000, "cpu/c/cpu.cfs_period_us": 100000}, [3]),
        ("4:cpu,cpuacct:/c\n", {"cpu/c/cpu.cfs_quota_us": -1, "cpu/c/cpu.cfs_period_us": 100000}, []),
        ("0::/\n", {}, []),
    ],
    ids=["v2", "in a container", "v1", "v1 without a quota", "none"],
)
def test_quotas_of_the_groups(tmp_path: Path, cgroup: str, files: dict[str, object], found: list[float]) -> None:
    assert quotas(*groups(tmp_path, cgroup, files)) == found


@pytest.mark.parametrize(
    ("cgroup", "files", "left"),
    [
        ("0::/a\n", {"a/memory.max": 900, "a/memory.current": 500, "a/memory.stat": "anon 1\ninactive_file 300"}, 700),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.current": 5, "memory.max": 90, "memory.current": 80}, 10),
        ("3:memory:/a\n", {"memory/a/memory.limit_in_bytes": 90, "memory/a/memory.usage_in_bytes": 30}, 60),
        ("0::/\n", {"memory.max": "max", "memory.current": 5}, None),
    ],
    ids=["v2, less its cache", "of the group around it", "v1", "no limit"],
)
def test_memory_within_the_groups(tmp_path: Path, cgroup: str, files: dict[str, object], left: int | None) -> None:
    found, where = memory_left(*groups(tmp_path, cgroup, files))
    if left is None:
        assert where == "available"
        assert found <= psutil.virtual_memory().total
    else:
        assert (found, where) == (left, "left in this cgroup")


@pytest.mark.parametrize(
    ("verdict", "reason", "crowding", "starved"),
    [
        ("valid", "", TOO_CROWDED, True),
        ("invalid", "lost", TOO_CROWDED, True),
        ("valid", "", CrowdedTime(lateness_mean=EASY * PATIENCE), True),
        ("valid", "", CrowdedTime(crowded_share=1.0, per_core_mean=EASY * PATIENCE - 1), False),
        ("unknown", "this machine is too slow: broker 1 lost its session: Fencing", CrowdedTime(), True),
        ("unknown", "12 were acked in 5 s: this machine is too slow for the load", CrowdedTime(), True),
        ("unknown", "on a crowded machine (3.0 threads per core …): waited", CrowdedTime(), True),
        ("unknown", "too few records", CrowdedTime(), False),
        ("invalid", "on a crowded machine (3.0 threads per core …): waited", CrowdedTime(), False),
        ("valid", "", None, False),
    ],
)
def test_which_cases_starved(verdict: str, reason: str, crowding: CrowdedTime | None, starved: bool) -> None:
    result = case_result("kip-0/a", verdict, reason=reason, crowding=crowding)
    assert (result.starved() is not None) == starved
    again = CaseResult.from_json(result.to_json())
    assert (again.crowding, again.starved()) == (crowding, result.starved())


# --- going on with fewer --------------------------------------------------------------------------------------------


class Playing:
    """A run of some cases on three workers, as xdist's controller sees it."""

    def __init__(self, cases: int) -> None:
        names = [f"case-{number}" for number in range(cases)]
        options = {"tx": ["3*popen"], "maxschedchunk": 1}
        config = fake(pytest.Config, getvalue=options.get, getoption=options.get)
        self.scheduling = SpecAffinityScheduler({}, by_size=True).pytest_xdist_make_scheduler(config, Producer("x"))
        self.workers = [Worker(names) for _ in range(3)]
        for worker in self.workers:
            self.scheduling.add_node(worker)
            self.scheduling.add_node_collection(worker, names)
        self.scheduling.schedule()
        self.lines: list[str] = []
        self.results = fake(Results, at_once=AtOnce(count=3, why="planted"))
        run = fake(Run, results=self.results, seed=1, say=self.lines.append)
        self.names = names
        workers = SimpleNamespace(_clone_node=lambda _: self.start())
        self.adjusting = fake(
            Adjusting,
            _run=run,
            _scheduling=self.scheduling,
            _workers=workers,
            _retired=[],
            _with_room=0,
            _count_now=set(),
        )
        self._done = dict.fromkeys(self.workers, 0)

    def start(self) -> None:
        """Another worker starts, and has collected the cases."""
        worker = Worker(self.names)
        self.workers.append(worker)
        self._done[worker] = 0
        self.scheduling.add_node(worker)
        self.scheduling.add_node_collection(worker, self.names)
        self.scheduling.schedule()

    def begin(self, number: int) -> None:
        """A worker begins its next case."""
        worker = self.workers[number]
        self.adjusting.pytest_runtest_logstart(worker.given[self._done[worker]])

    def end(self, number: int, crowding: CrowdedTime = TOO_CROWDED) -> None:
        """A worker ends its case."""
        worker = self.workers[number]
        name = worker.given[self._done[worker]]
        report = pytest.TestReport(name, (name, 0, name), {}, "passed", None, "teardown")
        case_result(name, crowding=crowding).attach_to(report)
        report.node = worker  # type: ignore[attr-defined]  # as xdist does
        self.adjusting.pytest_runtest_logreport(report)
        self.scheduling.mark_test_complete(worker, worker.names.index(name))
        self._done[worker] += 1

    @property
    def active(self) -> list[bool]:
        return [not worker.shutting_down for worker in self.workers]


def test_a_starved_case_retires_its_worker_until_one_is_left() -> None:
    play = Playing(cases=30)
    for number in range(3):
        play.begin(number)
    play.end(1)
    assert play.active == [True, False, True]
    assert len(play.workers[1].given) == 2  # it had the next case already
    play.begin(1)
    play.end(2)  # it began with three at once
    play.begin(2)
    play.end(1)
    play.end(2)  # it began while the retired worker was at work
    assert play.active == [True, False, True]
    assert play.scheduling.remove_node(play.workers[1]) is None
    play.begin(2)
    play.end(2, CrowdedTime())
    play.end(0)
    assert play.active == [True, False, True]
    play.begin(0)
    play.end(0)
    assert play.active == [False, False, True]
    play.begin(0)
    play.end(0)
    assert play.scheduling.remove_node(play.workers[0]) is None
    play.begin(2)
    play.end(2)
    assert play.active == [False, False, True]
    assert [lowered.to for lowered in play.results.at_once.lowered] == [2, 1]
    assert play.lines[0] == (
        f"--jobs auto: from now on 2 at once; {play.workers[1].given[0]} was on a crowded machine "
        "(8.0 threads per core were ready to run, and sleeps took 1.0 times as long)"
    )


ROOMY, BUSY = CrowdedTime(per_core_mean=0.9), CrowdedTime(per_core_mean=1.1)


def lowered(cases: int) -> Playing:
    """A run that goes on with two workers, numbers 0 and 2."""
    play = Playing(cases)
    play.begin(1)
    play.end(1)
    play.begin(1)
    play.end(1, ROOMY)  # this worker is retired, so its last case shows nothing
    play.scheduling.remove_node(play.workers[1])
    return play


def play_on(play: Playing, *crowdings: CrowdedTime) -> None:
    """The first worker plays cases, as crowded as this."""
    for crowding in crowdings:
        play.begin(0)
        play.end(0, crowding)


def test_a_worker_starts_again_once_enough_cases_leave_room() -> None:
    play = lowered(cases=60)
    enough = ROOMY_CASES * 2
    play_on(play, *[ROOMY] * (enough - 1), BUSY, *[ROOMY] * (enough - 1))
    assert len(play.workers) == 3
    play_on(play, ROOMY)
    assert len(play.workers) == 4
    assert play.active == [True, False, True, True]
    play_on(play, *[ROOMY] * 20)
    assert len(play.workers) == 4  # as many as at the start
    assert [raised.to for raised in play.results.at_once.raised] == [3]
    assert play.lines[1] == "--jobs auto: from now on 3 at once again; 4 cases in a row left room"
    play.begin(3)
    play.end(3)
    play.scheduling.remove_node(play.workers[3])
    play_on(play, *[ROOMY] * (2 * enough - 1))
    assert len(play.workers) == 4
    play_on(play, ROOMY)  # twice as many the second time
    assert len(play.workers) == 5


def test_no_worker_starts_for_the_last_cases() -> None:
    play = lowered(cases=13)
    play_on(play, *[ROOMY] * 6)
    assert (len(play.workers), play.results.at_once.raised) == (3, ())


def test_one_second_does_not_decide_how_many_cores_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three looks at two cores: the second one meets much work."""
    idle, busy = [0, 0, 0, 10, 0, 0, 0, 0], [10, 0, 0, 0, 0, 0, 0, 0]
    cores, seen = sorted(os.sched_getaffinity(0)), [[0] * 8]
    for each in (idle, busy, idle):
        seen.append([early + late for early, late in zip(seen[-1], each, strict=True)])
    looks = iter(seen)

    def times(_: set[int]) -> dict[str, list[int]]:
        ticks = next(looks)
        return {f"cpu{core}": ticks for core in cores}

    monkeypatch.setattr(room_module, "_times", times)
    monkeypatch.setattr(room_module, "LOOK_S", 0.0)
    assert (LOOKS, room().busy) == (3, 0)
    assert next(looks, None) is None


def test_no_worker_is_retired_where_all_cases_are_sent() -> None:
    play = Playing(cases=10)
    for _ in range(2):
        for number in range(3):
            play.begin(number)
            play.end(number, CrowdedTime())
    assert not play.scheduling.pending
    play.begin(0)
    play.end(0)
    assert (play.results.at_once.lowered, play.lines) == ((), [])


def test_what_json_has() -> None:
    assert AtOnce().to_json() == {"at_once": 1}
    lowered, raised = Change(to=2, case="kip-0/a", why="crowded"), Change(to=3, case="kip-0/b", why="room")
    assert AtOnce(count=3, why="2 cores", lowered=(lowered,)).to_json() == {
        "at_once": 3,
        "why": "2 cores",
        "lowered": [{"to": 2, "case": "kip-0/a", "why": "crowded"}],
    }
    changed = AtOnce(count=3, why="2 cores", lowered=(lowered,), raised=(raised,)).to_json()
    assert changed["raised"] == [{"to": 3, "case": "kip-0/b", "why": "room"}]


# --- on pytest-xdist ------------------------------------------------------------------------------------------------

SCENARIO = '''
import pytest
from suites.kip_112.plays import play
from suites.scenario import scenario


@scenario("ours/planted", kip=112, plan="planted", judged=False)
@pytest.mark.parametrize("letter", "abcdefgh")
def test_ours(case, mode, request, letter):
    """It comes out as it is written down."""
    worker = getattr(request.config, "workerinput", {"workerid": "gw-1"})
    case.measure("worker", float(worker["workerid"][2:]))
    play(case, mode, request.config)
'''
CASES = [f"ours/planted[kraft-{letter}]" for letter in "abcdefgh"]


@pytest.fixture
def file(planted: Planted) -> Path:
    """Eight cases that starve, on a machine that allows two at once."""
    planted.machine(cores=8, memory_gib=7)
    planted.plays(dict.fromkeys(CASES, "crowded"))
    file = planted.folder / "test_ours.py"
    file.write_text(SCENARIO)
    return file


@pytest.mark.parametrize("jobs", [None, 2], ids=["auto", "given"])
def test_only_the_number_that_was_chosen_is_lowered(planted: Planted, file: Path, jobs: int | None) -> None:
    """The worker of the first case that starved ends after its next case, and the other one plays all others."""
    given = [] if jobs is None else [f"--jobs={jobs}"]
    kafka = f"--kafka-home={planted.kafka('90.0.0')}"
    code, output = planted.jbod("run", file, "--backend=planted", kafka, "--json=out.json", *given)
    assert code == 0
    assert sorted(planted.played()) == [f"{case} 90.0.0" for case in CASES]
    result = json.loads((planted.folder / "out.json").read_text())
    assert all(case["crowded"] for case in result["scenarios"])
    assert {json.loads(path.read_text())["jobs"] for path in planted.runs_dir.glob("*/run.json")} == {2}
    if jobs is None:
        assert "--jobs auto: 2 at once (8 cores, 7 GiB free)" in output
        assert output.count("--jobs auto: from now on 1 at once; ours/planted[kraft-") == 1
        assert [each["to"] for each in result["jobs"]["lowered"]] == [1]
        workers = Counter(case["measured"]["worker"] for case in result["scenarios"])
        assert sorted(workers.values()) == [2, 6]
    else:
        assert "--jobs auto" not in output
        assert result["jobs"] == {"at_once": 2}


AGAIN = '''
import pytest
from harness.waiting import await_until
from suites.kip_112.plays import HERE, play
from suites.scenario import scenario


@scenario("ours/planted", kip=112, plan="planted", judged=False)
@pytest.mark.parametrize("letter", "abcdefghijklmnopqrst")
def test_ours(case, mode, request, letter):
    """The last cases wait for one on a third worker."""
    if request.config.workerinput["workerid"] == "gw2":
        (HERE / "again").touch()
    elif letter > "l":
        await_until((HERE / "again").exists, timeout_s=60, what="a case on the worker that started again")
    play(case, mode, request.config)
'''


def test_a_worker_that_starts_again_plays_cases(planted: Planted, file: Path) -> None:
    planted.plays({CASES[0]: "crowded"})
    file.write_text(AGAIN)
    kafka = f"--kafka-home={planted.kafka('90.0.0')}"
    code, output = planted.jbod("run", file, "--backend=planted", kafka, "--json=out.json")
    assert code == 0
    assert len(set(planted.played())) == len(planted.played()) == 20
    assert "--jobs auto: from now on 2 at once again; 2 cases in a row left room" in output
    result = json.loads((planted.folder / "out.json").read_text())
    assert ([each["to"] for each in result["jobs"]["lowered"]], [each["to"] for each in result["jobs"]["raised"]]) == (
        [1],
        [2],
    )


def test_one_case_has_no_worker(planted: Planted, file: Path) -> None:
    kafka = f"--kafka-home={planted.kafka('90.0.0')}"
    selector = f"{file}::{CASES[0]}"
    code, output = planted.jbod("run", selector, "--backend=planted", kafka, "--json=out.json")
    assert (code, "--jobs auto" in output) == (0, False)
    result = json.loads((planted.folder / "out.json").read_text())
    assert [case["measured"]["worker"] for case in result["scenarios"]] == [-1.0]
    assert result["jobs"] == {"at_once": 1}
