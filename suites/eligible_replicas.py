"""Waits for the ISR and the eligible leader replicas of a partition (KIP-966), and checks who leads."""

from __future__ import annotations

from collections.abc import Collection

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import EligibleReplicas
from harness.kafka.tool_answers import describe_topics
from harness.waiting import await_until
from suites.leadership import await_online, await_state
from suites.on_disk import check_same_bytes
from suites.steps import await_checkpoints, await_replica, write_untracked_records

TWO_IN_SYNC = {"min.insync.replicas": "2"}
BEFORE = 10
"""The records of a partition before its first replica goes offline, and as many afterwards."""


def created_with_records(cluster: Cluster) -> Partition:
    """Create a partition with ``min.insync.replicas=2`` and some records."""
    events = cluster.create_topic("events", configs=TWO_IN_SYNC)
    write_untracked_records(events, BEFORE)
    return events[0]


def await_isr(log: Partition, *brokers: Broker) -> None:
    """Wait until exactly these brokers are in the ISR.

    :raises PromiseBroken: they are not in time
    """
    ids = {broker.id for broker in brokers}
    await_state(log, lambda seen: {*seen.isr} == ids, f"the ISR of {log} to be {ids}", timeouts.BROKER_FAILURE_S)


def check_eligible(
    log: Partition, *, leader: Broker | None, isr: Collection[Broker], eligible: Collection[Broker], via: Broker
) -> None:
    """DescribeTopicPartitions and kafka-topics both show this leader, this ISR and these eligible leader replicas.

    :param via: the broker that is asked
    """
    cluster = log.cluster
    wanted = EligibleReplicas(
        leader=None if leader is None else leader.id,
        isr=frozenset(broker.id for broker in isr),
        eligible=frozenset(broker.id for broker in eligible),
    )

    def seen() -> dict[str, EligibleReplicas]:
        shown = describe_topics(cluster.distribution, via.bootstrap)[log.topic, log.index]
        by_tool = EligibleReplicas(leader=shown.leader, isr=frozenset(shown.isr), eligible=frozenset(shown.eligible))
        by_request = via.admin.describe_eligible(log.topic, log.index)
        return {"DescribeTopicPartitions": by_request, "kafka-topics --describe": by_tool}

    await_until(
        seen,
        lambda seen: {*seen.values()} == {wanted},
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"{log} to be shown by {via} with {wanted}",
        retry_on=(NoAnswer, KeyError),
        failure=PromiseBroken,
    )
    cluster.journal.write("eligible.checked", partition=str(log), shown=str(wanted))


def check_does_not_lead(log: Partition, broker: Broker) -> None:
    """A broker that is back does not become the leader, though the controller has its replica in a good log dir."""
    await_until(
        lambda: broker.id in broker.describe_cluster().brokers,
        timeout_s=timeouts.RECOVERY_S,
        what=f"{broker} to be active",
        retry_on=(NoAnswer,),
        watch=broker.node.check_alive,
        failure=PromiseBroken,
    )
    log_dir = await_replica(broker, log)
    await_online(log, broker)
    await_checkpoints(log_dir, 3)
    if (seen := log.describe(broker)).leader is not None:
        raise PromiseBroken(f"{broker} leads {log}, though it may lack acked records: {seen}")


def check_leads(log: Partition, broker: Broker) -> None:
    """A broker that is back becomes the leader, since it has every acked record."""
    await_state(
        log,
        lambda seen: seen.leader == broker.id,
        f"{broker} to lead, since it has every acked record",
        timeouts.BROKER_FAILURE_S,
        via=broker,
    )


def check_complete_again(log: Partition, *down: Broker) -> None:
    """With all brokers back, the partition has every acked record on all of them."""
    for broker in down:
        broker.start()
    log.cluster.await_healthy(failure=PromiseBroken)
    await_shown(log.cluster.topics[log.topic], 2 * BEFORE)
    check_same_bytes(log)


def await_shown(topic: Topic, end: int) -> None:
    """With enough replicas in sync again, the high watermark rises."""
    await_until(
        lambda: topic.cluster.end_offsets([topic])[topic.name, 0],
        lambda seen: seen == end,
        timeout_s=timeouts.PROGRESS_S,
        what=f"the high watermark of {topic[0]} to be {end}",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )
