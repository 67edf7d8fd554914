"""The command ``jbod``: thin, every command a few lines over the rest.

Bad input ends with one clear line on standard error and the contract's exit code, whatever the command
(:mod:`harness.errors`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness import undo
from harness.errors import EXIT_HARNESS, EXIT_USAGE, EXIT_VALID, HarnessError, JbodError, UsageError
from harness.spec import BACKENDS, BackendKind
from harness.volume import VolumeKind

_COMMANDS = "jbod.commands"

# Where nobody looks at a terminal (CI, a pipe) lines need not be cut to 80 columns.
_WIDTH = None if sys.stdout.isatty() else 140
out = Console(width=_WIDTH)
err = Console(stderr=True, width=_WIDTH)

_BUILD_OPTIONS = [
    click.option("--kafka", metavar="VERSION", help="A Kafka release from Maven."),
    click.option("--kafka-home", metavar="DIR", help="An unpacked Kafka build: bin/ libs/ config/."),
    click.option("--kafka-tarball", metavar="FILE", help="A Kafka tarball, such as a release candidate."),
    click.option("--mode", metavar="zk|kraft", help="Only this metadata mode."),
]
_RUN_OPTIONS = [
    *_BUILD_OPTIONS,
    click.option("--backend", metavar="process|docker", help="What brokers run in."),
    click.option("--seed", metavar="N", help="Seed of everything that is left to chance."),
    click.option("--spark-master", metavar="URL", help="A Spark master other than a local one."),
    click.option("--runs-dir", metavar="DIR", help="Where run folders go (default: reports/runs)."),
    click.option("--keep-cluster", metavar="never|on-failure|always", help="Leave the cluster standing."),
    click.option("--pause-at", metavar="inject|heal", help="Wait there for Enter, to look at the cluster."),
    click.option("--json", metavar="FILE", help="Write the results as JSON."),
]
_SCHEDULE_OPTIONS = [
    click.option("--schedules", metavar="N", help="How many random schedules a mode, of selector 'schedules'."),
    click.option("--schedule", multiple=True, metavar="FILE", help="Play this schedule instead."),
    click.option("--stop-after", metavar="SECONDS", help="Begin no case later than that."),
]
_JOBS = click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="So many cases at once, each with a cluster and a Spark session of its own (2 to 3 GB).",
)


def _options(options: list[Callable[..., Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


class _Commands(click.Group):
    """The commands here, and those that other packages bring by the entry point ``jbod.commands``.

    The reports are over the harness, which may not import them; they are loaded when they are asked for.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return sorted([*super().list_commands(ctx), *entry_points(group=_COMMANDS).names])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None where there is none."""
        for found in entry_points(group=_COMMANDS, name=cmd_name):
            command: click.Command = found.load()
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Chaos and system tests for Apache Kafka on JBOD."""


def _suites() -> Path:
    """The folder of the suites, found without importing them (nothing of the harness imports suites)."""
    folder = Path(__file__).resolve().parent.parent / "suites"
    if not folder.is_dir():
        raise JbodError(f"the suites are not beside the harness ({folder}); install from a checkout: pip install -e .")
    return folder


def _pytest(arguments: list[str], *plugins: object) -> int:
    """pytest in this process, with its own terminal output off, on all suites but the selftest."""
    suites = _suites()
    base = [
        "-p",
        "no:terminal",
        "-p",
        "no:cacheprovider",
        "-c",
        str(suites.parent / "pyproject.toml"),
        "-o",
        "addopts=",
    ]
    return int(pytest.main([*base, *arguments], plugins=[*plugins]))


