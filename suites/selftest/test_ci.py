"""``.ci/containers`` reports skipped and failed cases, and cases that differ from those in processes.

The commands that it calls are fakes: no engine and no cluster runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EXIT_INVALID, EXIT_NOTHING_RAN, EXIT_VALID
from harness.kafka.versions import CONFIRMED_BUILDS, DEFAULT_BUILDS, Mode
from suites.selftest.processes import JBOD as COMMAND

ROOT = Path(__file__).resolve().parents[2]
DEVIATES = {"does": "a is so", "always": True}
NOW_AND_THEN = {"does": "b is so", "always": False}
# In place of `jbod run`: writes the JSON file that the test prepared, and ends with the exit code in it.
JBOD = """\
#!/bin/sh
case "$*" in
  doctor*) echo '{"abilities": [{"name": "container image", "present": true}]}'; exit 0;;
  list*) shift 2; for each; do [ "$each" = --json ] || more="$more, 0"; done
    echo "{\\"scenarios\\": [{\\"cases\\": [0$more]}]}"; exit 0;;
  *every-way-to-fail*) told=faults;;
  *) told=docker;;
esac
cp told-$told.json reports/verdicts-$told.json
exit "$(cat code-$told)"
"""


class Ci:
    """The script, in a folder of its own, with prepared results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("reports", ".venv/bin", "bin"):
            (folder / name).mkdir(parents=True)
        shutil.copytree(ROOT / ".ci", folder / ".ci")
        for name, script in {
            ".venv/bin/jbod": JBOD,
            ".venv/bin/pytest": "#!/bin/sh\n",
            "bin/docker": "#!/bin/sh\n",
            "bin/id": '#!/bin/sh\n[ "$1" = -u ] && echo 1000 || echo somebody\n',
        }.items():
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        self.tells("docker", case("a"), case("b"))
        self.tells("faults", case("f"))
        self.tells("process", case("a"), case("b"))

    def tells(self, which: str, *cases: dict[str, Any], code: int = EXIT_VALID, seed: int = 1) -> None:
        """Prepare the result of a run."""
        text = json.dumps({"seed": seed, "scenarios": cases})
        (self.folder / ("reports/verdicts-process.json" if which == "process" else f"told-{which}.json")).write_text(
            text
        )
        (self.folder / f"code-{which}").write_text(str(code))

    def run(self) -> tuple[int, list[str]]:
        """Run the script; returns its exit code and output."""
        environment = os.environ | {"PATH": os.pathsep.join((str(self.folder / "bin"), os.environ["PATH"]))}
        done = subprocess.run(
            ["bash", ".ci/containers"], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, (done.stdout + done.stderr).splitlines()


def case(id: str, verdict: str = "valid", *deviations: dict[str, Any], reason: str = "") -> dict[str, Any]:
    entry = {"id": id, "mode": "zk", "kafka": "3.9.2", "verdict": verdict, "reason": reason}
    entry |= {"kafka_sha256": "c0ffee"} if verdict == "valid" else {}
    return entry | {"deviations": list(deviations)} if deviations else entry


@pytest.fixture
def ci(tmp_path: Path) -> Ci:
    return Ci(tmp_path)


def test_the_same_verdicts_in_both_backends(ci: Ci) -> None:
    """Cases that ran in processes only are not compared."""
    ci.tells("process", case("a", "valid", DEVIATES), case("b", "valid", NOW_AND_THEN), case("c"))
    undeclared = {"does": "c is so", "always": True, "state": "undeclared"}
    ci.tells("docker", case("b"), case("a", "valid", NOW_AND_THEN, DEVIATES | {"state": "seen"}, undeclared))
    assert ci.run() == (EXIT_VALID, ["same verdicts in both backends: 2 cases"])


@pytest.mark.parametrize(
    ("docker", "code", "differs"),
    [
        ([case("a", "invalid"), case("b")], EXIT_INVALID, "a: ['valid'] in {}, ['invalid'] in {}"),
        ([case("a"), case("b", "valid", DEVIATES)], EXIT_VALID, "b: ['valid'] in {}, ['valid', 'a is so'] in {}"),
        (
            [case("a"), case("b", "valid", DEVIATES | {"state": "mended"})],
            EXIT_VALID,
            "b: ['valid'] in {}, ['valid', 'mended: a is so'] in {}",
        ),
        ([case("a"), case("c")], EXIT_VALID, "c: None in {}, ['valid'] in {}"),
    ],
)
def test_what_differs_is_named_and_a_failure(ci: Ci, docker: list[dict[str, Any]], code: int, differs: str) -> None:
    """A difference is reported also where one of the runs has failed."""
    ci.tells("docker", *docker, code=code)
    differs = differs.format("reports/verdicts-process.json", "reports/verdicts-docker.json")
    summary = "other verdicts or deviations from backend to backend: 1 of 2 cases"
    assert ci.run() == (1, [f"DIFFERS {differs}", summary])


@pytest.mark.parametrize(
    ("seed", "kafka", "told"),
    [(2, "3.9.2", "seed 2 in {}, 1 in {}"), (1, "3.9.1", "zk 3.9.1 c0ffee in {}, 3.9.2 c0ffee in {}")],
)
def test_runs_of_other_seeds_or_builds_are_not_compared(ci: Ci, seed: int, kafka: str, told: str) -> None:
    """Such a result may be left from an earlier run."""
    ci.tells("process", *(case(id) | {"kafka": kafka} for id in "ab"), seed=seed)
    code, [line] = ci.run()
    assert code == 1
    told = told.format("reports/verdicts-process.json", "reports/verdicts-docker.json")
    assert line == f"not of the same seed and builds, so that nothing can be compared: {told}"


def test_nothing_to_compare_with_is_reported(ci: Ci) -> None:
    (ci.folder / "reports/verdicts-process.json").unlink()
    code, [line] = ci.run()
    assert code == EXIT_VALID
    assert line.startswith("verdicts in both backends are not compared: ls: ")
    assert "reports/verdicts-process.json" in line


def test_faults_that_only_root_can_do_are_no_failure_of_an_ordinary_user(ci: Ci) -> None:
    reasons = ("loop mounts: no", "loop mounts: no", "own networks: no")
    ci.tells("faults", *(case("f", "skipped", reason=reason) for reason in reasons), code=EXIT_NOTHING_RAN)
    told = ["SKIPPED in containers: 2 cases: loop mounts: no", "SKIPPED in containers: 1 cases: own networks: no"]
    no_failure = "It is no failure that nothing ran of these: only root can do that, and this is somebody."
    same = "same verdicts in both backends: 2 cases"
    assert ci.run() == (EXIT_VALID, [*told, no_failure, same])
    (ci.folder / "bin/id").write_text("#!/bin/sh\necho 0\n")
    assert ci.run() == (EXIT_NOTHING_RAN, [*told, same])


@pytest.mark.parametrize("which", ["docker", "faults"])
def test_a_run_that_fails_fails_all(ci: Ci, which: str) -> None:
    ci.tells(which, case("a"), case("b"), code=EXIT_INVALID)
    assert ci.run() == (EXIT_INVALID, ["same verdicts in both backends: 2 cases"])


def test_all_cases_that_it_would_have_run_are_reported_where_there_is_no_engine(ci: Ci) -> None:
    """The fake ``jbod list`` has one case for each selector."""
    (ci.folder / "bin/docker").write_text("#!/bin/sh\nexit 1\n")
    skipped = "SKIPPED in containers: 11 cases: no Docker engine answers, and only root may start one"
    assert ci.run() == (EXIT_VALID, [skipped])


# --- one more try -----------------------------------------------------------------------------------------------------

# In place of pytest: fails the tests named in `fails` as long as `tries` has a line left for it.
PYTEST = """\
#!/bin/sh
echo "ran $*"
if [ -s tries ]; then
  sed -i 1d tries; mkdir -p .pytest_cache/v/cache; cp fails .pytest_cache/v/cache/lastfailed; exit 1
fi
"""
# In place of `jbod run`: its verdicts come from told-1, then from told-2, and its exit code from code-1, then code-2.
RUN = """\
#!/bin/sh
for last; do :; done
n=1; [ ! -e ran ] || n=2; touch ran
cp told-$n "$last"; exit "$(cat code-$n)"
"""


def once_more(ci: Ci, command: str) -> tuple[int, list[str]]:
    """Run a function of the script; returns its exit code and its lines, without those of the fakes."""
    script = f"set -euo pipefail; bin=.venv/bin; source .ci/once_more; {command}"
    done = subprocess.run(["bash", "-c", script], cwd=ci.folder, capture_output=True, text=True, check=False)
    return done.returncode, [line for line in done.stdout.splitlines() if not line.startswith("ran ")]


@pytest.mark.parametrize(
    ("failed", "tries", "expected"),
    [
        (["t.py::a"], 0, (0, [])),
        (["t.py::a"], 1, (0, ["ONCE MORE: t.py::a", "FLAKY: t.py::a failed, and passed the second time"])),
        (["t.py::a"], 2, (1, ["ONCE MORE: t.py::a"])),
        (["t.py::a", "t.py::b", "t.py::c", "t.py::d"], 1, (1, [])),
    ],
)
def test_few_failed_tests_run_once_more(ci: Ci, failed: list[str], tries: int, expected: tuple[int, list[str]]) -> None:
    """What passes then is named; what fails again, or fails in numbers, is red."""
    (ci.folder / ".venv/bin/pytest").write_text(PYTEST)
    (ci.folder / "fails").write_text(json.dumps(dict.fromkeys(failed, True)))
    (ci.folder / "tries").write_text("one\n" * tries)
    assert once_more(ci, "tests reports/junit.xml -n 2") == expected
    flaky = ci.folder / "reports/flaky.txt"
    assert flaky.exists() == (expected == (0, expected[1]) and bool(expected[1]))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (case("b", "unknown", reason="starved"), case("b"), (0, "valid")),
        (case("b", "error", reason="starved"), case("b"), (0, "valid")),
        (case("b", "unknown", reason="starved"), case("b", "unknown"), (2, "unknown")),
        (case("b", "unknown", reason="starved"), case("b", "invalid"), (1, "unknown")),
        (case("b", "invalid", reason="3 lost"), case("b"), (1, "invalid")),
    ],
)
def test_undecided_cases_run_once_more_and_invalid_ones_never(
    ci: Ci, first: dict[str, Any], second: dict[str, Any], expected: tuple[int, str]
) -> None:
    codes = {"valid": 0, "invalid": 1, "unknown": 2, "error": 3}
    (ci.folder / ".venv/bin/jbod").write_text(RUN)
    for number, tried in ((1, [case("a"), first]), (2, [second])):
        (ci.folder / f"told-{number}").write_text(json.dumps({"seed": 1, "scenarios": tried}))
        (ci.folder / f"code-{number}").write_text(str(max(codes[each["verdict"]] for each in tried)))
    code, lines = once_more(ci, "cases reports/verdicts.json kip-112 -- --seed 1")
    entries = json.loads((ci.folder / "reports/verdicts.json").read_text())["scenarios"]
    assert (code, entries[1]["verdict"]) == expected
    assert [entry["id"] for entry in entries] == ["a", "b"]
    assert any(line.startswith("FLAKY: b came out") for line in lines) == (code == 0)


