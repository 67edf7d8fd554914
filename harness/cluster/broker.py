"""A broker: its node, its log dirs, and its answers to requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from harness import timeouts
from harness.cluster.log_dir import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, LogDir
from harness.cluster.nodes.node import Node
from harness.host.ports import HOST
from harness.host.undo import UndoLog
from harness.host.volume import Volume
from harness.journal import Journal, now
from harness.kafka.admin import Admin
from harness.kafka.config_requests import DynamicConfigs
from harness.kafka.connection import Connection
from harness.kafka.distribution import Distribution
from harness.kafka.mbeans import MBeans
from harness.kafka.metadata import ClusterState, LogDirState, ReplicaInDir
from harness.kafka.security import PLAINTEXT, Bootstrap, ClientSecurity
from harness.waiting import await_until, let_pass

WRITTEN_AT_STOP = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)
"""The checkpoint files that a broker writes as it stops (``ReplicaManager.shutdown``, ``LogManager.shutdown``)."""
_MARKER_CONFIG = "jbod.configured"
"""A dynamic config without any effect; see :meth:`Broker.configure`."""


def config_change_pattern(broker: int) -> str:
    """A regular expression for the line that a broker logs when it learns of a change of its dynamic configs.

    ``DynamicConfigPublisher`` writes it in KRaft, ``ZkConfigManager`` in ZooKeeper mode.
    """
    return rf"Updating node {broker} with new configuration|Processing override for entityPath: brokers/{broker}\b"


class Broker:
    """A broker of the cluster under test.

    :ivar port: the port for the harness and clients
    :ivar bootstrap: this broker alone, for clients of the harness's own user
    :ivar mbeans: None if the spec has ``mbeans=False``
    :ivar started_at: when its process was last started
    """

    def __init__(
        self,
        *,
        id: int,
        node: Node,
        mbeans: MBeans | None,
        port: int,
        log_dirs: Mapping[Path, Volume | None],
        journal: Journal,
        undo_log: UndoLog,
        registration_ttl_s: float,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self.id = id
        self.journal = journal
        self.undo_log = undo_log
        self.node = node
        self.mbeans = mbeans
        self.port = port
        self.bootstrap = Bootstrap(addresses=f"{HOST}:{port}", security=security)
        self.log_dirs = tuple(LogDir(self, path, volume) for path, volume in log_dirs.items())
        self.log = node.log
        self.started_at: datetime = now()
        self._registration_ttl_s = registration_ttl_s
        self._killed_at: float | None = None
        self._paused = False
        self._had: dict[str, dict[str, int]] = {}
        self.admin = Admin(self.new_connection())

    def new_connection(
        self, timeout_s: float = timeouts.REQUEST_S, security: ClientSecurity | None = None
    ) -> Connection:
        """Another connection than that of :attr:`admin`: a connection waits for each answer before the next request.

        :param security: that of another user; None: the harness's own
        """
        return Connection(HOST, self.port, timeout_s, security or self.bootstrap.security)

    # --- lifecycle ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; :meth:`harness.cluster.cluster.Cluster.await_healthy` waits until the broker is ready."""
        if self._killed_at is not None:
            let_pass(self._registration_ttl_s, since=self._killed_at)
        self._killed_at = None
        found = self._replicas_on_disk()
        for path, marks in self._had.items():  # the broker may have lost a checkpoint as it shut down
            kept = found.get(path, {})
            kept.update((name, max(mark, kept[name])) for name, mark in marks.items() if name in kept)
        self._had = {}
        self.started_at = self.journal.write(
            "replicas.found", broker=self.id, log_dirs=found, marked_clean=self._marked_clean()
        )
        self.node.start()

    def stop(self) -> None:
        """Shut down in a controlled way (SIGTERM)."""
        self._had = self._replicas_on_disk()
        was_alive = self.is_alive
        self.node.stop(timeouts.STOP_S)
        self._paused = False
        if was_alive:  # or a scenario may have changed the log dirs since the end
            self._note_what_is_left()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._had = self._replicas_on_disk()
        self.node.kill()
        self._paused = False
        self._killed_at = time.monotonic()

    def pause(self) -> None:
        """Suspend the process: it keeps its connections and answers no request."""
        self.node.pause()
        self._paused = True

    def resume(self) -> None:
        """Let the suspended process continue."""
        self.node.resume()
        self._paused = False

    def restart(self) -> None:
        """Shut down in a controlled way, then start."""
        self.stop()
        self.start()

    def use_log_dirs(self, *log_dirs: LogDir) -> None:
        """Set ``log.dirs`` to these, with effect from the next start."""
        self.log_dirs = log_dirs
        self.node.configure({"log.dirs": ",".join(str(log_dir.path) for log_dir in log_dirs)})

    def use_rack(self, rack: str | None) -> None:
        """Set ``broker.rack``, or remove it (None), with effect from the next start."""
        self.node.configure({"broker.rack": rack})

    @property
    def build(self) -> Distribution:
        """The build that it runs; see :attr:`.node.Node.build`."""
        return self.node.build

    def use_build(self, build: Distribution) -> None:
        """Run another build, with effect from the next start; see :meth:`.node.Node.use_build`."""
        self.node.use_build(build)

    def configure(self, configs: Mapping[str, str | None]) -> None:
        """Set dynamic configs, or remove them (None), and wait until they are in force.

        A broker logs a change before it applies it, and logs the next change only after it has applied this one. So a
        second change follows, which has no effect: once it is logged, the first one is in force.
        """
        self._set(configs)
        self._set({_MARKER_CONFIG: str(time.monotonic_ns())})
        self.journal.write("broker.configured", broker=self.id, configs=dict(configs))

    def configure_as(self, then: DynamicConfigs) -> None:
        """Remove the dynamic configs that are not in ``then``: the broker's own and the cluster-wide ones.

        :raises Refused: Kafka returns an error
        """
        has = self.admin.dynamic_configs(self.id)
        if more := has.of_all.keys() - then.of_all.keys():
            self.admin.set_broker_configs(None, dict.fromkeys(more))
        if more := has.own.keys() - then.own.keys():
            if set_by_cases := more - {_MARKER_CONFIG}:
                self.configure(dict.fromkeys(set_by_cases))
            self.admin.set_broker_configs(self.id, {_MARKER_CONFIG: None})

    def _set(self, configs: Mapping[str, str | None]) -> None:
        """Set dynamic configs, and wait until the broker logs that it learned of a change.

        The line lists the configs that are set after the change, so it does not name one that was removed.
        """
        since = now()
        self.admin.set_broker_configs(self.id, configs)
        await_until(
            lambda: self.log.first(config_change_pattern(self.id), since=since),
            timeout_s=timeouts.REQUEST_S,
            what=f"{self} to log the change of its configs to {dict(configs)}",
            watch=self.node.check_alive,
        )

    def _replicas_on_disk(self) -> dict[str, dict[str, int]]:
        return {str(log_dir.path): log_dir.replicas_on_disk() for log_dir in self.log_dirs}

    def _marked_clean(self) -> list[str]:
        return [str(log_dir.path) for log_dir in self.log_dirs if log_dir.is_marked_clean()]

    def _note_what_is_left(self) -> None:
        """Write into the journal what the stopped broker left in its log dirs."""
        written, points = {}, {}
        for log_dir in self.log_dirs:
            with suppress(OSError, ValueError):
                times = {file: log_dir.written_at(file) for file in WRITTEN_AT_STOP}
                points[str(log_dir.path)] = log_dir.recovery_points()
                written[str(log_dir.path)] = times
        left = {"marked_clean": self._marked_clean(), "written": written, "recovery_points": points}
        self.journal.write("log_dirs.left", broker=self.id, exit_code=self.node.exit_code(), **left)

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, running or paused."""
        return self.node.is_alive()

    @property
    def is_running(self) -> bool:
        """Whether the process runs and is not paused, so that it can answer."""
        return self.is_alive and not self._paused

    # --- answers ----------------------------------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterState:
        """The cluster as this broker sees it."""
        return self.admin.describe_cluster()

    def describe_log_dirs(self) -> tuple[LogDirState, ...]:
        """The broker's log dirs, from DescribeLogDirs."""
        return self.admin.describe_log_dirs()

    def find_replica(
        self, topic: str, partition: int, *, is_future: bool = False
    ) -> tuple[LogDir, ReplicaInDir] | None:
        """The replica on this broker and its log dir, from DescribeLogDirs; None if there is none.

        :param is_future: look for the future replica instead
        """
        return self.find_replicas(is_future=is_future).get((topic, partition))

    def find_replicas(self, *, is_future: bool = False) -> dict[tuple[str, int], tuple[LogDir, ReplicaInDir]]:
        """All replicas on this broker and their log dirs, by topic and partition; see :meth:`find_replica`."""
        log_dirs = {str(log_dir.path): log_dir for log_dir in self.log_dirs}
        return {
            (replica.topic, replica.partition): (log_dirs[state.path], replica)
            for state in self.describe_log_dirs()
            for replica in state.replicas
            if replica.is_future == is_future
        }

    def log_dir_of(self, topic: str, partition: int) -> LogDir | None:
        """The log dir of the current replica, from DescribeLogDirs; None if there is none."""
        found = self.find_replica(topic, partition)
        return found and found[0]

    def __str__(self) -> str:
        return f"broker {self.id}"

    def __repr__(self) -> str:
        return f"<broker {self.id} at {self.bootstrap}>"
