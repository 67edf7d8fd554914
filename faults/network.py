"""A broker is cut off: packets between it and other nodes are dropped, with nobody told.

By the kernel's packet filter in the broker's own network, so no container needs a privilege for it, and nothing of it
outlives the network: a broker that is restarted in a new one is no longer cut off. Clients and the harness come by
another way (published ports) and go on reaching the broker, which is what makes it interesting: it is there, and may
think that it leads.

That a cut is there is is_effective by connections that don't come about, and that it is gone by such that do, or are refused:
what is dropped gets no answer at all.
"""

from __future__ import annotations

import re
import subprocess
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from faults.base import Fault
from harness import timeouts
from harness.cluster.broker import Broker
from harness.cluster.nodes.node import Node
from harness.errors import FaultNotProven, HarnessError
from harness.waiting import await_until

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
    def is_effective(self, peer: Node) -> bool:
        """Whether connections between the two fail and go through as they should."""

    def inject(self) -> None:
        """Cut it off and prove it; a connection that failed before proves nothing.

        :raises FaultNotProven: it does not show, or showed before
        """
        with ThreadPoolExecutor(len(self._peers)) as pool:
            reached = [*pool.map(self._both_ways, self._peers)]
        if deaf := [peer.spec.name for peer, both in zip(self._peers, reached, strict=True) if not both]:
            raise FaultNotProven(
                f"{self.broker} and {', '.join(deaf)} could not reach each other before {self.name} was injected"
            )
        super().inject()

    def apply(self) -> None:
        """Drop the packets; the rules end with the network, which the undo log knows."""
        for peer in self._peers:
            for rule in self.rules(peer):
                self._rules.append(rule)
                self._iptables("-I", rule)

    def proof(self) -> str | None:
        """What connects and what doesn't, tried by the brokers' own user on either side; all at once, as each may last
        until its patience is over."""
        with ThreadPoolExecutor(len(self._peers) + len(self._kept)) as pool:
            cut = pool.map(self.is_effective, self._peers)
            kept = pool.map(self._both_ways, self._kept)
            if not (all(cut) and all(kept)):
                return None
        told = ", ".join(node.spec.name for node in self._kept)
        return f"no connection within {_CONNECT_S} s{f'; both ways with {told}' if told else ''}"

    def _both_ways(self, node: Node) -> bool:
        """Whether the broker and a node that it is not cut off from reach each other."""
        return all(can_connect(self.broker.node, node)) and all(can_connect(node, self.broker.node))

    def revert(self) -> None:
        """Let the packets through, where there still is that network."""
        while self._rules:
            if self.broker.is_alive:
                self._iptables("-D", self._rules[-1], check=False)
            self._rules.pop()

    def undo(self) -> None:
        """Take it back, and see that it is gone.

        After it is told as undone, from when on it is measured how soon the broker is back.

        :raises HarnessError: packets are dropped still
        """
        was_cut = bool(self._rules)
        super().undo()
        if was_cut:
            self._await_gone()

    def _await_gone(self) -> None:
        await_until(
            self._dropped,
            lambda dropped: not dropped,
            timeout_s=timeouts.PROBE_S,
            what=f"{self}, which was undone, to be gone",
            failure=HarnessError,
            hint=self._left,
        )
        is_effective = [peer.spec.name for peer in self._able()]
        self.broker.journal.write("cut.gone", broker=self.broker.id, shown_with=is_effective)

    def _able(self) -> list[Node]:
        """The peers by which something can be told now: they and the broker run."""
        return [peer for peer in self._peers if _runs(peer)] if _runs(self.broker.node) else []

    def _dropped(self) -> list[str]:
        """From whom nothing gets to whom."""
        ways = [way for peer in self._able() for way in ((self.broker.node, peer), (peer, self.broker.node))]
        with ThreadPoolExecutor(len(ways) or 1) as pool:
            heard = [*pool.map(lambda way: all(gets_answer(*way)), ways)]
        return [f"{a.spec.name} to {b.spec.name}" for (a, b), h in zip(ways, heard, strict=True) if not h]

    def _left(self) -> str:
        """What the packet filter drops in the broker's network."""
        rules = self._run_iptables("--list-rules").stdout.splitlines()
        dropping = [rule for rule in rules if rule.endswith("-j DROP")]
        return f"in its network iptables has {'; '.join(dropping) or 'no rule that drops anything'}"

    def _iptables(self, action: str, rule: list[str], *, check: bool = True) -> None:
        done = self._run_iptables(action, *rule, "-j", "DROP")
        if check and done.returncode:
            raise HarnessError(f"{self.name}: iptables in the network of {self.broker}: {done.stderr.strip()}")

    def _run_iptables(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.broker.node.in_network(), "iptables", "--wait", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


class CutOff(Cut):
    """Nothing gets through, either way."""

    name = "cut_off"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """All packets from and to it."""
        for host in {host for host, _ in _doors(peer)}:
            yield ["OUTPUT", "--destination", host]
            yield ["INPUT", "--source", host]

    def is_effective(self, peer: Node) -> bool:
        """Neither reaches the other."""
        return not any(can_connect(self.broker.node, peer)) and not any(can_connect(peer, self.broker.node))


class CutOffOneWay(Cut):
    """What the broker asks of the others is lost; what they ask of it is answered."""

    name = "cut_off_one_way"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """Packets to the ports that the other serves at: a combined node's are a broker's and a controller's."""
        for host, port in _doors(peer):
            yield ["OUTPUT", "--protocol", "tcp", "--destination", host, "--dport", port]

    def is_effective(self, peer: Node) -> bool:
        """The broker doesn't reach the other, and the other reaches it."""
        return not any(can_connect(self.broker.node, peer)) and all(can_connect(peer, self.broker.node))


class CutOffInwards(Cut):
    """What others ask of the broker is lost; what it asks of them is answered."""

    name = "cut_off_inwards"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """Packets from the other to the ports that the broker serves at."""
        for host in {host for host, _ in _doors(peer)}:
            for _, port in _doors(self.broker.node):
                yield ["INPUT", "--protocol", "tcp", "--source", host, "--dport", port]

    def is_effective(self, peer: Node) -> bool:
        """The other doesn't reach the broker, and the broker reaches it."""
        return not any(can_connect(peer, self.broker.node)) and all(can_connect(self.broker.node, peer))


NETWORK_FAULTS: tuple[type[Cut], ...] = (CutOff, CutOffOneWay)
"""With which a leader's own word gets to nobody; not so with :class:`CutOffInwards`."""


def can_connect(node: Node, peer: Node) -> list[bool]:
    """Whether the node's own user gets a connection to each port where the peer serves other nodes.

    :raises FaultNotProven: one of them doesn't run, so that nothing could be told by it
    """
    _check_run(node, peer)
    through = [_connect(node, *door).returncode == 0 for door in _doors(peer)]
    _check_run(node, peer)  # one that ended meanwhile is no cut
    return through


def gets_answer(node: Node, peer: Node) -> list[bool]:
    """The same, or that it is told that nobody listens there: a broker that has just been started may not yet."""
    tried = [_connect(node, *door) for door in _doors(peer)]
    return [done.returncode == 0 or "refused" in done.stderr for done in tried]


def _connect(node: Node, host: str, port: str) -> subprocess.CompletedProcess[str]:
    return node.run_as_user(["timeout", str(_CONNECT_S), "bash", "-c", f"</dev/tcp/{host}/{port}"])


def _check_run(*nodes: Node) -> None:
    if down := [node.spec.name for node in nodes if not node.is_alive()]:
        raise FaultNotProven(f"who connects to whom can't be told: {' and '.join(down)} does not run")


def _runs(node: Node) -> bool:
    return node.is_alive() and not node.is_paused()


def _doors(node: Node) -> list[tuple[str, str]]:
    """Where a node serves other nodes, host and port: as a broker, as a controller, as both, or as ZooKeeper.

    A broker may have a listener for clients alone.
    """
    properties = node.spec.properties
    listeners = re.findall(r"(\w+)://([^:,]+):(\d+)", properties.get("listeners", ""))
    of_nodes = (properties.get("inter.broker.listener.name", "PLAINTEXT"), properties.get("controller.listener.names"))
    doors = [(host, port) for name, host, port in listeners if name in of_nodes]
    return doors or [(properties["clientPortAddress"], properties["clientPort"])]
