"""Decides who is to blame if a broker loses its session although the scenario left it alone.

Other brokers then lead its partitions, and it soon registers again. If this machine was too busy for its heartbeats,
that breaks no promise. If it was not, Kafka sent none, or did not count them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from harness.crowding import stall_before
from harness.errors import Inconclusive, JbodError, PromiseBroken
from harness.events import FaultInjecting, NodeKilled, NodePaused, NodeStopping
from harness.waiting import TOO_SLOW

if TYPE_CHECKING:
    from harness.cluster.lifecycle import ClusterLifecycle
    from harness.cluster.spec import ClusterSpec

_EXPIRED = r"\[ZooKeeperClient Kafka server\] Session expired"
FENCED = r"Fencing broker (\d+) .*because its session has timed out"
"""A controller's ``ReplicationControlManager`` logs this; a broker's ``ZooKeeperClient`` logs the line above."""


_LEAST_SESSION_S = 6.0
_UNTIL_LOGGED_S = 2.0


@dataclass(frozen=True, kw_only=True)
class LostSession:
    """A broker that lost its session.

    :ivar text: the broker, and the log line that shows it
    :ivar at: when the line was logged
    :ivar session_s: its session, at most, and the time until its end is logged
    :ivar held: the controllers or ZooKeeper nodes that the case had paused or disturbed, and not ended. They count the
        heartbeats
    """

    text: str
    at: datetime
    session_s: float = _LEAST_SESSION_S + _UNTIL_LOGGED_S
    held: tuple[str, ...] = ()

    def blamed(self, seen: str) -> JbodError:
        """Return the error for a wrong state after it.

        :param seen: the wrong state
        :return: Inconclusive if this machine stalled before the session ended, nothing measured it then, or a node
            that counts heartbeats was disturbed; otherwise PromiseBroken
        """
        if self.held:
            return Inconclusive(f"{', '.join(self.held)} had been disturbed: {self.text}; {seen}")
        stall = stall_before(self.at, self.session_s)
        if stall is None or stall.holds_back:
            return Inconclusive(f"{TOO_SLOW}{f' ({stall})' if stall else ''}: {self.text}; {seen}")
        return PromiseBroken(f"{self.text}, though this machine was not busy ({stall}); {seen}")


def lost_session(cluster: ClusterLifecycle, but: Collection[int], since: datetime) -> LostSession | None:
    """A broker that has lost its session since then; None if there is none.

    :param but: the ids of brokers that may have lost their session, because the scenario disturbed them
    """
    found = partial(LostSession, session_s=_session_s(cluster.spec), held=_held(cluster))
    for broker in cluster.brokers:
        if broker.id not in but and (line := broker.log.first(_EXPIRED, since=since)):
            return found(text=f"{broker} lost its session: {line.text.strip()[:300]}", at=line.at)
    for node in cluster.nodes:
        for line in node.log.lines(since=since):
            if (fenced := re.search(FENCED, line.text)) and int(fenced[1]) not in but:
                text = f"broker {fenced[1]} lost its session: {line.text.strip()[:300]}"
                return found(text=text, at=line.at)
    return None


def _session_s(spec: ClusterSpec) -> float:
    return max(_LEAST_SESSION_S, spec.profile.session_ms(spec.mode) / 1000) + _UNTIL_LOGGED_S


def _held(cluster: ClusterLifecycle) -> tuple[str, ...]:
    journal = cluster.journal
    ended = {event.node for kind in (NodeKilled, NodeStopping) for event in journal.of(kind)}
    disturbed = {event.struck for event in journal.of(FaultInjecting)} - ended
    disturbed |= {event.node for event in journal.of(NodePaused)}
    return tuple(sorted(disturbed & {node.spec.name for node in cluster.quorum_nodes}))
