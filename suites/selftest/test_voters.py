"""The checks of voters and active controllers. The answers are made up."""

from __future__ import annotations

import pytest

from harness import timeouts
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.cluster.quorum.kraft import KRaftQuorum
from harness.crowding import Crowding, Deadline
from harness.errors import PromiseBroken
from harness.kafka.admin import Admin
from harness.kafka.connection import NoAnswer
from harness.kafka.mbeans import MBeans
from harness.kafka.metadata import QuorumReplica, QuorumState
from suites.quorum import voters as module
from suites.quorum.voters import check_none_active, check_succeeded, check_voters
from suites.selftest.fakes import fake, fake_broker, fake_cluster, fake_node

OLD, NEW = QuorumReplica(id=100, directory_id="old"), QuorumReplica(id=100, directory_id="new")
OTHER = QuorumReplica(id=101, directory_id="other")
OBSERVES = QuorumState(leader=101, voters=frozenset({OLD, OTHER}), observers=frozenset({NEW}))
VOTES = QuorumState(leader=101, voters=frozenset({NEW, OTHER}), observers=frozenset())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "CONTROLLER_FAILURE_S", 0.1)
    monkeypatch.setattr(Deadline, "crowding", Crowding())  # else a crowded machine makes each failure inconclusive


def cluster_that_says(*by_brokers: QuorumState) -> Cluster:
    brokers = [
        fake_broker(id, admin=fake(Admin, describe_quorum=lambda said=said: said)) for id, said in enumerate(by_brokers)
    ]
    return fake_cluster(live_brokers=lambda: brokers, bootstrap="", check_nodes=lambda: None)


@pytest.mark.parametrize(
    ("by_brokers", "by_tool", "fits"),
    [
        ((OBSERVES, OBSERVES), OBSERVES, True),
        ((OBSERVES, VOTES), OBSERVES, False),
        ((OBSERVES, OBSERVES), VOTES, False),
        ((VOTES, VOTES), VOTES, False),
    ],
    ids=["all", "one broker differs", "the tool differs", "the new disk has a vote"],
)
def test_all_must_say_who_votes_and_who_observes(
    by_brokers: tuple[QuorumState, ...], by_tool: QuorumState, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "describe_quorum", lambda *_: by_tool)
    cluster = cluster_that_says(*by_brokers)
    if fits:
        check_voters(cluster, {OLD, OTHER}, NEW)
    else:
        with pytest.raises(PromiseBroken, match="the voters to be"):
            check_voters(cluster, {OLD, OTHER}, NEW)


def controller(id: int, *, alive: bool = True) -> Node:
    return fake_node(f"controller-{id}", {"node.id": str(id)}, is_alive=lambda: alive)


def cluster_of(*controllers: Node, active: int | None, named: int = 101) -> Cluster:
    """A cluster in which this controller says that it is active, and the only broker names that one."""

    def active_controller() -> Node:
        for each in controllers:
            if each.spec.name == f"controller-{active}":
                return each
        raise NoAnswer("none is active")

    return fake_cluster(
        quorum_nodes=list(controllers),
        mbeans={
            each.spec.name: fake(
                MBeans, offline_partitions=lambda name=each.spec.name: 0 if str(active) in name else None
            )
            for each in controllers
        },
        active_controller=active_controller,
        live_brokers=lambda: [fake_broker(admin=fake(Admin))],
        quorum=fake(KRaftQuorum, controller=lambda _: named),
        check_nodes=lambda: None,
    )


def test_a_controller_that_goes_on_without_a_majority_is_found() -> None:
    check_none_active(cluster_of(controller(100), controller(101), active=None))
    check_none_active(cluster_of(controller(100), controller(101, alive=False), active=101))
    with pytest.raises(PromiseBroken, match=r"no controller to be active; last seen: \['controller-101'\]"):
        check_none_active(cluster_of(controller(100), controller(101), active=101))


def test_another_controller_must_be_active_and_be_named() -> None:
    first, second = controller(100), controller(101)
    assert check_succeeded(cluster_of(first, second, active=101), first) == second
    for active, named in ((100, 100), (None, 101), (101, 100)):
        with pytest.raises(PromiseBroken, match="another controller than controller-100 to be active"):
            check_succeeded(cluster_of(first, second, active=active, named=named), first)
