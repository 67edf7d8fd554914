"""The independent readers beside a pair: which kinds there are, and their protocol.

A pair's clients are librdkafka. A bug of librdkafka, or of the harness around it, would look like one of Kafka. So the
same records are read in other ways at the same time: by Spark Structured Streaming, which is Kafka's Java client
(:mod:`harness.workload.stream`), and by a consumer group (:mod:`harness.workload.group`). Each is a live consumer of
the history under its own name. The judge compares each with the drain, which is Kafka's Java client too. An error that
only one reader sees is that reader's; an error that all see is the log's.

Readers count neither for a pair's progress, nor for its gaps, nor for the floors of its load. Its own consumer measures
these in milliseconds; a stream reads in batches of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.workload.consumer import Isolation


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Spark Structured Streaming, from a checkpoint."""

    isolation: Isolation = "read_uncommitted"
    """The option ``kafka.isolation.level``; the default is that of Spark's Kafka source."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A consumer group of two members.

    The second member joins when the first one reads, and leaves before the end. So partitions move both ways: to a
    member that joins, and back from a member that leaves. The judge looks for skipped records between the first and the
    last record of the group, whichever member read them.
    """

    isolation: Isolation = "read_uncommitted"


ReaderSpec = Stream | Group


class Reader(Protocol):
    """What a pair needs of a reader."""

    @property
    def name(self) -> str:
        """Its name in the journal."""

    @property
    def consumers(self) -> Sequence[str]:
        """Its names in the history; several names are a group."""

    @property
    def isolation(self) -> Isolation:
        """Its isolation level."""

    def start(self) -> None:
        """Begin to read; returns soon."""

    def check(self) -> None:
        """Raise PipelineError if it is broken."""

    def await_ready(self, timeout_s: float) -> None:
        """Wait until it reads.

        :raises PipelineError: not within ``timeout_s`` seconds
        """

    def read_end(self, partition: int) -> int:
        """The next offset that it reads."""

    def read_sent_at(self, partition: int) -> int:
        """When the newest record that it read was sent, in microseconds; 0 is never."""

    def before_end(self) -> None:
        """Do what must be done before the producers stop; takes a bounded time."""

    def stop(self, at: Mapping[int, int]) -> None:
        """Let it end when it has read up to these offsets, by partition; returns soon."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; returns whether it has ended, in good order or broken."""

    def abort(self) -> None:
        """End it now; may be called twice."""
