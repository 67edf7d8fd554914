"""Names the suites that some kinds of runs treat differently, such as controls and random schedules.

The decision depends only on the id of a case or scenario, which begins with its suite.
"""

from __future__ import annotations

CONTROLS = "control"
SCHEDULES = "schedules"
KNOWN_BUGS = "known-bugs"
NETWORK = "network"

RANDOM_SCHEDULES = "schedules/random"
"""The scenario that plays random or given schedules."""

NOT_FIXED = (SCHEDULES, CONTROLS)
"""Suites that a night does not run as fixed suites: schedules differ each night, and most controls are invalid on
purpose."""

_NOT_ASKED = (CONTROLS, KNOWN_BUGS, SCHEDULES)
_GREEN_TWIN = "-green]"


def suite_of(case: str) -> str:
    """Return the suite of a case or scenario id."""
    return case.partition("/")[0]


def not_asked(backend: str) -> tuple[str, ...]:
    """Return the suites that say nothing about a release on this backend, and that a qualification runs only when
    named.

    Controls are invalid on purpose, known bugs are expected, and schedules are random. Brokers that are processes
    cannot be cut off from each other.
    """
    return _NOT_ASKED if backend == "docker" else (*_NOT_ASKED, NETWORK)


def is_random(case: str) -> bool:
    """Return whether a case plays a random schedule. Its id does not say which one."""
    return suite_of(case) == SCHEDULES


def is_control(case: str) -> bool:
    """Return whether a case is a control: one with harm that must be found, or a green twin without harm."""
    return suite_of(case) == CONTROLS


def must_be_valid(control: str) -> bool:
    """Return whether a control is a green twin, without the harm. The other controls must be invalid."""
    return control.endswith(_GREEN_TWIN)
