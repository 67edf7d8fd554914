"""Real runs on real brokers: a valid one, the same with a changed history, and clean-up."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
import pytest

from harness.bench.histories import Load, generate
from harness.checkers.judge import AT_ONCE, judge
from harness.spark.session import SessionSource
from harness.waiting import await_until
from suites.selftest.planted_anomalies import PLANTS
from suites.selftest.processes import HANG_S, JBOD, Result, Running, marked, run

pytestmark = pytest.mark.cluster

CASE = "kip-112/follower-at-runtime[zk-chmod_000]"


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The JSON of a run with one valid case."""
    code, results = run(tmp_path_factory.mktemp("green"), CASE)
    assert code == 0, results
    return results[CASE]


def test_the_json_has_what_each_fault_cost(green: Result) -> None:
    assert (green["id"], green["verdict"]) == (CASE, "valid")
    assert set(green["phases_s"]) == {"boot", "load", "fault", "recover", "drain", "judge", "teardown"}
    for phase, awaited_s in green["awaited_s"].items():
        assert 0 <= awaited_s <= green["phases_s"][phase], phase
    assert green["awaited_s"]["boot"] > 0
    assert green["awaited_s"]["fault"] > 0
    assert green["awaited_s"]["judge"] == 0
    log_dir, *killed = green["faults"]
    assert log_dir["name"] == "chmod_000"
    assert [fault["name"] for fault in killed] == ["broker_killed", "broker_killed"]
    assert all(fault["proven"] for fault in green["faults"])
    for measure in ("noticed_s", "produce_gap_s", "consume_gap_s"):
        assert 0 < log_dir[measure] < green["duration_s"], measure


def test_run_json_says_what_was_run(green: Result) -> None:
    content = json.loads((Path(green["run_dir"]) / "run.json").read_text())
    assert content["case"] == CASE
    assert content["kafka"]["version"] == "3.9.2"
    assert len(content["kafka"]["sha256"]) == 64
    assert content["outcome"]["verdict"] == "valid"


def test_a_worker_reports_which_deviation_a_case_has_shown(tmp_path: Path) -> None:
    """Workers can send only plain types; any other ends the run with an internal error."""
    code, results = run(tmp_path, "kip-1066/registration", "--jobs=2")
    assert code == 0, results
    (scenario,) = results.values()
    modes = [deviation["modes"] for deviation in scenario["deviations"] if deviation["state"] == "seen"]
    assert modes == [["zk", "kraft"]] * 2


def _change(rows: pa.Table, column: str, row: int, value: object) -> pa.Table:
    values = rows[column].to_pylist()
    values[row] = value
    index = rows.schema.get_field_index(column)
    return rows.set_column(index, rows.schema.field(index), pa.array(values, rows.schema.field(index).type))


def _taken_out(drain: pa.Table) -> pa.Table:
    return pa.concat_tables([drain.slice(0, 100), drain.slice(101)])


def _doubled(drain: pa.Table) -> pa.Table:
    """The rows with the last record once more, at the next offset."""
    last = drain.slice(drain.num_rows - 1)
    return pa.concat_tables([drain, _change(last, "offset", 0, last["offset"][0].as_py() + 1)])


def _swapped(drain: pa.Table) -> pa.Table:
    for column in ("seq", "crc32"):
        ours = drain[column].to_pylist()
        drain = _change(_change(drain, column, 100, ours[101]), column, 101, ours[100])
    return drain


def _changed(drain: pa.Table) -> pa.Table:
    return _change(drain, "crc32", 100, (drain["crc32"][100].as_py() + 1) % 2**32)


@pytest.mark.parametrize(
    ("tamper", "kind"),
    [(_taken_out, "lost"), (_doubled, "duplicated"), (_swapped, "misplaced"), (_changed, "corrupted")],
)
def test_a_tampered_history_is_invalid_and_named(
    green: Result,
    tmp_path: Path,
    judge_spark: SessionSource,
    tamper: Callable[[pa.Table], pa.Table],
    kind: str,
) -> None:
    """One acked record of one topic is removed, doubled, swapped with its neighbour, or changed."""
    run_dir = shutil.copytree(green["run_dir"], tmp_path / "run")
    parts = sorted((run_dir / "history" / "consumed").glob("*.parquet"))
    tables = [pq.read_table(part) for part in parts]
    consumed = pa.concat_tables(tables, promote_options="default")
    for part in parts:
        part.unlink()
    of_interest = pc.and_(pc.equal(consumed["topic"], "orders"), pc.equal(consumed["role"], "drain"))
    drain = consumed.filter(of_interest).sort_by("offset")
    rest = consumed.filter(pc.invert(of_interest))
    if kind != "doubled":
        # The live consumer's reads would show it, too; without them, only the drain does.
        rest = rest.filter(pc.not_equal(rest["topic"], "orders"))
    pq.write_table(pa.concat_tables([rest, tamper(drain)]), parts[0])
    verdict = judge(judge_spark, run_dir)
    assert verdict.verdict == "invalid"
    assert kind in {anomaly.kind for anomaly in verdict.anomalies}, verdict
    named = next(anomaly for anomaly in verdict.anomalies if anomaly.kind == kind)
    assert named.examples[0]["topic"] == "orders"


