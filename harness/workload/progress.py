"""Where a pair stands: what its scenarios wait for and what the journal says of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class PartitionProgress:
    """Where a pair stands in one partition; None is never."""

    partition: int
    acked: int
    """Records."""
    acked_end: int
    """One behind the highest offset acked."""
    acked_sent_at: datetime | None
    """When the newest record that was acked had been handed to the client."""
    read_end: int
    """The next offset that a live consumer reads."""
    read_sent_at: datetime | None
    """When the newest record that was read had been handed to the client, rounded down to the millisecond."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a pair stands; at most some 0.3 s old."""

    acked: int
    failed: int
    indeterminate: int
    in_flight: int
    read: int
    restarts: int
    """How often a live consumer was started again."""
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
        """How many records were acked, and how many read, since then, in the partition that had fewest of either."""
        both = zip(first.partitions, self.partitions, strict=True)
        return min(min(now.acked - was.acked, now.read_end - was.read_end) for was, now in both)

    def __str__(self) -> str:
        transactions = f"{self.committed} committed, {self.aborted} aborted, {self.unresolved} indeterminate"
        return (
            f"{self.acked} acked, {self.failed} failed, {self.indeterminate} indeterminate, {self.in_flight} in "
            f"flight, {self.read} read, consumer restarted {self.restarts} times"
            + (f", transactions: {transactions}" if self.committed + self.aborted + self.unresolved else "")
        )
