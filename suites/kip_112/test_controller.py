"""KIP-112's sixth scenario: log dirs fail where the controller is, while it fails over, and while there is none."""

from __future__ import annotations

from contextlib import ExitStack

from faults.base import Fault, injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000, LogDirFault
from faults.quorum import ControllerKilled, ControllerUnseated
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.quorum.zookeeper import ZooKeeperQuorum
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.broker_log import LogLine
from harness.kafka.versions import Mode, VersionRange
from harness.runner.case_workload import CaseWorkload
from harness.workload.pair import Pair
from suites.checks import check_delivery, check_ends, check_noticed, check_notified, check_says
from suites.observations import metadata_log
from suites.scenario import scenario
from suites.state_check import World
from suites.steps import check_misses_a_leader, log_dirs_failed, notifications, restart_after_healing

GIVES_UP_S = 3.0
"""``log.dir.failure.timeout.ms``, 30 s by default."""
UNTOLD = r"Shutting down because couldn't communicate offline log dir \S+ with controllers"


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
        with log_dirs_failed(world, Chmod000(led.log_dir_on(victim))):
            pair.await_progress(after=now())
            if (controller := cluster.controller_broker()) != victim:
                raise PromiseBroken(f"{victim} has a good log dir and is the controller no more: {controller} is")
        restart_after_healing(world, victim)
        pair.await_progress(after=now())
    check_delivery(workload)


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
    with workload.running(orders) as pair, log_dirs_failed(world, Chmod000(log_dir)):
        check_misses_a_leader(world, lone)
        if controller is None:
            with injected(ControllerKilled(cluster, victim)):
                world.check()
                acts_on_what_comes(world, pair)
                second = leader_of(orders[0])
                with log_dirs_failed(world, Chmod000(orders[0].log_dir_on(second))):
                    pair.await_progress(after=now())
                restart_after_healing(world, second)
            world.check(also=[metadata_log])
            pair.await_progress(after=now())
        else:
            with injected(BrokerKilled(controller)):
                world.broker_gone(controller)
                world.check()
                pair.await_progress(after=now())
            world.broker_back(controller)
            world.check()
            acts_on_what_comes(world, pair)
            second = next(broker for broker in cluster.others(victim) if broker != cluster.controller_broker())
            with log_dirs_failed(world, Chmod000(orders[0].log_dir_on(second))):
                pair.await_progress(after=now())
            restart_after_healing(world, second)
    restart_after_healing(world, victim)
    check_delivery(workload)


def acts_on_what_comes(world: World, pair: Pair) -> None:
    """A topic is created, for which the controller's own knowledge decides; all sources agree on it."""
    world.learn(world.cluster.create_topic("after", partitions=4, replicas=3, failure=PromiseBroken))
    world.check(also=[metadata_log])
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
    with (
        workload.running(orders) as pair,
        log_dirs_failed(world, Chmod000(orders[0].log_dir_on(first))),
        ExitStack() as stack,
    ):
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
        restart_after_healing(world, wounded)
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
    builds=VersionRange.parse(">=3.8.0"),  # which have that setting (KAFKA-15649); before, a broker never gives up
    overrides={"log.dir.failure.timeout.ms": f"{GIVES_UP_S * 1000:.0f}"},
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
                check_noticed(fault)
                check_gave_up_in_time(victim, check_says(victim, UNTOLD, fault.injected_at), fault)
            check_ends(victim, exit_code=0, saying=UNTOLD)
            world.broker_gone(victim)
            world.check(timeouts.RECOVERY_S)
            pair.await_progress(after=now())
        victim.start()
        world.broker_back(victim)
        world.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_gave_up_in_time(broker: Broker, said: LogLine, fault: LogDirFault) -> None:
    """A broker gave up telling of its failed log dir when its time was over, and no sooner.

    :raises PromiseBroken: it did otherwise
    """
    assert fault.noticed_by is not None
    noticed = broker.log.first(fault.noticed_by, since=fault.injected_at)
    assert noticed is not None
    took_s = (said.at - noticed.at).total_seconds()
    broker.journal.write("failure_timeout.over", broker=broker.id, after_s=took_s)
    if not GIVES_UP_S - 0.5 <= took_s <= 5 * GIVES_UP_S:
        raise PromiseBroken(f"{broker} gave up telling of its failed log dir after {took_s:.1f} s, not {GIVES_UP_S} s")
