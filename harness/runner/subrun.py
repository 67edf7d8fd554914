"""Runs ``jbod`` in a process of its own, for workflows that consist of several runs.

pytest and Spark support only one run in a process. The result of a run is its ``--json``.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from harness.errors import EXIT_HARNESS, EXIT_VALID
from harness.host.scratch import scratch
from harness.runner.case_result import CaseResult

_DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM")


@dataclass(frozen=True, kw_only=True)
class SubRun:
    """The result of one ``jbod run``.

    :ivar cases: empty if it ended before any case did
    """

    exit_code: int
    cases: tuple[CaseResult, ...] = ()


def arguments_of(options: Mapping[str, object]) -> list[str]:
    """Convert options by their Python names to command-line arguments.

    Options that are None and flags that are False are left out. A tuple has the values of a repeated option.
    """
    named = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    each = [(name, one) for name, value in named.items() for one in (value if isinstance(value, tuple) else (value,))]
    given = [(name, value) for name, value in each if value is not None and value is not False]
    return [name if value is True else f"{name}={value}" for name, value in given]


def jbod_command(*arguments: str) -> list[str]:
    """Return a command that runs this installation of jbod, whatever the working directory contains (``-P``)."""
    return [sys.executable, "-P", "-c", "from harness.cli.main import main; main()", *arguments]


def run_apart(*arguments: str, quiet: bool = False) -> SubRun:
    """Run ``jbod run`` with these arguments to its end.

    :param quiet: whether its progress is hidden
    """
    with scratch("subrun") as folder:
        result = folder / "result.json"
        code = _call(jbod_command("run", *arguments, f"--json={result}"), quiet)
        cases = json.loads(result.read_text())["scenarios"] if result.exists() else []
    return SubRun(exit_code=code, cases=tuple(map(CaseResult.from_json, cases)))


async def run_beside(*arguments: str) -> SubRun:
    """Run ``jbod run`` with these arguments to its end, hidden, while other such runs go on.

    If the task is cancelled, the run gets SIGTERM and cleans up.
    """
    with scratch("subrun") as folder:
        result = folder / "result.json"
        reports = (f"--junit={folder / 'junit.xml'}", f"--allure={folder / 'allure'}")
        command = [*_DIES_WITH_US, *jbod_command("run", *arguments, *reports, f"--json={result}")]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            raise
        cases = json.loads(result.read_text())["scenarios"] if result.exists() else []
    return SubRun(exit_code=code if code >= 0 else EXIT_HARNESS, cases=tuple(map(CaseResult.from_json, cases)))


def call_apart(*arguments: str, quiet: bool = False) -> int:
    """Run another command of jbod to its end, and return its exit code.

    :param quiet: whether everything but errors is hidden
    """
    return _call(jbod_command(*arguments), quiet)


def repeat_apart(arguments: Sequence[str], times: int | None, say: Callable[[str], None]) -> list[SubRun]:
    """Run ``jbod run`` several times.

    :param times: None: until a run has another exit code than 0
    """
    runs: list[SubRun] = []
    while times is None or len(runs) < times:
        runs.append(run_apart(*arguments))
        codes = [run.exit_code for run in runs]
        say(f"{codes.count(EXIT_VALID)} of {len(codes)} valid")
        if times is None and codes[-1] != EXIT_VALID:
            break
    return runs


def _call(command: Sequence[str], quiet: bool) -> int:
    """Run a command to its end. It gets SIGTERM if this process gets SIGTERM or dies, and then cleans up.

    Ctrl-C in the terminal reaches both processes. If the command is killed by a signal, the exit code is
    :data:`EXIT_HARNESS`.

    :raises KeyboardInterrupt: this process got SIGTERM or SIGINT
    """
    received: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        received.append(number)
        for each in started:
            each.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on)  # `kill` reaches only this process
    try:
        out = subprocess.DEVNULL if quiet else None
        process = subprocess.Popen([*_DIES_WITH_US, *command], stdout=out)
        started.append(process)
        for number in tuple(received):  # received while the process started
            process.send_signal(number)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if received:
        raise KeyboardInterrupt
    return code if code >= 0 else EXIT_HARNESS
