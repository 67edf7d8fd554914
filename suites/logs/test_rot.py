"""Shows that bits that flip on a leader's disk do not spread to other replicas (beyond KIP-112)."""

from __future__ import annotations

from faults.base import injected
from faults.segment import ByteFlipped
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.stored_log import StoredLog
from harness.waiting import await_until
from suites.on_disk import check_no_leftovers, check_same_bytes
from suites.reassignments import await_no_reassignment
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import write_untracked_records

REFUSED = r"Found invalid messages during fetch for partition {partition} offset (\d+)"
"""The log line of a follower that got a batch with a wrong checksum (``AbstractFetcherThread``); it asks again."""


@scenario(
    "logs/leader-rots",
    kip=112,
    plan="bits flip on the disk of a leader, which goes on; a new follower fetches them",
    judged=False,
)
def test_leader_rots(cluster: Cluster) -> None:
    """A new follower refuses a batch that rotted on its leader's disk, and stays out of the ISR.

    The follower that has the batch already is not harmed. Kafka cannot mend the leader's disk. As the bit flips back,
    the new follower goes on: one bad answer must not stop it for good.
    """
    leader, follower, new = cluster.brokers
    [events] = cluster.create_topics(NewTopic(name="events", assignment={0: [leader.id, follower.id]}))
    state = StateCheck(cluster, events)
    write_untracked_records(events, 300, size=1000)
    state.check()
    partition = events[0]
    with injected(ByteFlipped(partition.log_dir_on(leader), events.name, 0, text=b"untracked 200 ")):
        cluster.reassign(partition, [leader, new])
        check_refuses(new, partition)
    await_no_reassignment(cluster)
    state.reassigned(partition, [partition.log_dir_on(broker) for broker in (leader, new)])
    state.check(timeouts.RECOVERY_S)
    check_same_bytes(partition)
    check_no_leftovers(cluster, {events.name})


def check_refuses(broker: Broker, partition: Partition) -> None:
    """A follower does not append a batch with a wrong checksum, and is not in the ISR."""
    refused = REFUSED.format(partition=partition)
    await_until(
        lambda: broker.log.first(refused) is not None or broker.id in partition.describe().isr,
        timeout_s=timeouts.MOVE_S,
        what=f"{broker} to refuse a batch of {partition}",
        failure=PromiseBroken,
    )
    seen, ends = partition.describe(), StoredLog(partition.log_dir_on(broker).replica_dir(partition.topic, 0)).ends()
    if broker.id in seen.isr or ends > 200:
        raise PromiseBroken(
            f"the batch of offset 200 of {partition} rotted on its leader's disk, and {broker} has the records up to "
            f"{ends}; seen: {seen}"
        )
