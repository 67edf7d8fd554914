"""KIP-112's behaviours beyond its test plan: "our solution works under eight different scenarios".

Each scenario here names the one of the eight that it is of. What the test plan itself covers is in ``test_plan.py``.
"""

from __future__ import annotations

from faults.base import injected
from faults.log_dir import Chmod000
from faults.quorum import ControllerKilled
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic, Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.tool_answers import describe_topics
from harness.kafka.versions import Mode
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, check_ends, check_known, check_refused
from suites.deviations import (
    OFFLINE_LOG_DIRS_ELSEWHERE,
    OFFLINE_REPLICAS_NOT_PRINTED,
    OFFLINE_REPLICAS_UNCOUNTED,
    STORAGE_ERROR_TO_CLIENTS,
    STRAY_KEPT,
)
from suites.observations import metadata_log
from suites.on_disk import check_gone, check_kept, check_one_copy, leaders_logs
from suites.scenario import scenario
from suites.state_check import World
from suites.steps import (
    ALL_DIRS_FAILED,
    check_misses_a_leader,
    log_dirs_failed,
    notifications,
    restart_after_healing,
    started_healed,
    write_untracked_records,
)

OFFLINE_LOG_DIRS = "type=LogManager,name=OfflineLogDirectoryCount"
BY_DEFAULT = {"request.timeout.ms": 30000, "socket.timeout.ms": 60000}
METADATA_FAILED = r"Shutdown broker because the metadata log dir .* has failed"


