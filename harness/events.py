"""The events of a journal, one frozen dataclass for each kind that code reads; other kinds are a :class:`Note`.

``events.jsonl`` of a run folder has one JSON object a line: ``at`` (UTC, ISO 8601, microseconds), ``monotonic_s``,
``kind``, and the fields of the kind. :func:`from_json` makes an event of a line's object, and :meth:`Event.to_json` an
object of an event; nothing else knows the JSON names. A field with a default may be missing, as in folders of older
versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import ClassVar

import msgspec

_STAMP = ("at", "monotonic_s")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a case.

    :ivar at: by the machine's clock, UTC
    :ivar monotonic_s: by the monotonic clock, seconds
    """

    at: datetime
    monotonic_s: float = 0.0
    kind: ClassVar[str]

    def details(self) -> Mapping[str, object]:
        """The fields of its kind by name, with values that JSON can hold."""
        named = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _STAMP}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in named.items()}

    def to_json(self) -> dict[str, object]:
        """The object of the event's line in ``events.jsonl``."""
        stamp = {"at": self.at.isoformat(timespec="microseconds"), "monotonic_s": self.monotonic_s, "kind": self.kind}
        return stamp | dict(self.details())


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """An event that only people read, such as ``cordon.unheeded``, or one of an older version with other fields."""

    kind: str  # type: ignore[misc]  # of the event, not of its class
    fields: Mapping[str, object] = field(default_factory=dict)

    def details(self) -> Mapping[str, object]:
        """See :meth:`Event.details`."""
        return self.fields


# --- the case -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PhaseEntered(Event):
    """The case entered a phase."""

    kind = "phase"
    phase: str


@dataclass(frozen=True, kw_only=True)
class Trouble(Event):
    """An error ended the scenario, its set-up or its teardown."""

    kind = "trouble"
    error: str
    says: str


@dataclass(frozen=True, kw_only=True)
class ClusterUnsettled(Event):
    """Something was still under way in the cluster at the end of the case; ``error`` is the class of the error."""

    kind = "cluster.unsettled"
    error: str
    says: str


@dataclass(frozen=True, kw_only=True)
class MetadataLogRead(Event):
    """The metadata log was read at the end of the case.

    :ivar until: the offset after its last record; those from ``since`` on belong to the case
    :ivar irregular: what breaks a rule of the controller (:mod:`harness.measure.metadata_history`)
    """

    kind = "metadata_log.read"
    since: int
    until: int
    irregular: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MetadataLogUnread(Event):
    """The metadata log could not be read at the end of the case."""

    kind = "metadata_log.unread"
    why: str


@dataclass(frozen=True, kw_only=True)
class Judged(Event):
    """The judge gave its verdict."""

    kind = "judged"
    verdict: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StateValidated(Event):
    """All sources agreed with the expected state."""

    kind = "state.validated"
    expected: Mapping[str, str] = field(default_factory=dict)
    leader_epochs: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeviationEvent(Event):
    """A check met a known deviation; the fields are ``JSON_NAMES`` of :mod:`harness.runner.deviation`."""

    kip: int
    says: str = ""
    does: str
    issue: str = ""
    builds: str = ""
    modes: tuple[str, ...] = ()
    always: bool = True
    lasts: bool = True
    seen: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviationSeen(DeviationEvent):
    """The build deviates."""

    kind = "deviation.seen"


@dataclass(frozen=True, kw_only=True)
class DeviationMended(DeviationEvent):
    """The build keeps the promise, where it might deviate."""

    kind = "deviation.mended"


# --- faults ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FaultEvent(Event):
    """A step in the life of a fault.

    :ivar noticed_by: a pattern of the line with which the broker's log reports it; None if the fault ends the broker
    """

    fault: str
    target: str
    broker: int
    noticed_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class FaultInjecting(FaultEvent):
    """A fault is about to be injected.

    :ivar node: the node that it hits; None in older folders, where it is the broker's
    :ivar explains: patterns of the errors in logs that it explains
    :ivar may_hold_up_clients: it may stop clients while it is in force, so no floor of load applies
    :ivar harms_logs: it may take records from a log that the broker had written
    """

    kind = "fault.injecting"
    node: str | None = None
    explains: tuple[str, ...] = ()
    may_hold_up_clients: bool = False
    harms_logs: bool = False

    def details(self) -> Mapping[str, object]:
        """See :meth:`Event.details`; a field that is false is left out."""
        return {name: value for name, value in super().details().items() if value is not False}

    @property
    def struck(self) -> str:
        """The name of the node that it hits."""
        return self.node or f"broker-{self.broker}"


