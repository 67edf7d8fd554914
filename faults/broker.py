"""A broker's process fails: killed, stopped, paused."""

from __future__ import annotations

import socket

from faults.base import Fault
from harness.errors import FaultNotProven
from harness.host.ports import HOST


class BrokerEnded(Fault):
    """Its process ends, alone or with the machine under it."""

    explains = (r"Connection to node .* could not be established", r"Error sending fetch request")

    @property
    def target(self) -> str:
        """Such as "broker 2"."""
        return str(self.broker)

    def inject(self) -> None:
        """End it and prove it.

        :raises FaultNotProven: it did not run before, or nothing shows that it ended
        """
        if not self.broker.is_alive:
            raise FaultNotProven(f"{self.broker} did not run before {self.name} was injected")
        super().inject()


class _BrokerGone(BrokerEnded):
    """It alone does; mending it starts the broker again (and leaves the waiting to the scenario)."""

    def proof(self) -> str | None:
        """The process is gone from the process table and its port refuses connections."""
        if self.broker.is_alive:
            return None
        port = int(self.broker.bootstrap.rpartition(":")[2])
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((HOST, port)) == 0:
                return None
        return f"exit code {self.broker.node.exit_code()}; {self.broker.bootstrap} refuses connections"

    def revert(self) -> None:
        """Start it again; a broker that the scenario has started already is left alone."""
        if not self.broker.is_alive:
            self.broker.start()


class BrokerKilled(_BrokerGone):
    """SIGKILL."""

    name = "broker_killed"

    def apply(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.broker.kill()


class BrokerStopped(_BrokerGone):
    """SIGTERM: a controlled shutdown."""

    name = "broker_stopped"

    def apply(self) -> None:
        """SIGTERM, and wait until it is gone."""
        self.broker.stop()


class BrokerPaused(Fault):
    """SIGSTOP, in containers the kernel's freezer: it holds its connections and its sessions run out."""

    name = "broker_paused"
    explains = _BrokerGone.explains

    @property
    def target(self) -> str:
        """Such as "broker 2"."""
        return str(self.broker)

    def apply(self) -> None:
        """Stop it."""
        self.broker.pause()

    def proof(self) -> str | None:
        """The kernel says that the process, or the container's group, is stopped."""
        return self.broker.node.paused_proof()

    def revert(self) -> None:
        """Let it go on."""
        self.broker.resume()
