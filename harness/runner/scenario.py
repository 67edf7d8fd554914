"""A scenario as a test declares it (:func:`suites.scenario.scenario`), and its cases as pytest collects them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.cluster.nodes.backends import SEVERAL_BUILDS
from harness.cluster.spec import ClusterSettings, ClusterSpec
from harness.cluster.under_way import UnderWay
from harness.kafka.versions import KafkaVersion, Mode, VersionRange
from harness.measure.floors import Floors
from harness.runner.case import CaseId
from harness.runner.deviation import Deviation, Expectation
from harness.runner.outside import outside
from harness.runner.selection import names_of


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The declaration of a test; the fields are described at :func:`suites.scenario.scenario`.

    :ivar spec: the settings of its cluster in each mode
    :ivar in_any_case: known deviations that the logs of any case may show; a case notes them as undeclared
    """

    id: str
    kip: int
    plan: str
    modes: tuple[Mode, ...]
    builds: VersionRange
    judged: bool
    floors: Floors
    needs: tuple[str, ...]
    issue: str | None
    deviations: tuple[Deviation, ...]
    fresh: bool
    upgrades: bool
    leaves: tuple[UnderWay, ...]
    any_profile: bool
    spec: Mapping[Mode, ClusterSettings]
    in_any_case: tuple[Deviation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeclaredCase:
    """A scenario in one mode, with one set of parameters, before it runs.

    :ivar id: such as ``kip-112/leader-at-runtime[kraft-chmod_000]``
    :ivar parameters: the test's parameters; faults among them may need abilities of their own
    :ivar claim: the first line of the test's docstring
    :ivar file: the test file
    """

    id: str
    scenario: Scenario
    mode: Mode
    parameters: Sequence[object]
    claim: str
    nodeid: str
    file: Path

    def identity(self, seed: int) -> CaseId:
        """Return the identity that results and run folders have."""
        scenario = self.scenario
        return CaseId(
            id=self.id,
            kip=scenario.kip,
            plan=scenario.plan,
            issue=scenario.issue,
            mode=str(self.mode),
            seed=seed,
            nodeid=self.nodeid,
            file=str(file) if (file := outside(self.file)) else None,
        )

    def names(self) -> set[str]:
        """Return all selectors that select the case."""
        return names_of(self.id, self.nodeid, outside(self.file))

    def spec(self, backend: str) -> ClusterSpec:
        """Return the spec of its cluster: that of the scenario, with the settings that its faults need."""
        wanted: list[ClusterSettings] = [getattr(value, "cluster", ClusterSettings()) for value in self.parameters]
        settings = functools.reduce(operator.or_, wanted, self.scenario.spec[self.mode])
        return ClusterSpec(mode=self.mode, backend=backend, **settings)

    def needs(self) -> set[str]:
        """Return the names of the abilities of machine and backend that the scenario and its faults need."""
        of_faults = {name for value in self.parameters for name in getattr(value, "needs", ())}
        return {*self.scenario.needs, *of_faults, *((SEVERAL_BUILDS,) if self.scenario.upgrades else ())}

    def expected(self, version: KafkaVersion) -> list[Deviation]:
        """Return the declared deviations that this build must show, or may show (:class:`Expectation`)."""
        return self._known_of(self.scenario.deviations, version)

    def expected_in_logs(self, version: KafkaVersion) -> list[Deviation]:
        """Return the deviations that the metadata log or the nodes' logs may show on this build, declared or not."""
        return self._known_of((*self.scenario.deviations, *self.scenario.in_any_case), version)

    def _known_of(self, deviations: Iterable[Deviation], version: KafkaVersion) -> list[Deviation]:
        return [each for each in deviations if each.expectation(version, self.mode) is not Expectation.NONE]

    def pollutes_cluster(self) -> bool:
        """Return whether the case may leave its cluster unfit for reuse, on some build in its mode."""
        return any(
            each.pollutes and each.deterministic and self.mode in each.modes for each in self.scenario.deviations
        )


def scenario_of(item: pytest.Item) -> Scenario | None:
    """Return the declaration of a test; None for an ordinary test."""
    marker = item.get_closest_marker("scenario")
    if marker is None:
        return None
    [scenario] = marker.args
    assert isinstance(scenario, Scenario)
    return scenario


def case_of(item: pytest.Item) -> DeclaredCase | None:
    """Return the case of a collected test; None for an ordinary test."""
    scenario = scenario_of(item)
    if scenario is None:
        return None
    assert isinstance(item, pytest.Function)
    mode = item.callspec.params["mode"]
    assert isinstance(mode, Mode)
    return DeclaredCase(
        id=scenario.id + item.name[item.name.index("[") :],
        scenario=scenario,
        mode=mode,
        parameters=[*item.callspec.params.values()],
        claim=(item.function.__doc__ or "").strip().partition("\n")[0],
        nodeid=item.nodeid,
        file=item.path,
    )
