"""The command ``jbod``: registers all commands, and turns errors into one line and an exit code.

Bad input ends with one line on standard error and the exit code of the error (:mod:`harness.errors`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from importlib.metadata import entry_points

import click

from harness.cli.bisect import bisect
from harness.cli.clusters import clean, cluster, image, tool
from harness.cli.holds import pin, points
from harness.cli.look import check, doctor, explain, list_scenarios, show_ledger
from harness.cli.measure_harness import bench
from harness.cli.run_cases import nightly, repro, run, shrink
from harness.cli.shared import err, tell
from harness.errors import EXIT_HARNESS, EXIT_USAGE, JbodError

_COMMANDS = "jbod.commands"


class _Commands(click.Group):
    """The commands of this package, and those of other packages with the entry point ``jbod.commands``.

    ``harness`` must not import ``reports`` and ``suites``, so their commands are loaded when they are called.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *entry_points(group=_COMMANDS).names])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name; None if there is none."""
        for found in entry_points(group=_COMMANDS, name=cmd_name):
            command: click.Command = found.load()
            return command
        return super().get_command(ctx, cmd_name)


def _show_version(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked:
        from harness.host.own_version import described

        click.echo(f"jbod {described()}")
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version, and the git revision of a checkout.",
)
def cli() -> None:
    """Chaos and system tests for Apache Kafka on JBOD."""


_RUNNING = (run, repro, shrink, nightly, bisect)
_LOOKING = (list_scenarios, show_ledger, check, explain, doctor)
for _command in (*_RUNNING, *_LOOKING, points, pin, bench, cluster, image, tool, clean):
    cli.add_command(_command)


def main() -> None:
    """Run the command line, and exit with its exit code."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # All raise KeyboardInterrupt, so that a run cleans up. Some shells start background jobs with SIGINT ignored.
        with contextlib.suppress(ValueError):
            signal.signal(signal_number, signal.default_int_handler)
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        tell(error.format_message())
        code = EXIT_USAGE
    except JbodError as error:
        tell(str(error))
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        tell("interrupted")
        code = EXIT_HARNESS
    except Exception as error:
        # Python exits with 1 on an unexpected error, which would look like a broken promise of Kafka.
        first_line = str(error).partition("\n")[0]
        tell(f"{type(error).__name__}: {first_line}; JBOD_DEBUG=1 shows where")
        if os.environ.get("JBOD_DEBUG"):
            err.print_exception()
        code = EXIT_HARNESS
    _leave_streams()
    sys.exit(int(code or 0))


def _leave_streams() -> None:
    """Flush standard output and error here. Otherwise a closed stream would change Python's exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
