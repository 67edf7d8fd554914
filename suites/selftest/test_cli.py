"""Bad input to a command gives one clear line and the contract's exit code, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harness.cli.main import cli
from harness.errors import EXIT_NOTHING_RAN
from harness.runner.run_options import RUN
from harness.runner.suite_kinds import (
    CONTROLS,
    KNOWN_BUGS,
    NETWORK,
    RANDOM_SCHEDULES,
    SCHEDULES,
    is_control,
    is_random,
    must_be_valid,
)
from suites.selftest.forked_commands import Commands
from suites.selftest.processes import JBOD


def jbod(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user calls it."""
    return subprocess.run(
        [JBOD, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("run", 4, "Missing argument 'SELECTOR"),
        ("frobnicate", 4, "No such command 'frobnicate'"),
        ("run kip-112 --bogus", 4, "No such option"),
        ("run kip-1122", 4, "unknown selector 'kip-1122'; did you mean 'kip-112'?"),
        ("run kip-112 kip-112/leader-at-noon", 4, "unknown selector 'kip-112/leader-at-noon'"),
        ("run suites/nowhere.py::test", 4, "no such file: suites/nowhere.py"),
        ("run kip-112 --seed x", 4, "--seed x: not a whole number"),
        ("run kip-112 --mode both", 4, "unknown mode 'both': zk or kraft"),
        ("run kip-112 --mode zk --kafka 4.3.1", 4, "Kafka 4.3.1 has no mode zk; it has kraft"),
        ("run kip-112 --mode kraft --kafka 2.0.0", 4, "Kafka 2.0.0 has no mode kraft; it has zk"),
        ("run kip-112 --kafka four", 4, "'four' is not a Kafka version"),
        ("run kip-112 --kafka 0.11.0", 4, "has no mode with JBOD"),
        ("run kip-112 --kafka latest --mode zk", 4, "the last line with ZooKeeper is 3.9: --kafka latest-3.9"),
        ("run kip-112 --kafka latest-9.9", 4, "--kafka latest-9.9: no such release"),
        ("list --kafka 4.3.1,4.3.0", 4, "only `jbod run` takes several builds; name one"),
        ("qualify --candidate latest-9.9", 4, "--kafka latest-9.9: no such release"),
        ("run kip-112 --kafka 3.9.2 --kafka-home /", 4, "one build at a time"),
        ("run kip-112 --kafka-home /nowhere", 4, "/nowhere: there is no such folder"),
        ("run kip-112 --kafka-home /etc", 3, "/etc is not a Kafka build"),
        ("run kip-112 --kafka-tarball /nowhere.tgz", 4, "/nowhere.tgz"),
        ("run kip-112 --kafka-tarball /etc/hostname", 3, "/etc/hostname"),
        ("run kip-112 --spark-master gopher://h", 4, "gopher://h: not a Spark master"),
        ("run kip-112 --spark-master spark://127.0.0.1:1", 3, "spark://127.0.0.1:1 doesn't answer"),
        ("run kip-112 --runs-dir /etc/hostname/runs", 3, "cannot write to the runs folder /etc/hostname/runs"),
        ("run kip-112 --json /nowhere/out.json", 4, "there is no folder /nowhere"),
        ("run kip-112 --json /etc", 4, "--json /etc: it is a folder"),
        ("run kip-112 --backend podman", 4, "--backend podman"),
        ("run kip-112 --keep-cluster sometimes", 4, "sometimes"),
        ("run kip-112/leader-at-runtime[zk-chmod_000] --mode kraft", 5, "nothing ran"),
        ("run schedules --schedules x", 4, "--schedules x: not a whole number above 0"),
        ("run schedules --schedule /nowhere", 4, "--schedule /nowhere: no such file"),
        ("run schedules --schedule /etc/hostname", 3, "--schedule /etc/hostname can't be read"),
        ("run kip-112 --stop-after soon", 4, "--stop-after soon: not a number of seconds"),
        ("run kip-112 --pause-at inject --jobs 2", 4, "--pause-at pauses one case at a time"),
        ("nightly --budget forever", 4, "'forever' is not a time"),
        ("nightly --json /nowhere/out.json", 4, "there is no folder /nowhere"),
        ("nightly --backend podman", 4, "--backend podman: choose process or docker"),
        ("qualify --candidate 4.3.1 --backend podman", 4, "--backend podman: choose process or docker"),
        ("qualify --candidate 4.3.1 --json /nowhere/out.json", 4, "there is no folder /nowhere"),
        ("ledger /nowhere", 4, "no such runs folder: /nowhere"),
        ("shrink /nowhere", 4, "no such run folder: /nowhere"),
        ("tool frobnicate", 4, "no tool 'frobnicate'"),
        ("run kip-1066 --mode zk", 5, "nothing ran"),
        ("run kip-1066/entries --kafka 4.2.0", 5, "KIP-1066 needs Kafka >=4.3.0, and this is 4.2.0"),
        ("check /nowhere", 4, "no such run folder: /nowhere"),
        ("check /etc", 3, "run.json"),
        ("repro /nowhere", 4, "no such run folder: /nowhere"),
        ("repro /etc", 3, "/etc/run.json is missing: /etc is not a run folder"),
        ("cluster down nobody", 4, "no cluster 'nobody' is running"),
        ("cluster up --set nonsense", 4, "--set nonsense: not KEY=VALUE"),
        ("cluster up --racks a,b", 4, "2 racks for 3 brokers"),
        ("cluster up --controllers 2", 4, "a quorum has 1 or 3 controllers, not 2"),
        (
            "cluster up --mode zk --controllers 3",
            4,
            "ZooKeeper mode has no dedicated controllers: a broker is the controller",
        ),
    ],
)
def test_bad_input(commands: Commands, arguments: str, code: int, says: str) -> None:
    answer = commands.run(*arguments.split())
    assert answer.code == code, answer
    lines = [*answer.out.splitlines(), *answer.err]
    assert any(says in line for line in lines), lines
    assert not any("Traceback" in line for line in lines)
    assert list(commands.work_dir().iterdir()) == []
    if code != EXIT_NOTHING_RAN:  # otherwise it is a run, with a run's output
        assert [path for path in (commands.folder / "here").rglob("*") if path.is_file()] == []


