"""Chooses the cases of a run among all that pytest collected, and their order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from harness.kafka.versions import Mode
from harness.runner.run import Run
from harness.runner.scenario import case_of
from harness.runner.scheduling import together


def chosen(items: Sequence[pytest.Item], run: Run, *, listing: bool) -> list[pytest.Item]:
    """Return the selected tests in the modes that this run covers, in the order in which they run.

    :param listing: whether nothing will run; a listing keeps the order of the suites
    :raises UsageError: a selector selects no case
    """
    cases = {item: case for item in items if (case := case_of(item)) is not None}

    def covered(item: pytest.Item) -> bool:
        return item not in cases or cases[item].mode in run.builds.modes()

    if not run.selection:
        keep = [item for item in items if covered(item)]
    else:
        names = {item: case.names() for item, case in cases.items()}
        keep = run.selection.among([*names], names.__getitem__, covered)
        if run.stop_at is not None:
            # Time may run out, so cases run in the order of the selectors, and modes take turns. Cases that share a
            # cluster still run together.
            turns = {mode: itertools.count() for mode in Mode}
            order = {item: (run.selection.place(names[item]), next(turns[cases[item].mode])) for item in keep}
            keep.sort(key=order.__getitem__)
    if listing:
        return keep
    specs = [(item, run.shared_spec(cases.get(item))) for item in keep]
    return together(specs, lambda item: item in cases and cases[item].pollutes_cluster())
