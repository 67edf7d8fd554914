"""Watches the cluster through every broker's eyes and writes each change into the journal.

One thread asks some twenty times a second for metadata, the live brokers in turn: they are told of a change at about
the same time, and each question costs a busy machine a millisecond. What it writes (``partition.changed``,
``brokers.changed``) dates leader moves to about 0.05 s, by whichever broker knew first, without any scenario having to
look; what one of them sees it dates to so much for each broker. It is what a timeline of the run is drawn from. A
broker's answer counts only where it is newer than what is known: a higher leader epoch, or the same epoch seen by the
same broker with another ISR or other offline replicas; or of a topic that was made again under its name, which begins
with the first epoch.

Another asks every live node's MBeans once a second (``mbeans.changed``): what an operator's monitoring would have
shown. A thread of its own, because an agent takes up to 50 ms for an answer, and one in a hung JVM a second.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from harness.cluster.broker import Broker
from harness.errors import EngineGone
from harness.journal import Journal
from harness.kafka.admin import Admin
from harness.kafka.connection import Connection, NoAnswer
from harness.kafka.mbeans import MBeans
from harness.kafka.metadata import PartitionState

_EVERY_S = 0.04
_ANSWER_S = 1.0
_MBEANS_EVERY_S = 1.0


class _WatchingThread(ABC):
    """One that asks until it is stopped."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._journal = journal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    @property
    def is_watching(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """No more questions to anybody; also where it never began."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...


class Watcher(_WatchingThread):
    """The thread that watches one cluster's metadata."""

    def __init__(self, brokers: Sequence[Broker], journal: Journal) -> None:
        super().__init__("jbod-watcher", journal)
        self._brokers: list[Broker] = []
        # Connections of its own: a watcher that waits for a hung broker must not hold up the scenario.
        self._connections: dict[int, Connection] = {}
        for broker in brokers:
            self.watch(broker)
        self._seen: dict[tuple[int, str, int], PartitionState] = {}
        self._newest: dict[tuple[str, int], PartitionState] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._deleted: set[str] = set()

    def watch(self, broker: Broker) -> None:
        """Look through this broker's eyes too."""
        self._connections[broker.id] = Connection(*_split(broker.bootstrap), timeout_s=_ANSWER_S)
        self._brokers.append(broker)

    def stop(self) -> None:
        """No more questions to any broker; also where it never began."""
        super().stop()
        for connection in self._connections.values():
            connection.close()

    def _run(self) -> None:
        with contextlib.suppress(EngineGone):  # whoever acts on the cluster says so
            turn = 0
            while not self._stop.wait(_EVERY_S):
                if alive := [broker for broker in self._brokers if broker.is_alive]:
                    self._poll(alive[turn % len(alive)])
                turn += 1

    def _poll(self, broker: Broker) -> None:
        try:
            cluster = Admin(self._connections[broker.id]).describe_cluster()
        except NoAnswer:
            return
        if cluster.brokers != self._members.get(broker.id):
            self._members[broker.id] = cluster.brokers
            self._journal.write("brokers.changed", seen_by=broker.id, brokers=cluster.brokers)
        for state in cluster.partitions:
            key = (state.topic, state.partition)
            if self._seen.get((broker.id, *key)) == state:
                continue
            self._seen[broker.id, *key] = state
            newest = self._newest.get(key)
            if newest is not None and newest.topic_id != state.topic_id and state.topic_id not in self._deleted:
                self._deleted.add(newest.topic_id)
                newest = None
            if state.topic_id in self._deleted:
                continue  # this broker has yet to hear that there is another topic of that name
            if newest is None or (state != newest and state.leader_epoch >= newest.leader_epoch):
                self._newest[key] = state
                self._journal.write(
                    "partition.changed",
                    topic=state.topic,
                    partition=state.partition,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    isr=sorted(state.isr),
                    offline_replicas=state.offline_replicas,
                    seen_by=broker.id,
                )


class MBeanWatcher(_WatchingThread):
    """The thread that watches the MBeans of one cluster's nodes."""

    def __init__(self, journal: Journal) -> None:
        super().__init__("jbod-mbeans", journal)
        self._nodes: Mapping[str, tuple[MBeans, Callable[[], bool]]] = {}
        self._known: dict[str, Mapping[str, int | None]] = {}

    def watch(self, name: str, mbeans: MBeans, runs: Callable[[], bool]) -> None:
        """Ask this node too, while it runs."""
        self._nodes = {**self._nodes, name: (mbeans, runs)}  # the thread may be walking through the old one

    def _run(self) -> None:
        while not self._stop.wait(_MBEANS_EVERY_S):
            for name, (mbeans, runs) in self._nodes.items():
                if not self._stop.is_set():
                    self._note(name, self._ask(mbeans) if runs() else {})

    @staticmethod
    def _ask(mbeans: MBeans) -> Mapping[str, int]:
        try:
            return mbeans.counts(_ANSWER_S)
        except NoAnswer:
            return {}

    def _note(self, name: str, found: Mapping[str, int]) -> None:
        """Write what changed; a count that the node no longer gives is null."""
        before = self._known.get(name, {})
        values: Mapping[str, int | None] = {**dict.fromkeys(before), **found}
        if values != before:
            self._known[name] = values
            changed = {key: value for key, value in values.items() if key not in before or before[key] != value}
            self._journal.write("mbeans.changed", node=name, values=changed)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
