"""The reports of tasks to the driver, and the progress of a pair that follows from them.

All instants of reports are in microseconds since the epoch; 0 means never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple


class AckedPartition(NamedTuple):
    """The records of one producer in one partition that were acked."""

    end: int = 0
    """The highest acked offset, plus one."""
    sent_at: int = 0
    """When the newest acked record was given to the client."""
    records: int = 0
    """How many records were acked."""


@dataclass(frozen=True, kw_only=True)
class ProducerReport:
    """The progress of a producer task."""

    acked: int = 0
    failed: int = 0
    indeterminate: int = 0
    in_flight: int = 0
    newest_ack_at: int = 0
    partitions: Mapping[int, AckedPartition] = field(default_factory=dict)
    committed: int = 0
    """Committed transactions."""
    aborted: int = 0
    """Aborted transactions."""
    unresolved: int = 0
    """Indeterminate transactions."""
    last_error: str = ""


class ReadPartition(NamedTuple):
    """How far one consumer has read one partition."""

    end: int = 0
    """The next offset that it reads."""
    sent_at: int = 0
    """When the newest record that it read was sent, rounded down to the millisecond."""


@dataclass(frozen=True, kw_only=True)
class Rebalance:
    """Partitions that a group member was assigned, that were revoked, or that it lost."""

    what: Literal["assigned", "revoked", "lost"]
    partitions: Sequence[int]
    when: float
    """Seconds since the epoch."""
    sessions: Mapping[int, int] = field(default_factory=dict)
    """``assigned``: the number of the session that begins in each partition."""
    committed: Mapping[int, int] = field(default_factory=dict)
    """The committed offset of each partition; -1 for none."""
    error: str | None = None
    """``revoked``: why the commit failed."""


@dataclass(frozen=True, kw_only=True)
class ConsumerReport:
    """The progress of one session of a consumer."""

    read: int = 0
    newest_read_at: int = 0
    partitions: Mapping[int, ReadPartition] = field(default_factory=dict)
    last_error: str = ""
    assigned: Sequence[int] = ()
    """The partitions that a group member has."""
    rebalances: Sequence[Rebalance] = ()
    """All rebalances of a group member so far, oldest first."""


@dataclass(frozen=True, kw_only=True)
class PartitionProgress:
    """How far a pair is in one partition. An instant that is None means never."""

    partition: int
    acked: int
    """How many records were acked."""
    acked_end: int
    """The highest acked offset, plus one."""
    acked_sent_at: datetime | None
    """When the newest acked record was given to a client."""
    read_end: int
    """The next offset that the slowest live consumer reads."""
    read_sent_at: datetime | None
    """When the newest record that all live consumers read was sent, rounded down to the millisecond."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a pair is; at most about 0.3 s old."""

    acked: int
    failed: int
    indeterminate: int
    in_flight: int
    read: int
    restarts: int
    """How often live consumers were restarted."""
    acked_at: datetime | None
    """The newest acknowledgement."""
    read_at: datetime | None
    """The newest read."""
    partitions: tuple[PartitionProgress, ...]
    committed: int = 0
    """Committed transactions."""
    aborted: int = 0
    """Aborted transactions."""
    unresolved: int = 0
    """Indeterminate transactions."""

    def fewest_since(self, first: Progress) -> int:
        """The fewest records that were acked, or read, in any partition since ``first``."""
        both = zip(first.partitions, self.partitions, strict=True)
        return min(min(now.acked - was.acked, now.read_end - was.read_end) for was, now in both)

    def __str__(self) -> str:
        transactions = f"{self.committed} committed, {self.aborted} aborted, {self.unresolved} indeterminate"
        return (
            f"{self.acked} acked, {self.failed} failed, {self.indeterminate} indeterminate, {self.in_flight} in "
            f"flight, {self.read} read, consumer restarted {self.restarts} times"
            + (f", transactions: {transactions}" if self.committed + self.aborted + self.unresolved else "")
        )
