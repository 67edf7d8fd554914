"""Steps: racks that change with a restart, brokers that come and go, topics of many shapes, and where they lie."""

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


def change_racks(cluster: Cluster, racks: Sequence[str | None], *, only: int | None = None) -> None:
    """Brokers that are to be in another rack are restarted there, side by side, and every broker tells clients so.

    :param only: so many run afterwards; the others are stopped, and the cluster forgets them
    :raises PromiseBroken: one doesn't
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
    """Brokers that don't run are started, and every broker tells clients of them and their racks."""
    for broker in brokers:
        broker.start()
    await_racks(cluster)
    cluster.journal.write("racks.changed", racks=racks_of(cluster.live_brokers()))


def racks_of(brokers: Iterable[Broker]) -> dict[int, str | None]:
    """The rack of each, as it is configured."""
    return {broker.id: broker.node.spec.properties.get("broker.rack") for broker in brokers}


def await_racks(cluster: Cluster) -> None:
    """Every live broker's Metadata has all live brokers, each with its rack.

    :raises PromiseBroken: one's doesn't
    """
    brokers = cluster.live_brokers()
    should = racks_of(brokers)
    await_until(
        lambda: {broker.id: dict(broker.describe_cluster().racks) for broker in brokers},
        lambda seen: all(each == should for each in seen.values()),
        timeout_s=timeouts.RECOVERY_S,
        what=f"every broker to tell clients of the racks {should}",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )


def shapes(brokers: int) -> list[tuple[int, int]]:
    """Partitions and replicas of topics that try what there is to try on so many brokers.

    With one partition a broker, any number of replicas; with two, with one more than brokers, where a new round begins,
    and with fewer, the usual ones.
    """
    any_number = [(brokers, replicas) for replicas in range(1, brokers + 1)]
    usual = [(2 * brokers, replicas) for replicas in (1, 2, 3)] + [(brokers + 1, replicas) for replicas in (2, 3, 4)]
    fewer = [(1, 3), (brokers - 1, 2)]
    return any_number + [(partitions, replicas) for partitions, replicas in usual + fewer if replicas <= brokers]


def create(cluster: Cluster, prefix: str, wanted: Sequence[tuple[int, int]]) -> list[Topic]:
    """Topics of these shapes (partitions, replicas), of which a shape may be named several times."""
    return cluster.create_topics(
        *(
            NewTopic(name=f"{prefix}-{number}-{partitions}x{replicas}", partitions=partitions, replicas=replicas)
            for number, (partitions, replicas) in enumerate(wanted)
        )
    )


def assignments(cluster: Cluster, topics: Iterable[Topic]) -> dict[str, Assignment]:
    """Where the replicas of each topic are, by its name."""
    seen = cluster.describe().partitions
    return {topic.name: {s.partition: s.replicas for s in seen if s.topic == topic.name} for topic in topics}


def by_topic(placements: Iterable[Placement]) -> dict[str, Assignment]:
    """The same of what kafka-reassign-partitions proposes."""
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for placement in placements:
        ids = tuple(broker.id for broker in placement.brokers)
        found.setdefault(placement.partition.topic, {})[placement.partition.index] = ids
    return dict(found)
