"""Programs of this machine: finds one, and runs one to its end or kills it with all its children."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def system_program(name: str) -> str | None:
    """The path of one of the system's programs, which are often not on an ordinary user's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def run_to_end(
    argv: Sequence[str], *, cwd: Path, timeout_s: float, on_line: Callable[[str], object] = lambda _line: None
) -> tuple[int, list[str]]:
    """Run a program in a session of its own, so that its children end with it at a time-out or at Ctrl-C.

    :param on_line: called with each line as it is printed
    :return: exit status and the lines of both streams, without colours and without empty lines
    :raises FileNotFoundError: there is no such program
    :raises subprocess.TimeoutExpired: it was killed after ``timeout_s``; ``output`` has the last line
    """
    lines: list[str] = []
    expired = threading.Event()
    with subprocess.Popen(
        argv,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:

        def end() -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        def expire() -> None:
            expired.set()
            end()

        timer = threading.Timer(timeout_s, expire)
        timer.daemon = True
        timer.start()
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                if line := _COLOUR.sub("", raw).strip():
                    lines.append(line)
                    on_line(line)
            status = process.wait()
        except BaseException:
            end()
            process.wait()
            raise
        finally:
            timer.cancel()
    if expired.is_set():
        raise subprocess.TimeoutExpired(argv, timeout_s, output=lines[-1] if lines else "")
    return status, lines