def _where(selectors: tuple[str, ...]) -> list[str]:
    """All suites but the selftest, and the selectors; the path of a node id is told from the root, as pytest does."""
    root = _suites().parent
    chosen = []
    for selector in selectors:
        path, colons, rest = selector.partition("::")
        if colons or path.endswith(".py") or Path(path).is_dir():
            if not Path(path).exists():
                raise UsageError(f"no such file: {path}")
            path = os.path.relpath(Path(path).resolve(), root)
        chosen.append(f"--select={path}{colons}{rest}")
    return [str(_suites()), f"--ignore={_suites() / 'selftest'}", *chosen]


@cli.command()
@click.argument("selector", nargs=-1, required=True)
@_options(_RUN_OPTIONS)
@_options(_SCHEDULE_OPTIONS)
@_JOBS
def run(selector: tuple[str, ...], jobs: int, schedule: tuple[str, ...], **options: str | None) -> int:
    """Run scenarios: SELECTOR is a KIP (kip-112), a scenario (kip-112/leader-at-runtime), a case id or a node id."""
    return _run(selector, options, jobs, schedule)


def _run(
    selector: tuple[str, ...], options: dict[str, str | None], jobs: int = 1, schedules: tuple[str, ...] = ()
) -> int:
    """Run scenarios by pytest; several at once by pytest-xdist, whose workers are pytests with a Spark of their own.

    A case waits (for sessions to expire, checkpoints to come due) about as long as it works, so that two at once on two
    cores take some two thirds of the time; but the machine is then busier than one case would have it, and what clients
    go without is measured on it. So one is the default.
    """
    from allure_commons.logger import AllureFileLogger

    from harness.case import check_runs_dir
    from harness.console import ConsoleReporter

    runs_dir = Path(options.get("runs_dir") or "reports/runs")
    check_runs_dir(runs_dir)  # before allure-pytest wants a folder beside it
    allure = runs_dir.parent / "allure-results"
    AllureFileLogger(str(allure), clean=True)  # type: ignore[no-untyped-call]  # here: each worker would do it
    arguments = [*_where(selector), *_arguments(options), *(f"--schedule={file}" for file in schedules)]
    arguments += [f"--alluredir={allure}"]
    arguments += [f"--junitxml={runs_dir.parent / 'junit.xml'}"]
    if jobs > 1:
        collector = _Collector()
        code = _pytest([*arguments, "--collect-only"], collector)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return code
        # Chunks of one: no case waits for a worker while another is free.
        workers = min(jobs, len(collector.items))
        arguments += [f"--numprocesses={workers}", "--maxschedchunk=1", "--max-worker-restart=0"]
    # A descriptor of its own: while a case runs, pytest captures what is written to standard output.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as terminal:
        return _pytest(arguments, ConsoleReporter(Console(file=terminal, width=_WIDTH)))


@cli.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@_options(_RUN_OPTIONS[len(_BUILD_OPTIONS) + 2 :])
@click.option("--repeat", metavar="N|until-fail", help="So many times, or until it comes out other than valid.")
def repro(run_dir: Path, repeat: str | None, **options: str | None) -> int:
    """Run once more what a run folder records: the same case, Kafka build, mode, backend, seed and schedule."""
    from harness.case import read_run_json
    from harness.subrun import repeat_apart

    run = read_run_json(run_dir)
    try:
        again = {"backend": run["backend"], "seed": str(run["seed"]), **_recorded_build(run)}
        selector = run["case"]
    except (KeyError, TypeError) as error:
        raise HarnessError(f"{run_dir}/run.json doesn't say what ran: {error} is missing") from error
    schedules: tuple[str, ...] = ()
    if "schedule" in run:
        selector = re.sub(r"-\d+]$", "-0]", selector)  # the only one of this run
        schedules = (str(run_dir / "run.json"),)
    if repeat is None:
        return _run((selector,), options | again, schedules=schedules)
    if repeat != "until-fail" and not repeat.isdecimal():
        raise UsageError(f"--repeat {repeat}: say how many times, or until-fail")
    arguments = [selector, *_arguments(options | again), *(f"--schedule={file}" for file in schedules)]
    times = int(repeat) if repeat.isdecimal() else None
    return repeat_apart(arguments, times, lambda line: out.print(Text(line)))


