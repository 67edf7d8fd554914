"""Measures what each fault cost: how long its effects lasted, and under what load. It reads only the run folder.

:class:`FaultCosts` has the figures. All times are seconds from the fault's injection (``fault.injecting`` in the
journal), except ``recovered_s``.

A fault ends when it is undone, or with the case. A fault that ends its broker is over when the broker is started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harness.events import (
    BrokersChanged,
    Event,
    FaultEvent,
    FaultInjected,
    FaultInjecting,
    FaultUndone,
    NodeEvent,
    NodeKilled,
    NodePaused,
    NodeStarted,
    NodeStopping,
    PairReady,
    PairStopping,
    PartitionChanged,
    StateValidated,
    TopicDeleted,
)
from harness.kafka.broker_log import BrokerLog
from harness.measure.roles import in_sync, led_by, role_of

if TYPE_CHECKING:
    from harness.measure.gaps import ClientTimes

_ENDS = (NodeStopping, NodeKilled)
_BLOWS = (NodePaused, *_ENDS)


@dataclass(frozen=True, kw_only=True)
class FaultCosts:
    """What one fault cost. A figure is None if it does not apply; if the fault is not proven, all are.

    :ivar may_hold_up_clients: the fault may stop clients while it is in force, so it has no floor of load
    :ivar role: "leader", "follower" or "controller" (:mod:`harness.measure.roles`)
    :ivar also: what else the broker was: "controller", "coordinator"
    :ivar noticed_s: until the broker's log reports the failed log dir, counted from the broker's start if it was down;
        or, if the fault ends the broker, until another broker's metadata no longer has it
    :ivar controller_told_s: until a controller's log reports the log dir or the broker, counted in the same way.
        All builds since 2.0 log it at INFO (``KafkaController``), KRaft since 3.7 (``ReplicationControlManager``)
    :ivar other_leader_s: until every partition that the broker led and lost by this fault had another leader, as the
        first broker saw it; None if it lost none, or if one never had another leader
    :ivar no_other_leader: how many of these partitions had no other leader until the fault's end, or until the next
        fault or stop of the same broker. A broker that is stopped or killed loses all that it led. By any
        other fault it loses the partitions that then had no leader, or that got another leader while the broker was
        among their offline replicas. If the broker was online, a move or a requested election changed the leader, and
        not the fault. Deleted topics do not count
    :ivar recovered_s: from the fault's end, or the broker's next start, until the broker was back in every ISR that
        had it before the fault and lacked it at the fault's end; also None if it never came back. Deleted topics do
        not count
    :ivar first_ack_s: until the ack that ended the longest stretch without one, if that was an interruption
        (:func:`harness.measure.gaps.interruption_s`); also None if none came while the fault was in force
    :ivar produce_gap_s: the longest stretch without an ack while the fault was in force and a pair ran
    :ivar consume_gap_s: the same without a record read. Both are measured at the clients, not in metadata
    :ivar acked_before: records acked before the fault, in the partition with the fewest, of the pairs that ran when it
        struck; None if none ran. A fault that met no load has shown nothing (:mod:`harness.measure.floors`)
    :ivar acked_during: records acked while the fault was in force and had been noticed, counted in the same way
    :ivar read_during: the same of records read
    :ivar reader_gaps_s: by independent reader, the longest stretch without a record of some partition
    """

    name: str
    target: str
    proven: bool
    may_hold_up_clients: bool = False
    role: str | None = None
    also: tuple[str, ...] = ()
    noticed_s: float | None = None
    controller_told_s: float | None = None
    other_leader_s: float | None = None
    no_other_leader: int = 0
    recovered_s: float | None = None
    first_ack_s: float | None = None
    produce_gap_s: float | None = None
    consume_gap_s: float | None = None
    acked_before: int | None = None
    acked_during: int | None = None
    read_during: int | None = None
    reader_gaps_s: Mapping[str, float] = field(default_factory=dict)

    def figure(self, name: str) -> float | None:
        """Return one of the figures in seconds, by its name."""
        value: float | None = getattr(self, name)
        return value

    def never_came(self, figure: str) -> bool:
        """Whether a figure is None because what it measures never happened, not because it does not apply."""
        return figure == "other_leader_s" and bool(self.no_other_leader)

    def to_json(self) -> dict[str, object]:
        """The costs as ``--json`` and run.json have them; a fault that is not proven has no figures."""
        content = asdict(self) | {"also": list(self.also)}
        if not self.proven:
            content = {name: content[name] for name in ("name", "target", "proven", "may_hold_up_clients")}
        left_out = [name for name in ("may_hold_up_clients", "reader_gaps_s") if not content.get(name, True)]
        return {name: value for name, value in content.items() if name not in left_out}

    @classmethod
    def from_json(cls, content: object) -> FaultCosts:
        """Read what :meth:`to_json` wrote; an older version may lack figures.

        :raises msgspec.ValidationError: ``content`` has another form
        """
        return msgspec.convert(content, cls)


def measure_faults(events: Sequence[Event], run_dir: Path) -> list[FaultCosts]:
    """The costs of each fault in the journal, in the order of injection.

    :param events: the whole journal
    """
    from harness.measure.gaps import ClientTimes  # pyarrow, which a start of jbod can do without

    times = ClientTimes(run_dir)
    return [
        _Fault(events, index, event, run_dir).costs(times)
        for index, event in enumerate(events)
        if isinstance(event, FaultInjecting)
    ]


class _Fault:
    """One injection of a fault, and the journal around it."""

    def __init__(self, events: Sequence[Event], index: int, event: FaultInjecting, run_dir: Path) -> None:
        self._events = events
        self._before = events[:index]
        self._later = events[index:]
        self._event = event
        self._broker = event.broker
        self._node = f"broker-{event.broker}"
        self._run_dir = run_dir

    def costs(self, times: ClientTimes) -> FaultCosts:
        """All figures."""
        event = self._event
        if self._proven is None:
            return FaultCosts(
                name=event.fault, target=event.target, proven=False, may_hold_up_clients=event.may_hold_up_clients
            )
        lost = self._lost_leaderships()
        had_another = [at for at in lost.values() if at is not None]
        noticed_at = self._noticed_at
        clients = self._clients(times, self._takes_effect_at(had_another))
        return FaultCosts(
            name=event.fault,
            target=event.target,
            proven=True,
            may_hold_up_clients=event.may_hold_up_clients,
            role=(hit := role_of(event, self._before)).role,
            also=hit.also,
            noticed_s=None if noticed_at is None else self._noticed_s(noticed_at),
            controller_told_s=self._controller_told_s(),
            other_leader_s=_s(event.at, max(had_another)) if had_another and None not in lost.values() else None,
            no_other_leader=sum(at is None for at in lost.values()),
            recovered_s=self._recovered_s() if self._undone else None,
            first_ack_s=_most(each.first_ack_s for each in clients),
            produce_gap_s=_most(each.produce_gap_s for each in clients),
            consume_gap_s=_most(each.consume_gap_s for each in clients),
            acked_before=min((each.acked_before for each in clients), default=None),
            acked_during=min((each.acked_during for each in clients), default=None),
            read_during=min((each.read_during for each in clients), default=None),
            reader_gaps_s={name: gap for each in clients for name, gap in each.reader_gaps_s.items()},
        )

    # --- its own events ---------------------------------------------------------------------------------------------

    @cached_property
    def _steps(self) -> list[FaultEvent]:
        """The later steps of this injection; the same fault may be injected again afterwards."""
        steps = []
        for event in self._later[1:]:
            if isinstance(event, FaultEvent) and (event.fault, event.target) == (self._event.fault, self._event.target):
                if isinstance(event, FaultInjecting):
                    break
                steps.append(event)
        return steps

    @cached_property
    def _proven(self) -> FaultInjected | None:
        return next((step for step in self._steps if isinstance(step, FaultInjected)), None)

    @cached_property
    def _undone(self) -> FaultUndone | None:
        return next((step for step in self._steps if isinstance(step, FaultUndone)), None)

    @property
    def _end(self) -> datetime:
        return (self._undone or self._events[-1]).at

    @property
    def _ends_its_broker(self) -> bool:
        """Whether the fault ends its broker: then other brokers notice it, and not the broker's own log."""
        return self._event.noticed_by is None

    # --- who noticed ------------------------------------------------------------------------------------------------

    @cached_property
    def _noticed_at(self) -> datetime | None:
        if self._event.noticed_by is not None:
            log = BrokerLog(self._run_dir / "brokers" / str(self._broker) / "broker.log")
            line = log.first(self._event.noticed_by, since=self._event.at)
            return None if line is None else line.at
        known = [e.brokers for e in self._before if isinstance(e, BrokersChanged)]
        if known and self._broker not in known[-1]:
            return None  # the broker was down already, so nothing notices what happens to its disk
        gone = (e.at for e in self._later if isinstance(e, BrokersChanged) and self._broker not in e.brokers)
        return next((at for at in gone if at <= self._end), None)  # later ones belong to another fault

    def _noticed_s(self, at: datetime) -> float:
        return _s(self._event.at, at) if self._ends_its_broker else self._s_since_it_ran(self._event.at, at)

    def _controller_told_s(self) -> float | None:
        """From the logs of all nodes, because any of them may have been the controller."""
        pattern = (_TOLD_OF_BROKER if self._ends_its_broker else TOLD_OF_LOG_DIR).format(broker=self._broker)
        logs = map(BrokerLog, self._run_dir.glob("brokers/*/broker.log"))
        lines = (log.first(pattern, since=self._event.at) for log in logs)
        told_at = min((line.at for line in lines if line is not None and line.at <= self._end), default=None)
        return None if told_at is None else self._s_since_it_ran(self._event.at, told_at)

    def _s_since_it_ran(self, since: datetime, at: datetime) -> float:
        """Seconds since an instant, or since the last start of the broker between that and ``at``."""
        starts = [e.at for e in self._starts if since <= e.at <= at]
        return _s(starts[-1] if starts else since, at)

    @cached_property
    def _starts(self) -> list[NodeStarted]:
        return [e for e in self._later if isinstance(e, NodeStarted) and e.node == self._node]

    # --- leaders and the ISR ----------------------------------------------------------------------------------------

    def _takes_effect_at(self, had_another: Sequence[datetime]) -> datetime:
        """When the fault begins to affect clients. Until it is noticed they get through; that does not count as load.

        The cluster's watcher may see a new leader later than the scenario did.
        """
        noticed = max([self._noticed_at or self._event.at, *had_another])
        validated = next((e.at for e in self._later if isinstance(e, StateValidated)), noticed)
        return min(noticed, validated)

    def _lost_leaderships(self) -> dict[tuple[str, int], datetime | None]:
        """The partitions that the broker no longer leads, and when each had another leader; None if never."""
        assert self._proven is not None
        gone = _deleted(self._before)
        led = {partition for partition in led_by(self._broker, self._before) if partition[0] not in gone}
        while_injected = self._later[: self._later.index(self._proven)]
        ended = any(isinstance(e, _ENDS) and e.node == self._node for e in while_injected)
        lost: dict[tuple[str, int], datetime | None] = dict.fromkeys(led) if ended else {}
        own = self._until_next_blow()
        for e in own:
            if not isinstance(e, PartitionChanged) or e.key not in led or e.leader == self._broker:
                continue
            if ended or e.leader is None or self._broker in e.offline_replicas:
                lost.setdefault(e.key)
            if e.leader is not None:
                led.remove(e.key)  # what happens to the next leader is no cost of this fault
                if e.key in lost:
                    lost[e.key] = e.at
        gone = _deleted(own)
        return {partition: at for partition, at in lost.items() if at is not None or partition[0] not in gone}

    def _until_next_blow(self) -> list[Event]:
        """The events from the fault to its end, or to the next fault on its broker or stop of it."""
        assert self._proven is not None
        after = self._later[self._later.index(self._proven) + 1 :]
        blows = (e.at for e in after if _hits(e, self._node))
        until = min(self._end, next(blows, self._end))
        return [e for e in self._later if e.at <= until]

    def _recovered_s(self) -> float | None:
        end = self._end
        if self._ends_its_broker and self._starts:
            end = min(end, self._starts[0].at)
        had = in_sync(self._broker, self._before)
        has = in_sync(self._broker, [*self._before, *(e for e in self._later if e.at <= end)])
        deleted = _deleted(self._later)
        missing = {partition for partition in had - has if partition[0] not in deleted}
        back: dict[tuple[str, int], datetime] = {}
        for e in self._later:
            if isinstance(e, PartitionChanged) and e.at > end and self._broker in e.isr:
                back.setdefault(e.key, e.at)
        if not missing or not missing <= back.keys():
            return None
        return self._s_since_it_ran(end, max(back[partition] for partition in missing))

    # --- clients ----------------------------------------------------------------------------------------------------

    def _clients(self, times: ClientTimes, takes_effect_at: datetime) -> list[_Clients]:
        """For each pair that ran when the fault struck: what its clients felt until the pair stopped."""
        found = []
        start = self._event.at
        for index, pair in enumerate(self._events):
            if not isinstance(pair, PairReady) or pair.at > start:
                continue
            stops = (e for e in self._events[index:] if isinstance(e, PairStopping) and e.topic == pair.topic)
            until = min(self._end, next(stops, self._events[-1]).at)
            if until <= start:
                continue
            topic, own = pair.topic, pair.consumers
            gap = times.worst_gap(topic, start, until, consumers=own)
            effective = takes_effect_at < until
            acked, read = times.passed(topic, takes_effect_at, until, consumers=own) if effective else (0, 0)
            found.append(
                _Clients(
                    first_ack_s=None if gap is None or gap.acked_again_s is None else round(gap.acked_again_s, 3),
                    produce_gap_s=None if gap is None else round(gap.produce_s, 3),
                    consume_gap_s=None if gap is None else round(gap.consume_s, 3),
                    acked_before=times.passed(topic, self._events[0].at, start)[0],
                    acked_during=acked,
                    read_during=read,
                    reader_gaps_s={
                        name: round(times.reader_gap_s(topic, start, until, consumers), 3)
                        for name, consumers in pair.readers.items()
                    },
                )
            )
        return found


