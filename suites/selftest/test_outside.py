"""Scenarios in another repository run by jbod and by plain pytest; no broker starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from suites.selftest.own_maven import OwnMaven
from suites.selftest.planted import Planted

CASE = "ours/planted[kraft-a]"
OTHER = "ours/planted[kraft-b]"
SETTINGS = """
[pytest]
pythonpath = lib
addopts = --no-such-option
filterwarnings = error
"""
CONFTEST = """
import pytest


@pytest.fixture
def letter_of_ours(request):
    return request.param
"""
SCENARIO = '''
import pytest
from suites.kip_112.plays import play
from suites.scenario import scenario
from teamlib import PLAN


@scenario("ours/planted", kip=112, plan=PLAN, judged=False)
@pytest.mark.parametrize("letter_of_ours", "ab", indirect=True)
def test_ours(case, mode, request, letter_of_ours):
    """It comes out as it is written down."""
    play(case, mode, request.config)


def test_no_scenario():
    raise AssertionError("jbod runs scenarios only")
'''
NOTHING = '''
from harness.runner.case import Case
from suites.scenario import scenario


@scenario("ours/nothing", kip=112, plan="nothing", judged=False)
def test_nothing(case: Case) -> None:
    """Nothing happens."""
'''


@pytest.fixture
def file(planted: Planted) -> Path:
    """A scenario beside settings, a conftest.py, and a module that the settings name."""
    team = planted.folder / "team"
    (team / "lib").mkdir(parents=True)
    (team / "tests").mkdir()
    (team / "pytest.ini").write_text(SETTINGS)
    (team / "lib" / "teamlib.py").write_text('PLAN = "as our runbook has it"\n')
    (team / "tests" / "conftest.py").write_text(CONFTEST)
    file = team / "tests" / "test_ours.py"
    file.write_text(SCENARIO)
    return file


def ids(planted: Planted, *selectors: str | Path) -> list[str]:
    """The ids of the KRaft cases that ``jbod list`` shows for these selectors."""
    code, output = planted.jbod("list", "--json", "--mode=kraft", *selectors)
    assert code == 0
    return [case for row in json.loads(output)["scenarios"] for case in row["cases"]]


def test_it_is_selected_by_paths_and_ids(planted: Planted, file: Path) -> None:
    for selector in (file, file.relative_to(planted.folder), "team/tests/", "./team", f"{file}::test_ours"):
        assert ids(planted, selector) == [CASE, OTHER]
    assert ids(planted, f"{file}::ours/planted") == [CASE, OTHER]
    assert ids(planted, f"{file}::{CASE}") == ids(planted, "team/tests/test_ours.py::test_ours[kraft-a]") == [CASE]


def test_suites_and_files_outside_in_one_run(planted: Planted, file: Path) -> None:
    """The other repository's settings are not read then, so the module that they name is not found."""
    (file.parent / "teamlib.py").write_text('PLAN = "beside it"\n')
    assert ids(planted, "kip-112", file) == [*(f"kip-112/planted[kraft-{letter}]" for letter in "abc"), CASE, OTHER]
    assert ids(planted, "suites/kip_112/test_planted.py", f"{file}::{OTHER}")[-1] == OTHER


def test_runs_say_how_to_run_them_again(planted: Planted, file: Path) -> None:
    kafka = f"--kafka-home={planted.kafka('90.0.0')}"
    planted.plays({OTHER: "invalid"})
    code, output = planted.jbod("run", file, "--backend=planted", kafka, "--jobs=2", "--json=out.json")
    assert (code, sorted(planted.played())) == (1, [f"{CASE} 90.0.0", f"{OTHER} 90.0.0"])
    cases = {case["id"]: case for case in json.loads((planted.folder / "out.json").read_text())["scenarios"]}
    assert {id: (case["verdict"], case["file"]) for id, case in cases.items()} == {
        CASE: ("valid", str(file)),
        OTHER: ("invalid", str(file)),
    }
    assert cases[OTHER]["rerun"] == f"jbod repro {cases[OTHER]['run_dir']}"
    code, _ = planted.jbod("repro", cases[OTHER]["run_dir"])
    assert (code, planted.played()[2:]) == (1, [f"{OTHER} 90.0.0"])

    code, output = planted.jbod(
        "run", f"{file}::{CASE}", "--backend=planted", kafka, "--stop-after=0", "--json=out.json"
    )
    [case] = json.loads((planted.folder / "out.json").read_text())["scenarios"]
    assert (code, case["verdict"]) == (5, "skipped")
    assert case["rerun"].startswith(f"jbod run '{file}::{CASE}' --kafka-home=")

    file.unlink()
    code, output = planted.jbod("repro", cases[OTHER]["run_dir"])
    assert (code, f"jbod: no such file: {file}" in output) == (4, True)


