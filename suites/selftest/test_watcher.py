"""What the watcher takes for news: by leader epoch, and by which topic of a name it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.cluster import watcher
from harness.cluster.watcher import Watcher
from harness.journal import Journal
from harness.kafka.metadata import ClusterState, PartitionState
from suites.selftest.journal_lines import lines_of


def seen(leader: int | None, epoch: int, topic_id: str) -> ClusterState:
    state = PartitionState(
        topic="t",
        partition=0,
        leader=leader,
        leader_epoch=epoch,
        replicas=(1, 2),
        isr=(1, 2),
        offline_replicas=(),
        topic_id=topic_id,
    )
    return ClusterState(cluster_id="c", controller=None, brokers=(1, 2), racks={}, partitions=(state,))


@pytest.mark.parametrize("ids", [("old", "new"), ("", "")], ids=["ids", "no ids"])
def test_a_topic_made_again_begins_with_the_first_epoch(ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A build without ids of topics can't tell the two; a broker that lags behind tells nothing new."""
    old, new = ids
    answers = [
        (1, seen(1, 7, old)),
        (2, seen(2, 6, old)),  # lags behind
        (1, seen(1, 0, new)),
        (2, seen(2, 7, old)),  # has yet to hear that there is another
        (1, seen(2, 1, new)),
        (2, seen(2, 1, new)),
        (1, seen(1, 2, new)),
    ]
    left = iter(answers)
    monkeypatch.setattr(watcher, "Admin", lambda _: SimpleNamespace(describe_cluster=lambda: next(left)[1]))
    brokers: list[Any] = [SimpleNamespace(id=id, bootstrap=f"127.0.0.1:{id}") for id in (1, 2)]
    journal = Journal(None)
    watch = Watcher(brokers, journal)
    for id, _ in answers:
        watch._poll(brokers[id - 1])
    told = [(event["leader"], event["leader_epoch"]) for event in lines_of(journal, "partition.changed")]
    assert told == ([(1, 7), (1, 0), (2, 1), (1, 2)] if old else [(1, 7), (2, 7)])
