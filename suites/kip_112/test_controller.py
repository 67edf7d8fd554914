"""Shows KIP-112's scenario 6: log dirs fail on the controller's broker, during a failover, and without a controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from faults.base import Fault, injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000, LogDirFault
from faults.quorum import ControllerKilled, ControllerUnseated
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.broker_log import LogLine
from harness.kafka.connection import NoAnswer
from harness.kafka.tool_answers import dump_snapshot
from harness.kafka.versions import Mode, VersionRange
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import (
    check_delivery,
    check_ends,
    check_logged,
    check_noticed,
    check_notified,
    check_promised_or_known,
    promised,
)
from suites.controllers import check_controller_acts, restarted_from_snapshot, restarted_with_snapshots
from suites.deviations import (
    DELETED_TOPIC_HIDES_FAILURE,
    OFFLINE_REPLICAS_COUNTED_LATE,
    SECOND_FAILURE_RESTARTS_TIMEOUT,
)
from suites.kip_36.layouts import racks_of
from suites.leadership import ELECTS_ELIGIBLE, await_leader, await_state, lead
from suites.moves import SMALL_FETCHES
from suites.observations import metadata_log
from suites.reassignments import await_no_reassignment, check_reassigning, throttle_replication
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import (
    await_checkpoints,
    check_some_leaderless,
    log_dirs_failed,
    notifications,
    one_partition_per_log_dir,
    restart_after_healing,
    write_untracked_records,
)

GIVES_UP_S = 3.0
"""``log.dir.failure.timeout.ms``, 30 s by default."""
GAVE_UP = r"Shutting down because couldn't communicate offline log dir \S+ with controllers"


@scenario(
    "kip-112/controllers-log-dir",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime, which is the controller",
    kraft={"combined": True, "overrides": {"controller.quorum.fetch.timeout.ms": "10000"}},
)
def test_controllers_log_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir of the controller's broker fails: other brokers lead its partitions, and it stays the controller.

    In KRaft all nodes here are combined, since a separate controller has no log dirs. The quorum's fetch time-out is
    long, so that a slow machine causes no election. In kip-112/metadata-log-dir a metadata log dir fails.
    """
    orders = cluster.create_topic("orders", partitions=3, replicas=3)
    state = StateCheck(cluster, orders)
    victim = cluster.controller_broker()
    assert victim is not None
    led = next(partition for partition in orders.partitions if leader_of(partition) == victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Chmod000(led.log_dir_on(victim))):
            pair.await_progress(after=now())
            if (controller := cluster.controller_broker()) != victim:
                raise PromiseBroken(f"{victim} has a good log dir, and {controller} is the controller now")
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("kip-112/controller-failover", kip=112, plan="6. Controller failover", kraft={"controllers": 3})
def test_controller_failover(cluster: Cluster, workload: CaseWorkload) -> None:
    """Another controller takes over while a log dir has failed: it knows the failed one, and handles the next failure.

    In KRaft it knows the failed log dir from the metadata log, and from the broker's next heartbeat
    (``BrokerLifecycleManager`` sends all offline ones each time). The killed controller comes back as a standby. Some
    partitions have one replica: those in the failed log dir have no leader, which the controller's MBean must count.
    In kip-112/no-controller the only controller comes back.
    """
    lone = cluster.create_topic("lone", partitions=12, replicas=1)
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, lone, orders)
    controller = cluster.controller_broker()
    victim = next(broker for broker in cluster.brokers if broker != controller)
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, log_dirs_failed(state, Chmod000(log_dir)):
        check_some_leaderless(state, lone)
        if controller is None:
            with injected(ControllerKilled(cluster, victim)):
                state.check()
                check_controller_acts(state, pair)
                second = leader_of(orders[0])
                with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(second))):
                    pair.await_progress(after=now())
                restart_after_healing(state, second)
            state.check(also=[metadata_log])
            pair.await_progress(after=now())
        else:
            with injected(BrokerKilled(controller)):
                state.broker_gone(controller)
                state.check()
                pair.await_progress(after=now())
            state.broker_back(controller)
            state.check()
            check_controller_acts(state, pair)
            second = next(broker for broker in cluster.others(victim) if broker != cluster.controller_broker())
            with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(second))):
                pair.await_progress(after=now())
            restart_after_healing(state, second)
    restart_after_healing(state, victim)
    check_delivery(workload)