@dataclass(frozen=True, kw_only=True)
class FaultInjected(FaultEvent):
    """A fault is in force, and proven."""

    kind = "fault.injected"
    injecting_at: str = ""
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class FaultNotProven(FaultEvent):
    """Nothing outside Kafka shows the fault's effect."""

    kind = "fault.not_proven"
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class FaultHealing(FaultEvent):
    """A fault is about to be undone."""

    kind = "fault.healing"


@dataclass(frozen=True, kw_only=True)
class FaultUndone(FaultEvent):
    """A fault is undone."""

    kind = "fault.undone"


@dataclass(frozen=True, kw_only=True)
class HoldOver(Event):
    """A thread that was held at a point goes on.

    :ivar thread: its name
    :ivar why: "released", "limit" (the hold had lasted as long as it may), "interrupted", or "ended" with its process
    """

    kind = "hold.over"
    point: str
    node: str
    thread: str
    why: str
    held_ms: int = 0


# --- nodes and what they say ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeEvent(Event):
    """A step in the life of a node: ``broker-1``, ``controller-100``, ``zookeeper``."""

    node: str


@dataclass(frozen=True, kw_only=True)
class NodeStarted(NodeEvent):
    """A node was started; ``kafka`` is the version of its build."""

    kind = "node.started"
    kafka: str = ""
    pid: int | None = None
    container: str | None = None


@dataclass(frozen=True, kw_only=True)
class NodeGoesOn(NodeEvent):
    """A node of an earlier case serves this one."""

    kind = "node.goes_on"


@dataclass(frozen=True, kw_only=True)
class NodeStopping(NodeEvent):
    """A node was sent SIGTERM."""

    kind = "node.stopping"


@dataclass(frozen=True, kw_only=True)
class NodeKilled(NodeEvent):
    """A node was sent SIGKILL."""

    kind = "node.killed"


@dataclass(frozen=True, kw_only=True)
class NodeStopped(NodeEvent):
    """A node that was stopped has ended."""

    kind = "node.stopped"
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class NodeEndedByItself(NodeEvent):
    """A node was found to have ended without being stopped.

    :ivar cause: the cause outside Kafka, if the node's errors name one
    """

    kind = "node.ended_by_itself"
    exit_code: int | None = None
    cause: str | None = None


@dataclass(frozen=True, kw_only=True)
class NodePaused(NodeEvent):
    """A node was paused."""

    kind = "node.paused"


@dataclass(frozen=True, kw_only=True)
class NodeResumed(NodeEvent):
    """A node was resumed."""

    kind = "node.resumed"


@dataclass(frozen=True, kw_only=True)
class FollowersHeld(Event):
    """Followers were paused for a moment, so that a leader that is about to fail has records alone.

    :ivar partitions: those of ``topic`` with one of ``brokers`` in the ISR, beside the leader
    :ivar held_at, until: every one of ``brokers`` was paused from one instant to the other
    :ivar seconds: how long that was
    :ivar ahead: whether a leader appended records meanwhile
    """

    kind = "followers.held"
    brokers: tuple[int, ...]
    topic: str
    partitions: tuple[int, ...]
    held_at: datetime
    until: datetime
    seconds: float = 0.0
    ahead: bool = True


@dataclass(frozen=True, kw_only=True)
class ReplicasFound(Event):
    """A broker is about to be started again, and these replicas are on its disks.

    :ivar log_dirs: for the path of each log dir, its partitions, and the high watermark of each by the checkpoint when
        the broker was ended, or now if that is higher
    :ivar marked_clean: the paths of the log dirs with the mark of a clean shutdown; None in older folders
    """

    kind = "replicas.found"
    broker: int
    log_dirs: Mapping[str, Mapping[str, int]]
    marked_clean: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class LogDirsLeft(Event):
    """A broker was stopped, and left this in its log dirs. A log dir that can't be read is left out.

    :ivar marked_clean: the paths of the log dirs with the mark of a clean shutdown
    :ivar written: for the path of each log dir, when each checkpoint file was written, in seconds since the epoch
    :ivar recovery_points: for the path of each log dir, its partitions, with the checkpointed recovery point of each
        and the end of its log
    """

    kind = "log_dirs.left"
    broker: int
    exit_code: int | None
    marked_clean: tuple[str, ...]
    written: Mapping[str, Mapping[str, float]]
    recovery_points: Mapping[str, Mapping[str, tuple[int, int]]]


@dataclass(frozen=True, kw_only=True)
class BrokerEnded(Event):
    """A broker ended by itself, as a check expected."""

    kind = "broker.ended"
    broker: int
    exit_code: int | None = None
    line: str = ""

    @property
    def node(self) -> str:
        """The name of its node."""
        return f"broker-{self.broker}"


