"""Shows which replica leads where the controller need not take one from the ISR, or has a choice.

A replica outside the ISR leads only if its topic allows it, or if an operator requests it (KIP-460). The preferred
replica leads again by itself once it is in sync.
"""

from __future__ import annotations

from confluent_kafka import ElectionType

from faults.base import injected
from faults.broker import BrokerKilled, BrokerStopped
from faults.log_dir import Chmod000
from faults.targets import leader_of
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.versions import Mode, VersionRange
from suites.checks import check_noticed
from suites.leadership import await_leader, await_out_of_sync, await_state, elect_all_preferred, election_error
from suites.moves import SMALL_FETCHES
from suites.on_disk import check_same_bytes
from suites.reassignments import throttle_replication
from suites.scenario import scenario
from suites.steps import await_checkpoints, await_replica, write_untracked_records

OFTEN = {
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "1",
    "unclean.leader.election.interval.ms": "1000",
}
"""The controller looks each second for leaders that are not the preferred ones, and for partitions without a leader."""
LOOKS_FOR_LEADERLESS = VersionRange.parse(">=4.0")
"""The builds whose KRaft controller notices that a topic now allows unclean elections (KAFKA-12670)."""
RECORDS = 100
MORE_THAN_ONE_FETCH = 1000  # records of 1 kB


@scenario(
    "logs/unclean-election",
    kip=460,
    plan="the last replica in sync is gone, and one that lacks records is back",
    judged=False,
    overrides=OFTEN,
)
def test_unclean_election(cluster: Cluster) -> None:
    """The last replica in sync is killed: another one leads only once its topic allows it, or an operator requests it.

    Each of these elections is counted, and the replica that was in sync takes over the new leader's log.
    """
    controller = cluster.describe().controller  # with ZooKeeper a broker, which counts the elections
    bystander, last, behind = sorted(cluster.brokers, key=lambda broker: broker.id != controller)
    allowed, requested = cluster.create_topics(
        *(NewTopic(name=name, replicas=2, assignment={0: [behind.id, last.id]}) for name in ("allowed", "requested"))
    )
    logs = (allowed[0], requested[0])
    for topic in (allowed, requested):
        write_untracked_records(topic, RECORDS)
    mbeans = cluster.mbeans[cluster.active_controller().spec.name]
    before = mbeans.unclean_elections()
    behind.stop()
    for topic in (allowed, requested):
        await_out_of_sync(topic[0], behind)
        write_untracked_records(topic, RECORDS, to=last)
    with injected(BrokerKilled(last)):
        for log in logs:
            await_leader(log, bystander, lambda leader: leader is None, "to have no leader")
        behind.start()
        for log in logs:
            check_not_elected(log, behind, bystander)
        if cluster.spec.mode is Mode.ZK or cluster.distribution.version in LOOKS_FOR_LEADERLESS:
            allowed.configure({"unclean.leader.election.enable": "true"})
        else:
            check_elected_uncleanly(allowed[0])
        await_leader(allowed[0], bystander, lambda leader: leader == behind.id, f"to be led by {behind}")
        check_not_elected(requested[0], behind, bystander)
        check_elected_uncleanly(requested[0])
        await_leader(requested[0], bystander, lambda leader: leader == behind.id, f"to be led by {behind}")
        if (counted := mbeans.unclean_elections() - before) != len(logs):
            raise PromiseBroken(f"UncleanLeaderElectionsPerSec counted {counted} elections instead of {len(logs)}")
    cluster.await_healthy(failure=PromiseBroken)
    check_same_bytes(*logs)
    if wrong := {name: end for name, end in cluster.end_offsets((allowed, requested)).items() if end != RECORDS}:
        raise PromiseBroken(f"{behind} led with {RECORDS} records of each partition; now these end at {wrong}")


