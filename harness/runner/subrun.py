"""``jbod run`` in a process of its own, for workflows made of several runs.

A process each, because pytest and Spark are made for one run a process; what comes back is the ``--json`` of the run,
which is all that anybody else has, too.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import EXIT_HARNESS, EXIT_VALID
from harness.host.scratch import scratch
from harness.runner.case import CaseResult


@dataclass(frozen=True, kw_only=True)
class SubRun:
    """How a run came out.

    :ivar cases: empty if it ended before any case did
    """

    exit_code: int
    cases: tuple[CaseResult, ...]


def arguments_of(options: Mapping[str, object]) -> list[str]:
    """Options by their names in Python as the command line has them; none for those that were not given (None)."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


def jbod_command(*arguments: str) -> list[str]:
    """This very jbod as a command of its own, whatever lies in the working directory (-P)."""
    return [sys.executable, "-P", "-c", "from harness.cli.main import main; main()", *arguments]


def run_apart(*arguments: str, quiet: bool = False) -> SubRun:
    """``jbod run`` with these arguments, to its end; it shows its own progress.

    :param quiet: it doesn't
    """
    with scratch("subrun") as folder:
        result = folder / "result.json"
        code = _call(jbod_command("run", *arguments, f"--json={result}"), quiet)
        cases = json.loads(result.read_text())["scenarios"] if result.exists() else []
    return SubRun(exit_code=code, cases=tuple(map(CaseResult.from_json, cases)))


def call_apart(*arguments: str, quiet: bool = False) -> int:
    """Another command of jbod, to its end; its exit code.

    :param quiet: it shows nothing but errors
    """
    return _call(jbod_command(*arguments), quiet)


def repeat_apart(arguments: Sequence[str], times: int | None, say: Callable[[str], None]) -> list[SubRun]:
    """``jbod run`` again and again.

    :param times: None: until one is not 0
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
    """Run it to its end, and no longer than we live: it is told to end if we are killed, and cleans up.

    What the terminal tells us (Ctrl-C) it tells both. One that was killed itself is a failure of the environment.
    """
    told: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        told.append(number)
        for each in started:
            each.send_signal(number)

    before = signal.signal(signal.SIGTERM, pass_on)  # what `kill` says is said to us alone
    try:
        out = subprocess.DEVNULL if quiet else None
        process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], stdout=out)
        started.append(process)
        for number in tuple(told):  # while it was being started
            process.send_signal(number)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if told:
        raise KeyboardInterrupt
    return code if code >= 0 else EXIT_HARNESS
