"""A known deviation of Kafka builds from a KIP: a scenario that shows it is valid, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

from harness.kafka.versions import CONFIRMED_BUILDS, KafkaVersion, Mode, VersionRange, is_newer_than

State = Literal["seen", "mended", "undeclared"]
"""What a case says of a deviation: it was *seen* as declared; it is *mended*, on a build newer than all on which it was
confirmed; or it was seen and is *undeclared*, because the scenario does not declare it."""


JSON_NAMES = {
    "kip": "kip",
    "says": "promised",
    "does": "actual",
    "issue": "issue",
    "builds": "builds",
    "modes": "modes",
    "always": "deterministic",
    "lasts": "pollutes",
}
"""The names of a deviation in JSON, which are fixed, and its fields."""


class Expectation(StrEnum):
    """What is expected of a build where some builds are known to deviate.

    :cvar CONFIRMED: it deviates; that it does not is a reason to look into the declaration
    :cvar OPEN: it is newer than all builds on which the deviation was confirmed: it may deviate or keep the promise
    :cvar NONE: it keeps the promise
    """

    CONFIRMED = "confirmed"
    OPEN = "open"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """What a KIP says, what these builds do instead, and where that is told.

    Whoever checks the promise expects of these builds exactly what they do, so that a build that has been mended fails
    the check with "no longer deviates" instead of passing by a loosened one. Only a build that is newer than all on
    which the deviation was confirmed may do either, and the case says which (:class:`Expectation`).
    """

    kip: int
    promised: str
    actual: str
    issue: str
    builds: VersionRange
    modes: tuple[Mode, ...] = tuple(Mode)
    deterministic: bool = True
    """A case that declares it must show it; else whether there is anything to be seen is Kafka's choice."""
    pollutes: bool = True
    """Where it was seen a broker may be another than before, so that its cluster serves no other case; False: it is but
    an answer, a figure or a choice."""
    confirmed: tuple[KafkaVersion, ...] = ()
    """The newest release of each line on which it was confirmed, where these are others than :data:`CONFIRMED_BUILDS`
    of the mode."""

    def expectation(self, version: KafkaVersion, mode: Mode) -> Expectation:
        """What is expected of this build in this mode."""
        if version not in self.builds or mode not in self.modes:
            return Expectation.NONE
        newer = is_newer_than(self.confirmed or CONFIRMED_BUILDS[mode], version)
        return Expectation.OPEN if newer else Expectation.CONFIRMED

    @property
    def gone(self) -> str:
        """What is said of a build that is confirmed to deviate and keeps the promise."""
        return f"no longer deviates: {self.actual}"

    def to_json(self) -> dict[str, object]:
        """As ``--json`` and the journal have it, without its :data:`State`."""
        content = {name: getattr(self, field) for name, field in JSON_NAMES.items()}
        return content | {"builds": str(self.builds), "modes": [mode.value for mode in self.modes]}

    def noted(self, state: State) -> NotedDeviation:
        """What a case says of it."""
        return NotedDeviation.from_json(self.to_json() | {"state": state})


@dataclass(frozen=True, kw_only=True)
class NotedDeviation:
    """What a case says of a deviation; the fields are those of :class:`Deviation`, as text where JSON has text."""

    kip: int
    promised: str
    actual: str
    issue: str = ""
    builds: str = ""
    modes: tuple[str, ...] = ()
    deterministic: bool = True
    pollutes: bool = True
    state: State = "seen"

    def to_json(self) -> dict[str, object]:
        """As ``--json`` and run.json have it."""
        content = {name: getattr(self, field) for name, field in JSON_NAMES.items()}
        return content | {"modes": list(self.modes), "state": self.state}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> NotedDeviation:
        """What :meth:`to_json` wrote, or an older version, which knew only those seen.

        :raises msgspec.ValidationError: it is not that
        """
        return msgspec.convert({JSON_NAMES.get(name, name): value for name, value in content.items()}, cls)
