"""Commands about points at which threads can be held: ``points``, ``pin``."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from harness.cli.shared import RUN_DIR, case_again, note, out, say_other_build, seconds, settled
from harness.errors import EXIT_INCONCLUSIVE, EXIT_VALID, UsageError
from harness.runner.subrun import arguments_of


@click.command()
@click.option("--kafka", metavar="VERSION", callback=settled, help="Only the points of this release from Maven.")
@click.option("--check", is_flag=True, help="Make the points of the release, so that each is shown to fit its classes.")
def points(kafka: str | None, check: bool) -> int:
    """List the points of Kafka's code at which a thread can be held."""
    from harness.host.cache import cache_dir
    from harness.kafka.distribution import from_maven
    from harness.kafka.points import missing_points, points_of, read_points, with_points
    from harness.kafka.versions import KafkaVersion

    if check and kafka is None:
        raise UsageError("--check needs --kafka VERSION")
    version = None if kafka is None else KafkaVersion.parse(kafka)
    modes = () if version is None else version.modes()
    shown = (
        read_points() if version is None else {id: p for mode in modes for id, p in points_of(version, mode).items()}
    )
    table = Table("point", "a thread is held as", "its subject")
    for id, point in sorted(shown.items()):
        table.add_row(id, Text(point.meaning), Text(point.subject))
    out.print(table)
    lacks = False
    if version is not None and check:
        build = from_maven(version, cache_dir(), say=note)
        for mode in modes:
            missing = missing_points(with_points(build, mode, note))
            lacks = lacks or bool(missing)
            fit = len(points_of(version, mode)) - len(missing)
            out.print(Text(f"Kafka {version}, {mode}: {fit} points fit, {len(missing)} do not"))
            for id, why in missing.items():
                out.print(Text(f"  {id}: {why}"), soft_wrap=True)
    return EXIT_INCONCLUSIVE if lacks else EXIT_VALID


@click.command()
@RUN_DIR
@click.option(
    "--times", default=5, show_default=True, type=click.IntRange(1, 200), help="Runs without a hold, and with the best."
)
@click.option("--within", default="20m", show_default=True, metavar="TIME", help="Begin no run after this time.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1, 16), help="Runs at once.")
def pin(run_dir: Path, times: int, within: str, jobs: int) -> int:
    """Find the hold, or the two, with which a rare failure is frequent, and print the command."""
    from harness.history.run_folder import read_run_json
    from harness.kafka.builds import BuildOptions, Builds
    from harness.kafka.points import missing_points, points_of, with_points
    from harness.kafka.versions import Mode
    from harness.runner.pinning import Pinning

    run = read_run_json(run_dir)
    if run.outcome is None or run.outcome.verdict != "invalid":
        verdict = "has no verdict" if run.outcome is None else f"is {run.outcome.verdict}"
        raise UsageError(f"{run_dir} {verdict}: only an invalid case can be pinned")
    options_of_build, mode = BuildOptions.of(run.kafka, run.mode), Mode(run.mode)
    say_other_build(run, options_of_build)
    build = with_points(Builds.choose(options_of_build).of(mode, note), mode, note)
    points = points_of(build.version, mode).keys() - missing_points(build)
    selector, options = case_again(run, run_dir)
    again = [selector, *arguments_of(options)]
    until = time.monotonic() + seconds(within)
    pinning = Pinning(again, run.outcome.reason, jobs=jobs, until=until, say=note)
    found = pinning.search(sorted(points), times)
    if found.best is None:
        note(f"no hold makes it fail more often than {found.before.fails} of {found.before.of} runs")
        return EXIT_INCONCLUSIVE
    before = f"without the hold in {found.before.fails} of {found.before.of}"
    note(f"it fails in {found.best.fails} of {found.best.of} runs, {before}")
    click.echo(shlex.join(["jbod", "run", *again, *(f"--hold={hold}" for hold in found.best.holds)]))
    return EXIT_VALID
