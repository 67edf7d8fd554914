"""Watches the cluster's metadata and MBeans, and writes each change into the journal.

:class:`Watcher` asks the live brokers for metadata in turn, 25 times a second (``partition.changed``,
``brokers.changed``). If an answer takes longer, as that of thousands of partitions does, the pause is as long. All
brokers learn of a change at about the same time, and each request costs a busy machine a millisecond. So only one
broker is asked at a time. The time of a leader change is known to about 0.05 s. The time at which one particular broker
learned of it is known to 0.05 s times the number of brokers. An answer is written only if it is newer than the known
state:

* its leader epoch is higher, or the same with another ISR or other offline replicas;
* or the topic was created again under its name, with new epochs.

:class:`MBeanWatcher` asks every live node's MBeans once a second (``mbeans.changed``), as an operator's monitoring
does. It has its own thread, since an agent takes up to 50 ms to answer, and up to a second in a hung JVM.
"""

from __future__ import annotations

import contextlib
import threading
import time
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
    """A thread that polls until it is stopped."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._journal = journal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    @property
    def is_watching(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop polling, if the thread has started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...


class Watcher(_WatchingThread):
    """Watches the metadata of a cluster."""

    def __init__(self, brokers: Sequence[Broker], journal: Journal) -> None:
        super().__init__("jbod-watcher", journal)
        self._brokers: list[Broker] = []
        # Separate connections, so that a hung broker delays the watcher and not the scenario.
        self._connections: dict[int, Connection] = {}
        for broker in brokers:
            self.watch(broker)
        self._seen: dict[tuple[int, str, int], PartitionState] = {}  # last answer, by broker, topic, partition
        self._newest: dict[tuple[str, int], PartitionState] = {}  # by topic, partition
        self._members: dict[int, tuple[int, ...]] = {}  # the brokers that each broker sees
        self._deleted: set[str] = set()  # topic ids

    def watch(self, broker: Broker) -> None:
        """Poll this broker too."""
        self._connections[broker.id] = broker.new_connection(_ANSWER_S)
        self._brokers.append(broker)

    def stop(self) -> None:
        """Stop polling and close the connections."""
        super().stop()
        for connection in self._connections.values():
            connection.close()

    def _run(self) -> None:
        with contextlib.suppress(EngineGone):  # the scenario's next action reports it
            turn, took_s = 0, 0.0
            while not self._stop.wait(max(_EVERY_S, took_s)):
                began = time.monotonic()
                if alive := [broker for broker in self._brokers if broker.is_alive]:
                    self._poll(alive[turn % len(alive)])
                turn, took_s = turn + 1, time.monotonic() - began

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
                continue  # this broker does not know yet that the topic was deleted
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
    """Watches the MBeans of a cluster's nodes."""

    def __init__(self, journal: Journal) -> None:
        super().__init__("jbod-mbeans", journal)
        self._nodes: Mapping[str, tuple[MBeans, Callable[[], bool]]] = {}
        self._known: dict[str, Mapping[str, int | None]] = {}

    def watch(self, name: str, mbeans: MBeans, runs: Callable[[], bool]) -> None:
        """Poll this node too, while ``runs`` is true."""
        self._nodes = {**self._nodes, name: (mbeans, runs)}  # a new dict: the thread may be iterating over the old one

    def _run(self) -> None:
        while not self._stop.wait(_MBEANS_EVERY_S):
            for name, (mbeans, runs) in self._nodes.items():
                if not self._stop.is_set():
                    counts: Mapping[str, int] = {}
                    with contextlib.suppress(NoAnswer):
                        counts = mbeans.counts(_ANSWER_S) if runs() else {}
                    self._note(name, counts)

    def _note(self, name: str, found: Mapping[str, int]) -> None:
        """Write the counts that changed; null for a count that the node no longer gives."""
        before = self._known.get(name, {})
        values: Mapping[str, int | None] = {**dict.fromkeys(before), **found}
        if values != before:
            self._known[name] = values
            changed = {key: value for key, value in values.items() if key not in before or before[key] != value}
            self._journal.write("mbeans.changed", node=name, values=changed)
