"""Shows bugs of Kafka's controller, and of what brokers report to it, one scenario each: invalid with the bug.

Two bugs are declared deviations, since default builds have them: KAFKA-19212 (3.9.2), and finding 32 (4.4.0).
KNOWN_BUGS.md and FINDINGS.md have the builds.
"""

from __future__ import annotations

from collections.abc import Sequence

from faults.base import injected
from faults.broker import BrokerPaused
from faults.held import Held
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.cluster.under_way import await_nothing_under_way
from harness.errors import BuildLacks, Inconclusive, PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.connection import NoAnswer
from harness.kafka.versions import Mode
from harness.timeouts import MOVE_S
from harness.waiting import await_until
from suites.checks import check_promised_or_known
from suites.deviations import CLEAN_ELECTIONS_COUNTED, REVERSED_NEVER_ENDS
from suites.reassignments import await_no_reassignment, check_reassigning, reassign_by_request
from suites.scenario import NO_FAULT, scenario
from suites.state_check import StateCheck
from suites.steps import await_replica

ENDED = "it ends"
IN_BOTH = "it does not end: the replica is in the ISR, and is both an adding and a removing replica"
TOPICS = 5
"""The number of short-lived topics. Before 3.9, a broker reports log dirs 0.5 s after it has created its newest
replica. So each topic delays the reports of the topics before it."""


def check_all_reported(cluster: Cluster) -> None:
    """No broker has log dirs of replicas left to report to the controller, and nothing else is under way.

    :raises BuildLacks: no MBean shows it
    """
    read, brokers = await_nothing_under_way(cluster), cluster.live_brokers()
    if read != [broker.id for broker in brokers]:
        raise BuildLacks(f"only the brokers {read} of {len(brokers)} have the MBean QueuedReplicaToDirAssignments")


@scenario(
    "known-bugs/deleted-before-reported",
    kip=112,
    plan="a topic is deleted before its brokers report its log dirs",
    issue="KAFKA-17190",
    modes=(Mode.KRAFT,),
    judged=False,
    floors=NO_FAULT,
)
def test_deleted_before_reported(cluster: Cluster) -> None:
    """Topics are deleted as soon as their replicas exist: brokers stop reporting log dirs of these replicas."""
    for number in range(TOPICS):
        topic = Topic(cluster, f"short-lived-{number}", 1)
        cluster.request_topics(NewTopic(name=topic.name, partitions=1, replicas=3))
        for broker in cluster.brokers:
            await_replica(broker, topic[0])
        cluster.delete_topics(topic)
    check_all_reported(cluster)


@scenario(
    "known-bugs/removed-before-reported",
    kip=112,
    plan="a replica is reassigned before its broker reports its log dir",
    issue="KAFKA-16886",
    modes=(Mode.KRAFT,),
    judged=False,
    holds=True,
)
def test_removed_before_reported(cluster: Cluster) -> None:
    """A new replica is reassigned before its broker reports its log dir: the broker stops reporting it."""
    first, second, _ = cluster.brokers
    orders = Topic(cluster, "orders", 1)
    placed = NewTopic(name=orders.name, assignment={0: [first.id]})
    with injected(Held(cluster, first, "assignments-sent", by=lambda: cluster.request_topics(placed))):
        await_replica(first, orders[0])
        cluster.reassign(orders[0], [second])
        await_no_reassignment(cluster)
    check_all_reported(cluster)


def end_of_reversal(partition: Partition, holders: Sequence[Broker], target: Broker) -> str:
    """Add a replica by a reassignment, reverse it by another one, and return how that ends.

    The broker of the new replica is paused meanwhile, so that the first one cannot end before.

    :raises Inconclusive: the first one has ended all the same
    """
    cluster = partition.cluster
    with injected(BrokerPaused(target)):
        cluster.reassign(partition, [*holders, target])
        check_reassigning(cluster, partition, failure=Inconclusive)
        cluster.reassign(partition, holders)

    def seen() -> str | None:
        """It does not end if the replica is in the ISR, and is to be added and removed."""
        under_way, isr = cluster.reassignments(), partition.describe(holders[0]).isr
        if not under_way:
            return ENDED
        return IN_BOTH if under_way[0].adding == under_way[0].removing == (target.id,) and target.id in isr else None

    end = await_until(
        seen,
        timeout_s=MOVE_S,
        what=f"the reassignment of {partition} to end",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    assert end is not None
    return end


@scenario(
    "known-bugs/reassignment-reversed",
    kip=112,
    plan="a reassignment that adds a replica is reversed by another one",
    issue="KAFKA-19975",
    judged=False,
    deviations=(REVERSED_NEVER_ENDS,),
)
def test_reassignment_reversed(cluster: Cluster) -> None:
    """A reassignment to the old replicas replaces one that adds a replica: the added replica is removed again."""
    controller = cluster.describe().controller  # with ZooKeeper a broker, which must not be paused
    *holders, target = sorted(cluster.brokers, key=lambda broker: broker.id != controller)
    assignment = {0: [broker.id for broker in holders]}
    [orders] = cluster.create_topics(NewTopic(name="orders", replicas=2, assignment=assignment))
    state = StateCheck(cluster, orders)
    end = end_of_reversal(orders[0], holders, target)
    if check_promised_or_known(REVERSED_NEVER_ENDS, cluster, end, promised=ENDED, known=IN_BOTH):
        cluster.cancel_reassignment(orders[0])
        await_no_reassignment(cluster)
    state.reassigned(orders[0], [orders[0].log_dir_on(broker) for broker in holders])
    state.check()


@scenario(
    "known-bugs/clean-election-counted",
    kip=112,
    plan="a reassignment ends with a new leader from the ISR: no election is counted as unclean",
    issue="KAFKA-19212",
    judged=False,
    floors=NO_FAULT,
    deviations=(CLEAN_ELECTIONS_COUNTED,),
)
def test_clean_election_counted(cluster: Cluster) -> None:
    """A partition's only replica is reassigned twice: new leaders are in the ISR, and no election counts as unclean."""
    orders = cluster.create_topic("orders", replicas=1)
    state = StateCheck(cluster, orders)
    controller = cluster.mbeans[cluster.active_controller().spec.name]
    before = controller.unclean_elections()
    others = cluster.others(orders[0].leader())
    for broker in others:
        reassign_by_request(state, orders[0], broker)
    counted = controller.unclean_elections() - before
    check_promised_or_known(CLEAN_ELECTIONS_COUNTED, cluster, counted, promised=0, known=len(others))
