"""The base class of all faults: inject, prove, undo.

It follows roachtest's failure injection (set up, inject, wait for the effect, recover, clean up from any state) and
Jepsen's nemesis (every fault heals). One rule is added: an injection without a proven effect is no injection.
``inject`` returns when something outside Kafka, such as the file system or the process table, shows the effect to the
broker's own user; Kafka's answers alone prove nothing. Otherwise it raises :class:`~harness.errors.FaultNotProven`, and
the case is inconclusive.

``undo`` repairs only what the fault broke. A log dir gets its permissions back, but its broker stays as it is: the
scenario restarts it, as an operator would. ``faults/README.md`` says how to add a fault.
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
    """A way to break something of one broker.

    :cvar name: the fault's name in ids, journal and reports
    :cvar needs: the abilities of the machine that it needs, by their names in :mod:`harness.host.probes`
    :cvar cluster: the cluster settings that it needs; a case that has this fault as a parameter gets such a cluster
    :cvar explains: regular expressions of the ERROR and FATAL log lines that it explains; in faults of log dirs
        ``{path}`` stands for the path of the log dir, which :meth:`explained` fills in
    :cvar harms_logs: it may take records from a log that the broker had written: it flips bits, or drops what was not
        synced. Replicas may then be truncated below their high watermarks (:mod:`harness.measure.discarded_logs`)
    :ivar noticed_by: a regular expression of the line that the broker logs when it notices the fault, or None
    :ivar may_hold_up_clients: clients may make no progress during the fault, for example because they keep asking a
        broker that is cut off. No load is required then (:func:`harness.measure.floors.shortfalls`)
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    cluster: ClassVar[ClusterSettings] = {}
    explains: ClassVar[tuple[str, ...]] = ()
    harms_logs: ClassVar[bool] = False

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.noticed_by: str | None = None
        self.may_hold_up_clients = False
        self.injected_at: datetime = now()
        self.injected_monotonic_s = 0.0

    @property
    def target(self) -> str:
        """What the fault breaks, for people: the broker, unless a fault overrides it."""
        return str(self.broker)

    @property
    def node(self) -> str:
        """The name of the affected node."""
        return f"broker-{self.broker.id}"

    def explained(self) -> tuple[str, ...]:
        """The regular expressions of the ERROR and FATAL log lines that this fault, on its target, explains."""
        return self.explains

    @abstractmethod
    def apply(self) -> None:
        """Break the target. Each step goes to the broker's undo log first."""

    @abstractmethod
    def proof(self) -> str | None:
        """The evidence from outside Kafka that the target is broken, or None.

        :raises FaultNotProven: there is no evidence; with the reason, such as a measured value
        """

    @abstractmethod
    def revert(self) -> None:
        """Undo the steps of :meth:`apply`, also after half of them, and also twice."""

    def inject(self) -> None:
        """Apply the fault and prove its effect.

        :raises FaultNotProven: its effect is not proven
        """
        fields = {"fault": self.name, "target": self.target, "broker": self.broker.id, "noticed_by": self.noticed_by}
        journal = self.broker.journal
        more = {"may_hold_up_clients": self.may_hold_up_clients, "harms_logs": self.harms_logs}
        more = {name: value for name, value in more.items() if value}
        self.injected_at = journal.write("fault.injecting", **fields, node=self.node, explains=self.explained(), **more)
        try:
            self.apply()
            self.injected_monotonic_s = time.monotonic()
            evidence = self.proof()
            if evidence is None:
                raise FaultNotProven("nothing outside Kafka shows its effect")
        except FaultNotProven as error:
            journal.write("fault.not_proven", **fields, why=str(error))
            raise FaultNotProven(f"{self.name} on {self.target} is not proven: {error}") from error
        journal.write("fault.injected", **fields, injecting_at=self.injected_at.isoformat(), evidence=evidence)

    def undo(self) -> None:
        """Revert the fault; from any state, any number of times."""
        fields = {"fault": self.name, "target": self.target, "broker": self.broker.id}
        self.broker.journal.write("fault.healing", **fields)
        self.revert()
        self.broker.journal.write("fault.undone", **fields)

    def __str__(self) -> str:
        return f"{self.name} on {self.target}"


F = TypeVar("F", bound=Fault)


@contextmanager
def injected(*faults: F) -> Iterator[F]:
    """Inject the faults in this order, and undo them in reverse order after the block, even after an error.

    Yields the first fault.
    """
    with ExitStack() as stack:
        for fault in faults:
            stack.callback(fault.undo)
            fault.inject()
        yield faults[0]
