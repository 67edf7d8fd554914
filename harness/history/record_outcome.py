"""What became of a record: the one place that turns a client's error into *failed* or *indeterminate*.

``failed`` is a strong word: definitely not written. Said wrongly, it turns Kafka's right behaviour into
``failed_but_present``; ``indeterminate``, said where ``failed`` would do, costs nearly nothing. So ``indeterminate`` is
the default, and ``failed`` needs a reason that holds for every attempt that the client may have made before the last
one, because only the last one's error is seen.

librdkafka does keep a status per record (``rd_kafka_message_status``: not, possibly or certainly persisted), and
confluent-kafka 2.16 doesn't hand it on. It would not settle the matter: the status is that of the last attempt too
(rdkafka_request.c, ``rd_kafka_handle_Produce_error``: "In case the message is possibly persisted we still treat it as
not persisted" while retries go on).

``suites/selftest/test_pipeline_outcome_real.py`` provokes each code of the first two lists on real brokers, and reads
what is there. Indeterminate, though the last attempt was not written, because an earlier one may have been:

- ``_PURGE_QUEUE``: not in flight when purged, yet it may be back in the queue from an attempt that was given up, and
  that the broker finds in its socket later (seen);
- ``KAFKA_STORAGE_ERROR``, ``NOT_ENOUGH_REPLICAS``: refused by this leader, or now;
- ``INVALID_PRODUCER_EPOCH``: fenced now;
- ``TOPIC_AUTHORIZATION_FAILED``, ``UNKNOWN_TOPIC_OR_PART``, ``_UNKNOWN_PARTITION``: rights and topics may go away
  between two attempts;
- ``MSG_SIZE_TOO_LARGE``, ``RECORD_LIST_TOO_LARGE`` from a broker: it measures the batch, and an earlier attempt may
  have gone out in a smaller one; ``INVALID_RECORD``, ``INVALID_TIMESTAMP``: a topic's settings may change in between.

(Where the client itself refuses at the call, by its own ``message.max.bytes``, the partitions that it knows of, or
because it was refused for its rights before, the record is failed.) Indeterminate, because the attempt itself may have
been written:

- ``_MSG_TIMED_OUT``, ``_PURGE_INFLIGHT``: some were, some were not (seen); ``_TRANSPORT``: the connection was lost;
- ``REQUEST_TIMED_OUT``: the leader has written it, and waited for followers in vain (seen).

Codes that don't come to a record with the builds of today, and would be indeterminate:

- ``NOT_ENOUGH_REPLICAS_AFTER_APPEND``: the high watermark of a partition under its min.insync.replicas stands still
  (``Partition.maybeIncrementLeaderHW``), so that ``checkEnoughReplicasReachOffset`` gets to this answer in a race of
  microseconds only; the request times out instead. Brokers before Kafka 3.7 give it;
- ``NOT_LEADER_FOR_PARTITION``: the client asks for metadata and tries again without counting, as it does with
  UNKNOWN_TOPIC_OR_PART from a Produce (the one seen is from Metadata), until the record's time is over;
- ``_TIMED_OUT``, ``_TIMED_OUT_QUEUE``: told as _MSG_TIMED_OUT (the end of ``rd_kafka_handle_Produce_error``);
- ``_UNKNOWN_TOPIC``: only where a Metadata answer has no error of its own (rdkafka_topic.c);
- ``OUT_OF_ORDER_SEQUENCE_NUMBER``, and ``_FATAL`` after it: where broker and client don't agree on what was written,
  which takes a loss or a bug; behind another failure it is tried again;
- ``UNKNOWN_PRODUCER_ID``: a broker accepts any sequence of a producer that it doesn't know
  (``ProducerAppendInfo.checkSequence``);
- ``DUPLICATE_SEQUENCE_NUMBER``: an acknowledgement, without an offset.

Every error not known here is indeterminate too. ``_KEY_SERIALIZATION`` and ``_VALUE_SERIALIZATION`` are of records that
never became bytes.
"""

from __future__ import annotations

from typing import Literal

from confluent_kafka import KafkaError

Outcome = Literal["acked", "failed", "indeterminate"]

_NEVER_SENT = frozenset(
    {
        KafkaError._KEY_SERIALIZATION,
        KafkaError._VALUE_SERIALIZATION,
    }
)


def outcome_of(error: KafkaError | None, *, handed_over: bool = True) -> Outcome:
    """What a delivery report's error says about the record.

    :param error: None is an acknowledgement
    :param handed_over: False where the client refused the record at the call itself (an exception from ``produce``):
        it was never queued, so it is failed whatever the error
    """
    if error is None:
        return "acked"
    if not handed_over or error.code() in _NEVER_SENT:
        return "failed"
    return "indeterminate"
