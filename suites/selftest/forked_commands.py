"""Runs commands of jbod in forks of one process that has imported jbod already: a start takes two seconds of CPU."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

HANG_S = 300.0
"""A command that takes longer hangs, in seconds; this is no limit for its speed."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int | None
    out: str
    err: list[str]


class Commands:
    """Runs commands of jbod, each in a fork of a process that has imported jbod already."""

    def __init__(self, context: ForkServerContext, folder: Path) -> None:
        self._context = context
        self.folder = folder

    def run(self, *arguments: str, uid: int | None = None) -> Answer:
        """Run a command to its end.

        :param uid: of the user who calls it; None is this test's user
        """
        out, err = self.folder / "stdout", self.folder / "stderr"
        work_dir = self.work_dir(uid)
        process = self._context.Process(target=call, args=(arguments, self.folder, work_dir, out, err, uid))
        process.start()
        process.join(HANG_S)
        if process.is_alive():
            process.kill()
        return Answer(code=process.exitcode, out=out.read_text(), err=err.read_text().splitlines())

    def work_dir(self, uid: int | None = None) -> Path:
        """The folder of the undo logs of commands that this user calls."""
        return self.folder / f"work-{uid}"


def call(arguments: tuple[str, ...], folder: Path, work: Path, out: Path, err: Path, uid: int | None) -> None:
    """Call ``jbod`` in this process, as its console script does."""
    from harness.cli.main import main

    for descriptor, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), descriptor)
    here = folder / "here"
    for each in (here, work):
        each.mkdir(exist_ok=True)
        if uid is not None:
            os.chown(each, uid, uid)
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    os.chdir(here)
    os.environ["JBOD_WORK_DIR"] = str(work)
    sys.argv = ["jbod", *arguments]
    main()


def fork_server() -> ForkServerContext:
    """A process that has imported what commands import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.cli.main", "reports.qualify", "reports.command", "suites.probe.command"])
    return context
