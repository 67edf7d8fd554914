"""KIP-112's behaviours beyond its test plan: "our solution works under eight different scenarios".

Each scenario here names the one of the eight that it is of. What the test plan itself covers is in ``test_plan.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from faults.base import Fault, injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000, Removed
from faults.quorum import ControllerKilled, ControllerUnseated
from faults.targets import follower_of, leader_of, other_dir
from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.log_dir import LogDir
from harness.pipeline.pair import Pair
from harness.quorum.zookeeper import LogDirEvents, ZooKeeperQuorum
from harness.releases.versions import Mode
from harness.topic import Topic
from harness.waiting import await_until
from harness.workload import CaseWorkload
from suites.checks import check_delivery, check_ends, check_noticed, check_notified, check_says
from suites.deviations import OFFLINE_REPLICAS_UNCOUNTED
from suites.model import World
from suites.on_disk import check_kept, check_one_copy, log_of
from suites.scenario import scenario
from suites.sources import TOOLS
from suites.steps import (
    NO_GOOD_DIR,
    failed,
    format_new_dirs,
    replace_by_empty_disk,
    restarted_healed,
    write_as_a_stranger,
)

METADATA_FAILED = r"Shutdown broker because the metadata log dir .* has failed"
UNFORMATTED = r"No `meta.properties` found in .*kafka-storage"
UNTOLD = r"Shutting down because couldn't communicate offline log dir \S+ with controllers"


@scenario("kip-112/topic-creation", kip=112, plan="1. Topic gets created")
def test_topic_creation(cluster: Cluster, workload: CaseWorkload) -> None:
    """New replicas are spread over a broker's log dirs while all are good, and lie on good ones when one isn't."""
    orders = cluster.create_topic("orders", partitions=4, replicas=3)
    world = World(cluster, orders)
    check_spread(orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, failed(world, Chmod000(log_dir)):
        pair.await_progress(after=now())
        pair.stop()
        refunds = cluster.create_topic("refunds", partitions=4, replicas=3, failure=PromiseBroken)
        world.learn(refunds)
        world.check()
        with workload.running(refunds) as pair:
            pair.await_progress(after=now())
    victim.restart()
    world.recovered()
    check_delivery(workload)


def check_spread(topic: Topic) -> None:
    """No log dir of a broker has more than one replica of the topic more than another (KIP-112, as before it)."""
    for broker in topic.cluster.brokers:
        counts = [sum(d.replica_dir(topic.name, p.index).is_dir() for p in topic.partitions) for d in broker.log_dirs]
        if max(counts) - min(counts) > 1:
            raise PromiseBroken(f"{broker} has {counts} replicas of {topic} in its log dirs, one after the other")


@scenario("kip-112/two-brokers", kip=112, plan="2. A log directory stops working on a broker during runtime")
def test_two_brokers(cluster: Cluster, workload: CaseWorkload) -> None:
    """Log dirs fail on two of three brokers at once: the third leads alone, with every acked record."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    victims = [leader_of(orders[0]), follower_of(orders[0])]
    faults = [Chmod000(orders[0].log_dir_on(victim)) for victim in victims]
    with workload.running(orders) as pair, failed(world, *faults):
        pair.await_progress(after=now())
    for victim in victims:
        victim.restart()
    world.recovered()
    check_delivery(workload)


