"""Shows that a cordoned log dir "still fully functions but no new partitions can be allocated on it" (KIP-1066)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import Chmod000
from faults.quorum import ControllerKilled
from faults.targets import leader_of, other_dir
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.answers import Refused
from harness.kafka.tool_answers import UNASSIGNED, dump_snapshot
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from suites.checks import check_delivery, check_promised_or_known
from suites.controllers import controllers_admin, restarted_from_snapshot, restarted_with_snapshots
from suites.deviations import PLACED_WITHOUT_HINT, REQUEST_OUTLASTS_CORDON
from suites.kip_1066.cordons import (
    CORDONED,
    await_in_force,
    await_known_to_controller,
    cordon,
    cordon_scenario,
)
from suites.kip_1066.refused import check_refused_without_effect
from suites.kip_1066.test_refusals import TOO_FEW
from suites.log_cleaning import COMPACTED, check_policy_enforced
from suites.observations import directories, metadata_log
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing


@cordon_scenario("kip-1066/placement", plan="still fully functions but no new partitions can be allocated on it")
def test_placement(cluster: Cluster, workload: CaseWorkload) -> None:
    """A log dir, then its whole broker, is cordoned under load: its replicas serve on, and it gets no new ones.

    A compacted topic stays compacted. Once uncordoned, the log dir gets all new replicas of its broker, since it has
    the fewest.
    """
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    state = StateCheck(cluster, orders)
    broker = leader_of(orders[0])
    cordoned = orders[0].log_dir_on(broker)
    with workload.running(orders) as pair:
        cordon(state, broker, cordoned)
        half = create_and_count(state, "half", replicas=3, to={other_dir(cordoned): 4}, configs=COMPACTED)
        pair.await_progress(after=now())
        cordon(state, broker, *broker.log_dirs, value="*")
        check_stays_compacted(half, broker)
        create_and_count(state, "wholly", replicas=2, to=dict.fromkeys(broker.log_dirs, 0))
        pair.await_progress(after=now())
        state.check(also=[metadata_log])
        cordon(state, broker)
        create_and_count(state, "again", replicas=3, to={cordoned: 4})
        pair.await_progress(after=now())
    check_delivery(workload)


def create_and_count(
    state: StateCheck, name: str, *, replicas: int, to: dict[LogDir, int], configs: Mapping[str, str] | None = None
) -> Topic:
    """Create a topic of four partitions, and check how many of its replicas are in these log dirs."""
    topic = state.cluster.create_topic(
        name, partitions=4, replicas=replicas, configs=configs or {}, failure=PromiseBroken
    )
    state.add_topic(topic)
    state.check()
    for log_dir, count in to.items():
        seen = sum(topic == name for topic, _ in state.replicas_in(log_dir))
        if seen != count:
            raise PromiseBroken(f"{seen} new replicas are on {log_dir} instead of {count}")
    return topic


def check_stays_compacted(topic: Topic, broker: Broker) -> None:
    """A broker whose log dirs were cordoned still knows the topic's own configs.

    :raises Inconclusive: it leads no partition of the topic
    """
    led = [partition for partition in topic.partitions if partition.leader() == broker]
    if not led:
        raise Inconclusive(f"{broker} leads no partition of {topic}")
    for partition in led:
        check_policy_enforced(partition)


REQUESTED = 4
"""The number of new replicas. Without a request, a broker would spread them over its two log dirs."""


@cordon_scenario(
    "kip-1066/requested-before",
    plan="Even if a broker does not pick the directory hinted by the controller, only a log directory not cordoned",
    judged=False,
    deviations=(REQUEST_OUTLASTS_CORDON, PLACED_WITHOUT_HINT),
    brokers=2,
    mbeans=False,
)
def test_requested_before(cluster: Cluster) -> None:
    """A log dir is requested for replicas, and cordoned before they exist: they are created in the other log dir.

    The controller's hint is the other log dir, too. Without a cordon, the broker creates them as requested.
    """
    state = StateCheck(cluster, cluster.create_topic("orders", partitions=4, replicas=2))
    broker = cluster.brokers[1]
    requested, other = broker.log_dirs
    for partition in (Partition(cluster, name, index) for name in ("before", "after") for index in range(REQUESTED)):
        with suppress(Refused):  # the broker remembers the log dir, and refuses (KIP-113)
            partition.move_to(requested)
    before = cluster.create_topic("before", partitions=REQUESTED, replicas=2)
    state.add_topic(before)
    if (places := {each.log_dir_on(broker) for each in before.partitions}) != {requested}:
        raise Inconclusive(f"{broker} did not remember that {requested} was requested: {before.name} is in {places}")
    cordon(state, broker, requested)
    after = cluster.create_topic("after", partitions=REQUESTED, replicas=2)
    places = {each.log_dir_on(broker) for each in after.partitions}
    check_promised_or_known(REQUEST_OUTLASTS_CORDON, cluster, places, promised={other}, known={requested})
    hinted = directories(cluster).hinted
    hints = {hinted[after.name, index][broker.id] for index in range(REQUESTED)}
    check_promised_or_known(PLACED_WITHOUT_HINT, cluster, hints, promised={other.directory_id()}, known={UNASSIGNED})
    state.add_topic(after, cordoned=frozenset())
    state.check()


@cordon_scenario(
    "kip-1066/lasts",
    plan="the cordoned log directories of each broker are persisted",
    floors=Floors(faults=2),
    controllers=3,
)
def test_lasts(cluster: Cluster, workload: CaseWorkload) -> None:
    """Cordons last: another controller takes over, the cordoned broker is killed and comes back, controllers restart.

    A fenced broker gets replicas if no other brokers are left; a wholly cordoned one does not. Heartbeats go to the
    active controller only, and a broker that is down sends none to the next one. So the next controller must know the
    cordons from the metadata log or a snapshot. A cordon that is removed by a controller while the broker is down is
    gone when the broker is back.
    """
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    state = StateCheck(cluster, orders)
    broker = cluster.brokers[2]
    admin = cluster.brokers[0].admin
    with workload.running(orders) as pair:
        cordon(state, broker, *broker.log_dirs)
        with injected(ControllerKilled(cluster, cluster.brokers[0])):
            pair.await_progress(after=now())
            await_in_force(state, broker, *broker.log_dirs)
            check_nothing_placed(state, "after-failover")
        with injected(BrokerKilled(broker)):
            state.broker_gone(broker)
            state.check()
            check_wide_refused(cluster, "fenced")
            with injected(ControllerKilled(cluster, cluster.brokers[0])):
                await_known_to_controller(cluster, broker, *broker.log_dirs)
                check_wide_refused(cluster, "known-to-another")
                pair.await_progress(after=now())
            snapshot = restarted_with_snapshots(cluster)
            await_known_to_controller(cluster, broker, *broker.log_dirs)
            check_wide_refused(cluster, "known-from-log")
            check_in_snapshot(cluster, snapshot, broker, *broker.log_dirs)
            restarted_from_snapshot(cluster, snapshot)
            await_known_to_controller(cluster, broker, *broker.log_dirs)
            check_wide_refused(cluster, "known-from-snapshot")
            pair.await_progress(after=now())
        state.broker_back(broker)
        await_in_force(state, broker, *broker.log_dirs)
        check_nothing_placed(state, "after-crash")
        state.check(also=[metadata_log])
        with injected(BrokerKilled(broker)):
            state.broker_gone(broker)
            state.check()
            controllers_admin(cluster).set_broker_configs(broker.id, {CORDONED: None})
            pair.await_progress(after=now())
        state.broker_back(broker)
        state.set_cordoned(broker)
        await_in_force(state, broker)
        with injected(BrokerKilled(broker)):
            state.broker_gone(broker)
            state.check()
            check_given_to_fenced(admin, broker.id)
            pair.await_progress(after=now())
        state.broker_back(broker)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    check_delivery(workload)


def check_in_snapshot(cluster: Cluster, snapshot: Path, broker: Broker, *log_dirs: LogDir) -> None:
    """The broker's registration in a snapshot has exactly these log dirs as cordoned."""
    should = frozenset(log_dir.directory_id() for log_dir in log_dirs)
    seen = dump_snapshot(cluster.distribution, snapshot).registered_as_cordoned.get(broker.id)
    if seen != should:
        raise PromiseBroken(
            f"{snapshot.name} has {seen and sorted(seen)} of {broker} cordoned instead of {sorted(should)}"
        )