@dataclass(frozen=True, kw_only=True)
class CordonInForce(Event):
    """A broker has these log dirs cordoned, and no others."""

    kind = "cordon.in_force"
    broker: int
    log_dirs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MBeansChanged(Event):
    """Counts in a node's MBeans that changed; None for a count that the node no longer has."""

    kind = "mbeans.changed"
    node: str
    values: Mapping[str, int | None]


# --- metadata -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClusterReady(Event):
    """All nodes of a new cluster answer."""

    kind = "cluster.ready"
    bootstrap: str = ""


@dataclass(frozen=True, kw_only=True)
class BrokersChanged(Event):
    """The registered brokers, as one broker's metadata has them."""

    kind = "brokers.changed"
    brokers: tuple[int, ...]
    seen_by: int | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionChanged(Event):
    """The new state of a partition, by the first broker that answered with it."""

    kind = "partition.changed"
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int = 0
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    seen_by: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition


@dataclass(frozen=True, kw_only=True)
class ReassignmentAsked(Event):
    """A partition is reassigned to these brokers, by a request."""

    kind = "reassignment.asked"
    partition: str
    replicas: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReassignmentExecuting(Event):
    """Partitions are reassigned, by the tool; a placement is a :class:`harness.cluster.reassign.Placement`."""

    kind = "reassignment.executing"
    placements: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TopicDeleted(Event):
    """A topic was deleted."""

    kind = "topic.deleted"
    topic: str


# --- clients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PairReady(Event):
    """A producer and a live consumer run on a topic, and both have got records through.

    :ivar readers: the consumers of each independent reader, by its name
    """

    kind = "pair.ready"
    topic: str
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] | None = None
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    after_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PairStopping(Event):
    """A pair was asked to stop."""

    kind = "pair.stopping"
    topic: str


@dataclass(frozen=True, kw_only=True)
class ConsumerBehind(Event):
    """A consumer ended before it had read all acked records; offsets by partition."""

    kind = "consumer.behind"
    consumer: str
    topic: str
    read: Mapping[int, int]
    acked: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class ReaderDied(Event):
    """A reader of records ended by itself; it is started again."""

    consumer: str
    error: str


@dataclass(frozen=True, kw_only=True)
class ConsumerDied(ReaderDied):
    """A consumer's task ended by itself."""

    kind = "consumer.died"


@dataclass(frozen=True, kw_only=True)
class StreamDied(ReaderDied):
    """A streaming query ended by itself."""

    kind = "stream.died"


@dataclass(frozen=True, kw_only=True)
class GroupEvent(Event):
    """A change of a group member's partitions.

    :ivar when: by the member's clock, seconds since the epoch
    :ivar committed: committed offsets, by partition
    """

    consumer: str
    partitions: tuple[int, ...]
    when: float
    committed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GroupAssigned(GroupEvent):
    """A member was assigned partitions.

    :ivar sessions: its session in each partition
    """

    kind = "group.assigned"
    sessions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GroupRevoked(GroupEvent):
    """A member gave partitions away, after it had committed.

    :ivar error: why the commit failed
    """

    kind = "group.revoked"
    error: str | None = None


# --- JSON -----------------------------------------------------------------------------------------------------------


def _kinds(of: type[Event]) -> dict[str, type[Event]]:
    found = {of.kind: of} if "kind" in vars(of) and of is not Note else {}
    for each in of.__subclasses__():
        found |= _kinds(each)
    return found


KINDS: Mapping[str, type[Event]] = _kinds(Event)
"""The class of each kind that is not a :class:`Note`."""


def from_json(content: Mapping[str, object]) -> Event:
    """The event of one line's object; a :class:`Note` if the kind has no class or its fields do not fit that class.

    :raises ValueError: the object has no kind, or no instant with a time zone
    """
    try:
        at, kind = datetime.fromisoformat(str(content["at"])), str(content["kind"])
    except KeyError as error:
        raise ValueError(f"an event has no {error}") from error
    if at.tzinfo is None:
        raise ValueError(f"{at} has no time zone")
    try:
        if kind in KINDS:
            return msgspec.convert(content, KINDS[kind], str_keys=True)
        monotonic_s = msgspec.convert(content.get("monotonic_s", 0.0), float)
    except msgspec.ValidationError:
        monotonic_s = 0.0
    rest = {name: value for name, value in content.items() if name not in (*_STAMP, "kind")}
    return Note(at=at, monotonic_s=monotonic_s, kind=kind, fields=rest)
