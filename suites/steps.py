"""What several suites do in the same words: steps of a scenario that are claims in themselves."""

from __future__ import annotations

from faults.base import injected
from faults.broker import BrokerKilled
from harness.broker import Broker
from harness.cluster import Cluster
from harness.journal import now
from harness.topic import Topic
from harness.workload import CaseWorkload
from suites.model import World


def check_serves_alone(cluster: Cluster, workload: CaseWorkload, world: World, broker: Broker, topic: Topic) -> None:
    """With all other brokers killed, this one leads the topic, and clients that know no other get through.

    "Now validate that the previous leader can still serve replicas on the good log directories" (KIP-112's test plan).
    The others are started again afterwards; the model goes on without them, so this is the last step before healing.
    """
    others = cluster.others(broker)
    with injected(*map(BrokerKilled, others)):
        world.broker_gone(*others)
        world.check()
        with workload.running(topic, via=broker) as pair:
            pair.await_progress(after=now())
