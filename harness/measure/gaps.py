"""How long clients went without, and how much got through: measured at the client, because metadata doesn't say it.

A new leader within a second may still mean half a minute without an acknowledgement. So the gap of a fault is the
longest stretch of its window in which nothing was acked, or nothing read, by partition: on a topic as a whole, the
partitions that nothing happened to would fill the gap. For the same reason live consumers of both isolations, where
there are both, are looked at one by one: what holds a read_committed reader back is not seen by the other. Resolution
is that of the recorded times: microseconds for acknowledgements (a client's ``linger.ms`` and the pause between two
lots of records, 100 ms, are in it), some 20 ms for reads.

Independent readers (:mod:`harness.workload.readers`) don't count among the live consumers here: a stream reads in
batches, which would water down both the gap and the count of what was read. Theirs is :meth:`ClientTimes.reader_gap_s`.

Reads Parquet with pyarrow alone: it is asked for while a run is on, where a Spark job would cost more than the answer;
and once, however many faults there were: a table has hundreds of parts (read anew for each answer, six faults on two
topics took 20 s).
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
import pyarrow.parquet as pq

from harness.history.tables import SCHEMAS, TableName, table_dir

_INTERRUPTION_S = 0.2
_TIMES_THE_USUAL = 5
_ONE_LOT_S = 0.01
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ByPartition = dict[int, np.ndarray]
"""Instants, microseconds since the epoch, sorted."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The longest stretches of a window without an acknowledgement and without a read, in one partition.

    :ivar acked_again_s: from the window's start to the acknowledgement that ended the longest stretch without one; None
        where none came before the window ended, or that was no interruption (:func:`interruption_s`)
    """

    topic: str
    partition: int
    produce_s: float
    consume_s: float
    acked_again_s: float | None


def max_gap_s(times: np.ndarray, start: int, end: int) -> float:
    """The longest stretch within [start, end] that holds none of ``times``, in seconds.

    :param times: sorted instants, microseconds
    :param start, end: microseconds; before the first of ``times`` in the window and behind the last one counts too
    """
    return _longest(times, start, end)[0]


def interruption_s(times: np.ndarray) -> float:
    """How long a stretch without any must be to be an interruption: 0.2 s, and five times the usual pause.

    What comes within 10 ms of another came in one lot with it, and the usual pause is that between two lots: by the
    distance of records alone it would be next to nothing, and every hiccup an interruption.

    :param times: sorted instants, seconds
    """
    pauses = np.diff(times)
    pauses = pauses[pauses > _ONE_LOT_S]
    return max(_INTERRUPTION_S, _TIMES_THE_USUAL * float(np.median(pauses))) if pauses.size else _INTERRUPTION_S


def _longest(times: np.ndarray, start: int, end: int) -> tuple[float, float | None]:
    """As :func:`max_gap_s`, and from the window's start to the instant that ended it; None where the window did."""
    if end < start:
        raise ValueError(f"a window must not end ({end}) before it starts ({start})")
    inside = times[_inside(times, start, end)]
    stretches = np.diff(np.concatenate([[start], inside, [end]]))
    index = int(stretches.argmax())
    return float(stretches[index]) / 1e6, float(inside[index] - start) / 1e6 if index < len(inside) else None


def _inside(times: np.ndarray, start: int, end: int) -> slice:
    return slice(int(np.searchsorted(times, start, "left")), int(np.searchsorted(times, end, "right")))


