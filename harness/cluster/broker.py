"""A broker: its node, its log dirs, and its answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from harness import timeouts
from harness.cluster.log_dir import LogDir
from harness.cluster.nodes.node import Node
from harness.host.ports import HOST
from harness.host.undo import UndoLog
from harness.host.volume import Volume
from harness.journal import Journal, now
from harness.kafka.admin import Admin, DynamicConfigs
from harness.kafka.connection import Connection
from harness.kafka.mbeans import MBeans
from harness.kafka.metadata import ClusterState, LogDirState, ReplicaInDir
from harness.waiting import await_until, let_pass

_HEARD = r"Updating node {id} with new configuration|Processing override for entityPath: brokers/{id}\b"
"""``DynamicConfigPublisher`` in KRaft, ``ZkConfigManager`` in ZooKeeper mode."""
_MEANINGLESS = "jbod.configured"


def config_change_pattern(broker: int) -> str:
    """A regular expression of what a broker logs that has heard of a change of its dynamic configs."""
    return _HEARD.format(id=broker)


class Broker:
    """One broker of the cluster under test.

    :ivar mbeans: None where the spec does without
    :ivar started_at: when it was last spawned
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
    ) -> None:
        self.id = id
        self.journal = journal
        self.undo_log = undo_log
        self.node = node
        self.mbeans = mbeans
        self.bootstrap = f"{HOST}:{port}"
        self.log_dirs = tuple(LogDir(self, path, volume) for path, volume in log_dirs.items())
        self.log = node.log
        self.started_at: datetime = now()
        self._registration_outlives_s = registration_ttl_s
        self._killed_at: float | None = None
        self._paused = False
        self._connection = Connection(HOST, port)
        self.admin = Admin(self._connection)

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Spawn the broker; :meth:`harness.cluster.cluster.Cluster.await_healthy` waits for it."""
        if self._killed_at is not None:
            let_pass(self._registration_outlives_s, since=self._killed_at)
        self._killed_at = None
        self.started_at = now()
        self.node.start()

    def stop(self) -> None:
        """A controlled shutdown (SIGTERM)."""
        self.node.stop(timeouts.STOP_S)
        self._paused = False

    def kill(self) -> None:
        """SIGKILL."""
        self.node.kill()
        self._paused = False
        self._killed_at = time.monotonic()

    def pause(self) -> None:
        """Stop it where it is: it holds its connections and answers nobody."""
        self.node.pause()
        self._paused = True

    def resume(self) -> None:
        """Let it go on."""
        self.node.resume()
        self._paused = False

    def restart(self) -> None:
        """A controlled shutdown, then a start."""
        self.stop()
        self.start()

    def use_log_dirs(self, *log_dirs: LogDir) -> None:
        """Have only these in its ``log.dirs`` from its next start on."""
        self.log_dirs = log_dirs
        self.node.configure({"log.dirs": ",".join(str(log_dir.path) for log_dir in log_dirs)})

    def use_rack(self, rack: str | None) -> None:
        """Be in this rack, or in none, from its next start on."""
        self.node.configure({"broker.rack": rack})

    def configure(self, configs: Mapping[str, str | None]) -> None:
        """Set some of its dynamic configs, or take them away (None), and wait until it has acted on them.

        A broker logs what was set before it acts on it, and what is set next only after it has: so something is set
        next that means nothing to it.
        """
        self._set(configs)
        self._set({_MEANINGLESS: str(time.monotonic_ns())})
        self.journal.write("broker.configured", broker=self.id, configs=dict(configs))

    def configure_as(self, then: DynamicConfigs) -> None:
        """Take those dynamic configs away that it did not have then, its own and those of all brokers.

        :raises Refused: with Kafka's error
        """
        has = self.admin.dynamic_configs(self.id)
        if more := has.of_all.keys() - then.of_all.keys():
            self.admin.set_broker_configs(None, dict.fromkeys(more))
        if more := has.own.keys() - then.own.keys():
            if set_by_cases := more - {_MEANINGLESS}:
                self.configure(dict.fromkeys(set_by_cases))
            self.admin.set_broker_configs(self.id, {_MEANINGLESS: None})

    def _set(self, configs: Mapping[str, str | None]) -> None:
        """Set them, and wait until it logs that it has heard of a change.

        It logs those that it then has: of one that was taken away, nothing.
        """
        since = now()
        self.admin.set_broker_configs(self.id, configs)
        await_until(
            lambda: self.log.first(config_change_pattern(self.id), since=since),
            timeout_s=timeouts.REQUEST_S,
            what=f"{self} to log that it has heard of {dict(configs)}",
            watch=self.node.check_alive,
        )

    @property
    def is_alive(self) -> bool:
        """Whether its process runs, or is paused."""
        return self.node.is_alive()

    @property
    def is_running(self) -> bool:
        """Whether its process runs, and so can be asked."""
        return self.is_alive and not self._paused

    # --- answers ----------------------------------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterState:
        """The cluster as this broker sees it."""
        return self.admin.describe_cluster()

    def describe_log_dirs(self) -> tuple[LogDirState, ...]:
        """Its log dirs as it describes them."""
        return self.admin.describe_log_dirs()

    def find_replica(
        self, topic: str, partition: int, *, is_future: bool = False
    ) -> tuple[LogDir, ReplicaInDir] | None:
        """Its replica and the log dir that holds it, as it says; None for none.

        :param is_future: look for the future replica, which a move creates in another log dir, and not for the replica
        """
        return self.find_replicas(is_future=is_future).get((topic, partition))

    def find_replicas(self, *, is_future: bool = False) -> dict[tuple[str, int], tuple[LogDir, ReplicaInDir]]:
        """As :meth:`find_replica`, all of them by topic and partition, asked for once."""
        log_dirs = {str(log_dir.path): log_dir for log_dir in self.log_dirs}
        return {
            (replica.topic, replica.partition): (log_dirs[state.path], replica)
            for state in self.describe_log_dirs()
            for replica in state.replicas
            if replica.is_future == is_future
        }

    def log_dir_of(self, topic: str, partition: int) -> LogDir | None:
        """Which of its log dirs holds the (current) replica, as it says; None for none."""
        found = self.find_replica(topic, partition)
        return found and found[0]

    def __str__(self) -> str:
        return f"broker {self.id}"

    def __repr__(self) -> str:
        return f"<broker {self.id} at {self.bootstrap}>"
