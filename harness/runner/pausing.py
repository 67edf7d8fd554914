"""Pauses a case at a fault, so that a person can look at the cluster: ``--pause-at inject`` or ``heal``.

The pause is a listener of the journal. It waits after a fault was proven, or before it is undone. Only the thread of
the case waits; brokers and clients go on. It uses the terminal directly, because pytest captures standard input and
output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.errors import EnvironmentLacks
from harness.events import Event, FaultEvent, FaultHealing, FaultInjected

MOMENTS: Mapping[str, type[FaultEvent]] = {"inject": FaultInjected, "heal": FaultHealing}


class Pause:
    """Waits for Enter at each such event of a case.

    :param moment: a key of :data:`MOMENTS`
    :raises EnvironmentLacks: there is no terminal
    """

    def __init__(self, moment: str, terminal: Path = Path("/dev/tty")) -> None:
        self._kind = MOMENTS[moment]
        self._terminal = terminal
        self.how_to_reach: Callable[[], list[str]] | None = None
        try:
            terminal.open().close()
        except OSError as error:
            raise EnvironmentLacks(f"--pause-at {moment} needs a terminal, and there is none: {error}") from error

    def __call__(self, event: Event) -> None:
        """Wait if the event is of the chosen kind."""
        if isinstance(event, self._kind) and self.how_to_reach is not None:
            self._wait([f"{event.kind}: {event.fault} on {event.target}", *self.how_to_reach()])

    def _wait(self, lines: list[str]) -> None:
        with self._terminal.open("w") as out, self._terminal.open() as keys:
            out.write("\n".join(["", *lines, "press Enter to go on "]))
            out.flush()
            keys.readline()
