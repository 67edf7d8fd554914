"""A fault: injected, proven from outside Kafka, and taken back.

After roachtest's failure injection (set up, inject, wait until it has taken effect, recover, clean up; clean-up legal
from any state) and Jepsen's nemesis (every fault heals), with one rule of our own: *an injection that can't be shown to
have taken effect is no injection*. ``inject`` returns when the effect is proven as the broker's own user, by the file
system or the process table, never by Kafka's word; otherwise it raises
:class:`~harness.errors.FaultNotProven`, and the run is inconclusive rather than green.

A fault repairs what it broke and no more: a log dir gets its permissions back, but its broker stays as it is until the
scenario restarts it, as an operator would.

To add one: a module here with one class derived from :class:`Fault`; see ``faults/README.md``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import ClassVar, TypeVar

from harness.cluster.broker import Broker
from harness.cluster.spec import ClusterSettings
from harness.errors import FaultNotProven
from harness.journal import now


class Fault(ABC):
    """One way to break one thing of one broker.

    :cvar name: what the fault is called in ids, journal and reports
    :cvar needs: abilities of the machine that it can't do without, by their names in :mod:`harness.host.probes`
    :cvar cluster: settings of the cluster that it needs; a case with this fault among its parameters gets such a
        cluster
    :cvar explains: regular expressions of the log lines at level ERROR or FATAL that it explains
    :ivar noticed_by: a regular expression of the log line by which the broker says that it noticed, or None
    :ivar may_hold_up_clients: while it is in force clients may get nowhere, as those that go on asking a broker that
        can't know any better: no load is asked for then (:func:`harness.measure.floors.shortfalls`)
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    cluster: ClassVar[ClusterSettings] = {}
    explains: ClassVar[tuple[str, ...]] = ()

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.noticed_by: str | None = None
        self.may_hold_up_clients = False
        self.injected_at: datetime = now()
        self.injected_monotonic_s = 0.0

    @property
    @abstractmethod
    def target(self) -> str:
        """What it breaks, for people."""

    @property
    def node(self) -> str:
        """The name of the node that it hits: its broker's, unless a fault says otherwise."""
        return f"broker-{self.broker.id}"

    @abstractmethod
    def apply(self) -> None:
        """Break it; whatever is done has been written into the broker's undo log before."""

    @abstractmethod
    def proof(self) -> str | None:
        """Look from outside Kafka whether it is broken: what was seen that proves it, or None.

        :raises FaultNotProven: it does not show, and there is something to say about it, such as what was measured
        """

    @abstractmethod
    def revert(self) -> None:
        """Take back what :meth:`apply` did, also half of it, also twice."""

    def inject(self) -> None:
        """Break it and prove it.

        :raises FaultNotProven: it does not show
        """
        fields = {"fault": self.name, "target": self.target, "broker": self.broker.id, "noticed_by": self.noticed_by}
        journal = self.broker.journal
        more = {"may_hold_up_clients": True} if self.may_hold_up_clients else {}
        self.injected_at = journal.write("fault.injecting", **fields, node=self.node, explains=self.explains, **more)
        try:
            self.apply()
            self.injected_monotonic_s = time.monotonic()
            evidence = self._evidence()
        except FaultNotProven as error:
            journal.write("fault.not_proven", **fields, why=str(error))
            raise FaultNotProven(f"{self.name} on {self.target} is not proven: {error}") from error
        journal.write("fault.injected", **fields, injecting_at=self.injected_at.isoformat(), evidence=evidence)

    def _evidence(self) -> str:
        """What proves it.

        :raises FaultNotProven: nothing does
        """
        evidence = self.proof()
        if evidence is None:
            raise FaultNotProven("nothing outside Kafka shows its effect")
        return evidence

    def undo(self) -> None:
        """Take it back; from any state, any number of times."""
        fields = {"fault": self.name, "target": self.target, "broker": self.broker.id}
        self.broker.journal.write("fault.healing", **fields)
        self.revert()
        self.broker.journal.write("fault.undone", **fields)

    def __str__(self) -> str:
        return f"{self.name} on {self.target}"


F = TypeVar("F", bound=Fault)


@contextmanager
def injected(*faults: F) -> Iterator[F]:
    """The faults are in force inside the block, in this order, and undone after it in the reverse one, come what may.

    Yields the first.
    """
    with ExitStack() as stack:
        for fault in faults:
            stack.callback(fault.undo)
            fault.inject()
        yield faults[0]
