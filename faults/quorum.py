"""Faults of the controller: KRaft's active controller is killed; in ZooKeeper mode no broker can be the controller."""

from __future__ import annotations

from faults.base import Fault
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.cluster.quorum.kraft import node_id
from harness.cluster.quorum.zookeeper import ControllerZnode
from harness.errors import FaultNotProven
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until


class ControllerKilled(Fault):
    """Kills KRaft's active controller with SIGKILL.

    To revert it, start the controller; it becomes a standby if there are others.

    Only Kafka knows which controller is active. So before and after the fault two sources must agree: the node's
    ActiveControllerCount, and the brokers' DescribeQuorum. Killing a standby would have no effect. If there are
    standbys, the fault is proven only once one of them is active.

    :param witness: any broker; events of the fault go to its journal
    """

    name = "controller_killed"
    explains = (r"Connection to node .* could not be established", r"Unable to send a heartbeat")

    def __init__(self, cluster: Cluster, witness: Broker) -> None:
        super().__init__(witness)
        self._cluster = cluster
        self._node = cluster.active_controller()
        self._standbys = [node for node in cluster.quorum_nodes if node != self._node]
        self.noticed_by = rf"Node {node_id(self._node)} disconnected"

    @property
    def target(self) -> str:
        """The controller, such as "controller-100"."""
        return self.node

    @property
    def node(self) -> str:
        """The controller's name."""
        return self._node.spec.name

    def inject(self) -> None:
        """Kill the controller and prove that it ended.

        :raises FaultNotProven: it was not the active controller, a standby did not follow it, it still runs, or no
            standby became active
        """
        if not self._node.is_alive():
            raise FaultNotProven(f"{self.target} did not run before {self.name} was injected")
        await_until(
            self._disagreements,
            lambda found: not found,
            timeout_s=timeouts.CONTROLLER_FAILURE_S,
            what=f"{self.target} to be the active controller that all standbys follow",
            retry_on=(NoAnswer,),
            failure=FaultNotProven,
        )
        super().inject()

    def apply(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._node.kill()

    def proof(self) -> str | None:
        """The process is not in the process table, and a standby, if there is one, is active."""
        if self._node.is_alive():
            return None
        evidence = f"exit code {self._node.exit_code()}"
        if not self._standbys:
            return evidence
        successor = await_until(
            self._successor,
            timeout_s=timeouts.CONTROLLER_FAILURE_S,
            what=f"another controller to take over from {self.target}",
            retry_on=(NoAnswer,),
            failure=FaultNotProven,
        )
        assert successor is not None
        self.broker.journal.write("controller.taken_over", before=self.target, after=successor.spec.name)
        return f"{evidence}; {successor.spec.name} is the active controller"

    def revert(self) -> None:
        """Start the controller."""
        if not self._node.is_alive():
            self._node.start()

    def _disagreements(self) -> list[str]:
        """One phrase for each broker or standby that does not take the node for the active controller."""
        id = node_id(self._node)
        named = self._named_by_broker()
        found = [] if named == id else [f"{self.broker} names {named} as the active controller"]
        following = {node.spec.name: self._cluster.mbeans[node.spec.name].followed() for node in self._standbys}
        return found + [f"{name} follows {leader}" for name, leader in following.items() if leader != id]

    def _successor(self) -> Node | None:
        """Another controller that is active and that the broker names."""
        active = self._cluster.active_controller()
        return active if active != self._node and self._named_by_broker() == node_id(active) else None

    def _named_by_broker(self) -> int | None:
        return self._cluster.quorum.controller(self.broker.admin)


class ControllerUnseated(Fault):
    """ZooKeeper mode: the controller resigns and no broker can become the controller, until the fault is reverted.

    All brokers keep running. Killing the controller's broker would not do: another broker would become the controller.

    :param broker: the controller
    """

    name = "controller_unseated"

    def __init__(self, broker: Broker, znode: ControllerZnode) -> None:
        super().__init__(broker)
        self._znode = znode
        self.noticed_by = rf"\[Controller id={broker.id}\] Resigned"

    @property
    def target(self) -> str:
        """The controller, such as "the controller, broker 2"."""
        return f"the controller, {self.broker}"

    def apply(self) -> None:
        """Replace the controller's znode by one that names no broker; it ends with the harness."""
        self._znode.take_over()

    def proof(self) -> str | None:
        """The znode belongs to the harness."""
        return "/controller names no broker" if self._znode.is_taken_over() else None

    def revert(self) -> None:
        """Remove the znode."""
        self._znode.release()
