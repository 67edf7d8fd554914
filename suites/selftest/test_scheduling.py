"""The order in which two workers get cases: those with equal specs follow each other, so that they share a cluster.

One worker begins with the largest clusters, the other with the smallest.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from xdist.remote import Producer

from harness.cluster.spec import ClusterSpec
from harness.kafka.versions import Mode
from harness.runner.scheduling import SpecAffinityScheduler, Turn, together
from suites.selftest.fakes import fake


def of_nodes(count: int, overrides: Mapping[str, str] | None = None) -> ClusterSpec:
    return ClusterSpec(mode=Mode.KRAFT, brokers=count - 1, overrides=overrides or {})


def may_share(spec: ClusterSpec) -> Turn:
    return Turn(nodes=spec.nodes, shared=spec)


class Worker:
    """A worker as xdist's controller sees it; ``given`` has the cases that it got, in order."""

    def __init__(self, names: list[str]) -> None:
        self.given: list[str] = []
        self.names = names
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += [self.names[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def play(turns: dict[str, Turn], *done: int, by_size: bool = True) -> list[list[str]]:
    """The cases that each of two workers got.

    :param done: the workers, by number, that end a case, one after the other; each then gets another case
    """
    options = {"tx": ["2*popen"], "maxschedchunk": 1}
    config = fake(pytest.Config, getvalue=options.get, getoption=options.get)
    scheduler = SpecAffinityScheduler(turns, by_size=by_size).pytest_xdist_make_scheduler(config, Producer("turns"))
    workers = [Worker([*turns]), Worker([*turns])]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, [*turns])
    scheduler.schedule()
    ended = [0, 0]
    for number in done:
        worker = workers[number]
        scheduler.mark_test_complete(worker, [*turns].index(worker.given[ended[number]]))
        ended[number] += 1
    return [worker.given for worker in workers]


def test_the_first_worker_takes_the_largest_the_other_the_smallest() -> None:
    sizes = {"three": 3, "seven": 7, "four": 4, "six": 6, "other-four": 4, "other-seven": 7}
    turns = {name: may_share(of_nodes(size, overrides={"of": name})) for name, size in sizes.items()}
    first, other = play(turns, 1, 0)
    assert first == ["seven", "other-seven", "six"]
    assert other == ["three", "four", "other-four"]


def test_each_worker_goes_on_with_the_cluster_that_it_has() -> None:
    large, small, tiny = (may_share(of_nodes(count)) for count in (7, 4, 2))
    turns = {"s1": small, "l1": large, "t1": tiny, "l2": large, "s2": small, "l3": large, "t2": tiny, "s3": small}
    first, other = play(turns, 0, 1, 0, 1)
    assert first == ["l1", "l2", "l3", "s2"]
    assert other == ["t1", "t2", "s1", "s3"]


def test_a_worker_begins_with_what_no_other_is_at() -> None:
    ours, theirs = may_share(of_nodes(4)), may_share(of_nodes(4, overrides={"a": "b"}))
    turns = {"o1": ours, "o2": ours, "o3": ours, "t1": theirs, "t2": theirs, "t3": theirs}
    assert play(turns) == [["o1", "o2"], ["t1", "t2"]]


def test_a_case_with_a_cluster_of_its_own_comes_between_no_two_that_share_one() -> None:
    shared, own = may_share(of_nodes(4)), Turn(nodes=4, shared=None)
    turns = {"s1": shared, "o1": own, "s2": shared, "o2": own, "s3": shared}
    first, other = play(turns, 0, 1)
    assert first == ["s1", "s2", "s3"]
    assert other == ["o1", "o2"]


def test_where_time_may_run_out_the_order_of_cases_counts_and_not_their_size() -> None:
    small, large = may_share(of_nodes(2)), may_share(of_nodes(7))
    turns = {"s1": small, "l1": large, "s2": small, "l2": large, "s3": small, "l3": large}
    assert play(turns, 0, 1, by_size=False) == [["s1", "s2", "s3"], ["l1", "l2", "l3"]]


def test_equal_ones_come_together_where_the_first_of_them_was() -> None:
    a, b = of_nodes(4, overrides={"x": "1", "y": "2"}), of_nodes(5)
    also_a = of_nodes(4, overrides={"y": "2", "x": "1"})
    assert together([("n", None), ("a", a), ("b", b), ("m", None), ("A", also_a), ("B", b)]) == [*"naAbBm"]
    assert together([("x", a), ("a", a), ("b", b), ("A", a)], lambda name: name == "x") == [*"aAxb"]


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        (ClusterSpec(mode=Mode.ZK), 4),
        (ClusterSpec(mode=Mode.KRAFT, controllers=3), 6),
        (ClusterSpec(mode=Mode.KRAFT, combined=True), 3),
    ],
)
def test_how_large_a_cluster_is(spec: ClusterSpec, nodes: int) -> None:
    assert spec.nodes == nodes
