"""Shows KIP-112's behaviours beyond its test plan: "our solution works under eight different scenarios".

Each scenario names one of the eight as its plan item. ``test_plan.py`` has the KIP's test plan itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from faults.base import injected
from faults.log_dir import Chmod000, LogDirFault
from faults.quorum import ControllerKilled
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken, ToolFailed
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.tool_answers import describe_topics, elect_preferred_leader
from harness.kafka.versions import Mode, VersionRange
from harness.measure.fault_costs import TOLD_OF_LOG_DIR
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import (
    check_delivery,
    check_ends,
    check_promised_or_known,
    check_refused,
)
from suites.deviations import (
    DELETED_CONFIGS_BACK,
    OFFLINE_LOG_DIRS_ELSEWHERE,
    OFFLINE_REPLICAS_NOT_PRINTED,
    OFFLINE_REPLICAS_UNCOUNTED,
    STORAGE_ERROR_TO_CLIENTS,
    STRAY_KEPT,
)
from suites.leadership import check_election_refused
from suites.observations import metadata_log, offline_replicas
from suites.on_disk import check_logs_unchanged, check_no_replica_twice, check_topic_gone, leaders_logs
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import (
    ALL_DIRS_FAILED,
    await_checkpoints,
    check_nothing_acked,
    check_some_leaderless,
    log_dirs_failed,
    notifications,
    one_partition_per_log_dir,
    restart_after_healing,
    start_after_healing,
    write_untracked_records,
)

OFFLINE_LOG_DIRS = "type=LogManager,name=OfflineLogDirectoryCount"
CONFIGURED = {"retention.ms": "3600000"}
DESCRIBES_PRODUCERS = VersionRange.parse(">=2.8")  # KIP-664
CLIENT_DEFAULTS = {"request.timeout.ms": 30000, "socket.timeout.ms": 60000}
METADATA_FAILED = r"Shutdown broker because the metadata log dir {path} has failed"


@scenario("kip-112/topic-creation", kip=112, plan="1. Topic gets created")
def test_topic_creation(cluster: Cluster, workload: CaseWorkload) -> None:
    """New replicas are spread over all log dirs of a broker; after one log dir fails, they are created on good ones."""
    orders = cluster.create_topic("orders", partitions=4, replicas=3)
    state = StateCheck(cluster, orders)
    check_spread(orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, log_dirs_failed(state, Chmod000(log_dir), ahead=orders):
        pair.await_progress(after=now())
        pair.stop()
        refunds = cluster.create_topic("refunds", partitions=4, replicas=3, failure=PromiseBroken)
        state.add_topic(refunds)
        state.check(also=[metadata_log])
        with workload.running(refunds) as pair:
            pair.await_progress(after=now())
    restart_after_healing(state, victim)
    check_delivery(workload)


def check_spread(topic: Topic) -> None:
    """The numbers of the topic's replicas in a broker's log dirs differ by at most one."""
    for broker in topic.cluster.brokers:
        counts = [sum(d.replica_dir(topic.name, p.index).is_dir() for p in topic.partitions) for d in broker.log_dirs]
        if max(counts) - min(counts) > 1:
            raise PromiseBroken(f"{broker} has {counts} replicas of {topic} in its log dirs")


@scenario("kip-112/two-brokers", kip=112, plan="2. A log directory stops working on a broker during runtime")
def test_two_brokers(cluster: Cluster, workload: CaseWorkload) -> None:
    """Log dirs fail on two of three brokers at once, twice: the third broker leads alone, with every acked record."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victims = [leader_of(orders[0]), follower_of(orders[0])]
    with workload.running(orders) as pair:
        for _ in range(2):
            log_dirs = [orders[0].log_dir_on(victim) for victim in victims]
            with log_dirs_failed(state, *map(Chmod000, log_dirs), ahead=orders):
                pair.await_progress(after=now())
            for victim in victims:
                restart_after_healing(state, victim)
            pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/one-dir-left",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: two of three, one after the other",
    log_dirs=3,
    floors=Floors(faults=2),
)
def test_one_dir_left(cluster: Cluster, workload: CaseWorkload) -> None:
    """Two of a broker's three log dirs fail, one after the other: the third serves on, and gets the new replicas."""
    orders = cluster.create_topic("orders", partitions=3)
    check_spread(orders)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    first, second = (orders[index].log_dir_on(victim) for index in (0, 1))
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Chmod000(first), ahead=orders):
            pair.await_progress(after=now())
            with log_dirs_failed(state, Chmod000(second), ahead=orders):
                pair.await_progress(after=now())
                state.add_topic(cluster.create_topic("refunds", partitions=3, failure=PromiseBroken))
                state.check(also=[metadata_log])
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/too-few-in-sync",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: on two followers, so that too few are in sync",
    brokers=4,
    floors=Floors(faults=2, during=0),  # under the second nothing may be acked; await_progress checks the rest
)
def test_too_few_in_sync(cluster: Cluster, workload: CaseWorkload) -> None:
    """Log dirs of two of four replicas fail in turn, with min.insync.replicas=3: nothing is acked while two are left.

    Before and after that, one more follower is in sync, and clients get through. Meanwhile the leader refuses records,
    and the client sends them again. No record may be lost or duplicated.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=4, configs={"min.insync.replicas": "3"})
    state = StateCheck(cluster, orders)
    leader = leader_of(orders[0])
    first, second, _ = orders[0].followers()
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(first))):
            pair.await_progress(after=now())
            with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(second))):
                check_nothing_acked(pair, orders, leader, since=now())
            restart_after_healing(state, second)
            pair.await_progress(after=now())
        restart_after_healing(state, first)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("kip-112/all-log-dirs", kip=112, plan="2. … If there is no good log directory the broker will exit")
def test_all_log_dirs(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker's second log dir fails after its first: it exits with 1 and logs why; the others serve on."""
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    first, second = orders[0].log_dir_on(victim), orders[1].log_dir_on(victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Chmod000(first)), injected(Chmod000(second)):
            check_ends(victim, exit_code=1, saying=ALL_DIRS_FAILED)
            state.broker_gone(victim)
            state.check()
            pair.await_progress(after=now())
        start_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/metadata-log-dir",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime (KRaft: the one with the metadata)",
    modes=(Mode.KRAFT,),
    metadata_apart=False,
)
def test_metadata_log_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """The log dir that also has KRaft's metadata log fails: the broker exits with 1, logs why; the others serve on."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        shared = victim.log_dirs[0]
        with injected(Chmod000(shared)):
            check_ends(victim, exit_code=1, saying=METADATA_FAILED.format(path=re.escape(str(shared.path))))
            state.broker_gone(victim)
            state.check()
            pair.await_progress(after=now())
        start_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/metadata-log-dir-apart",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime (KRaft: metadata.log.dir, of its own)",
    modes=(Mode.KRAFT,),
    floors=Floors(
        faults=2, during=0
    ),  # the controller is back at once; await_progress checks the load before and after
)
def test_metadata_log_dir_apart(cluster: Cluster, workload: CaseWorkload) -> None:
    """A separate KRaft metadata log dir fails: the broker ends at its next write there; the others serve on.

    That write comes with a new controller. Until then the open files work, and nothing else uses the dir.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    [apart] = cluster.quorum.broker_dirs(victim.id)
    with workload.running(orders) as pair:
        with injected(Chmod000(LogDir(victim, apart))):
            pair.await_progress(after=now())
            with injected(ControllerKilled(cluster, victim)):
                pass
            await_until(
                cluster.active_controller,
                timeout_s=timeouts.BOOT_S,
                what="another controller",
                retry_on=(NoAnswer,),
                failure=OwnPart(cluster, "elect another controller").undone,
            )
            check_ends(victim, exit_code=1, saying=fatal_fault_in(apart))
            state.broker_gone(victim)
            state.check(timeouts.RECOVERY_S)
            pair.await_progress(after=now())
        start_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


