"""Write-ahead for producers: before a record is sent, its name is on disk.

A row of ``history/produced`` is written when the outcome of its record is known. A killed producer loses the rows of
its last second, and the records that Kafka has of them would look like phantoms. So a producer reserves the next block
of seqs in ``history/reserved/<producer>.json`` before it sends the first of them. :func:`settle` later adds an
``indeterminate`` row for each reserved seq that has none. The value of a record follows from its name and size
(:mod:`harness.history.record_format`), so the row has its CRC-32; it has no times.

At most one block of the added rows is for records that were never sent. That does no harm, since an indeterminate
record may be missing; it adds a few hundred to the counts of a run whose producer was killed. To write a row before
each record would be exact, but slow.

A transactional producer reserves each transaction on its own, with its name. So the added rows are grouped as the
records were, and the judge can check that a killed producer's last transactions are complete or absent.

The file is replaced, not appended to, and not synced: it must outlive a process, not a power cut.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import HistoryError
from harness.history import record_format
from harness.history.tables import PRODUCED, HistoryWriter, table_dir
from harness.host.atomic_write import write_atomically

ERROR = "_PRODUCER_DIED"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What a producer may have sent: the seqs from 0 to ``below`` - 1."""

    producer: str
    run_token: str
    topic: str
    partitions: int
    keys: int | None
    record_bytes: int
    below: int = 0
    transactions: Sequence[tuple[int, str]] = ()
    """The newest transactions, oldest first: the first seq and the name of each. A transaction ends where the next one
    begins, the last one at ``below``."""
    settled: bool = False
    """Whether every seq has its row in ``history/produced``."""

    def write(self, run_dir: Path) -> Reservation:
        """Replace the producer's reservation on disk; returns itself."""
        path = run_dir / "history" / "reserved" / f"{self.producer}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(self)))
        return self


def settle(run_dir: Path, producers: Collection[str] | None = None) -> dict[str, int]:
    """Add the rows that killed producers could not write; a second call adds nothing.

    :param producers: those that have ended; None if all producers of the run have
    :returns: how many rows were added, by producer
    """
    added: dict[str, int] = {}
    for path in sorted((run_dir / "history" / "reserved").glob("*.json")):
        if producers is not None and path.stem not in producers:
            continue
        reservation = _read(path)
        if reservation.settled:
            continue
        missing = np.setdiff1d(np.arange(reservation.below), _recorded(run_dir, reservation.producer))
        if missing.size:
            HistoryWriter(run_dir, "produced", f"{reservation.producer}-settled").write(_rows(reservation, missing))
            added[reservation.producer] = int(missing.size)
        replace(reservation, settled=True).write(run_dir)
    return added


def promised(run_dir: Path) -> dict[str, int]:
    """For each producer, the seq below which every record got a row in ``produced``. A missing row is a lost part.

    It is 0 for a producer that is not settled yet. The history of another tool has no reservations.

    :raises HistoryError: a reservation is cut off
    """
    reservations = [_read(path) for path in sorted((run_dir / "history" / "reserved").glob("*.json"))]
    return {each.producer: each.below if each.settled else 0 for each in reservations}


def _read(path: Path) -> Reservation:
    try:
        return Reservation(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise HistoryError(f"{path} is cut off, or is not a producer's reservation: {error}") from error


def _recorded(run_dir: Path, producer: str) -> np.ndarray:
    """The seqs of this producer that have a row."""
    seqs = [
        pq.read_table(part, columns=["seq"], filters=[("producer", "==", producer)])["seq"].to_numpy()
        for part in sorted(table_dir(run_dir, "produced").glob("*.parquet"))
    ]
    return np.concatenate(seqs) if seqs else np.empty(0, dtype=np.int64)


def _rows(reservation: Reservation, seqs: np.ndarray) -> pa.Table:
    count = len(seqs)
    prefix = record_format.prefix_of(reservation.run_token, reservation.producer)
    padding = record_format.padding_to(reservation.record_bytes)
    keys, partitions = reservation.keys, reservation.partitions
    transactions = [_transaction_of(reservation, int(seq)) for seq in seqs]
    columns = {
        "producer": pa.repeat(reservation.producer, count),
        "seq": pa.array(seqs, pa.int64()),
        "topic": pa.repeat(reservation.topic, count),
        "key": pa.array([record_format.key_of(int(seq), keys) for seq in seqs], pa.string()),
        "partition": pa.array([record_format.partition_of(int(seq), keys, partitions) for seq in seqs], pa.int32()),
        "offset": pa.nulls(count, pa.int64()),
        "outcome": pa.repeat("indeterminate", count),
        "error": pa.repeat(ERROR, count),
        "crc32": pa.array([zlib.crc32(record_format.value_of(prefix, int(seq), padding)) for seq in seqs], pa.int64()),
    }
    columns["transaction"] = pa.array(transactions, pa.string())
    columns["transaction_outcome"] = pa.array([name and "indeterminate" for name in transactions], pa.string())
    for name in ("sent_at", "ended_at"):
        columns[name] = pa.nulls(count, PRODUCED.field(name).type)
    return pa.table([columns[name] for name in PRODUCED.names], schema=PRODUCED)


def _transaction_of(reservation: Reservation, seq: int) -> str | None:
    """The transaction that a record was sent in, if it was sent; None outside transactions."""
    if not reservation.transactions:
        return None
    index = bisect_right([first for first, _ in reservation.transactions], seq) - 1
    # The disk was seconds behind, so the list no longer has this transaction. The record gets one of its own, because
    # a wrong group would look like half a transaction.
    return f"{reservation.producer}-seq{seq}" if index < 0 else reservation.transactions[index][1]
