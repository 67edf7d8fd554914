"""The watcher journals a partition's change only if its leader epoch or its topic's id is newer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cluster import watcher
from harness.cluster.watcher import Watcher
from harness.journal import Journal
from harness.kafka.admin import Admin
from harness.kafka.metadata import ClusterState
from harness.kafka.security import Bootstrap
from suites.selftest.fakes import cluster_state, fake, fake_broker, partition_state
from suites.selftest.journal_lines import lines_of


def seen(leader: int, epoch: int, topic_id: str) -> ClusterState:
    state = replace(partition_state("t", 1, 2), leader=leader, leader_epoch=epoch, topic_id=topic_id)
    return cluster_state(state, brokers=(1, 2))


@pytest.mark.parametrize("ids", [("old", "new"), ("", "")], ids=["ids", "no ids"])
def test_a_topic_made_again_begins_with_the_first_epoch(ids: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lags behind reports nothing new. Without topic ids (before 2.8) the new topic looks outdated."""
    old, new = ids
    answers = [
        (1, seen(1, 7, old)),
        (2, seen(2, 6, old)),  # broker 2 lags behind
        (1, seen(1, 0, new)),
        (2, seen(2, 7, old)),  # broker 2 does not know the new topic yet
        (1, seen(2, 1, new)),
        (2, seen(2, 1, new)),
        (1, seen(1, 2, new)),
    ]
    left = iter(answers)
    monkeypatch.setattr(watcher, "Admin", lambda _: fake(Admin, describe_cluster=lambda: next(left)[1]))
    brokers = [fake_broker(id, port=id, bootstrap=Bootstrap(addresses=f"127.0.0.1:{id}")) for id in (1, 2)]
    journal = Journal(None)
    watch = Watcher(brokers, journal)
    for id, _ in answers:
        watch._poll(brokers[id - 1])
    told = [(event["leader"], event["leader_epoch"]) for event in lines_of(journal, "partition.changed")]
    assert told == ([(1, 7), (1, 0), (2, 1), (1, 2)] if old else [(1, 7), (2, 7)])