def test_no_java_is_reported_with_the_command_that_fixes_it(tmp_path: Path) -> None:
    done = jbod("run", "kip-112", "--runs-dir", str(tmp_path / "runs"), PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 3
    assert "java is not on the PATH" in done.stderr
    assert "apt-get install" in done.stderr


def test_list_as_json_names_every_case_of_the_plan() -> None:
    done = jbod("list", "suites/kip_112/test_plan.py", "--json")
    assert done.returncode == 0
    scenarios = json.loads(done.stdout)["scenarios"]
    assert [scenario["id"].partition("/")[2] for scenario in scenarios] == [
        "leader-at-bootstrap",
        "leader-at-runtime",
        "follower-at-runtime",
    ]
    faults = ["chmod_000", "replaced_by_file", "chmod_a-w"]
    assert [scenario["faults"] for scenario in scenarios] == [faults, faults, [*faults, "removed"]]
    assert sum(len(scenario["cases"]) for scenario in scenarios) == 20


PAGES = ("README.md", "suites/README.md", "suites/FINDINGS.md", "suites/KNOWN_BUGS.md")
"""The pages with commands for readers."""


def test_the_coverage_page_is_what_there_is() -> None:
    """If this fails: ``jbod list --markdown > suites/COVERAGE.md``."""
    done = jbod("list", "--markdown")
    assert done.returncode == 0
    assert done.stdout == Path("suites/COVERAGE.md").read_text()


def test_what_the_pages_say_to_run_is_there() -> None:
    """Every selector in the pages' commands exists."""
    commands = [found for page in PAGES for found in re.findall(r"`jbod run ([a-z][^`…]*)`", Path(page).read_text())]
    words = {word for command in commands for word in command.partition(" --")[0].split()}
    selectors = words - {"example", "tests/test_ours.py"}  # files that the reader will write
    assert len(selectors) > 20
    done = jbod("list", *sorted(selectors))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-300:]


_COUNTS = """
import json, sys
from harness.cli.shared import collect, where
from harness.runner.selection import names_of
cases = collect(*where(())).cases
names = [names_of(case.id, case.nodeid) for case in cases]
counts = {selector: sum(selector in each for each in names) for selector in sys.argv[1:]}
print(json.dumps({"counts": counts, "suites": sorted({case.id.partition("/")[0] for case in cases})}))
"""