def test_check_judges_a_stored_run_again(green: Result, tmp_path: Path) -> None:
    run_dir = shutil.copytree(green["run_dir"], tmp_path / "run")
    (run_dir / "verdict.json").unlink()
    done = subprocess.run([JBOD, "check", run_dir], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((run_dir / "verdict.json").read_text())["verdict"] == "valid"
    shutil.rmtree(run_dir / "history" / "produced")
    done = subprocess.run([JBOD, "check", run_dir], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "produced" in done.stderr


def rows_in(table: Path) -> int:
    return sum(pq.read_metadata(part).num_rows for part in table.glob("*.parquet"))


@pytest.mark.parametrize(
    ("how", "jobs"),
    [
        (signal.SIGKILL, 1),
        (signal.SIGKILL, 2),
        (signal.SIGINT, 2),
        (signal.SIGTERM, 1),
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.weekly),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.weekly),
    ],
    ids=lambda word: word.name if isinstance(word, signal.Signals) else f"jobs={word}",
)
def test_nothing_is_left_when_a_run_is_ended_in_the_middle(
    tmp_path: Path, open_folder: Path, how: signal.Signals, jobs: int
) -> None:
    """A run that is ended while a log dir is broken leaves no process and no folder.

    After SIGKILL, ``jbod clean`` removes what is left; or the worker that runs the case does, once its controller is
    gone. An interrupted case has not failed, so ``--keep-cluster on-failure`` keeps nothing."""
    keeps = [] if how is signal.SIGKILL else ["--keep-cluster=on-failure"]
    run = Running(tmp_path, open_folder, CASE, f"--jobs={jobs}", *keeps)
    run.start()
    run.await_event('"fault.injected"')
    [folder] = [path.parent for path in run.runs_dir.glob("*/events.jsonl")]
    recorded = partial(rows_in, folder / "history" / "produced")
    await_until(recorded, lambda rows: rows >= 200, timeout_s=30, what="200 records to be on disk")
    assert len(run.nodes()) == 4
    run.send(how)
    code = run.await_end()
    if how is signal.SIGKILL and jobs > 1:
        await_until(lambda: list(open_folder.iterdir()), lambda left: not left, timeout_s=60, what="all to be undone")
    elif how is signal.SIGKILL:
        # The kernel ends the brokers; files stay until the next run or `jbod clean`.
        await_until(run.nodes, lambda left: not left, timeout_s=10, what="brokers to end")
        assert list(open_folder.iterdir())
        clean = subprocess.run([JBOD, "clean"], env=run.environment, capture_output=True, text=True, check=True)
        assert folder.name in clean.stdout
        # The history so far can be judged: the verdict is unknown.
        check = subprocess.run([JBOD, "check", folder], capture_output=True, text=True, check=False)
        verdict = json.loads((folder / "verdict.json").read_text())
        assert (check.returncode, verdict["verdict"]) == (2, "unknown"), check.stdout + check.stderr
        assert [anomaly["kind"] for anomaly in verdict["anomalies"]] == ["undrained"]
        assert verdict["counts"]["acked"] >= 100
    else:
        assert code != 0
    run.assert_nothing_left()


def test_a_cluster_that_was_kept_can_be_looked_at_and_taken_down(tmp_path: Path, open_folder: Path) -> None:
    """The user sees how to reach it, also if only the judge finds a failure, and if a worker ran the case."""
    run = Running(tmp_path, open_folder, "control/deleted-records[kraft-lost]", "--keep-cluster=on-failure", "--jobs=2")
    run.start()
    assert run.await_end() == 1, run.said.read_text()
    [case] = run.results()
    commands = dict(line.split(":", 1) for line in case["kept"] if ": " in line and "jbod" in line)

    def call(name: str) -> str:
        argv = [str(JBOD), *shlex.split(commands[name])[1:]]
        done = subprocess.run(argv, env=run.environment, capture_output=True, text=True, check=True)
        return done.stdout

    try:
        assert len(run.nodes()) == 4
        assert [line for line in case["kept"] if line not in run.said.read_text()] == []
        assert "orders" in call("inspect it")
        assert '"logDirs"' in call("its log dirs")
    finally:
        call("take it down")
    run.assert_nothing_left()


