"""The requests by which transactions are ended and described, for a coordinator that does what no coordinator should.

A transaction coordinator ends a transaction by a marker in each of its partitions (KIP-98). Clients never send markers.
Each function asks one broker.
"""

from __future__ import annotations

from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from harness.kafka.answers import check_answer
from harness.kafka.connection import Connection
from harness.kafka.record_requests import Producer

_LEGACY = 1  # the version of WriteTxnMarkers that every build since 2.8 knows
_WITH_TRANSACTION_VERSION = 2  # the first one with the transaction version of a marker (KIP-1228)
_EPOCH_BUMPED = 2  # the transaction version in which each transaction has a producer epoch of its own (KIP-890)


def write_marker(
    leader: Connection,
    topic: str,
    partition: int,
    producer: Producer,
    *,
    coordinator_epoch: int,
    commit: bool = True,
    epoch_bumped: bool = False,
) -> None:
    """Write the marker that ends the producer's transaction in a partition, as its coordinator does.

    :param coordinator_epoch: the leader epoch of the coordinator's log
    :param epoch_bumped: the marker's epoch is above that of the transaction, as KIP-890 has it; needs Kafka 4.2
    :raises Refused: the leader refuses the marker
    """
    wanted = WriteTxnMarkersRequest.WritableTxnMarker
    marker = wanted(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=commit,
        topics=[wanted.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=coordinator_epoch,
        transaction_version=_EPOCH_BUMPED if epoch_bumped else 0,
    )
    version = _WITH_TRANSACTION_VERSION if epoch_bumped else _LEGACY
    answer = leader.ask(WriteTxnMarkersRequest(markers=[marker], min_version=version, max_version=version))
    [got] = answer.markers[0].topics[0].partitions
    check_answer(f"end a transaction of the producer {producer.id} in {topic}-{partition}", got)


def describe_transaction(coordinator: Connection, transactional_id: str) -> str:
    """The state of a transactional id, such as "Ongoing" (KIP-664); ask its coordinator.

    :raises Refused: NOT_COORDINATOR from another broker
    """
    answer = coordinator.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]))
    [got] = answer.transaction_states
    check_answer(f"the state of the transactional id {transactional_id}", got)
    return str(got.transaction_state)
