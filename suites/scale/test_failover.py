"""Measures how a failover grows with the number of partitions in the log dir that fails.

Each case is a point of a curve. The figures decide no verdict, and only those of one machine can be compared: ``jbod
qualify`` compares two builds.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.nodes.node import cpu_s
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.runner.case import Case
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, check_noticed
from suites.scenario import scenario

SIZES = (100, 500, 2000)
AT_ONCE = 500
"""The most partitions of a topic. Topics are created one after another, each within a time-out of its own."""
SHOWN = 3


@scenario(
    "scale/failover",
    kip=112,
    plan="2) Log directory failure discovered on leader during runtime: with many partitions",
    fresh=True,  # warm JVMs would change the figures
    log_dirs=12,
)
@pytest.mark.parametrize("partitions", SIZES)
def test_failover(cluster: Cluster, workload: CaseWorkload, case: Case, partitions: int) -> None:
    """The log dir of many leaders fails: others lead, and take records. The case measures how long all of this takes.

    Then the log dir is healed and its broker killed, so that it recovers every log when it starts.
    """
    orders = cluster.create_topic("orders")
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    crowd = create_in(cluster, log_dir, partitions)
    write_to_each(crowd)
    with workload.running(orders) as pair:
        controllers_s, brokers_s = cpu_s(cluster.quorum_nodes), cpu_s(broker.node for broker in cluster.brokers)
        began = time.monotonic()
        with injected(Chmod000(log_dir)) as fault:
            await_led_by_others(cluster, crowd, victim)
            case.measure("until others lead, s", time.monotonic() - began)
            write_to_each(crowd)
            case.measure("until all take records, s", time.monotonic() - began)
            case.measure("CPU of controllers meanwhile, s", cpu_s(cluster.quorum_nodes) - controllers_s)
            brokers_s = cpu_s(broker.node for broker in cluster.brokers) - brokers_s
            case.measure("CPU of brokers meanwhile, s", brokers_s)
            check_noticed(fault)
            pair.await_progress(after=now())
        victim.kill()
        began = time.monotonic()
        victim.start()
        cluster.await_healthy(failure=PromiseBroken)
        case.measure("from a start after a kill until in sync, s", time.monotonic() - began)
        pair.await_progress(after=now())
    check_delivery(workload)


def create_in(cluster: Cluster, log_dir: LogDir, partitions: int) -> list[Topic]:
    """Create topics with so many partitions in all, which the log dir's broker leads with replicas in this log dir.

    The log dir is requested for each replica before it exists (KIP-113). The answer to that is an error, as promised.

    :raises PromiseBroken: the broker created some of these replicas in another log dir
    """
    leader, followers = log_dir.broker, [broker.id for broker in cluster.others(log_dir.broker)]
    topics = []
    for number, first in enumerate(range(0, partitions, AT_ONCE)):
        name, indexes = f"crowd-{number}", range(min(AT_ONCE, partitions - first))
        leader.admin.alter_replica_log_dirs({(name, index): str(log_dir.path) for index in indexes})
        assignment = {index: (leader.id, *(followers if index % 2 else followers[::-1])) for index in indexes}
        topics += cluster.create_topics(NewTopic(name=name, assignment=assignment))
    names = {topic.name for topic in topics}
    placed = {replica: place for replica, (place, _) in leader.find_replicas().items() if replica[0] in names}
    if len(placed) != partitions or {*placed.values()} != {log_dir}:
        raise PromiseBroken(f"{partitions} replicas were requested in {log_dir}, and are in {Counter(placed.values())}")
    return topics


def write_to_each(topics: Sequence[Topic]) -> None:
    """Write a record to each partition with acks=all, in one request to each leader.

    librdkafka sends a request for each partition, and a broker serves these one by one, with a wait for each.

    :raises PromiseBroken: a leader refuses a record, or does not answer in time
    """
    for topic in topics:
        await_until(
            functools.partial(write_once, topic),
            timeout_s=timeouts.PROGRESS_S,
            what=f"the leaders to take a record for each of the {len(topic)} partitions of {topic}",
            retry_on=(NoAnswer, Refused),
            watch=topic.cluster.check_nodes,
            failure=PromiseBroken,
        )


def write_once(topic: Topic) -> bool:
    """Write a record to each partition; returns whether the leader of each took it.

    :raises Refused: a leader refuses a record
    :raises NoAnswer: a leader does not answer
    """
    led = defaultdict[int, dict[int, bytes]](dict)
    for state in topic.cluster.live_brokers()[0].admin.describe_cluster(topics=[topic.name]).partitions:
        if state.leader is not None:
            led[state.leader][state.partition] = b"untracked"
    for leader, values in led.items():
        topic.cluster.broker(leader).admin.produce_together(topic.name, values, acks=-1, timeout_s=timeouts.PROGRESS_S)
    return sum(map(len, led.values())) == len(topic)


def await_led_by_others(cluster: Cluster, topics: Sequence[Topic], victim: Broker) -> None:
    """Wait until each broker shows each partition offline on this broker, out of its ISR, and led by another one.

    :raises PromiseBroken: it does not happen in time
    """
    names, partitions = [topic.name for topic in topics], sum(map(len, topics))

    def not_yet(broker: Broker) -> list[str]:
        seen = broker.admin.describe_cluster(topics=names).partitions
        wrong = [str(each) for each in seen if each.leader in (None, victim.id) or victim.id in each.isr]
        wrong += [str(each) for each in seen if each.offline_replicas != (victim.id,)]
        return wrong if len(seen) == partitions else [f"{broker} sees {len(seen)} of {partitions} partitions"]

    def seen() -> list[str]:
        wrong = [each for broker in cluster.brokers for each in not_yet(broker)]
        return [*wrong[:SHOWN], f"{len(wrong)} in all"] if wrong else []

    await_until(
        seen,
        lambda wrong: not wrong,
        timeout_s=timeouts.LOG_DIR_FAILURE_S,
        what=f"the leaders of {partitions} partitions to move off {victim}",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