@scenario(
    "logs/unclean-at-once",
    kip=112,
    plan="unclean elections are allowed, and the log dir of the last replica in sync fails",
    judged=False,
    overrides=SMALL_FETCHES,
)
def test_unclean_at_once(cluster: Cluster) -> None:
    """The log dir of the last replica in sync fails, where unclean elections are allowed: another one leads at once.

    It does not wait until the controller next looks for partitions without a leader, which is every five minutes
    (``unclean.leader.election.interval.ms``). A throttle keeps it out of the ISR while it is alive.
    """
    last, behind, bystander = cluster.brokers
    allows = {"unclean.leader.election.enable": "true"}
    [allowed] = cluster.create_topics(
        NewTopic(name="allowed", replicas=2, assignment={0: [last.id, behind.id]}, configs=allows)
    )
    throttle_replication(allowed, rate=1)  # a replica in sync is not throttled
    write_untracked_records(allowed, RECORDS)
    behind.stop()
    await_out_of_sync(allowed[0], behind)
    write_untracked_records(allowed, MORE_THAN_ONE_FETCH, size=1000, to=last)
    behind.start()
    await_state(
        allowed[0],
        lambda seen: behind.id not in seen.offline_replicas,
        f"{behind} to be alive",
        timeouts.RECOVERY_S,
        via=bystander,
    )
    if behind.id in (seen := allowed[0].describe(bystander)).isr:
        raise Inconclusive(f"the throttle did not keep {behind} out of the ISR: {seen}")
    with injected(fault := Chmod000(allowed[0].log_dir_on(last))):
        check_noticed(fault)
        await_leader(allowed[0], bystander, lambda leader: leader == behind.id, f"to be led by {behind}")
    last.restart()
    cluster.await_healthy(failure=PromiseBroken)
    check_same_bytes(allowed[0])


def check_not_elected(partition: Partition, behind: Broker, via: Broker) -> None:
    """The only live replica is out of the ISR: the partition stays without a leader, while its broker works."""
    await_state(
        partition,
        lambda seen: behind.id not in seen.offline_replicas,
        f"the controller to count the replica of {partition} on {behind} as online",
        timeouts.RECOVERY_S,
        via=via,
    )
    await_checkpoints(await_replica(behind, partition), 4)  # longer than the controller waits until it looks again
    seen = partition.describe(via)
    if seen.leader is not None:
        raise PromiseBroken(
            f"unclean elections of {partition} are disabled, and it has a leader outside the ISR: {seen}"
        )


def check_elected_uncleanly(partition: Partition) -> None:
    """The controller carries out the request for an unclean election."""
    if (error := election_error(partition, ElectionType.UNCLEAN)) is not None:
        raise PromiseBroken(f"an unclean election of {partition} was requested, and the answer is {error}")


@scenario(
    "logs/leader-rebalanced",
    kip=112,
    plan="a leader is stopped, and comes back: the preferred replica leads again (auto.leader.rebalance.enable)",
    judged=False,
    overrides=OFTEN,
)
def test_leader_rebalanced(cluster: Cluster) -> None:
    """The preferred leader is stopped, and another replica leads: once it is back, it leads again by itself."""
    events = cluster.create_topic("events")
    preferred = leader_of(events[0])
    via = cluster.others(preferred)[0]
    with injected(BrokerStopped(preferred)):
        await_leader(events[0], via, lambda leader: leader not in (None, preferred.id), "to be led by another broker")
        write_untracked_records(events, RECORDS)
    cluster.await_healthy(failure=PromiseBroken)
    await_leader(events[0], via, lambda leader: leader == preferred.id, f"to be led by {preferred} again")
    check_same_bytes(events[0])


@scenario(
    "logs/all-elected",
    kip=460,
    plan="a broker was stopped, and an operator requests the election of all preferred leaders",
    judged=False,
)
def test_all_elected(cluster: Cluster) -> None:
    """A broker was stopped and leads nothing: an election of all preferred leaders makes each lead its partition."""
    events = cluster.create_topic("events", partitions=6)
    stopped = leader_of(events[0])
    with injected(BrokerStopped(stopped)):
        write_untracked_records(events, RECORDS)
    cluster.await_healthy(failure=PromiseBroken)
    elsewhere = [str(partition) for partition in events.partitions if not led_by_preferred(partition)]
    if len(elsewhere) < 2:
        raise Inconclusive(f"of {events}, only {elsewhere} are led by another broker than the preferred leader")
    elect_all_preferred(cluster)
    for partition in events.partitions:
        await_state(
            partition,
            lambda seen: seen.leader == seen.replicas[0],
            f"the first replica of {partition} to lead it, as was requested for all partitions",
            timeouts.REQUEST_S,
        )


def led_by_preferred(partition: Partition) -> bool:
    """Whether the first replica of a partition leads it."""
    seen = partition.describe()
    return seen.leader == seen.replicas[0]
