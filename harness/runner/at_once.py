"""Chooses how many cases run at once for ``jbod run --jobs auto``, and notes when the run changes that number.

A case waits for about half of its time, for sessions to expire or checkpoints to be due. So there are more workers than
cores: on two cores and 24 GiB, three workers finished 126 cases fastest, and no broker starved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from harness.host.room import Room

AUTO: Literal["auto"] = "auto"
JobsOption = int | Literal["auto"]
"""The value of ``--jobs``."""
MOST = 64
"""The most cases that may run at once."""
PER_CORE = 1.5
"""Workers for each core that no other program keeps busy."""
ROOMY_CASES = 2
"""Cases that each worker must run with room to spare before another worker starts again."""
WORKER_BYTES = 3 << 30
"""Memory of a worker: Spark takes 1 to 1.5 GiB, and the three to seven nodes of a cluster 256 MiB of heap each."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the number of cases at once, during the run.

    :ivar to: the new number
    :ivar case: the case that starved, or the last one that left room
    :ivar why: how this showed that the machine was too slow, or fast enough
    """

    to: int
    case: str
    why: str


@dataclass(frozen=True, kw_only=True)
class AtOnce:
    """How many cases run at once.

    :ivar count: at the start of the run
    :ivar why: the reason for the number; None if the user set it, or if there is one case at most
    """

    count: int = 1
    why: str | None = None
    lowered: Sequence[Change] = ()
    raised: Sequence[Change] = ()

    def __str__(self) -> str:
        return f"--jobs {AUTO}: {self.count} at once ({self.why})"

    def to_json(self) -> dict[str, object]:
        """Return the field ``jobs`` of ``--json``."""
        chosen = {} if self.why is None else {"why": self.why}
        changes = {"lowered": self.lowered, "raised": self.raised}
        changed = {name: [vars(each) for each in found] for name, found in changes.items() if found}
        return {"at_once": self.count, **chosen, **changed}


def choose(room: Room, cases: int) -> AtOnce:
    """Return how many cases may run at once: as many as the cores and the memory allow, and at least one."""
    free = max(0.0, room.cores - room.busy)
    allowed = max(1, min(int(PER_CORE * free), room.memory // WORKER_BYTES, MOST))
    if cases >= allowed:
        return AtOnce(count=allowed, why=str(room))
    return AtOnce(count=max(1, cases), why=f"{room}, {cases} cases")