def test_the_readmes_say_how_many_cases_there_are() -> None:
    """The numbers are those of ``jbod list SELECTOR --json``, and each suite has a row."""
    short, full = cases_counted("README.md", "## Suites"), cases_counted("suites/README.md", "## What it runs")
    assert len(full) > 20
    argv = [sys.executable, "-c", _COUNTS, *full]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    assert found["counts"] == full
    assert [suite for suite in found["suites"] if suite not in full or suite not in short] == []
    assert [name for name, count in short.items() if full.get(name) != count] == []


def cases_counted(page: str, heading: str) -> dict[str, int]:
    """The number of cases of each selector, from the table below a heading."""
    section = Path(page).read_text().partition(heading)[2].partition("\n## ")[0]
    return {name: int(count) for name, count in re.findall(r"^\| `(\S+)` \|.*\| (\d+) \|$", section, re.MULTILINE)}


@pytest.mark.parametrize("folder", ["harness", "suites"])
def test_a_readme_names_every_module_beside_it(folder: str) -> None:
    modules = {file.name for file in Path(folder).glob("*.py")} - {"__init__.py"}
    table = "".join(line for line in Path(folder, "README.md").read_text().splitlines() if line.startswith("|"))
    assert sorted(module for module in modules if f"`{module}`" not in table) == []


def test_the_workflows_give_options_that_there_are() -> None:
    asked: list[tuple[str, str]] = []
    for workflow in Path(".github/workflows").glob("*.yml"):
        text = re.sub(r"\\\n *", "", workflow.read_text())
        for command, arguments in re.findall(r"\.venv/bin/jbod (\w+) ([^&\n]*)", text):
            asked += [(command, option) for option in re.findall(r"--[a-z-]+", arguments)]
    assert ("nightly", "--budget") in asked
    for name, option in asked:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, name
        assert option in {each for parameter in command.params for each in parameter.opts}, (name, option)


def test_every_known_bug_has_its_issue() -> None:
    done = jbod("list", "known-bugs", "--json")
    assert done.returncode == 0
    assert all(row["issue"].startswith("KAFKA-") for row in json.loads(done.stdout)["scenarios"])


def test_special_suites_exist() -> None:
    done = jbod("list", CONTROLS, SCHEDULES, KNOWN_BUGS, NETWORK, RANDOM_SCHEDULES, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    scenarios = json.loads(done.stdout)["scenarios"]
    assert {row["id"] for row in scenarios if is_random(row["id"])} == {RANDOM_SCHEDULES}
    for row in scenarios:
        if is_control(row["id"]):
            green = {must_be_valid(case) for case in row["cases"]}
            assert green == {True, False}, row["id"]


def test_plain_pytest_knows_the_same_options(pytestconfig: pytest.Config) -> None:
    """``jbod run`` has no other options than pytest's plugin, except those that pytest has under other names."""
    jbods = {parameter.name for parameter in cli.commands["run"].params} - {"selector", "jobs", "junit", "allure"}
    assert {option.name.lstrip("-").replace("-", "_") for option in RUN} == jbods
    assert sorted({*jbods, "select"} - {*vars(pytestconfig.option)}) == []


def test_plain_pytest_collects_what_they_choose() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "suites/kip_112", "--mode", "zk", "--collect-only", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_leader_at_runtime[zk-chmod_000]" in done.stdout
    assert "kraft" not in done.stdout


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("assert False", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 3),
        ("import pytest; pytest.skip('no reason')", 5),
    ],
    ids=["passes", "fails", "its process dies", "is skipped"],
)
def test_workers_bring_the_same_exit_codes(tmp_path: Path, body: str, code: int) -> None:
    (tmp_path / "test_it.py").write_text(f"def test_x(): {body}\n")
    argv = [sys.executable, "-m", "pytest", "-n2", "--max-worker-restart=0", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr


def test_all_skipped_is_not_a_pass(tmp_path: Path) -> None:
    (tmp_path / "test_skip.py").write_text("import pytest\ndef test_x(): pytest.skip('no reason')\n")
    done = subprocess.run([sys.executable, "-m", "pytest", str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 5