@scenario(
    "kip-112/no-controller",
    kip=112,
    plan="6. Controller failover: a log dir fails while there is none",
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE,),
)
def test_no_controller(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader's log dir fails while there is no controller: once there is one, another broker becomes the leader.

    In ZooKeeper mode the broker's notification waits for the controller. In KRaft the only controller comes back from
    its metadata log. Another broker has started with a failed log dir, which the next controller knows, too.
    """
    lone = cluster.create_topic("lone", partitions=12, replicas=1)
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, lone, orders)
    first, victim = follower_of(orders[0]), leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with (
        workload.running(orders) as pair,
        log_dirs_failed(state, Chmod000(orders[0].log_dir_on(first))),
        ExitStack() as stack,
    ):
        first.restart()
        state.broker_gone(first)
        state.broker_back(first)
        state.check(timeouts.RECOVERY_S)
        with notifications(cluster, victim) as events, injected(no_controller(cluster)) as none:
            check_noticed(none)
            pair.await_progress(after=now())
            fault = stack.enter_context(injected(Chmod000(log_dir)))
            check_noticed(fault)
            if events is not None:
                check_notified(events, victim, left=1)
            if (leader := leader_of(orders[0])) != victim:
                raise Inconclusive(f"{leader} leads {orders[0]} instead of {victim}: there was a controller")
        state.log_dir_failed(log_dir)
        state.check()
        check_controller_acts(state, pair)
    for broker in (first, victim):
        restart_after_healing(state, broker)
    check_delivery(workload)


@scenario(
    "kip-112/two-dirs-without-controller",
    kip=112,
    plan="6. Controller failover: two log dirs of a broker fail while there is none",
    log_dirs=3,
    floors=Floors(faults=2),
)
def test_two_dirs_without_controller(cluster: Cluster, workload: CaseWorkload) -> None:
    """Two of a broker's log dirs fail while there is no controller: the next one elects leaders for both.

    In KRaft the broker's next heartbeat names both. In ZooKeeper mode there is a notification for each.
    """
    victim, *others = cluster.brokers
    assignment = [broker.id for broker in (victim, *others)]
    [orders] = cluster.create_topics(NewTopic(name="orders", assignment=dict.fromkeys(range(3), assignment)))
    state = StateCheck(cluster, orders)
    log_dirs = dict.fromkeys(partition.log_dir_on(victim) for partition in orders.partitions)
    if len(log_dirs) < len(orders):
        raise Inconclusive(f"{victim} has the partitions of {orders} in {len(log_dirs)} log dirs: {list(log_dirs)}")
    failing = list(log_dirs)[:2]
    with workload.running(orders) as pair:
        with ExitStack() as failed:
            with injected(no_controller(cluster)) as none:
                check_noticed(none)
                pair.await_progress(after=now())
                for fault in map(Chmod000, failing):
                    check_noticed(failed.enter_context(injected(fault)))
            for log_dir in failing:
                state.log_dir_failed(log_dir)
            state.check()
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/controller-from-snapshot",
    kip=112,
    plan="6. Controller failover: the next one knows the replicas' log dirs from a snapshot of the metadata log",
    modes=(Mode.KRAFT,),
    racks=("rack1", "rack2", "rack3"),
)
def test_controller_from_snapshot(cluster: Cluster, workload: CaseWorkload) -> None:
    """The controller restarts from a snapshot, and then the leader's log dir fails: another broker leads.

    The snapshot has the brokers' racks, too.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        snapshot = restarted_with_snapshots(cluster)
        check_racks_in_snapshot(cluster, snapshot)
        restarted_from_snapshot(cluster, snapshot)
        state.check()
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim))):
            pair.await_progress(after=now())
        restart_after_healing(state, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_racks_in_snapshot(cluster: Cluster, snapshot: Path) -> None:
    """The snapshot has each broker with its rack (KIP-36)."""
    should = racks_of(cluster.brokers)
    if (racks := dump_snapshot(cluster.distribution, snapshot).racks) != should:
        raise PromiseBroken(f"the snapshot {snapshot.name} has the racks {racks} instead of {should}")


@scenario(
    "kip-112/reassignment-in-snapshot",
    kip=112,
    plan="6. Controller failover: the next one knows a reassignment from a snapshot of the metadata log",
    modes=(Mode.KRAFT,),
    judged=False,
    floors=NO_FAULT,
    brokers=4,
    overrides=SMALL_FETCHES,
)
def test_reassignment_in_snapshot(cluster: Cluster) -> None:
    """The controller restarts from a snapshot during a reassignment: it is still under way, and can be cancelled."""
    orders = cluster.create_topic("orders", replicas=2)
    write_untracked_records(orders, 800, size=1000)
    throttle_replication(orders, rate=1)
    replicas = orders[0].describe().replicas
    cluster.reassign(orders[0], cluster.others(*map(cluster.broker, replicas)))
    check_reassigning(cluster, orders[0])
    before = cluster.reassignments()
    restarted_from_snapshot(cluster, restarted_with_snapshots(cluster))
    if (after := cluster.reassignments()) != before:
        raise PromiseBroken(f"the controller knew the reassignments {before}, and knows {after} from a snapshot")
    cluster.cancel_reassignment(orders[0])
    await_no_reassignment(cluster)
    await_state(
        orders[0],
        lambda seen: {*seen.replicas} == {*replicas},
        f"{orders[0]} to be on the brokers {replicas} again, since its reassignment was cancelled",
        timeouts.LOG_DIR_FAILURE_S,
    )


def no_controller(cluster: Cluster) -> Fault:
    """A fault that leaves the cluster without a controller, and all brokers running."""
    if isinstance(cluster.quorum, ZooKeeperQuorum):
        controller = cluster.controller_broker()
        assert controller is not None
        return ControllerUnseated(controller, cluster.quorum.controller_znode())
    return ControllerKilled(cluster, cluster.brokers[0])


@scenario(
    "kip-112/controller-requests",
    kip=112,
    plan="Protocol: isNewReplica in LeaderAndIsrRequest, offline_replicas in UpdateMetadataRequest",
    modes=(Mode.ZK,),
    builds=VersionRange.parse(">=2.4.0"),  # older builds cannot change a logger's level at run time (KIP-412)
    judged=False,
)
def test_controller_requests(cluster: Cluster) -> None:
    """LeaderAndIsr marks only new replicas as new, and UpdateMetadata names offline replicas to all brokers.

    At TRACE, brokers log each partition of these two requests, with all fields. KRaft has no such requests. A broker
    has the logger only after its first such request, so the scenario creates another topic before.
    """
    cluster.create_topic("before", partitions=2)
    with controllers_requests_logged(cluster):
        created_at = now()
        orders = one_partition_per_log_dir(cluster)
        for broker in cluster.brokers:
            check_logged(broker, LEADER_AND_ISR.format(partition=described(orders[0]), is_new="true"), created_at)
        state = StateCheck(cluster, orders)
        victim = leader_of(orders[0])
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(victim))) as fault:
            since = fault.injected_at
            check_logged(victim, LEADER_AND_ISR.format(partition=described(orders[0]), is_new="false"), since)
            check_none_logged(cluster, LEADER_AND_ISR.format(partition=described(orders[0]), is_new="true"), since)
            for broker in cluster.brokers:
                offline = UPDATE_METADATA.format(partition=described(orders[0]), offline=victim.id)
                check_logged(broker, offline, since)
            check_none_logged(cluster, UPDATE_METADATA.format(partition=described(orders[1]), offline=victim.id), since)
    restart_after_healing(state, victim)


