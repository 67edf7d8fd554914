"""The requests that a KRaft broker sends to the controller, for a broker that does what no broker should do.

kafka-python has no classes for them, since clients never send them. They are encoded here, in versions that all builds
since 3.7 know. Arrays and strings begin with their length plus one, as a varint (KIP-482).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.kafka.answers import error_name
from harness.kafka.connection import Connection

_ALTER_PARTITION, _REGISTER_BROKER, _HEARTBEAT, _ASSIGN_REPLICAS = 56, 62, 63, 73  # ApiKeys
_NO_TAGS = b"\0"
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
    controller: Connection,
    leader: BrokerEpoch,
    topic_id: uuid.UUID,
    partition: int,
    isr: Sequence[BrokerEpoch],
    *,
    leader_epoch: int,
    partition_epoch: int,
) -> str | None:
    """Ask the controller to change the ISR of a partition, as its leader does (KIP-497, KIP-903).

    :param controller: the active one
    :returns: the name of the controller's error for the partition, or for the request; None: it accepts the ISR
    :raises NoAnswer: the controller does not answer
    """
    members = _array(isr, lambda broker: struct.pack(">iq", broker.id, broker.epoch) + _NO_TAGS)
    of_partition = struct.pack(">ii", partition, leader_epoch) + members
    of_partition += struct.pack(">bi", _RECOVERED, partition_epoch) + _NO_TAGS
    topic = topic_id.bytes + _array([of_partition], bytes) + _NO_TAGS
    body = struct.pack(">iq", leader.id, leader.epoch) + _array([topic], bytes) + _NO_TAGS
    answer = _ask(controller, _ALTER_PARTITION, 3, body)
    [of_request] = struct.unpack_from(">h", answer, 4)
    if of_request:
        return error_name(of_request)
    [of_partition_code] = struct.unpack_from(">h", answer, 4 + 2 + 1 + 16 + 1 + 4)
    return error_name(of_partition_code)


def register_broker(controller: Connection, broker: int, cluster_id: str, log_dirs: Sequence[uuid.UUID]) -> str | None:
    """Ask the controller to register another process with the id of a broker, as a broker that starts does (KIP-631).

    :param controller: the active one
    :returns: the name of the controller's error; None: it registers the process
    :raises NoAnswer: the controller does not answer
    """
    protected = controller.security.listeners
    listener = _string(protected.protocol) + _string("127.0.0.1") + struct.pack(">Hh", 9, protected.protocol_id)
    body = struct.pack(">i", broker) + _string(cluster_id) + uuid.uuid4().bytes + _array([listener + _NO_TAGS], bytes)
    body += _array(_FEATURES, lambda name: _string(name) + struct.pack(">hh", *_ANY_VERSION) + _NO_TAGS)
    body += b"\0" + struct.pack(">?", False)  # no rack; not a ZooKeeper broker that migrates
    body += _array(log_dirs, lambda each: each.bytes) + struct.pack(">q", -1) + _NO_TAGS
    [code] = struct.unpack_from(">h", _ask(controller, _REGISTER_BROKER, 3, body), 4)
    return error_name(code)


def heartbeat(
    controller: Connection, broker: BrokerEpoch, *, metadata_offset: int, offline: Sequence[uuid.UUID] = ()
) -> str | None:
    """Send a heartbeat of a broker process that wants neither to be fenced nor to be shut down (KIP-631).

    :param controller: the active one
    :param offline: the ids of its failed log dirs (KIP-858)
    :returns: the name of the controller's error; None: it counts the heartbeat
    :raises NoAnswer: the controller does not answer
    """
    body = struct.pack(">iqq??", broker.id, broker.epoch, metadata_offset, False, False)
    if offline:
        failed = _array(offline, lambda each: each.bytes)
        body += b"\1\0" + bytes([len(failed)]) + failed  # one tag: its number, its length
    else:
        body += _NO_TAGS
    [code] = struct.unpack_from(">h", _ask(controller, _HEARTBEAT, 1, body), 4)
    return error_name(code)


def assign_replica(
    controller: Connection, broker: BrokerEpoch, log_dir: uuid.UUID, topic_id: uuid.UUID, partition: int
) -> str | None:
    """Tell the controller that a replica is in a log dir, as its broker does (KIP-858).

    :param controller: the active one
    :param log_dir: the id of the log dir
    :returns: the name of the controller's error for the request; None: it accepts the request
    :raises NoAnswer: the controller does not answer
    """
    topic = topic_id.bytes + _array([struct.pack(">i", partition) + _NO_TAGS], bytes) + _NO_TAGS
    of_dir = log_dir.bytes + _array([topic], bytes) + _NO_TAGS
    body = struct.pack(">iq", broker.id, broker.epoch) + _array([of_dir], bytes) + _NO_TAGS
    [code] = struct.unpack_from(">h", _ask(controller, _ASSIGN_REPLICAS, 0, body), 4)
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


def _ask(controller: Connection, api_key: int, version: int, body: bytes) -> bytes:
    """Send one request; returns the body of the response.

    :raises NoAnswer: there is none
    """
    client = b"jbod"
    header = struct.pack(">hhih", api_key, version, 0, len(client)) + client + _NO_TAGS
    return controller.ask_raw(header + body)[5:]  # after the correlation id, and no tags
