"""A broker that is unfenced before it has loaded its logs is found. The lines are of real runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.events import Event, NodeStarted
from harness.measure.early_unfencing import early_unfencings

BEGAN = datetime(2026, 11, 28, 12, tzinfo=UTC)
LOADED = "Loaded 8 logs in 180ms (org.apache.kafka.storage.internals.log.LogManager)"
GRANTED = (
    "[QuorumController id=100] The request from broker 1 to unfence has been granted because it has caught up with the "
    "offset of its register broker record 77. (org.apache.kafka.controller.BrokerHeartbeatManager)"
)


def write_log(run_dir: Path, node: str, line: str, *at_s: float) -> None:
    """Write a node's log with the same line at several times."""
    (run_dir / "brokers" / node).mkdir(parents=True)
    stamps = [BEGAN + timedelta(seconds=at) for at in at_s]
    text = "".join(f"[{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}] INFO {line}\n" for at in stamps)
    (run_dir / "brokers" / node / "broker.log").write_text(text)


@pytest.mark.parametrize(
    ("starts", "loaded", "granted", "found"),
    [
        ((0,), (1,), (1.2,), []),
        ((0,), (1,), (0.8,), ["loaded its logs at 2026-11-28T12:00:01"]),
        ((0,), (), (0.8,), ["loaded its logs never"]),
        ((0, 10), (1, 12), (2, 11), ["loaded its logs at 2026-11-28T12:00:12"]),
        ((0,), (1,), (2, 5), []),  # after a lost session
        ((0, 10), (1, 12), (2,), []),  # fenced all the while
        ((), (), (2,), []),  # on a cluster of an earlier case
    ],
)
def test_each_start_counts_on_its_own(
    tmp_path: Path,
    starts: tuple[float, ...],
    loaded: tuple[float, ...],
    granted: tuple[float, ...],
    found: list[str],
) -> None:
    write_log(tmp_path, "1", LOADED, *loaded)
    write_log(tmp_path, "controller-100", GRANTED, *granted)
    events: list[Event] = [NodeStarted(at=BEGAN + timedelta(seconds=at), node="broker-1") for at in starts]
    seen = [str(each) for each in early_unfencings(events, tmp_path)]
    assert len(seen) == len(found)
    assert all(each in text for each, text in zip(found, seen, strict=True))
