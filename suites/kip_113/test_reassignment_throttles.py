"""Shows that the throttle of reassignments (KIP-73) holds on the leader's side alone, and on the follower's side alone.

The throttle of moves is in test_throttles.py. The tool sets both sides at once, so that either would do.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Mapping

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.stored_log import StoredLog
from harness.kafka.versions import VersionRange
from suites.kip_113.copy_rates import RATE, check_rate
from suites.moves import SMALL_FETCHES
from suites.on_disk import check_logs_unchanged, check_same_bytes, leaders_logs
from suites.reassignments import (
    FOLLOWER_RATE,
    LEADER_RATE,
    OF_FOLLOWER,
    OF_LEADER,
    await_no_reassignment,
    check_reassigning,
)
from suites.replica_mbeans import mbeans_of
from suites.scenario import NO_FAULT, scenario
from suites.steps import await_replica, write_untracked_records

RECORDS, SOON_S = 5, 4.0  # less than replica.lag.time.max.ms, after which the leader would not wait for the follower
CUT_BATCHES = 1.5
"""A follower also counts the batch that the end of a fetch cuts off, and then fetches it again."""
HAS_DEFAULT_RATES = VersionRange.parse(">=3.9")
"""The builds whose brokers take their rate from the configs of all brokers (KIP-226)."""


@scenario(
    "kip-113/reassignment-throttles",
    kip=73,
    plan="a reassignment is throttled by the leader alone, and by the follower alone",
    builds=HAS_DEFAULT_RATES,
    floors=NO_FAULT,
    judged=False,
    overrides=SMALL_FETCHES,
)
def test_reassignment_throttles(cluster: Cluster) -> None:
    """Two reassignments copy at their rates: one throttles a leader that is named, the other throttles all followers.

    The leader's rate is a default for all brokers. The follower's rate is a config of its own broker. The leader is the
    second of the replicas that its topic's config names. Its follower that is in sync is not throttled.
    """
    first, second, coming = cluster.brokers
    by_leader, by_follower = cluster.create_topics(
        NewTopic(name="by-leader", replicas=2, assignment={0: [first.id, second.id]}),
        NewTopic(name="by-follower", replicas=1, assignment={0: [second.id]}),
    )
    logs = (by_leader[0], by_follower[0])
    write_untracked_records(by_leader, 6400, size=1000)  # its reassignment goes on after the measurement
    write_untracked_records(by_follower, 3200, size=1000)
    by_leader.configure({OF_LEADER: f"0:{coming.id},0:{first.id}"})
    by_follower.configure({OF_FOLLOWER: "*"})
    coming.admin.set_broker_configs(None, {LEADER_RATE: str(RATE)})
    for broker in cluster.brokers:  # once a change is in force, the changes before it are, too
        broker.configure({FOLLOWER_RATE: str(RATE)})
    with concurrent.futures.ThreadPoolExecutor(len(logs)) as pool:
        rates = [pool.submit(check_grows, log, coming) for log in logs]
        for rate in rates:
            rate.result()
    coming.admin.set_broker_configs(None, {LEADER_RATE: "1"})
    first.configure({FOLLOWER_RATE: str(RATE + 1)})  # once it is in force, the leader's rate is, too
    check_acked_soon(by_leader[0], first)
    kept = leaders_logs(logs)
    coming.admin.set_broker_configs(None, {LEADER_RATE: None})
    for broker in cluster.brokers:
        broker.configure({FOLLOWER_RATE: None})
    await_no_reassignment(cluster)
    cluster.await_healthy(failure=PromiseBroken)
    check_same_bytes(*logs)
    check_logs_unchanged(kept)
    check_counted(cluster, {first: by_leader[0], second: by_follower[0]}, coming)


def check_counted(cluster: Cluster, sources: Mapping[Broker, Partition], target: Broker) -> None:
    """Brokers count the bytes that reassignments copied, and no others (KIP-352): received here, sent by the leaders.

    One of the leaders also follows the other. This is no part of a reassignment.

    :param sources: the log that was copied from each leader
    """
    sizes = {broker: log.log_dir_on(broker).replica_dir(log.topic, log.index) for broker, log in sources.items()}
    stored = {broker: StoredLog(folder).size for broker, folder in sizes.items()}
    # What is written while a log is copied may be fetched before or after the reassignment ends.
    least = {broker: size - RECORDS * 1000 for broker, size in stored.items()}
    counted = {broker: mbeans_of(broker).reassigned_bytes() for broker in cluster.brokers}
    cluster.journal.write(
        "reassignment.counted", bytes={str(each): counted[each] for each in counted}, stored=[*stored.values()]
    )
    received, sent = counted[target]
    wrong = [f"{target} counts {sent} sent"] * bool(sent)
    if not sum(least.values()) <= received <= CUT_BATCHES * sum(stored.values()):
        wrong.append(f"{target} counts {received} received of {sum(stored.values())}")
    for broker, size in stored.items():
        received, sent = counted[broker]
        wrong += [f"{broker} counts {received} received"] * bool(received)
        wrong += [f"{broker} counts {sent} sent of {size}"] * (sent < least[broker])
    if wrong:
        raise PromiseBroken(f"bytes of reassignments in BrokerTopicMetrics: {'; '.join(wrong)}")


def check_grows(partition: Partition, coming: Broker) -> None:
    """A reassignment that adds a replica on this broker copies the log at the rate of the throttle."""
    cluster, began = partition.cluster, time.monotonic()
    cluster.reassign(partition, [partition.leader(), *partition.followers(), coming])
    check_rate([partition], [await_replica(coming, partition)], RATE, began, before=0)
    check_reassigning(cluster, partition)


def check_acked_soon(partition: Partition, leader: Broker) -> None:
    """The leader's throttle does not hold back a follower that is in sync: records with acks=all are acked soon."""
    check_reassigning(partition.cluster, partition)
    try:
        for _ in range(RECORDS):
            leader.admin.produce(partition.topic, partition.index, b"in sync", acks=-1, timeout_s=SOON_S)
    except Refused as refused:
        raise PromiseBroken(f"only the replica that is added to {partition} is throttled, and {refused}") from refused
