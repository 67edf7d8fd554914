"""Decides the order of cases: cases with equal clusters run one after another, so that they can share one
(:mod:`harness.runner.cluster_reuse`).

A case that needs a new cluster keeps its place, unless cases that share one lie around it: it then follows them. A case
that pollutes its cluster comes last among those that share it.

With several workers (``jbod run --jobs``), each worker goes on with its cluster while a case fits. Otherwise the first
worker takes the case with the largest cluster, and the others take the smallest. In collection order, pytest-xdist's
default, the large clusters of a suite would run at the same time. Two clusters of six brokers are fourteen JVMs, which
take a third more CPU together on two cores than one after another. With ``--stop-after`` not every case may run, so
size does not count.

With ``--jobs auto`` the run goes on with fewer workers if the machine is too slow for all of them, and with more again
if it is not (:class:`Adjusting`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import pytest
from xdist.scheduler import LoadScheduling

from harness.cluster.spec import ClusterSpec
from harness.runner.at_once import AUTO, ROOMY_CASES, AtOnce, Change
from harness.runner.case_result import CaseResult
from harness.runner.run import run_of
from harness.runner.scenario import DeclaredCase

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

T = TypeVar("T")


def together(
    specs: Sequence[tuple[T, ClusterSpec | None]], pollutes: Callable[[T], bool] = lambda _thing: False
) -> list[T]:
    """Return the same items, with equal specs one after another, at the place of the first of them.

    :param specs: items with their spec; None for an item that shares no cluster
    :param pollutes: whether an item must come last in its group
    """
    groups: list[tuple[ClusterSpec | None, list[T]]] = []
    for thing, spec in specs:
        alike = next((things for kind, things in groups if spec is not None and kind == spec), None)
        if alike is None:
            groups.append((spec, [thing]))
        else:
            alike.append(thing)
    return [thing for _, things in groups for thing in sorted(things, key=pollutes)]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What decides when a case runs.

    :ivar nodes: the number of nodes of its cluster
    :ivar shared: the spec of the cluster that it may share; None if it needs a new one
    """

    nodes: int
    shared: ClusterSpec | None


_OF_A_TEST = Turn(nodes=0, shared=None)


class SpecAffinityScheduler:
    """A pytest plugin that makes pytest-xdist distribute cases in the order of this module.

    :param turns: by node id
    :param by_size: whether the cluster size counts; otherwise only the collection order
    :param cases: the cases, if they were collected before: the run prepares only what they need
    :param chosen: the number of workers that ``--jobs auto`` chose, which is adjusted during the run; None if the
        user chose the number
    """

    def __init__(
        self,
        turns: Mapping[str, Turn],
        *,
        by_size: bool,
        cases: Sequence[DeclaredCase] | None = None,
        chosen: AtOnce | None = None,
    ) -> None:
        self._turns, self._by_size, self._cases, self._chosen = turns, by_size, cases, chosen

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Tell the run which cases its workers run."""
        run_of(session.config).distributed = self._cases

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> LoadScheduling:
        """Return the scheduler of this run."""
        scheduling = _Scheduling(config, log, self._turns, self._by_size)
        if self._chosen is not None:
            run_of(config).results.at_once = self._chosen
            config.pluginmanager.register(Adjusting(config, scheduling))
        return scheduling


class _Scheduling(LoadScheduling):  # type: ignore[misc]  # xdist has no types
    """Sends the pending cases one by one."""

    def __init__(self, config: pytest.Config, log: Producer, turns: Mapping[str, Turn], by_size: bool) -> None:
        super().__init__(config, log)
        self._turns, self._by_size = turns, by_size
        self._has: dict[WorkerController, ClusterSpec | None] = {}

    @property
    def active(self) -> list[WorkerController]:
        """The workers that get further cases."""
        return [node for node in self.nodes if not node.shutting_down]

    def retire(self, node: WorkerController) -> bool:
        """Send a worker no more cases; it ends, with its cluster and Spark, after the cases that it has.

        Returns False, and does nothing, if all cases are sent or if no other worker is left.
        """
        if not self.pending or node not in self.active or len(self.active) == 1:
            return False
        node.shutdown()
        return True

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker that ended, and its cluster."""
        self._has.pop(node, None)
        crashed: str | None = super().remove_node(node)
        return crashed

    def _send_tests(self, node: WorkerController, num: int) -> None:
        for _ in range(min(num, len(self.pending))):
            self.pending.sort(key=lambda index: self._rank(node, index))
            self._has[node] = self._turn(self.pending[0]).shared
            super()._send_tests(node, 1)

    def _turn(self, index: int) -> Turn:
        return self._turns.get((self.collection or [])[index], _OF_A_TEST)

    def _rank(self, node: WorkerController, index: int) -> tuple[bool, int, bool, int]:
        """Return the sort key; the lowest is next.

        A case that fits the worker's cluster comes first. Then size counts, and then whether no other worker has a
        cluster that fits.
        """
        turn = self._turn(index)
        fits = turn.shared is not None and turn.shared == self._has.get(node)
        size = 0 if not self._by_size else -turn.nodes if node in self.active[:1] else turn.nodes
        others = any(turn.shared == has is not None for worker, has in self._has.items() if worker is not node)
        return not fits, size, others, index


