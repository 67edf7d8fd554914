"""Finds the role that a fault's broker had for the load and the cluster when the fault struck, from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.events import Event, FaultInjecting, MBeansChanged, PairReady, PartitionChanged

_OF_COORDINATORS = {"__consumer_offsets", "__transaction_state", "__share_group_state"}
_OF_CONTROLLER = "OfflinePartitionsCount"


@dataclass(frozen=True, kw_only=True)
class Role:
    """The role of a fault's broker when the fault struck.

    :ivar role: "leader" of some partition that a pair used, else "follower" in the ISR of one; "controller" for a node
        that is nothing else; None if no pair ran, or if the broker was in no ISR of its topics
    :ivar also: "controller" if its MBeans had an OfflinePartitionsCount up to a second before, which only the active
        controller's have; "coordinator" if it led a partition of a coordinator's log, such as ``__consumer_offsets``
    """

    role: str | None
    also: tuple[str, ...]


def role_of(fault: FaultInjecting, before: Sequence[Event]) -> Role:
    """Return the role of the node that a fault hit.

    :param before: all events before the fault's injection
    """
    broker = fault.broker
    if fault.struck != f"broker-{broker}":
        return Role(role="controller", also=())
    used = {e.topic for e in before if isinstance(e, PairReady)}
    changes = [e for e in before if isinstance(e, PartitionChanged) and e.topic in used]
    role = "leader" if led_by(broker, changes) else "follower" if in_sync(broker, changes) else None
    controls = fault.struck in _controllers(before)
    coordinates = any(topic in _OF_COORDINATORS for topic, _ in led_by(broker, before))
    return Role(role=role, also=("controller",) * controls + ("coordinator",) * coordinates)


def led_by(broker: int, events: Sequence[Event]) -> set[tuple[str, int]]:
    """Return the partitions, as topic and number, that the broker leads after these events."""
    leaders = {e.key: e.leader for e in events if isinstance(e, PartitionChanged)}
    return {partition for partition, leader in leaders.items() if leader == broker}


def in_sync(broker: int, events: Sequence[Event]) -> set[tuple[str, int]]:
    """Return the partitions, as topic and number, that have the broker in their ISR after these events."""
    isr = {e.key: e.isr for e in events if isinstance(e, PartitionChanged)}
    return {partition for partition, brokers in isr.items() if broker in brokers}


def _controllers(events: Sequence[Event]) -> set[str]:
    counts: dict[str, int | None] = {}
    for e in events:
        if isinstance(e, MBeansChanged) and _OF_CONTROLLER in e.values:
            counts[e.node] = e.values[_OF_CONTROLLER]
    return {node for node, count in counts.items() if count is not None}
