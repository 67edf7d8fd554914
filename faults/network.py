"""Network faults: packets between a broker and other nodes are dropped without any notice.

The kernel's packet filter in the broker's network drops them. So no container needs a privilege, and the rules end with
the network. A restarted broker has a new network and is no longer cut off. Clients and the harness use published ports
and still reach the broker, which may believe that it is the leader.

The proof of a cut is a connection that fails; a cut has ended when connections succeed or are refused.
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
    """Drops packets between a broker and some nodes.

    :param peers: the nodes that the broker is cut off from
    :param still_reachable: nodes that must still reach the broker, and that it must still reach; else the cut is not
        proven
    """

    needs = ("own networks",)
    explains = (r"Connection to node .* could not be established", r"Error sending fetch request", r"[Tt]imed? ?out")

    def __init__(self, broker: Broker, peers: Sequence[Node], still_reachable: Sequence[Node] = ()) -> None:
        super().__init__(broker)
        self._peers = peers
        self._still_reachable = still_reachable
        self._rules: list[list[str]] = []

    @property
    def target(self) -> str:
        """The broker and its peers, such as "broker 2 from broker-1, broker-3"."""
        return f"{self.broker} from {_names(self._peers)}"

    @abstractmethod
    def rules(self, peer: Node) -> Iterator[list[str]]:
        """The chain and the match of each iptables rule."""

    @abstractmethod
    def is_effective(self, peer: Node) -> bool:
        """Whether connections between the broker and the peer fail, or succeed, as the fault intends."""

    def inject(self) -> None:
        """Cut the broker off and prove it; all connections must have worked before.

        :raises FaultNotProven: a connection failed before, or the effect is not proven
        """
        with ThreadPoolExecutor(len(self._peers)) as pool:
            connected = [*pool.map(self._is_connected, self._peers)]
        if unconnected := [peer for peer, works in zip(self._peers, connected, strict=True) if not works]:
            raise FaultNotProven(
                f"{self.broker} and {_names(unconnected)} could not reach each other before {self.name} was injected"
            )
        super().inject()

    def apply(self) -> None:
        """Add the rules; they end with the network, which is in the undo log."""
        for peer in self._peers:
            for rule in self.rules(peer):
                self._rules.append(rule)
                self._iptables("-I", rule)

    def proof(self) -> str | None:
        """The brokers' own users try all connections, all at once, since a dropped one waits for its time-out."""
        with ThreadPoolExecutor(len(self._peers) + len(self._still_reachable)) as pool:
            effective = pool.map(self.is_effective, self._peers)
            connected = pool.map(self._is_connected, self._still_reachable)
            if not (all(effective) and all(connected)):
                return None
        names = _names(self._still_reachable)
        return f"no connection within {_CONNECT_S} s{f'; both ways with {names}' if names else ''}"

    def _is_connected(self, node: Node) -> bool:
        """Whether the broker and the node connect to each other, both ways."""
        return all(can_connect(self.broker.node, node)) and all(can_connect(node, self.broker.node))

    def revert(self) -> None:
        """Remove the rules, if the broker and so its network still exist."""
        while self._rules:
            if self.broker.is_alive:
                self._iptables("-D", self._rules[-1], check=False)
            self._rules.pop()

    def undo(self) -> None:
        """Revert the fault, then check that it is gone.

        The check comes after the journal's ``fault.undone``, from which the broker's recovery time is measured.

        :raises HarnessError: packets are still dropped
        """
        was_cut = bool(self._rules)
        super().undo()
        if was_cut:
            await_until(
                self._blocked,
                lambda blocked: not blocked,
                timeout_s=timeouts.PROBE_S,
                what=f"{self}, which was undone, to be gone",
                failure=HarnessError,
                hint=self._drop_rules,
                for_kafka=False,
            )
            checked = [peer.spec.name for peer in self._running_peers()]
            self.broker.journal.write("cut.gone", broker=self.broker.id, shown_with=checked)

    def _running_peers(self) -> list[Node]:
        """The peers whose connections can be checked: they and the broker run."""
        return [peer for peer in self._peers if _runs(peer)] if _runs(self.broker.node) else []

    def _blocked(self) -> list[str]:
        """The directions in which connections get no answer, such as "broker-1 to broker-2"."""
        here = self.broker.node
        ways = [way for peer in self._running_peers() for way in ((here, peer), (peer, here))]
        with ThreadPoolExecutor(len(ways) or 1) as pool:
            answers = [*pool.map(lambda way: all(gets_answer(*way)), ways)]
        return [f"{a.spec.name} to {b.spec.name}" for (a, b), open in zip(ways, answers, strict=True) if not open]

    def _drop_rules(self) -> str:
        """The rules in the broker's network that drop packets."""
        rules = self._run_iptables("--list-rules").stdout.splitlines()
        dropping = [rule for rule in rules if rule.endswith("-j DROP")]
        return f"in its network iptables has {'; '.join(dropping) or 'no rule that drops packets'}"

    def _iptables(self, action: str, rule: list[str], *, check: bool = True) -> None:
        done = self._run_iptables(action, *rule, "-j", "DROP")
        if check and done.returncode:
            raise HarnessError(
                f"{self.name}: iptables {action} {' '.join(rule)} failed in the network of {self.broker}: "
                f"{done.stderr.strip()}"
            )

    def _run_iptables(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.broker.node.in_network(), "iptables", "--wait", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


class CutOff(Cut):
    """Drops all packets between the broker and its peers."""

    name = "cut_off"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """All packets to and from the peer."""
        for host in {host for host, _ in _node_addresses(peer)}:
            yield ["OUTPUT", "--destination", host]
            yield ["INPUT", "--source", host]

    def is_effective(self, peer: Node) -> bool:
        """Neither can connect to the other."""
        return not any(can_connect(self.broker.node, peer)) and not any(can_connect(peer, self.broker.node))


class CutOffOneWay(Cut):
    """Drops the broker's requests to its peers; the peers' requests to the broker work."""

    name = "cut_off_one_way"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """Packets to the peer's ports for nodes; a combined node has two, as broker and as controller."""
        for host, port in _node_addresses(peer):
            yield ["OUTPUT", "--protocol", "tcp", "--destination", host, "--dport", port]

    def is_effective(self, peer: Node) -> bool:
        """The broker can't connect to the peer, and the peer can connect to the broker."""
        return not any(can_connect(self.broker.node, peer)) and all(can_connect(peer, self.broker.node))


class CutOffInwards(Cut):
    """Drops the peers' requests to the broker; the broker's requests to them work."""

    name = "cut_off_inwards"

    def rules(self, peer: Node) -> Iterator[list[str]]:
        """Packets from the peer to the broker's ports for nodes."""
        for host in {host for host, _ in _node_addresses(peer)}:
            for _, port in _node_addresses(self.broker.node):
                yield ["INPUT", "--protocol", "tcp", "--source", host, "--dport", port]

    def is_effective(self, peer: Node) -> bool:
        """The peer can't connect to the broker, and the broker can connect to the peer."""
        return not any(can_connect(peer, self.broker.node)) and all(can_connect(self.broker.node, peer))


NETWORK_FAULTS: tuple[type[Cut], ...] = (CutOff, CutOffOneWay)
"""The faults that drop a leader's own requests; :class:`CutOffInwards` drops only requests of others to it."""


def can_connect(node: Node, peer: Node) -> list[bool]:
    """For each of the peer's ports for nodes, whether the node's own user can connect to it.

    :raises FaultNotProven: one of the two does not run, so the result means nothing
    """
    _check_run(node, peer)
    connected = [_connect(node, *address).returncode == 0 for address in _node_addresses(peer)]
    _check_run(node, peer)  # a node that ended meanwhile proves nothing
    return connected


def gets_answer(node: Node, peer: Node) -> list[bool]:
    """As :func:`can_connect`, but a refusal counts too: a broker that is starting may not listen yet."""
    attempts = [_connect(node, *address) for address in _node_addresses(peer)]
    return [done.returncode == 0 or "refused" in done.stderr for done in attempts]


def _connect(node: Node, host: str, port: str) -> subprocess.CompletedProcess[str]:
    return node.run_as_user(["timeout", str(_CONNECT_S), "bash", "-c", f"</dev/tcp/{host}/{port}"])


def _check_run(*nodes: Node) -> None:
    if down := [node.spec.name for node in nodes if not node.is_alive()]:
        raise FaultNotProven(f"connections can't be checked, since these nodes do not run: {', '.join(down)}")


def _runs(node: Node) -> bool:
    return node.is_alive() and not node.is_paused()


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.spec.name for node in nodes)


def _node_addresses(node: Node) -> list[tuple[str, str]]:
    """Host and port of each listener for other nodes: a broker's, a controller's, both, or ZooKeeper's."""
    properties = node.spec.properties
    listeners = re.findall(r"(\w+)://([^:,]+):(\d+)", properties.get("listeners", ""))
    names = (properties.get("inter.broker.listener.name", "PLAINTEXT"), properties.get("controller.listener.names"))
    addresses = [(host, port) for name, host, port in listeners if name in names]
    return addresses or [(properties["clientPortAddress"], properties["clientPort"])]
