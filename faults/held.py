"""Holds a thread of a node at a named point: a legal schedule, as if the thread were slow.

The points are in ``harness/kafka/points``; the cluster must have them (``holds`` in its spec). A hold that reaches its
limit proves nothing: a case that would be invalid is unknown then (:mod:`harness.runner.case_outcome`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from faults.base import Fault
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.holds import Hold, Who
from harness.cluster.spec import ClusterSettings
from harness.errors import AwaitTimeout, FaultNotProven

THERE_S = 30.0
"""The time that a thread has to come to the point."""
_FRAMES = 6


class Held(Fault):
    """Holds threads that come to a point, from ``inject`` to ``undo``.

    ``inject`` returns when a thread is there. What brings it there is ``by``, or happens anyway.
    """

    name = "held"
    cluster: ClassVar[ClusterSettings] = {"holds": True}

    def __init__(
        self,
        cluster: Cluster,
        broker: Broker,
        point: str,
        *,
        about: str = "",
        of_thread: str = "",
        caller: str = "",
        skip: int = 0,
        by: Callable[[], object] = lambda: None,
    ) -> None:
        """Describe a hold; nothing happens before ``inject``. :class:`Who` explains the words.

        :param point: the id of a point
        :param by: brings a thread to the point; the thread is awaited after it
        :raises BuildLacks: this build has no such point in this mode
        """
        super().__init__(broker)
        self._hold = Hold(cluster, broker.node, point, Who(about=about, thread=of_thread, caller=caller, skip=skip))
        self._by = by

    @property
    def target(self) -> str:
        """The node and the point."""
        return str(self._hold)

    def apply(self) -> None:
        """Give the order, and bring a thread to the point."""
        self._hold.begin()
        self._by()

    def proof(self) -> str:
        """The thread that is held, by its own stack.

        :raises FaultNotProven: none came
        """
        try:
            thread = self._hold.await_thread(THERE_S)
        except AwaitTimeout as error:
            raise FaultNotProven(str(error)) from error
        frames = " < ".join(thread.stack[:_FRAMES])
        return f"{thread.name} is held at {self._hold.point} ({thread.subject[:200]}): {frames}"

    def revert(self) -> None:
        """Let the threads go on."""
        self._hold.release()
