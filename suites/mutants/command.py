"""``jbod mutants``: how many defects of Kafka the suites catch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from harness.cli.shared import JOBS, JSON_FILE, note, say, settled
from harness.errors import EXIT_HARNESS, EXIT_INVALID, EXIT_NOTHING_RAN, EXIT_VALID, UsageError, worst
from harness.host import undo
from harness.host.cache import cache_dir
from harness.host.room import room
from harness.kafka.distribution import from_maven
from harness.kafka.versions import DEFAULT_BUILDS, KafkaVersion, Mode
from harness.runner import ledger
from harness.runner.at_once import AUTO, MOST, JobsOption, choose
from harness.runner.case import check_json_file, check_runs_dir
from harness.runner.results import write_json
from suites.mutants.automatic.places import noting_build
from suites.mutants.automatic.reach import measure_reach
from suites.mutants.automatic.sample import draw
from suites.mutants.builds import MutatedBuild, make_builds
from suites.mutants.checking import check as check_mutants
from suites.mutants.measuring import How, Measured, Measuring, measure_all, short
from suites.mutants.mutant import Mutant, chosen, panel, read_catalogue
from suites.mutants.outcome import Outcome, score
from suites.mutants.page import PAGE, write_matrix


@click.command()
@click.argument("selector", nargs=-1)
@click.option("--mutant", "ids", multiple=True, metavar="ID", help="Only this mutant; may be given several times.")
@click.option("--area", "areas", multiple=True, metavar="AREA", help="Only the mutants of this area.")
@click.option("--panel", "only_panel", is_flag=True, help="Only the panel: few mutants, for every change of jbod.")
@click.option("--kafka", metavar="VERSION", callback=settled, help="The builds, separated by commas.")
@click.option("--mode", metavar="zk|kraft", help="Only this metadata mode.")
@click.option(
    "--sample",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="N automatic mutants instead of the catalogue's: operators change places that the suites reach.",
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    metavar="SUITE",
    help="Run this suite, or all, on the mutants that the scenarios that should catch them did not catch; with "
    "--sample, only their cases are tried.",
)
@click.option(
    "--times",
    default=3,
    show_default=True,
    type=click.IntRange(1, 100),
    help="How often a case must be invalid, each time it runs, to catch a mutant.",
)
@JOBS
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=int,
    metavar="N",
    help="Seed of the first run of a case, and of the sample.",
)
@click.option("--fresh", is_flag=True, help="Use no runs of an earlier measuring.")
@click.option(
    "--unchanged",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A runs folder, such as reports/runs: what was valid there on the unchanged build, by this revision of jbod, "
    "need not run again.",
)
@click.option(
    "--runs-dir",
    default="reports/mutants",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where runs, results and the page go.",
)
@JSON_FILE
@click.option("--check", is_flag=True, help="Only apply each mutant to each build; start no cluster.")
@click.option("--list", "only_list", is_flag=True, help="Only list the mutants.")
def mutants(
    selector: tuple[str, ...],
    ids: tuple[str, ...],
    areas: tuple[str, ...],
    only_panel: bool,
    sample: int | None,
    kafka: str | None,
    mode: str | None,
    suites: tuple[str, ...],
    times: int,
    jobs: JobsOption,
    seed: int,
    fresh: bool,
    unchanged: tuple[Path, ...],
    runs_dir: Path,
    json_file: Path | None,
    check: bool,
    only_list: bool,
) -> int:
    """Put one defect at a time into a build of Kafka, and show which defects the suites catch.

    SELECTOR is the id or the area of mutants, also a pattern such as 'acks-*'; without one, all of them run. A mutant
    runs the scenarios that should catch it, one after the other, until one did. An interrupted measuring goes on.
    """
    try:
        wanted = None if mode is None else Mode(mode)
    except ValueError:
        raise UsageError(f"unknown mode {mode!r}: zk or kraft") from None
    if sample is not None and (selector or ids or areas or only_panel or check or only_list):
        raise UsageError(
            "--sample draws mutants of its own: give no SELECTOR, --mutant, --area, --panel, --check or --list"
        )
    found = () if sample else chosen(read_catalogue(), [*ids, *(panel() if only_panel else ())], areas, selector)
    if only_list:
        for each in found:
            say(f"{each.id} ({each.area}): {each.defect}")
        return EXIT_VALID if found else EXIT_NOTHING_RAN
    versions = [KafkaVersion.parse(each) for each in kafka.split(",")] if kafka else [DEFAULT_BUILDS[Mode.KRAFT]]
    for version in versions:
        if wanted is not None and wanted not in version.modes():
            raise UsageError(f"Kafka {version} has no mode {wanted}")
    if check:
        builds = (from_maven(version, cache_dir(), say=note) for version in versions)
        return check_mutants(found, builds, wanted, say, note)
    check_json_file(json_file)
    check_runs_dir(runs_dir)
    for folder in unchanged:
        if not (folder / ledger.NAME).exists():
            raise UsageError(f"--unchanged {folder} is no runs folder: it has no {ledger.NAME}")
    undo.clean(note)
    how = How(runs_dir=runs_dir.absolute(), suites=suites, times=times, seed=seed, fresh=fresh, unchanged=unchanged)
    measured: list[Measured] = []
    broken: list[MutatedBuild] = []
    for version in versions:
        modes = [each for each in version.modes() if wanted in (None, each)]
        for of_version, problems in _measure(version, modes, found, sample, how, jobs):
            measured += of_version
            broken += problems
    for build in broken:
        note(f"{build.mutant.id} can't be made for {build.mode}: {build.problem}")
    write_matrix(runs_dir / PAGE, measured)
    _summarise(measured)
    say(str((runs_dir / PAGE).absolute()))
    code = exit_code([each.decision.outcome for each in measured], made_all=not broken)
    content = {
        "schema": 1,
        "exit_code": code,
        "seed": seed,
        "times": times,
        "score": dict(zip(("caught", "of"), score([each.decision for each in measured]), strict=True)),
        "outcomes": dict(Counter(str(each.decision.outcome) for each in measured)),
        "not_made": {f"{build.mutant.id} ({build.mode})": build.problem for build in broken},
        "mutants": [each.to_json() for each in measured],
    }
    return write_json(json_file, content, note)


def _measure(
    version: KafkaVersion,
    modes: Sequence[Mode],
    catalogue: Sequence[Mutant],
    sample: int | None,
    how: How,
    jobs: JobsOption,
) -> Iterator[tuple[list[Measured], list[MutatedBuild]]]:
    """Measure mutants of a build, mode by mode; yield the results, and the mutants that can't be made."""
    distribution = from_maven(version, cache_dir(), say=note)
    for mode in modes:
        measuring = Measuring(distribution=distribution, mode=mode, how=how, say=note)
        mutants = _drawn(measuring, sample, jobs) if sample else catalogue
        builds = [build for build in make_builds(distribution, mutants, [mode], note) if build.applies]
        made = [build for build in builds if build.home is not None]
        done = measure_all(measuring, made, _at_once(jobs, len(made)), lambda each: say(line(each)))
        yield asyncio.run(done), [build for build in builds if build.problem is not None]


