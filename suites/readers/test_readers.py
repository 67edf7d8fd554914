"""Shows that three kinds of readers get every record through a log-dir failure (KIP-112, item 2 of the test plan).

Spark Structured Streaming (Kafka's Java client) and a consumer group that rebalances read the same records as the live
consumer, at the same time. The judge compares each with the drain. If only one reader misses a record, its client or
the harness lost it. If all miss it, Kafka lost it.
"""

from __future__ import annotations

import functools

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from faults.log_dir import Chmod000, LogDirFault
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from harness.workload.pair import Pair
from harness.workload.readers import Group, Stream
from suites.checks import check_delivery, check_group_commits, check_refused
from suites.deviations import COORDINATOR_STAYS
from suites.group_offsets import MemberlessGroup, log_dir_failed_amid_commits
from suites.moves import finish_move
from suites.on_disk import check_same_bytes
from suites.reassignments import reassign_by_request
from suites.scenario import NO_FAULT, each_fault, scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing

READERS = (Stream(), Group())
SESSION_MS = 6000
"""The least session time-out that brokers allow by default."""


# Fresh: before 4.0, a group coordinator does not load a partition of its log again if the leader epoch became smaller.
# That happens when the topic is deleted and created again (GroupMetadataManager.epochForPartitionId).
reader_scenario = functools.partial(scenario, kip=112, fresh=True)


