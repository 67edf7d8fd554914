"""Shows that topics survive a failed rack, and readers a failed nearest replica (KIP-36 "Motivation", KIP-392)."""

from __future__ import annotations

from faults.base import injected
from faults.held import Held
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.journal import now
from harness.kafka.admin import NewTopic
from harness.kafka.connection import NoAnswer
from harness.measure.floors import Floors
from harness.runner.case_workload import CaseWorkload
from harness.waiting import await_until
from harness.workload.pair import Pair
from suites.checks import check_delivery, check_ends, promised
from suites.deviations import FAILED_REPLICA_PREFERRED
from suites.kip_36.layouts import NEAREST, racks_of
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import ALL_DIRS_FAILED, check_led, log_dirs_failed, rack_killed, write_untracked_records

READS_NOTHING = (
    r"the producer has stood still for \d\.\d s .*; the consumer has stood still for .* \(nothing read\); "
    r"a fresh client with the settings of \w+ reads nothing either$"
)
"""The error if the producer gets acks, and consumers get no records, also new consumers."""

PAIRS = ("a", "a", "b", "b", "c", "c")


@scenario(
    "kip-36/rack-fails",
    kip=36,
    plan="Motivation: fault tolerance from the racks; killed, and all its log dirs",
    brokers=6,
    racks=PAIRS,
)
def test_rack_fails(cluster: Cluster, workload: CaseWorkload) -> None:
    """A rack's brokers are killed, then all log dirs of another rack fail: topics with 2 or 3 replicas serve on."""
    shapes = [NewTopic(name="two", partitions=6, replicas=2), NewTopic(name="three", partitions=6, replicas=3)]
    two, three = cluster.create_topics(*shapes)
    state = StateCheck(cluster, two, three)
    with workload.running(two, rate_per_s=600) as pair, workload.running(three, rate_per_s=600) as other:
        with rack_killed(state, rack(cluster, "a")):
            pair.await_progress(after=now())
            other.await_progress(after=now())
        lost = rack(cluster, "b")
        with injected(*(Chmod000(log_dir) for broker in lost for log_dir in broker.log_dirs)):
            for broker in lost:
                check_ends(broker, exit_code=1, saying=ALL_DIRS_FAILED)
            state.broker_gone(*lost)
            check_led(state)
            pair.await_progress(after=now())
            other.await_progress(after=now())
        for broker in lost:
            broker.start()
            state.broker_back(broker)
        state.check(timeouts.RECOVERY_S)
    check_delivery(workload)


def rack(cluster: Cluster, name: str) -> list[Broker]:
    """The brokers of a rack."""
    racks = racks_of(cluster.brokers)
    return [broker for broker in cluster.brokers if racks[broker.id] == name]


@scenario(
    "kip-36/nearest-replica",
    kip=36,
    plan="Motivation: racks (KIP-392: fetch from the nearest replica, whose log dir fails)",
    racks=("a", "b", "c"),
    floors=Floors(during=0),  # the scenario itself waits for records, except on builds that read none
    deviations=(FAILED_REPLICA_PREFERRED,),
    overrides=NEAREST,
)
def test_nearest_replica(cluster: Cluster, workload: CaseWorkload) -> None:
    """A consumer reads from the follower in its rack (KIP-392), whose log dir fails: it reads on from the leader."""
    orders = cluster.create_topic("orders", partitions=1, replicas=3)
    state = StateCheck(cluster, orders)
    nearest, leader = follower_of(orders[0]), leader_of(orders[0])
    near = {"client.rack": racks_of(cluster.brokers)[nearest.id] or ""}
    with workload.running(orders, consumer_config=near) as pair:
        check_reads_from(pair, nearest, cluster.others(nearest))
        with log_dirs_failed(state, Chmod000(orders[0].log_dir_on(nearest))):
            with promised(cluster, unless=FAILED_REPLICA_PREFERRED, seen=READS_NOTHING) as outcome:
                pair.await_progress(after=now())
            if not outcome.deviates:
                check_reads_from(pair, leader, [])
        nearest.restart()
        state.log_dirs_healed(nearest)
        state.check(timeouts.RECOVERY_S)
        pair.await_progress(after=now())
    check_delivery(workload)


@scenario(
    "kip-36/most-caught-up-replica",
    kip=36,
    plan="Motivation: racks (KIP-392: of several replicas in the consumer's rack, the most caught-up one)",
    racks=("a", "b", "b"),
    judged=False,
    holds=True,
    overrides=NEAREST | {"replica.lag.time.max.ms": "30000"},  # a follower that is held stays in the ISR
)
def test_most_caught_up_replica(cluster: Cluster) -> None:
    """One of two followers in a rack does not fetch: the leader sends consumers of this rack to the other one."""
    leader, *followers = cluster.brokers
    [orders] = cluster.create_topics(NewTopic(name="orders", assignment={0: [broker.id for broker in cluster.brokers]}))
    write_untracked_records(orders, 100)
    of_leader = f"ReplicaFetcherThread-0-{leader.id}"
    for behind, ahead in (followers, followers[::-1]):
        with injected(Held(cluster, behind, "follower-fetches", of_thread=of_leader)):
            write_untracked_records(orders, 100, to=leader)
            check_sent_to(leader, ahead, behind)


def check_sent_to(leader: Broker, ahead: Broker, behind: Broker) -> None:
    """The leader sends consumers of the followers' rack to the one that has all records."""
    await_until(
        lambda: leader.admin.replica_to_read("orders", 0, 0, rack="b"),
        lambda chosen: chosen == ahead.id,
        timeout_s=timeouts.REQUEST_S,
        what=f"{leader} to send consumers of the rack to {ahead}, since {behind} lacks records",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def check_reads_from(pair: Pair, broker: Broker, others: list[Broker]) -> None:
    """The pair's consumer comes to read from this broker and from none of the others, by the brokers' byte counts.

    It asks the leader first, and again each time that it must choose, so the first counts may have some of both.

    :raises PromiseBroken: it does not
    """

    def served() -> dict[Broker, int]:
        before = {each: sent(each, pair.topic) for each in (broker, *others)}
        pair.await_progress(after=now(), records=500)
        counts = {each: sent(each, pair.topic) - count for each, count in before.items()}
        broker.journal.write("consumer.served", bytes={str(each): count for each, count in counts.items()})
        return counts

    await_until(
        served,
        lambda counts: bool(counts[broker]) and not any(counts[each] for each in others),
        timeout_s=timeouts.PROGRESS_S,
        what=f"{broker} to serve the consumer, and no other broker",
        failure=PromiseBroken,
    )


def sent(broker: Broker, topic: str) -> int:
    """The bytes of the topic that the broker has sent to clients so far, by its MBean."""
    assert broker.mbeans is not None
    return broker.mbeans.bytes_out(topic)
