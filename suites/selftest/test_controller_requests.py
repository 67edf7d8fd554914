"""Requests of brokers are encoded and their answers decoded as Kafka's protocol says; the bytes are counted by hand."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable

import pytest

from harness.kafka import controller_requests
from harness.kafka.connection import Connection
from harness.kafka.controller_requests import BrokerEpoch, alter_partition, heartbeat, register_broker

CONTROLLER = Connection("127.0.0.1", 9)
TOPIC = uuid.UUID(int=7)
LEADER, FOLLOWER = BrokerEpoch(id=1, epoch=11), BrokerEpoch(id=2, epoch=12)
STALE, INELIGIBLE = 77, 107

Answering = Callable[[bytes], list[bytes]]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Makes a controller give one answer, and returns the list that gets the bodies of its requests."""

    def answer_with(answer: bytes) -> list[bytes]:
        bodies: list[bytes] = []

        def ask(_controller: Connection, _key: int, _version: int, body: bytes) -> bytes:
            bodies.append(body)
            return answer

        monkeypatch.setattr(controller_requests, "_ask", ask)
        return bodies

    return answer_with


def test_a_heartbeat_has_the_epoch_of_its_process(answering: Answering) -> None:
    bodies = answering(struct.pack(">ih", 0, STALE) + bytes(4))
    assert heartbeat(CONTROLLER, FOLLOWER, metadata_offset=5) == "STALE_BROKER_EPOCH"
    assert bodies == [bytes.fromhex("00000002 000000000000000c 0000000000000005 00 00 00")]


@pytest.mark.parametrize(
    ("of_request", "of_partition", "error"),
    [(0, INELIGIBLE, "INELIGIBLE_REPLICA"), (STALE, 0, "STALE_BROKER_EPOCH"), (0, 0, None)],
)
def test_an_isr_is_refused_as_a_whole_or_for_its_partition(
    answering: Answering, of_request: int, of_partition: int, error: str | None
) -> None:
    partition = b"\2" + struct.pack(">ih", 0, of_partition) + bytes(20)
    bodies = answering(struct.pack(">ih", 0, of_request) + b"\2" + TOPIC.bytes + partition)
    isr = [LEADER, FOLLOWER]
    assert alter_partition(CONTROLLER, LEADER, TOPIC, 0, isr, leader_epoch=3, partition_epoch=4) == error
    members = "03 00000001 000000000000000b 00 00000002 000000000000000c 00"
    of_topic = f"02 {TOPIC.hex} 02 00000000 00000003 {members} 00 00000004 00 00"
    assert bodies == [bytes.fromhex(f"00000001 000000000000000b {of_topic} 00")]


def test_a_registration_names_log_dirs(answering: Answering) -> None:
    bodies = answering(struct.pack(">ihq", 0, 0, 5) + b"\0")
    assert register_broker(CONTROLLER, 2, "c", [TOPIC]) is None
    assert bodies[0].startswith(bytes.fromhex("00000002 02") + b"c")
    assert bodies[0].endswith(b"\2" + TOPIC.bytes + bytes.fromhex("ffffffffffffffff 00"))
