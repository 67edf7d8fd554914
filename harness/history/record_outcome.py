"""The outcome of a record: the one place that turns a client's error into *failed* or *indeterminate*.

``failed`` means: certainly not written. A wrong ``failed`` turns correct behaviour of Kafka into
``failed_but_present``; a needless ``indeterminate`` costs almost nothing. So ``indeterminate`` is the default, also for
unknown errors. ``failed`` needs a reason that holds for every attempt of the client, because only the error of the last
one is known. It holds in two cases:

- The client refused the record at the call itself: by its own ``message.max.bytes``, by the partitions that it knows,
  or by an authorization error that it already has for the topic.
- ``_KEY_SERIALIZATION``, ``_VALUE_SERIALIZATION``: the record never became bytes.

librdkafka's own status of a record (``rd_kafka_message_status``), which confluent-kafka 2.16 does not expose, would not
help: it also shows only the last attempt (``rd_kafka_handle_Produce_error``: "In case the message is possibly persisted
we still treat it as not persisted" while retries go on).

``suites/selftest/test_pipeline_outcome_real.py`` provokes each code of the next two lists on real brokers, and reads
what they wrote.

Indeterminate, because an earlier attempt may have been written though the last one was not:

- ``_PURGE_QUEUE``: the record was queued when purged, but perhaps after an attempt that was given up and that the
  broker finds in its socket later (seen);
- ``KAFKA_STORAGE_ERROR``, ``NOT_ENOUGH_REPLICAS``: this leader refuses it now; an earlier leader or attempt may not;
- ``INVALID_PRODUCER_EPOCH``, and ``_FATAL`` for the records after it: fenced now, perhaps not at an earlier attempt;
- ``TOPIC_AUTHORIZATION_FAILED``, ``UNKNOWN_TOPIC_OR_PART``, ``_UNKNOWN_PARTITION``, ``_DESTROY``: rights and topics
  may go away between two attempts;
- ``MSG_SIZE_TOO_LARGE``, ``RECORD_LIST_TOO_LARGE`` from a broker: it measures the batch, and an earlier batch may have
  been smaller; ``INVALID_RECORD``, ``INVALID_TIMESTAMP``: the topic's settings may have changed.

Indeterminate, because the last attempt may have been written:

- ``_MSG_TIMED_OUT``, ``_PURGE_INFLIGHT`` (seen both written and not); ``_TRANSPORT``: the connection was lost;
- ``REQUEST_TIMED_OUT``: the leader has written it, and waited for followers in vain (seen).

Not seen for a record with today's builds, and indeterminate too:

- ``NOT_ENOUGH_REPLICAS_AFTER_APPEND``: below min.insync.replicas the high watermark stands still
  (``Partition.maybeIncrementLeaderHW``), so ``checkEnoughReplicasReachOffset`` gives this answer only in a race of
  microseconds; the request times out instead. Brokers before Kafka 3.7 give it;
- ``NOT_LEADER_FOR_PARTITION``: the client gets new metadata and retries until ``message.timeout.ms``, without counting.
  It does the same for UNKNOWN_TOPIC_OR_PART from a Produce request (the one seen is from Metadata);
- ``_TIMED_OUT``, ``_TIMED_OUT_QUEUE``: reported as _MSG_TIMED_OUT (the end of ``rd_kafka_handle_Produce_error``);
- ``_UNKNOWN_TOPIC``: only if a Metadata answer has no error of its own (rdkafka_topic.c);
- ``OUT_OF_ORDER_SEQUENCE_NUMBER``, and ``_FATAL`` after it: broker and client disagree on what was written, which takes
  a loss or a bug; if it follows another failure, the client retries it;
- ``UNKNOWN_PRODUCER_ID``: a broker accepts any sequence number of an unknown producer
  (``ProducerAppendInfo.checkSequence``);
- ``DUPLICATE_SEQUENCE_NUMBER``: an acknowledgement without an offset.
"""

from __future__ import annotations

from typing import Literal

from confluent_kafka import KafkaError

Outcome = Literal["acked", "failed", "indeterminate"]

NO_REPORT = "_NO_REPORT"
"""The error of a record whose client ended without a delivery report."""

_NEVER_SENT = frozenset({KafkaError._KEY_SERIALIZATION, KafkaError._VALUE_SERIALIZATION})


def outcome_of(error: KafkaError | None, *, handed_over: bool = True) -> Outcome:
    """The outcome of a record, from the error of its delivery report.

    :param error: None is an acknowledgement
    :param handed_over: False if ``produce`` raised the error, so that the record was never queued: it is failed
    """
    if error is None:
        return "acked"
    if not handed_over or error.code() in _NEVER_SENT:
        return "failed"
    return "indeterminate"
