"""A network cut is proven by which connections fail, and its undoing by connections that work again.

``suites/network`` tests how Kafka behaves under a cut.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from faults.base import injected
from faults.network import Cut, CutOff, CutOffInwards, CutOffOneWay
from harness import timeouts
from harness.cluster.nodes.node import Node, NodeSpec
from harness.cluster.nodes.process import ProcessNode
from harness.errors import FaultNotProven, HarnessError
from suites.selftest.fakes import fake_broker
from suites.selftest.journal_lines import lines_of
from suites.selftest.needs import require

Link = tuple[str, str]


def spec_of(name: str, host: str, *, combined: bool) -> NodeSpec:
    """A node with the properties that nodes in containers have.

    :param combined: it is a broker and a controller
    """
    properties = {
        "listeners": f"INSIDE://{host}:9092,OUTSIDE://{host}:19092",
        "process.roles": "broker",
        "inter.broker.listener.name": "INSIDE",
        "controller.listener.names": "CONTROLLER",
    }
    if combined:
        properties["listeners"] += f",CONTROLLER://{host}:9093"
        properties["process.roles"] = "broker,controller"
    return NodeSpec(name=name, main_class="kafka.Kafka", properties=properties)


class LinkedNode(ProcessNode):
    """A node that can connect to all others but those to which a link is cut."""

    def __init__(self, name: str, cut: Collection[Link], *, combined: bool) -> None:
        self.spec = spec_of(name, name, combined=combined)
        self.alive = True
        self._cut = cut

    def is_alive(self) -> bool:
        return self.alive

    def run_as_user(self, argv: Sequence[str], timeout_s: float = timeouts.PROBE_S) -> subprocess.CompletedProcess[str]:
        *_, to, port = argv[-1].split("/")
        is_cut = not {(self.spec.name, to), (self.spec.name, f"{to}:{port}")}.isdisjoint(self._cut)
        return subprocess.CompletedProcess([], int(is_cut), "", "")


def between(fault_type: type[Cut], me: Node, *peers: Node, still_reachable: Sequence[Node] = ()) -> Cut:
    """The fault that cuts the broker in ``me`` off from its peers."""
    return fault_type(fake_broker(node=me, is_alive=True), peers, still_reachable=still_reachable)


def cut(fault_type: type[Cut], *links: str, combined: bool = False) -> Cut:
    """A fault that cuts exactly these links when it is injected.

    It should cut the node ``me`` off from ``peer``, and keep its connections with ``kept``.

    :param links: such as "me>peer", or "me>peer:9092" for one port
    """
    down: set[Link] = set()
    me, peer, kept = (LinkedNode(name, down, combined=combined) for name in ("me", "peer", "kept"))
    fault = between(fault_type, me, peer, still_reachable=[kept])
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
    """A combined node serves other nodes at two ports: both must be cut, or neither."""
    with pytest.raises(FaultNotProven, match="nothing outside Kafka shows its effect"):
        cut(fault_type, *links, combined=True).inject()


def test_a_node_that_does_not_run_shows_nothing() -> None:
    """A node that is down has no connections, so a cut of it proves nothing."""
    fault = cut(CutOff, "me>peer", "peer>me")
    [peer] = fault._peers
    assert isinstance(peer, LinkedNode)
    peer.alive = False
    with pytest.raises(FaultNotProven, match="do not run: peer"):
        fault.inject()


def test_a_node_that_could_not_be_reached_before_shows_nothing() -> None:
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


class Networked(ProcessNode):
    """A combined node in a network namespace of its own: a process that listens at the node's ports."""

    def __init__(self, name: str, host: str) -> None:
        self.spec = spec_of(name, host, combined=True)
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

    def run_as_user(self, argv: Sequence[str], timeout_s: float = timeouts.PROBE_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.in_network(), *argv], capture_output=True, text=True, check=False)

    def run(self, command: str) -> None:
        subprocess.run([*self.in_network(), *command.split()], check=True)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def neighbours() -> Iterator[tuple[Networked, Networked]]:
    """Two nodes that a virtual wire connects."""
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


@pytest.mark.parametrize("fault_type", [CutOff, CutOffOneWay, CutOffInwards])
def test_packets_are_dropped_and_get_through_again(
    neighbours: tuple[Networked, Networked], fault_type: type[Cut]
) -> None:
    fault = between(fault_type, *neighbours)
    with injected(fault):
        assert "-j DROP" in neighbours[0].run_as_user(["iptables", "--list-rules"]).stdout
    kinds = [event.kind for event in fault.broker.journal.events]
    assert kinds[-2:] == ["fault.undone", "cut.gone"]
    fault.undo()  # the second time, nothing is looked for
    assert [event["shown_with"] for event in lines_of(fault.broker.journal, "cut.gone")] == [["peer"]]
    fault.inject()  # it is proven again, so the first cut left nothing
    fault.undo()


def test_a_cut_that_is_not_gone_is_reported(
    neighbours: tuple[Networked, Networked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If something still drops packets, the error names the nodes and lists the packet filter's rules."""
    monkeypatch.setattr(timeouts, "PROBE_S", 0.1)  # for one look
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
    """A peer that refuses connections, since it just started, is not cut off; one that has ended is not asked."""
    me, peer = neighbours
    fault = between(CutOff, me, peer)
    fault.inject()
    listeners = f"{peer.spec.properties['listeners']},CONTROLLER://198.18.0.2:9094"
    peer.spec = replace(peer.spec, properties={**peer.spec.properties, "listeners": listeners})
    fault.undo()
    fault.apply()
    peer.end()
    fault.undo()
    assert [event["shown_with"] for event in lines_of(fault.broker.journal, "cut.gone")] == [["peer"], []]
