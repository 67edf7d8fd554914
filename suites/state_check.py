"""The check that all sources agree with the expected state of a cluster.

:meth:`StateCheck.check` runs after each step of a scenario. It compares every source (:mod:`suites.observations`) with
the expected state: processes, each broker's metadata, log dirs and MBeans, folders on disk. When these agree, it asks
kafka-topics and kafka-log-dirs, too. A scenario may name further sources. An error names the source and both values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations

from harness import timeouts
from harness.cluster.log_dir import LogDir
from harness.cluster.session_loss import lost_session
from harness.errors import Inconclusive, JbodError, PromiseBroken, ToolFailed
from harness.events import (
    FaultHealing,
    FaultInjecting,
    NodeKilled,
    NodePaused,
    NodeResumed,
    NodeStarted,
    NodeStopping,
    PartitionChanged,
)
from harness.journal import now
from harness.kafka.connection import NoAnswer
from harness.kafka.metadata import PartitionState
from harness.kafka.tool_answers import Key
from harness.waiting import await_until
from suites.elections import check_elections
from suites.expected_state import ExpectedState, InSync, Leadership, ReplicaKey
from suites.held_moves import check_ended_before_throttle
from suites.observations import (
    FAST_SOURCES,
    LEADERSHIP_DIFFERS,
    SINGLE_MODE_SOURCES,
    TOOL_SOURCES,
    TOPICS_TOOLS,
    Source,
)

_NODE_EVENTS = (NodeStarted, NodeStopping, NodeKilled, NodePaused, NodeResumed)
_LAG = timedelta(seconds=1)
"""A broker may show the watcher an older ISR for so long."""


class HeldMovesEnded(Inconclusive):
    """Held moves ended during a restart: the broker went on with them before it knew the throttle."""

    def __init__(self, moves: Sequence[str], seen: Sequence[str]) -> None:
        super().__init__(f"the move of {', '.join(moves)} ended before its broker knew the throttle; {list(seen)}")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What all sources showed at one time.

    :ivar differences: from the expected state, in words; empty where all sources agree
    :ivar ended_moves: held moves that ended during a restart, and the log dir of each; only if nothing else differs
    :ivar leaderships: the leader and leader epoch of each partition that has a leader
    :ivar at: when it began
    """

    differences: Sequence[str] = ()
    ended_moves: Mapping[ReplicaKey, LogDir] = field(default_factory=dict)
    leaderships: Mapping[Key, Leadership] = field(default_factory=dict)
    at: datetime = field(default_factory=now, compare=False)

    def __str__(self) -> str:
        return str(list(self.differences))


