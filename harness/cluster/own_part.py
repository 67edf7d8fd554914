"""Kafka's own part: what it must do by itself before a scenario can begin, and after its faults are healed.

No KIP promises that brokers register, that a topic gets leaders, or that a client is served: every KIP relies on it. So
a build that does not do its part breaks a promise, unless this machine or the harness kept it from doing so.
harness/README.md has a table of all waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.cluster.session_loss import LostSession, lost_session
from harness.crowding import Deadline
from harness.errors import (
    AwaitTimeout,
    EnvironmentLacks,
    Inconclusive,
    JbodError,
    PromiseBroken,
    ToolFailed,
    ToolTooLate,
)
from harness.events import FaultInjecting, NodeKilled, NodePaused, NodeStopping
from harness.host.disk_space import why_full
from harness.journal import now
from harness.kafka.answers import Refused
from harness.waiting import CROWDED

if TYPE_CHECKING:
    from harness.cluster.lifecycle import ClusterLifecycle


_TOO_LATE = "REQUEST_TIMED_OUT"
"""The answer of a broker that has not carried out a request within the request's own time-out."""


class RefusedOwnPart(Refused, PromiseBroken):
    """Kafka refused a request that every scenario relies on."""

    exit_code = PromiseBroken.exit_code


class FailedOwnPart(ToolFailed, PromiseBroken):
    """One of Kafka's tools did not carry out what every scenario relies on."""

    exit_code = PromiseBroken.exit_code


class OwnPart:
    """One thing that Kafka must do by itself; the wait for it begins now.

    :param promise: what Kafka must do, as the end of the sentence "Kafka must …"
    :param needs_all: it needs every node; then a node that the harness stopped is an excuse
    """

    def __init__(self, cluster: ClusterLifecycle, promise: str, *, needs_all: bool = True) -> None:
        self._cluster = cluster
        self._promise = promise
        self._needs_all = needs_all
        self._began_at = now()
        self._wait = Deadline(0.0)  # for its measurement of the crowding

    def undone(self, seen: str) -> JbodError:
        """Return the error for a part that Kafka has not done in time.

        :param seen: what was awaited, and what was seen last
        :return: :class:`~harness.errors.PromiseBroken`; EnvironmentLacks where the disk is full; AwaitTimeout where a
            node was stopped or suspended; Inconclusive where a broker that was left alone lost its session on a busy
            machine. On a crowded machine the wait took longer, so a value that is still wrong breaks the promise there
        """
        seen = f"Kafka must {self._promise}: {seen}"
        if full := why_full(self._cluster.undo_log.dir):
            return EnvironmentLacks(f"{full}; {seen}")
        if self._needs_all and (idle := self._idle()):
            return AwaitTimeout(f"{', '.join(idle)}; {seen}")
        if lost := self._lost_session():
            return lost.blamed(seen)
        return PromiseBroken(seen)

    def unserved(self, seen: str) -> JbodError:
        """Return the error for clients that ran and were not served in time.

        On a crowded machine this is Inconclusive: the clients themselves may not have got to run. Otherwise it is as
        for :meth:`undone`.
        """
        error, crowding = self.undone(seen), self._wait.crowding
        if crowding.stretch == 1.0 or not isinstance(error, PromiseBroken):
            return error
        return Inconclusive(str(error) if CROWDED in seen else f"{CROWDED} ({crowding}): {error}")

    @contextmanager
    def served(self) -> Iterator[None]:
        """Inside the block, Kafka must serve each request, and each of its tools must succeed.

        :raises JbodError: as of :meth:`refused`; :class:`FailedOwnPart` for a tool that failed, if Kafka is to blame
        """
        try:
            yield
        except Refused as refusal:
            raise self.refused(refusal) from refusal
        except ToolFailed as failure:
            error = (self.unserved if isinstance(failure, ToolTooLate) else self.undone)(str(failure))
            raise FailedOwnPart(str(error)) if isinstance(error, PromiseBroken) else error from failure

    def refused(self, refusal: Refused) -> JbodError:
        """Return the error for a request that Kafka refused; :class:`RefusedOwnPart` if Kafka is to blame.

        Kafka has answered, so a crowded machine is no excuse, unless the answer is that the time was too short.
        """
        if self._needs_all and self._idle():
            return refusal
        seen = f"Kafka must {self._promise}: {refusal}"
        if lost := self._lost_session():
            return lost.blamed(seen)
        crowding = self._wait.crowding
        if refusal.error == _TOO_LATE and crowding.stretch > 1.0:
            return Inconclusive(f"{CROWDED} ({crowding}): {seen}")
        what = str(refusal).partition(f": {refusal.error}")[0]
        return RefusedOwnPart(f"Kafka must {self._promise}: {what}", refusal.error, refusal.message)

    def _idle(self) -> list[str]:
        """One phrase for each node that cannot do its part: the harness stopped it, or it is suspended."""
        nodes = self._cluster.nodes
        found = [f"{node.spec.name} does not run" for node in nodes if not node.is_alive()]
        return found + [f"{node.spec.name} is suspended" for node in nodes if node.is_paused()]

    def _lost_session(self) -> LostSession | None:
        """A broker that lost its session meanwhile, although nothing in this case had disturbed it."""
        journal = self._cluster.journal
        disturbed = {event.struck for event in journal.of(FaultInjecting)}
        for kind in (NodeKilled, NodeStopping, NodePaused):
            disturbed |= {event.node for event in journal.of(kind)}
        but = {broker.id for broker in self._cluster.brokers if broker.node.spec.name in disturbed}
        return lost_session(self._cluster, but=but, since=self._began_at)
