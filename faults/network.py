"""A broker is cut off: packets between it and other nodes are dropped, with nobody told.

By the kernel's packet filter in the broker's own network, so no container needs a privilege for it, and nothing of it
outlives the network: a broker that is restarted in a new one is no longer cut off. Clients and the harness come by
another way (published ports) and go on reaching the broker, which is what makes it interesting: it is there, and may
think that it leads.
"""

from __future__ import annotations

import re
import subprocess
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from faults.base import Fault
from harness.broker import Broker
from harness.errors import FaultNotProven, HarnessError
from harness.nodes.base import Node

_CONNECT_S = 2


class Cut(Fault):
    """Packets between a broker and some nodes are dropped.

    :param peers: whom it is cut off from
    :param kept: whom it must go on reaching, and be reached by: a cut that takes more than was meant is no proof
    """

    needs = ("own networks",)
    explains = (r"Connection to node .* could not be established", r"Error sending fetch request", r"[Tt]imed? ?out")

    def __init__(self, broker: Broker, peers: Sequence[Node], kept: Sequence[Node] = ()) -> None:
        super().__init__(broker)
        self._peers = peers
        self._kept = kept
        self._rules: list[list[str]] = []

    @property
    def target(self) -> str:
        """Such as "broker 2 from broker-1, broker-3"."""
        return f"{self.broker} from {', '.join(peer.spec.name for peer in self._peers)}"

    @abstractmethod
    def rules(self, peer: Node) -> Iterator[list[str]]:
        """What is dropped, as iptables has it: the chain and the match."""

    @abstractmethod
    def shown(self, peer: Node) -> bool:
        """Whether connections between the two fail and go through as they should."""

    def inject(self) -> None:
        """Cut it off and prove it; a connection that failed before proves nothing.

        :raises FaultNotProven: it does not show, or showed before
        """
        for peer in self._peers:
            if not connects(self.broker.node, peer):
                raise FaultNotProven(f"{self.broker} could not reach {peer.spec.name} before {self.name} was injected")
        super().inject()

    def break_it(self) -> None:
        """Drop the packets; the rules end with the network, which the undo log knows."""
        for peer in self._peers:
            for rule in self.rules(peer):
                self._rules.append(rule)
                self._iptables("-I", rule)

    def proof(self) -> str | None:
        """What connects and what doesn't, tried by the brokers' own user on either side; all at once, as each may last
        until its patience is over."""
        with ThreadPoolExecutor(len(self._peers) + len(self._kept)) as pool:
            cut = pool.map(self.shown, self._peers)
            kept = pool.map(self._both_ways, self._kept)
            if not (all(cut) and all(kept)):
                return None
        told = ", ".join(node.spec.name for node in self._kept)
        return f"no connection within {_CONNECT_S} s{f'; both ways with {told}' if told else ''}"

    def _both_ways(self, node: Node) -> bool:
        """Whether the broker and a node that it is not cut off from reach each other."""
        return connects(self.broker.node, node) and connects(node, self.broker.node)

    def mend(self) -> None:
        """Let the packets through, where there still is that network."""
        while self._rules:
            if self.broker.is_alive:
                self._iptables("-D", self._rules[-1], check=False)
            self._rules.pop()

    def _iptables(self, action: str, rule: list[str], *, check: bool = True) -> None:
        prefix = self.broker.node.in_network()
        chain, *match = rule
        command = [*prefix, "iptables", "--wait", action, chain, *match, "-j", "DROP"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise HarnessError(f"{self.name}: iptables in the network of {self.broker}: {done.stderr.strip()}")


class CutOff(Cut):
    """Nothing gets through, either way."""

    name = "cut_off"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """All packets from and to it."""
        host, _ = _address(peer)
        yield ["OUTPUT", "--destination", host]
        yield ["INPUT", "--source", host]

    def shown(self, peer: Node) -> bool:
        """Neither reaches the other."""
        return not connects(self.broker.node, peer) and not connects(peer, self.broker.node)


class CutOffOneWay(Cut):
    """What the broker asks of the others is lost; what they ask of it is answered."""

    name = "cut_off_one_way"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """Packets to the port that the other serves at."""
        host, port = _address(peer)
        yield ["OUTPUT", "--protocol", "tcp", "--destination", host, "--dport", port]

    def shown(self, peer: Node) -> bool:
        """The broker reaches nobody, and the other brokers reach it."""
        asked = "broker.id" in peer.spec.properties or peer.spec.properties.get("process.roles") == "broker"
        return not connects(self.broker.node, peer) and (not asked or connects(peer, self.broker.node))


class CutOffInwards(Cut):
    """What others ask of the broker is lost; what it asks of them is answered."""

    name = "cut_off_inwards"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """Packets from the other to the port that the broker serves at."""
        host, _ = _address(peer)
        _, port = _address(self.broker.node)
        yield ["INPUT", "--protocol", "tcp", "--source", host, "--dport", port]

    def shown(self, peer: Node) -> bool:
        """The other doesn't reach the broker, and the broker reaches it."""
        return not connects(peer, self.broker.node) and connects(self.broker.node, peer)


NETWORK_FAULTS: tuple[type[Cut], ...] = (CutOff, CutOffOneWay)
"""With which a leader's own word gets to nobody; not so with :class:`CutOffInwards`."""


def connects(node: Node, peer: Node) -> bool:
    """Whether the node's own user gets a connection to the port where the peer serves other nodes.

    :raises FaultNotProven: one of them doesn't run, so that nothing could be told by it
    """
    if down := [each.spec.name for each in (node, peer) if not each.is_alive()]:
        raise FaultNotProven(f"who connects to whom can't be told: {' and '.join(down)} does not run")
    host, port = _address(peer)
    return node.run_as_user(["timeout", str(_CONNECT_S), "bash", "-c", f"</dev/tcp/{host}/{port}"]).returncode == 0


def _address(node: Node) -> tuple[str, str]:
    """Where a node serves other nodes: its (first) listener, or ZooKeeper's port."""
    properties = node.spec.properties
    listener = re.match(r"\w+://([^:,]+):(\d+)", properties.get("listeners", ""))
    return (listener[1], listener[2]) if listener else (properties["clientPortAddress"], properties["clientPort"])
