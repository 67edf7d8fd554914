"""What commands have in common: where they print, their options, and pytest, of which most are a thin layer."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from rich.console import Console
from rich.text import Text

from harness.errors import HarnessError, UsageError
from harness.runner import run_options
from harness.runner.run_options import RunOption
from harness.runner.subrun import arguments_of

if TYPE_CHECKING:
    from harness.kafka.builds import BuildOptions
    from harness.runner.nightly import Fixed
    from harness.runner.run import Run
    from harness.runner.scenario import DeclaredCase

# Where nobody looks at a terminal (CI, a pipe) lines need not be cut to 80 columns.
WIDTH = None if sys.stdout.isatty() else 140
out = Console(width=WIDTH)
err = Console(stderr=True, width=WIDTH)


def settled(_context: click.Context, _option: click.Parameter, kafka: str | None) -> str | None:
    """The version that ``latest`` is, for every command that takes a build."""
    from harness.kafka.released import settle

    return settle(kafka, note)


def _for_click(of: Sequence[RunOption]) -> list[Callable[..., object]]:
    """What of its values is right is for pytest to say, to which they go on as they are; but for ``latest``."""
    return [
        click.option(
            each.name,
            metavar=each.metavar,
            help=each.help,
            multiple=each.repeats,
            callback=settled if each is run_options.KAFKA else None,
        )
        for each in of
    ]


BUILD_OPTIONS = _for_click(run_options.BUILD)
PROBE_OPTIONS = _for_click(run_options.PROBE)
OUTCOME_OPTIONS = _for_click(run_options.OUTCOME)
RUN_OPTIONS = _for_click(run_options.RUN)
EVERY = click.option(
    "--every", default="7d", show_default=True, metavar="TIME", help="The longest that a case may not run."
)
BACKEND = click.option(
    "--backend", default="process", show_default=True, metavar="process|docker", help="What nodes run in."
)
JOBS = click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="So many cases at once, each with a cluster and a Spark session of its own (2 to 3 GB).",
)


def with_options(options: list[Callable[..., object]]) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """A decorator that gives a command these options."""

    def add(function: Callable[..., object]) -> Callable[..., object]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def tell(what: str) -> None:
    """One line on stderr, uncut; to nobody where that is gone, as with a terminal that was closed."""
    with suppress(OSError):
        err.print(Text(f"jbod: {what}"), soft_wrap=True)


def say(line: str) -> None:
    """One line on standard output, as it stands."""
    out.print(Text(line), soft_wrap=True)


def note(line: str) -> None:
    """What is being done, one line on stderr; what a command prints is for others to read."""
    err.print(Text(line, style="dim"), soft_wrap=True)


def run_pytest(arguments: list[str], *plugins: object) -> int:
    """pytest in this process, with its own terminal output off, on what the arguments name (:func:`where`)."""
    base = ["-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts="]
    base += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported by now, which is right here
    return int(pytest.main([*base, *arguments], plugins=[*plugins]))


def where(selectors: tuple[str, ...]) -> list[str]:
    """What pytest collects and selects (:func:`harness.runner.outside.collection`); one selector's own comes last."""
    from harness.runner.outside import collection

    return collection(selectors)


class Collector:
    """Takes over what is collected, and runs none of it.

    :ivar cases: the scenarios'
    :ivar run: whose cases they would be
    """

    cases: list[DeclaredCase]
    run: Run

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Now they are known."""
        from harness.runner.run import run_of
        from harness.runner.scenario import case_of

        self.run = run_of(session.config)
        self.cases = [case for item in session.items if (case := case_of(item)) is not None]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """pytest ends, for a reason that its own reporter would have told."""
        if isinstance(excinfo.value, pytest.exit.Exception):
            tell(str(excinfo.value.msg))


def collect(*arguments: str) -> Collector:
    """What pytest would run with these arguments.

    :raises click.exceptions.Exit: it can't be told; pytest has said why
    """
    collector = Collector()
    code = run_pytest([*arguments, "--collect-only"], collector)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise click.exceptions.Exit(code)
    return collector


def fixed_cases(options: Mapping[str, str | None], backend: str, probes: Sequence[str] = ()) -> Fixed:
    """The cases that must be run now and then, on this machine, these builds and this backend.

    :param probes: options that name what ``jbod probe`` found of these builds
    """
    from harness.runner.ledger import Planned
    from harness.runner.nightly import Fixed
    from harness.runner.suite_kinds import NOT_FIXED, suite_of

    planned, unable, without = {}, {}, {}
    collected = collect(*where(()), *arguments_of(options), f"--backend={backend}", *probes)
    for case in collected.cases:
        if suite_of(case.id) in NOT_FIXED:
            continue
        if why := collected.run.unfit_build(case):
            unable[case.id] = why
            continue
        scenario, kafka = case.scenario, str(collected.run.version(case))
        plan = Planned(kip=scenario.kip, plan=scenario.plan, mode=str(case.mode), kafka=kafka)
        if why := "; ".join(map(str, collected.run.lacking(case))):
            unable[case.id], without[case.id] = why, plan
        else:
            planned[case.id] = plan
    return Fixed(planned=planned, unable=unable, lacking=without)


def say_other_build(run: Mapping[str, Any], options: BuildOptions) -> None:
    """Say it where the build that a run.json names is no longer the one that it ran on."""
    from harness.kafka.builds import Builds
    from harness.kafka.versions import Mode

    then = run["kafka"].get("sha256")
    build = Builds.choose(options).of(Mode(run["mode"]), tell)
    if then and build.sha256 != then:
        tell(
            f"{build.origin} is another build by now (sha256 {build.sha256[:12]}, Kafka {build.version}) than the one "
            f"that ran (sha256 {then[:12]}, Kafka {run['kafka'].get('version')})"
        )


def seconds(text: str) -> float:
    """90s, 30m, 8h or 7d, in seconds.

    :raises UsageError: it is none of these
    """
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if not found:
        raise UsageError(f"{text!r} is no time; say 90s, 30m, 8h or 7d")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


@contextmanager
def told_by(run_dir: Path) -> Iterator[None]:
    """Inside the block a run.json is read for what ran.

    :raises HarnessError: it doesn't say
    """
    try:
        yield
    except (KeyError, TypeError) as error:
        raise HarnessError(f"{run_dir}/run.json doesn't say what ran: {error} is missing") from error
