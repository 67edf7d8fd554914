"""What KIP-1066 is for, under load and with topics being created all the time.

"When adding brokers to a cluster, Kafka currently does not always place new partitions on new brokers; when removing
brokers/log directories, there is no way to prevent Kafka from placing new replicas on these brokers/log directories."
"""

from __future__ import annotations

from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster import Cluster
from harness.journal import now
from harness.workload import CaseWorkload
from suites.checks import check_delivery
from suites.kip_1066.cordons import CORDONED, a_cordon, check_empty, cordon, drain, placements_within, topics_created
from suites.model import World
from suites.steps import DELETED_SOON, reassign

ENOUGH = 10
"""Topics, at least, that are created under a cordon."""


# Where two brokers are left, Kafka's own topic must do with two.
SETTINGS = DELETED_SOON | {"offsets.topic.replication.factor": "2"}


@a_cordon(
    "kip-1066/brokers-added", plan="add new brokers to a cluster that is at capacity", brokers=2, overrides=SETTINGS
)
def test_brokers_added(cluster: Cluster, workload: CaseWorkload) -> None:
    """Two brokers join a full cluster: what is new comes to them alone, then the old ones are drained onto them."""
    orders = cluster.create_topic("orders", partitions=2, replicas=2)
    world = World(cluster, orders)
    old = list(cluster.brokers)
    with workload.running(orders) as pair, topics_created(world) as creation:
        creation.learn(at_least=1)
        new = [cluster.add_broker(), cluster.add_broker()]
        for broker in old:
            cordon(world, broker, *broker.log_dirs, value="*")
        creation.learn(at_least=ENOUGH)
        pair.await_progress(after=now())
        drain(world, *old)
        for broker in old:
            check_empty(*broker.log_dirs)
        creation.learn(at_least=1)
        pair.await_progress(after=now())
    assert {id for expected in world.partitions.values() for id in expected.replicas} == {each.id for each in new}
    check_delivery(workload)


@a_cordon("kip-1066/broker-decommissioned", plan="reassign its partitions, then remove the broker", overrides=SETTINGS)
def test_broker_decommissioned(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker is cordoned, drained, stopped and unregistered: it stays empty from then on, and nothing is lost."""
    orders = cluster.create_topic("orders", partitions=2, replicas=2)
    world = World(cluster, orders)
    broker = leader_of(orders[0])
    with workload.running(orders) as pair, topics_created(world) as creation:
        creation.learn(at_least=3)
        cordon(world, broker, *broker.log_dirs, value="*")
        creation.learn(at_least=1)
        drain(world, broker)
        creation.learn(at_least=ENOUGH)
        check_empty(*broker.log_dirs)
        pair.await_progress(after=now())
        cluster.remove_broker(broker)
        world.check()
        creation.learn(at_least=1)
        pair.await_progress(after=now())
    check_delivery(workload)


@a_cordon("kip-1066/disk-taken-out", plan="the process of removing a disk", overrides=SETTINGS)
def test_disk_taken_out(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir is cordoned, its replicas moved to the other one, and it is taken out of ``log.dirs``.

    It would be the emptiest one all the while. The configuration that has it cordoned is taken away last, as one can't
    before.
    """
    orders = cluster.create_topic("orders", partitions=4, replicas=2)
    world = World(cluster, orders)
    broker = leader_of(orders[0])
    leaving = orders[0].log_dir_on(broker)
    staying = other_dir(leaving)
    with workload.running(orders) as pair, topics_created(world) as creation:
        creation.learn(at_least=3)
        cordon(world, broker, leaving)
        creation.learn(at_least=1)
        reassign(cluster, world, *placements_within(world, leaving, staying))
        creation.learn(at_least=ENOUGH)
        check_empty(leaving)
        pair.await_progress(after=now())
        broker.stop()
        world.broker_gone(broker)
        broker.use_log_dirs(staying)
        broker.start()
        world.broker_back(broker)
        world.cordons(broker)
        world.check(timeouts.RECOVERY_S)
        broker.configure({CORDONED: None})
        creation.learn(at_least=ENOUGH)
        pair.await_progress(after=now())
    check_delivery(workload)
