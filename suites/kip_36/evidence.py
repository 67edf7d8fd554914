"""Collects what a scenario of KIP-36 sees over many assignments: broken promises, deviations, and how much was tried.

A broken promise ends the scenario immediately. A confirmed deviation must show in some assignment. A deviation that is
not expected of the build must show in none. One that is open (:mod:`suites.observing`) may show. At the end,
:meth:`Evidence.conclude` decides that, and raises Inconclusive if too little was tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from harness.cluster.cluster import Cluster
from harness.errors import Inconclusive, PromiseBroken
from harness.runner.deviation import Deviation, Expectation
from suites.deviations import (
    GENERATED_IN_STRIPES,
    LEADERS_OVER_RACKS,
    RACKS_PASSED_OVER,
)
from suites.kip_36 import promises
from suites.kip_36.oracle import Assignment, origin
from suites.observing import expectation_of, observe


class Evidence:
    """What one scenario has seen on one cluster; ``known`` are the deviations that it can show on any build."""

    def __init__(self, cluster: Cluster, known: Iterable[Deviation]) -> None:
        self._cluster = cluster
        self._tried = Counter[str]()
        self._shown: dict[Deviation, list[str]] = {deviation: [] for deviation in known}
        self._looked_for = set[Deviation]()

    def tried(self, what: str) -> None:
        """Count one try of this kind, for :meth:`conclude`."""
        self._tried[what] += 1

    def holds(self, what: str, broken: Iterable[str]) -> None:
        """A promise is kept.

        :param broken: how it is broken; empty if it is kept
        :raises PromiseBroken: ``broken`` is not empty
        """
        found = list(broken)
        if found:
            raise PromiseBroken(f"{what}: {'; '.join(found[:3])}")

    def deviates(self, deviation: Deviation, what: str, broken: Iterable[str]) -> None:
        """Note what shows a deviation.

        :param broken: how the promise is broken in this assignment; empty if it is kept
        :raises PromiseBroken: it is broken on a build that is not known for the deviation
        """
        found = list(broken)
        self._looked_for.add(deviation)
        self._shown[deviation] += [f"{what}: {each}" for each in found]
        if found and expectation_of(deviation, self._cluster) is Expectation.NONE:
            raise PromiseBroken(f"{what}: {'; '.join(found[:3])}")

    def conclude(self, least: Mapping[str, int]) -> None:
        """Decide at the end which deviations were seen.

        :param least: how many tries of each kind there must have been
        :raises Inconclusive: there were fewer
        :raises PromiseBroken: a confirmed deviation did not show
        """
        too_few = {what: self._tried[what] for what, number in least.items() if self._tried[what] < number}
        if too_few:
            raise Inconclusive(f"too little was tried to show anything: {too_few}, at least {dict(least)} wanted")
        for deviation, shown in self._shown.items():
            confirmed = expectation_of(deviation, self._cluster) is Expectation.CONFIRMED
            if confirmed or deviation in self._looked_for:
                observe(deviation, self._cluster, deviates=bool(shown), seen=shown[0] if shown else "nothing of it")
        self._cluster.journal.write(
            "assignments.checked",
            tried=dict(self._tried),
            deviations=[
                {"does": each.actual, "times": len(seen), "such_as": seen[:3]} for each, seen in self._shown.items()
            ],
        )


def check_kip(evidence: Evidence, racks: Mapping[int, str], what: str, assignment: Assignment) -> None:
    """The assignment is the oracle's for some start and shift, and keeps the KIP's promises."""
    if origin(racks, assignment) is None:
        raise PromiseBroken(
            f"{what}: KIP-36 gives {dict(assignment)} on racks {dict(racks)} for no start and shift of its algorithm"
        )
    evidence.holds(what, promises.over_racks(racks, assignment))
    evidence.holds(what, promises.even_leaders(racks, assignment))
    evidence.holds(what, promises.even_replicas(racks, assignment))


def check_striped(evidence: Evidence, racks: Mapping[int, str], what: str, assignment: Assignment) -> None:
    """The assignment keeps the promises of KRaft's placer, and those of the KIP that the placer shares.

    The placer may give brokers different numbers of leaders or replicas in two cases only. There are several racks, and
    one has several brokers; or, from the second round of partitions on, the placer skips racks of one broker. The
    check looks at whole rounds, and at part of a first round. Part of a later round depends more on chance.
    """
    sizes = Counter(racks.values())
    first_round, alone = len(assignment) <= len(racks), min(sizes.values()) == 1 < len(sizes)
    evidence.holds(what, promises.over_racks(racks, assignment))
    evidence.holds(what, promises.over_racks_evenly(racks, assignment))
    evidence.holds(what, promises.in_turn_within_racks(racks, assignment))
    if first_round or len(assignment) % len(racks) == 0:
        uneven = [*promises.even_leaders(racks, assignment), *promises.even_replicas(racks, assignment)]
        if len(sizes) > 1 and max(sizes.values()) > 1:
            evidence.deviates(LEADERS_OVER_RACKS, what, uneven)
        elif alone and not first_round:
            evidence.deviates(RACKS_PASSED_OVER, what, uneven)
        else:
            evidence.holds(what, uneven)
    if alone and not first_round and len(next(iter(assignment.values()))) == 1:
        evidence.deviates(RACKS_PASSED_OVER, what, promises.striped(racks, assignment))
    else:
        evidence.holds(what, promises.striped(racks, assignment))


def check_generated(evidence: Evidence, racks: Mapping[int, str], what: str, assignment: Assignment) -> None:
    """A proposal of ``kafka-reassign-partitions --generate`` is the KIP's, or KRaft's on builds known for that."""
    unlike = [] if origin(racks, assignment) else [f"KIP-36 gives {dict(assignment)} for no start and shift"]
    evidence.deviates(GENERATED_IN_STRIPES, what, unlike)
    check = check_striped if unlike else check_kip
    check(evidence, racks, what, assignment)