@pytest.mark.parametrize(
    ("first", "second", "code", "expected"),
    [
        ("caught", None, 0, []),
        ("got through", "caught", 0, ["ONCE MORE: b", "FLAKY: the defect b was not caught, and was the second time"]),
        ("blamed on us", "got through", 1, ["ONCE MORE: b"]),
    ],
)
def test_a_mutant_that_is_not_caught_runs_once_more(
    ci: Ci, first: str, second: str | None, code: int, expected: list[str]
) -> None:
    """What isn't caught the second time is red; the others run once."""
    (ci.folder / ".venv/bin/jbod").write_text(RUN)
    for number, outcomes in ((1, {"a": "caught", "b": first}), (2, {"b": second})):
        told = {"mutants": [{"id": id, "outcome": outcome} for id, outcome in outcomes.items()]}
        (ci.folder / f"told-{number}").write_text(json.dumps(told))
        (ci.folder / f"code-{number}").write_text("0" if set(outcomes.values()) == {"caught"} else "1")
    assert once_more(ci, "mutants reports/mutants.json --panel -- --times 1") == (code, expected)


# --- the weekly runs ----------------------------------------------------------------------------------------------

CANARY = (ROOT / ".github" / "workflows" / "canary.yml").read_text()


def test_the_canary_qualifies_against_the_default_build() -> None:
    """With a new default build, the canary's baseline and the README's line must be updated."""
    default = DEFAULT_BUILDS[Mode.KRAFT]
    assert re.findall(r"--baseline (\S+)", CANARY) == [str(default)]
    [(newest, _)] = re.findall(
        r"^Newest build run: Kafka (\S+), (\d{4}-\d\d-\d\d)", (ROOT / "README.md").read_text(), re.M
    )
    assert newest == str(default)


