"""At the end of a case nothing is under way, but what its scenario leaves on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.under_way import UnderWay, journal_under_way
from harness.crowding import Crowding, Deadline
from harness.errors import BuildLacks
from harness.kafka.connection import NoAnswer
from harness.kafka.mbeans import MBeans
from harness.kafka.metadata import Reassignment
from harness.kafka.versions import Mode
from suites.selftest.fakes import fake, fake_broker, fake_cluster, log_dir_at, log_dir_state, replica_in_dir

THERE = Path("/b1/d2")
REASSIGNED = Reassignment(topic="t", partition=0, replicas=(1, 2), adding=(2,), removing=())


def lacking() -> int:
    raise BuildLacks("no such MBean")


def silent() -> int:
    raise NoAnswer("no answer")


def cluster_with(
    queued: Callable[[], int] = lambda: 0,
    *,
    moves: bool = False,
    reassigned: bool = False,
    mode: Mode = Mode.KRAFT,
) -> Cluster:
    future = (replica_in_dir("t", is_future=True),) if moves else ()
    broker = fake_broker(
        1,
        mbeans=fake(MBeans, unassigned=queued),
        describe_log_dirs=lambda: (log_dir_state(THERE, replica_in_dir("u"), *future),),
    )
    broker.log_dirs = (log_dir_at(THERE, broker),)
    return fake_cluster(
        mode=mode, live_brokers=lambda: [broker], reassignments=lambda: (REASSIGNED,) if reassigned else ()
    )


def settled(cluster: Cluster, *leaves: UnderWay) -> list[object]:
    """What the journal says then: the brokers whose queue was read, or the class of the error and what it says."""
    journal_under_way(cluster, leaves)
    return [value for event in cluster.journal.events for value in event.details().values()]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "SETTLED_S", 0.01)
    monkeypatch.setattr(Deadline, "crowding", Crowding())  # on a crowded machine silence would show nothing


@pytest.mark.parametrize(
    ("cluster", "leaves", "says"),
    [
        (cluster_with(lambda: 2), UnderWay, "broker 1 has yet to report the log dirs of 2 replicas"),
        (cluster_with(moves=True), (UnderWay.REASSIGNMENT,), "broker 1 has a future replica of t-0 in d2 of broker 1"),
        (cluster_with(lacking, moves=True), (), "broker 1 has a future replica of t-0"),
        (cluster_with(reassigned=True), (UnderWay.MOVE,), "t-0 is being reassigned"),
        (cluster_with(silent), (), "no answer"),
        (cluster_with(moves=True, mode=Mode.ZK), (), "broker 1 has a future replica of t-0"),
        (cluster_with(reassigned=True, mode=Mode.ZK), (), "t-0 is being reassigned"),
    ],
    ids=["queued", "moving", "moving, no MBean", "reassigned", "silent", "moving in ZooKeeper", "reassigned there"],
)
def test_what_is_left_is_named(cluster: Cluster, leaves: tuple[UnderWay, ...], says: str) -> None:
    error, said = settled(cluster, *leaves)
    assert error == "PromiseBroken"
    assert says in str(said)


@pytest.mark.parametrize(
    ("cluster", "leaves", "read"),
    [
        (cluster_with(), (), [1]),
        (cluster_with(moves=True), (UnderWay.MOVE,), [1]),
        (cluster_with(reassigned=True), (UnderWay.REASSIGNMENT,), [1]),
        (cluster_with(lacking), (), []),
        (cluster_with(lambda: 2, mode=Mode.ZK), (), []),
    ],
    ids=["nothing", "moving on purpose", "reassigned on purpose", "no MBean", "ZooKeeper"],
)
def test_a_missing_mbean_is_not_zero_and_what_is_left_on_purpose_may_stay(
    cluster: Cluster, leaves: tuple[UnderWay, ...], read: list[int]
) -> None:
    """The journal names the brokers whose queue was read, which are none where the build lacks the MBean."""
    assert settled(cluster, *leaves) == [read]


def test_a_queue_that_empties_in_time_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "SETTLED_S", 5.0)
    queued = [1, 1]
    assert settled(cluster_with(lambda: queued.pop() if queued else 0)) == [[1]]


def test_nothing_is_asked_without_a_broker() -> None:
    none: list[Broker] = []
    assert settled(fake_cluster(live_brokers=lambda: none)) == []


def test_a_broker_that_falls_silent_once_all_has_ended_is_not_asked_again() -> None:
    """Each broker is asked once for its queue: a second answer could be missing, and add nothing."""
    answers = [0]
    assert settled(cluster_with(lambda: answers.pop() if answers else silent())) == [[1]]