class StateCheck(ExpectedState):
    """The expected state of a cluster, and the check that the cluster is in it."""

    def recovered(self) -> None:
        """Everything is healed and every broker runs: all replicas are back in their log dirs and in the ISR.

        Kafka may have had several leaders to choose from. Those that it chose are expected from here on, if the rules
        allow them (:mod:`suites.elections`).

        :raises PromiseBroken: the cluster does not become healthy, a leader was not elected from the ISR, a leader
            epoch went back, or a source disagrees afterwards
        """
        self.cluster.await_healthy(failure=PromiseBroken)
        newest = self._newest_states()
        for key, was in self.partitions.items():
            last_isr = was.isr or self._last_isr.get(key, frozenset())
            check_elections(self.cluster, newest[key], last_isr=last_isr, since=self._agreed_at)
        self.failed.clear()
        self.dead.clear()
        self.updated_since_start.clear()
        self.leader_epochs.clear()
        self._led.clear()
        for key, was in self.partitions.items():
            whole = frozenset(was.replicas)
            self._expect(key, replace(was, leader=newest[key].leader, isr=whole, offline=frozenset()))
        self.check(timeouts.RECOVERY_S)

    def _newest_states(self) -> dict[Key, PartitionState]:
        """The state of each known partition, from the broker that knows its highest leader epoch.

        :raises PromiseBroken: brokers do not answer, or none knows one of the partitions or its leader
        """

        def newest() -> dict[Key, PartitionState]:
            seen = [state for broker in self.cluster.live_brokers() for state in broker.describe_cluster().partitions]
            led = [state for state in seen if state.leader is not None]
            return {(s.topic, s.partition): s for s in sorted(led, key=lambda state: state.leader_epoch)}

        return await_until(
            newest,
            lambda states: self.partitions.keys() <= states.keys(),
            timeout_s=timeouts.REQUEST_S,
            what=f"the brokers to know a leader of {', '.join(f'{t}-{p}' for t, p in self.partitions)}",
            retry_on=(NoAnswer,),
            failure=PromiseBroken,
        )

    def check(self, timeout_s: float = timeouts.LOG_DIR_FAILURE_S, *, also: Sequence[Source] = ()) -> None:
        """Wait until all sources agree with the expected state.

        :param also: further sources, such as :func:`suites.observations.metadata_log`
        :raises PromiseBroken: a source still disagrees after the time-out; the error lists every difference. Or a
            broker or controller ended by itself, without a cause outside Kafka (else NodeDied). Or a held move ended
            although its broker knew the throttle
        :raises Inconclusive: no broker is left to ask; or only leaders or leader epochs differ, and a broker that the
            scenario left alone has lost its session since all sources last agreed
        :raises HeldMovesEnded: only held moves differ, which ended during a restart, before their broker had its
            configuration; they count as done from here on
        """
        if len(self.dead) == len(self.cluster.brokers):
            raise Inconclusive("no broker is left that could be asked for the state of the cluster")
        also = (*self._tools(), *also)
        seen = await_until(
            lambda: self._observe(also),
            lambda seen: bool(seen.ended_moves) or not seen.differences,
            timeout_s=timeout_s,
            what="the cluster to be as the KIP promises",
            retry_on=(NoAnswer, ToolFailed),
            watch=self.cluster.check_nodes,
            failure=self._failure,
        )
        if seen.ended_moves:
            for (topic, partition, _), to in seen.ended_moves.items():
                check_ended_before_throttle(self.cluster, f"{topic}-{partition}", to)
            self._take_for_ended(seen.ended_moves)
            moves = [f"{topic}-{partition} into {to}" for (topic, partition, _), to in seen.ended_moves.items()]
            raise HeldMovesEnded(moves, seen.differences)
        self._check_leaders_stayed()
        self._check_isrs_stayed()
        self._take_over_leaderships(seen.leaderships)
        self._agreed_at = seen.at
        mode = self.cluster.spec.mode
        self.cluster.journal.write(
            "state.validated",
            expected={f"{t}-{p}": str(e) for (t, p), e in self.partitions.items()},
            leader_epochs={f"{t}-{p}": epoch for (t, p), epoch in self.leader_epochs.items()},
            sources=[s.__name__ for s in (*FAST_SOURCES, *also) if SINGLE_MODE_SOURCES.get(s, mode) is mode],
        )

    def _tools(self) -> Sequence[Source]:
        """Kafka's own tools, which are asked at each step."""
        if self.slow:  # a tool waits for the broker with the slow disk, and then shows nothing of the others
            return ()
        knows = self.cluster.distribution.version.describes_topics_by_bootstrap
        return [tool for tool in TOOL_SOURCES if knows or tool not in TOPICS_TOOLS]

    def _failure(self, seen: str) -> JbodError:
        """The error for a source that does not agree in time; it also has what the other sources show then."""
        with suppress(NoAnswer):
            found = self.all_disagreements()
            if more := [difference for difference in found if difference not in seen]:
                seen = f"{seen}; besides: {'; '.join(more)}"
            only_leaders = found and all(map(LEADERSHIP_DIFFERS.search, found))
            if only_leaders:
                return self._blamed(self._agreed_at, seen)
        return PromiseBroken(seen)

    def _blamed(self, since: datetime, seen: str) -> JbodError:
        """The error for a wrong leader or ISR; a broker that lost its session since then may be the reason.

        Brokers that the scenario disturbed since then may lose theirs.
        """
        disturbed = self.dead | {id for id, at in self._disturbed_at.items() if at >= since}
        lost = lost_session(self.cluster, but=disturbed, since=since)
        return PromiseBroken(seen) if lost is None else lost.blamed(seen)

    def _check_leaders_stayed(self) -> None:
        """The cluster's watcher saw no other leader of a partition whose leader had to stay since the last agreement.

        The watcher may report late what happened before that. Such a report has an older leader epoch.

        :raises PromiseBroken: it saw another leader
        :raises Inconclusive: it saw another leader, and a broker that the scenario left alone had lost its session on a
            busy machine
        :raises HarnessError: the watcher has ended
        """
        self.cluster.check_watched()
        for event in self.cluster.journal.of(PartitionChanged):
            led = self._led.get(event.key)
            if led is None or event.leader == led.leader or event.leader_epoch <= led.epoch:
                continue
            if event.at > led.at:
                seen = (
                    f"broker {led.leader} should lead {event.topic}-{event.partition} all the while; at "
                    f"{event.at.isoformat()} broker {event.seen_by} saw leader {event.leader or 'none'}"
                )
                raise self._blamed(led.at, seen)

    def _check_isrs_stayed(self) -> None:
        """The cluster's watcher saw no replica leave the ISR that had to stay in it since the last agreement.

        A replica has to stay while nothing happens to its broker, and while the leader's disk is not slow: a follower
        waits for what the leader reads. A broker may show the watcher an older ISR for a moment.

        :raises PromiseBroken: it saw an ISR without the replica
        :raises Inconclusive: it saw one, and a broker that the scenario left alone had lost its session on a busy
            machine
        """
        for event in self.cluster.journal.of(PartitionChanged):
            in_sync = self._in_sync.get(event.key)
            if in_sync is None or event.at <= in_sync.at + _LAG or event.leader_epoch < in_sync.epoch:
                continue
            if event.leader in self._slow_since(in_sync.at):
                continue
            left = in_sync.isr - set(event.isr)
            if left and (left := left - self._touched(in_sync.at)):
                seen = (
                    f"brokers {sorted(left)} should be in the ISR of {event.topic}-{event.partition} all the while; at "
                    f"{event.at.isoformat()} broker {event.seen_by} saw the ISR {list(event.isr)}"
                )
                raise self._blamed(in_sync.at, seen)

    def _touched(self, since: datetime) -> set[int]:
        """The brokers that something happened to since then, or that a fault still keeps busy."""
        journal = self.cluster.journal
        hit = {each.broker for kind in (FaultInjecting, FaultHealing) for each in journal.of(kind) if each.at >= since}
        nodes = {each.node for kind in _NODE_EVENTS for each in journal.of(kind) if each.at >= since}
        ids = {broker.id for broker in self.cluster.brokers if broker.id in hit or f"broker-{broker.id}" in nodes}
        return ids | self.dead | self.slow | {id for id, at in self._disturbed_at.items() if at >= since}

    def _take_over_leaderships(self, leaderships: Mapping[Key, Leadership]) -> None:
        """From here on each of these leaders stays, and its leader epoch, until an event touches the partition.

        All sources agree, so brokers that were started know the state of all partitions.
        """
        self._starting.clear()
        for key, led in leaderships.items():
            self.leader_epochs.setdefault(key, led.epoch)
        self._led = dict(leaderships)
        self._in_sync = {
            key: InSync(isr=isr, epoch=led.epoch, at=led.at)
            for key, led in leaderships.items()
            if (isr := self.partitions[key].isr) is not None
        }

    def _take_for_ended(self, moves: Mapping[ReplicaKey, LogDir]) -> None:
        """Expect the replicas of these moves in their new log dirs."""
        self._places = {**self._places, **moves}
        self._future_replicas = {key: place for key, place in self._future_replicas.items() if key not in moves}

    def _observe(self, also: Sequence[Source]) -> Observation:
        """Ask all sources once. This changes nothing of the expected state."""
        at = now()
        if differences := self.disagreements(also):
            return Observation(differences=differences, ended_moves=self._ended_moves(), at=at)
        return replace(self._observe_leaderships(), at=at)

    def _ended_moves(self) -> dict[ReplicaKey, LogDir]:
        """The held moves that may have ended during a restart, if all sources agree once these count as done.

        KRaft only; :mod:`suites.held_moves` judges when they ended. Of several held moves, only some may have ended.
        """
        held = [each for each in self._future_replicas.items() if self._restarted_since_held(each[0])]
        for count in range(1, len(held) + 1):
            for some in map(dict, combinations(held, count)):
                afterwards = copy.copy(self)
                afterwards._take_for_ended(some)
                with suppress(NoAnswer):
                    if not afterwards.all_disagreements():
                        return some
        return {}

    def _observe_leaderships(self) -> Observation:
        """The leader epochs as all brokers see them; they differ where a broker has yet to hear of the latest."""
        at = now()
        seen = [answer for _, answer in self.ask_each_broker(lambda broker: broker.describe_cluster())]
        differences = []
        leaderships = {}
        for key, expected in self.partitions.items():
            epochs = {cluster[key].leader_epoch for cluster in seen}
            if len(epochs) > 1:
                differences.append(f"brokers see {key[0]}-{key[1]} in the leader epochs {sorted(epochs)}")
            elif expected.leader is not None:
                leaderships[key] = Leadership(leader=expected.leader, epoch=epochs.pop(), at=at)
        return Observation(differences=differences, leaderships=leaderships)

    def all_disagreements(self) -> list[str]:
        """Every difference between the expected state and the fast sources, now."""
        return [difference for source in FAST_SOURCES for difference in source(self)]

    def disagreements(self, also: Sequence[Source] = ()) -> list[str]:
        """The differences of the first source that has any, now.

        The slower sources in ``also`` are asked only where all fast ones agree: their answers would cost the time that
        all are waiting for.
        """
        found: Iterable[list[str]] = (list(source(self)) for source in (*FAST_SOURCES, *also))
        return next(filter(None, found), [])
