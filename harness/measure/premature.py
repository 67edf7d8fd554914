"""Finds acks and reads of records that a follower in the ISR cannot have had.

Scenarios hold the followers of a partition for a moment (:class:`harness.events.FollowersHeld`). A follower in the ISR
cannot have a record that was sent in that time. So the record lies above the high watermark: with ``acks=all`` it must
not be acked, and no consumer may read it.

The instants are of one machine's clock. A record counts as sent when the client got it, which is before the leader did.
An ack or a read counts when the client got it, which is after the leader sent it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from harness.events import Event, FollowersHeld
from harness.measure.stored_rows import stored_rows

_EXAMPLES = 3


def premature(events: Iterable[Event], run_dir: Path) -> list[str]:
    """Return what was acked or read too early, a sentence for each hold; empty if nothing was.

    Call it when producers and consumers have ended, so that all rows are stored.

    :param events: the journal
    :raises OSError: the history is not readable
    """
    holds = [event for event in events if isinstance(event, FollowersHeld) and event.partitions]
    if not holds:
        return []
    produced = stored_rows(
        run_dir, "produced", "producer", "seq", "topic", "partition", "outcome", "sent_at", "ended_at"
    )
    consumed = stored_rows(run_dir, "consumed", "producer", "seq", "topic", "partition", "offset", "role", "read_at")
    consumed = consumed.filter((pc.field("role") == "live") & pc.field("producer").is_valid())
    return [sentence for hold in holds for sentence in _found(hold, produced, consumed)]


def _found(hold: FollowersHeld, produced: pa.Table, consumed: pa.Table) -> list[str]:
    here = (pc.field("topic") == hold.topic) & pc.field("partition").isin(list(hold.partitions))
    sent = produced.filter((pc.field("topic") == hold.topic) & (pc.field("sent_at") > hold.held_at))
    acked = sent.filter(here & (pc.field("outcome") == "acked") & (pc.field("ended_at") < hold.until))
    shown = consumed.filter(here & (pc.field("read_at") > hold.held_at) & (pc.field("read_at") < hold.until))
    read = shown.join(sent.select(["producer", "seq"]), ["producer", "seq"], join_type="inner")
    where = f"{hold.topic}-{', '.join(map(str, hold.partitions))}"
    held = f"while followers in the ISR of {where} were held for {hold.seconds:.2f} s (brokers {list(hold.brokers)})"
    return [
        f"{rows.num_rows} records sent and {what} {held}, and so without them: {_examples(rows)}"
        for what, rows in (("acked", acked), ("read", read))
        if rows.num_rows
    ]


def _examples(rows: pa.Table) -> str:
    named = sorted(zip(rows["producer"].to_pylist(), rows["seq"].to_pylist(), strict=True))[:_EXAMPLES]
    return ", ".join(f"{producer} {seq}" for producer, seq in named)
