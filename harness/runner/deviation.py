"""Known deviations of Kafka builds from a KIP. A scenario that shows a declared deviation is valid and reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec

from harness.kafka.versions import ANY_BUILD, CONFIRMED_BUILDS, KafkaVersion, Mode, VersionRange, is_newer_than

State = Literal["seen", "mended", "undeclared"]
"""The state of a deviation in a case.

*seen*: the case showed it, as declared. *mended*: a build newer than all confirmed ones keeps the promise.
*undeclared*: the case showed it, and its scenario does not declare it.
"""


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
"""The names of a deviation's fields in JSON, which are fixed, and the attributes of :class:`Deviation`."""


class Expectation(StrEnum):
    """What is expected of a build.

    :cvar CONFIRMED: it must show the deviation; if it does not, the declaration must be checked
    :cvar OPEN: it is newer than all builds on which the deviation was confirmed, and may show it or keep the promise
    :cvar NONE: it must keep the promise
    """

    CONFIRMED = "confirmed"
    OPEN = "open"
    NONE = "none"


def in_words(actual: str, issue: str) -> str:
    """Return a deviation as people see it: the behaviour, and its issue in parentheses."""
    return f"{actual} (issue: {issue})"


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """What a KIP promises, what certain builds do instead, and the issue or page that describes it.

    On these builds a check expects exactly ``actual``, so that a fixed build fails it with "no longer deviates". Only a
    build newer than all confirmed ones may do either (:class:`Expectation`).

    :ivar promised: the behaviour that the KIP promises
    :ivar actual: the behaviour of these builds
    :ivar issue: such as ``KAFKA-20832``
    :ivar builds: the builds that have it; all by default
    """

    kip: int
    promised: str
    actual: str
    issue: str
    builds: VersionRange = ANY_BUILD
    modes: tuple[Mode, ...] = tuple(Mode)
    deterministic: bool = True
    """Whether a case that declares it must show it. If False, whether it shows depends on Kafka's timing."""
    pollutes: bool = True
    """Whether the deviation may change a broker for good, so that its cluster cannot be reused. False if it only shows
    in a response, a figure or a choice."""
    floods: str = ""
    """A pattern of the lines that it floods a log with (:mod:`harness.measure.log_floods`); empty if it does not."""
    failures: str = ""
    """A pattern of the failures that it leaves in nodes' logs (:mod:`harness.measure.node_failures`), for a line with
    its stack trace; empty if it leaves none."""
    metadata: str = ""
    """A pattern of what it leaves in the metadata log (:mod:`harness.measure.metadata_history`); empty if nothing."""
    confirmed: tuple[KafkaVersion, ...] = ()
    """The newest release of each line on which it was confirmed, if other than :data:`CONFIRMED_BUILDS` of the mode."""

    def expectation(self, version: KafkaVersion, mode: Mode) -> Expectation:
        """Return what is expected of this build in this mode."""
        if version not in self.builds or mode not in self.modes:
            return Expectation.NONE
        newer = is_newer_than(self.confirmed or CONFIRMED_BUILDS[mode], version)
        return Expectation.OPEN if newer else Expectation.CONFIRMED

    @property
    def gone(self) -> str:
        """The error message for a confirmed build that keeps the promise."""
        return f"no longer deviates: {self.actual}"

    def to_json(self) -> dict[str, object]:
        """Return the deviation as ``--json`` and the journal have it, without its :data:`State`."""
        content = {name: getattr(self, field) for name, field in JSON_NAMES.items()}
        return content | {"builds": str(self.builds), "modes": [mode.value for mode in self.modes]}

    def noted(self, state: State) -> NotedDeviation:
        """Return the deviation together with its state in a case."""
        return NotedDeviation.from_json(self.to_json() | {"state": state})


@dataclass(frozen=True, kw_only=True)
class NotedDeviation:
    """A deviation in a case. The fields are those of :class:`Deviation`, in the types of JSON, and the state."""

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
        """Return it as ``--json`` and run.json have it."""
        content = {name: getattr(self, field) for name, field in JSON_NAMES.items()}
        return content | {"modes": list(self.modes), "state": self.state}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> NotedDeviation:
        """Return the deviation that :meth:`to_json` wrote. Files of old versions have no states: all were seen.

        :raises msgspec.ValidationError: the content has other fields or types
        """
        return msgspec.convert({JSON_NAMES.get(name, name): value for name, value in content.items()}, cls)
