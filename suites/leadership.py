"""Makes a broker the leader of a partition, and waits for what the controller makes of a partition's replicas."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition, Topic
from harness.errors import Inconclusive, JbodError, PromiseBroken
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import PartitionState
from harness.kafka.versions import VersionRange
from harness.runner.deviation import Deviation
from harness.waiting import await_until
from suites.checks import promised

ELECTS_ELIGIBLE = VersionRange.parse(">=4.1")
"""The builds that elect eligible leader replicas by default: an ISR may be empty (KIP-966)."""


def lead(partition: Partition, broker: Broker) -> None:
    """Make this broker lead (:func:`elect`), and wait until it answers as the leader and all brokers know it.

    :raises Inconclusive: its replica is not in the ISR
    :raises PromiseBroken: the controller does not elect it, or it does not lead in time
    """
    elect(partition, broker)
    cluster = partition.cluster

    def is_known() -> bool:
        broker.admin.end_offset(partition.topic, partition.index)  # which only a leader answers
        return all(partition.describe(each).leader == broker.id for each in cluster.live_brokers())

    await_until(
        is_known,
        timeout_s=timeouts.REQUEST_S,
        what=f"{broker} to answer as the leader of {partition}, and all brokers to know it",
        retry_on=(NoAnswer, Refused),
        failure=PromiseBroken,
    )


def elect(partition: Partition, broker: Broker) -> None:
    """Make this broker the preferred leader, and elect it: in well under a second, without the end of another broker.

    Other brokers may not know it yet, and it may not serve clients yet: threads of both may be held.

    :raises Inconclusive: its replica is not in the ISR
    :raises PromiseBroken: the controller does not elect it
    """
    cluster = partition.cluster
    state = partition.describe()
    if broker.id not in state.isr:
        raise Inconclusive(f"{broker} cannot lead {partition}, since it is not in the ISR: {state}")
    if state.leader == broker.id:
        return
    cluster.reassign(partition, [broker, *(cluster.broker(id) for id in state.replicas if id != broker.id)])

    def is_elected() -> bool:
        election_error(partition, ElectionType.PREFERRED)
        return partition.describe(broker).leader == broker.id

    await_until(
        is_elected,
        timeout_s=timeouts.REQUEST_S,
        what=f"the controller to elect {broker} as the leader of {partition}",
        poll_s=0.05,
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )


def election_error(partition: Partition, election: ElectionType) -> str | None:
    """Request the election of a leader (KIP-460): the name of the controller's error, None if it elects one.

    :raises NoAnswer: there is no answer in time
    """
    [error] = _request_election(partition.cluster, election, [TopicPartition(partition.topic, partition.index)])
    partition.cluster.journal.write("leader.election", partition=str(partition), election=election.name, error=error)
    return error


def elect_all_preferred(cluster: Cluster) -> None:
    """Request the election of the preferred leaders of all partitions, by a request that names none (KIP-460).

    :raises NoAnswer: there is no answer in time
    :raises PromiseBroken: the controller does not elect one of them
    """
    errors = _request_election(cluster, ElectionType.PREFERRED, None)
    cluster.journal.write("leader.election", partition="all", election=ElectionType.PREFERRED.name, error=errors)
    if any(errors):
        raise PromiseBroken(f"all preferred leaders are in sync, and their election ended with {errors}")


def _request_election(
    cluster: Cluster, election: ElectionType, partitions: list[TopicPartition] | None
) -> list[str | None]:
    """The controller's error for each partition of its answer, None for one with a new leader."""
    client = AdminClient({**cluster.bootstrap.librdkafka})
    try:
        # Its request_timeout cannot be given: confluent-kafka 2.16 raises SystemError for it.
        refusals = client.elect_leaders(election, partitions).result(timeouts.REQUEST_S).values()
    except (KafkaException, TimeoutError) as failure:
        raise NoAnswer(f"ElectLeaders: {failure or 'no answer in time'}") from failure
    return [None if refusal is None else str(refusal.name()) for refusal in refusals]


def led_in_same_log_dir(topic: Topic) -> list[Partition]:
    """The partitions that their leader has in the same log dir as the first one.

    :raises Inconclusive: there is no other
    """
    log_dir = topic[0].log_dir_on(topic[0].leader())
    found = [each for each in topic.partitions if each.log_dir_on(each.leader()) == log_dir]
    if len(found) < 2:
        raise Inconclusive(f"{log_dir} has only {topic[0]} of {topic}")
    return found


def check_not_preferred(partition: Partition) -> None:
    """The preferred replica is alive and out of the ISR: the controller refuses to elect it, and the leader stays."""
    before = partition.describe()
    preferred, leader = before.replicas[0], before.leader
    if preferred in before.isr:
        raise Inconclusive(f"broker {preferred}, the first replica of {partition}, is in the ISR: {before}")
    check_election_refused(partition, "PREFERRED_LEADER_NOT_AVAILABLE")
    if (after := partition.describe()).leader != leader:
        raise PromiseBroken(f"broker {preferred} is out of the ISR of {partition}, and was elected: {after}")


