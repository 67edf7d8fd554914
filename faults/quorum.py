"""The cluster goes without a controller: KRaft's node is killed."""

from __future__ import annotations

from faults.base import Fault
from harness.broker import Broker
from harness.errors import FaultNotProven
from harness.nodes.base import Node


class ControllerKilled(Fault):
    """SIGKILL to KRaft's only controller; mending it starts it again.

    :param witness: any broker, whose journal tells of it
    """

    name = "controller_killed"
    explains = (r"Connection to node .* could not be established", r"Unable to send a heartbeat")

    def __init__(self, node: Node, witness: Broker) -> None:
        super().__init__(witness)
        self._node = node
        self.noticed_by = rf"Node {node.spec.properties['node.id']} disconnected"

    @property
    def target(self) -> str:
        """Such as "controller-100"."""
        return self._node.spec.name

    def inject(self) -> None:
        """End it and prove it.

        :raises FaultNotProven: it did not run before, or still does
        """
        if not self._node.is_alive():
            raise FaultNotProven(f"{self.target} did not run before {self.name} was injected")
        super().inject()

    def break_it(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._node.kill()

    def proof(self) -> str | None:
        """The process is gone from the process table."""
        return None if self._node.is_alive() else f"exit code {self._node.exit_code()}"

    def mend(self) -> None:
        """Start it again."""
        if not self._node.is_alive():
            self._node.start()
