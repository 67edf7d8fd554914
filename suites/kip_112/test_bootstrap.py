"""Shows KIP-112's scenarios 3 and 4: brokers that start with bad log dirs, and disks that are fixed."""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000, Removed
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.own_part import OwnPart
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.broker_epochs import check_ids_free, directory_of
from suites.checks import check_delivery, check_ends, check_logged, check_noticed, promised
from suites.deviations import OFFLINE_REPLICAS_COUNTED_LATE, REPLICA_CREATED_TWICE, UNFORMATTED_REFUSED
from suites.followers_behind import injected_ahead
from suites.observations import directories, metadata_log
from suites.on_disk import check_logs_unchanged, check_no_replica_twice, leaders_logs
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import (
    FOUND_TWICE,
    NO_DIR_USABLE,
    check_not_formatted,
    check_some_leaderless,
    ends_as_known,
    format_new_dirs,
    log_dirs_failed,
    one_partition_per_log_dir,
    replace_by_empty_disk,
    restart_after_healing,
    start_after_healing,
    write_untracked_records,
)

UNASSIGNED = "A" * 21 + "Q"
"""The directory of a replica that its broker has not reported yet (``DirectoryId.UNASSIGNED``, KIP-858)."""

TRIES = 10
"""How often to try to kill a broker in the 0.1 to 0.5 s between creating a replica and reporting its log dir."""

UNFORMATTED = r"No `meta.properties` found in .*kafka-storage"


