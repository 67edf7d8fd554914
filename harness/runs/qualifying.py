"""Run a candidate and a baseline, case for case, as often as it takes to tell; can be taken up where it was left.

Each build has a runs folder of its own, whose ledger says what is still due (:mod:`harness.runs.ledger`): nothing else
is remembered, so that an interrupted qualification goes on by being asked for again. Cases that are not valid are run
three times, to tell what breaks from what breaks now and then. The builds take turns, round by round, so that a machine
that is slow for an hour is slow for both.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from harness.errors import JbodError
from harness.runs import ledger
from harness.runs.subrun import jbod_command, run_apart

SELECTORS = ("kip-112", "kip-113", "kip-36", "kip-1066")
WAVERING = 3
"""How often a case is run that wasn't valid at once."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two builds.

    :ivar options: of ``jbod run``, which choose it
    :ivar runs_dir: where its run folders are
    """

    name: str
    options: tuple[str, ...]
    runs_dir: Path


def side(name: str, build: str, runs_dir: Path, mode: str | None) -> Side:
    """The side of a build: a version, an unpacked build or a tarball."""
    option = "kafka-home" if Path(build).is_dir() else "kafka-tarball" if Path(build).is_file() else "kafka"
    modes = () if mode is None else (f"--mode={mode}",)
    return Side(name=name, options=(f"--{option}={build}", *modes), runs_dir=runs_dir)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What there is to run on a build.

    :ivar cases: the ids of the cases
    :ivar unfit: why others, so many each, are none for it: it doesn't have what they check
    """

    cases: tuple[str, ...]
    unfit: Mapping[str, int]


def cases_of(build: Side, selectors: Sequence[str]) -> Wanted:
    """The cases that there are for a build.

    :raises JbodError: with what ``jbod list`` said
    """
    done = subprocess.run(
        jbod_command("list", *selectors, *build.options, "--json"), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        error = JbodError(f"{build.name}: {said[0].removeprefix('ERROR: ')}")
        error.exit_code = done.returncode  # type: ignore[misc]  # theirs
        raise error
    scenarios = json.loads(done.stdout)["scenarios"]
    return Wanted(
        cases=tuple(case for each in scenarios for case in each["cases"] if case not in each["unfit"]),
        unfit=Counter(why for each in scenarios for why in each["unfit"].values()),
    )


def due(cases: Collection[str], entries: Collection[ledger.Entry], repeats: int) -> list[str]:
    """The cases that have not been run often enough; errors of the harness don't count."""
    ran = Counter(entry.id for entry in entries if entry.verdict != "error")
    wavers = {entry.id for entry in entries if entry.verdict in ("invalid", "unknown")}
    return [case for case in cases if ran[case] < (max(repeats, WAVERING) if case in wavers else repeats)]


def run_sides(
    sides: Sequence[Side],
    wanted: Mapping[str, Wanted],
    options: Sequence[str],
    *,
    repeats: int,
    say: Callable[[str], None],
) -> None:
    """Run what is wanted of each side, by its name, until nothing is due.

    A round in which a side gets no further is its last: what can't run here (skipped), or doesn't (errors), is told by
    the report.
    """
    stuck: set[str] = set()
    for rounds in count(1):
        before = {each.name: due(wanted[each.name].cases, ledger.read(each.runs_dir), repeats) for each in sides}
        at_work = [each for each in sides if before[each.name] and each.name not in stuck]
        if not at_work:
            return
        for each in at_work:
            now_due = before[each.name]
            say(f"{each.name}: {len(now_due)} of {len(wanted[each.name].cases)} cases are due")
            known = len(ledger.read(each.runs_dir))
            where = (f"--runs-dir={each.runs_dir}", f"--junit={each.runs_dir}-{rounds}.xml")
            run_apart(*now_due, *each.options, *where, *options)
            ran = ledger.read(each.runs_dir)[known:]
            if all(entry.verdict == "error" for entry in ran):
                stuck.add(each.name)