WORKERS = ("worker-1", "worker-2")


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A standalone Spark on loopback, with a master and two workers as processes: its URL, and its folder.

    The folder has one folder for each worker.
    """
    home, folder = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("spark")
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        role = f"org.apache.spark.deploy.{name.partition('-')[0]}.{name.partition('-')[0].capitalize()}"
        argv = [str(home / "bin" / "spark-class"), role, "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(folder / name),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (folder / f"{name}.log").open("wb") as log:
            processes.append(subprocess.Popen(argv, env=environment, stdout=log, stderr=log))

    def logged(name: str, pattern: str) -> str:
        found = await_until(
            lambda: re.search(pattern, (folder / f"{name}.log").read_text()),
            timeout_s=60,
            what=f"{pattern} in {name}.log",
        )
        assert found is not None
        return found[0]

    try:
        start("master", "--port", "0")
        url = logged("master", r"spark://127\.0\.0\.1:\d+")
        for worker in WORKERS:
            start(worker, "--cores", "4", "--memory", "2g", url)
        for worker in WORKERS:
            logged(worker, "Successfully registered with master")
        yield url, folder
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


def test_the_pair_runs_on_a_standalone_spark(tmp_path: Path, standalone: tuple[str, Path]) -> None:
    case = "kip-112/leader-at-runtime[kraft-chmod_000]"
    code, results = run(tmp_path, case, f"--spark-master={standalone[0]}")
    assert (code, results[case]["verdict"]) == (0, "valid"), results


def test_a_large_history_has_the_same_verdict_on_a_standalone_spark(
    tmp_path: Path, standalone: tuple[str, Path]
) -> None:
    """The judge reads by windows; the history has one anomaly of each kind near its end, and both workers take part."""
    master, folder = standalone
    run_dir = tmp_path / "run"
    # Undrained records lie behind the end of a drain, where other kinds are planted.
    planted = {kind: plant for kind, plant in PLANTS.items() if kind != "undrained"}
    rows = generate(run_dir, Load(records=2_000_000, transaction_of=100, planted=planted.values()))
    assert rows > AT_ONCE

    def checked(*options: str) -> str:
        argv = [str(JBOD), "check", str(run_dir), *options]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        return (run_dir / "verdict.json").read_text()

    def tasks(worker: str) -> int:
        return sum(path.read_text().count("Running task") for path in folder.glob(f"{worker}/app-*/*/stderr"))

    before = {worker: tasks(worker) for worker in WORKERS}
    here, there = checked(), checked(f"--spark-master={master}")
    assert there == here
    assert planted.keys() <= {anomaly["kind"] for anomaly in json.loads(here)["anomalies"]}
    for worker in WORKERS:
        assert tasks(worker) - before[worker] >= 4, "a task for each of its cores, in the first job alone"


def test_a_broker_that_dies_at_start_is_reported_with_its_last_log_lines(open_folder: Path) -> None:
    environment = os.environ | {"JBOD_WORK_DIR": str(open_folder)}
    argv = [str(JBOD), "cluster", "up", "--mode", "zk", "--set", "log.retention.ms=never"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert "ended with exit code 1" in done.stderr
    assert "Invalid value never for configuration log.retention.ms" in done.stderr
    assert list(open_folder.iterdir()) == []


def test_a_cluster_by_hand_comes_up_as_asked_and_goes_without_a_trace(open_folder: Path) -> None:
    environment = os.environ | {"JBOD_WORK_DIR": str(open_folder)}

    def jbod(*arguments: str) -> str:
        argv = [str(JBOD), "cluster", *arguments]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    up = jbod("up", "--mode", "kraft", "--brokers", "2", "--log-dirs", "3", "--racks", "a,b")
    name = up.partition(":")[0]
    assert len(marked(name)) == 3
    assert len(list((open_folder / name).glob("broker-*-log-dir-*"))) == 6
    assert "broker.rack=b" in (open_folder / name / "broker-2" / "server.properties").read_text()
    assert "3 processes" in jbod("status")
    assert f"{name}: down" in jbod("down")
    assert marked(name) == []
    assert list(open_folder.iterdir()) == []