def test_a_bisection(planted: Planted, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnMaven(planted.folder, monkeypatch)
    own.lists(["90.0.0", "90.0.1", "90.1.0"])
    own.has("90.0.0", "90.0.1", "90.1.0")
    planted.plays({f"{CASE} 90.1.0": "valid invalid"})
    asked = [f"{file}::{CASE}", "--backend=planted", "--good=90.0.0", "--bad=90.1.0", "--repeats=2"]
    code, output = planted.jbod("bisect", *asked)
    assert (code, output.splitlines()[-1]) == (0, "valid up to 90.0.1, invalid from 90.1.0")
    assert sorted(planted.played()) == sorted(f"{CASE} {each}" for each in ("90.0.0", "90.0.1", "90.1.0") * 2)
    code, output = planted.jbod("bisect", *asked)
    assert (code, len(planted.played())) == (0, 6)

    code, output = planted.jbod("bisect", file, *asked[1:])
    assert code == 4
    assert f"is 2 cases; name one of them: {file}::{CASE}, {file}::{OTHER}" in output


def test_a_qualification(planted: Planted, file: Path) -> None:
    planted.plays({CASE: "invalid valid"})
    candidate = planted.kafka("90.0.0")
    asked = [str(file), "--mode=kraft", "--backend=planted", f"--candidate={candidate}", "--json=out.json"]
    code, _ = planted.jbod("qualify", *asked)
    told = json.loads((planted.folder / "out.json").read_text())
    assert (code, told["cases"]) == (1, {CASE: "broke", OTHER: "held"})
    assert sorted(planted.played()) == [*[f"{CASE} 90.0.0"] * 3, f"{OTHER} 90.0.0"]


@pytest.mark.parametrize(
    ("selector", "text", "code", "says"),
    [
        ("nowhere/test_ours.py", None, 4, "jbod: no such file: nowhere/test_ours.py"),
        ("nowhere/", None, 4, "jbod: no such file: nowhere/"),
        ("./it.txt", "text", 4, "jbod: ./it.txt is not a Python file"),
        ("test_it.py", "def test_it(): pass", 4, "jbod: no scenario in HERE/test_it.py: mark a test with @scenario"),
        ("./", "", 4, "jbod: no scenario in HERE: mark a test with @scenario of suites.scenario"),
        ("test_it.py::test_that", NOTHING, 4, "unknown selector 'HERE/test_it.py::test_that'"),
        ("test_it.py", "import nothing", 3, "test_it.py cannot be imported: ModuleNotFoundError: No module named"),
        ("test_it.py", "def it(:", 3, "test_it.py cannot be imported: SyntaxError: invalid syntax"),
        ("test_it.py", "it = that", 3, "test_it.py cannot be imported: NameError: name 'that' is not defined"),
    ],
)
@pytest.mark.parametrize("command", ["list", "run"])
def test_bad_input(planted: Planted, command: str, selector: str, text: str | None, code: int, says: str) -> None:
    """The error is one line, with the exit code of usage errors, or of the environment if the file cannot be loaded."""
    if text is not None:
        name = "it.txt" if selector.endswith(".txt") else "test_it.py"
        (planted.folder / name).write_text(text)
    done, output = planted.jbod(command, selector)
    lines = [line for line in output.splitlines() if line]
    assert (done, len(lines)) == (code, 1)
    assert says.replace("HERE", str(planted.folder)) in lines[0]


def test_a_bare_word_is_an_id(planted: Planted, file: Path) -> None:
    (planted.folder / "kip-112").mkdir()
    assert len(ids(planted, "kip-112")) == 3
    code, output = planted.jbod("list", "team")
    assert (code, "unknown selector 'team'; for the folder write ./team" in output) == (4, True)


@pytest.mark.parametrize("options", [[], ["-W", "error"], ["-n1"]], ids=" ".join)
def test_plain_pytest_prints_no_warning(tmp_path: Path, options: list[str]) -> None:
    """No dependency warns, in a repository whose settings ignore no warnings."""
    (tmp_path / "test_ours.py").write_text(NOTHING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test_ours.py", "--mode=kraft", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    print(done.stdout + done.stderr)
    assert done.returncode == 0
    assert "1 passed" in done.stdout
    assert "arning" not in done.stdout + done.stderr
