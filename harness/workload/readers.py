"""Independent readers beside a pair: which there are, and what a pair asks of each.

The pair's live consumer, its producer and the harness's group members are all librdkafka; one error of that client, or
of the harness around it, would look like one of Kafka. So the same records are read in other ways at the same time: by
Spark Structured Streaming (Kafka's Java client; :mod:`harness.workload.stream`) and by a consumer group, which goes by
committed offsets and rebalances (:mod:`harness.workload.group`). Each is a live consumer of the history under a name of
its own, and the judge compares each with the drain (again Java) and so with every other: what only one of them saw is
that one's; what all saw is the log's.

They run beside the pair, not in it: a pair's progress, its gaps and the floors of its load are those of its own
consumer, which is measured in milliseconds; a stream reads in batches of a second.
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
    """``kafka.isolation.level``; the default is the Kafka source's own."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A consumer group of two: the second member joins when the first has read, and leaves before the end.

    The one that came first also goes last, so that partitions change hands both ways: to one that joins, and back from
    one that leaves. The judge looks for skipped records between the first and the last one that the group was handed,
    whoever of it had which.
    """

    isolation: Isolation = "read_uncommitted"


ReaderSpec = Stream | Group


class Reader(Protocol):
    """What a pair asks of a reader."""

    @property
    def name(self) -> str:
        """What it is called in the journal."""

    @property
    def consumers(self) -> Sequence[str]:
        """Its names in the history; with more than one, they are a group."""

    @property
    def isolation(self) -> Isolation:
        """What it reads."""

    def start(self) -> None:
        """Begin; returns soon."""

    def check(self) -> None:
        """Raise PipelineError if it is broken."""

    def await_ready(self, timeout_s: float) -> None:
        """Until it reads, all of it.

        :raises PipelineError: it doesn't, within ``timeout_s`` seconds
        """

    def read_end(self, partition: int) -> int:
        """The next offset that it reads."""

    def read_sent_at(self, partition: int) -> int:
        """When the newest record that it was handed had been sent, microseconds; 0 is never."""

    def before_end(self) -> None:
        """The producers are about to stop: what is to be done while records still come. Bounded."""

    def stop(self, at: Mapping[int, int]) -> None:
        """Let it end as soon as it has read up to these offsets, by partition. Returns soon."""

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended, in good order or for good, within these seconds."""

    def abort(self) -> None:
        """End it now; may be called twice."""
