"""Runs a candidate and a baseline, case by case, until each case has run often enough.

Each build has a runs folder of its own, whose ledger decides which cases are due (:mod:`harness.runner.ledger`). There
is no other state, so the same command continues an interrupted qualification. The baseline has a second folder, with
runs that earlier qualifications kept (:mod:`harness.runner.baselines`). Cases that were not valid run three times, to
tell a regression from a flaky case. The builds take turns, round by round, so that a machine that is slow for an hour
affects both.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.cluster.nodes.backends import unknown_backend
from harness.errors import DistributionError, JbodError, UsageError
from harness.kafka.builds import BuildOptions, Builds
from harness.kafka.distribution import Distribution, from_home
from harness.runner import ledger
from harness.runner.listing import ListedScenario
from harness.runner.outside import selector_of
from harness.runner.subrun import arguments_of, jbod_command, run_apart
from harness.runner.suite_kinds import suite_of

WAVERING = 3
"""The number of runs of a case that was invalid or unknown at least once."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two builds.

    :ivar name: "candidate" or "baseline"
    :ivar backend: the backend of its nodes
    :ivar runs_dir: the folder of its run folders
    :ivar reused_dir: the folder of runs of earlier qualifications; it may be missing
    """

    name: str
    build: BuildOptions
    backend: str
    runs_dir: Path
    reused_dir: Path

    @property
    def options(self) -> list[str]:
        """The options of ``jbod run`` that choose the build."""
        return arguments_of(vars(self.build))

    @property
    def probe(self) -> Path:
        """The file with the result of ``jbod probe`` on the build."""
        return self.runs_dir.with_name(f"{self.runs_dir.name}-probe.json")

    def ran(self) -> list[ledger.Entry]:
        """Return the ledger entries of its runs on this backend, first the reused ones."""
        return [*ledger.alike(ledger.read(self.reused_dir), {}, self.backend), *self.ran_itself()]

    def ran_itself(self) -> list[ledger.Entry]:
        """Return the ledger entries of this qualification's own runs on this backend."""
        return ledger.alike(ledger.read(self.runs_dir), {}, self.backend)

    def folders(self) -> list[Path]:
        """Return the folders that have its runs."""
        return [self.runs_dir, *([self.reused_dir] if self.reused_dir.exists() else [])]

    def distribution(self, say: Callable[[str], None]) -> Distribution:
        """Return the build, which is the same in each of its modes."""
        builds = Builds.choose(self.build)
        return builds.of(builds.modes()[0], say)


def build_options(build: str, mode: str | None) -> BuildOptions:
    """Return the options that choose a build.

    :param build: a version, an unpacked build or a tarball
    :raises UsageError: the name is empty
    """
    if not build:
        raise UsageError("the name of a build is empty; name a version, a folder or a tarball")
    if Path(build).is_file():
        option = "kafka_tarball"
    else:
        option = "kafka_home" if os.sep in build or Path(build).is_dir() else "kafka"
    return BuildOptions(mode=mode, **{option: build})


def side(name: str, build: str, runs_dir: Path, mode: str | None, backend: str = "process") -> Side:
    """Return the side of a build.

    :param build: a version, an unpacked build or a tarball
    :raises UsageError: the name is empty
    """
    return Side(
        name=name,
        build=build_options(build, mode),
        backend=backend,
        runs_dir=runs_dir,
        reused_dir=runs_dir.with_name(f"{runs_dir.name}-reused"),
    )


def check_no_mutant(build: Side) -> None:
    """Check that the build has no defect of ``jbod mutants``.

    :raises DistributionError: it is a mutant (:mod:`suites.mutants`)
    """
    if build.build.kafka_home and (mutant := from_home(Path(build.build.kafka_home)).mutant):
        raise DistributionError(
            f"the {build.name} {build.build.kafka_home} has the defect {mutant}, so it can't be qualified: name another"
        )


