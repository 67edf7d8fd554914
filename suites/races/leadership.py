"""Makes a broker the leader of a partition in well under a second, without the end of another broker."""

from __future__ import annotations

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.topic import Partition
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.connection import NoAnswer
from harness.waiting import await_until


def lead(partition: Partition, broker: Broker) -> None:
    """Make this broker the preferred leader, and elect it.

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
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def is_elected() -> bool:
        try:
            # Its request_timeout cannot be given: confluent-kafka 2.16 raises SystemError for it.
            elected = client.elect_leaders(ElectionType.PREFERRED, [TopicPartition(partition.topic, partition.index)])
            elected.result(timeouts.REQUEST_S)
        except (KafkaException, TimeoutError) as error:
            raise NoAnswer(f"ElectLeaders: {error or 'no answer in time'}") from error
        return partition.describe(broker).leader == broker.id

    await_until(
        is_elected,
        timeout_s=timeouts.REQUEST_S,
        what=f"the controller to elect {broker} as the leader of {partition}",
        poll_s=0.05,
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
