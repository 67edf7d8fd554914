"""Holds threads in every case of a run while faults are in force: ``jbod run --hold POINT@WHERE``.

It makes a rare failure frequent. A scenario that needs one certain hold uses :class:`faults.held.Held`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from harness.cluster.cluster import Cluster
from harness.cluster.holds import Hold, Who
from harness.cluster.nodes.node import Node
from harness.errors import AwaitTimeout
from harness.events import Event, FaultInjecting
from harness.runner.hold_option import HoldOption


class HoldsAmidFaults:
    """A listener of a case's journal: the holds begin just before the first fault is injected."""

    def __init__(self, options: Sequence[HoldOption]) -> None:
        self._options = options
        self._holds: list[Hold] = []
        self._cluster: Cluster | None = None

    def attach(self, cluster: Cluster) -> None:
        """Hold threads of this cluster from its next fault on.

        :raises BuildLacks: the build has no such point in this mode
        """
        for option in self._options:
            Hold(cluster, cluster.brokers[0].node, option.point, Who())
        self._cluster = cluster

    def __call__(self, event: Event) -> None:
        """Begin the holds if the event is the first fault."""
        if isinstance(event, FaultInjecting) and self._cluster is not None and not self._holds:
            self._holds = [
                Hold(self._cluster, node, option.point, Who(threads=option.threads), option.for_s)
                for option in self._options
                for node in self._nodes(self._cluster, option.where, event.struck)
            ]
            for hold in self._holds:
                hold.begin()

    def end(self) -> None:
        """Let all threads go on."""
        for hold in self._holds:
            with suppress(AwaitTimeout):  # the node was killed, or ended by itself
                hold.release()
        self._holds, self._cluster = [], None

    @staticmethod
    def _nodes(cluster: Cluster, where: str, struck: str) -> list[Node]:
        brokers = [broker.node for broker in cluster.brokers]
        match where:
            case "controllers":
                return [node for node in cluster.quorum_nodes if node.spec.is_kafka]
            case "struck":
                return [node for node in (*brokers, *cluster.quorum_nodes) if node.spec.name == struck]
            case _:
                return [node for node in brokers if node.spec.name != struck]
