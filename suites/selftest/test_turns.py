"""Workers take cases from both ends: the largest clusters one after the other, the smallest beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from xdist.remote import Producer

from harness.releases.versions import Mode
from harness.runs.turns import LargestAndSmallest
from harness.spec import ClusterSpec

SIZES = {"three": 3, "seven": 7, "four": 4, "six": 6, "other-four": 4, "other-seven": 7}


class Worker:
    """What xdist's controller knows of a worker: here, what it was given."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += [[*SIZES][index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def test_the_first_worker_takes_the_largest_the_other_the_smallest() -> None:
    told = {"tx": ["2*popen"], "maxschedchunk": 1}
    config = cast(Any, SimpleNamespace(getvalue=told.get, getoption=told.get))
    scheduler = LargestAndSmallest(SIZES).pytest_xdist_make_scheduler(config, Producer("turns"))
    workers = [Worker(), Worker()]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, [*SIZES])
    scheduler.schedule()
    first, other = workers
    assert (first.given, other.given) == (["seven", "other-seven"], ["three", "four"])
    scheduler.mark_test_complete(other, [*SIZES].index("three"))
    scheduler.mark_test_complete(first, [*SIZES].index("seven"))
    assert (first.given[2:], other.given[2:]) == (["six"], ["other-four"])


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
