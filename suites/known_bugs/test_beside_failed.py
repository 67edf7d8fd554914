"""Shows bugs of Kafka with reassignments beside a failed log dir (KIP-112), one scenario each.

KAFKA-19975 and KAFKA-14808 are declared deviations, since 3.9, the last release line with ZooKeeper, has them.
KNOWN_BUGS.md has the builds.
"""

from __future__ import annotations

from collections.abc import Callable

from faults.base import injected
from faults.broker import BrokerStopped
from faults.log_dir import Chmod000
from faults.targets import follower_of, leader_of
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, JbodError, PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import PartitionState
from harness.kafka.versions import Mode
from harness.timeouts import RECOVERY_S
from harness.waiting import await_until
from suites.checks import promised
from suites.deviations import LEADER_REMOVED, STAYING_REPLICA_AWAITED
from suites.known_bugs.patience import patience_to_reassign
from suites.observations import metadata_log
from suites.on_disk import check_no_leftovers
from suites.reassignments import await_no_reassignment
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import log_dirs_failed, restart_after_healing


def reassign_until_in_sync(partition: Partition, coming: Broker, staying: Broker) -> None:
    """Begin to reassign a partition to these brokers, and wait until the replica that is added is in the ISR."""
    partition.cluster.reassign(partition, [coming, staying])
    await_described(partition, lambda seen: coming.id in seen.isr, f"{coming} to be in the ISR of {partition}")


def await_described(
    partition: Partition,
    until: Callable[[PartitionState], bool],
    what: str,
    *,
    timeout_s: float = RECOVERY_S,
    failure: type[JbodError] = Inconclusive,
) -> None:
    """Wait until every live broker describes the partition like this."""
    brokers = partition.cluster.live_brokers()

    def described() -> list[PartitionState]:
        """Without the answers of brokers that have just started and do not know the partition yet."""
        answers = [state for broker in brokers for state in broker.describe_cluster().partitions]
        return [state for state in answers if (state.topic, state.partition) == (partition.topic, partition.index)]

    await_until(
        described,
        lambda states: len(states) == len(brokers) and all(map(until, states)),
        timeout_s=timeout_s,
        what=what,
        retry_on=(NoAnswer,),
        failure=failure,
    )


def await_led(partition: Partition, *, preferring: Broker, timeout_s: float = RECOVERY_S) -> None:
    """Wait until every live broker knows a leader of the partition, whose first replica is on this broker.

    :raises PromiseBroken: the partition has no leader
    """
    await_described(
        partition,
        lambda seen: seen.replicas[0] == preferring.id and seen.leader is not None,
        f"{partition} to have a leader",
        timeout_s=timeout_s,
        failure=PromiseBroken,
    )


@scenario(
    "known-bugs/reassigned-beside-failed",
    kip=112,
    plan="7. Partition reassignment: a replica that stays is on a failed log directory",
    modes=(Mode.KRAFT,),
    issue="KAFKA-19975",
    judged=False,
    deviations=(STAYING_REPLICA_AWAITED,),
)
def test_reassigned_beside_failed(cluster: Cluster) -> None:
    """A partition is reassigned while the log dir of a replica that stays has failed: the reassignment ends."""
    orders = cluster.create_topic("orders", replicas=2)
    state = StateCheck(cluster, orders)
    enough_s = patience_to_reassign(state, orders[0])
    leader, wounded = leader_of(orders[0]), follower_of(orders[0])
    [spare] = cluster.others(leader, wounded)
    failed = orders[0].log_dir_on(wounded)
    with log_dirs_failed(state, Chmod000(failed), check_at_end=False):
        reassign_until_in_sync(orders[0], spare, wounded)
        waits = rf"last seen: \(Reassignment\(.* adding=\({spare.id},\), removing=\({leader.id},\)\),\)"
        with promised(cluster, unless=STAYING_REPLICA_AWAITED, seen=waits) as outcome:
            await_no_reassignment(cluster, timeout_s=enough_s)
        state.reassigned(orders[0], [orders[0].log_dir_on(spare), failed])
        if not outcome.deviates:
            state.check(also=[metadata_log])
    restart_after_healing(state, wounded)
    check_no_leftovers(cluster, ["orders"])


@scenario(
    "known-bugs/reassigned-again",
    kip=112,
    plan="7. Partition reassignment: another one takes its place, without the replica that leads",
    issue="KAFKA-14808",
    judged=False,
    deviations=(LEADER_REMOVED,),
)
def test_reassigned_again(cluster: Cluster) -> None:
    """A second reassignment replaces one that waits for a failed log dir: the partition still has a leader.

    By then, the replica that the first one adds is the leader. The second one leaves this replica out.
    """
    orders = cluster.create_topic("orders", replicas=2)
    state = StateCheck(cluster, orders)
    enough_s = patience_to_reassign(state, orders[0])
    leader, wounded = leader_of(orders[0]), follower_of(orders[0])
    [spare] = cluster.others(leader, wounded)
    failed = orders[0].log_dir_on(wounded)
    with log_dirs_failed(state, Chmod000(failed), check_at_end=False):
        reassign_until_in_sync(orders[0], spare, wounded)
        if leader_of(orders[0]) != spare:  # the first reassignment waits
            with injected(BrokerStopped(leader)):
                await_described(orders[0], lambda seen: seen.leader == spare.id, f"{spare} to lead {orders[0]}")
            back = f"{leader} to be in the ISR of {orders[0]}"
            await_described(orders[0], lambda seen: leader.id in seen.isr, back)
        cluster.reassign(orders[0], [wounded])
        with promised(cluster, unless=LEADER_REMOVED, seen=rf"leader=None, .*isr=\({leader.id},\)"):
            await_led(orders[0], preferring=wounded, timeout_s=enough_s)
        cluster.cancel_reassignment(orders[0])
        await_no_reassignment(cluster)
        await_led(orders[0], preferring=wounded)
        state.reassigned(orders[0], [failed, orders[0].log_dir_on(leader_of(orders[0]))])
        state.check()
    restart_after_healing(state, wounded)
    check_no_leftovers(cluster, ["orders"])
