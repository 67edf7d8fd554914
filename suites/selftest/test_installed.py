"""A wheel that is built from this checkout works as the checkout does, in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.host.abilities import ability
from harness.kafka.versions import DEFAULT_BUILDS, Mode
from suites.selftest.needs import require
from suites.selftest.processes import HANG_S, JBOD
from suites.selftest.test_examples import OURS, example

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("harness", "faults", "suites", "compose")
"""The folders that are installed, without their Markdown pages and the selftest."""
CASE = "kip-112/leader-at-runtime[kraft-chmod_000]"
OWN_CASE = "ours/leader-killed[kraft]"


def copy(folder: Path) -> Path:
    """Copy the checked-out files, without files that builds and runs left."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copyfile(ROOT / name, source / name)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "reports").mkdir()
    for file in (ROOT / "reports").glob("*.py"):
        shutil.copyfile(file, source / "reports" / file.name)
    for name in ("assets", "templates"):
        shutil.copytree(ROOT / "reports" / name, source / "reports" / name)
    return source


def build(source: Path, folder: Path) -> Path:
    """Build a wheel; the build leaves folders in its source."""
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    subprocess.run(argv, check=True, timeout=HANG_S)
    [wheel] = folder.glob("*.whl")
    return wheel


def test_a_wheel_has_every_file_that_is_read(tmp_path: Path) -> None:
    """If this fails for a new data file, pyproject.toml must name it."""
    source = copy(tmp_path)
    files = [file.relative_to(source) for file in source.glob("*/**/*") if file.is_file()]
    read = [file for file in files if file.suffix != ".md" and not file.is_relative_to("suites/selftest")]
    wanted = set(map(str, read))
    assert {"compose/Dockerfile", "reports/templates/case.html", "reports/assets/package-lock.json"} < wanted
    with zipfile.ZipFile(build(source, tmp_path)) as archive:
        had = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert (sorted(had - wanted), sorted(wanted - had)) == ([], [])
        assert [name for name in sorted(had) if archive.read(name) != (ROOT / name).read_bytes()] == []


@dataclass(frozen=True, kw_only=True)
class Installed:
    """jbod from a wheel, with its dependencies.

    :ivar folder: an empty one, in which it is run
    """

    programs: Path
    folder: Path

    def run(self, program: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs to the end; no variable points to this checkout."""
        left_out = {"PYTHONPATH", "PYTEST_ADDOPTS", "VIRTUAL_ENV"}
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if name not in left_out} | environment,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        print(done.stdout + done.stderr)
        return done

    def verdicts(self) -> dict[str, str]:
        """The verdicts in its ``out.json``, by case."""
        cases = json.loads((self.folder / "out.json").read_text())["scenarios"]
        return {case["id"]: case["verdict"] for case in cases}

    def pages(self, folder: str) -> set[str]:
        """The pages in ``folder/report``; the page of the only run folder is called RUN."""
        [run] = (self.folder / folder).rglob("run.json")
        report = self.folder / folder / "report"
        return {str(page.relative_to(report)).replace(run.parent.name, "RUN") for page in report.rglob("*.html")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Install jbod as a user does: 800 MB, removed after the module's tests."""
    home = tmp_path_factory.mktemp("installed")
    environment, folder = home / "environment", home / "empty"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=HANG_S)
    pip = [str(environment / "bin" / "pip"), "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "install", "--constraint", ROOT / ".ci" / "constraints.txt", build(copy(home), home)],
        check=True,
        timeout=HANG_S,
    )
    yield Installed(programs=environment / "bin", folder=folder)
    shutil.rmtree(home)


@pytest.mark.cluster
def test_it_has_the_commands_and_scenarios_of_the_checkout(installed: Installed) -> None:
    for arguments in (["list", "--json"], ["--help"]):
        done = installed.run("jbod", *arguments)
        here = subprocess.run([JBOD, *arguments], capture_output=True, text=True, timeout=HANG_S, check=False)
        assert (done.returncode, done.stdout) == (0, here.stdout)
    for command in ("report", "qualify"):  # entry points, which are loaded when they are called
        assert installed.run("jbod", command, "--help").returncode == 0


@pytest.mark.cluster
def test_it_runs_and_reports_in_an_empty_folder(installed: Installed) -> None:
    """It runs a case of the suites and one of another repository, and makes every kind of page."""
    tests = installed.folder / "tests"
    tests.mkdir()
    (tests / "test_ours.py").write_text(example("suites/README.md", OURS))
    done = installed.run("pytest", "tests", "--mode=kraft", "--collect-only", "-p", "no:cacheprovider")
    assert (done.returncode, "warning" in done.stdout) == (0, False)

    done = installed.run("jbod", "run", CASE, "--json=out.json")
    assert (done.returncode, installed.verdicts()) == (0, {CASE: "valid"})
    done = installed.run("jbod", "report")
    has_allure = ability("node").present and "npm could not install" not in done.stderr
    wanted = {"index.html", "cases/RUN.html"} | ({"allure.html"} if has_allure else set())
    assert (done.returncode, installed.pages("reports/runs")) == (0, wanted)

    asked = ("tests/test_ours.py", f"--candidate={DEFAULT_BUILDS[Mode.KRAFT]}", "--mode=kraft", "--json=out.json")
    assert installed.run("jbod", "qualify", *asked).returncode == 0
    answer = json.loads((installed.folder / "out.json").read_text())
    assert answer["cases"].keys() == {OWN_CASE}
    assert installed.pages("reports/qualify") == {"index.html", "qualification.html", "cases/RUN.html"}


@pytest.mark.docker
@pytest.mark.cluster
def test_it_runs_in_containers(installed: Installed) -> None:
    """It uses the installed compose files."""
    require("docker", "compose", "container image")
    done = installed.run("jbod", "run", CASE, "--backend=docker", "--json=out.json")
    assert (done.returncode, installed.verdicts()) == (0, {CASE: "valid"})
