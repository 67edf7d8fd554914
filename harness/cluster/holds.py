"""Holds threads of a node at a point (:mod:`harness.kafka.points`), by files in the node's own folder.

Only the node's user and the harness can write there. A thread that is held keeps its locks, so each hold has a limit,
also if the harness is killed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.errors import BuildLacks
from harness.kafka.points import HOLDS, missing_points, points_of
from harness.waiting import await_until

_ANSWER_S = 5.0
_POLL_S = 0.01


@dataclass(frozen=True, kw_only=True)
class HeldThread:
    """A thread that is held.

    :ivar name: the thread's name
    :ivar subject: what the point is about, such as a partition
    :ivar stack: its frames, innermost first
    """

    name: str
    subject: str
    stack: tuple[str, ...]

    @classmethod
    def read(cls, answer: Path) -> HeldThread:
        """Read a node's answer."""
        first, subject, *stack = answer.read_text().splitlines()
        return cls(name=first.partition(" ")[2], subject=subject, stack=tuple(stack))


@dataclass(frozen=True, kw_only=True)
class Who:
    """The threads that a hold is for.

    :ivar about: words, all of which the point's subject must contain, such as ``orders-0``
    :ivar thread: text that the thread's name must contain
    :ivar caller: text that a frame of its stack must contain, such as the name of a method
    :ivar skip: threads that pass first
    :ivar threads: how many are held
    """

    about: str = ""
    thread: str = ""
    caller: str = ""
    skip: int = 0
    threads: int = 1


class Hold:
    """A hold of threads of one node at one point.

    :ivar limit_s: each thread goes on after this time. All of them together may be held as long as the point allows,
        since they may be one thread that comes again
    """

    def __init__(self, cluster: Cluster, node: Node, point: str, who: Who, for_s: float | None = None) -> None:
        """Describe the hold.

        :param for_s: how long each thread is held; None: until :meth:`release`
        :raises BuildLacks: the node's build has no such point in this mode
        """
        version, mode = node.build.version, cluster.spec.mode
        found, missing = points_of(version, mode).get(point), missing_points(node.build)
        if found is None or point in missing:
            why = f": {missing[point]}" if point in missing else ""
            raise BuildLacks(f"Kafka {version} has no point {point} in {mode} mode{why}")
        self.node, self.point = node, point
        limit_s = found.limit_s / who.threads
        self.limit_s = limit_s if for_s is None else min(for_s, limit_s)
        self._outlasts = "limit" if for_s is None else "released"
        self._who = who
        self._journal = cluster.journal
        self._folder = node.config.parent / HOLDS
        self._name = ""

    def __str__(self) -> str:
        return f"{self.node.spec.name} at {self.point}"

    def begin(self) -> None:
        """From now on, threads are held. A node that does not run finds the order as it starts.

        :raises AwaitTimeout: the node does not answer
        """
        if not self._folder.exists():
            self.node.make_dir(self._folder)
        self._name = f"{self.point}-{time.time_ns()}"
        who = self._who
        order = {
            "point": self.point,
            "about": who.about,
            "thread": who.thread,
            "caller": who.caller,
            "skip": who.skip,
            "threads": who.threads,
            "limit_ms": round(self.limit_s * 1000),
        }
        made = self._folder / f"{self._name}.new"
        made.write_text("".join(f"{key}={value}\n" for key, value in order.items()))
        made.chmod(0o644)
        made.rename(self._folder / f"{self._name}.hold")
        if self.node.is_alive():
            self._await(f"{self._name}.armed", f"{self.node.spec.name} to hold threads at {self.point}", _ANSWER_S)

    def await_thread(self, timeout_s: float) -> HeldThread:
        """Wait until a thread is held; returns the first one.

        :raises AwaitTimeout: none came to the point
        """
        return HeldThread.read(self._await(f"{self._name}.1.there", f"a thread of {self}", timeout_s))

    def release(self) -> None:
        """Let the threads go on, and hold no more; the journal has how long each was held."""
        if not self._name:
            return
        (self._folder / f"{self._name}.hold").unlink(missing_ok=True)
        for there in sorted(self._folder.glob(f"{self._name}.*.there")):
            over = there.with_suffix(".over")
            if self.node.is_alive() and not self.node.is_paused():
                self._await(over.name, f"the thread of {self} to go on", _ANSWER_S)
            why, held_ms = over.read_text().split() if over.exists() else ("ended", "0")
            self._journal.write(
                "hold.over",
                point=self.point,
                node=self.node.spec.name,
                thread=HeldThread.read(there).name,
                why=self._outlasts if why == "limit" else why,
                held_ms=int(held_ms),
            )
        self._name = ""

    def _await(self, name: str, what: str, timeout_s: float) -> Path:
        """Wait for an answer of the node."""
        file = self._folder / name
        await_until(
            file.exists,
            timeout_s=timeout_s,
            what=what,
            poll_s=_POLL_S,
            for_kafka=False,
        )
        return file
