"""Checks the leaders of partitions against the ISRs that were seen before.

A new leader is elected from the ISR (KIP-18, KIP-112), since unclean elections are off. The cluster's watcher writes
each leader and ISR that it sees into the journal. It may miss an ISR that grew just before the next election. So the
check also reads the log lines of leaders whose ISR grew. An ISR that shrank while no broker ran is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.events import PartitionChanged
from harness.journal import now
from harness.kafka.metadata import PartitionState
from harness.kafka.tool_answers import Key

_ISR_UPDATED = r"\[Partition {partition} broker=\d+\] ISR updated to \[?([\d,]+)"
_LAG = timedelta(seconds=1)
"""A broker may show the watcher an ISR this long after it has grown."""


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """The leader and ISR of a partition as a broker showed them at one time."""

    at: datetime
    leader: int | None
    leader_epoch: int
    isr: frozenset[int]


def check_elections(cluster: Cluster, found: PartitionState, *, last_isr: frozenset[int], since: datetime) -> None:
    """Each leader of a partition since then was in the last ISR before it, and no leader epoch went back.

    :param found: the newest state of the partition that any broker shows; it has a leader
    :param last_isr: the ISR by the expected state; it counts where the watcher has seen none
    :param since: when all sources last agreed with the expected state
    :raises PromiseBroken: a leader was not in the ISR, does not run, or has its replica offline; or a leader epoch went
        back
    """
    key = (found.topic, found.partition)
    name = f"{found.topic}-{found.partition}"
    before, after = _sightings(cluster, key, since)
    newest = max((each.leader_epoch for each in (*before[-1:], *after)), default=0)
    if found.leader_epoch < newest:
        raise PromiseBroken(
            f"the leader epoch of {name} went back from {newest} to {found.leader_epoch}; a leader epoch only grows"
        )
    if found.leader in found.offline_replicas or found.leader not in {broker.id for broker in cluster.live_brokers()}:
        raise PromiseBroken(f"broker {found.leader} leads {name}, and its replica is offline: {found}")
    at_end = Sighting(at=now(), leader=found.leader, leader_epoch=found.leader_epoch, isr=frozenset(found.isr))
    previous = next((each for each in reversed(before) if each.isr), None)
    known = last_isr if previous is None else previous.isr
    known_at = since if previous is None else previous.at
    epoch = before[-1].leader_epoch if before else -1
    leader = next((each.leader for each in reversed(before) if each.leader is not None), None)
    for each in (*after, at_end):
        is_new = each.leader_epoch > epoch or each.leader != leader  # a new leader without a new epoch is wrong, too
        if each.leader is not None and is_new and each.leader not in known:
            grown = _grown(cluster, name, known_at - _LAG, each)
            if each.leader not in grown:
                raise PromiseBroken(
                    f"broker {each.leader} leads {name} in leader epoch {each.leader_epoch}, and was not in its last "
                    f"ISR {sorted(known)}; only a member of the ISR may be elected (KIP-18, KIP-112)"
                )
        epoch, leader = each.leader_epoch, each.leader or leader
        if each.isr:
            known, known_at = each.isr, each.at


def _sightings(cluster: Cluster, key: Key, since: datetime) -> tuple[Sequence[Sighting], Sequence[Sighting]]:
    """What the watcher saw of a partition up to this time, and afterwards."""
    seen = [
        Sighting(at=each.at, leader=each.leader, leader_epoch=each.leader_epoch, isr=frozenset(each.isr))
        for each in cluster.journal.of(PartitionChanged)
        if each.key == key
    ]
    return [each for each in seen if each.at <= since], [each for each in seen if each.at > since]


def _grown(cluster: Cluster, partition: str, since: datetime, until: Sighting) -> frozenset[int]:
    """The members of the ISR by the logs of the partition's leaders in this time, without the new leader's own log.

    The new leader's log does not show the ISR that it was elected from.
    """
    pattern = re.compile(_ISR_UPDATED.format(partition=re.escape(partition)))
    return frozenset(
        id
        for broker in cluster.brokers
        if broker.id != until.leader
        for line in broker.log.lines(since=since)
        if line.at <= until.at and (logged := pattern.search(line.text))
        for id in map(int, logged[1].split(","))
    )
