"""The checks of ``known-bugs``: a slow machine, another difference or a late request is not taken for the bug.

The answers of the brokers are made up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace

import pytest

from harness import timeouts
from harness.cluster.topic import Partition
from harness.crowding import Crowding, Deadline
from harness.errors import BuildLacks, Inconclusive, PromiseBroken
from harness.kafka.metadata import Reassignment
from suites.known_bugs import patience
from suites.known_bugs.patience import LEAST_S, TIMES, patience_s
from suites.known_bugs.test_controller import ENDED, IN_BOTH, check_all_reported, end_of_reversal
from suites.known_bugs.test_moves import alone_in_isr
from suites.selftest.fakes import fake, fake_broker, fake_cluster, fake_node, partition_of, partition_state
from suites.selftest.test_under_way import cluster_with, lacking


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "SETTLED_S", 0.01)
    monkeypatch.setattr(Deadline, "crowding", Crowding())


@pytest.mark.parametrize(("took_s", "enough_s"), [(0.5, LEAST_S), (1.0, LEAST_S), (9.0, 9 * TIMES)])
def test_a_slow_machine_gets_more_time(monkeypatch: pytest.MonkeyPatch, took_s: float, enough_s: float) -> None:
    at: Iterator[float] = count(100.0, took_s)
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: next(at)))
    assert patience_s(lambda: None) == enough_s


ALONE = "broker 1 sees orders-0: isr {1} instead of {1, 2}"
WAITED = "waited 6.0 s for the cluster to be as the KIP promises; last seen: "


@pytest.mark.parametrize(
    ("error", "shows"),
    [
        (f"{[ALONE]}", True),
        (f"{[ALONE, ALONE.replace('broker 1', 'broker 2')]}", True),
        (f"{[ALONE]}; besides: ZooKeeper has orders-0: isr {{1}} instead of {{1, 2}}", True),
        (f"{[ALONE]}; besides: broker 2 has no orders-0 in log-dir-1 of broker 2", False),
        (f"{[ALONE, 'broker 2 sees brokers [1, 2] instead of [1, 2, 3]']}", False),
        (f"{[ALONE.replace('isr', 'leader 2 instead of 1, isr')]}", False),
        (f"{[ALONE.replace('{1}', '{2}')]}", False),
        (f"{[ALONE.replace('orders-0', 'more-orders-0')]}", False),
        (f"{['broker 2 does not run']}; besides: {ALONE}", False),
    ],
)
def test_only_a_replica_out_of_the_isr_shows_the_missing_epochs(error: str, shows: bool) -> None:
    pattern = alone_in_isr(partition_of("orders"), fake_broker(1))
    assert (re.search(pattern, WAITED + error) is not None) is shows


@pytest.mark.parametrize(
    ("queued", "moves", "raises"),
    [
        (lambda: 0, False, None),
        (lambda: 2, False, PromiseBroken),
        (lambda: 0, True, PromiseBroken),
        (lacking, False, BuildLacks),
    ],
    ids=["reported", "queued", "moving", "no MBean"],
)
def test_brokers_have_reported_all_log_dirs(
    queued: Callable[[], int], moves: bool, raises: type[Exception] | None
) -> None:
    cluster = cluster_with(queued, moves=moves)
    if raises is None:
        check_all_reported(cluster)
    else:
        with pytest.raises(raises, match=r"log dirs of 2|future replica|only the brokers \[\] of 1"):
            check_all_reported(cluster)


REVERSED = Reassignment(topic="orders", partition=0, replicas=(1, 2, 3), adding=(3,), removing=(3,))
ADDING = Reassignment(topic="orders", partition=0, replicas=(1, 2, 3), adding=(3,), removing=())


@pytest.mark.parametrize(
    ("first", "then", "end"),
    [((ADDING,), (), ENDED), ((ADDING,), (REVERSED,), IN_BOTH), ((), (), None)],
    ids=["it ends", "it does not end", "it was not reversed: the first one had ended"],
)
def test_a_reassignment_that_has_ended_cannot_be_reversed(
    first: tuple[Reassignment, ...], then: tuple[Reassignment, ...], end: str | None
) -> None:
    answers = [first]
    node = fake_node(paused_proof=lambda: "process state: stopped")
    target = fake_broker(3, node=node, pause=lambda: None, resume=lambda: None)
    holders = [fake_broker(1), fake_broker(2)]
    cluster = fake_cluster(
        reassign=lambda *_: None, reassignments=lambda: answers.pop() if answers else then, brokers=[*holders, target]
    )
    partition = fake(
        Partition,
        cluster=cluster,
        topic="orders",
        index=0,
        describe=lambda _: partition_state("orders", 1, 2, 3),
        leader=lambda: fake_broker(1, mbeans=None),
    )
    if end is None:
        with pytest.raises(Inconclusive, match="the reassignment of orders-0 ended"):
            end_of_reversal(partition, holders, target)
    else:
        assert end_of_reversal(partition, holders, target) == end