def _drawn(measuring: Measuring, count: int, jobs: JobsOption) -> list[Mutant]:
    """Draw automatic mutants; the suites run first, unless an earlier call has what they reach."""
    build = noting_build(measuring.distribution, note)
    reached = asyncio.run(measure_reach(measuring, build, _at_once(jobs, MOST), note))
    places = {number for each in reached.values() for number in each.places}
    where = f"Kafka {measuring.distribution.version} in {measuring.mode}"
    say(f"{len(reached)} cases reach {len(places)} of {len(build.places)} places of {where}")
    return draw(build.places, reached, count, measuring.how.seed)


def _at_once(jobs: JobsOption, most: int) -> int:
    return choose(room(), most).count if jobs == AUTO else jobs


def line(measured: Measured) -> str:
    """The result of a mutant in one line."""
    decision = measured.decision
    by = f" by {decision.case}" if decision.case else ""
    after = f" after {decision.seconds:.0f} s" if decision.seconds is not None else ""
    says = f": {short(decision.says)}" if decision.says else ""
    return f"{measured.build.mutant.id} · {measured.kafka} {measured.build.mode}: {decision.outcome}{by}{after}{says}"


def _summarise(measured: Sequence[Measured]) -> None:
    caught, of = score([each.decision for each in measured])
    others = Counter(str(each.decision.outcome) for each in measured if each.decision.outcome is not Outcome.CAUGHT)
    rest = "".join(f", {count} {outcome}" for outcome, count in others.items())
    say(f"caught {caught} of {of}{f' ({caught / of:.0%})' if of else ''}{rest}")


def exit_code(outcomes: Sequence[Outcome], *, made_all: bool) -> int:
    """The exit code; a mutant that does not count has no part in it."""
    codes = [_code(each) for each in outcomes if each not in (Outcome.STILLBORN, Outcome.EQUIVALENT)]
    return worst([*codes, *([] if made_all else [EXIT_HARNESS])])


def _code(outcome: Outcome) -> int:
    match outcome:
        case Outcome.CAUGHT:
            return EXIT_VALID
        case Outcome.NOT_MEASURED:
            return EXIT_HARNESS
        case _:
            return EXIT_INVALID
