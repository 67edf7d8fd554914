"""Measures how long clients got no ack or no record, and how many records got through, from the stored history.

It measures at the clients, because metadata does not show these gaps: a partition may have a new leader within a
second, while its producer gets no ack for half a minute. The gap of a fault is the longest period without an ack, or
without a read, in one partition, within its *window*: from its injection to its end. Over a whole topic, the unaffected
partitions would hide the gap. For the same reason, consumers of each isolation are measured apart: an open transaction
blocks only read_committed. Times of acks have a resolution of microseconds, but include the client's ``linger.ms`` and
the pause of 100 ms between two batches of records. Times of reads have a resolution of about 20 ms.

Independent readers (:mod:`harness.workload.readers`) do not count as live consumers here, because a stream reads in
batches, which would distort gaps and counts. Their gaps come from :meth:`ClientTimes.reader_gap_s`.

It reads Parquet with pyarrow, because a Spark job would take longer than the query. Each table is read only once,
because it has hundreds of parts: for six faults on two topics, reading it again for each query took 20 s.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.measure.stored_rows import stored_rows

_INTERRUPTION_S = 0.2
_TIMES_THE_USUAL_PAUSE = 5
_ONE_BATCH_S = 0.01
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = np.empty(0, dtype=np.int64)

ByPartition = dict[int, np.ndarray]
"""Sorted instants by partition, in microseconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The longest periods of a window without an ack and without a read, in one partition.

    :ivar produce_s: seconds without an ack
    :ivar consume_s: seconds without a read
    :ivar acked_again_s: seconds from the window's start to the ack that ended the longest period without one; None if
        no ack came before the window's end, or the period was no interruption (:func:`interruption_s`)
    """

    topic: str
    partition: int
    produce_s: float
    consume_s: float
    acked_again_s: float | None


def max_gap_s(times: np.ndarray, start: int, end: int) -> float:
    """Return the longest period within [start, end] without any of ``times``, in seconds.

    The periods before the first and after the last instant in the window count too.

    :param times: sorted instants, microseconds
    :param start, end: microseconds
    :raises ValueError: ``end`` is before ``start``
    """
    return _longest(times, start, end)[0]


def interruption_s(times: np.ndarray) -> float:
    """Return how long a period without an ack must be to count as an interruption, in seconds.

    It is five times the usual pause, and at least 0.2 s.

    Acks within 10 ms of each other belong to one batch. The usual pause is the median pause between two batches. The
    median over all acks would be nearly zero, and every short delay would be an interruption.

    :param times: sorted instants, seconds
    """
    pauses = np.diff(times)
    pauses = pauses[pauses > _ONE_BATCH_S]
    return max(_INTERRUPTION_S, _TIMES_THE_USUAL_PAUSE * float(np.median(pauses))) if pauses.size else _INTERRUPTION_S


def _longest(times: np.ndarray, start: int, end: int) -> tuple[float, float | None]:
    """Return :func:`max_gap_s`, and the seconds from the window's start to the instant that ended the gap.

    The latter is None if the window's end ended it.
    """
    if end < start:
        raise ValueError(f"a window must not end ({end}) before it starts ({start})")
    inside = times[_inside(times, start, end)]
    stretches = np.diff(np.concatenate([[start], inside, [end]]))
    index = int(stretches.argmax())
    return float(stretches[index]) / 1e6, float(inside[index] - start) / 1e6 if index < len(inside) else None


def _inside(times: np.ndarray, start: int, end: int) -> slice:
    return slice(int(np.searchsorted(times, start, "left")), int(np.searchsorted(times, end, "right")))


class ClientTimes:
    """When records were acked and read, from the history of a run folder, which is read at the first query.

    Rows are stored about a second after the event. So query a window two seconds after its end, or after the pair
    stopped.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        # Caches, because there are queries for each fault and each scans a whole table. `functools.cache` on methods
        # would keep the tables in memory until the next full garbage collection, several cases later.
        self._sent_to_in: dict[str, frozenset[int]] = {}
        self._acked_in: dict[str, ByPartition] = {}
        self._read_in: dict[tuple[str, frozenset[str] | None], list[ByPartition]] = {}

    def gaps(
        self, topic: str, start: datetime, end: datetime, *, consumers: Collection[str] | None = None
    ) -> tuple[Gap, ...]:
        """Return the gaps of a topic between two instants, for each partition ever sent to or read.

        :param start, end: the fault's window, with time zones
        :param consumers: the live consumers that count; None: all
        """
        since, until = _microseconds(start), _microseconds(end)
        acked = self._acked(topic)
        read = self._read(topic, consumers)
        found = []
        for partition in sorted(self._sent_to(topic).union(*read)):
            own = acked.get(partition, _NOTHING)
            produce_s, again_s = _longest(own, since, until)
            again_s = again_s if produce_s >= interruption_s(own / 1e6) else None
            consume_s = max(max_gap_s(by_partition.get(partition, _NOTHING), since, until) for by_partition in read)
            found.append(
                Gap(topic=topic, partition=partition, produce_s=produce_s, consume_s=consume_s, acked_again_s=again_s)
            )
        return tuple(found)

    def worst_gap(
        self, topic: str, start: datetime, end: datetime, *, consumers: Collection[str] | None = None
    ) -> Gap | None:
        """Return the longest gaps of all partitions (:meth:`gaps`); None if nothing was ever sent or read.

        ``produce_s`` and ``consume_s`` may be of different partitions. ``acked_again_s`` belongs to ``produce_s``, and
        ``partition`` to the longer of the two.
        """
        found = self.gaps(topic, start, end, consumers=consumers)
        if not found:
            return None
        unacked = max(found, key=lambda gap: gap.produce_s)
        return Gap(
            topic=topic,
            partition=max(found, key=lambda gap: max(gap.produce_s, gap.consume_s)).partition,
            produce_s=unacked.produce_s,
            consume_s=max(gap.consume_s for gap in found),
            acked_again_s=unacked.acked_again_s,
        )

    def reader_gap_s(self, topic: str, start: datetime, end: datetime, consumers: Collection[str]) -> float:
        """Return the longest period, in seconds, in which a reader got no record of some partition.

        The consumers of a group count together. If nothing was ever sent to the topic, returns the whole window.
        """
        since, until = _microseconds(start), _microseconds(end)
        read = _by_partition(self._consumed, topic, "read_at", pc.field("consumer").isin(list(consumers)))
        partitions = self._sent_to(topic).union(read)
        found = (max_gap_s(read.get(partition, _NOTHING), since, until) for partition in partitions)
        return max(found, default=(until - since) / 1e6)

    def passed(
        self, topic: str, start: datetime, end: datetime, *, consumers: Collection[str] | None = None
    ) -> tuple[int, int]:
        """Return how many records were acked, and how many live consumers read, between two instants.

        Both counts are for the partition with the fewest, so that a busy one cannot hide an idle one. With consumers of
        both isolations, the isolation with fewer reads counts.

        :param consumers: the live consumers that count; None: all
        """
        since, until = _microseconds(start), _microseconds(end)
        acked = self._acked(topic)
        read = self._read(topic, consumers)
        partitions = self._sent_to(topic).union(*read)

        def fewest(by_partition: ByPartition) -> int:
            instants = [by_partition.get(partition, _NOTHING) for partition in partitions]
            return min((len(each[_inside(each, since, until)]) for each in instants), default=0)

        return fewest(acked), min(fewest(by_partition) for by_partition in read)

    def _sent_to(self, topic: str) -> frozenset[int]:
        """Return all partitions to which records were sent, also those in which none was acked."""
        if topic not in self._sent_to_in:
            rows = self._produced.filter((pc.field("topic") == topic) & pc.field("partition").is_valid())
            self._sent_to_in[topic] = frozenset(pc.unique(rows["partition"]).to_pylist())
        return self._sent_to_in[topic]

    def _acked(self, topic: str) -> ByPartition:
        if topic not in self._acked_in:
            acked = pc.field("outcome") == "acked"
            self._acked_in[topic] = _by_partition(self._produced, topic, "ended_at", acked)
        return self._acked_in[topic]

    def _read(self, topic: str, consumers: Collection[str] | None) -> list[ByPartition]:
        """Return the times at which live consumers read records, one entry for each isolation that they have."""
        asked = topic, None if consumers is None else frozenset(consumers)
        if asked not in self._read_in:
            counts = pc.scalar(True) if consumers is None else pc.field("consumer").isin(list(consumers))
            committed = pc.field("isolation") == "read_committed"
            of = (counts & committed, counts & ~committed)
            each = [_by_partition(self._consumed, topic, "read_at", which) for which in of]
            self._read_in[asked] = [by_partition for by_partition in each if by_partition] or [{}]
        return self._read_in[asked]

    @cached_property
    def _produced(self) -> pa.Table:
        return stored_rows(self._run_dir, "produced", "topic", "partition", "ended_at", "outcome", encoded=True)

    @cached_property
    def _consumed(self) -> pa.Table:
        columns = ("topic", "partition", "read_at", "role", "isolation", "consumer")
        table = stored_rows(self._run_dir, "consumed", *columns, encoded=True)
        return table.filter(pc.field("role") == "live")


def _by_partition(rows: pa.Table, topic: str, column: str, which: pc.Expression) -> ByPartition:
    """Return the instants of one column by partition, sorted."""
    wanted = (pc.field("topic") == topic) & pc.field("partition").is_valid() & pc.field(column).is_valid() & which
    rows = rows.filter(wanted)
    partitions = rows["partition"].to_numpy()
    times = rows[column].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return {int(partition): np.sort(times[partitions == partition]) for partition in np.unique(partitions)}


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)