@reader_scenario("readers/leader-log-dir", plan="2) Log directory failure discovered on leader during runtime")
@each_fault("fail_log_dir", (Chmod000,))
def test_leader_log_dir(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The leader's log dir fails under four consumers of three kinds: all go on, and all get the same records."""
    orders = cluster.create_topic("orders", partitions=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders, readers=READERS) as pair:
        with log_dirs_failed(state, fail_log_dir(log_dir), ahead=orders):
            after = now()
            pair.await_progress(after=after)
            pair.await_readers(after=after)
        restart_after_healing(state, victim)
    check_delivery(workload)
    check_group_commits(cluster.journal)


@reader_scenario(
    "readers/coordinator-log-dir",
    plan="2) Log directory failure discovered on leader during runtime, of the group coordinator's log",
    deviations=(COORDINATOR_STAYS,),
)
@each_fault("fail_log_dir", (Chmod000,))
def test_coordinator_log_dir(cluster: Cluster, workload: CaseWorkload, fail_log_dir: type[LogDirFault]) -> None:
    """The log dir of the group coordinator's log fails on its leader: the group rebalances, and keeps its commits."""
    offsets = cluster.create_topic("__consumer_offsets", configs={"cleanup.policy": "compact"})
    orders = cluster.create_topic("orders", partitions=3)
    state = StateCheck(cluster, offsets, orders)
    victim = leader_of(offsets[0])
    log_dir = offsets[0].log_dir_on(victim)
    if all(log_dir == partition.log_dir_on(victim) for partition in orders.partitions):
        raise Inconclusive(f"{log_dir} has all partitions of {orders} beside the group coordinator's log")
    memberless = MemberlessGroup("memberless", offsets[0], orders[0])
    memberless.commit(1)
    with workload.running(orders, readers=READERS) as pair:
        die_in_group("deserted", orders)
        with log_dir_failed_amid_commits(state, fail_log_dir(log_dir), memberless, offsets) as fault:
            after = now()
            pair.await_progress(after=after)
            pair.await_readers(after=after)
            check_deserted("deserted", cluster)
            try:
                pair.stop()  # a member leaves, and another one starts at its committed offsets
            finally:  # if the commits are lost, the pair fails
                check_group_commits(cluster.journal, since=fault.injected_at, handovers=0)
        restart_after_healing(state, victim)
    memberless.check_kept()
    check_delivery(workload)
    check_same_bytes(*offsets.partitions)
    check_group_commits(cluster.journal, since=fault.injected_at)  # last, so that a broken promise is reported first


@reader_scenario(
    "readers/coordinator-log-moved",
    plan="KIP-113, 2. How to move replica between log directories: the group coordinator's log, then to another broker",
    floors=NO_FAULT,
)
def test_coordinator_log_moved(cluster: Cluster, workload: CaseWorkload) -> None:
    """The group coordinator's log moves to the other log dir, and its leader to another broker: no commit is lost."""
    offsets = cluster.create_topic("__consumer_offsets", replicas=2, configs={"cleanup.policy": "compact"})
    orders = cluster.create_topic("orders", partitions=3)
    state = StateCheck(cluster, offsets, orders)
    log = offsets[0]
    coordinator, [follower] = leader_of(log), log.followers()
    [third] = (broker for broker in cluster.brokers if broker not in (coordinator, follower))
    memberless = MemberlessGroup("memberless", offsets[0], orders[0])
    memberless.commit(1)
    with workload.running(orders, readers=READERS) as pair:
        began = after = now()
        pair.await_readers(after=after)
        there = other_dir(log.log_dir_on(coordinator))
        with memberless.committing():
            log.move_to(there)
            finish_move(state, log, there)
        memberless.check_kept()
        memberless.commit()
        check_stranger_refused(pair, log)
        state.check()
        after = now()
        pair.await_progress(after=after)
        pair.await_readers(after=after)
        with memberless.committing():
            reassign_by_request(state, log, third, follower)
        memberless.check_kept()
        after = now()
        pair.await_progress(after=after)
        pair.await_readers(after=after)
        try:
            pair.stop()  # a member leaves, and another one starts at its committed offsets
        finally:  # if the commits are lost, the pair fails
            check_group_commits(cluster.journal, since=began, handovers=0)
    check_delivery(workload)
    check_same_bytes(*offsets.partitions)
    check_group_commits(cluster.journal, since=began)


def die_in_group(group: str, topic: Topic) -> None:
    """Let the only member of a group end without a word: its coordinator removes it as its session ends.

    It is a static member (KIP-345), since all others leave the group as they close.

    :raises PromiseBroken: it is assigned no partitions in time
    """
    settings = {"group.id": group, "group.instance.id": group, "session.timeout.ms": SESSION_MS, "log_level": 0}
    client = Consumer({**topic.cluster.bootstrap.librdkafka, **settings})

    def assigned_partitions() -> int:
        client.poll(0.1)
        return len(client.assignment())

    try:
        client.subscribe([topic.name])
        await_until(
            assigned_partitions,
            lambda assigned: assigned == len(topic),
            timeout_s=timeouts.PROGRESS_S,
            what=f"the only member of the group {group} to be assigned all partitions of {topic}",
            failure=OwnPart(topic.cluster, "assign partitions", needs_all=False).unserved,
        )
    finally:
        client.close()


def check_deserted(group: str, cluster: Cluster) -> None:
    """The coordinator of a group removes its last member after the member's session, though another one let it in."""
    await_until(
        lambda: members_of(group, cluster),
        lambda members: not members,
        timeout_s=SESSION_MS / 1000 + timeouts.PROGRESS_S,
        what=f"the coordinator of the group {group} to remove its member, which sends no heartbeats",
        retry_on=(KafkaException, TimeoutError),
        failure=PromiseBroken,
    )


def check_stranger_refused(pair: Pair, log: Partition) -> None:
    """The coordinator of a group with members takes no offset from other clients, nor of an earlier generation.

    :param log: the partition of ``__consumer_offsets`` whose leader is the coordinator
    """
    [group] = (reader.name for reader in pair.readers if len(reader.consumers) > 1)
    commit = functools.partial(log.leader().admin.commit_offset, group, pair.topic, 0, 0)
    check_refused(commit, "UNKNOWN_MEMBER_ID", "")
    before_the_first = functools.partial(commit, member=a_member_of(group, log.cluster), generation=0)
    check_refused(before_the_first, "ILLEGAL_GENERATION", "")


def a_member_of(group: str, cluster: Cluster) -> str:
    """Wait until the coordinator names the members of a consumer group; returns the id of the first.

    :raises PromiseBroken: it names none
    """
    return await_until(
        lambda: members_of(group, cluster),
        timeout_s=timeouts.PROGRESS_S,
        what=f"the coordinator of the group {group} to name its members",
        retry_on=(KafkaException, TimeoutError),
        failure=PromiseBroken,
    )[0]


def members_of(group: str, cluster: Cluster) -> list[str]:
    """The ids of the members that a consumer group's coordinator names."""
    client = AdminClient({**cluster.bootstrap.librdkafka, "log_level": 0})
    [described] = client.describe_consumer_groups([group]).values()
    return [member.member_id for member in described.result(timeouts.REQUEST_S).members]
