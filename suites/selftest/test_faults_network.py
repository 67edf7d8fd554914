"""A cut proves what connects and what doesn't, and that it is gone; what it does to Kafka is ``suites/network``'s."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from faults.base import injected
from faults.network import Cut, CutOff, CutOffInwards, CutOffOneWay
from harness import timeouts
from harness.errors import FaultNotProven, HarnessError
from harness.journal import Journal
from suites.selftest.journal_lines import lines_of
from suites.selftest.needs import require

Link = tuple[str, str]


class StandIn:
    """A node that gets a connection to those to whom no link is cut."""

    alive = True

    def __init__(self, name: str, cut: Collection[Link] = (), *, combined: bool = False) -> None:
        self.spec = SimpleNamespace(name=name, properties=properties_of(name, combined=combined))
        self._cut = cut

    def is_alive(self) -> bool:
        return self.alive

    def run_as_user(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        *_, to, port = argv[-1].split("/")
        is_cut = not {(self.spec.name, to), (self.spec.name, f"{to}:{port}")}.isdisjoint(self._cut)
        return subprocess.CompletedProcess([], int(is_cut), "", "")


def properties_of(host: str, *, combined: bool) -> dict[str, str]:
    """As nodes in containers have them, broker or both."""
    listeners = f"INSIDE://{host}:9092,OUTSIDE://{host}:19092"
    of_nodes = {"inter.broker.listener.name": "INSIDE", "controller.listener.names": "CONTROLLER"}
    if combined:
        return {"listeners": f"{listeners},CONTROLLER://{host}:9093", "process.roles": "broker,controller", **of_nodes}
    return {"listeners": listeners, "process.roles": "broker", **of_nodes}


class BrokerStandIn(SimpleNamespace):
    def __str__(self) -> str:
        return "broker 1"


def broker_in(node: object) -> Any:
    return BrokerStandIn(id=1, node=node, journal=Journal(None), is_alive=True)


def cut(fault_type: type[Cut], *links: str, combined: bool = False) -> Cut:
    """A fault that, once it is injected, cuts these links: of ``me`` with ``peer``, from which it is to be cut off, and
    with ``kept``, from which it isn't."""
    down: set[Link] = set()
    me, peer, kept = (cast(Any, StandIn(name, down, combined=combined)) for name in ("me", "peer", "kept"))
    fault = fault_type(broker_in(me), [peer], still_reachable=[kept])
    ends = (link.split(">") for link in links)
    fault.apply = partial(down.update, [(a, b) for a, b in ends])  # type: ignore[method-assign]
    return fault


@pytest.mark.parametrize(
    ("fault_type", "links"),
    [(CutOff, ("me>peer", "peer>me")), (CutOffOneWay, ("me>peer",)), (CutOffInwards, ("peer>me",))],
    ids=["both", "one", "inwards"],
)
@pytest.mark.parametrize("combined", [False, True])
def test_what_was_meant_is_cut_and_no_more(fault_type: type[Cut], links: tuple[str, ...], combined: bool) -> None:
    cut(fault_type, *links, combined=combined).inject()


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
@pytest.mark.parametrize("combined", [False, True])
def test_less_or_more_than_was_meant_is_no_proof(fault_type: type[Cut], links: tuple[str, ...], combined: bool) -> None:
    with pytest.raises(FaultNotProven, match="nothing outside Kafka shows its effect"):
        cut(fault_type, *links, combined=combined).inject()


@pytest.mark.parametrize(
    ("fault_type", "links"),
    [
        (CutOff, ("me>peer:9092", "peer>me")),
        (CutOff, ("me>peer", "peer>me:9093")),
        (CutOffOneWay, ("me>peer:9092",)),
        (CutOffOneWay, ("me>peer:9093",)),
        (CutOffOneWay, ("me>peer", "peer>me:9093")),
        (CutOffInwards, ("peer>me:9092",)),
        (CutOffInwards, ("peer>me", "me>peer:9093")),
    ],
)
def test_of_a_combined_node_it_is_broker_and_controller(fault_type: type[Cut], links: tuple[str, ...]) -> None:
    """One of the two ports where it serves others, cut or kept by mistake, is no proof."""
    with pytest.raises(FaultNotProven, match="nothing outside Kafka shows its effect"):
        cut(fault_type, *links, combined=True).inject()


