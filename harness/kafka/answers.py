"""What the answers of brokers have in common: errors, and -1 for nothing."""

from __future__ import annotations

import kafka.errors as kafka_errors
from kafka.protocol.api_message import ApiMessage

from harness.errors import HarnessError

# Errors that have other names in kafka-python.
_MISNAMED = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    39: "INVALID_REPLICA_ASSIGNMENT",
}


class Refused(HarnessError):
    """A broker answered with an error.

    :ivar error: Kafka's name of the error, such as NOT_CONTROLLER
    :ivar message: the broker's text, if it sent one
    """

    def __init__(self, what: str, error: str, message: str | None = None) -> None:
        super().__init__(f"{what}: {error}{f' ({message})' if message else ''}")
        self.error = error
        self.message = message


def error_name(code: int) -> str | None:
    """Kafka's name of an error code, such as KAFKA_STORAGE_ERROR; None for 0."""
    if code == 0:
        return None
    known = kafka_errors.for_code(code)
    return _MISNAMED.get(code) or str(getattr(known, "message", None) or known.__name__)


def check_answer(what: str, *parts: ApiMessage) -> None:
    """Raise the first error that these parts of an answer have, if any.

    :raises Refused: with ``what``, the error's name and, if there is one, its message
    """
    for part in parts:
        if part.error_code:
            name = error_name(part.error_code) or str(part.error_code)
            raise Refused(what, name, getattr(part, "error_message", None))


def if_any(number: int) -> int | None:
    """Kafka's -1 as None."""
    return None if number < 0 else number