STATE_CHANGES = "state.change.logger"
LEADER_AND_ISR = r"Received LeaderAndIsr request \S*PartitionState\({partition}, .*isNew={is_new}\b"
UPDATE_METADATA = r"Cached leader info \S*PartitionState\({partition}, .*offlineReplicas=\[{offline}\]"
"""The log lines of a broker that gets a partition in one of these two requests."""


def described(partition: Partition) -> str:
    """The partition, as it begins in these log lines."""
    return f"topicName='{partition.topic}', partitionIndex={partition.index}"


@contextmanager
def controllers_requests_logged(cluster: Cluster) -> Iterator[None]:
    """Inside the block, every broker logs the requests of the controller with all fields."""
    with ExitStack() as levels:
        for broker in cluster.brokers:
            levels.enter_context(broker.admin.log_levels(broker.id, {STATE_CHANGES: "TRACE"}))
        yield


def check_none_logged(cluster: Cluster, saying: str, since: datetime) -> None:
    """No broker has logged such a line since then."""
    for broker in cluster.brokers:
        if line := broker.log.first(saying, since=since):
            raise PromiseBroken(f"{broker} should not log /{saying}/: {line.text[:300]}")


@scenario(
    "kip-112/no-controller-for-long",
    kip=112,
    plan="6. Controller failover: a log dir fails while there is none for log.dir.failure.timeout.ms (KIP-858)",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(
        ">=3.8.0"
    ),  # older builds do not have that setting (KAFKA-15649): their brokers never give up
    overrides={"log.dir.failure.timeout.ms": f"{GIVES_UP_S * 1000:.0f}"},
)
def test_no_controller_for_long(cluster: Cluster, workload: CaseWorkload) -> None:
    """A KRaft broker that cannot report its failed log dir to a controller in time ends and logs why; others then lead.

    It logs that in time. Its controlled shutdown then takes until there is a controller again, or five minutes
    (``BrokerServer.shutdown``).
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        with ExitStack() as log_dir_failed:
            with injected(ControllerKilled(cluster, victim)):
                pair.await_progress(after=now())
                fault = log_dir_failed.enter_context(injected(Chmod000(orders[0].log_dir_on(victim))))
                check_noticed(fault)
                check_gave_up_in_time(victim, check_logged(victim, GAVE_UP, fault.injected_at), fault)
            check_ends(victim, exit_code=0, saying=GAVE_UP)
            state.broker_gone(victim)
            state.check(timeouts.RECOVERY_S)
            pair.await_progress(after=now())
        victim.start()
        state.broker_back(victim)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_gave_up_in_time(broker: Broker, said: LogLine, fault: LogDirFault) -> None:
    """A broker gave up reporting its failed log dir after ``log.dir.failure.timeout.ms``, and not earlier."""
    took_s = (said.at - noticed_at(broker, fault)).total_seconds()
    broker.journal.write("failure_timeout.over", broker=broker.id, after_s=took_s)
    if not GIVES_UP_S - 0.5 <= took_s <= 5 * GIVES_UP_S:
        raise PromiseBroken(
            f"{broker} gave up reporting its failed log dir after {took_s:.1f} s; log.dir.failure.timeout.ms is "
            f"{GIVES_UP_S:g} s, and {GIVES_UP_S - 0.5:g} to {5 * GIVES_UP_S:g} s are allowed"
        )


def noticed_at(broker: Broker, fault: LogDirFault) -> datetime:
    """When the broker logged the failure of the log dir."""
    assert fault.noticed_by is not None
    noticed = broker.log.first(fault.noticed_by, since=fault.injected_at)
    assert noticed is not None
    return noticed.at


@scenario(
    "kip-112/second-dir-while-unreported",
    kip=112,
    plan="6. Controller failover: a second log dir fails while a broker cannot report the first (KIP-858)",
    modes=(Mode.KRAFT,),
    builds=VersionRange.parse(">=3.8.0"),
    judged=False,
    log_dirs=3,
    floors=Floors(faults=3),
    deviations=(SECOND_FAILURE_RESTARTS_TIMEOUT,),
    overrides={"log.dir.failure.timeout.ms": f"{GIVES_UP_S * 1000:.0f}"},
)
def test_second_dir_while_unreported(cluster: Cluster) -> None:
    """A second log dir fails while a broker cannot report the first: the broker ends after the first one's time-out."""
    victim = cluster.brokers[0]
    orders = cluster.create_topic("orders", partitions=3, replicas=3)
    first, second, good = (partition.log_dir_on(victim) for partition in orders.partitions)
    if len({first, second, good}) < len(orders):
        raise Inconclusive(f"{victim} has two partitions of {orders} in one log dir")
    with ExitStack() as log_dirs_failed, injected(ControllerKilled(cluster, victim)):
        failures = [log_dirs_failed.enter_context(injected(Chmod000(first)))]
        check_noticed(failures[0])
        await_checkpoints(good, 3)
        failures.append(log_dirs_failed.enter_context(injected(Chmod000(second))))
        check_noticed(failures[1])
        gave_up = check_logged(victim, GAVE_UP, failures[0].injected_at)
        waited_s = [(gave_up.at - noticed_at(victim, failure)).total_seconds() for failure in failures]
        if min(waited_s[0], waited_s[0] - waited_s[1]) < 1:
            raise Inconclusive(f"the log dirs failed at nearly the same time: {victim} gave up after {waited_s} s")
        check_promised_or_known(
            SECOND_FAILURE_RESTARTS_TIMEOUT,
            cluster,
            "restarted" if waited_s[1] > GIVES_UP_S - 0.5 else "not restarted",
            promised="not restarted",
            known="restarted",
        )
    check_ends(victim, exit_code=0, saying=GAVE_UP)
    victim.start()