@cli.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@_JOBS
def shrink(run_dir: Path, jobs: int) -> int:
    """Find the smallest part of a random schedule that came out invalid which still does."""
    from harness.case import read_run_json
    from harness.nightly import shrink_run

    run = read_run_json(run_dir)
    if "schedule" not in run:
        raise UsageError(f"{run_dir} is no run of a random schedule")
    build = _recorded_build(run)
    mode = build.pop("mode")
    shrunk = shrink_run(run_dir, mode, [*_arguments(build), f"--jobs={jobs}"], lambda line: out.print(Text(line)))
    click.echo(f"jbod run schedules --mode {mode} --schedule {shrunk.file}")
    return EXIT_VALID


@cli.command()
@click.option("--budget", default="30m", show_default=True, metavar="TIME", help="Such as 90s, 30m, 8h.")
@click.option("--every", default="7d", show_default=True, metavar="TIME", help="The longest that a case may not run.")
@_options(_BUILD_OPTIONS)
@click.option("--seed", type=int, metavar="N", help="Of the schedules, and of all that is left to chance.")
@click.option("--runs-dir", default="reports/runs", show_default=True, metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write the results as JSON.")
@_JOBS
def nightly(
    budget: str,
    every: str,
    seed: int | None,
    runs_dir: Path,
    json_file: Path | None,
    jobs: int,
    **options: str | None,
) -> int:
    """The fixed suites, those first that ran longest ago, then random schedules, within a budget of time."""
    import random

    from harness.case import check_runs_dir
    from harness.nightly import NOT_FIXED, run_night
    from harness.plugin import case_id, lacking, unfit_build
    from harness.whole import write_whole

    budget_s, every_s = _seconds(budget), _seconds(every)
    check_runs_dir(runs_dir)
    collector = _Collector()
    code = _pytest([*_where(()), *_arguments(options), "--collect-only"], collector)
    if code != pytest.ExitCode.OK:
        return code
    cases = {case_id(item): item for item in collector.items if item.get_closest_marker("scenario")}
    fixed = [
        id
        for id, item in cases.items()
        if not id.startswith(NOT_FIXED) and not lacking(item) and unfit_build(item) is None
    ]
    night = run_night(
        fixed=fixed,
        budget_s=budget_s,
        seed=random.SystemRandom().randrange(2**31) if seed is None else seed,
        runs_dir=runs_dir,
        every=timedelta(seconds=every_s),
        jobs=jobs,
        options=_arguments(options),
        say=lambda line: out.print(Text(line)),
    )
    if json_file:
        write_whole(json_file, json.dumps(night.to_json(), indent=2) + "\n")
    out.print(f"not got to: {len(night.left)} of {len(fixed)} fixed cases; {len(night.overdue)} of them overdue")
    for each in night.overdue:
        out.print(Text(f"  {each}: last run {night.left[each] or 'never'}", style="yellow"))
    return night.exit_code()


def _seconds(text: str) -> float:
    """90s, 30m, 8h or 7d, in seconds.

    :raises UsageError: it is none of these
    """
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if not found:
        raise UsageError(f"{text!r} is no time; say 90s, 30m, 8h or 7d")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def _recorded_build(run: Mapping[str, Any]) -> dict[str, str]:
    """The options by which a run.json's Kafka build and mode are chosen again."""
    build = run["kafka"]
    option = {"maven": "kafka", "home": "kafka_home", "tarball": "kafka_tarball"}[build["source"]]
    return {"mode": run["mode"], option: build["version"] if option == "kafka" else build["origin"]}


def _arguments(options: Mapping[str, str | None]) -> list[str]:
    """The options that were given, as pytest has them."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


class _Collector:
    """Takes over the collected items and runs none of them."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = list(session.items)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """pytest ends, for a reason that its own reporter would have told."""
        if isinstance(excinfo.value, pytest.exit.Exception):
            err.print(Text(f"jbod: {excinfo.value.msg}"))


@cli.command(name="list")
@click.argument("selector", nargs=-1)
@_options(_BUILD_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_scenarios(selector: tuple[str, ...], as_json: bool, **options: str | None) -> int:
    """List every scenario: id, KIP, plan item, metadata modes, Kafka, faults, backends."""
    collector = _Collector()
    code = _pytest([*_where(selector), *_arguments(options), "--collect-only"], collector)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return code
    rows = _scenarios(collector.items)
    if as_json:
        click.echo(json.dumps({"schema": 1, "scenarios": rows}, indent=2))
        return EXIT_VALID
    table = Table("scenario", "KIP", "plan item", "modes", "Kafka", "faults", "cases", header_style="bold")
    for row in rows:
        modes, kafka, faults = (", ".join(row[key]) for key in ("modes", "kafka", "faults"))
        table.add_row(row["id"], str(row["kip"]), row["plan"], modes, kafka, faults, str(len(row["cases"])))
    out.print(table)
    return EXIT_VALID


def _scenarios(items: list[pytest.Item]) -> list[dict[str, Any]]:
    """The collected cases, grouped by scenario."""
    from harness.plugin import case_id, mode_of, run_of

    rows: dict[str, dict[str, Any]] = {}
    for item in items:
        marker = item.get_closest_marker("scenario")
        if marker is None or not isinstance(item, pytest.Function):
            continue
        row = rows.setdefault(
            marker.kwargs["id"],
            {
                "id": marker.kwargs["id"],
                "kip": marker.kwargs["kip"],
                "plan": marker.kwargs["plan"],
                "issue": marker.kwargs["issue"],
                "claim": (item.function.__doc__ or "").strip().splitlines()[0],
                "modes": [],
                "kafka": [],
                "faults": [],
                "backends": list(BACKENDS),
                "cases": [],
            },
        )
        mode = mode_of(item)
        faults = [str(value.name) for value in item.callspec.params.values() if hasattr(value, "explains")]  # type: ignore[attr-defined]
        found = {"modes": [str(mode)], "faults": faults, "cases": [case_id(item)]}
        found["kafka"] = [str(run_of(item.config).builds.version(mode))]
        for key, values in found.items():
            row[key] += [value for value in values if value not in row[key]]
    return list(rows.values())


@cli.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--spark-master", metavar="URL", help="A Spark master other than a local one.")
def check(run_dir: Path, spark_master: str | None) -> int:
    """Judge a stored history again, without a cluster."""
    from harness.checkers.judge import judge, write_verdict
    from harness.pipeline import reserved
    from harness.pipeline.session import check_master, end_spark, spark_session

    if not run_dir.is_dir():
        raise UsageError(f"no such run folder: {run_dir}")
    check_master(spark_master)
    with err.status("starting Spark"):
        spark = spark_session(spark_master, jars=())
    try:
        reserved.settle(run_dir)  # what producers that were killed with their driver could not write down
        with err.status(f"judging {run_dir.name}"):
            verdict = judge(spark, run_dir)
        write_verdict(run_dir, verdict)
    finally:
        end_spark()
    style = {"valid": "green", "invalid": "bold red", "unknown": "yellow"}[verdict.verdict]
    out.print(Text(verdict.verdict, style=style), Text(verdict.run_id))
    for reason in verdict.reasons:
        out.print(Text(f"  {reason}"))
    out.print(
        Text("  " + "  ".join(f"{name} {count:,}" for name, count in verdict.counts.as_json().items()), style="dim")
    )
    return {"valid": 0, "invalid": 1, "unknown": 2}[verdict.verdict]


@cli.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("producer", required=False)
@click.argument("seq", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain(run_dir: Path, producer: str | None, seq: int | None, as_json: bool) -> int:
    """Tell what happened to the records of a verdict, or to the one named: when, by whom, and where it is now."""
    from harness.builds import BuildOptions, Builds
    from harness.case import read_run_json
    from harness.distribution import Distribution
    from harness.explain.run import explain_record, explain_verdict
    from harness.explain.show import show
    from harness.versions import Mode

    if (producer is None) != (seq is None):
        raise UsageError("a record is named by its producer and its seq: jbod explain RUN_DIR p0 17")
    run = read_run_json(run_dir)

    def distribution() -> Distribution:
        try:
            options = _recorded_build(run)
        except (KeyError, TypeError) as error:
            raise HarnessError(f"{run_dir}/run.json doesn't say what ran: {error} is missing") from error
        return Builds.choose(BuildOptions(**options)).of(Mode(options["mode"]))

    with err.status("looking through history, journal, logs and segments"):
        if producer is not None and seq is not None:
            stories = [explain_record(run_dir, (producer, seq), distribution)]
        else:
            stories = explain_verdict(run_dir, distribution)
    if as_json:
        click.echo(json.dumps({"schema": 1, "stories": [story.to_json() for story in stories]}, indent=2))
        return EXIT_VALID
    for story in stories:
        show(story, out)
    if not stories:
        out.print("the verdict names no record; jbod explain RUN_DIR PRODUCER SEQ tells of any")
    return EXIT_VALID


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(as_json: bool) -> int:
    """Tell what this machine can do, and for what it can't, the command that fixes it."""
    from harness.host import abilities, doctor_json
    from harness.plugin import case_id, lacking

    collector = _Collector()
    _pytest([*_where(()), "--collect-only"], collector)
    cases = {case_id(item): lacking(item) for item in collector.items if item.get_closest_marker("scenario")}
    unable = {id: missing for id, missing in cases.items() if missing}
    if as_json:
        told = [
            {
                "id": id,
                "can_run": not missing,
                "reason": "; ".join(m.found for m in missing),
                "fix": [m.fix for m in missing],
            }
            for id, missing in cases.items()
        ]
        click.echo(json.dumps(doctor_json() | {"cases": told}, indent=2))
        return EXIT_VALID
    table = Table("", "ability", "found", "needed for", "how to get it", header_style="bold")
    for ability in abilities():
        mark = Text("yes", style="green") if ability.present else Text("no", style="yellow")
        table.add_row(mark, ability.name, ability.found, ability.needed_for, "" if ability.present else ability.fix)
    out.print(table)
    out.print(f"{len(cases) - len(unable)} of {len(cases)} cases can run here")
    for id, missing in unable.items():
        out.print(Text(f"  not {id}: " + "; ".join(f"{m.name}: {m.found}; {m.fix}" for m in missing), style="yellow"))
    return EXIT_VALID


@cli.command()
@_options(_BUILD_OPTIONS)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(0, 20), help="Of the pair; 0: none.")
@click.option("--pair-records", default=200_000, show_default=True, type=click.IntRange(1000), help="In each round.")
@click.option("--records", default=10_000_000, show_default=True, type=click.IntRange(1), help="For the judge.")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write it as JSON.")
def bench(rounds: int, pair_records: int, records: int, json_file: Path | None, **options: str | None) -> int:
    """Measure the harness: the pair as a ratio to Kafka's verifiable clients, the judge in records a second."""
    from harness.bench.run import run_bench
    from harness.bench.start import median_ratio
    from harness.builds import BuildOptions, Builds

    def say(line: str) -> None:
        err.print(Text(line, style="dim"))

    undo.clean(say)
    builds = Builds.choose(BuildOptions(**options))
    found = run_bench(builds, rounds=rounds, pair_records=pair_records, judge_records=records, say=say)
    table = Table("the pair beside VerifiableProducer and -Consumer", "Kafka's, records/s", "ours", "ratio")
    for number, each in enumerate(found.pair, 1):
        table.add_row(f"round {number}", f"{each.kafkas:,.0f}", f"{each.ours:,.0f}", f"{each.ratio:.2f}")
    if (ratio := found.ratio()) is not None:
        table.add_row("median", "", "", f"{ratio:.2f}", style="bold")
        out.print(table)
    if found.starts:
        table = Table("three brokers ready", "processes, s", "containers, s", "ratio")
        for number, start in enumerate(found.starts, 1):
            table.add_row(f"round {number}", f"{start.process_s:.2f}", f"{start.container_s:.2f}", f"{start.ratio:.2f}")
        table.add_row("median", "", "", f"{median_ratio(found.starts) or 0:.2f}", style="bold")
        out.print(table)
    table = Table("the judge, all kinds on", "rows", "seconds", "records/s", "peak memory, all processes")
    for judged in found.judged:
        table.add_row(
            f"{judged.records:,} records",
            f"{judged.rows:,}",
            f"{judged.seconds:.2f}",
            f"{judged.records_per_s:,}",
            f"{judged.peak_mb:,} MB",
        )
    out.print(table)
    if json_file:
        json_file.write_text(found.to_json())
    return EXIT_VALID


