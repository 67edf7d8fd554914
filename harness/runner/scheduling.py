"""Which case runs when: those that want equal clusters one after the other, so that one can serve them
(:mod:`harness.runner.cluster_reuse`).

A case that must have a cluster of its own stands where it stood, never between two that share one. One after which its
cluster can serve no other comes last of those that share it.

Of several workers (``jbod run --jobs``) each goes on with the cluster that it has while a case wants one like it. Else
the first takes the largest that is left, the others the smallest: in the order of collection, which is pytest-xdist's,
the large ones of a suite stand together. Two clusters of six brokers are fourteen JVMs, which on two cores take a third
more CPU at once than one after the other; beside a small one each is as fast as can be. Where not every case may get
its turn (``--stop-after``), whose comes first is not for their size to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScheduling

from harness.cluster.spec import ClusterSpec

T = TypeVar("T")


def together(
    specs: Sequence[tuple[T, ClusterSpec | None]], pollutes: Callable[[T], bool] = lambda _thing: False
) -> list[T]:
    """The same things, those with equal specs one after the other, in the places of the first of them each.

    :param pollutes: whether one leaves nothing for those after it
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
    """What decides when a case's turn is.

    :ivar nodes: of its cluster
    :ivar shared: the cluster that it may have from others before it; None where it must have its own
    """

    nodes: int
    shared: ClusterSpec | None


_OF_A_TEST = Turn(nodes=0, shared=None)


class SpecAffinityScheduler:
    """pytest plugin that has the cases handed out so.

    :param turns: by node id
    :param by_size: else in the order of collection
    """

    def __init__(self, turns: Mapping[str, Turn], *, by_size: bool) -> None:
        self._turns, self._by_size = turns, by_size

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScheduling:
        """The scheduler of this run."""
        return _Scheduling(config, log, self._turns, self._by_size)


class _Scheduling(LoadScheduling):  # type: ignore[misc]  # it has no types
    """Cases one by one, from what is pending."""

    def __init__(self, config: pytest.Config, log: Any, turns: Mapping[str, Turn], by_size: bool) -> None:
        super().__init__(config, log)
        self._turns, self._by_size = turns, by_size
        self._has: dict[Any, ClusterSpec | None] = {}

    def _send_tests(self, node: Any, num: int) -> None:
        for _ in range(min(num, len(self.pending))):
            self.pending.sort(key=lambda index: self._rank(node, index))
            self._has[node] = self._turn(self.pending[0]).shared
            super()._send_tests(node, 1)

    def _turn(self, index: int) -> Turn:
        return self._turns.get((self.collection or [])[index], _OF_A_TEST)

    def _rank(self, node: Any, index: int) -> tuple[bool, int, bool, int]:
        """The lowest is next: what this worker has; by size; what no other worker has, who would go on with it."""
        turn = self._turn(index)
        goes_on = turn.shared is not None and turn.shared == self._has.get(node)
        size = 0 if not self._by_size else -turn.nodes if node is self.nodes[0] else turn.nodes
        others = any(turn.shared == has is not None for worker, has in self._has.items() if worker is not node)
        return not goes_on, size, others, index
