"""Shared parts of the commands: consoles, common options, and running pytest."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from rich.console import Console
from rich.text import Text

from harness.errors import UsageError
from harness.runner import run_options
from harness.runner.at_once import AUTO, MOST, JobsOption
from harness.runner.run_options import RunOption
from harness.runner.subrun import arguments_of

if TYPE_CHECKING:
    from harness.history.run_folder import RunRecord
    from harness.kafka.builds import BuildOptions
    from harness.runner.nightly import Fixed
    from harness.runner.run import Run
    from harness.runner.scenario import DeclaredCase

GivenOption = str | tuple[str, ...] | bool | None
"""The value of an option as click gives it; a repeated option has a tuple, and a flag a bool."""


def text_of(options: Mapping[str, GivenOption], name: str) -> str | None:
    """Return the value of an option that has one text at most."""
    value = options.get(name)
    assert value is None or isinstance(value, str)
    return value


def case_again(run: RunRecord, run_dir: Path) -> tuple[str, dict[str, GivenOption]]:
    """Return the selector and the options that run the case of a run folder again, without its holds."""
    from harness.kafka.builds import BuildOptions
    from harness.runner.outside import selector_of
    from harness.runner.set_option import options_of

    options: dict[str, GivenOption] = {"backend": run.backend, "seed": str(run.seed)}
    options |= vars(BuildOptions.of(run.kafka, run.mode)) | options_of(run.profile, run.settings, run.listener_security)
    selector = selector_of(run.case, run.file)
    if run.schedule:
        selector = re.sub(r"-\d+]$", "-0]", selector)  # this run has only one schedule, with number 0
        options["schedule"] = str(run_dir / "run.json")
    return selector, options


# Without a terminal (CI, a pipe) lines need not be cut to 80 columns.
WIDTH = None if sys.stdout.isatty() else 140
out = Console(width=WIDTH)
err = Console(stderr=True, width=WIDTH)


def settled(_context: click.Context, _option: click.Parameter, kafka: str | None) -> str | None:
    """Resolve ``latest`` to a version; a click callback for every command that takes a build."""
    from harness.kafka.released import settle

    return settle(kafka, note)


def _checked(option: RunOption) -> Callable[[click.Context, click.Parameter, GivenOption], GivenOption]:
    """Return a click callback that checks the form of an option's value, or of each value of a repeated one."""

    def check(_context: click.Context, _option: click.Parameter, given: GivenOption) -> GivenOption:
        for text in given if isinstance(given, tuple) else (given,):
            if isinstance(text, str):
                option.check(text)
        return given

    return check


def _for_click(of: Sequence[RunOption]) -> list[Callable[..., object]]:
    """Return the options for click. Only ``latest`` is resolved and only the form is checked here; pytest does the
    rest."""
    return [
        click.option(each.name, help=each.help, is_flag=True)
        if each.is_flag
        else click.option(
            each.name,
            metavar=each.metavar,
            help=each.help,
            multiple=each.repeats,
            callback=settled if each is run_options.KAFKA else _checked(each),
        )
        for each in of
    ]