@pytest.mark.parametrize(
    ("file", "command"), [("canary", "probe"), ("canary", "qualify"), ("mutants", "mutants"), ("weekly", "points")]
)
def test_weekly_runs_use_options_that_there_are(file: str, command: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{file}.yml").read_text()
    called = re.search(rf"jbod {command}((?:[^\n]*\\\n)*[^\n]*)", text)
    assert called is not None
    options = re.findall(r"--[a-z][a-z-]*", called[1])
    told = subprocess.run([COMMAND, command, "--help"], capture_output=True, text=True, check=True).stdout
    assert options
    assert [option for option in options if option not in told] == []


def test_points_are_made_on_every_build_with_confirmed_deviations() -> None:
    text = (ROOT / ".github" / "workflows" / "weekly.yml").read_text()
    assert {str(version) for of in CONFIRMED_BUILDS.values() for version in of} <= set(
        re.findall(r'"(\d[\d.]+)"', text)
    )


def test_the_canary_shows_the_page_that_a_qualification_writes() -> None:
    out = re.search(r"--out (\S+)", CANARY)
    summary = re.search(r"summary=(\S+)", CANARY)
    assert out is not None
    assert summary is not None
    assert summary[1] == f"{out[1]}/report/summary.md"


# --- commit subjects --------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    own = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    subprocess.run(["git", *arguments], cwd=folder, env=os.environ | own, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("checkers: count transactions once", None),
        ("README: name the newest build", None),
        ("harness/runner, reports: mend the totals", None),
        ("releases: --kafka latest", None),
        ("checkers: " + "x" * 62, None),
        ("checkers: " + "x" * 63, "73 characters, 72 at most"),
        ("Count transactions once", 'not "area: do this"'),
        ("checkers: count transactions once.", 'not "area: do this"'),
        ("checkers: counts: fixed", None),
        ("checkers: fixes the count", '"fixes" is no imperative'),
        ("checkers: moved the count", '"moved" is no imperative'),
    ],
)
def test_commit_subjects(tmp_path: Path, subject: str, why: str | None) -> None:
    """Only subjects of commits after the one that added the check are checked."""
    git(tmp_path, "init", "-q")
    git(
        tmp_path,
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "Whatever was there before, in a subject of more than seventy-two characters.",
    )
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "commits", tmp_path / ".ci" / "commits")
    git(tmp_path, "add", ".ci")
    git(tmp_path, "commit", "-q", "-m", "The check comes.")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", subject)
    done = subprocess.run(["bash", ".ci/commits"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if why else 0), done.stderr
    assert (why or "") in done.stderr