class ClientTimes:
    """When what was acked and read, as the history of a run folder has it when it is first asked.

    Rows are written within a second or so of what they tell, so a window should have ended two seconds ago, or the pair
    have been stopped.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        # Asked for each fault anew, and each answer goes through a whole table. (No `cache` of bound methods: with
        # that, the tables would be there until the next full collection, through all the cases that come before it.)
        self._sent_to_in: dict[str, frozenset[int]] = {}
        self._acked_in: dict[str, ByPartition] = {}
        self._read_in: dict[tuple[str, frozenset[str] | None], list[ByPartition]] = {}

    def gaps(
        self, topic: str, start: datetime, end: datetime, *, consumers: Collection[str] | None = None
    ) -> tuple[Gap, ...]:
        """What the clients of a topic went without between two instants, for each partition ever sent to or read.

        :param start, end: the fault's window, with time zones
        :param consumers: the live consumers that count; None: all
        """
        since, until = _microseconds(start), _microseconds(end)
        acked = self._acked(topic)
        read = self._read(topic, consumers)
        nothing = np.empty(0, dtype=np.int64)
        found = []
        for partition in sorted(self._sent_to(topic).union(*read)):
            own = acked.get(partition, nothing)
            produce_s, again_s = _longest(own, since, until)
            again_s = again_s if produce_s >= interruption_s(own / 1e6) else None
            consume_s = max(max_gap_s(by_partition.get(partition, nothing), since, until) for by_partition in read)
            found.append(
                Gap(topic=topic, partition=partition, produce_s=produce_s, consume_s=consume_s, acked_again_s=again_s)
            )
        return tuple(found)

    def worst_gap(
        self, topic: str, start: datetime, end: datetime, *, consumers: Collection[str] | None = None
    ) -> Gap | None:
        """The longest of :meth:`gaps` over all partitions, each of the two figures by itself (``acked_again_s`` is of
        the first); ``partition`` is that of the longer one. None if nothing was ever sent or read.
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
        """The longest stretch in which a reader was handed nothing of some partition, seconds; a group's together.

        Of a topic that nothing was sent to: the whole window.
        """
        since, until = _microseconds(start), _microseconds(end)
        read = _by_partition(self._consumed, topic, "read_at", pc.field("consumer").isin(list(consumers)))
        partitions = self._sent_to(topic).union(read)
        nothing = np.empty(0, dtype=np.int64)
        found = (max_gap_s(read.get(partition, nothing), since, until) for partition in partitions)
        return max(found, default=(until - since) / 1e6)

    def passed(
        self, topic: str, start: datetime, end: datetime, *, consumers: Collection[str] | None = None
    ) -> tuple[int, int]:
        """How many records were acked, and how many were handed to live consumers, between two instants: in that
        partition of the topic ever sent to or read in which it was fewest, so that one at rest isn't made up for by
        another; and of consumers of both isolations, by the one that was handed fewer.

        :param consumers: the live consumers that count; None: all
        """
        since, until = _microseconds(start), _microseconds(end)
        acked = self._acked(topic)
        read = self._read(topic, consumers)
        partitions = self._sent_to(topic).union(*read)
        nothing = np.empty(0, dtype=np.int64)

        def fewest(by_partition: ByPartition) -> int:
            instants = [by_partition.get(partition, nothing) for partition in partitions]
            return min((len(each[_inside(each, since, until)]) for each in instants), default=0)

        return fewest(acked), min(fewest(by_partition) for by_partition in read)

    def _sent_to(self, topic: str) -> frozenset[int]:
        """Whatever came of it: a partition that never acked anything is the one that clients went without most."""
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
        """When live consumers were handed records, for each isolation that those of the topic have."""
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
        return self._table("produced", "topic", "partition", "ended_at", "outcome")

    @cached_property
    def _consumed(self) -> pa.Table:
        table = self._table("consumed", "topic", "partition", "read_at", "role", "isolation", "consumer")
        return table.filter(pc.field("role") == "live")

    def _table(self, name: TableName, *columns: str) -> pa.Table:
        """Words and names stored once each: as text they'd be most of half a million rows."""
        fields = [SCHEMAS[name].field(column) for column in columns]
        words = [field.name for field in fields if pa.types.is_string(field.type)]
        parts = sorted(table_dir(self._run_dir, name).glob("*.parquet"))
        tables = [pq.read_table(part, columns=list(columns), read_dictionary=words) for part in parts]
        kinds = {
            each.name: pa.dictionary(pa.int32(), each.type) if each.name in words else each.type for each in fields
        }
        nothing = pa.table({column: pa.array([], kind) for column, kind in kinds.items()})
        return pa.concat_tables([nothing, *tables], promote_options="default")  # Spark's differ in what may be null


def _by_partition(rows: pa.Table, topic: str, column: str, which: pc.Expression) -> ByPartition:
    """The instants of one column, sorted, by partition."""
    wanted = (pc.field("topic") == topic) & pc.field("partition").is_valid() & pc.field(column).is_valid() & which
    rows = rows.filter(wanted)
    partitions = rows["partition"].to_numpy()
    times = rows[column].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return {int(partition): np.sort(times[partitions == partition]) for partition in np.unique(partitions)}


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)
