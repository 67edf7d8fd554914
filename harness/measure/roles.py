"""Finds, in the journal, what role the broker of a fault had for the load and the cluster when the fault struck.

``role`` is "leader" if the broker led a partition that a pair used, else "follower" if it was in the ISR of one. It is
"controller" for a node that is not a broker, and None otherwise. ``also`` lists further roles. "controller": its MBeans
had an OfflinePartitionsCount up to a second before the fault, as only the controller's have. "coordinator": it led a
partition of ``__consumer_offsets`` or ``__transaction_state``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]

_OF_COORDINATORS = {"__consumer_offsets", "__transaction_state"}
_OF_CONTROLLER = "OfflinePartitionsCount"


def roles(event: Event, before: Sequence[Event]) -> dict[str, Any]:
    """Return ``role`` and ``also`` of a fault.

    :param event: its ``fault.injecting`` event
    :param before: all earlier events
    """
    broker = event["broker"]
    node = event.get("node", f"broker-{broker}")
    if node != f"broker-{broker}":
        return {"role": "controller", "also": []}
    written = {e["topic"] for e in before if e["kind"] == "pair.ready"}
    changes = [e for e in before if e["kind"] == "partition.changed" and e["topic"] in written]
    role = "leader" if led_by(broker, changes) else "follower" if in_sync(broker, changes) else None
    also = ["controller"] if node in _controllers(before) else []
    if any(topic in _OF_COORDINATORS for topic, _ in led_by(broker, before)):
        also.append("coordinator")
    return {"role": role, "also": also}


def led_by(broker: int, events: Sequence[Event]) -> set[tuple[str, int]]:
    """Return the partitions that the broker leads after these events."""
    leaders = {(e["topic"], e["partition"]): e["leader"] for e in events if e["kind"] == "partition.changed"}
    return {partition for partition, leader in leaders.items() if leader == broker}


def in_sync(broker: int, events: Sequence[Event]) -> set[tuple[str, int]]:
    """Return the partitions with the broker in their ISR after these events."""
    isr = {(e["topic"], e["partition"]): e["isr"] for e in events if e["kind"] == "partition.changed"}
    return {partition for partition, brokers in isr.items() if broker in brokers}


def _controllers(events: Sequence[Event]) -> set[str]:
    counts: dict[str, int | None] = {}
    for e in events:
        if e["kind"] == "mbeans.changed" and _OF_CONTROLLER in e["values"]:
            counts[e["node"]] = e["values"][_OF_CONTROLLER]
    return {node for node, count in counts.items() if count is not None}
