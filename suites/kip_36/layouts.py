"""Steps of KIP-36's scenarios: change racks, start and stop brokers, create topics of many shapes, read assignments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.reassign import Placement
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until
from suites.kip_36.oracle import Assignment

NEAREST = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
"""Broker settings with which a leader sends consumers to a replica in their rack (KIP-392)."""


def change_racks(cluster: Cluster, racks: Sequence[str | None], *, only: int | None = None) -> None:
    """Restart the brokers whose rack changes, all at once, and wait until every broker's metadata has the racks.

    :param only: keep so many brokers; the others are stopped and unregistered
    :raises PromiseBroken: a broker's metadata has other racks
    """
    stay = cluster.brokers[:only]
    leave = cluster.others(*stay)
    was, becomes = racks_of(cluster.brokers), dict(zip((b.id for b in cluster.brokers), racks, strict=True))
    changed = [broker for broker in stay if was[broker.id] != becomes[broker.id]]
    for broker in (*changed, *leave):
        broker.node.request_stop()
    for broker in (*changed, *leave):
        broker.stop()
        broker.use_rack(becomes[broker.id])
    for broker in changed:
        broker.start()
    await_racks(cluster)
    cluster.unregister(*leave)
    cluster.journal.write("racks.changed", racks=racks_of(stay))


def start(cluster: Cluster, *brokers: Broker) -> None:
    """Start brokers, and wait until every broker's metadata has them and their racks."""
    for broker in brokers:
        broker.start()
    await_racks(cluster)
    cluster.journal.write("racks.changed", racks=racks_of(cluster.live_brokers()))


def racks_of(brokers: Iterable[Broker]) -> dict[int, str | None]:
    """The configured rack of each broker, by broker id."""
    return {broker.id: broker.node.spec.properties.get("broker.rack") for broker in brokers}


def await_racks(cluster: Cluster) -> None:
    """Wait until every live broker's metadata has all live brokers with their racks.

    :raises PromiseBroken: a broker's metadata has others
    """
    brokers = cluster.live_brokers()
    should = racks_of(brokers)
    await_until(
        lambda: {broker.id: dict(broker.describe_cluster().racks) for broker in brokers},
        lambda seen: all(each == should for each in seen.values()),
        timeout_s=timeouts.RECOVERY_S,
        what=f"every broker's metadata to have the racks {should}",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )


def shapes(brokers: int) -> list[tuple[int, int]]:
    """Numbers of partitions and replicas of topics that try the algorithm on so many brokers.

    As many partitions as brokers, with every number of replicas. Twice as many, one more (where a new round begins) and
    fewer, with 1 to 4 replicas.
    """
    any_number = [(brokers, replicas) for replicas in range(1, brokers + 1)]
    usual = [(2 * brokers, replicas) for replicas in (1, 2, 3)] + [(brokers + 1, replicas) for replicas in (2, 3, 4)]
    fewer = [(1, 3), (brokers - 1, 2)]
    return any_number + [(partitions, replicas) for partitions, replicas in usual + fewer if replicas <= brokers]


def create(cluster: Cluster, prefix: str, wanted: Sequence[tuple[int, int]]) -> list[Topic]:
    """Create topics of these shapes (partitions, replicas); a shape may be there several times."""
    return cluster.create_topics(
        *(
            NewTopic(name=f"{prefix}-{number}-{partitions}x{replicas}", partitions=partitions, replicas=replicas)
            for number, (partitions, replicas) in enumerate(wanted)
        )
    )


def assignments(cluster: Cluster, topics: Iterable[Topic]) -> dict[str, Assignment]:
    """The assignment of each topic, by its name."""
    seen = cluster.describe().partitions
    return {topic.name: {s.partition: s.replicas for s in seen if s.topic == topic.name} for topic in topics}


def by_topic(placements: Iterable[Placement]) -> dict[str, Assignment]:
    """The assignments that kafka-reassign-partitions proposes, by topic."""
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for placement in placements:
        ids = tuple(broker.id for broker in placement.brokers)
        found.setdefault(placement.partition.topic, {})[placement.partition.index] = ids
    return dict(found)
