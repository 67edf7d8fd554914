"""What was seen over all the assignments of a scenario: enough of them, none that breaks a promise, what deviates.

A promise that is broken ends the scenario at once. A deviation that is confirmed of the build must show somewhere among
all assignments, and one that isn't known of it nowhere; one that is open (:mod:`suites.observing`) is seen or mended.
That is told at the end (:meth:`Evidence.conclude`), which also refuses to call it a pass where too little was tried.
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
    """Of one scenario on one cluster; ``known`` are the deviations that it can show, on whatever build."""

    def __init__(self, cluster: Cluster, known: Iterable[Deviation]) -> None:
        self._cluster = cluster
        self._tried = Counter[str]()
        self._shown: dict[Deviation, list[str]] = {deviation: [] for deviation in known}
        self._looked_for = set[Deviation]()

    def tried(self, what: str) -> None:
        """One more of what :meth:`conclude` wants some of."""
        self._tried[what] += 1

    def holds(self, what: str, broken: Iterable[str]) -> None:
        """Nothing of a promise is broken.

        :raises PromiseBroken: something is
        """
        found = list(broken)
        if found:
            raise PromiseBroken(f"{what}: {'; '.join(found[:3])}")

    def deviates(self, deviation: Deviation, what: str, broken: Iterable[str]) -> None:
        """What a build with the deviation breaks now and then, and one without never."""
        found = list(broken)
        self._looked_for.add(deviation)
        self._shown[deviation] += [f"{what}: {each}" for each in found]
        if found and expectation_of(deviation, self._cluster) is Expectation.NONE:
            raise PromiseBroken(f"{what}: {'; '.join(found[:3])}")

    def conclude(self, least: Mapping[str, int]) -> None:
        """Nothing is left to be tried.

        :param least: how many of what must have been tried for anything to be shown
        :raises Inconclusive: they were not
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
            f"{what}: from no start and shift does KIP-36 give {dict(assignment)} on racks {dict(racks)}"
        )
    evidence.holds(what, promises.over_racks(racks, assignment))
    evidence.holds(what, promises.even_leaders(racks, assignment))
    evidence.holds(what, promises.even_replicas(racks, assignment))


def check_striped(evidence: Evidence, racks: Mapping[int, str], what: str, assignment: Assignment) -> None:
    """The assignment keeps the promises of KRaft's placer and those of the KIP that it shares.

    What of the KIP it breaks is looked for in the first round of partitions alone, in which chance decides little, and
    where a rack has more brokers than one and there are more racks than one; elsewhere it must keep that too.
    """
    sizes = Counter(racks.values())
    first_round, alone = len(assignment) <= len(racks), min(sizes.values()) == 1 < len(sizes)
    evidence.holds(what, promises.over_racks(racks, assignment))
    evidence.holds(what, promises.over_racks_evenly(racks, assignment))
    evidence.holds(what, promises.in_turn_within_racks(racks, assignment))
    if first_round:
        uneven = [*promises.even_leaders(racks, assignment), *promises.even_replicas(racks, assignment)]
        if len(sizes) > 1 and max(sizes.values()) > 1:
            evidence.deviates(LEADERS_OVER_RACKS, what, uneven)
        else:
            evidence.holds(what, uneven)
    if alone and not first_round and len(next(iter(assignment.values()))) == 1:
        evidence.deviates(RACKS_PASSED_OVER, what, promises.striped(racks, assignment))
    else:
        evidence.holds(what, promises.striped(racks, assignment))


def check_generated(evidence: Evidence, racks: Mapping[int, str], what: str, assignment: Assignment) -> None:
    """What ``kafka-reassign-partitions --generate`` proposes is the KIP's, or, where it is known for that, striped."""
    unlike = [] if origin(racks, assignment) else [f"from no start and shift does KIP-36 give {dict(assignment)}"]
    evidence.deviates(GENERATED_IN_STRIPES, what, unlike)
    check = check_striped if unlike else check_kip
    check(evidence, racks, what, assignment)