@scenario(
    "kip-112/deleted-without-isr",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: a topic was deleted there that had no ISR",
    modes=(Mode.KRAFT,),
    judged=False,
    deviations=(DELETED_TOPIC_HIDES_FAILURE,),
    overrides={"log.dir.failure.timeout.ms": "300000"},
)
def test_deleted_without_isr(cluster: Cluster) -> None:
    """A topic whose only broker is down is deleted, and then its log dir fails: other brokers lead its partitions."""
    victim, other, _ = cluster.brokers
    controller = cluster.quorum_nodes[0]
    [lone] = cluster.create_topics(NewTopic(name="lone", assignment={0: [victim.id]}))
    failing = lone[0].log_dir_on(victim)
    orders = cluster.create_topic("orders", partitions=4)
    with injected(BrokerKilled(victim)):
        await_leader(lone[0], other, lambda leader: leader is None, "to have no leader")
        if lone[0].describe(other).isr and cluster.distribution.version in ELECTS_ELIGIBLE:
            raise Inconclusive(f"{lone[0]} should have no ISR: {lone[0].describe(other)}")
        cluster.delete_topics(lone)
        check_no_partition_offline(cluster)
    cluster.await_healthy()
    partition = next(each for each in orders.partitions if each.log_dir_on(victim) == failing)
    lead(partition, victim)
    with injected(fault := Chmod000(failing)):
        check_noticed(fault)
        with promised(
            cluster,
            unless=DELETED_TOPIC_HIDES_FAILURE,
            seen=f"{partition} to have another leader",
            logged=lambda: controller.log.first(DELETED_TOPIC_HIDES_FAILURE.failures, since=fault.injected_at),
        ):
            await_leader(partition, other, lambda leader: leader not in (None, victim.id), "to have another leader")


def check_no_partition_offline(cluster: Cluster) -> None:
    """The active controller counts no partition as offline."""
    await_until(
        cluster.offline_partitions,
        lambda count: count == 0,
        timeout_s=timeouts.REQUEST_S,
        what="OfflinePartitionsCount to be 0, since the only partition without a leader was deleted",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
