"""``jbod run --kafka A,B`` is one run on several builds; on planted cases (:mod:`suites.selftest.planted`)."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from harness.cli.run_on_builds import print_whole, verdicts_table
from harness.runner import ledger
from harness.runner.several_builds import BuildRun
from suites.selftest.case_results import case_result
from suites.selftest.own_maven import OwnMaven
from suites.selftest.planted import Planted

A, B = ("kip-112/planted[kraft-a]", "kip-112/planted[kraft-b]")
ZK = "kip-112/planted[zk-a]"


@pytest.fixture
def own(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> OwnMaven:
    monkeypatch.setenv("COLUMNS", "100")
    return OwnMaven(open_folder, monkeypatch)


def test_one_table_one_json_one_junit_and_the_worst_exit_code(planted: Planted, own: OwnMaven) -> None:
    own.lists(["90.0.1"])
    own.has("90.0.1", "90.0.0", "3.9.90")
    planted.plays({f"{B} 90.0.1": "invalid", f"{A} 90.0.0": "deviates", ZK: "unknown"})
    asked = ["run", A, B, ZK, "--backend=planted", "--json=out.json", "--jobs=2"]
    code, output = planted.jbod(*asked, "--kafka=latest,90.0.0,3.9.90,90.0.1")  # first and last are one build
    assert code == 1
    assert "Kafka latest is 90.0.1" in output

    result = json.loads((planted.folder / "out.json").read_text())
    verdicts = {(case["id"], case["kafka"]): case["verdict"] for case in result["scenarios"]}
    assert verdicts == {
        (A, "90.0.1"): "valid",
        (B, "90.0.1"): "invalid",
        (A, "90.0.0"): "valid",
        (B, "90.0.0"): "valid",
        (A, "3.9.90"): "valid",
        (B, "3.9.90"): "valid",
        (ZK, "3.9.90"): "unknown",
    }
    codes = {"90.0.1": 1, "90.0.0": 0, "3.9.90": 2}
    assert {each["kafka"]: each["exit_code"] for each in result["builds"]} == codes
    assert result["totals"] | {"valid": 5, "invalid": 1, "unknown": 1, "deviations": 1} == result["totals"]
    seeds = {json.loads(path.read_text())["seed"] for path in planted.runs_dir.glob("*/run.json")}
    assert seeds == {result["seed"]}

    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]
    rows = {row[0]: row[1:] for row in table if len(row) == 4}
    assert rows[A] == ["valid", "valid*", "valid"]
    assert rows[B] == ["invalid", "valid", "valid"]
    assert rows[ZK] == ["–", "–", "unknown"]
    assert "* planted deviation (issue: none): 90.0.0" in output
    assert f"invalid {B} on Kafka 90.0.1\n        planted: invalid\n        again: jbod repro " in output

    names = Counter(case.get("name") for case in ElementTree.parse(junit(planted)).iter("testcase"))
    assert len(names) == 7
    assert "test_planted[kraft-b] on Kafka 3.9.90" in names
    assert len(list((planted.runs_dir.parent / "allure-results").glob("*-result.json"))) == 7
    assert Counter(entry.kafka for entry in ledger.read(planted.runs_dir)) == {"90.0.1": 2, "90.0.0": 2, "3.9.90": 3}


def test_no_build_is_cut_off_the_table() -> None:
    versions = [f"90.0.{minor}" for minor in range(20)]
    case = case_result(A)
    runs = [BuildRun(kafka=version, exit_code=0, cases=(case,)) for version in versions]
    output = io.StringIO()
    print_whole(verdicts_table(runs), Console(file=output, width=100))
    (header,) = [line for line in output.getvalue().splitlines() if "case" in line]
    assert [cell.strip() for cell in header.split("┃")[2:-1]] == versions
    assert output.getvalue().count(" valid ") == 2 * len(versions)  # in the case's row, and in the line with the counts


def junit(planted: Planted) -> Path:
    return planted.runs_dir.parent / "junit.xml"


def test_a_build_on_which_nothing_ran_is_reported(planted: Planted, own: OwnMaven) -> None:
    own.has("90.0.0", "3.9.90")
    code, output = planted.jbod("run", ZK, "--backend=planted", "--kafka=90.0.0,3.9.90", "--json=out.json")
    assert code == 5
    assert "Kafka 90.0.0: no case ran; its run ended with exit code 5" in output
    assert len(list(ElementTree.parse(junit(planted)).iter("testcase"))) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kafka=90.0.0,3.9.90", "--mode=zk"], "Kafka 90.0.0 has no mode zk; it has kraft; the last line with Zoo"),
        (["--kafka=90.0.0,four"], "'four' is not a Kafka version"),
        (["--kafka=90.0.0,3.9.90", "--kafka-home=/"], "one build at a time"),
        (["--kafka=90.0.0,3.9.90", "--seed=x"], "--seed x: not a whole number"),
        (["--kafka=3.9.90,90.0.0", "--mode=kraft", ZK], f"'{ZK}' has no case in the modes of this run"),
        (["--kafka=90.0.0,3.9.90", "kip-113"], "unknown selector 'kip-113'"),
        (["--kafka=90.0.0,"], "'' is not a Kafka version"),
        (["--kafka-home="], "--kafka-home is empty"),
        (["--kafka-tarball="], "--kafka-tarball is empty"),
    ],
)
def test_what_is_wrong_is_reported_before_the_first_build_runs(
    planted: Planted, own: OwnMaven, arguments: list[str], says: str
) -> None:
    own.has("90.0.0", "3.9.90")
    code, output = planted.jbod("run", A, "--backend=planted", *arguments)
    assert code == 4
    assert says in output
    assert planted.played() == []


def test_plain_pytest_says_who_takes_several_and_knows_the_latest(planted: Planted, own: OwnMaven) -> None:
    """Several builds are an error that names ``jbod run``; ``latest`` works, also where workers run the cases."""
    own.lists(["90.0.1"])
    own.has("90.0.1")
    checkout = planted.folder / "checkout"
    by_hand = [sys.executable, "-m", "pytest", f"--rootdir={checkout}", f"-c{os.devnull}"]
    by_hand += ["-pno:cacheprovider", str(checkout / "suites" / "kip_112"), "--backend=planted"]

    def output(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [*by_hand, *arguments],
            capture_output=True,
            text=True,
            cwd=planted.folder,
            env=planted.environment,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    code, result = output("--kafka=4.3.1,4.3.0")
    assert (code, "only `jbod run` takes several builds" in result) == (4, True), result
    code, result = output("--kafka=latest", "-n2", "-k", "kraft-a or kraft-b")
    assert (code, result.count("Kafka latest is 90.0.1")) == (0, 1), result
    assert sorted(planted.played()) == [f"{A} 90.0.1", f"{B} 90.0.1"]  # two workers: either may be first