@scenario("kip-112/topic-creation", kip=112, plan="1. Topic gets created")
def test_topic_creation(cluster: Cluster, workload: CaseWorkload) -> None:
    """New replicas are spread over a broker's log dirs while all are good, and lie on good ones when one isn't."""
    orders = cluster.create_topic("orders", partitions=4, replicas=3)
    world = World(cluster, orders)
    check_spread(orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, log_dirs_failed(world, Chmod000(log_dir)):
        pair.await_progress(after=now())
        pair.stop()
        refunds = cluster.create_topic("refunds", partitions=4, replicas=3, failure=PromiseBroken)
        world.learn(refunds)
        world.check(also=[metadata_log])
        with workload.running(refunds) as pair:
            pair.await_progress(after=now())
    restart_after_healing(world, victim)
    check_delivery(workload)


def check_spread(topic: Topic) -> None:
    """No log dir of a broker has more than one replica of the topic more than another (KIP-112, as before it)."""
    for broker in topic.cluster.brokers:
        counts = [sum(d.replica_dir(topic.name, p.index).is_dir() for p in topic.partitions) for d in broker.log_dirs]
        if max(counts) - min(counts) > 1:
            raise PromiseBroken(f"{broker} has {counts} replicas of {topic} in its log dirs, one after the other")


@scenario("kip-112/two-brokers", kip=112, plan="2. A log directory stops working on a broker during runtime")
def test_two_brokers(cluster: Cluster, workload: CaseWorkload) -> None:
    """Log dirs fail on two of three brokers at once, and once more: the third leads alone, with every acked record."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    victims = [leader_of(orders[0]), follower_of(orders[0])]
    with workload.running(orders) as pair:
        for _ in range(2):
            with log_dirs_failed(world, *(Chmod000(orders[0].log_dir_on(victim)) for victim in victims)):
                pair.await_progress(after=now())
            for victim in victims:
                restart_after_healing(world, victim)
            pair.await_progress(after=now())
    check_delivery(workload)


@scenario("kip-112/all-log-dirs", kip=112, plan="2. … If there is no good log directory the broker will exit")
def test_all_log_dirs(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker's second log dir fails after its first: it exits with 1 and says why; the others serve on."""
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    first, second = orders[0].log_dir_on(victim), orders[1].log_dir_on(victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(world, Chmod000(first)), injected(Chmod000(second)):
            check_ends(victim, exit_code=1, saying=ALL_DIRS_FAILED)
            world.broker_gone(victim)
            world.check()
            pair.await_progress(after=now())
        started_healed(world, victim)
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
    """KRaft: the log dir that also holds the metadata fails: the broker exits with 1, says why; the others serve on."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        with injected(Chmod000(victim.log_dirs[0])):
            check_ends(victim, exit_code=1, saying=METADATA_FAILED)
            world.broker_gone(victim)
            world.check()
            pair.await_progress(after=now())
        started_healed(world, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/metadata-log-dir-apart",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime (KRaft: metadata.log.dir, of its own)",
    modes=(Mode.KRAFT,),
    floors=Floors(faults=2, during=0),  # the controller is back at once; that clients go on is seen before and after
)
def test_metadata_log_dir_apart(cluster: Cluster, workload: CaseWorkload) -> None:
    """KRaft: a metadata log dir of its own fails: the broker ends once it has to write there; the others serve on.

    Which is when there is a new controller: nobody else looks at that dir, and files that are open stay so.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    [apart] = cluster.quorum.broker_dirs(victim.id)
    with workload.running(orders) as pair:
        with injected(Chmod000(LogDir(victim, apart))):
            pair.await_progress(after=now())
            with injected(ControllerKilled(cluster, victim)):
                pass
            await_until(
                cluster.active_controller, timeout_s=timeouts.BOOT_S, what="another controller", retry_on=(NoAnswer,)
            )
            check_ends(victim, exit_code=1, saying="Encountered fatal fault")
            world.broker_gone(victim)
            world.check(timeouts.RECOVERY_S)
            pair.await_progress(after=now())
        started_healed(world, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/default-client",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: what clients with default settings go without",
)
def test_default_client(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader's log dir fails under a producer that waits for answers as long as by default; nothing is lost.

    What was waiting for followers then is answered only when the producer has given it up, and who sends one request at
    a time goes without for as long. The KIP promises no time; it is measured (no ack).
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders, producer_config=BY_DEFAULT) as pair:
        with log_dirs_failed(world, Chmod000(orders[0].log_dir_on(victim))):
            pair.await_progress(after=now())
        restart_after_healing(world, victim)
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
    """The leader's log dir fails: brokers, Kafka's programs, MBeans, ZooKeeper or KRaft's metadata log all say so.

    Beside the replicated partition there are some of one replica, of which those in the log dir have no leader until
    the disk is back, and then all their records.
    """
    lone = cluster.create_topic("lone", partitions=12, replicas=1)
    write_untracked_records(lone, 20 * len(lone))
    logs = leaders_logs(lone.partitions)
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, lone, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with notifications(cluster, victim), log_dirs_failed(world, Chmod000(log_dir)):
            check_misses_a_leader(world, lone)
            world.check(also=[metadata_log])
            check_tells_offline(cluster, orders, offline=victim)
            check_tells_clients(victim, orders[0])
            check_counts_where(cluster, victim)
            pair.await_progress(after=now())
        restart_after_healing(world, victim)
        world.check(also=[metadata_log])
        check_kept(logs)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_tells_offline(cluster: Cluster, topic: Topic, *, offline: Broker) -> None:
    """kafka-topics shows the offline replicas of a partition, as the KIP has it."""
    described = describe_topics(cluster.distribution, cluster.bootstrap)[topic.name, 0]
    check_known(OFFLINE_REPLICAS_NOT_PRINTED, cluster, described.offline, promised=(offline.id,), known=None)


def check_counts_where(cluster: Cluster, broker: Broker) -> None:
    """Under which name a broker's MBean has the number of its failed log dirs, of the two that there may be."""
    assert broker.mbeans is not None
    domains = [each for each in ("kafka.server", "kafka.log") if broker.mbeans.has(f"{each}:{OFFLINE_LOG_DIRS}")]
    check_known(OFFLINE_LOG_DIRS_ELSEWHERE, cluster, domains, promised=["kafka.server"], known=["kafka.log"])


def check_tells_clients(broker: Broker, partition: Partition) -> None:
    """A client that asks a broker for its offline replica is told so, and no offset of it."""
    try:
        told = str(broker.admin.end_offset(partition.topic, partition.index))
    except Refused as refusal:
        told = refusal.error
    promised, known = "UNKNOWN_TOPIC_OR_PARTITION", "KAFKA_STORAGE_ERROR"
    check_known(STORAGE_ERROR_TO_CLIENTS, partition.cluster, told, promised=promised, known=known)


def set_aside(log_dir: LogDir, topic: Topic) -> list[str]:
    """What a log dir has of a topic beside its replicas: as what it was set aside, such as "stray" or "delete"."""
    return [path.name.rpartition("-")[2] for path in log_dir.path.glob(f"{topic.name}-*.*-*")]


@scenario("kip-112/topic-deletion", kip=112, plan="8. Topic deletion", deviations=(STRAY_KEPT,))
def test_topic_deletion(cluster: Cluster, workload: CaseWorkload) -> None:
    """A topic with an offline replica is deleted and made again: when the disk comes back, its old data does not.

    KRaft lets its name be used again at once; ZooKeeper mode deletes it for good when the replica is back ("we handle
    it in the same way as if its broker is offline").
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    refunds = cluster.create_topic("refunds", partitions=1, replicas=3)
    write_untracked_records(refunds, 50)
    world = World(cluster, orders, refunds)
    victim = leader_of(refunds[0])
    log_dir = refunds[0].log_dir_on(victim)
    old = log_dir.replica_dir("refunds", 0)
    at_once = cluster.spec.mode is Mode.KRAFT
    with workload.running(orders) as pair:
        with log_dirs_failed(world, Chmod000(log_dir)):
            cluster.delete_topic(refunds)
            world.forget(refunds)
            if at_once:
                world.learn(cluster.create_topic("refunds", partitions=1, replicas=3, failure=PromiseBroken))
            else:
                anew = NewTopic(name="refunds", replicas=3)
                check_refused(lambda: cluster.begin_topics(anew), "TOPIC_ALREADY_EXISTS", "")
            world.check(also=[metadata_log])
            pair.await_progress(after=now())
        restart_after_healing(world, victim)
        await_until(
            lambda: not old.exists(), timeout_s=timeouts.RECOVERY_S, what=f"{old} to be gone", failure=PromiseBroken
        )
        if at_once:
            check_known(STRAY_KEPT, cluster, set_aside(log_dir, refunds), promised=[], known=["stray"])
        else:
            check_gone(cluster, "refunds")
        pair.await_progress(after=now())
    again = (
        Topic(cluster, "refunds", 1)
        if at_once
        else cluster.create_topic("refunds", partitions=1, replicas=3, failure=PromiseBroken)
    )
    check_one_copy(again)
    with workload.running(again) as pair:
        pair.await_progress(after=now())
    check_delivery(workload)