@cli.command()
def clean() -> int:
    """Undo all that an interrupted run left: processes, permissions, folders."""
    from harness.pipeline.session import sweep_scratch

    count = undo.clean(lambda line: out.print(Text(line)))
    sweep_scratch()
    out.print(f"{count} interrupted run{'' if count == 1 else 's'} cleaned up after")
    return EXIT_VALID


@cli.group()
def image() -> None:
    """Images for --backend docker."""


@image.command()
def base() -> int:
    """Make an image with Java to build on from Debian's packages (mmdebstrap), where no registry can be reached."""
    from harness.images import make_base

    click.echo(make_base(lambda line: err.print(Text(line, style="dim"))))
    return EXIT_VALID


@image.command()
@_options(_BUILD_OPTIONS)
@click.option("--base", metavar="IMAGE", help="What to build on: an image with Java and bash.")
def build(base: str | None, **options: str | None) -> int:
    """Make the image of a Kafka build by compose/Dockerfile, and print its name."""
    from harness.builds import BuildOptions, Builds
    from harness.images import build as build_image

    def say(line: str) -> None:
        err.print(Text(line, style="dim"))

    builds = Builds.choose(BuildOptions(**options))
    for mode in builds.modes():
        click.echo(build_image(builds.of(mode, say), base=base, say=say))
    return EXIT_VALID