@scenario(
    "kip-112/controllers-log-dir",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime, which is the controller",
    kraft={"combined": True, "overrides": {"controller.quorum.fetch.timeout.ms": "10000"}},
)
def test_controllers_log_dir(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir of the broker that is the controller fails: it lets others lead what was there, and stays controller.

    KRaft's controllers have no log dirs, unless they are brokers as well (combined nodes), as all are here: the active
    one tells itself of its failed log dir. It is given up by the others only if they don't hear of it for so long that
    it is not the slow machine. What becomes of a node whose metadata's dir fails: kip-112/metadata-log-dir.
    """
    orders = cluster.create_topic("orders", partitions=3, replicas=3)
    world = World(cluster, orders)
    victim = cluster.controller_broker()
    assert victim is not None
    led = next(partition for partition in orders.partitions if leader_of(partition) == victim)
    with workload.running(orders) as pair:
        with failed(world, Chmod000(led.log_dir_on(victim))):
            pair.await_progress(after=now())
            if (controller := cluster.controller_broker()) != victim:
                raise PromiseBroken(f"{victim} has a good log dir and is the controller no more: {controller} is")
        restarted_healed(world, victim)
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
        with failed(world, Chmod000(first)), injected(Chmod000(second)):
            check_ends(victim, exit_code=1, saying=NO_GOOD_DIR)
            world.broker_gone(victim)
            world.check()
            pair.await_progress(after=now())
        victim.start()
        world.recovered()
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
        victim.start()
        world.recovered()
        pair.await_progress(after=now())
    check_delivery(workload)


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
                check_ends(victim, exit_code=1, saying=NO_GOOD_DIR)
                world.check()
                pair.await_progress(after=now())
        world.recovered()
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
        with ExitStack() as crash, failed(world, Chmod000(log_dir)):
            pair.await_progress(after=now())
            crash.enter_context(injected(BrokerKilled(victim)))
            world.broker_gone(victim)
            world.check()
            pair.await_progress(after=now())
        world.recovered()
        check_one_copy(orders)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("kip-112/bootstrap-missing", kip=112, plan="3. Broker bootstraps with bad log directories: one is missing")
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
                if cluster.spec.mode is Mode.KRAFT:
                    check_ends(victim, exit_code=1, saying=UNFORMATTED)
                else:
                    world.remade(log_dir)
                    check_back(world, orders)
                    pair.await_progress(after=now())
                    victim.stop()
                    world.broker_gone(victim)
        world.broker_back(victim)
        check_back(world, orders)
        pair.await_progress(after=now())
    check_delivery(workload)


def let_be_made(log_dir: LogDir) -> None:
    """Whoever owns the log dir may from now on make it anew, which an ordinary user may in any case."""
    shutil.chown(log_dir.path.parent, log_dir.path.stat().st_uid)


@scenario("kip-112/disk-replaced", kip=112, plan="4. The disk (or log directory) gets fixed: replaced by an empty one")
def test_disk_replaced(cluster: Cluster, workload: CaseWorkload) -> None:
    """A failed disk is replaced by an empty one: its replicas are made anew, in one place, and rejoin the ISR."""
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with failed(world, Chmod000(log_dir)):
            pair.await_progress(after=now())
            victim.stop()
            world.broker_gone(victim)
        replace_by_empty_disk(log_dir)
        if cluster.spec.mode is Mode.KRAFT:
            victim.start()
            check_ends(victim, exit_code=1, saying=UNFORMATTED)
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
    with workload.running(orders) as pair, failed(world, Chmod000(log_dir)):
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
    """Every replica is in the ISR again, on the brokers that had it, and on each of them once."""
    world.check(timeouts.RECOVERY_S)
    check_one_copy(topic)


@scenario(
    "kip-112/what-users-see",
    kip=112,
    plan="5. User queries replicas state",
    deviations=(OFFLINE_REPLICAS_UNCOUNTED,),
)
def test_what_users_see(cluster: Cluster, workload: CaseWorkload) -> None:
    """The leader's log dir fails: brokers, Kafka's programs, MBeans, ZooKeeper or KRaft's metadata log all say so.

    Beside the replicated partition there are some of one replica, of which those in the log dir have no leader until
    the disk is back, and then all their records.
    """
    lone = cluster.create_topic("lone", partitions=12, replicas=1)
    write_as_a_stranger(lone, 20 * len(lone))
    logs = {partition: log_of(partition, partition.leader()) for partition in lone.partitions}
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, lone, orders)
    victim = leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair:
        with notifications(cluster, victim), failed(world, Chmod000(log_dir)):
            check_misses_a_leader(world, lone)
            world.check(also=TOOLS)
            pair.await_progress(after=now())
        restarted_healed(world, victim)
        world.check(also=TOOLS)
        check_kept(logs)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_misses_a_leader(world: World, lone: Topic) -> None:
    """Some partition of a topic of one replica has no leader now.

    :raises Inconclusive: none of them was in a log dir that failed
    """
    if all(world.expected(lone.name, partition.index).leader for partition in lone.partitions):
        raise Inconclusive(f"no failed log dir holds any of {lone}; nobody would miss a leader")


@contextmanager
def notifications(cluster: Cluster, victim: Broker) -> Iterator[LogDirEvents | None]:
    """ZooKeeper mode: inside the block the broker, and no other, tells the controller once that a log dir failed."""
    if not isinstance(cluster.quorum, ZooKeeperQuorum):
        yield None
        return
    with cluster.quorum.log_dir_events() as events:
        yield events
        check_notified(events, victim)


@scenario("kip-112/controller-failover", kip=112, plan="6. Controller failover", kraft={"controllers": 3})
def test_controller_failover(cluster: Cluster, workload: CaseWorkload) -> None:
    """With a log dir failed, another controller takes over: what was known is known, and it acts on what comes next.

    In KRaft it has the failed log dir from the metadata log, and with the next heartbeat once more from the broker
    (``BrokerLifecycleManager`` sends all that are offline each time). The one that was killed comes back as a standby.
    Beside the replicated partition there are some of one replica, so that there is something for it to count: those in
    the failed log dir have no leader. An only controller that comes back: kip-112/no-controller.
    """
    lone = cluster.create_topic("lone", partitions=12, replicas=1)
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, lone, orders)
    controller = cluster.controller_broker()
    victim = next(broker for broker in cluster.brokers if broker != controller)
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, failed(world, Chmod000(log_dir)):
        check_misses_a_leader(world, lone)
        if controller is None:
            with injected(ControllerKilled(cluster, victim)):
                world.check()
                acts_on_what_comes(world, pair)
                second = leader_of(orders[0])
                with failed(world, Chmod000(orders[0].log_dir_on(second))):
                    pair.await_progress(after=now())
                restarted_healed(world, second)
        else:
            with injected(BrokerKilled(controller)):
                world.broker_gone(controller)
                world.check()
                pair.await_progress(after=now())
            world.broker_back(controller)
            world.check()
            acts_on_what_comes(world, pair)
        world.check(also=TOOLS)
        pair.await_progress(after=now())
    victim.restart()
    world.recovered()
    check_delivery(workload)


def acts_on_what_comes(world: World, pair: Pair) -> None:
    """A topic is created, for which the controller's own knowledge decides; all sources agree on it."""
    world.learn(world.cluster.create_topic("after", partitions=4, replicas=3, failure=PromiseBroken))
    world.check(also=TOOLS)
    pair.await_progress(after=now())


@scenario(
    "kip-112/no-controller",
    kip=112,
    plan="6. Controller failover: a log dir fails while there is none",
)
def test_no_controller(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir fails while there is no controller: nobody acts on it till there is one; then another leads.

    In ZooKeeper mode the broker's notification waits for it. In KRaft the only controller comes back from its metadata
    log: it also knows of the log dir that had failed before.
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    first, victim = follower_of(orders[0]), leader_of(orders[0])
    log_dir = orders[0].log_dir_on(victim)
    with workload.running(orders) as pair, failed(world, Chmod000(orders[0].log_dir_on(first))), ExitStack() as stack:
        with notifications(cluster, victim) as events, injected(no_controller(cluster)) as none:
            check_noticed(none)
            pair.await_progress(after=now())
            fault = stack.enter_context(injected(Chmod000(log_dir)))
            check_noticed(fault)
            if events is not None:
                check_notified(events, victim, left=1)
            if (leader := leader_of(orders[0])) != victim:
                raise Inconclusive(f"{leader} leads {orders[0]}: there was a controller after all")
        world.log_dir_failed(log_dir)
        world.check()
        acts_on_what_comes(world, pair)
    for wounded in (first, victim):
        wounded.restart()
    world.recovered()
    check_delivery(workload)


def no_controller(cluster: Cluster) -> Fault:
    """What leaves the cluster without a controller, and all its brokers as they are."""
    if isinstance(cluster.quorum, ZooKeeperQuorum):
        controller = cluster.controller_broker()
        assert controller is not None
        return ControllerUnseated(controller, cluster.quorum.controller_seat())
    return ControllerKilled(cluster, cluster.brokers[0])


@scenario(
    "kip-112/no-controller-for-long",
    kip=112,
    plan="6. Controller failover: a log dir fails while there is none for log.dir.failure.timeout.ms (KIP-858)",
    modes=(Mode.KRAFT,),
    overrides={"log.dir.failure.timeout.ms": "3000"},
)
def test_no_controller_for_long(cluster: Cluster, workload: CaseWorkload) -> None:
    """KRaft: a broker that can tell no controller in time of its failed log dir ends, saying why; then others lead.

    It says so in time; then it asks for a controlled shutdown, which goes on until there is a controller again or for
    five minutes (``BrokerServer.shutdown``).
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    world = World(cluster, orders)
    victim = leader_of(orders[0])
    with workload.running(orders) as pair:
        with ExitStack() as log_dir_failed:
            with injected(ControllerKilled(cluster, victim)):
                pair.await_progress(after=now())
                fault = log_dir_failed.enter_context(injected(Chmod000(orders[0].log_dir_on(victim))))
                check_says(victim, UNTOLD, fault.injected_at)
            check_ends(victim, exit_code=0, saying=UNTOLD)
            world.broker_gone(victim)
            world.check(timeouts.RECOVERY_S)
            pair.await_progress(after=now())
        victim.start()
        world.broker_back(victim)
        world.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario("kip-112/topic-deletion", kip=112, plan="8. Topic deletion")
def test_topic_deletion(cluster: Cluster, workload: CaseWorkload) -> None:
    """A topic with an offline replica is deleted and made again: when the disk comes back, its old data does not.

    KRaft lets its name be used again at once; ZooKeeper mode deletes it for good when the replica is back ("we handle
    it in the same way as if its broker is offline").
    """
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    refunds = cluster.create_topic("refunds", partitions=1, replicas=3)
    write_as_a_stranger(refunds, 50)
    world = World(cluster, orders, refunds)
    victim = leader_of(refunds[0])
    log_dir = refunds[0].log_dir_on(victim)
    old = log_dir.replica_dir("refunds", 0)
    at_once = cluster.spec.mode is Mode.KRAFT
    with workload.running(orders) as pair:
        with failed(world, Chmod000(log_dir)):
            cluster.delete_topic(refunds)
            world.forget(refunds)
            if at_once:
                world.learn(cluster.create_topic("refunds", partitions=1, replicas=3, failure=PromiseBroken))
            pair.await_progress(after=now())
        victim.restart()
        world.recovered()
        await_until(
            lambda: not old.exists(), timeout_s=timeouts.RECOVERY_S, what=f"{old} to be gone", failure=PromiseBroken
        )
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
