"""Waits until a broker is in every ISR again after a KRaft controller has taken over.

A leader has one request for its ISRs in flight at a time. If Kafka loses this request as the controller changes, the
leader waits for its answer for good, and changes no ISR any more. It logs OPERATION_NOT_ATTEMPTED for each try.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.kafka.broker_log import LogLine
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import PartitionState
from harness.runner.deviation import Deviation
from harness.waiting import await_until
from suites.observing import observe

NOT_ASKED = (
    r"\[Partition {partition} broker={leader}\] Failed to alter partition to PendingExpandIsr\("
    r"newInSyncReplicaId={broker},.* OPERATION_NOT_ATTEMPTED"
)
"""The log line of a leader that does not ask for a replica's return to the ISR, since an earlier request is in flight.

It says that the controller rejected the request. No request was sent.
"""
STILL_S = 15.0
"""A leader that logs :data:`NOT_ASKED` after this time waits for good. Where the request was not lost, the lines end
within 0.1 s."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OutOfIsr:
    """A partition whose ISR lacks a broker.

    :ivar line: the line :data:`NOT_ASKED` of its leader that was awaited; None if there is none yet
    """

    state: PartitionState
    line: LogLine | None

    def __repr__(self) -> str:  # errors show lists of them
        return f"{self.state}, and its leader logs {self.line.text.rstrip() if self.line else 'nothing of it'}"


def leader_stuck(cluster: Cluster, broker: Broker, *, unless: Deviation) -> Broker | None:
    """Wait until a started broker is in the ISR of each of its partitions; returns None then.

    Or returns the leader that does not ask for it, as builds with the deviation do. If the deviation does not show in
    every run, the broker may also join all ISRs.

    :raises PromiseBroken: the broker is not in an ISR for another reason, or the build must deviate and does not
    :raises Inconclusive: several leaders do not ask, so none of them can restart without an end of its leadership
    """
    since = now() + timedelta(seconds=STILL_S)
    found = await_until(
        lambda: list(_out_of_isr(cluster, broker, since)),
        lambda found: all(each.line for each in found),
        timeout_s=timeouts.RECOVERY_S,
        what=f"{broker} to be in the ISR of each of its partitions",
        retry_on=(NoAnswer,),
        watch=cluster.check_nodes,
        failure=PromiseBroken,
    )
    if found or unless.deterministic:
        seen = "; ".join(map(str, found)) or f"{broker} is in the ISR of each of its partitions"
        broken = PromiseBroken(f"{broker} does not join the ISR: {seen}")
        observe(unless, cluster, deviates=bool(found), seen=seen, broken=broken)
    leaders = {each.state.leader for each in found}
    if len(leaders) > 1:
        raise Inconclusive(f"brokers {sorted(map(str, leaders))} do not ask for another ISR, so none can lead instead")
    return next((each for each in cluster.brokers if each.id in leaders), None)


def _out_of_isr(cluster: Cluster, broker: Broker, since: datetime) -> Iterator[OutOfIsr]:
    """The partitions whose ISR lacks the broker, by the metadata of another broker."""
    other = next(each for each in cluster.live_brokers() if each != broker)
    for state in other.describe_cluster().partitions:
        if broker.id in state.replicas and broker.id not in state.isr:
            line = _not_asked(cluster.broker(state.leader), state, broker, since) if state.leader is not None else None
            yield OutOfIsr(state=state, line=line)


def _not_asked(leader: Broker, state: PartitionState, broker: Broker, since: datetime) -> LogLine | None:
    """The leader's first line :data:`NOT_ASKED` since then, about this partition and broker."""
    partition = re.escape(f"{state.topic}-{state.partition}")
    return leader.log.first(NOT_ASKED.format(partition=partition, leader=leader.id, broker=broker.id), since=since)
