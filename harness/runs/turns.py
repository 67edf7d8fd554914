"""Which case runs when: those that want equal clusters one after the other, so that one can serve them
(:mod:`harness.handing_on`).

Of several workers (``jbod run --jobs``) each goes on with the cluster that it has while a case wants one like it. Else
the first takes the largest that is left, the others the smallest: in the order of collection, which is pytest-xdist's,
the large ones of a suite stand together. Two clusters of six brokers are fourteen JVMs, which on two cores take a third
more CPU at once than one after the other; beside a small one each is as fast as can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScheduling

from harness.spec import ClusterSpec

T = TypeVar("T")


def together(specs: Sequence[tuple[T, ClusterSpec | None]]) -> list[T]:
    """The same things, those with equal specs one after the other, in the places of the first of them each."""
    groups: list[tuple[ClusterSpec | None, list[T]]] = []
    for thing, spec in specs:
        alike = next((things for kind, things in groups if spec is not None and kind == spec), None)
        if alike is None:
            groups.append((spec, [thing]))
        else:
            alike.append(thing)
    return [thing for _, things in groups for thing in things]


class LikeAfterLike:
    """pytest plugin that has the cases handed out so.

    :param specs: the cluster that a case wants, by node id
    """

    def __init__(self, specs: Mapping[str, ClusterSpec]) -> None:
        self._specs = specs

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScheduling:
        """The scheduler of this run."""
        return _Scheduling(config, log, self._specs)


class _Scheduling(LoadScheduling):  # type: ignore[misc]  # it has no types
    """Cases one by one, from what is pending."""

    def __init__(self, config: pytest.Config, log: Any, specs: Mapping[str, ClusterSpec]) -> None:
        super().__init__(config, log)
        self._specs = specs
        self._last: dict[Any, ClusterSpec | None] = {}

    def _send_tests(self, node: Any, num: int) -> None:
        for _ in range(min(num, len(self.pending))):
            self.pending.sort(key=lambda index: self._rank(node, index))
            self._last[node] = self._spec(self.pending[0])
            super()._send_tests(node, 1)

    def _spec(self, index: int) -> ClusterSpec | None:
        return self._specs.get((self.collection or [])[index])

    def _rank(self, node: Any, index: int) -> tuple[bool, int, bool, int]:
        """The lowest is next: what this worker has; by size; what no other worker has, who would go on with it."""
        spec = self._spec(index)
        size = spec.nodes if spec is not None else 0
        others = any(spec == last for worker, last in self._last.items() if worker is not node)
        return spec != self._last.get(node), -size if node is self.nodes[0] else size, others, index
