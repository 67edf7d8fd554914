"""Suites that say something else of a build than the other suites do, so that each kind of run treats them apart.

Asked by the id of a case (or of its scenario), which begins with its suite, and by nothing that a scenario says of
itself: its words may change, and what a control is must not change with them.
"""

from __future__ import annotations

CONTROLS = "control"
SCHEDULES = "schedules"
KNOWN_BUGS = "known-bugs"
NETWORK = "network"

RANDOM_SCHEDULES = "schedules/random"
"""The scenario that draws schedules, or plays those that it is given."""

NOT_FIXED = (SCHEDULES, CONTROLS)
"""No fixed suites: drawn anew each night; or red where the harness is right, which its own tests look at."""

_NOT_ASKED = (CONTROLS, KNOWN_BUGS, SCHEDULES)
_GREEN_TWIN = "-green]"


def suite_of(case: str) -> str:
    """What its id begins with."""
    return case.partition("/")[0]


def not_asked(backend: str) -> tuple[str, ...]:
    """The suites that say nothing of a release in this backend, unless they are named.

    Red where the harness is right; red where a build has a bug that is known; drawn anew each time; and brokers that
    are processes can't be cut off from each other.
    """
    return _NOT_ASKED if backend == "docker" else (*_NOT_ASKED, NETWORK)


def is_random(case: str) -> bool:
    """Whether it plays a random schedule: its id says which of a run, and not what."""
    return suite_of(case) == SCHEDULES


def is_control(case: str) -> bool:
    """Whether it shows that what is wrong is found: harm is done on purpose, or is put right in a green twin."""
    return suite_of(case) == CONTROLS


def must_be_valid(control: str) -> bool:
    """Whether a control is the green twin, in which the harm is put right; the others must come out invalid."""
    return control.endswith(_GREEN_TWIN)