def fatal_fault_in(metadata_log_dir: Path) -> str:
    """A pattern of the fatal fault of a broker that cannot write a file in its metadata log dir.

    The stack trace names the file: "Error while writing the Quorum status from the file …/quorum-state" or "Error while
    deleting file …/quorum-state.tmp" (``FileQuorumStateStore``). The fault itself is "Unexpected error in raft IO
    thread", whatever caused it.
    """
    return rf"(?s)Encountered fatal fault: .*{re.escape(str(metadata_log_dir))}/"


@scenario(
    "kip-112/default-client",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: what clients with default settings go without",
)
def test_default_client(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader's log dir fails under a producer with default time-outs: nothing is lost, and the gap is measured.

    A request that waits for followers when the log dir fails is answered only after request.timeout.ms. A producer with
    one request in flight gets no ack until then. The KIP promises no time, so the time is measured ("no ack").
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders, producer_config=CLIENT_DEFAULTS) as pair:
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim))):
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/what-users-see",
    kip=112,
    plan="5. User queries replicas state",
    deviations=(
        OFFLINE_REPLICAS_UNCOUNTED,
        OFFLINE_REPLICAS_NOT_PRINTED,
        OFFLINE_LOG_DIRS_ELSEWHERE,
        STORAGE_ERROR_TO_CLIENTS,
    ),
)
def test_what_users_see(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader's log dir fails: brokers, Kafka's tools, MBeans, ZooKeeper or KRaft's metadata log all show it.

    Some partitions have one replica. Those in the log dir have no leader until the disk is back. Then they have all
    records.
    """
    lone = cluster.create_topic("lone", partitions=12, replicas=1)
    write_untracked_records(lone, 20 * len(lone))
    check_serves_clients(lone[0])
    logs = leaders_logs(lone.partitions)
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, lone, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with notifications(cluster, victim), log_dirs_failed(state, Chmod000(log_dir)) as fault:
            check_some_leaderless(state, lone)
            check_not_elected(state, lone)
            state.check(also=[metadata_log])
            check_topics_tool_shows_offline(cluster, orders, offline=victim)
            check_error_to_clients(victim, orders[0])
            check_mbean_domain(cluster, victim)
            check_offline_replicas_counted(state, victim)
            if cluster.spec.mode is Mode.KRAFT:
                check_recorded_once(cluster, fault)
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        state.check(also=[metadata_log])
        check_logs_unchanged(logs)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_not_elected(state: StateCheck, lone: Topic) -> None:
    """An operator who asks for the election of a preferred leader is refused where its only replica is offline.

    kafka-leader-election ends with an error, too.
    """
    offline = [each for each in lone.partitions if state.expected(lone.name, each.index).leader is None]
    for partition in offline:
        check_election_refused(partition, "PREFERRED_LEADER_NOT_AVAILABLE")
    cluster = state.cluster
    try:
        printed = elect_preferred_leader(cluster.distribution, cluster.bootstrap, lone.name, offline[0].index)
    except ToolFailed as failed:
        if "PreferredLeaderNotAvailable" not in str(failed):
            raise
    else:
        raise PromiseBroken(f"kafka-leader-election ended without an error for {offline[0]}, and printed {printed}")


def check_topics_tool_shows_offline(cluster: Cluster, topic: Topic, *, offline: Broker) -> None:
    """kafka-topics shows the offline replicas of a partition, whichever broker it asks."""
    shown = [describe_topics(cluster.distribution, each.bootstrap)[topic.name, 0].offline for each in cluster.brokers]
    promised, known = [(offline.id,) for _ in shown], [None for _ in shown]
    check_promised_or_known(OFFLINE_REPLICAS_NOT_PRINTED, cluster, shown, promised=promised, known=known)


def check_mbean_domain(cluster: Cluster, broker: Broker) -> None:
    """The MBean OfflineLogDirectoryCount is in the KIP's JMX domain."""
    assert broker.mbeans is not None
    domains = [each for each in ("kafka.server", "kafka.log") if broker.mbeans.has(f"{each}:{OFFLINE_LOG_DIRS}")]
    check_promised_or_known(
        OFFLINE_LOG_DIRS_ELSEWHERE, cluster, domains, promised=["kafka.server"], known=["kafka.log"]
    )


def check_offline_replicas_counted(state: StateCheck, broker: Broker) -> None:
    """The MBean OfflineReplicaCount is the number of the broker's replicas on failed log dirs."""
    assert broker.mbeans is not None
    seen = broker.mbeans.describe_broker().offline_replicas
    should = offline_replicas(state, broker, state.cluster.describe())
    check_promised_or_known(OFFLINE_REPLICAS_UNCOUNTED, state.cluster, seen, promised=should, known=0)


def check_recorded_once(cluster: Cluster, fault: LogDirFault) -> None:
    """KRaft's controller records a failed log dir once, though its broker names it in each heartbeat."""
    await_checkpoints(other_dir(fault.log_dir), 4)  # 2 s: four heartbeats
    told = TOLD_OF_LOG_DIR.format(broker=fault.broker.id)
    lines = [line.text[:300] for line in cluster.active_controller().log.matching(told, since=fault.injected_at)]
    if len(lines) != 1:
        raise PromiseBroken(f"the controller recorded the failed {fault.log_dir} {len(lines)} times: {lines[:3]}")


def check_serves_clients(partition: Partition) -> None:
    """The leader of a partition answers a client's requests of each kind without an error."""
    leader = partition.leader()
    answers = answers_to_clients(leader, partition)
    if any(answers.values()):
        raise PromiseBroken(f"{leader}, which leads {partition}, answered a client with {answers}")


def check_error_to_clients(broker: Broker, partition: Partition) -> None:
    """A client that sends a broker a request about its offline replica gets the KIP's error, whatever the request."""
    answers = answers_to_clients(broker, partition)
    promised, known = "UNKNOWN_TOPIC_OR_PARTITION", "KAFKA_STORAGE_ERROR"
    check_promised_or_known(
        STORAGE_ERROR_TO_CLIENTS,
        partition.cluster,
        answers,
        promised=dict.fromkeys(answers, promised),
        known=dict.fromkeys(answers, known),
    )


def answers_to_clients(broker: Broker, partition: Partition) -> dict[str, str | None]:
    """A broker's errors, by the kind of request, to a client that takes it for the partition's leader.

    None stands for an answer without an error. The record of a Produce request is then in the log.
    """
    key = (partition.topic, partition.index)
    asks: dict[str, Callable[[], object]] = {
        "ListOffsets": lambda: broker.admin.end_offset(*key),
        "Produce": lambda: broker.admin.produce(*key, b"untracked"),
        "Fetch": lambda: broker.admin.fetch(*key, 0),
        "OffsetForLeaderEpoch": lambda: broker.admin.end_of_epoch(*key, 0),
        "DeleteRecords": lambda: broker.admin.delete_records(*key, 0),
    }
    if partition.cluster.distribution.version in DESCRIBES_PRODUCERS:
        asks["DescribeProducers"] = lambda: broker.admin.describe_producers(*key)
    answers: dict[str, str | None] = {}
    for name, ask in asks.items():
        try:
            ask()
            answers[name] = None
        except Refused as refusal:
            answers[name] = refusal.error
    return answers


def folders_set_aside(log_dir: LogDir, topic: Topic) -> list[str]:
    """The suffixes of a topic's renamed folders in a log dir, such as "stray" or "delete"."""
    return [path.name.rpartition("-")[2] for path in log_dir.path.glob(f"{topic.name}-*.*-*")]


@scenario("kip-112/topic-deletion", kip=112, plan="8. Topic deletion", deviations=(STRAY_KEPT, DELETED_CONFIGS_BACK))
def test_topic_deletion(cluster: Cluster, workload: CaseWorkload) -> None:
    """A topic with an offline replica is deleted and created again: the disk comes back, and the old data does not.

    The topic's other partition is in the good log dir of the same broker, which deletes that replica at once. In KRaft
    the name can be used again at once. ZooKeeper mode ends the deletion when the replica is back ("we handle it in the
    same way as if its broker is offline"). The new topic has none of the old one's configs, also on the broker that
    started after the deletion.
    """
    refunds = one_partition_per_log_dir(cluster, "refunds")
    refunds.configure(CONFIGURED)
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    write_untracked_records(refunds, 50)
    state = StateCheck(cluster, orders, refunds)
    victim = leader_of(refunds[0])
    log_dir = refunds[0].log_dir_on(victim)
    old = log_dir.replica_dir("refunds", 0)
    at_once = cluster.spec.mode is Mode.KRAFT
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Chmod000(log_dir)):
            cluster.delete_topics(refunds)
            state.remove_topic(refunds)
            if at_once:
                state.add_topic(cluster.create_topic("refunds", partitions=2, replicas=3, failure=PromiseBroken))
            else:
                anew = NewTopic(name="refunds", partitions=2, replicas=3)
                check_refused(lambda: cluster.request_topics(anew), "TOPIC_ALREADY_EXISTS", "")
            state.check(also=[metadata_log])
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        await_until(
            lambda: not old.exists(), timeout_s=timeouts.RECOVERY_S, what=f"{old} to be gone", failure=PromiseBroken
        )
        if at_once:
            check_promised_or_known(
                STRAY_KEPT, cluster, folders_set_aside(log_dir, refunds), promised=[], known=["stray"]
            )
        else:
            check_topic_gone(cluster, "refunds")
        pair.await_progress(after=now())
    again = (
        Topic(cluster, "refunds", 2)
        if at_once
        else cluster.create_topic("refunds", partitions=2, replicas=3, failure=PromiseBroken)
    )
    check_no_configs(again, victim)
    check_no_replica_twice(again)
    with workload.running(again) as pair:
        pair.await_progress(after=now())
    check_delivery(workload)


def check_no_configs(topic: Topic, started: Broker) -> None:
    """No broker has the configs of the deleted topic for the one that was created again.

    :param started: the broker that has read the topic's configs and its deletion together, at its start
    """
    seen = {broker.id: dict(broker.admin.topic_configs(topic.name)) for broker in topic.cluster.brokers}
    promised: dict[int, dict[str, str | None]] = {id: {} for id in seen}
    check_promised_or_known(
        DELETED_CONFIGS_BACK, topic.cluster, seen, promised=promised, known={**promised, started.id: {**CONFIGURED}}
    )
