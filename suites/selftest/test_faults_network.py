"""A cut proves what connects and what doesn't; that it does cut is shown by ``suites/network``, on real networks."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from faults.network import Cut, CutOff, CutOffInwards, CutOffOneWay
from harness.errors import FaultNotProven
from harness.journal import Journal

Link = tuple[str, str]


class StandIn:
    """A node that gets a connection to those to whom no link is cut."""

    alive = True

    def __init__(self, name: str, cut: Collection[Link]) -> None:
        properties = {"listeners": f"INSIDE://{name}:9092,OUTSIDE://{name}:19092", "process.roles": "broker"}
        self.spec = SimpleNamespace(name=name, properties=properties)
        self._cut = cut

    def is_alive(self) -> bool:
        return self.alive

    def run_as_user(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        to = argv[-1].split("/")[3]
        return subprocess.CompletedProcess([], int((self.spec.name, to) in self._cut), "", "")


def cut(fault_type: type[Cut], *links: str) -> Cut:
    """A fault that, once it is injected, cuts these links: of ``me`` with ``peer``, from which it is to be cut off, and
    with ``kept``, from which it isn't."""
    down: set[Link] = set()
    me, peer, kept = (cast(Any, StandIn(name, down)) for name in ("me", "peer", "kept"))
    broker = cast(Any, SimpleNamespace(id=1, node=me, journal=Journal(None), is_alive=True))
    fault = fault_type(broker, [peer], kept=[kept])
    ends = (link.split(">") for link in links)
    fault.break_it = partial(down.update, [(a, b) for a, b in ends])  # type: ignore[method-assign]
    return fault


@pytest.mark.parametrize(
    ("fault_type", "links"),
    [(CutOff, ("me>peer", "peer>me")), (CutOffOneWay, ("me>peer",)), (CutOffInwards, ("peer>me",))],
    ids=["both", "one", "inwards"],
)
def test_what_was_meant_is_cut_and_no_more(fault_type: type[Cut], links: tuple[str, ...]) -> None:
    cut(fault_type, *links).inject()


@pytest.mark.parametrize(
    ("fault_type", "links"),
    [
        (CutOff, ()),
        (CutOff, ("me>peer",)),
        (CutOff, ("peer>me",)),
        (CutOff, ("me>peer", "peer>me", "me>kept")),
        (CutOff, ("me>peer", "peer>me", "kept>me")),
        (CutOffOneWay, ()),
        (CutOffOneWay, ("me>peer", "peer>me")),
        (CutOffOneWay, ("me>peer", "kept>me")),
        (CutOffInwards, ()),
        (CutOffInwards, ("me>peer",)),
        (CutOffInwards, ("me>peer", "peer>me")),
        (CutOffInwards, ("peer>me", "kept>me")),
    ],
)
def test_less_or_more_than_was_meant_is_no_proof(fault_type: type[Cut], links: tuple[str, ...]) -> None:
    with pytest.raises(FaultNotProven, match="nothing outside Kafka shows its effect"):
        cut(fault_type, *links).inject()


def test_a_node_that_does_not_run_tells_nothing() -> None:
    """Nobody connects to it, and it to nobody, whatever is cut."""
    fault = cut(CutOff, "me>peer", "peer>me")
    cast(StandIn, fault._peers[0]).alive = False
    with pytest.raises(FaultNotProven, match="peer does not run"):
        fault.inject()
