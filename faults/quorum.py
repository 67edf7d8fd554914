"""The controller goes: KRaft's active one is killed, and another takes over where there is one; in ZooKeeper mode no
broker can be it.
"""

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
    """SIGKILL to KRaft's active controller; mending it starts it again, where another is active by then: as a standby.

    Who is active can't be seen from outside Kafka. So it is asked for twice, by two ways that must agree, before and
    after: the node says so itself (ActiveControllerCount), and the brokers name it (DescribeQuorum). A standby that is
    killed is missed by nobody, and where there are standbys, nothing has failed over before one of them is active.

    :param witness: any broker, whose journal tells of it
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
        """Such as "controller-100"."""
        return self.node

    @property
    def node(self) -> str:
        """The controller's."""
        return self._node.spec.name

    def inject(self) -> None:
        """End it and prove it.

        :raises FaultNotProven: it was not the active controller before, the standbys did not follow it, it still runs,
            or none of them takes over
        """
        if not self._node.is_alive():
            raise FaultNotProven(f"{self.target} did not run before {self.name} was injected")
        await_until(
            self._unfit,
            lambda found: not found,
            timeout_s=timeouts.CONTROLLER_FAILURE_S,
            what=f"{self.target} to be the active controller that all others follow",
            retry_on=(NoAnswer,),
            failure=FaultNotProven,
        )
        super().inject()

    def apply(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._node.kill()

    def proof(self) -> str | None:
        """The process is gone from the process table; where there are standbys, one of them is active."""
        if self._node.is_alive():
            return None
        evidence = f"exit code {self._node.exit_code()}"
        if not self._standbys:
            return evidence
        heir = await_until(
            self._heir,
            timeout_s=timeouts.CONTROLLER_FAILURE_S,
            what=f"another controller to take over from {self.target}",
            retry_on=(NoAnswer,),
            failure=FaultNotProven,
        )
        assert heir is not None
        self.broker.journal.write("controller.taken_over", before=self.target, after=heir.spec.name)
        return f"{evidence}; {heir.spec.name} is the active controller"

    def revert(self) -> None:
        """Start it again."""
        if not self._node.is_alive():
            self._node.start()

    def _unfit(self) -> list[str]:
        """Why its end would be no fail-over, a phrase each; nothing where it would."""
        id = node_id(self._node)
        named = self._named()
        found = [] if named == id else [f"{self.broker} names {named} as the active controller"]
        following = {node.spec.name: self._cluster.mbeans[node.spec.name].followed() for node in self._standbys}
        return found + [f"{name} follows {leader}" for name, leader in following.items() if leader != id]

    def _heir(self) -> Node | None:
        """Another controller, if it is active, and the brokers have heard of it."""
        heir = self._cluster.active_controller()
        return heir if heir != self._node and self._named() == node_id(heir) else None

    def _named(self) -> int | None:
        return self._cluster.quorum.controller(self.broker.admin)


class ControllerUnseated(Fault):
    """ZooKeeper mode: the controller is it no more, and nobody can become it; mending it, whoever is first does.

    All brokers go on: to kill the controller's is another fault, after which there is another one too soon.

    :param broker: the controller
    """

    name = "controller_unseated"

    def __init__(self, broker: Broker, znode: ControllerZnode) -> None:
        super().__init__(broker)
        self._znode =znode
        self.noticed_by = rf"\[Controller id={broker.id}\] Resigned"

    @property
    def target(self) -> str:
        """Such as "the controller, broker 2"."""
        return f"the controller, {self.broker}"

    def apply(self) -> None:
        """Put a znode that names no broker in the place of the controller's; it goes with the harness."""
        self._znode.take_over()

    def proof(self) -> str | None:
        """The znode that says who is the controller is the harness's."""
        return "/controller names no broker" if self._znode.is_taken_over() else None

    def revert(self) -> None:
        """Let the znode go."""
        self._znode.release()
