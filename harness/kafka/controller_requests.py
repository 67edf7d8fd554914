"""The requests that a KRaft broker sends to the controller, for a broker that does what no broker should do.

kafka-python has no classes for them, since clients never send them. They are encoded here, in versions that all builds
since 3.7 know. Arrays and strings begin with their length plus one, as a varint (KIP-482).
"""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness import timeouts
from harness.kafka.admin import error_name
from harness.kafka.connection import NoAnswer

_ALTER_PARTITION, _REGISTER_BROKER, _HEARTBEAT = 56, 62, 63  # ApiKeys
_NO_TAGS = b"\0"
_PLAINTEXT = 0  # SecurityProtocol
_RECOVERED = 0  # LeaderRecoveryState
_FEATURES = (
    *("metadata.version", "kraft.version", "group.version", "transaction.version"),
    *("eligible.leader.replicas.version", "share.version", "streams.version"),
)
_ANY_VERSION = (0, 0x7FFF)

_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class BrokerEpoch:
    """A broker process: the broker's id, and the epoch that the controller gave this process."""

    id: int
    epoch: int

    def __str__(self) -> str:
        return f"broker {self.id} of epoch {self.epoch}"


def alter_partition(
    address: tuple[str, int],
    leader: BrokerEpoch,
    topic_id: uuid.UUID,
    partition: int,
    isr: Sequence[BrokerEpoch],
    *,
    leader_epoch: int,
    partition_epoch: int,
) -> str | None:
    """Ask the controller to change the ISR of a partition, as its leader does (KIP-497, KIP-903).

    :param address: of the active controller
    :returns: the name of the controller's error for the partition, or for the request; None: it accepts the ISR
    :raises NoAnswer: the controller does not answer
    """
    members = _array(isr, lambda broker: struct.pack(">iq", broker.id, broker.epoch) + _NO_TAGS)
    of_partition = struct.pack(">ii", partition, leader_epoch) + members
    of_partition += struct.pack(">bi", _RECOVERED, partition_epoch) + _NO_TAGS
    topic = topic_id.bytes + _array([of_partition], bytes) + _NO_TAGS
    body = struct.pack(">iq", leader.id, leader.epoch) + _array([topic], bytes) + _NO_TAGS
    answer = _ask(address, _ALTER_PARTITION, 3, body)
    [of_request] = struct.unpack_from(">h", answer, 4)
    if of_request:
        return error_name(of_request)
    [of_partition_code] = struct.unpack_from(">h", answer, 4 + 2 + 1 + 16 + 1 + 4)
    return error_name(of_partition_code)


def register_broker(
    address: tuple[str, int], broker: int, cluster_id: str, log_dirs: Sequence[uuid.UUID]
) -> str | None:
    """Ask the controller to register another process with the id of a broker, as a broker that starts does (KIP-631).

    :param address: of the active controller
    :returns: the name of the controller's error; None: it registers the process
    :raises NoAnswer: the controller does not answer
    """
    listener = _string("PLAINTEXT") + _string("127.0.0.1") + struct.pack(">Hh", 9, _PLAINTEXT) + _NO_TAGS
    body = struct.pack(">i", broker) + _string(cluster_id) + uuid.uuid4().bytes + _array([listener], bytes)
    body += _array(_FEATURES, lambda name: _string(name) + struct.pack(">hh", *_ANY_VERSION) + _NO_TAGS)
    body += b"\0" + struct.pack(">?", False)  # no rack; not a ZooKeeper broker that migrates
    body += _array(log_dirs, lambda each: each.bytes) + struct.pack(">q", -1) + _NO_TAGS
    [code] = struct.unpack_from(">h", _ask(address, _REGISTER_BROKER, 3, body), 4)
    return error_name(code)


def heartbeat(address: tuple[str, int], broker: BrokerEpoch, *, metadata_offset: int) -> str | None:
    """Send a heartbeat of a broker process that wants neither to be fenced nor to be shut down (KIP-631).

    :param address: of the active controller
    :returns: the name of the controller's error; None: it counts the heartbeat
    :raises NoAnswer: the controller does not answer
    """
    body = struct.pack(">iqq??", broker.id, broker.epoch, metadata_offset, False, False) + _NO_TAGS
    [code] = struct.unpack_from(">h", _ask(address, _HEARTBEAT, 1, body), 4)
    return error_name(code)


def _array(items: Sequence[_Item], encode: Callable[[_Item], bytes]) -> bytes:
    return _length(len(items)) + b"".join(map(encode, items))


def _string(text: str) -> bytes:
    return _length(len(text.encode())) + text.encode()


def _length(count: int) -> bytes:
    """A length as an unsigned varint; none here needs more than one byte."""
    if count >= 0x7F:
        raise ValueError(f"{count} is too long for a varint of one byte")
    return bytes([count + 1])


def _ask(address: tuple[str, int], api_key: int, version: int, body: bytes) -> bytes:
    """Send one request on a connection of its own; returns the body of the response.

    :raises NoAnswer: there is none
    """
    client = b"jbod"
    header = struct.pack(">hhih", api_key, version, 0, len(client)) + client + _NO_TAGS
    message = struct.pack(">i", len(header) + len(body)) + header + body
    try:
        with socket.create_connection(address, timeout=timeouts.REQUEST_S) as connection:
            connection.sendall(message)
            with connection.makefile("rb") as answer:
                [size] = struct.unpack(">i", answer.read(4))
                return answer.read(size)[5:]  # after the correlation id, and no tags
    except (OSError, struct.error) as error:
        raise NoAnswer(f"{address} gave no answer to request {api_key}: {error}") from error