def check_election_refused(partition: Partition, error: str) -> None:
    """The controller refuses to elect the preferred leader of the partition, with this error."""
    answer = await_until(
        lambda: election_error(partition, ElectionType.PREFERRED) or "elected",
        timeout_s=timeouts.REQUEST_S,
        what=f"the controller to answer a request for the election of the preferred leader of {partition}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    if answer != error:
        raise PromiseBroken(f"the election of the preferred leader of {partition} ended with {answer}, not {error}")


def await_leader(partition: Partition, via: Broker, wanted: Callable[[int | None], bool], what: str) -> None:
    """Wait until this broker knows a leader of the partition as wanted, or none.

    :param what: what is awaited, as "to have no leader"
    :raises PromiseBroken: it does not in time
    """
    await_until(
        lambda: partition.describe(via).leader,
        wanted,
        timeout_s=timeouts.BROKER_FAILURE_S / 2,  # in a deviation, a case waits for all of it
        what=f"{partition} {what}",
        retry_on=(NoAnswer, KeyError),  # a started broker does not know the partition at once
        failure=PromiseBroken,
    )


def lead_again(partition: Partition, broker: Broker, *, unless: Deviation) -> None:
    """The controller makes the only replica of a partition the leader, once it has it in a good log dir.

    Where it does not, it does after a restart of the broker.

    :raises PromiseBroken: it does not, and ``unless`` is not expected of this build; or not even after a restart; or
        the controller goes on counting the replica as offline
    """
    await_online(partition, broker)

    def await_led() -> None:
        await_leader(partition, broker, lambda leader: leader == broker.id, "to have a leader")

    with promised(partition.cluster, unless=unless, seen="to have a leader; last seen: None$") as outcome:
        await_led()
    if outcome.deviates:
        broker.restart()
        await_led()


def await_end(leader: Broker, offset: int, *, failure: type[JbodError], partition: int = 0) -> None:
    """Wait until clients of the leader can read all records of a partition of ``orders`` before this offset."""
    await_until(
        lambda: leader.admin.end_offset("orders", partition),
        lambda end: end == offset,
        timeout_s=timeouts.REQUEST_S,
        what=f"the high watermark of orders-{partition} on {leader} to be {offset}",
        retry_on=(NoAnswer, Refused),
        failure=failure,
    )


def await_active(cluster: Cluster, broker: Broker) -> None:
    """Wait until a started broker is active: the others have it in their metadata, and the controller may elect it.

    :raises Inconclusive: they do not have it in time
    """
    other = cluster.others(broker)[0]
    await_until(
        lambda: cluster.describe(other).brokers,
        lambda brokers: broker.id in brokers,
        timeout_s=timeouts.REQUEST_S,
        what=f"{other} to know {broker}",
        retry_on=(NoAnswer,),
        failure=Inconclusive,
    )


def await_out_of_sync(partition: Partition, broker: Broker) -> None:
    """Wait until the broker's replica is not in the ISR.

    :raises PromiseBroken: it stays there
    """
    await_state(
        partition,
        lambda state: broker.id not in state.isr,
        f"{broker} to leave the ISR of {partition}",
        timeouts.BROKER_FAILURE_S,
    )


def await_online(partition: Partition, broker: Broker) -> None:
    """Wait until the controller has the broker's replica in a good log dir, as the broker itself knows it.

    :raises PromiseBroken: it does not
    """
    await_state(
        partition,
        lambda state: broker.id not in state.offline_replicas,
        f"the controller to have the replica of {partition} on {broker} in a good log dir",
        timeouts.LOG_DIR_FAILURE_S,
        via=broker,
    )


def await_offline(partition: Partition, broker: Broker, *, via: Broker | None = None) -> None:
    """Wait until the controller counts the broker's replica as offline, as ``via``, or any broker, knows it.

    :raises PromiseBroken: it does not
    """
    await_state(
        partition,
        lambda state: broker.id in state.offline_replicas,
        f"the controller to count the replica of {partition} on {broker} as offline",
        timeouts.LOG_DIR_FAILURE_S,
        via=via,
    )


def await_state(
    partition: Partition,
    wanted: Callable[[PartitionState], bool],
    what: str,
    timeout_s: float,
    *,
    via: Broker | None = None,
) -> None:
    """Wait until ``via``, or any broker, knows such a state of the partition.

    :raises PromiseBroken: it does not in time
    """
    await_until(
        lambda: partition.describe(via),
        wanted,
        timeout_s=timeout_s,
        what=what,
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