def test_a_node_that_does_not_run_tells_nothing() -> None:
    """Nobody connects to it, and it to nobody, whatever is cut."""
    fault = cut(CutOff, "me>peer", "peer>me")
    cast(StandIn, fault._peers[0]).alive = False
    with pytest.raises(FaultNotProven, match="peer does not run"):
        fault.inject()


def test_who_could_not_reach_whom_before_shows_nothing() -> None:
    fault = cut(CutOffInwards, "peer>me")
    fault.apply()
    with pytest.raises(FaultNotProven, match="broker 1 and peer could not reach each other before cut_off_inwards"):
        fault.inject()


# --- real networks, and the kernel's packet filter ------------------------------------------------------------------

LISTEN = """
import socket, sys
at = [socket.create_server(("0.0.0.0", port), backlog=128) for port in (9092, 9093, 19092)]
print("listens", flush=True)
sys.stdin.read()
"""


class Networked:
    """A node, as far as a cut looks: a combined one, or rather its ports, in a network of its own."""

    def __init__(self, name: str, host: str) -> None:
        self.spec = SimpleNamespace(name=name, properties=properties_of(host, combined=True))
        self.process = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "listens\n"

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def is_paused(self) -> bool:
        return False

    def in_network(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.process.pid}/ns/net"]

    def run_as_user(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.in_network(), *argv], capture_output=True, text=True, check=False)

    def run(self, command: str) -> None:
        subprocess.run([*self.in_network(), *command.split()], check=True)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def neighbours() -> Iterator[tuple[Networked, Networked]]:
    """Two nodes on one wire."""
    require("network namespaces", "own networks")
    hosts = ("198.18.0.1", "198.18.0.2")
    with ExitStack() as stack:
        pair = Networked("me", hosts[0]), Networked("peer", hosts[1])
        for node in pair:
            stack.callback(node.end)
        pair[0].run(f"ip link add wire type veth peer name wire netns {pair[1].process.pid}")
        for node, host in zip(pair, hosts, strict=True):
            node.run(f"ip address add {host}/24 dev wire")
            node.run("ip link set wire up")
        yield pair


def between(fault_type: type[Cut], me: Networked, peer: Networked) -> Cut:
    return fault_type(broker_in(me), [cast(Any, peer)])


@pytest.mark.parametrize("fault_type", [CutOff, CutOffOneWay, CutOffInwards])
def test_packets_are_dropped_and_get_through_again(
    neighbours: tuple[Networked, Networked], fault_type: type[Cut]
) -> None:
    fault = between(fault_type, *neighbours)
    with injected(fault):
        assert "-j DROP" in neighbours[0].run_as_user(["iptables", "--list-rules"]).stdout
    kinds = [event.kind for event in fault.broker.journal.events]
    assert kinds[-2:] == ["fault.undone", "cut.gone"]
    fault.undo()  # what is undone twice is looked for once
    assert [event["shown_with"] for event in lines_of(fault.broker.journal, "cut.gone")] == [["peer"]]
    fault.inject()  # as of old: nothing is left that would make it no proof
    fault.undo()


def test_a_cut_that_is_not_gone_is_told(
    neighbours: tuple[Networked, Networked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that still drops the packets: who can't be heard, and what the filter has."""
    monkeypatch.setattr(timeouts, "PROBE_S", 0.1)  # it is looked at once
    me, peer = neighbours
    fault = between(CutOff, me, peer)
    fault.inject()
    me.run("iptables -I OUTPUT -d 198.18.0.2 -p tcp --dport 9093 -j DROP")
    told = (
        r"waited 0\.1 s for cut_off on broker 1 from peer, which was undone, to be gone; last seen: \['me to peer'\]; "
    )
    with pytest.raises(HarnessError, match=told + r".* -A OUTPUT -d 198\.18\.0\.2/32 -p tcp .* --dport 9093 -j DROP"):
        fault.undo()
    assert not [*lines_of(fault.broker.journal, "cut.gone")]


def test_who_does_not_listen_is_cut_off_no_longer(neighbours: tuple[Networked, Networked]) -> None:
    """A peer that has just been started refuses, and one that has ended tells nothing: neither keeps a cut up."""
    me, peer = neighbours
    fault = between(CutOff, me, peer)
    fault.inject()
    peer.spec.properties["listeners"] += ",CONTROLLER://198.18.0.2:9094"
    fault.undo()
    fault.apply()
    peer.end()
    fault.undo()
    assert [event["shown_with"] for event in lines_of(fault.broker.journal, "cut.gone")] == [["peer"], []]
