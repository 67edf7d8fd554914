"""After healing, only a broker of the last ISR may lead a partition, and no leader epoch may have gone back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.cluster.cluster import Cluster
from harness.errors import PromiseBroken
from harness.events import PartitionChanged
from harness.journal import Journal
from harness.kafka.broker_log import BrokerLog
from harness.kafka.metadata import PartitionState
from suites.elections import check_elections
from suites.selftest.fakes import fake, fake_broker, fake_cluster, partition_state

AGREED = datetime.now(UTC) - timedelta(minutes=1)
Seen = tuple[float, int | None, int, set[int]]
"""Seconds after the agreement, leader, leader epoch, ISR."""
ALONE: tuple[Seen, ...] = ((-2, 3, 1, {1, 3}), (-1, None, 2, set()))
"""Brokers 1 and 3 were killed; the watcher has missed whose session ended first."""
ALONE_3: tuple[Seen, ...] = ((-3, 3, 1, {1, 3}), (-2, 3, 1, {3}), (-1, None, 2, set()))


def cluster_with(tmp_path: Path, seen: tuple[Seen, ...], grown: dict[int, tuple[float, str]] | None = None) -> Cluster:
    """A cluster whose watcher saw this of t-0, and whose brokers logged at these times that they grew the ISR."""
    brokers = []
    for id in (1, 2, 3):
        log = BrokerLog(tmp_path / f"{id}.log")
        if grown and id in grown:
            after_s, isr = grown[id]
            at = f"{AGREED + timedelta(seconds=after_s):%Y-%m-%d %H:%M:%S,%f}"[:-3]
            said = (
                f"[Partition t-0 broker={id}] ISR updated to {isr}  and version updated to 9 (kafka.cluster.Partition)"
            )
            log.path.write_text(f"[{at}] INFO {said}\n")
        brokers.append(fake_broker(id, log=log, is_running=True))
    events = [
        PartitionChanged(
            at=AGREED + timedelta(seconds=at_s),
            topic=topic,
            partition=0,
            leader=leader,
            leader_epoch=epoch,
            isr=tuple(sorted(isr)),
        )
        for topic in ("t", "other")
        for at_s, leader, epoch, isr in (seen if topic == "t" else ((5, 2, 99, {2}),))
    ]
    journal = fake(Journal, of=lambda _kind: events)
    return fake_cluster(brokers=brokers, unreachable=set(), journal=journal)


def found(leader: int, epoch: int) -> PartitionState:
    return replace(partition_state("t", 2, 3, 1), leader=leader, leader_epoch=epoch)


KEPT = nullcontext()
OUTSIDE = pytest.raises(PromiseBroken, match=r"broker \d leads t-0 in leader epoch \d, and was not in its last ISR \[")


@pytest.mark.parametrize(
    ("seen", "end", "outcome"),
    [
        ((*ALONE_3, (3, 3, 3, {3})), (3, 3), KEPT),
        ((*ALONE_3, (3, 3, 3, {3}), (4, 3, 3, {1, 3}), (5, 1, 4, {1})), (1, 4), KEPT),
        ((*ALONE_3, (3, 1, 3, {1})), (1, 3), OUTSIDE),
        (ALONE_3, (1, 3), OUTSIDE),  # it leads before the watcher has seen that
        (ALONE, (1, 3), KEPT),
        (ALONE, (2, 3), OUTSIDE),
        ((*ALONE, (3, 2, 3, {2}), (4, 2, 3, {1, 2, 3}), (5, 1, 4, {1})), (1, 4), OUTSIDE),  # an earlier one was not
        (((-1, 2, 1, {1, 2, 3}), (1, 2, 1, {2}), (2, None, 2, set())), (2, 3), KEPT),
        (((-1, 2, 1, {1, 2, 3}), (1, 2, 1, {2}), (2, None, 2, set())), (3, 3), OUTSIDE),
        (((-1, 2, 1, {2}),), (2, 1), KEPT),
        (((-1, 2, 1, {2}), (1, 3, 1, {3})), (3, 1), OUTSIDE),  # without a new leader epoch
        (((-1, 2, 1, {2}),), (3, 1), OUTSIDE),
        (((-1, 2, 1, {2}), (1, None, 1, {2}), (2, 2, 1, {2})), (2, 1), KEPT),  # its broker was not reached meanwhile
        ((), (3, 0), KEPT),  # of the ISR by the expected state
        ((), (1, 0), OUTSIDE),
    ],
)
def test_only_a_member_of_the_last_isr_may_be_elected(
    tmp_path: Path, seen: tuple[Seen, ...], end: tuple[int, int], outcome: AbstractContextManager[object]
) -> None:
    with outcome:
        check_elections(cluster_with(tmp_path, seen), found(*end), last_isr=frozenset({3}), since=AGREED)


@pytest.mark.parametrize(
    ("grown", "outcome"),
    [
        ({3: (3.01, "3,1")}, KEPT),
        ({3: (2.5, "3,1")}, KEPT),  # a broker showed the ISR from before
        ({3: (1.5, "3,1")}, OUTSIDE),  # it has shrunk again
        ({3: (4.5, "3,1")}, OUTSIDE),
        ({1: (3.01, "1,3")}, OUTSIDE),  # what the new leader logs itself shows nothing
        ({3: (3.01, "3,2")}, OUTSIDE),
    ],
)
def test_an_isr_that_grew_between_two_looks_of_the_watcher_counts(
    tmp_path: Path, grown: dict[int, tuple[float, str]], outcome: AbstractContextManager[object]
) -> None:
    seen: tuple[Seen, ...] = (*ALONE_3, (3, 3, 3, {3}), (4, 1, 4, {1}))
    with outcome:
        check_elections(cluster_with(tmp_path, seen, grown), found(1, 4), last_isr=frozenset({3}), since=AGREED)


@pytest.mark.parametrize("seen", [((-1, 3, 5, {3}),), ((-1, 3, 1, {3}), (1, 3, 5, {3}))])
def test_a_leader_epoch_does_not_go_back(tmp_path: Path, seen: tuple[Seen, ...]) -> None:
    cluster = cluster_with(tmp_path, seen)
    check_elections(cluster, found(3, 5), last_isr=frozenset({3}), since=AGREED)
    with pytest.raises(PromiseBroken, match="the leader epoch of t-0 went back from 5 to 4"):
        check_elections(cluster, found(3, 4), last_isr=frozenset({3}), since=AGREED)


def test_a_leader_runs_and_has_its_replica_online(tmp_path: Path) -> None:
    cluster = cluster_with(tmp_path, ((-1, 3, 5, {3}),))
    offline = replace(found(3, 5), offline_replicas=(3,))
    with pytest.raises(PromiseBroken, match="broker 3 leads t-0, and its replica is offline"):
        check_elections(cluster, offline, last_isr=frozenset({3}), since=AGREED)
    cluster.unreachable = {3}
    with pytest.raises(PromiseBroken, match="broker 3 leads t-0, and its replica is offline"):
        check_elections(cluster, found(3, 5), last_isr=frozenset({3}), since=AGREED)
