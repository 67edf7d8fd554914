"""KIP-112's third and fourth scenarios: brokers that start with bad log dirs, and disks that are fixed."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000, Removed
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, check_ends, check_noticed, promised, refuses_to_start
from suites.deviations import MADE_TWICE, UNFORMATTED_REFUSED
from suites.observations import directories, metadata_log
from suites.observing import observe
from suites.on_disk import check_one_copy
from suites.scenario import scenario
from suites.state_check import World
from suites.steps import (
    NO_DIR_USABLE,
    TWICE,
    check_not_formatted,
    format_new_dirs,
    log_dirs_failed,
    replace_by_empty_disk,
)

UNASSIGNED = "A" * 21 + "Q"
"""The directory of a replica of which the controller has not been told (``DirectoryId.UNASSIGNED``, KIP-858)."""

TRIES = 10
"""Until a broker is killed in the 0.1 to 0.5 s in which it has made a replica and told nobody where."""

UNFORMATTED = r"No `meta.properties` found in .*kafka-storage"


@scenario("kip-112/bootstrap-all-bad", kip=112, plan="3. Broker bootstraps with bad log directories: all of them")
def test_bootstrap_all_bad(cluster: Cluster, workload: CaseWorkload) -> None:
    """Started with no good log dir a broker exits with 1 and says why; with good ones again, it comes back."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        with injected(BrokerKilled(victim)):
            world.broker_gone(victim)
            world.check()
            with injected(*map(Chmod000, victim.log_dirs)):
                victim.start()
                check_ends(victim, exit_code=1, saying=NO_DIR_USABLE)
                world.check()
                pair.await_progress(after=now())
        world.log_dirs_back(victim)
        check_back(world, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/bootstrap-healed", kip=112, plan="3. Broker bootstraps with bad log directories: healed before it does"
)
def test_bootstrap_healed(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir fails, its broker crashes, the dir heals, the broker starts: everything is back as it was."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with ExitStack() as crash, log_dirs_failed(world, Chmod000(log_dir)):
            pair.await_progress(after=now())
            crash.enter_context(injected(BrokerKilled(victim)))
            world.broker_gone(victim)
            world.check()
            pair.await_progress(after=now())
        world.log_dirs_back(victim)
        check_back(world, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/bootstrap-missing",
    kip=112,
    plan="3. Broker bootstraps with bad log directories: one is missing",
    deviations=(UNFORMATTED_REFUSED,),
)
def test_bootstrap_missing(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir is not there when its broker starts: ZooKeeper mode makes it anew, KRaft refuses; then it is back.

    So it is with a disk that was not mounted. One that can't be made anew is a failed one, as in the plan's item 1.
    """
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with injected(BrokerKilled(victim)):
            world.broker_gone(victim)
            world.check()
            let_be_made(log_dir)
            with injected(Removed(log_dir)):
                pair.await_progress(after=now())
                victim.start()
                if not is_refused_unformatted(cluster, victim):
                    world.remade(log_dir)
                    check_back(world, orders)
                    pair.await_progress(after=now())
                    victim.stop()
                    world.broker_gone(victim)
        world.broker_back(victim)
        check_back(world, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-112/killed-while-new",
    kip=112,
    plan="3. Broker bootstraps with bad log directories: one with a replica that it has only just made",
    judged=False,
    deviations=(MADE_TWICE,),
)
def test_killed_while_new(cluster: Cluster) -> None:
    """A broker is killed as soon as it has made a replica, and comes back without that log dir: it makes no second one.

    In KRaft, as soon as the topic's id is in it: without it the broker takes the first for a stray, and goes on with
    the second; and so it is with a second that is stopped without it. There is no load, since it takes longer to begin
    than KRaft's controller to hear of the log dir.
    """
    controller = cluster.controller_broker()
    victim = next(broker for broker in cluster.brokers if broker != controller)
    for n in range(1, TRIES + 1):
        orders = Topic(cluster, f"orders-{n}", 1)
        if is_killed_while_new(victim, orders):
            return
        cluster.await_healthy()
        cluster.delete_topic(orders)
    raise Inconclusive(f"{victim} told the controller where its new replica is before it was killed, {TRIES} times")


def is_killed_while_new(victim: Broker, orders: Topic) -> bool:
    """Whether the broker is killed in time; if so, what comes of it is as promised. Else it is started again."""
    cluster, mode = orders.cluster, orders.cluster.spec.mode
    cluster.begin_topics(NewTopic(name=orders.name, partitions=1, replicas=3))
    made = "partition.metadata" if mode is Mode.KRAFT else ""

    def has_made(log_dir: LogDir) -> bool:
        return (log_dir.replica_dir(orders.name, 0) / made).exists()

    [log_dir] = await_until(
        lambda: [each for each in victim.log_dirs if has_made(each)],
        timeout_s=timeouts.RECOVERY_S,
        poll_s=0.005,
        what=f"{victim} to make {orders[0]}",
    )
    second = other_dir(log_dir)
    with ExitStack() as killed:
        killed.enter_context(injected(BrokerKilled(victim)))
        if mode is Mode.KRAFT and directories(cluster).assigned[orders.name, 0][victim.id] != UNASSIGNED:
            return False
        with promised(cluster, unless=MADE_TWICE, seen=f"^{victim} has made {orders[0]} on {second} too, and refuses"):
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
                check_ends(victim, exit_code=1, saying=TWICE)
                raise PromiseBroken(f"{victim} has made {orders[0]} on {second} too, and refuses to start with both")
            cluster.await_healthy(failure=PromiseBroken)
            check_one_copy(orders)
    return True


def is_offline_on(broker: Broker, partition: Partition) -> bool:
    """Whether the partition is offline on the broker in its own eyes, and it is in the cluster all the same."""
    seen = broker.describe_cluster()
    return broker.id in seen.brokers and broker.id in seen[partition.topic, partition.index].offline_replicas


def is_refused_unformatted(cluster: Cluster, broker: Broker) -> bool:
    """Whether the broker, started on a log dir that is not formatted, ends, saying what to do; else it serves.

    :raises PromiseBroken: it starts, as the KIP has it, where it is known not to; or it ends otherwise
    """
    line = refuses_to_start(broker, exit_code=1, saying=UNFORMATTED)
    seen = line.text if line else "it starts"
    return observe(UNFORMATTED_REFUSED, cluster, deviates=line is not None, seen=seen)


def let_be_made(log_dir: LogDir) -> None:
    """Whoever owns the log dir may from now on make it anew, which an ordinary user may in any case."""
    shutil.chown(log_dir.path.parent, log_dir.path.stat().st_uid)


@scenario(
    "kip-112/disk-replaced",
    kip=112,
    plan="4. The disk (or log directory) gets fixed: replaced by an empty one",
    deviations=(UNFORMATTED_REFUSED,),
)
def test_disk_replaced(cluster: Cluster, workload: CaseWorkload) -> None:
    """A failed disk is replaced by an empty one: its replicas are made anew, in one place, and rejoin the ISR."""
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with log_dirs_failed(world, Chmod000(log_dir)):
            pair.await_progress(after=now())
            victim.stop()
            world.broker_gone(victim)
        replace_by_empty_disk(log_dir)
        victim.start()
        if is_refused_unformatted(cluster, victim):
            check_not_formatted(cluster, victim)
            format_new_dirs(cluster, victim)
            victim.start()
        world.remade(log_dir)
        check_back(world, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("kip-112/log-dir-taken-out", kip=112, plan="4. … or remove the bad log directory from broker config")
def test_log_dir_taken_out(cluster: Cluster, workload: CaseWorkload) -> None:
    """A failed log dir is taken out of ``log.dirs``: its replicas are made anew on the good one and rejoin the ISR."""
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, log_dirs_failed(world, Chmod000(log_dir)):
        pair.await_progress(after=now())
        victim.stop()
        world.broker_gone(victim)
        victim.use_log_dirs(other_dir(log_dir))
        victim.start()
        world.remade(log_dir)
        check_back(world, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_back(world: World, topic: Topic) -> None:
    """Every replica is in the ISR again, on the brokers that had it, and on each of them once; KRaft's controller has
    heard in which log dir."""
    world.check(timeouts.RECOVERY_S, also=[metadata_log])
    check_one_copy(topic)
