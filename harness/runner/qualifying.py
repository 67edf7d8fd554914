"""Run a candidate and a baseline, case for case, as often as it takes to tell; can be taken up where it was left.

Each build has a runs folder of its own, whose ledger says what is still due (:mod:`harness.runner.ledger`): nothing
else is remembered, so that an interrupted qualification goes on by being asked for again. Cases that are not valid are
run three times, to tell what breaks from what breaks now and then. The builds take turns, round by round, so that a
machine that is slow for an hour is slow for both.
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
from typing import Any

from harness.cluster.nodes.backends import no_backend
from harness.errors import JbodError, UsageError
from harness.kafka.builds import BuildOptions, Builds
from harness.runner import ledger
from harness.runner.outside import selector_of
from harness.runner.subrun import arguments_of, jbod_command, run_apart
from harness.runner.suite_kinds import suite_of

WAVERING = 3
"""How often a case is run that wasn't valid at once."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two builds.

    :ivar backend: what its nodes run in
    :ivar runs_dir: where its run folders are
    """

    name: str
    build: BuildOptions
    backend: str
    runs_dir: Path

    @property
    def options(self) -> list[str]:
        """Of ``jbod run``, which choose the build."""
        return arguments_of(vars(self.build))

    @property
    def probe(self) -> Path:
        """Where it is kept what ``jbod probe`` found of the build."""
        return self.runs_dir.with_name(f"{self.runs_dir.name}-probe.json")

    def ran(self) -> list[ledger.Entry]:
        """What has run of it in this backend."""
        return ledger.alike(ledger.read(self.runs_dir), {}, self.backend)


def build_options(build: str, mode: str | None) -> BuildOptions:
    """The options that choose a build: a version, an unpacked build or a tarball.

    :raises UsageError: it is empty
    """
    if not build:
        raise UsageError("the name of a build is empty; name a version, a folder or a tarball")
    if Path(build).is_file():
        option = "kafka_tarball"
    else:
        option = "kafka_home" if os.sep in build or Path(build).is_dir() else "kafka"
    return BuildOptions(mode=mode, **{option: build})


def side(name: str, build: str, runs_dir: Path, mode: str | None, backend: str = "process") -> Side:
    """The side of a build: a version, an unpacked build or a tarball."""
    return Side(name=name, build=build_options(build, mode), backend=backend, runs_dir=runs_dir)


def check_same_build(build: Side) -> None:
    """See that what ran there ran on this very build: to go on from it would tell one's runs as another's.

    :raises UsageError: it ran on another one
    """
    entries = ledger.read(build.runs_dir)
    if not entries:
        return
    builds = Builds.choose(build.build)
    distributions = [builds.of(mode) for mode in builds.modes()]
    ours = {(str(each.version), sha256) for each in distributions for sha256 in (each.sha256, "")}
    if others := {(entry.kafka, entry.sha256) for entry in entries} - ours:
        told = ", ".join(f"Kafka {kafka} (sha256 {sha256[:12]})" for kafka, sha256 in sorted(others))
        this = ", ".join(f"Kafka {each.version} (sha256 {each.sha256[:12]})" for each in distributions[:1])
        raise UsageError(f"{build.runs_dir} has runs of {told}, and the {build.name} is {this}: give another --out")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What there is to run on a build.

    :ivar scenarios: by the id of each case what ``jbod list`` says of its scenario
    :ivar unfit: why others, so many each, are none for it: it doesn't have what they check
    """

    scenarios: Mapping[str, Mapping[str, Any]]
    unfit: Mapping[str, int]

    @property
    def cases(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(self.scenarios)

    def selector(self, case: str) -> str:
        """What selects a case."""
        return selector_of(case, self.scenarios[case].get("file"))

    def without(self, suites: Collection[str]) -> Wanted:
        """All but these suites."""
        return replace(self, scenarios={id: of for id, of in self.scenarios.items() if suite_of(id) not in suites})

    def beside(self, other: Wanted) -> Wanted:
        """Those that the other has, too: what it hasn't there is nothing to compare with."""
        here = {id: of for id, of in self.scenarios.items() if id in other.scenarios}
        alone = len(self.scenarios) - len(here)
        why = {"the candidate doesn't have what they check": alone} if alone else {}
        return Wanted(scenarios=here, unfit={**self.unfit, **why})


def cases_of(build: Side, selectors: Sequence[str]) -> Wanted:
    """The cases that there are for a build.

    :raises JbodError: with what ``jbod list`` said
    """
    done = subprocess.run(
        jbod_command("list", *selectors, *build.options, "--json"), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        error = JbodError(f"{build.name}: {said[0].removeprefix('ERROR: ').removeprefix('jbod: ')}")
        error.exit_code = done.returncode  # type: ignore[misc]  # theirs
        raise error
    scenarios = json.loads(done.stdout)["scenarios"]
    known = scenarios[0]["backends"] if scenarios else [build.backend]  # one's own is there, too
    if build.backend not in known:
        raise no_backend(build.backend, known)
    return Wanted(
        scenarios={case: each for each in scenarios for case in each["cases"] if case not in each["unfit"]},
        unfit=Counter(why for each in scenarios for why in each["unfit"].values()),
    )


def due(cases: Collection[str], entries: Collection[ledger.Entry], repeats: int) -> list[str]:
    """The cases that have not been run often enough; errors of the harness don't count."""
    ran = Counter(entry.id for entry in entries if entry.verdict != "error")
    wavers = {entry.id for entry in entries if entry.verdict in ("invalid", "unknown")}
    return [case for case in cases if ran[case] < (max(repeats, WAVERING) if case in wavers else repeats)]


def run_too_seldom(build: Side, wanted: Wanted, repeats: int) -> list[str]:
    """The cases that ran, and not as often as they were to: their side got no further. Those that never did are told by
    the report.
    """
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
    """Run what is wanted of each side, by its name, until nothing is due; returns the exit codes of their last rounds.

    Both sides have the same seed in a round, and another in the next. A round in which a side gets no further is its
    last: what can't run here (skipped), or doesn't (errors), is told by the report.
    """
    stuck: set[str] = set()
    codes: dict[str, int] = {}

    def left() -> list[tuple[Side, list[str]]]:
        found = [(each, due(wanted[each.name].cases, each.ran(), repeats)) for each in sides]
        return [(each, cases) for each, cases in found if cases and each.name not in stuck]

    for round_seed in itertools.count(seed):
        if not (at_work := left()):
            break
        for each, now_due in at_work:
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
    """JUnit's, of the next round: one that was asked for before is not overwritten."""
    files = (runs_dir.with_name(f"{runs_dir.name}-{round}.xml") for round in itertools.count(1))
    return next(file for file in files if not file.exists())
