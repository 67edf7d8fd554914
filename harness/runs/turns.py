"""Which case a worker of ``jbod run --jobs`` takes next: the first the largest that is left, the others the smallest.

In the order of collection, which is pytest-xdist's, the large ones of a suite stand together. Two clusters of six
brokers are fourteen JVMs, which on two cores take a third more CPU at once than one after the other; beside a small one
each is as fast as can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from xdist.scheduler import LoadScheduling


class LargestAndSmallest:
    """pytest plugin that has the cases handed out so.

    :param sizes: how large a case is, in processes of its cluster, by node id
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScheduling:
        """The scheduler of this run."""
        return _Scheduling(config, log, self._sizes)


class _Scheduling(LoadScheduling):  # type: ignore[misc]  # it has no types
    """Lists of one case each, from the two ends of what is pending."""

    def __init__(self, config: pytest.Config, log: Any, sizes: Mapping[str, int]) -> None:
        super().__init__(config, log)
        self._sizes = sizes

    def _send_tests(self, node: Any, num: int) -> None:
        collection = self.collection or []
        self.pending.sort(key=lambda index: self._sizes.get(collection[index], 0), reverse=node is self.nodes[0])
        super()._send_tests(node, num)