def check_same_build(build: Side) -> None:
    """Check that all runs in the side's runs folder were on this build. Otherwise results of two builds would be mixed.

    :raises UsageError: some were on another build
    """
    entries = ledger.read(build.runs_dir)
    if not entries:
        return
    builds = Builds.choose(build.build)
    distributions = [builds.of(mode) for mode in builds.modes()]
    ours = {(str(each.version), sha256) for each in distributions for sha256 in (each.sha256, "")}
    if others := {(entry.kafka, entry.sha256) for entry in entries} - ours:
        found = ", ".join(f"Kafka {kafka} (sha256 {sha256[:12]})" for kafka, sha256 in sorted(others))
        this = ", ".join(f"Kafka {each.version} (sha256 {each.sha256[:12]})" for each in distributions[:1])
        raise UsageError(f"{build.runs_dir} has runs of {found}, and the {build.name} is {this}: give another --out")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The cases to run on a build.

    :ivar scenarios: the scenario of each case, by case id
    :ivar unfit: reasons why other cases do not apply to the build, and the number of cases for each
    """

    scenarios: Mapping[str, ListedScenario]
    unfit: Mapping[str, int]

    @property
    def cases(self) -> tuple[str, ...]:
        """The ids of the cases."""
        return tuple(self.scenarios)

    @property
    def of_the_suites(self) -> tuple[str, ...]:
        """The ids of the cases whose scenarios are in the suites."""
        return tuple(case for case, scenario in self.scenarios.items() if scenario.file is None)

    def selector(self, case: str) -> str:
        """Return the selector of a case."""
        return selector_of(case, self.scenarios[case].file)

    def without(self, suites: Collection[str]) -> Wanted:
        """Return the cases outside these suites."""
        return replace(self, scenarios={id: of for id, of in self.scenarios.items() if suite_of(id) not in suites})

    def beside(self, other: Wanted) -> Wanted:
        """Return the cases that the other build also has. The rest cannot be compared, and counts as unfit."""
        here = {id: of for id, of in self.scenarios.items() if id in other.scenarios}
        alone = len(self.scenarios) - len(here)
        why = {"the candidate lacks what they check": alone} if alone else {}
        return Wanted(scenarios=here, unfit={**self.unfit, **why})


def cases_of(build: Side, selectors: Sequence[str]) -> Wanted:
    """Return the cases that apply to a build.

    :raises JbodError: ``jbod list`` failed; the error has its message and exit code
    """
    done = subprocess.run(
        jbod_command("list", *selectors, *build.options, "--json"), capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines() or ["jbod list printed nothing"]
        error = JbodError(f"{build.name}: {output[0].removeprefix('jbod: ')}")
        error.exit_code = done.returncode  # type: ignore[misc]  # that of jbod list
        raise error
    scenarios = [ListedScenario.from_json(each) for each in json.loads(done.stdout)["scenarios"]]
    known = scenarios[0].backends if scenarios else (build.backend,)  # includes backends of other packages
    if build.backend not in known:
        raise unknown_backend(build.backend, known)
    return Wanted(
        scenarios={case: each for each in scenarios for case in each.cases if case not in each.unfit},
        unfit=Counter(why for each in scenarios for why in each.unfit.values()),
    )


def due(cases: Collection[str], entries: Collection[ledger.Entry], repeats: int) -> list[str]:
    """Return the cases that have not run often enough. Runs that ended as error do not count."""
    ran = Counter(entry.id for entry in entries if entry.verdict != "error")
    wavers = {entry.id for entry in entries if entry.verdict in ("invalid", "unknown")}
    return [case for case in cases if ran[case] < (max(repeats, WAVERING) if case in wavers else repeats)]


def run_too_seldom(build: Side, wanted: Wanted, repeats: int) -> list[str]:
    """Return the cases that ran at least once, but not often enough, because the last round brought no result."""
    entries = build.ran()
    ran = {entry.id for entry in entries if entry.verdict != "error"}
    return [case for case in due(wanted.cases, entries, repeats) if case in ran]


def run_sides(
    sides: Sequence[Side],
    wanted: Mapping[str, Wanted],
    options: Sequence[str],
    *,
    repeats: int,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, int]:
    """Run the wanted cases of each side until nothing is due. Returns the exit code of each side's last round, by name.

    Both sides have the same seed in a round, and the next round has another. A case that ran with the seed of a round
    waits for the next one. A round without any result (only errors and skipped cases) is the last one for its side; the
    report names these cases.
    """
    stuck: set[str] = set()
    codes: dict[str, int] = {}

    def left() -> list[tuple[Side, list[str]]]:
        found = [(each, due(wanted[each.name].cases, each.ran(), repeats)) for each in sides]
        return [(each, cases) for each, cases in found if cases and each.name not in stuck]

    for round_seed in itertools.count(seed):
        if not (at_work := left()):
            break
        for each, all_due in at_work:
            ran = {entry.id for entry in each.ran() if entry.seed == round_seed and entry.verdict != "error"}
            if not (now_due := [case for case in all_due if case not in ran]):
                continue
            say(f"{each.name}: {len(now_due)} of {len(wanted[each.name].cases)} cases are due")
            known = len(each.ran())
            where = (f"--probe={each.probe}", f"--runs-dir={each.runs_dir}", f"--junit={_next_file(each.runs_dir)}")
            drawn = (f"--backend={each.backend}", f"--seed={round_seed}")
            named = (wanted[each.name].selector(case) for case in now_due)
            done = run_apart(*named, *each.options, *drawn, *where, *options)
            codes[each.name] = done.exit_code
            if all(entry.verdict == "error" for entry in each.ran()[known:]):
                stuck.add(each.name)
    return codes


def _next_file(runs_dir: Path) -> Path:
    """Return the JUnit file of the next round, which does not exist yet."""
    files = (runs_dir.with_name(f"{runs_dir.name}-{round}.xml") for round in itertools.count(1))
    return next(file for file in files if not file.exists())