BUILD_OPTIONS = _for_click(run_options.BUILD)
PROBE_OPTIONS = _for_click(run_options.PROBE)
OUTCOME_OPTIONS = _for_click(run_options.OUTCOME)
RUN_OPTIONS = _for_click(run_options.RUN)
EVERY = click.option(
    "--every", default="7d", show_default=True, metavar="TIME", help="A case is overdue after this long without a run."
)
BACKEND = click.option(
    "--backend",
    default="process",
    show_default=True,
    metavar="process|docker",
    help="Where nodes run: processes or containers.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
JSON_FILE = click.option(
    "--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write the results as JSON."
)
FOLDER = click.Path(path_type=Path, readable=False)  # click would call an unreadable folder a usage error
RUN_DIR = click.argument("run_dir", type=FOLDER)


def _jobs(_context: click.Context, _option: click.Parameter, text: str) -> JobsOption:
    """Convert the value of ``--jobs``; a click callback.

    :raises click.BadParameter: it is neither a number of cases nor ``auto``
    """
    if text == AUTO:
        return AUTO
    number = int(text) if re.fullmatch(r"-?\d+", text) else 0
    if not 1 <= number <= MOST:
        raise click.BadParameter(f"{text} is neither a number from 1 to {MOST} nor {AUTO}")
    return number


JOBS = click.option(
    "--jobs",
    callback=_jobs,
    metavar=f"N|{AUTO}",
    default=AUTO,
    show_default=True,
    help="How many cases run at once, each with its own cluster and Spark session (about 3 GiB). auto: as many as "
    "cores, memory and the present load allow; fewer once a case starves.",
)


def with_options(options: list[Callable[..., object]]) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Return a decorator that adds these options to a command."""

    def add(function: Callable[..., object]) -> Callable[..., object]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def tell(what: str, console: Console = err) -> None:
    """Print one line on standard error, uncut. A closed terminal raises no error.

    :param console: writes to standard error
    """
    with suppress(OSError):
        console.print(Text(f"jbod: {what}"), soft_wrap=True)


def say(line: str) -> None:
    """Print one line on standard output, uncut."""
    out.print(Text(line), soft_wrap=True)


def note(line: str) -> None:
    """Print a line of progress on standard error, so that standard output has only the result."""
    err.print(Text(line, style="dim"), soft_wrap=True)


def run_pytest(arguments: list[str], *plugins: object) -> int:
    """Run pytest in this process, without its terminal output, and return its exit code.

    :param arguments: include those of :func:`where`
    """
    base = ["-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts="]
    base += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # jbod has imported its plugins already
    return int(pytest.main([*base, *arguments], plugins=[*plugins]))


def where(selectors: tuple[str, ...]) -> list[str]:
    """Return pytest's arguments that collect and select these cases (:func:`harness.runner.outside.collection`).

    For a single selector, ``--select`` comes last.
    """
    from harness.runner.outside import collection

    return collection(selectors)


class Collector:
    """A pytest plugin that keeps the collected cases.

    :ivar cases: the cases of scenarios
    :ivar run: the run that they would belong to
    """

    cases: list[DeclaredCase]
    run: Run

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the collected cases."""
        from harness.runner.run import run_of
        from harness.runner.scenario import case_of

        self.run = run_of(session.config)
        self.cases = [case for item in session.items if (case := case_of(item)) is not None]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Print why pytest ends, because its own reporter is off."""
        if isinstance(excinfo.value, pytest.exit.Exception):
            tell(str(excinfo.value.msg))


def collect(*arguments: str) -> Collector:
    """Collect what pytest would run with these arguments.

    :raises click.exceptions.Exit: the collection failed; the reason was printed
    """
    collector = Collector()
    code = run_pytest([*arguments, "--collect-only"], collector)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise click.exceptions.Exit(code)
    return collector


def fixed_cases(options: Mapping[str, str | None], backend: str, probes: Sequence[str] = ()) -> Fixed:
    """Return the cases of the fixed suites for this machine, these builds and this backend.

    :param probes: ``--probe`` options for these builds
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


def say_other_build(run: RunRecord, options: BuildOptions) -> None:
    """Print a warning for each build that a run.json names and that is not the one that it ran on."""
    from harness.kafka.builds import Builds
    from harness.kafka.versions import Mode

    builds, mode = Builds.choose(options), Mode(run.mode)
    now = [(run.kafka, builds.of(mode, tell))]
    if run.upgraded_from is not None:
        now.append((run.upgraded_from, builds.earlier(mode, tell)))
    for then, build in now:
        if then.sha256 and build.sha256 != then.sha256:
            tell(
                f"{build.origin} is now another build (sha256 {build.sha256[:12]}, Kafka {build.version}) than the "
                f"one that ran (sha256 {then.sha256[:12]}, Kafka {then.version})"
            )


def seconds(text: str) -> float:
    """Convert 90s, 30m, 8h or 7d to seconds.

    :raises UsageError: the text has another form
    """
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if not found:
        raise UsageError(f"{text!r} is not a time; write 90s, 30m, 8h or 7d")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
