"""A record is `failed` only if it was certainly not written; otherwise it is `indeterminate`."""

import pytest
from confluent_kafka import KafkaError

from harness.history.record_outcome import outcome_of

UNCERTAIN = [
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._FATAL,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.UNKNOWN,
]


def test_no_error_is_an_acknowledgement() -> None:
    assert outcome_of(None) == "acked"


@pytest.mark.parametrize("code", UNCERTAIN)
def test_an_earlier_attempt_may_have_been_written(code: int) -> None:
    assert outcome_of(KafkaError(code)) == "indeterminate"


@pytest.mark.parametrize("code", UNCERTAIN)
def test_what_the_client_never_took_is_failed_whatever_the_error(code: int) -> None:
    assert outcome_of(KafkaError(code), handed_over=False) == "failed"


@pytest.mark.parametrize(
    "code",
    [KafkaError._KEY_SERIALIZATION, KafkaError._VALUE_SERIALIZATION],
)
def test_what_every_attempt_was_refused_for_is_failed(code: int) -> None:
    assert outcome_of(KafkaError(code)) == "failed"
