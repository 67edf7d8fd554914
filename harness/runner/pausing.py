"""Stand still at a fault, so that somebody can look: ``--pause-at inject`` or ``heal``.

A listener of the journal, in whose words both moments are known: after a fault was proven, and before it is taken back.
The case waits in its own thread; brokers and clients go on. Asked at the terminal itself, because pytest has standard
input and output for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.errors import EnvironmentLacks
from harness.events import Event, FaultEvent, FaultHealing, FaultInjected

MOMENTS: Mapping[str, type[FaultEvent]] = {"inject": FaultInjected, "heal": FaultHealing}


class Pause:
    """Waits at each of these moments of a case until somebody presses Enter.

    :param moment: of :data:`MOMENTS`
    :raises EnvironmentLacks: there is no terminal
    """

    def __init__(self, moment: str, terminal: Path = Path("/dev/tty")) -> None:
        self._kind = MOMENTS[moment]
        self._terminal = terminal
        self.how_to_reach: Callable[[], list[str]] | None = None
        try:
            terminal.open().close()
        except OSError as error:
            raise EnvironmentLacks(f"--pause-at {moment} waits for Enter, and there is no terminal: {error}") from error

    def __call__(self, event: Event) -> None:
        """Wait if this event is the moment."""
        if isinstance(event, self._kind) and self.how_to_reach is not None:
            self._wait([f"{event.kind}: {event.fault} on {event.target}", *self.how_to_reach()])

    def _wait(self, lines: list[str]) -> None:
        with self._terminal.open("w") as out, self._terminal.open() as keys:
            out.write("\n".join(["", *lines, "Enter goes on "]))
            out.flush()
            keys.readline()
