"""What became of a record: the one place that turns a client's error into *failed* or *indeterminate*.

``failed`` is a strong word: definitely not written. Said wrongly, it turns Kafka's right behaviour into
``failed_but_present``; ``indeterminate``, said where ``failed`` would do, costs nearly nothing. So ``indeterminate`` is
the default, and ``failed`` needs a reason that holds for every attempt that the client may have made before the last
one, because only the last one's error is seen.

librdkafka does keep a status per record (``rd_kafka_message_status``: not, possibly or certainly persisted), and
confluent-kafka 2.16 doesn't hand it on. It would not settle the matter: the status is that of the last attempt too
(rdkafka_request.c, ``rd_kafka_handle_Produce_error``: "In case the message is possibly persisted we still treat it as
not persisted" while retries go on). Hence these are indeterminate, though the client calls them not persisted:

- ``_PURGE_QUEUE``: not in flight when purged, yet it may be back in the queue from an attempt that was written;
- ``KAFKA_STORAGE_ERROR``, ``NOT_LEADER_FOR_PARTITION``, ``NOT_ENOUGH_REPLICAS``: this attempt was refused, an
  earlier one, to another leader, may not have been;
- ``TOPIC_AUTHORIZATION_FAILED``, ``_UNKNOWN_TOPIC``, ``_UNKNOWN_PARTITION``: rights and topics may go away between
  two attempts;
- ``MSG_SIZE_TOO_LARGE``, ``RECORD_LIST_TOO_LARGE`` from a broker: it measures the batch, and an earlier attempt may
  have gone out in a smaller one. (The client's own check of the size refuses at the call: failed.)

And these are what indeterminate is made for: ``_MSG_TIMED_OUT``, ``_TIMED_OUT``, ``REQUEST_TIMED_OUT``,
``_TRANSPORT``, ``NOT_ENOUGH_REPLICAS_AFTER_APPEND``, ``_PURGE_INFLIGHT``, ``_FATAL``, and every error not known here.
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
