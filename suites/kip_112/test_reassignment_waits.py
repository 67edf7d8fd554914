"""Shows that a reassignment waits for every replica that it adds, and that its end or cancellation loses no record.

One of the brokers hangs. The partitions' other brokers must keep all records, and the right one must lead (KIP-455).
"""

from __future__ import annotations

from faults.base import injected
from faults.broker import BrokerKilled, BrokerPaused
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.versions import Mode, VersionRange
from suites.checks import check_refused
from suites.leadership import await_end, await_leader, await_out_of_sync, await_state
from suites.on_disk import check_no_leftovers, check_same_bytes
from suites.reassignments import await_no_reassignment, check_reassigning
from suites.scenario import scenario
from suites.steps import write_untracked_records

AWAITS_STAYING = VersionRange.parse(">=3.8")
"""The builds whose ISR may not shrink at the end of a reassignment (KAFKA-15665)."""
RECORDS = 100


@scenario(
    "kip-112/reassigned-beside-lagging",
    kip=455,
    plan="reassignments beside a replica that hangs: they wait for it, and are cancelled",
    modes=(Mode.KRAFT,),  # with ZooKeeper, a cancel never is refused: it begins to reassign the partition back
    builds=AWAITS_STAYING,
    judged=False,
)
def test_reassigned_beside_lagging(cluster: Cluster) -> None:
    """Reassignments add or keep a replica that hangs: they wait for it, and a cancel never costs a record.

    One is cancelled while its old replica is in the ISR; that of another partition of its topic has ended. Another one
    is not cancelled once its old replica is dead.
    """
    old, new, hanging = cluster.brokers
    on_old, on_all = {0: [old.id]}, {0: [old.id, new.id, hanging.id]}
    orders, refunds, events = cluster.create_topics(
        NewTopic(name="orders", replicas=1, assignment=on_old),
        NewTopic(name="refunds", replicas=1, assignment={**on_old, 1: [old.id]}),
        NewTopic(name="events", replicas=3, assignment=on_all),
    )
    topics = (orders, refunds, events)
    for topic in topics:
        write_untracked_records(topic, RECORDS)
    with injected(BrokerPaused(hanging)):
        await_out_of_sync(events[0], hanging)
        cluster.reassign(events[0], [old, hanging])
        for topic in (orders, refunds):
            cluster.reassign(topic[0], [new, hanging])
            await_in_sync(topic[0], new)
        cluster.reassign(refunds[1], [new])
        await_placed(refunds[1], new)
        for topic in topics:
            check_reassigning(cluster, topic[0])
        cluster.cancel_reassignment(refunds[0])
        await_placed(refunds[0], old)
        with injected(BrokerKilled(old)):
            await_leader(orders[0], new, lambda leader: leader == new.id, f"to be led by {new}")
            write_untracked_records(orders, RECORDS)
            check_refused(lambda: cluster.cancel_reassignment(orders[0]), "INVALID_REPLICA_ASSIGNMENT", "")
            await_leader(orders[0], new, lambda leader: leader == new.id, f"to be led by {new} still")
        await_in_sync(orders[0], old)  # else it comes back after the reassignment, and does not delete its replica
    await_no_reassignment(cluster)
    cluster.await_healthy(failure=PromiseBroken)
    await_placed(orders[0], new, hanging)
    await_placed(events[0], old, hanging)
    for topic in topics:
        check_same_bytes(topic[0])
    await_end(orders[0].leader(), 2 * RECORDS, failure=PromiseBroken)
    check_no_leftovers(cluster, {topic.name for topic in topics})


def await_in_sync(partition: Partition, broker: Broker) -> None:
    """Wait until the broker's replica is in the ISR.

    :raises PromiseBroken: it is not in time
    """
    await_state(
        partition,
        lambda seen: broker.id in seen.isr,
        f"{broker} to be in the ISR of {partition}",
        timeouts.RECOVERY_S,
    )


def await_placed(partition: Partition, leader: Broker, *followers: Broker) -> None:
    """Wait until the partition is on these brokers, all of them in the ISR, and the first one leads.

    :raises PromiseBroken: it is not in time
    """
    ids = [broker.id for broker in (leader, *followers)]
    await_state(
        partition,
        lambda seen: [*seen.replicas] == ids and {*seen.isr} == {*ids} and seen.leader == leader.id,
        f"{partition} to be on brokers {ids}, all in sync, and led by {leader}",
        timeouts.LOG_DIR_FAILURE_S,
    )