@scenario("kip-112/bootstrap-all-bad", kip=112, plan="3. Broker bootstraps with bad log directories: all of them")
def test_bootstrap_all_bad(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker that starts without a good log dir exits with 1 and logs why; with good ones again, it comes back."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        with injected_ahead(orders, BrokerKilled(victim)):
            state.broker_gone(victim)
            state.check()
            with injected(*map(Chmod000, victim.log_dirs)):
                victim.start()
                check_ends(victim, exit_code=1, saying=NO_DIR_USABLE)
                state.check()
                pair.await_progress(after=now())
        state.log_dirs_healed(victim)
        check_rejoined(state, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/bootstrap-healed", kip=112, plan="3. Broker bootstraps with bad log directories: healed before it does"
)
def test_bootstrap_healed(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir fails, its broker is killed, the log dir heals, the broker starts: all replicas are back in the ISR."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with ExitStack() as crash, log_dirs_failed(state, Chmod000(log_dir)):
            pair.await_progress(after=now())
            crash.enter_context(injected(BrokerKilled(victim)))
            state.broker_gone(victim)
            state.check()
            pair.await_progress(after=now())
        state.log_dirs_healed(victim)
        check_rejoined(state, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/bootstrap-missing",
    kip=112,
    plan="3. Broker bootstraps with bad log directories: one is missing",
    deviations=(UNFORMATTED_REFUSED,),
)
def test_bootstrap_missing(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir is missing at its broker's start: ZooKeeper mode recreates it, KRaft refuses; then it is back.

    This is what happens with a disk that was not mounted. A log dir that cannot be recreated is a failed one, as in
    item 1 of the test plan.
    """
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with injected_ahead(orders, BrokerKilled(victim)):
            state.broker_gone(victim)
            state.check()
            allow_recreation(log_dir)
            with injected(Removed(log_dir)):
                pair.await_progress(after=now())
                victim.start()
                if not ends_as_known(cluster, victim, UNFORMATTED_REFUSED, saying=UNFORMATTED):
                    state.replicas_recreated(log_dir)
                    check_rejoined(state, orders)
                    pair.await_progress(after=now())
                    victim.stop()
                    state.broker_gone(victim)
        state.broker_back(victim)
        check_rejoined(state, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/killed-while-new",
    kip=112,
    plan="3. Broker bootstraps with bad log directories: one with a replica that it has only just made",
    judged=False,
    deviations=(REPLICA_CREATED_TWICE,),
)
def test_killed_while_new(cluster: Cluster) -> None:
    """A broker is killed after it creates a replica, and starts without that log dir: it creates no second replica.

    In KRaft the kill waits for the topic id in the replica's folder. Without the id, the broker takes the first replica
    for a stray and goes on with the second. There is no load: while a load starts, the broker would report the log dir.
    """
    controller = cluster.controller_broker()
    victim = next(broker for broker in cluster.brokers if broker != controller)
    for n in range(1, TRIES + 1):
        orders = Topic(cluster, f"orders-{n}", 1)
        if is_killed_while_new(victim, orders):
            return
        cluster.await_healthy()
        cluster.delete_topics(orders)
    raise Inconclusive(f"{victim} reported the log dir of its new replica before it was killed, {TRIES} times")


def is_killed_while_new(victim: Broker, orders: Topic) -> bool:
    """Create a topic, kill a broker that has just created its replica, and check that it creates no second one.

    Returns False, and checks nothing, if the broker had reported the log dir before it was killed.
    """
    cluster, mode = orders.cluster, orders.cluster.spec.mode
    cluster.request_topics(NewTopic(name=orders.name, partitions=1, replicas=3))
    made = "partition.metadata" if mode is Mode.KRAFT else ""

    def has_made(log_dir: LogDir) -> bool:
        return (log_dir.replica_dir(orders.name, 0) / made).exists()

    [log_dir] = await_until(
        lambda: [each for each in victim.log_dirs if has_made(each)],
        timeout_s=timeouts.RECOVERY_S,
        poll_s=0.005,
        what=f"{victim} to create {orders[0]}",
        failure=OwnPart(cluster, "create the replicas of a topic").undone,
    )
    second = other_dir(log_dir)
    with ExitStack() as killed:
        killed.enter_context(injected(BrokerKilled(victim)))
        if mode is Mode.KRAFT and directories(cluster).assigned[orders.name, 0][victim.id] != UNASSIGNED:
            return False
        with promised(
            cluster, unless=REPLICA_CREATED_TWICE, seen=f"^{victim} created {orders[0]} on {second} too, and refuses"
        ):
            with injected(Chmod000(log_dir)) as fault:
                victim.start()
                check_noticed(fault)
                await_until(
                    lambda: has_made(second) or is_offline_on(victim, orders[0]),
                    timeout_s=timeouts.RECOVERY_S,
                    watch=victim.node.check_alive,
                    what=f"{orders[0]} to be offline on {victim}, which runs",
                    retry_on=(NoAnswer, KeyError),
                    failure=PromiseBroken,
                )
                made_twice = has_made(second)
            killed.close()
            victim.restart()
            if made_twice:
                check_ends(victim, exit_code=1, saying=FOUND_TWICE)
                raise PromiseBroken(f"{victim} created {orders[0]} on {second} too, and refuses to start with both")
            cluster.await_healthy(failure=PromiseBroken)
            check_no_replica_twice(orders)
    return True


def is_offline_on(broker: Broker, partition: Partition) -> bool:
    """Whether the broker has joined the cluster and shows its replica of the partition as offline."""
    seen = broker.describe_cluster()
    return broker.id in seen.brokers and broker.id in seen[partition.topic, partition.index].offline_replicas


def allow_recreation(log_dir: LogDir) -> None:
    """Let the broker's user recreate the log dir: give it the parent folder."""
    shutil.chown(log_dir.path.parent, log_dir.path.stat().st_uid)


@scenario(
    "kip-112/new-at-bootstrap",
    kip=112,
    plan="3. Broker bootstraps with bad log directories: a replica is new to it",
    judged=False,
    deviations=(OFFLINE_REPLICAS_COUNTED_LATE,),
)
def test_new_at_bootstrap(cluster: Cluster) -> None:
    """A broker starts with a bad log dir: it creates replicas that are new to it in the good log dir.

    One topic is created while the broker is down. In KRaft it gets two more partitions; ZooKeeper's controller places
    replicas on live brokers only. In KRaft its replicas are new to the broker. In ZooKeeper mode the controller has
    made the transition from NewReplica to Online by then, so isNewReplica is False, and the replica is offline. Another
    topic is created right after the start; its replica is new in both modes.

    The dead broker is the first one in the assignment of the first topic: another one leads it.

    The broker has the only replicas of one more topic. Those in the bad log dir have no leader until it is healed.
    """
    orders = one_partition_per_log_dir(cluster)
    victim = next(broker for broker in cluster.brokers if broker != cluster.controller_broker())
    [lone] = cluster.create_topics(NewTopic(name="lone", assignment={index: [victim.id] for index in range(4)}))
    write_untracked_records(lone, 20 * len(lone))
    logs = leaders_logs(lone.partitions)
    state = StateCheck(cluster, orders, lone)
    log_dir = orders[0].log_dir_on(victim)
    meanwhile = Topic(cluster, "meanwhile", 3 if cluster.spec.mode is Mode.KRAFT else 1)
    assignment = [victim.id, *(broker.id for broker in cluster.others(victim))]
    with injected(BrokerKilled(victim)):
        state.broker_gone(victim)
        state.check()
        cluster.request_topics(NewTopic(name=meanwhile.name, assignment={0: assignment}))
        check_led_by_next(meanwhile[0], victim)
        if cluster.spec.mode is Mode.KRAFT:
            admin = cluster.others(victim)[0].admin
            admin.create_partitions(meanwhile.name, 2, [assignment])
            check_led_by_next(meanwhile[1], victim)
            admin.create_partitions(meanwhile.name, 3)  # whose replicas Kafka places itself
        with injected(Chmod000(log_dir)) as fault:
            state.log_dir_failed(log_dir)
            victim.start()
            state.broker_back(victim)
            state.check(timeouts.RECOVERY_S)
            check_noticed(fault)
            check_some_leaderless(state, lone)
            for partition in meanwhile.partitions:
                if cluster.spec.mode is Mode.KRAFT:
                    check_created_in(victim, partition, other_dir(log_dir))
                else:
                    check_logged(victim, NOT_CREATED.format(partition=partition), victim.started_at)
                    check_stays_out(victim, partition)
            state.add_topic(cluster.create_topic("later", replicas=3, failure=PromiseBroken))
            state.check()
    restart_after_healing(state, victim)
    cluster.await_healthy(failure=PromiseBroken)
    check_no_replica_twice(meanwhile)
    check_logs_unchanged(logs)


def check_led_by_next(partition: Partition, dead: Broker) -> None:
    """The second replica is the first leader of a new partition whose first replica is on a dead broker.

    The dead broker is not in the ISR. Kafka repairs a wrong leader and ISR later, by an election.
    """
    seen = await_until(
        partition.describe,
        lambda state: state.leader is not None,
        timeout_s=timeouts.REQUEST_S,
        what=f"{partition} to have a leader",
        retry_on=(NoAnswer, KeyError),
        failure=PromiseBroken,
    )
    if (seen.leader, seen.leader_epoch) != (seen.replicas[1], 0) or dead.id in seen.isr:
        raise PromiseBroken(
            f"{dead} is dead, and broker {seen.replicas[1]} should be the first to lead, in leader epoch 0; seen in "
            f"leader epoch {seen.leader_epoch}: {seen}"
        )


NOT_CREATED = r"Can not create log for {partition} because log directories \S+ are offline"
"""The log line of a ZooKeeper broker that does not create a replica that is not new to it."""


def check_created_in(broker: Broker, partition: Partition, log_dir: LogDir) -> None:
    """The broker creates its replica in this log dir, and the replica joins the ISR."""
    await_until(
        lambda: (broker.log_dir_of(partition.topic, partition.index), partition.describe().isr),
        lambda seen: seen[0] == log_dir and broker.id in seen[1],
        timeout_s=timeouts.RECOVERY_S,
        what=f"{broker} to create {partition} in {log_dir}, and to be in the ISR",
        retry_on=(NoAnswer, KeyError),
        failure=PromiseBroken,
    )


def check_stays_out(broker: Broker, partition: Partition) -> None:
    """The broker's replica becomes offline, and is in none of its log dirs."""
    await_until(
        lambda: is_offline_on(broker, partition),
        timeout_s=timeouts.LOG_DIR_FAILURE_S,  # the controller learns it from the broker's answer
        what=f"{partition} to be offline on {broker}, which refused to create it",
        retry_on=(NoAnswer, KeyError),
        failure=PromiseBroken,
    )
    if (place := broker.log_dir_of(partition.topic, partition.index)) is not None:
        raise PromiseBroken(f"{broker} refused to create {partition}, and has it in {place}")


@scenario(
    "kip-112/foreign-disk",
    kip=112,
    plan="3. Broker bootstraps with bad log directories: one that belongs to another broker or cluster",
    judged=False,
    floors=NO_FAULT,
)
def test_foreign_disk(cluster: Cluster) -> None:
    """A log dir belongs to another broker, then to another cluster: its broker does not start, and logs why.

    Nor does it start with a log dir that another process has locked. In KRaft no two log dirs may have the same id.
    """
    orders = one_partition_per_log_dir(cluster)
    state = StateCheck(cluster, orders)
    victim = next(broker for broker in cluster.brokers if broker != cluster.controller_broker())
    other = cluster.others(victim)[0]
    victim.stop()
    state.broker_gone(victim)
    first, second = victim.log_dirs
    labels = {r"(?:node|broker)\.id": str(other.id), r"cluster\.id": "x" * 22}
    if cluster.spec.mode is Mode.KRAFT:
        labels[r"directory\.id"] = first.directory_id()
    for key, value in labels.items():
        with labelled(second, key, value):
            check_does_not_start(state, victim, FOREIGN)
    with locked(second):
        check_does_not_start(state, victim, LOCKED)
    start_after_healing(state, victim)


FOREIGN = (
    r"Stored node id \d+ doesn't match previous node id|Invalid cluster\.id in: |"
    r"BrokerMetadata is not consistent across log\.dirs|Duplicate directory ID"
)
"""The log line of a broker that ends at its start because a log dir belongs to another broker or cluster, or twice."""
LOCKED = r"Failed to acquire lock on file \.lock"
"""The log line of a broker that ends at its start because another process uses a log dir."""


def check_does_not_start(state: StateCheck, broker: Broker, saying: str) -> None:
    """The broker ends at its start, with this line in its log, and the other brokers work on."""
    broker.start()
    check_ends(broker, exit_code=1, saying=saying)
    state.check()


@contextmanager
def labelled(log_dir: LogDir, key: str, value: str) -> Iterator[None]:
    """Inside the block, the ``meta.properties`` of a log dir has another value. Its broker must be down."""
    file = log_dir.path / "meta.properties"
    text = file.read_text()
    file.write_text(re.sub(rf"(?m)^({key})=.*$", rf"\1={value}", text))
    log_dir.broker.journal.write("disk.labelled", log_dir=str(log_dir), text=file.read_text())
    try:
        yield
    finally:
        file.write_text(text)


@contextmanager
def locked(log_dir: LogDir) -> Iterator[None]:
    """Inside the block, this process has the lock of a log dir. Its broker must be down.

    A broker that can't open the file of the lock, since another user owns it, takes the log dir for a failed one.
    """
    file = log_dir.path / ".lock"
    with file.open("a") as lock:
        shutil.chown(file, log_dir.path.stat().st_uid)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log_dir.broker.journal.write("log_dir.locked", log_dir=str(log_dir))
        yield


@scenario(
    "kip-112/disk-replaced",
    kip=112,
    plan="4. The disk (or log directory) gets fixed: replaced by an empty one",
    deviations=(UNFORMATTED_REFUSED,),
)
def test_disk_replaced(cluster: Cluster, workload: CaseWorkload) -> None:
    """A failed disk is replaced by an empty one: its replicas are recreated once each, and rejoin the ISR."""
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(state, Chmod000(log_dir)):
            pair.await_progress(after=now())
            victim.stop()
            state.broker_gone(victim)
        replace_by_empty_disk(log_dir)
        victim.start()
        if ends_as_known(cluster, victim, UNFORMATTED_REFUSED, saying=UNFORMATTED):
            check_not_formatted(cluster, victim)
            format_new_dirs(cluster, victim)
            victim.start()
        state.replicas_recreated(log_dir)
        check_rejoined(state, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("kip-112/log-dir-taken-out", kip=112, plan="4. … or remove the bad log directory from broker config")
def test_log_dir_taken_out(cluster: Cluster, workload: CaseWorkload) -> None:
    """A failed log dir is removed from ``log.dirs``: its replicas are recreated on the good one and rejoin the ISR.

    Another broker may then have its disk (KRaft).
    """
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    state = StateCheck(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    left = [directory_of(log_dir)] if cluster.spec.mode is Mode.KRAFT else []
    with workload.running(orders) as pair, log_dirs_failed(state, Chmod000(log_dir)):
        pair.await_progress(after=now())
        victim.stop()
        state.broker_gone(victim)
        victim.use_log_dirs(other_dir(log_dir))
        victim.start()
        state.replicas_recreated(log_dir)
        check_rejoined(state, orders)
        pair.await_progress(after=now())
    check_delivery(workload)
    if left:
        check_ids_free(cluster, left)


def check_rejoined(state: StateCheck, topic: Topic) -> None:
    """Every replica is in the ISR again, and on its broker once; KRaft's controller knows its log dir."""
    state.check(timeouts.RECOVERY_S, also=[metadata_log])
    check_no_replica_twice(topic)
