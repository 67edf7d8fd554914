"""Finds KRaft brokers that the controller unfenced before they had loaded their logs.

A broker that starts is fenced. It asks to be unfenced once it is ready to serve (KIP-631): it has caught up with the
metadata and has loaded its logs. If it is unfenced earlier, it may lead partitions whose logs it does not have yet.
Clients wait for it then, and nothing else shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from harness.events import Event, NodeStarted
from harness.kafka.broker_log import BrokerLog, LogLine

UNFENCED = r"The request from broker (\d+) to unfence has been granted"
"""A line of the active controller (``BrokerHeartbeatManager``)."""
LOGS_LOADED = r"^Loaded \d+ logs in \d+ms"
"""A line of a broker that starts (``LogManager``)."""
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class EarlyUnfencing:
    """A broker that was unfenced too early.

    :ivar granted: the controller's line
    :ivar loaded_at: when the broker had loaded its logs; None if it never had
    """

    broker: int
    granted: LogLine
    loaded_at: datetime | None

    def __str__(self) -> str:
        loaded = self.loaded_at and f"at {self.loaded_at.isoformat()}"
        return (
            f"broker {self.broker} was unfenced at {self.granted.at.isoformat()}, and it loaded its logs "
            f"{loaded or 'never'}: {self.granted.text[:200]}"
        )


def early_unfencings(events: Sequence[Event], run_dir: Path) -> list[EarlyUnfencing]:
    """Return the brokers that were unfenced too early, by the journal and the nodes' logs in a run folder.

    :raises OSError: a log can't be read
    """
    logs = [BrokerLog(path) for path in sorted(run_dir.glob("brokers/*/broker.log"))]
    granted: dict[int, list[LogLine]] = {}
    for line in (line for log in logs for line in log.matching(UNFENCED)):
        found = re.search(UNFENCED, line.text)
        assert found
        granted.setdefault(int(found[1]), []).append(line)
    return [
        early
        for broker, lines in sorted(granted.items())
        for early in _of_broker(broker, lines, events, BrokerLog(run_dir / "brokers" / str(broker) / "broker.log"))
    ]


def _of_broker(
    broker: int, granted: Sequence[LogLine], events: Sequence[Event], log: BrokerLog
) -> Iterator[EarlyUnfencing]:
    """Yield at most one early unfencing for each start of a broker."""
    starts = [event.at for event in events if isinstance(event, NodeStarted) and event.node == f"broker-{broker}"]
    for start, end in pairwise([*starts, _NEVER]):
        first = next((line for line in granted if start <= line.at < end), None)
        loaded = log.first(LOGS_LOADED, since=start)
        loaded_at = loaded.at if loaded and loaded.at < end else None
        if first and (loaded_at is None or first.at < loaded_at):
            yield EarlyUnfencing(broker=broker, granted=first, loaded_at=loaded_at)
