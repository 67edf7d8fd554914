"""Commands that run scenarios: ``run``, ``repro``, ``shrink``, ``nightly``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import click
from rich.console import Console
from rich.text import Text

from harness.cli.shared import (
    BACKEND,
    BUILD_OPTIONS,
    EVERY,
    JOBS,
    JSON_FILE,
    OUTCOME_OPTIONS,
    RUN_DIR,
    RUN_OPTIONS,
    WIDTH,
    Collector,
    GivenOption,
    case_again,
    collect,
    fixed_cases,
    out,
    run_pytest,
    say,
    say_other_build,
    seconds,
    tell,
    text_of,
    where,
    with_options,
)
from harness.errors import EXIT_INCONCLUSIVE, EXIT_VALID, UsageError
from harness.runner.at_once import AUTO, AtOnce, JobsOption, choose
from harness.runner.subrun import arguments_of

if TYPE_CHECKING:
    from harness.kafka.builds import BuildOptions


@click.command()
@click.argument("selector", nargs=-1, required=True)
@with_options(RUN_OPTIONS)
@click.option("--junit", metavar="FILE", help="Where JUnit's XML goes (default: junit.xml beside the runs folder).")
@click.option(
    "--allure", metavar="DIR", help="Where Allure's results go (default: allure-results beside the runs folder)."
)
@JOBS
def run(
    selector: tuple[str, ...],
    jobs: JobsOption,
    junit: str | None,
    allure: str | None,
    **options: GivenOption,
) -> int:
    """Run scenarios. SELECTOR is a KIP (kip-112), a scenario (kip-112/leader-at-runtime), a case id, a pytest node id,
    or a file or folder of your own (tests/test_ours.py).

    With several builds (--kafka 4.4.0,4.3.1) each build has a run of its own, and one table shows all results.
    """
    from harness.cli.run_on_builds import run_on_each

    if "," in (text_of(options, "kafka") or ""):
        return run_on_each(selector, options, jobs, junit, allure)
    return _run(selector, options, jobs, junit, allure)


def _run(
    selector: tuple[str, ...],
    options: Mapping[str, GivenOption],
    jobs: JobsOption = 1,
    junit: str | None = None,
    allure: str | None = None,
) -> int:
    """Run scenarios in pytest; with several jobs in pytest-xdist workers, which share one Spark.

    Several cases at once take less time (:mod:`harness.runner.at_once`). A busier machine also affects the measured
    gaps of clients, so cases on a crowded machine are marked.
    """
    from harness.cli.console import ConsoleReporter
    from harness.runner.case import check_runs_dir
    from harness.runner.published_dir import published_dir
    from harness.runner.scheduling import SpecAffinityScheduler, Turn

    if options.get("pause_at"):
        if jobs not in (1, AUTO):
            raise UsageError("--pause-at pauses one case at a time, so it cannot be used with --jobs")
        jobs = 1
    runs_dir = Path(text_of(options, "runs_dir") or "reports/runs")
    check_runs_dir(runs_dir)  # before allure-pytest creates a folder beside it
    arguments = [*where(selector), *arguments_of(options)]
    plugins: list[object] = []
    if jobs != 1:
        collected = collect(*arguments)
        at_once = AtOnce(count=min(jobs, len(collected.cases))) if jobs != AUTO else _chosen(collected)
        if at_once.count > 1 or jobs != AUTO:
            # With chunks of one, no case waits for a busy worker while another is idle.
            arguments += [f"--numprocesses={at_once.count}", "--maxschedchunk=1", "--max-worker-restart=0"]
            run = collected.run
            turns = {
                case.nodeid: Turn(nodes=run.spec(case).nodes, shared=run.shared_spec(case)) for case in collected.cases
            }
            by_size, chosen = options.get("stop_after") is None, at_once if jobs == AUTO else None
            plugins.append(SpecAffinityScheduler(turns, by_size=by_size, cases=collected.cases, chosen=chosen))
    junit_file = Path(junit or runs_dir.parent / "junit.xml")
    arguments += [f"--junitxml={junit_file}"]
    with published_dir(Path(allure or runs_dir.parent / "allure-results")) as results:
        arguments += [f"--alluredir={results}"]
        # Duplicate descriptors, because pytest captures standard output and standard error while a case runs.
        with (
            os.fdopen(os.dup(sys.stdout.fileno()), "w") as output,
            os.fdopen(os.dup(sys.stderr.fileno()), "w") as errors,
        ):
            consoles = (Console(file=file, width=WIDTH) for file in (output, errors))
            code = run_pytest(arguments, ConsoleReporter(*consoles), *plugins)
    with suppress(OSError, ElementTree.ParseError):  # another run may be writing it
        if ElementTree.parse(junit_file).find(".//testcase") is None:
            junit_file.unlink()  # CI would read a file without tests as a pass
    return code


def _chosen(collected: Collector) -> AtOnce:
    """Choose how many of the collected cases run at once; print it if there are several cases for this build."""
    from harness.host.room import room

    count = sum(collected.run.unfit_build(case) is None for case in collected.cases)
    if count <= 1:
        return AtOnce()
    at_once = choose(room(), count)
    out.print(Text(str(at_once), style="dim"), soft_wrap=True)
    return at_once


@click.command()
@RUN_DIR
@with_options(OUTCOME_OPTIONS)
@click.option("--repeat", metavar="N|until-fail", help="Run N times, or until a run is not valid.")
def repro(run_dir: Path, repeat: str | None, **options: GivenOption) -> int:
    """Run again what a run folder records: the same case, Kafka build, mode, backend, seed and schedule."""
    from harness.errors import worst
    from harness.history.run_folder import read_run_json
    from harness.kafka.builds import BuildOptions
    from harness.runner import results
    from harness.runner.case import check_json_file
    from harness.runner.subrun import repeat_apart
    from harness.runner.suite_kinds import is_random

    run = read_run_json(run_dir)
    selector, again = case_again(run, run_dir)
    again["hold"] = tuple(run.holds)
    if repeat is not None and repeat != "until-fail" and not repeat.isdecimal():
        raise UsageError(f"--repeat {repeat}: neither a number nor until-fail")
    say_other_build(run, BuildOptions.of(run.kafka, run.mode))
    served = run.served
    if served and not any(map(is_random, served)):  # the id of a random case does not name its schedule
        first = shlex.join(["jbod", "run", *served, selector, *arguments_of(again)])
        tell(
            f"the recorded case ran on a cluster that had served {len(served)} other cases, and this run starts a new "
            f"cluster; to run those cases first: {first}"
        )
    if repeat is None:
        return _run((selector,), options | again)
    json_file = Path(name) if (name := text_of(options, "json")) else None
    options["json"] = None
    check_json_file(json_file)
    arguments = [selector, "--jobs=1", *arguments_of(options | again)]
    times = int(repeat) if repeat.isdecimal() else None
    runs = repeat_apart(arguments, times, say)
    code = worst([each.exit_code for each in runs])
    cases = [case for each in runs for case in each.cases]
    return results.write_json(json_file, results.to_json(cases, code, run.seed), say)


@click.command()
@RUN_DIR
@JOBS
def shrink(run_dir: Path, jobs: JobsOption) -> int:
    """Find the smallest part of a failing random schedule that still fails."""
    from harness.history.run_folder import read_run_json
    from harness.kafka.builds import BuildOptions
    from harness.runner.set_option import options_of
    from harness.runner.shrinking import play_command, shrink_run

    run = read_run_json(run_dir)
    if not run.schedule:
        raise UsageError(f"{run_dir} has no schedule to shrink: only runs of random schedules have one")
    build = BuildOptions.of(run.kafka, run.mode)
    unusual = options_of(run.profile, run.settings, run.listener_security)
    again = arguments_of({**vars(build), "backend": run.backend, **unusual})
    say_other_build(run, build)
    shrunk = shrink_run(run_dir, [*again, f"--jobs={jobs}"], say)
    if shrunk.file is None:
        return EXIT_INCONCLUSIVE
    click.echo(play_command(shrunk.file, run))
    return EXIT_VALID


@click.command()
@click.option("--budget", default="30m", show_default=True, metavar="TIME", help="Time budget, such as 90s, 30m or 8h.")
@EVERY
@with_options(BUILD_OPTIONS)
@BACKEND
@click.option("--seed", type=int, metavar="N", help="Seed of the schedules and all other random choices.")
@click.option(
    "--runs-dir",
    default="reports/runs",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where run folders go; its ledger shows when each case last ran.",
)
@JSON_FILE
@JOBS
def nightly(
    budget: str,
    every: str,
    backend: str,
    seed: int | None,
    runs_dir: Path,
    json_file: Path | None,
    jobs: JobsOption,
    **options: str | None,
) -> int:
    """Run the fixed suites, the least recently run cases first, then random schedules, within a time budget.

    The fixed suites are all except controls and random schedules.
    """
    import random

    from harness.cluster.nodes.backends import backend_kind
    from harness.host.room import room
    from harness.kafka.builds import BuildOptions
    from harness.runner.case import check_json_file, check_runs_dir
    from harness.runner.nightly import Plan, run_night
    from harness.runner.results import write_json

    budget_s, every_s = seconds(budget), seconds(every)
    check_runs_dir(runs_dir)
    check_json_file(json_file)
    fixed = fixed_cases(options, backend)
    backend_kind(backend).check()  # after the collection, which loads plugins with other backends
    probes = _probed(BuildOptions(**options), runs_dir)
    fixed = fixed_cases(options, backend, probes)
    plan = Plan(
        fixed=fixed,
        backend=backend,
        budget_s=budget_s,
        seed=random.SystemRandom().randrange(2**31) if seed is None else seed,
        runs_dir=runs_dir,
        every=timedelta(seconds=every_s),
        jobs=jobs,
        at_once=choose(room(), len(fixed.planned)).count if jobs == AUTO else jobs,
        options=[*arguments_of(options), *probes],
    )
    night = run_night(plan, say)
    for why in fixed.why_not():
        out.print(Text(why, style="yellow"))
    left, overdue = len(night.left), len(night.overdue)
    out.print(f"not begun: {left} of {len(fixed.planned)} fixed cases; {overdue} of them overdue")
    for id, at in night.left.items():
        out.print(Text(f"  {id}: last run {at or 'never'}", style="yellow" if id in night.overdue else "dim"))
    return write_json(json_file, night.to_json(), say)


def _probed(options: BuildOptions, runs_dir: Path) -> list[str]:
    """Probe the builds of a night, and print what they lack. Returns the options that pass the results on.

    :raises HarnessError: a build cannot be run at all
    """
    from dataclasses import replace

    from harness.kafka.builds import Builds
    from harness.runner.build_lacks import lack_lines, probe_apart

    builds, given = Builds.choose(options), options.kafka_home or options.kafka_tarball
    found = []
    for version in dict.fromkeys(builds.version(mode) for mode in builds.modes()):
        modes = [str(mode) for mode in builds.modes() if builds.version(mode) == version]
        kafka = None if given else str(version)
        one = replace(options, kafka=kafka, mode=modes[0] if len(modes) == 1 else options.mode)
        file = runs_dir.parent / f"probe-{version}.json"
        probed = probe_apart(one, file, say)
        found.append(f"--probe={file}")
        for line in lack_lines(probed, ()):
            out.print(Text(line, style="bold red"), soft_wrap=True)
    return found
