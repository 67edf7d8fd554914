"""Faults of a broker's process: killed, stopped, paused."""

from __future__ import annotations

import socket

from faults.base import Fault
from harness.errors import FaultNotProven
from harness.host.ports import HOST


class BrokerEnded(Fault):
    """The broker's process ends, alone or with its machine."""

    explains = (r"Connection to node .* could not be established", r"Error sending fetch request")

    def inject(self) -> None:
        """End the process and prove that it ended.

        :raises FaultNotProven: it did not run before, or its end is not proven
        """
        if not self.broker.is_alive:
            raise FaultNotProven(f"{self.broker} did not run before {self.name} was injected")
        super().inject()


class _BrokerGone(BrokerEnded):
    """The process ends but its machine does not; to revert it, start the broker and do not wait for it."""

    def proof(self) -> str | None:
        """The process is not in the process table, and its port refuses connections."""
        if self.broker.is_alive:
            return None
        port = self.broker.port
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((HOST, port)) == 0:
                return None
        return f"exit code {self.broker.node.exit_code()}; {self.broker.bootstrap} refuses connections"

    def revert(self) -> None:
        """Start the broker, unless the scenario has started it."""
        if not self.broker.is_alive:
            self.broker.start()


class BrokerKilled(_BrokerGone):
    """Kills the broker's process with SIGKILL."""

    name = "broker_killed"

    def apply(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.broker.kill()


class BrokerStopped(_BrokerGone):
    """Stops the broker with SIGTERM: a controlled shutdown."""

    name = "broker_stopped"

    def apply(self) -> None:
        """Send SIGTERM and wait for the end."""
        self.broker.stop()


class BrokerPaused(Fault):
    """Pauses the broker with SIGSTOP, or the kernel's freezer in containers.

    It keeps its connections, and its sessions expire.
    """

    name = "broker_paused"
    explains = BrokerEnded.explains

    def apply(self) -> None:
        """Suspend the process."""
        self.broker.pause()

    def proof(self) -> str | None:
        """The kernel's state of the process or of the container's group."""
        return self.broker.node.paused_proof()

    def revert(self) -> None:
        """Let the process continue."""
        self.broker.resume()
