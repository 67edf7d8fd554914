"""What a backend runs, and what it must be able to do with it.

A *node* is one JVM of the cluster: a broker, a KRaft controller or a ZooKeeper server. The roles are the cluster's
business; a backend (local processes here, containers in another module) knows only this.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.broker_log import BrokerLog


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One JVM: what to run with which configuration; ``jvm_options`` beside those that its backend gives to all."""

    name: str
    main_class: str
    properties: Mapping[str, str]
    heap_mb: int = 256
    jvm_options: tuple[str, ...] = ()


class Node(Protocol):
    """One JVM that can be started, ended and asked; every method may be called in any state."""

    spec: NodeSpec
    log: BrokerLog
    config: Path
    """Its properties file, where the node lives."""

    def start(self) -> None:
        """Start it and return at once; does nothing where it runs."""

    def stop(self, timeout_s: float) -> None:
        """SIGTERM and wait until it is gone; SIGKILL after ``timeout_s``."""

    def request_stop(self) -> None:
        """SIGTERM only; :meth:`stop` or :meth:`kill` then waits."""

    def kill(self) -> None:
        """SIGKILL and wait until it is gone."""

    def pause(self) -> None:
        """SIGSTOP."""

    def resume(self) -> None:
        """SIGCONT."""

    def is_alive(self) -> bool:
        """Whether the process runs (or is paused)."""

    def is_paused(self) -> bool:
        """Whether the kernel holds it stopped."""

    def let_end(self) -> None:
        """From now on it may end by itself; :meth:`check_alive` says nothing of it until it is started again."""

    def pid(self) -> int | None:
        """Its process id on this machine; None while it doesn't run."""

    def exit_code(self) -> int | None:
        """How it ended: the exit status, minus the signal's number if by a signal; None while it runs or never ran."""

    def check_alive(self) -> None:
        """:raises NodeDied: it ended and nobody of the harness had ended it; carries its last log lines."""

    def configure(self, changes: Mapping[str, str]) -> None:
        """Change its properties; in force when it is next started."""

    def run_as_user(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a small command where the node lives, as the node's own user; bounded in time."""

    def make_dir(self, path: Path) -> None:
        """Make a folder that the node's user owns."""
