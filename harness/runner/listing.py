"""The scenarios that ``jbod list`` lists, for a table, a page or another process of jbod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from harness.cluster.nodes.backends import BACKENDS
from harness.runner.deviation import in_words
from harness.runner.outside import outside

if TYPE_CHECKING:  # `jbod --help` loads this module, and must not load Spark
    from harness.runner.run import Run
    from harness.runner.scenario import DeclaredCase


@dataclass(frozen=True, kw_only=True)
class ListedScenario:
    """A scenario and its collected cases. Modes, versions and faults are those of any of these cases.

    :ivar claim: the first line of its docstring
    :ivar deviations: those that it declares for the build, each as "mode: actual (issue)"
    :ivar kafka: the versions of the build
    :ivar cases: the ids of the cases
    :ivar unfit: why a case does not apply to the build, by its id
    :ivar lacks: what ``jbod probe`` found missing in the build, by the id of the case that needs it
    :ivar file: the test file, if it is outside the suites
    """

    id: str
    kip: int
    plan: str
    issue: str | None
    claim: str
    deviations: tuple[str, ...] = ()
    modes: tuple[str, ...]
    kafka: tuple[str, ...]
    faults: tuple[str, ...] = ()
    backends: tuple[str, ...]
    cases: tuple[str, ...]
    unfit: Mapping[str, str]
    lacks: Mapping[str, str]
    file: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the entry of ``scenarios`` in ``jbod list --json``."""
        return {name: value for name, value in vars(self).items() if name != "file" or value}

    @classmethod
    def from_json(cls, content: object) -> ListedScenario:
        """Return the scenario that :meth:`to_json` wrote.

        :raises msgspec.ValidationError: the content has other fields or types
        """
        return msgspec.convert(content, cls)


def listed_scenarios(cases: Iterable[DeclaredCase], run: Run) -> list[ListedScenario]:
    """Group collected cases by scenario."""
    of: dict[str, list[DeclaredCase]] = {}
    for case in cases:
        of.setdefault(case.scenario.id, []).append(case)
    return [_listed(cases, run) for cases in of.values()]


def _listed(cases: list[DeclaredCase], run: Run) -> ListedScenario:
    first, scenario = cases[0], cases[0].scenario
    unfit = {case.id: why for case in cases if (why := run.unfit_build(case)) is not None}
    lacks = {case.id: run.missing_in_build(case) for case in cases if case.id not in unfit}
    faults = (value for case in cases for value in case.parameters if hasattr(value, "explains"))
    return ListedScenario(
        id=scenario.id,
        kip=scenario.kip,
        plan=scenario.plan,
        issue=scenario.issue,
        claim=first.claim,
        deviations=_once(
            f"{case.mode}: {in_words(each.actual, each.issue)}" for case in cases for each in run.expected(case)
        ),
        modes=_once(case.mode for case in cases),
        kafka=_once(run.version(case) for case in cases),
        faults=_once(value.name for value in faults),  # type: ignore[attr-defined]
        backends=tuple(BACKENDS),
        cases=tuple(case.id for case in cases),
        unfit=unfit,
        lacks={id: "; ".join(map(str, missing)) for id, missing in lacks.items() if missing},
        file=str(file) if (file := outside(first.file)) else None,
    )


def _once(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(str, values)))