def check_nothing_placed(state: StateCheck, name: str) -> None:
    """New replicas are placed on the other two brokers only, and a topic that needs all three is refused."""
    state.add_topic(state.cluster.create_topic(name, partitions=6, replicas=2, failure=PromiseBroken))
    check_wide_refused(state.cluster, f"{name}-wide")
    state.check()


def check_wide_refused(cluster: Cluster, name: str) -> None:
    """A topic that needs all three brokers is refused."""
    admin = cluster.brokers[0].admin
    check_refused_without_effect(
        cluster,
        name,
        lambda: admin.create_topics([NewTopic(name=name)]),
        "INVALID_REPLICATION_FACTOR",
        TOO_FEW,
    )


def check_given_to_fenced(admin: Admin, fenced: int) -> None:
    """Without a cordon, a topic that needs the fenced broker is created.

    :raises Inconclusive: it is not placed there, so a cordon would show nothing
    """
    admin.create_topics([NewTopic(name="fenced")])
    [state] = await_until(
        lambda: admin.describe_cluster(topics=("fenced",)).partitions,
        timeout_s=timeouts.REQUEST_S,
        what="the new topic to be known",
        failure=PromiseBroken,
    )
    if fenced not in state.replicas:
        raise Inconclusive(f"a fenced broker gets no replicas, so its cordon shows nothing: {state}")


@cordon_scenario(
    "kip-1066/log-dirs-fail",
    plan="the cordoned log directory fails; the last one that is not cordoned fails",
    floors=Floors(faults=2),
)
def test_log_dirs_fail(cluster: Cluster, workload: CaseWorkload) -> None:
    """A cordoned log dir fails: the other gets new replicas. The uncordoned one fails: the broker gets no new ones."""
    orders = cluster.create_topic("orders", partitions=2, replicas=3)
    state = StateCheck(cluster, orders)
    broker = leader_of(orders[0])
    cordoned = orders[0].log_dir_on(broker)
    open_one = other_dir(cordoned)
    with workload.running(orders) as pair:
        cordon(state, broker, cordoned)
        with log_dirs_failed(state, Chmod000(cordoned)):
            pair.await_progress(after=now())
            create_and_count(state, "amid", replicas=3, to={open_one: 4})
        restart_after_healing(state, broker)
        await_in_force(state, broker, cordoned)
        with log_dirs_failed(state, Chmod000(open_one)):
            pair.await_progress(after=now())
            check_wide_refused(cluster, "none")
            create_and_count(state, "elsewhere", replicas=2, to={cordoned: 0})
        restart_after_healing(state, broker)
        await_in_force(state, broker, cordoned)
        create_and_count(state, "again", replicas=3, to={open_one: 4})
        pair.await_progress(after=now())
    check_delivery(workload)