@cli.group()
def cluster() -> None:
    """A cluster to try things on by hand."""


@cluster.command()
@_options(_BUILD_OPTIONS)
@click.option("--brokers", default=3, show_default=True, type=click.IntRange(1, 12))
@click.option("--log-dirs", default=2, show_default=True, type=click.IntRange(1, 12))
@click.option("--backend", type=click.Choice(BACKENDS), default="process", show_default=True, help="What it runs in.")
@click.option("--racks", metavar="R1,R2,…", help="broker.rack of each broker in order.")
@click.option("--volumes", type=click.Choice(["ext4", "xfs", "tmpfs"]), help="A file system for each log dir (root).")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A broker setting.")
def up(
    brokers: int,
    log_dirs: int,
    backend: BackendKind,
    racks: str | None,
    volumes: VolumeKind | None,
    overrides: tuple[str, ...],
    **options: str | None,
) -> int:
    """Start a cluster that stays; prints the bootstrap address and where the log dirs are."""
    import secrets

    from harness.backends import runtime_of
    from harness.builds import BuildOptions, Builds
    from harness.cluster import boot
    from harness.journal import Journal
    from harness.spec import ClusterSpec

    pairs = [pair.partition("=") for pair in overrides]
    if bad := [pair[0] for pair in pairs if not pair[1]]:
        raise UsageError(f"--set {bad[0]}: not KEY=VALUE")
    builds = Builds.choose(BuildOptions(**options))
    mode = builds.modes()[-1]
    try:
        spec = ClusterSpec(
            mode=mode,
            brokers=brokers,
            log_dirs=log_dirs,
            racks=tuple(rack or None for rack in racks.split(",")) if racks else (),
            volumes=volumes,
            backend=backend,
            overrides={key: value for key, _, value in pairs},
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    undo.clean(lambda line: err.print(Text(line, style="dim")))
    distribution = builds.of(mode, lambda line: err.print(Text(line, style="dim")))
    runtime_of(backend, distribution, mode, lambda line: err.print(Text(line, style="dim")))
    name = f"cluster-{secrets.token_hex(3)}"
    with err.status(f"Kafka {distribution.version} in mode {mode}"):
        folder = undo.workspace() / name  # its logs go with it
        running = boot(spec, distribution, run_id=name, record_dir=folder, journal=Journal(None), outlives=True)
        running.keep()
    click.echo("\n".join([f"{name}: logs in {folder / 'brokers'}", *running.how_to_reach()]))
    return EXIT_VALID


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_options(_BUILD_OPTIONS)
@click.argument("name")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tool(name: str, arguments: tuple[str, ...], **options: str | None) -> int:
    """Run a program of a Kafka build, such as topics, log-dirs, reassign, dump-log: jbod tool topics --describe …"""
    from harness.builds import BuildOptions, Builds
    from harness.tools import tool_command
    from harness.versions import Tool

    try:
        wanted = Tool(name.removeprefix("kafka-").removesuffix(".sh"))
    except ValueError:
        raise UsageError(f"no tool {name!r}; there is: {', '.join(Tool)}") from None
    builds = Builds.choose(BuildOptions(**options))
    command = tool_command(builds.of(builds.modes()[-1]), wanted, *arguments)
    sys.stdout.flush()
    os.execvp(command[0], command)


@cluster.command()
def status() -> int:
    """List the clusters that were left standing."""
    kept = [log.parent.name for log in undo.logs() if undo.is_kept(log)]
    for name in kept:
        processes = list(undo.marked_processes(name))
        click.echo(f"{name}: {len(processes)} processes, data in {undo.workspace() / name}")
    if not kept:
        click.echo("no cluster stands")
    return EXIT_VALID


@cluster.command()
@click.argument("name", nargs=-1)
def down(name: tuple[str, ...]) -> int:
    """Take clusters down: those named, or all that were left standing."""
    kept = [log.parent.name for log in undo.logs() if undo.is_kept(log)]
    for unknown in set(name) - set(kept):
        raise UsageError(
            f"no cluster {unknown!r} stands; there {'is' if len(kept) == 1 else 'are'}: {', '.join(kept) or 'none'}"
        )
    for cluster_name in name or kept:
        undo.take_down(cluster_name)
        click.echo(f"{cluster_name}: down")
    return EXIT_VALID


def main() -> None:
    """Entry point: every error becomes one line and the contract's exit code."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # All as Ctrl-C, also where a shell has SIGINT ignored: a run that is told to end cleans up after itself.
        with contextlib.suppress(ValueError):
            signal.signal(signal_number, signal.default_int_handler)
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        err.print(Text(f"jbod: {error.format_message()}"))
        code = EXIT_USAGE
    except JbodError as error:
        err.print(Text(f"jbod: {error}"))
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        err.print("jbod: interrupted")
        code = EXIT_HARNESS
    except Exception as error:
        # A fault of the harness must never look like one of Kafka's (exit code 1).
        err.print(Text(f"jbod: {type(error).__name__}: {error}; JBOD_DEBUG=1 shows where"))
        if os.environ.get("JBOD_DEBUG"):
            err.print_exception()
        code = EXIT_HARNESS
    sys.exit(int(code or 0))
