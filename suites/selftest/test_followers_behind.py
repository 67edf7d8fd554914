"""Tests how followers are held until their leader has records that they lack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import Inconclusive
from harness.events import FollowersHeld
from harness.journal import Journal
from harness.kafka.broker_log import BrokerLog
from suites.followers_behind import _get_ahead, _Hold
from suites.selftest.fakes import fake_broker, fake_cluster, partition_state


def held_partition(folder: Path, monkeypatch: pytest.MonkeyPatch, isrs: Iterator[tuple[int, ...]]) -> list[LogDir]:
    """The log dirs of a leader and a follower, of which the leader has a record more."""
    log_dirs = []
    for id, size in ((1, 20), (2, 10)):
        path = folder / str(id)
        (path / "orders-0").mkdir(parents=True)
        (path / "orders-0" / f"{0:020d}.log").write_bytes(bytes(size))
        (path / "broker.log").touch()
        log = BrokerLog(path / "broker.log")
        broker = fake_broker(id, log=log, pause=lambda: None, resume=lambda: None)
        log_dirs.append(LogDir(broker, path))
    state = partition_state("orders", 1, 2)
    monkeypatch.setattr(Partition, "describe", lambda *_: replace(state, isr=next(isrs)))
    return log_dirs


@pytest.mark.parametrize("isr_after", [(1, 2), (1,)])
def test_a_follower_that_leaves_the_isr_while_it_is_held_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isr_after: tuple[int, ...]
) -> None:
    """Its session ended while it was held, so what comes next would be the harness's doing."""
    ahead, behind = held_partition(tmp_path, monkeypatch, iter([(1, 2), isr_after]))
    journal = Journal(None)
    partition = Partition(fake_cluster(journal=journal), "orders", 0)
    hold = _Hold([behind.broker])
    try:
        if isr_after == (1, 2):
            assert _get_ahead({partition: ahead}, {partition: [behind]}, hold, is_last=True)
            assert [(event.partitions, event.ahead) for event in journal.of(FollowersHeld)] == [((0,), True)]
        else:
            with pytest.raises(Inconclusive, match="all followers of orders-0 left the ISR"):
                _get_ahead({partition: ahead}, {partition: [behind]}, hold, is_last=True)
    finally:
        hold.end()
