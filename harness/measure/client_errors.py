"""Finds errors that clients got and that no fault explains.

A fault may cost a client time: a request runs into its time-out, a connection is lost, a client is purged. It must not
make Kafka refuse records for good, or answer that a position in a log does not exist: a user's producer dies of the
one, and a user's consumer skips records or reads them again because of the other. The pair goes on with a new client,
so neither shows in what was delivered.

In more than 500 cases on 4.4.0 and 3.9.2 no other error was seen, but for INVALID_TXN_STATE (``REFUSED_AFTER_SWAP`` in
:mod:`suites.deviations.kip_113`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from harness.events import Event, ReaderDied
from harness.history.record_outcome import NO_REPORT
from harness.measure.stored_rows import stored_rows

_ONLY_TIME = frozenset(
    {
        "_MSG_TIMED_OUT",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_TRANSPORT",
        "_PURGE_QUEUE",  # the client was replaced, or its transaction aborted
        "_PURGE_INFLIGHT",
        NO_REPORT,
        "REQUEST_TIMED_OUT",
    }
)
"""Errors of a record that say only that it took too long, or that its client ended."""
_LOST_POSITION = re.compile(
    # librdkafka
    r"OFFSET_OUT_OF_RANGE|_LOG_TRUNCATION|_AUTO_OFFSET_RESET"
    # Kafka's Java client, and Spark on top of it
    r"|OffsetOutOfRange|LogTruncation|[Ll]og truncation detected|is out of range"
    r"|KAFKA_DATA_LOSS|data may have been lost"
)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Records that a producer was refused.

    :ivar error: the name of the error, as librdkafka has it
    :ivar transactions: those that the records are in; empty without transactions
    """

    error: str
    records: int
    transactions: frozenset[str]
    example: str

    def __str__(self) -> str:
        amid = f" in {len(self.transactions)} transactions" if self.transactions else ""
        return f"{self.records} records were refused with {self.error}{amid}, such as {self.example}"


def refused_records(run_dir: Path) -> Mapping[str, Refused]:
    """The records that were refused, by error, other than those that took too long.

    Call it when the producers have ended, so that all rows are stored.

    :raises OSError: the history is not readable
    """
    error = pc.field("error")
    refused = (pc.field("outcome") != "acked") & error.is_valid() & ~error.isin([*_ONLY_TIME])
    columns = ("producer", "seq", "topic", "partition", "error", "transaction")
    rows = stored_rows(run_dir, "produced", *columns, where=refused)
    by_error: dict[str, list[dict[str, object]]] = defaultdict(list)
    for row in rows.to_pylist():
        by_error[row["error"]].append(row)
    return {
        name: Refused(
            error=name,
            records=len(some),
            transactions=frozenset(str(row["transaction"]) for row in some if row["transaction"]),
            example=f"{some[0]['producer']} #{some[0]['seq']} to {some[0]['topic']}-{some[0]['partition']}",
        )
        for name, some in by_error.items()
    }


def lost_positions(events: Iterable[Event]) -> list[str]:
    """A sentence for each consumer that ended because its position in a log was refused."""
    return [
        f"consumer {event.consumer} lost its position in the log: {event.error}"
        for event in events
        if isinstance(event, ReaderDied) and _LOST_POSITION.search(event.error)
    ]
