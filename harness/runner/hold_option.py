"""``--hold POINT@WHERE/SECONDS``: at which point threads are held, in which nodes, and for how long."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from harness.errors import UsageError
from harness.kafka.points import read_points

STRUCK, OTHERS, CONTROLLERS = "struck", "others", "controllers"
WHERE = (STRUCK, OTHERS, CONTROLLERS)
"""The nodes that threads are held in: the one that the fault hits, all other brokers, or dedicated controllers."""
DEFAULT_S = 0.5
_MOST_THREADS = 3
_FORM = re.compile(rf"(?P<point>[\w-]+)@(?P<where>{'|'.join(WHERE)})(?:/(?P<seconds>\d+(?:\.\d+)?))?")


@dataclass(frozen=True, kw_only=True)
class HoldOption:
    """A value of ``--hold``.

    :ivar for_s: how long each thread is held, if the point allows so much
    """

    point: str
    where: str
    for_s: float = DEFAULT_S

    @classmethod
    def parse(cls, text: str) -> HoldOption:
        """Read a value.

        :raises UsageError: it has another form, or there is no such point
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise UsageError(f"--hold {text}: not POINT@{'|'.join(WHERE)}, with /SECONDS after it or without")
        if found["point"] not in read_points():
            raise UsageError(f"--hold {text}: there is no point {found['point']}; jbod points lists them")
        return cls(point=found["point"], where=found["where"], for_s=float(found["seconds"] or DEFAULT_S))

    def longer(self) -> HoldOption | None:
        """The same hold for twice as long, or as long as the point allows; None if that is no longer."""
        longer = self.lasting(2 * self.for_s)
        return longer if longer.for_s > self.for_s else None

    def lasting(self, for_s: float) -> HoldOption:
        """The same hold for this time, or as long as the point allows."""
        return replace(self, for_s=min(for_s, self._limit_s))

    @property
    def threads(self) -> int:
        """How many threads of a node are held: all together no longer than the point allows."""
        return max(1, min(_MOST_THREADS, int(self._limit_s / self.for_s))) if self.for_s else _MOST_THREADS

    @property
    def _limit_s(self) -> float:
        return read_points()[self.point].limit_s

    def __str__(self) -> str:
        return f"{self.point}@{self.where}/{self.for_s:g}"


def checked(text: str) -> str:
    """Return the value of ``--hold`` if it can be read.

    :raises pytest.UsageError: it cannot
    """
    try:
        return str(HoldOption.parse(text))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
