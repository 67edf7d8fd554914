"""A pause waits for Enter, at its moment only. No cluster runs here; test_chaos.py has pauses with a cluster."""

from __future__ import annotations

import os
import pty
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import EnvironmentLacks
from harness.events import FaultEvent
from harness.journal import now
from harness.runner.pausing import MOMENTS, Pause


@pytest.fixture
def terminal() -> Iterator[tuple[int, Path]]:
    """The user's end of a new terminal, and the terminal's name.

    If pytest leads a session without a terminal, as in a container, the session would get this one. To close it would
    end pytest then.
    """
    somebody, terminal = pty.openpty()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield somebody, Path(os.ttyname(terminal))
    for end in (somebody, terminal):
        os.close(end)
    signal.signal(signal.SIGHUP, before)


def a_pause(moment: str, terminal: Path) -> Pause:
    pause = Pause(moment, terminal)
    pause.how_to_reach = lambda: ["bootstrap 127.0.0.1:1"]
    return pause


def event(moment: str) -> FaultEvent:
    return MOMENTS[moment](at=now(), fault="chmod_000", target="log-dir-1 of broker 2", broker=2)


def read(somebody: int, until: bytes) -> bytes:
    """Read the terminal until these words appear; returns all that was read."""
    seen = b""
    while until not in seen:
        assert select.select([somebody], [], [], 10)[0], seen  # a hang, not a measure
        seen += os.read(somebody, 4096)
    return seen


@pytest.mark.parametrize("moment", MOMENTS)
def test_it_waits_for_enter_and_says_how_to_look(moment: str, terminal: tuple[int, Path]) -> None:
    somebody, name = terminal
    waiting = threading.Thread(target=a_pause(moment, name), args=(event(moment),), daemon=True)
    waiting.start()
    seen = read(somebody, b"press Enter to go on").decode()
    assert f"{MOMENTS[moment].kind}: chmod_000 on log-dir-1 of broker 2" in seen
    assert "bootstrap 127.0.0.1:1" in seen
    os.write(somebody, b"q")  # no Enter
    waiting.join(0.2)
    assert waiting.is_alive()
    os.write(somebody, b"\n")
    waiting.join(10)
    assert not waiting.is_alive()


def test_it_waits_at_its_own_moment_only(terminal: tuple[int, Path]) -> None:
    """It does not wait before there is a cluster to look at."""
    somebody, name = terminal
    for pause, its in ((a_pause("inject", name), event("heal")), (Pause("inject", name), event("inject"))):
        passing = threading.Thread(target=pause, args=(its,), daemon=True)
        passing.start()
        passing.join(10)  # a hang, not a measure
        assert not passing.is_alive()
    assert not select.select([somebody], [], [], 0)[0]


def test_without_a_terminal_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks, match="--pause-at heal needs a terminal, and there is none"):
        Pause("heal", tmp_path / "nowhere")
