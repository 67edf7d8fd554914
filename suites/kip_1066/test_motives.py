"""Shows what KIP-1066 is for ("Motivation"), under load and with topics being created all the time.

"When adding brokers to a cluster, Kafka currently does not always place new partitions on new brokers; when removing
brokers/log directories, there is no way to prevent Kafka from placing new replicas on these brokers/log directories."
"""

from __future__ import annotations

from collections.abc import Sequence

from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Topic
from harness.errors import PromiseBroken
from harness.journal import now
from harness.runner.case_workload import CaseWorkload
from suites.broker_epochs import check_ids_free, directory_of
from suites.checks import check_delivery
from suites.kip_1066.cordons import CORDONED, cordon, cordon_scenario
from suites.kip_1066.creation import topics_created
from suites.kip_1066.emptied import check_empty, placements_within, reassign_all_away
from suites.reassignments import reassign
from suites.state_check import StateCheck

ENOUGH = 10
"""At least so many topics are created under a cordon."""

# Internal topics get two replicas: only two brokers are left.
SETTINGS = {"offsets.topic.replication.factor": "2"}


@cordon_scenario(
    "kip-1066/brokers-added", plan="add new brokers to a cluster that is at capacity", brokers=2, overrides=SETTINGS
)
def test_brokers_added(cluster: Cluster, workload: CaseWorkload) -> None:
    """Two brokers join a full cluster: only they get new replicas; then the old brokers' replicas move to them."""
    orders = cluster.create_topic("orders", partitions=2, replicas=2)
    state = StateCheck(cluster, orders)
    old = list(cluster.brokers)
    with workload.running(orders) as pair, topics_created(state) as creation:
        creation.add_new_topics(at_least=1)
        new = [cluster.add_broker(), cluster.add_broker()]
        for broker in old:
            cordon(state, broker, *broker.log_dirs, value="*")
        creation.add_new_topics(at_least=ENOUGH)
        pair.await_progress(after=now())
        with creation.created_during("the drain"):
            reassign_all_away(state, *old)
            for broker in old:
                check_empty(*broker.log_dirs)
        creation.add_new_topics(at_least=1)
        pair.await_progress(after=now())
    check_only_on(state, *new)
    check_delivery(workload)


def check_only_on(state: StateCheck, *brokers: Broker) -> None:
    """All replicas are on these brokers, and each of these has some."""
    should = {broker.id for broker in brokers}
    if (seen := {id for expected in state.partitions.values() for id in expected.replicas}) != should:
        raise PromiseBroken(f"replicas are on brokers {sorted(seen)} instead of {sorted(should)}")


@cordon_scenario(
    "kip-1066/broker-decommissioned", plan="reassign its partitions, then remove the broker", overrides=SETTINGS
)
def test_broker_decommissioned(cluster: Cluster, workload: CaseWorkload) -> None:
    """A broker is cordoned, emptied, stopped and unregistered: it stays empty meanwhile, and nothing is lost.

    A new broker may then have its disks.
    """
    orders = cluster.create_topic("orders", partitions=2, replicas=2)
    state = StateCheck(cluster, orders)
    broker = leader_of(orders[0])
    log_dirs = [directory_of(log_dir) for log_dir in broker.log_dirs]
    with workload.running(orders) as pair, topics_created(state) as creation:
        creation.add_new_topics(at_least=3)
        cordon(state, broker, *broker.log_dirs, value="*")
        creation.add_new_topics(at_least=1)
        with creation.created_during("the drain"):
            reassign_all_away(state, broker)
        creation.add_new_topics(at_least=ENOUGH)
        check_empty(*broker.log_dirs)
        pair.await_progress(after=now())
        cluster.remove_broker(broker)
        state.check()
        creation.add_new_topics(at_least=1)
        pair.await_progress(after=now())
    check_delivery(workload)
    check_ids_free(cluster, log_dirs)


@cordon_scenario("kip-1066/disk-taken-out", plan="the process of removing a disk", overrides=SETTINGS)
def test_disk_taken_out(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir is cordoned, its replicas move to the other one, and it is removed from ``log.dirs``.

    It has the fewest replicas all the while, so without the cordon it would get new ones. Its cordon can be
    removed only at the end. Until then the broker has a cordon for a log dir that it no longer has, and must place new
    replicas on the other one. Another broker may then have the disk.
    """
    orders = cluster.create_topic("orders", partitions=4, replicas=2)
    state = StateCheck(cluster, orders)
    broker = leader_of(orders[0])
    leaving = orders[0].log_dir_on(broker)
    disk = directory_of(leaving)
    staying = other_dir(leaving)
    with workload.running(orders) as pair, topics_created(state) as creation:
        creation.add_new_topics(at_least=3)
        cordon(state, broker, leaving)
        creation.add_new_topics(at_least=1)
        with creation.created_during("the moves"):
            reassign(cluster, state, *placements_within(state, leaving, staying))
        creation.add_new_topics(at_least=ENOUGH)
        check_empty(leaving)
        pair.await_progress(after=now())
        broker.stop()
        state.broker_gone(broker)
        broker.use_log_dirs(staying)
        broker.start()
        state.broker_back(broker)
        state.check(timeouts.RECOVERY_S)
        creation.add_new_topics()  # those created before the restart
        check_some_in(state, staying, creation.add_new_topics(at_least=ENOUGH))
        broker.configure({CORDONED: None})
        state.set_cordoned(broker)
        check_some_in(state, staying, creation.add_new_topics(at_least=ENOUGH))
        pair.await_progress(after=now())
    check_delivery(workload)
    check_ids_free(cluster, [disk])


def check_some_in(state: StateCheck, log_dir: LogDir, topics: Sequence[Topic]) -> None:
    """The log dir has replicas of some of these new topics; two topics in three have one on average."""
    names = {topic.name for topic in topics}
    if not any(topic in names for topic, _ in state.replicas_in(log_dir)):
        raise PromiseBroken(f"none of {len(names)} new topics is on {log_dir}, which is not cordoned")
