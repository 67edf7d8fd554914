"""Shows what a change of ``min.insync.replicas`` does to eligible leader replicas (KIP-966).

A replica is eligible because no record was acked without it. With another value that may not hold any more. So Kafka
clears the eligible leader replicas: those of the topic, or all of them if the cluster's value changes. This is in
"Eligible Leader Replicas, Tool" of Kafka's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import ElectionType

from faults.base import injected
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.waiting import await_until
from suites.checks import check_noticed, check_refused, promised
from suites.deviations import CLEARED_ELR_STOPS_REGISTRATION, MIN_ISR_CHANGE_ENDS_ELECTIONS
from suites.eligible_replicas import (
    BEFORE,
    TWO_IN_SYNC,
    await_isr,
    check_complete_again,
    check_does_not_lead,
    check_eligible,
    check_leads,
    created_with_records,
)
from suites.leadership import ELECTS_ELIGIBLE, await_online, election_error
from suites.observing import observe
from suites.scenario import scenario
from suites.steps import write_untracked_records

MIN_ISR = "min.insync.replicas"
STILL_A_MEMBER = r"Topic ID \S+ existed in isrMembers, but not in the topics map"
"""The controller's log line as it meets a topic that is deleted, but not for the eligible replicas of a broker."""
PLAN = "2. A log directory stops working on a broker during runtime: and min.insync.replicas changes (KIP-966)"


@scenario(
    "elr/min-isr-changed",
    kip=112,
    plan=PLAN,
    modes=(Mode.KRAFT,),
    builds=ELECTS_ELIGIBLE,
    judged=False,
    deviations=(CLEARED_ELR_STOPS_REGISTRATION,),
)
def test_min_isr_changed(cluster: Cluster) -> None:
    """After a change of ``min.insync.replicas`` no replica is eligible: one that was eligible before cannot lead.

    First the cluster's value falls, and then the topic's own value rises. The cluster's value cannot be removed, and no
    broker can have a value of its own.
    """
    events = created_with_records(cluster)
    last, (first, second) = leader_of(events), events.followers()
    placed = [last.id, first.id, second.id]
    with two_in_sync_by_default(last):
        [by_default] = cluster.create_topics(NewTopic(name="by-default", assignment={0: placed}))
        check_changes_refused(last)
        first.stop()
        stop_as_eligible(second, last, events, by_default[0])
    for log in (events, by_default[0]):
        check_eligible(log, leader=last, isr=(last,), eligible=(), via=last)
    second.start()
    stop_as_eligible(second, last, events)
    cluster.topics[events.topic].configure({MIN_ISR: "3"})
    check_eligible(events, leader=last, isr=(last,), eligible=(), via=last)
    with injected(fault := Chmod000(events.log_dir_on(last))):
        check_noticed(fault)
        check_eligible(events, leader=None, isr=(), eligible=(last,), via=last)
        second.start()
        check_does_not_lead(events, second)
    last.restart()
    check_leads(events, last)
    cluster.topics[events.topic].configure(TWO_IN_SYNC)
    await_isr(events, last, second)
    write_untracked_records(cluster.topics[events.topic], BEFORE)
    check_complete_again(events, first)
    cluster.delete_topics(cluster.topics[events.topic], by_default)
    check_registers_again(cluster, second, witness=last)


@scenario(
    "elr/min-isr-changed-without-leader",
    kip=112,
    plan=PLAN,
    modes=(Mode.KRAFT,),
    builds=ELECTS_ELIGIBLE,
    judged=False,
    deviations=(MIN_ISR_CHANGE_ENDS_ELECTIONS,),
)
def test_min_isr_changed_without_leader(cluster: Cluster) -> None:
    """``min.insync.replicas`` changes while a partition has no leader: the last one leads when its log dir is back."""
    events = created_with_records(cluster)
    topic, last = cluster.topics[events.topic], leader_of(events)
    first, second = events.followers()
    first.stop()
    stop_as_eligible(second, last, events)
    with injected(fault := Chmod000(events.log_dir_on(last))):
        check_noticed(fault)
        check_eligible(events, leader=None, isr=(), eligible=(last, second), via=last)
        topic.configure({MIN_ISR: "1"})
        check_eligible(events, leader=None, isr=(), eligible=(), via=last)
    last.restart()
    first.start()
    second.start()
    for broker in cluster.brokers:
        await_online(events, broker)
    with promised(
        cluster, unless=MIN_ISR_CHANGE_ENDS_ELECTIONS, seen=r"events-0 leader none .* isr \[\] offline \[\]"
    ) as outcome:
        check_leads(events, last)
    if outcome.deviates and (error := election_error(events, ElectionType.UNCLEAN)) is not None:
        raise PromiseBroken(f"an unclean election of {events} was requested, and the answer is {error}")
    topic.configure(TWO_IN_SYNC)
    cluster.await_healthy(failure=PromiseBroken)
    write_untracked_records(topic, BEFORE)
    check_complete_again(events)


def check_registers_again(cluster: Cluster, broker: Broker, *, witness: Broker) -> None:
    """A killed broker is active again after its start. It was eligible for partitions that are deleted since."""
    controller = cluster.active_controller()
    broker.kill()
    await_fenced(broker, witness)
    broker.start()
    await_until(
        lambda: controller.log.first(STILL_A_MEMBER) or broker.id in witness.describe_cluster().brokers,
        timeout_s=timeouts.RECOVERY_S,
        what=f"{broker} to be active",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    line = controller.log.first(STILL_A_MEMBER)
    seen = line.text[:300] if line else f"{broker} is active"
    observe(CLEARED_ELR_STOPS_REGISTRATION, cluster, deviates=line is not None, seen=seen)
    if line is not None:
        broker.kill()  # the controller would fail at each of its requests


def await_fenced(broker: Broker, witness: Broker) -> None:
    """Wait until another broker does not show this one as active any more."""
    await_until(
        lambda: broker.id not in witness.describe_cluster().brokers,
        timeout_s=timeouts.BROKER_FAILURE_S,
        what=f"{broker} to be fenced",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


@contextmanager
def two_in_sync_by_default(broker: Broker) -> Iterator[None]:
    """Inside the block, the cluster has ``min.insync.replicas=2`` for topics without a value; afterwards 1."""
    broker.admin.set_broker_configs(None, {MIN_ISR: "2"})
    yield
    broker.admin.set_broker_configs(None, {MIN_ISR: "1"})


def stop_as_eligible(broker: Broker, last: Broker, *logs: Partition) -> None:
    """Stop the broker, which is in sync with the last leader only: it is then eligible for these partitions."""
    for log in logs:
        await_isr(log, last, broker)
    broker.stop()
    for log in logs:
        check_eligible(log, leader=last, isr=(last,), eligible=(broker,), via=last)


def check_changes_refused(broker: Broker) -> None:
    """Kafka refuses to remove the cluster's ``min.insync.replicas``, and to set it for one broker."""
    check_refused(lambda: broker.admin.set_broker_configs(None, {MIN_ISR: None}), "INVALID_CONFIG", "")
    check_refused(lambda: broker.admin.set_broker_configs(broker.id, {MIN_ISR: "2"}), "INVALID_CONFIG", "")
