"""What tasks report to the driver, and how far a pair is by these reports.

All instants of reports are in microseconds since the epoch; 0 means never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple


class AckedPartition(NamedTuple):
    """What one producer has of one partition."""

    end: int = 0
    """The highest acked offset, plus one."""
    sent_at: int = 0
    """When the client got the newest acked record."""
    records: int = 0
    """How many records were acked."""


@dataclass(frozen=True, kw_only=True)
class ProducerReport:
    """Where a producer task is."""

    acked: int = 0
    failed: int = 0
    indeterminate: int = 0
    in_flight: int = 0
    newest_ack_at: int = 0
    partitions: Mapping[int, AckedPartition] = field(default_factory=dict)
    committed: int = 0
    """Transactions, as are the next two."""
    aborted: int = 0
    unresolved: int = 0
    """Indeterminate transactions."""
    last_error: str = ""


class ReadPartition(NamedTuple):
    """What one consumer has of one partition."""

    end: int = 0
    """The next offset that it reads."""
    sent_at: int = 0
    """When the newest record that it read was sent, rounded down to the millisecond."""


@dataclass(frozen=True, kw_only=True)
class Rebalance:
    """Partitions that a group member was assigned, has revoked, or has lost."""

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
    """Where one session of a consumer is."""

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
    """How far a pair is in one partition; None is never."""

    partition: int
    acked: int
    """How many records were acked."""
    acked_end: int
    """The highest acked offset, plus one."""
    acked_sent_at: datetime | None
    """When a client got the newest acked record."""
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
    """Transactions, as are the next two."""
    aborted: int = 0
    unresolved: int = 0
    """Indeterminate transactions."""

    def fewest_since(self, first: Progress) -> int:
        """How many records each partition has had acked, and read, since ``first``: the lowest of all these counts."""
        both = zip(first.partitions, self.partitions, strict=True)
        return min(min(now.acked - was.acked, now.read_end - was.read_end) for was, now in both)

    def __str__(self) -> str:
        transactions = f"{self.committed} committed, {self.aborted} aborted, {self.unresolved} indeterminate"
        return (
            f"{self.acked} acked, {self.failed} failed, {self.indeterminate} indeterminate, {self.in_flight} in "
            f"flight, {self.read} read, consumer restarted {self.restarts} times"
            + (f", transactions: {transactions}" if self.committed + self.aborted + self.unresolved else "")
        )