@dataclass(frozen=True, kw_only=True)
class _Clients:
    """What the clients of one pair felt of a fault; the fields are those of :class:`FaultCosts`."""

    first_ack_s: float | None
    produce_gap_s: float | None
    consume_gap_s: float | None
    acked_before: int
    acked_during: int
    read_during: int
    reader_gaps_s: Mapping[str, float]


TOLD_OF_LOG_DIR = (
    r"Handling log directory failure for brokers (?:\d+,)*{broker}\b"
    r"|Directories \[.*\] in broker {broker} marked offline"
)
_TOLD_OF_BROKER = (
    r"deleted brokers: (?:\d+,)*{broker}\b|Shutting down broker {broker}\b|Fencing broker {broker} at epoch"
    r"|[Bb]roker {broker} has requested and been granted"
)


def _hits(event: Event, node: str) -> bool:
    """Whether an event is another fault on a node, or a stop of it."""
    if isinstance(event, FaultInjecting):
        return event.struck == node
    return isinstance(event, _BLOWS) and isinstance(event, NodeEvent) and event.node == node


def _deleted(events: Sequence[Event]) -> set[str]:
    return {e.topic for e in events if isinstance(e, TopicDeleted)}


def _most(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _s(since: datetime, at: datetime) -> float:
    return round(max((at - since).total_seconds(), 0.0), 3)
