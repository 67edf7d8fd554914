"""Changes the builds of a cluster's nodes one by one, as Kafka's documentation says, and checks each step."""

from __future__ import annotations

import functools
import re

from faults.broker import BrokerStopped
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.errors import Inconclusive
from harness.journal import now
from harness.kafka.distribution import Distribution
from harness.kafka.versions import Mode
from harness.waiting import await_until
from harness.workload.pair import Pair
from suites.controllers import await_active_controller, last_start
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import brokers_down

PROTOCOL = "inter.broker.protocol.version"
"""ZooKeeper: the setting that keeps upgraded brokers at the protocol of the others until a second rolling bounce."""
_SAYS_VERSION = r"Kafka version: {version}(?!\S)"
"""What a node logs at its start (``AppInfoParser``)."""

upgrade_scenario = functools.partial(scenario, kip=112, upgrades=True)


class Roll:
    """A rolling change of the nodes of a cluster, one after another, to another build.

    :param build: the build that the nodes get
    :param keep: ZooKeeper: the protocol that brokers keep to in the meantime, such as 2.8
    """

    def __init__(self, state: StateCheck, pair: Pair, build: Distribution, keep: str) -> None:
        self._state = state
        self._pair = pair
        self._build = build
        self._protocol = {PROTOCOL: keep} if state.cluster.spec.mode is Mode.ZK else {}

    def broker(self, broker: Broker) -> None:
        """Stop a broker, and start it on the build: the others serve meanwhile, and then it is in every ISR again.

        Its log dirs that have failed are still bad.
        """
        with brokers_down(self._state, BrokerStopped(broker)):
            broker.use_build(self._build)
            broker.node.configure(self._protocol)
            self._pair.await_progress(after=now())
        check_runs(broker.node, self._build, self._state.cluster)

    def brokers(self, *brokers: Broker) -> None:
        """Restart brokers on the build, one after another."""
        for broker in brokers:
            self.broker(broker)

    def controllers(self) -> None:
        """KRaft: stop each controller, and start it on the build; then all sources agree as before."""
        cluster = self._state.cluster
        for controller in (node for node in cluster.quorum_nodes if node.spec.is_kafka):
            controller.stop(timeouts.STOP_S)
            controller.use_build(self._build)
            controller.start()
            await_active_controller(cluster)
            check_runs(controller, self._build, cluster)
            self._state.check(timeouts.RECOVERY_S)
        self._pair.await_progress(after=now())


def protocol_of(build: Distribution) -> str:
    """The newest inter-broker protocol of a release, such as 2.8."""
    return f"{build.version.major}.{build.version.minor}"


def check_runs(node: Node, build: Distribution, cluster: Cluster) -> None:
    """The node has logged the version of the build since its start.

    :raises Inconclusive: it has not, so it may not run the build
    """
    says = _SAYS_VERSION.format(version=re.escape(str(build.version)))
    await_until(
        lambda: node.log.first(says, since=last_start(cluster.journal, node)),
        timeout_s=timeouts.REQUEST_S,
        what=f"{node.spec.name} to log that it is Kafka {build.version}",
        failure=Inconclusive,
    )
