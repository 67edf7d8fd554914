"""Shows that the throttle of reassignments (KIP-73) holds on the leader's side alone, and on the follower's side alone.

The throttle of moves is in test_throttles.py. The tool sets both sides at once, so that either would do.
"""

from __future__ import annotations

import concurrent.futures
import time

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import NewTopic
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
from suites.scenario import NO_FAULT, scenario
from suites.steps import await_replica, write_untracked_records

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
    second of the replicas that its topic's config names.
    """
    first, second, coming = cluster.brokers
    by_leader, by_follower = cluster.create_topics(
        NewTopic(name="by-leader", replicas=1, assignment={0: [first.id]}),
        NewTopic(name="by-follower", replicas=1, assignment={0: [second.id]}),
    )
    logs = (by_leader[0], by_follower[0])
    for topic in (by_leader, by_follower):
        write_untracked_records(topic, 3200, size=1000)
    kept = leaders_logs(logs)
    by_leader.configure({OF_LEADER: f"0:{coming.id},0:{first.id}"})
    by_follower.configure({OF_FOLLOWER: "*"})
    coming.admin.set_broker_configs(None, {LEADER_RATE: str(RATE)})
    for broker in cluster.brokers:  # once a change is in force, the changes before it are, too
        broker.configure({FOLLOWER_RATE: str(RATE)})
    with concurrent.futures.ThreadPoolExecutor(len(logs)) as pool:
        rates = [pool.submit(check_grows, log, coming) for log in logs]
        for rate in rates:
            rate.result()
    coming.admin.set_broker_configs(None, {LEADER_RATE: None})
    for broker in cluster.brokers:
        broker.configure({FOLLOWER_RATE: None})
    await_no_reassignment(cluster)
    cluster.await_healthy(failure=PromiseBroken)
    check_same_bytes(*logs)
    check_logs_unchanged(kept)


def check_grows(partition: Partition, coming: Broker) -> None:
    """A reassignment that adds a replica on this broker copies the log at the rate of the throttle."""
    cluster, began = partition.cluster, time.monotonic()
    cluster.reassign(partition, [partition.leader(), coming])
    check_rate([partition], [await_replica(coming, partition)], RATE, began, before=0)
    check_reassigning(cluster, partition)
