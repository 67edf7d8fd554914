"""Compares the MBeans of single replicas, and of the threads that fetch them, with the expected state.

An operator who watches them must see what is there, and nothing that is gone. What follows from Kafka's code:

* Each online replica has MBeans of ``kafka.cluster:type=Partition``. An offline or deleted one has none. After a start
  with a failed log dir, a broker does not know which replicas are in there, and may have those of an offline one.
* A replica fetcher thread has a partition only if its broker follows the leader that the thread fetches from. A thread
  without new records may have no MBean of a partition, so the contrary is not compared.
* No fetcher thread is dead. No partition has failed, unless a log dir has failed, too: brokers of KRaft count a replica
  that they could not create.
* What is known to be left behind in a log dir is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.mbeans import MBeans, ReplicaMetrics
from harness.kafka.metadata import ClusterState
from harness.kafka.tool_answers import Key
from harness.waiting import await_until
from suites.expected_state import ExpectedPartition, ExpectedState

FETCHER = re.compile(r"ReplicaFetcherThread-\d+-(\d+)")
"""The name of a thread that fetches from a leader, with the leader's id."""


def compare_replica_mbeans(
    state: ExpectedState, broker: Broker, seen: ReplicaMetrics, elsewhere: ClusterState
) -> Iterator[str]:
    """Compares the MBeans of one broker.

    :param elsewhere: the cluster's metadata, for topics that are not in the expected state
    """
    partitions = {**state.partitions, **_unknown(state, elsewhere)}
    left = {key for log_dir in broker.log_dirs for key in state.left_behind_in(log_dir)}
    partitions = {key: each for key, each in partitions.items() if key not in left}
    yield from _compare_partitions(state, broker, seen.partitions - left, partitions)
    for topic, index, thread in sorted(seen.fetched):
        source, key = FETCHER.fullmatch(thread), (topic, index)
        if source and key not in left and not _may_fetch(partitions.get(key), broker, int(source[1])):
            yield f"{broker} has {topic}-{index} in {thread}, though it follows no such leader"
    if seen.dead_fetchers:
        yield f"the MBeans of {broker} say DeadThreadCount {seen.dead_fetchers} instead of 0"
    if seen.failed_partitions and not any(log_dir in state.failed for log_dir in broker.log_dirs):
        yield f"the MBeans of {broker} say FailedPartitionsCount {seen.failed_partitions} instead of 0"


def mbeans_of(broker: Broker) -> MBeans:
    """The MBeans of a broker of a cluster that has them."""
    assert broker.mbeans is not None
    return broker.mbeans


def check_no_trace(broker: Broker, topic: Topic) -> None:
    """A broker whose only replica of a topic has just gone offline counts no failed partition, and has no meters of it.

    No client may use the topic on this broker any more, since a late request makes new meters.

    :raises PromiseBroken: it does not forget them in time
    """
    mbeans = mbeans_of(broker)

    def traces() -> list[str]:
        failed = mbeans.describe_replicas().failed_partitions
        meters = mbeans.has_topic_meters(topic.name)
        return [f"FailedPartitionsCount {failed}"] * bool(failed) + [f"BrokerTopicMetrics of {topic}"] * meters

    await_until(
        traces,
        lambda found: not found,
        timeout_s=timeouts.REQUEST_S,
        what=f"{broker} to forget its offline replica of {topic}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    broker.journal.write("replica.forgotten", broker=broker.id, topic=topic.name)


def check_no_idle_fetchers(cluster: Cluster) -> None:
    """No broker has a thread that fetches from a leader which it does not follow, or one that moves no replica.

    Each live broker is asked, once all its moves have ended. A thread for moves ends at the next of the looks that a
    broker takes every 10 s.

    :raises PromiseBroken: a thread stays for too long
    """
    partitions = cluster.describe().partitions
    led_by = {
        broker: {each.leader for each in partitions if broker.id in each.replicas} - {broker.id}
        for broker in cluster.live_brokers()
    }

    def idle() -> list[str]:
        found = [(broker, name) for broker in led_by for name in sorted(mbeans_of(broker).fetcher_threads())]
        sources = [(broker, name, FETCHER.fullmatch(name)) for broker, name in found]
        return [f"{name} of {broker}" for broker, name, of in sources if not of or int(of[1]) not in led_by[broker]]

    await_until(
        idle,
        lambda found: not found,
        timeout_s=timeouts.RECOVERY_S,
        what="every fetcher thread that fetches nothing to end",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    followed = {str(broker): sorted(map(str, leaders)) for broker, leaders in led_by.items()}
    cluster.journal.write("fetchers.none_idle", followed=followed)


def _unknown(state: ExpectedState, elsewhere: ClusterState) -> dict[Key, ExpectedPartition]:
    return {
        (each.topic, each.partition): ExpectedPartition(
            replicas=each.replicas,
            leader=each.leader,
            isr=frozenset(each.isr),
            offline=frozenset(each.offline_replicas),
        )
        for each in state.unknown_partitions(elsewhere)
    }


def _compare_partitions(
    state: ExpectedState, broker: Broker, seen: frozenset[Key], partitions: Mapping[Key, ExpectedPartition]
) -> Iterator[str]:
    """The partitions with MBeans are those of the online replicas.

    Where a log dir has failed, a replica may be missing: a broker may be unable to create it, and yet have it online.
    """
    assigned = {key for key, each in partitions.items() if broker.id in each.replicas}
    online = {key for key in assigned if broker.id not in partitions[key].offline}
    may = assigned if broker.id in state.updated_since_start else online
    if stale := sorted(seen - may):
        yield f"{broker} has Partition MBeans of replicas that are offline or gone: {_named(stale)}"
    has_failed = any(log_dir in state.failed for log_dir in broker.log_dirs)
    if seen and not has_failed and (missing := sorted(online - seen)):
        yield f"{broker} has no Partition MBeans of {_named(missing)}"


def _may_fetch(expected: ExpectedPartition | None, broker: Broker, source: int) -> bool:
    """Whether this broker may fetch the partition from this leader; from any while the partition has none."""
    if expected is None or broker.id not in expected.replicas or broker.id in expected.offline:
        return False
    return expected.leader is None or (expected.leader == source and source != broker.id)


def _named(keys: list[Key]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in keys)