class Adjusting:
    """A pytest plugin that retires a worker when a case shows that the machine is too slow for all workers.

    The worker of that case is retired. It already has its next case, so it ends after one more. Cases that began before
    it ended show nothing about the new number. If enough cases in a row leave room then, a worker starts in its place:
    what made the machine slow may have ended.
    """

    def __init__(self, config: pytest.Config, scheduling: _Scheduling) -> None:
        self._run, self._scheduling = run_of(config), scheduling
        self._workers = config.pluginmanager.getplugin("dsession")
        self._retired: list[WorkerController] = []
        self._with_room = 0
        self._count_now: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a case that begins while no retired worker is at work."""
        if len(self._scheduling.active) == len(self._scheduling.nodes):
            self._count_now.add(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Retire the worker of a case that starved, or start one again."""
        result = CaseResult.attached_to(report, self._run.seed)
        if result is None or report.nodeid not in self._count_now:
            return
        if (why := result.starved()) is not None:
            self._lower(report.node, Change(to=len(self._scheduling.active) - 1, case=result.case.id, why=why))
        elif result.left_room():
            self._with_room += 1
            self._raise(result.case.id)
        else:
            self._with_room = 0

    def _lower(self, worker: WorkerController, change: Change) -> None:
        if not self._scheduling.retire(worker):
            return
        self._retired.append(worker)
        self._with_room = 0
        self._count_now.clear()
        results = self._run.results
        results.at_once = replace(results.at_once, lowered=(*results.at_once.lowered, change))
        self._run.say(f"--jobs {AUTO}: from now on {change.to} at once; {change.case} was {change.why}")

    def _raise(self, case: str) -> None:
        """Start a worker in place of a retired one, if enough cases have left room, and if enough are left to run.

        With each time that the number was lowered, twice as many cases must leave room.
        """
        active, results = len(self._scheduling.active), self._run.results
        enough = ROOMY_CASES * active * 2 ** (len(results.at_once.lowered) - 1)
        if not self._retired or self._with_room < enough or len(self._scheduling.pending) <= 2 * active:
            return
        self._workers._clone_node(self._retired.pop())  # as xdist replaces a worker that crashed
        change = Change(to=active + 1, case=case, why=f"{self._with_room} cases in a row left room")
        self._with_room = 0
        self._count_now.clear()
        results.at_once = replace(results.at_once, raised=(*results.at_once.raised, change))
        self._run.say(f"--jobs {AUTO}: from now on {change.to} at once again; {change.why}")
