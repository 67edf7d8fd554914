"""The decorator that makes a test a scenario."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import pytest

from faults.base import Fault
from faults.targets import follower_of, leader_of
from harness.cluster.spec import ClusterSettings
from harness.cluster.under_way import UnderWay
from harness.kafka.versions import ANY_BUILD, Mode, VersionRange
from harness.measure.floors import DEFAULT_FLOORS, Floors
from harness.runner.deviation import Deviation
from harness.runner.scenario import Scenario
from suites.deviations import (
    ASKED_BEFORE_START,
    CORRECTED_LOG_DIR_NOT_LED,
    FAILED_REPLICA_IN_ISR,
    MOVE_FORGOTTEN,
    REMOTE_INDEX_GONE,
    REMOTE_METADATA_NOT_READY,
    STATE_CHANGE_REFUSED,
    WATCHED_AFTER_CLOSE,
)

IN_ANY_CASE = (
    FAILED_REPLICA_IN_ISR,
    CORRECTED_LOG_DIR_NOT_LED,
    MOVE_FORGOTTEN,
    ASKED_BEFORE_START,
    WATCHED_AFTER_CLOSE,
    STATE_CHANGE_REFUSED,
    REMOTE_METADATA_NOT_READY,
    REMOTE_INDEX_GONE,
)
"""Known deviations that depend on timing, and that the logs of any case may show."""

NO_FAULT = Floors(faults=0)
"""The floors of a scenario that injects no fault, or need not."""


def scenario(
    id: str,
    *,
    kip: int,
    plan: str,
    modes: tuple[Mode, ...] = tuple(Mode),
    builds: VersionRange = ANY_BUILD,
    judged: bool = True,
    floors: Floors = DEFAULT_FLOORS,
    needs: tuple[str, ...] = (),
    issue: str | None = None,
    deviations: tuple[Deviation, ...] = (),
    fresh: bool = False,
    upgrades: bool = False,
    leaves: tuple[UnderWay, ...] = (),
    any_profile: bool = False,
    kraft: ClusterSettings | None = None,
    **spec: Unpack[ClusterSettings],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test as the scenario ``id``; its docstring's first line is its claim.

    :param id: suite and name, such as ``kip-112/leader-at-runtime``
    :param kip: the KIP whose promise it checks; 112 for a failed log dir, also where the ISR rules of KIP-18 apply
    :param plan: the item of the KIP's test plan, as in ``suites/selftest/test_coverage.py``, then ``: `` and what is
        special. For a behaviour that is in no plan: a few words
    :param modes: the metadata modes that it runs in
    :param builds: the builds that have the feature; on others it is skipped
    :param judged: the judge must give a verdict; False for a scenario without a workload, which needs no Spark
    :param floors: the least load and faults; a case below them is inconclusive
    :param needs: abilities that the machine must have, beside those of the faults among its parameters
    :param issue: the bug of Kafka that it was written for, such as ``KAFKA-16709``; the case is invalid with it
    :param deviations: the known deviations that it checks for; each must be seen on the builds that have it
        (:func:`suites.observing.observe`)
    :param fresh: it needs a cluster that no other case has used (:mod:`harness.runner.cluster_reuse`)
    :param upgrades: its cluster, which no other case uses, starts on an earlier release
        (:func:`harness.kafka.versions.upgraded_from`). It upgrades nodes to the fixture ``build_under_test``
    :param leaves: what it leaves under way at its end, on purpose (:mod:`harness.cluster.under_way`)
    :param any_profile: its steps and checks suit the settings of every profile (:mod:`harness.cluster.profile`), so
        also ``min.insync.replicas=2``; otherwise it is skipped with other profiles than the fast one
    :param kraft: settings of the cluster in KRaft mode only; they win over ``spec``
    :param spec: settings of the cluster in both modes: fields of :class:`harness.cluster.spec.ClusterSpec`
    """
    declared = Scenario(
        id=id,
        kip=kip,
        plan=plan,
        modes=modes,
        builds=builds,
        judged=judged,
        floors=floors,
        needs=needs,
        issue=issue,
        deviations=deviations,
        fresh=fresh or upgrades,
        upgrades=upgrades,
        leaves=leaves,
        any_profile=any_profile,
        in_any_case=IN_ANY_CASE,
        spec={mode: {**spec, **(kraft or {} if mode is Mode.KRAFT else {})} for mode in modes},
    )
    return pytest.mark.scenario(declared)


def each_fault(name: str, faults: tuple[type[Fault], ...]) -> pytest.MarkDecorator:
    """Run the scenario once with each fault; ``name`` is the argument that gets the fault's class."""
    return pytest.mark.parametrize(name, faults, ids=[fault.name for fault in faults])


each_role = pytest.mark.parametrize("role", [leader_of, follower_of], ids=["leader", "follower"])
"""Run the scenario once for the leader and once for a follower; ``role`` gets the broker from a partition."""
