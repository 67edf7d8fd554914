"""ZooKeeper mode: one ZooKeeper server; one of the brokers is the controller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NotRequired, TypedDict

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from harness import timeouts
from harness.cluster.nodes.node import SERVICE, Backend, NodeSpec
from harness.cluster.profile import FAST, Profile
from harness.cluster.security import UNPROTECTED, ClusterSecurity
from harness.host.ports import HOST
from harness.host.volume import Volume
from harness.kafka.admin import Admin
from harness.kafka.connection import NoAnswer
from harness.kafka.distribution import Distribution
from harness.kafka.tool_answers import DescribedPartition, Key
from harness.kafka.tools_jvm import tool_lines
from harness.kafka.versions import Mode, Tool

_ZOOKEEPER = "zookeeper"
_CONNECT_S = 15.0
# Znodes with a child for each topic, and znodes that exist during an operation (kafka.zk.ZkData).
_TOPIC_PARENTS = (
    "/brokers/topics",
    "/config/topics",
    "/admin/delete_topics",
    "/isr_change_notification",
    "/log_dir_event_notification",
)
_IN_PROGRESS = ("/admin/reassign_partitions", "/admin/preferred_replica_election")


class BrokerZnode(TypedDict):
    """The data of ``/brokers/ids/<id>``, as far as it is used (``kafka.zk.BrokerIdZNode``)."""

    version: int
    rack: NotRequired[str | None]


class ZooKeeperQuorum:
    """One ZooKeeper server; see :class:`harness.cluster.quorum.quorum.Quorum`.

    :ivar connect: its address for the harness
    :ivar address: its address for Kafka's nodes
    """

    mode = Mode.ZK

    def __init__(
        self,
        *,
        work_dir: Path,
        backend: Backend,
        main_class: str,
        profile: Profile = FAST,
        security: ClusterSecurity = UNPROTECTED,
    ) -> None:
        """:param main_class: of the build's ZooKeeper server"""
        self._main_class = main_class
        self._security = security
        self._profile = profile
        # A broker's registration is an ephemeral znode, and sessions end at a tick.
        self.registration_ttl_s = (profile.session_ms(Mode.ZK) + profile.zookeeper_tick_ms) / 1000
        self._data_dir = work_dir / "zookeeper-data"
        self._endpoint = backend.endpoint(_ZOOKEEPER, SERVICE)
        self.connect = f"{HOST}:{self._endpoint.port}"
        self.address = self._endpoint.address

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """The ZooKeeper server."""
        host, _, port = self._endpoint.address.rpartition(":")
        return (
            NodeSpec(
                name=_ZOOKEEPER,
                main_class=self._main_class,
                is_kafka=False,
                properties={
                    "dataDir": str(self._data_dir),
                    "clientPort": port,
                    "clientPortAddress": host,
                    "admin.enableServer": "false",
                    "maxClientCnxns": "0",
                    "tickTime": str(self._profile.zookeeper_tick_ms),
                },
            ),
        )

    def dirs(self) -> tuple[Path, ...]:
        """ZooKeeper's data dir."""
        return (self._data_dir,)

    def broker_settings(self, broker_id: int, listeners: Mapping[str, str]) -> Mapping[str, str]:
        """Id, ZooKeeper's address, and the profile's settings of this mode."""
        return {
            "broker.id": str(broker_id),
            "zookeeper.connect": self.address,
            **self._profile.of_mode[Mode.ZK],
            "zookeeper.connection.timeout.ms": "60000",
            **self._security.node_settings(f"broker-{broker_id}", Mode.ZK),
            **listeners,
        }

    def broker_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """Return no folder: brokers need none besides their log dirs."""
        return ()

    def volumes(self) -> tuple[Volume, ...]:
        """Return no volume."""
        return ()

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Do nothing: brokers write their meta.properties themselves."""

    def format_broker(self, broker_id: int, dirs: Sequence[Path]) -> None:
        """Do nothing; see :meth:`format`."""

    @contextmanager
    def _client(self, timeout_s: float = _CONNECT_S) -> Iterator[KazooClient]:
        client = KazooClient(self.connect)
        client.start(timeout_s)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def add_users(self, distribution: Distribution, passwords: Mapping[str, str]) -> None:
        """Add users before the brokers start, which log in as one of them; ZooKeeper must have been started.

        :param passwords: by user
        """
        with self._client(timeouts.BOOT_S):
            for user, password in passwords.items():
                change = ("--alter", "--add-config", f"SCRAM-SHA-512=[password={password}]")
                target = ("--entity-type", "users", "--entity-name", user)
                tool_lines(distribution, Tool.CONFIGS, "--zookeeper", self.connect, *change, *target)

    @contextmanager
    def log_dir_events(self) -> Iterator[LogDirEvents]:
        """Watch the notifications of failed log dirs that brokers send inside the block (KIP-112, "Zookeeper")."""
        with self._client() as client:
            yield LogDirEvents(client, self._data_dir)

    def controller_znode(self) -> ControllerZnode:
        """The znode that makes a broker the controller."""
        return ControllerZnode(self.connect)

    def cluster_id(self) -> str:
        """The cluster's id, which the first broker generated."""
        with self._client() as client:
            return str(json.loads(client.get("/cluster/id")[0])["id"])

    def delete(self, path: str) -> str | None:
        """Delete a znode, as ``zookeeper-shell`` does; returns its data, None if there is no such znode."""
        with self._client() as client:
            try:
                data, _ = client.get(path)
                client.delete(path, recursive=True)
            except NoNodeError:
                return None
        return str(data, "utf-8")

    def registrations(self) -> dict[int, BrokerZnode]:
        """The data of each registered broker's znode, by broker id."""
        with self._client() as client:
            return {
                int(id): json.loads(client.get(f"/brokers/ids/{id}")[0]) for id in client.get_children("/brokers/ids")
            }

    def partitions(self) -> dict[Key, DescribedPartition]:
        """Every partition, from the topics' and the partitions' znodes (``TopicZNode``, ``TopicPartitionStateZNode``).

        :raises NoAnswer: a partition has no state znode
        """
        found = {}
        with self._client() as client:
            for topic in client.get_children("/brokers/topics"):
                path = f"/brokers/topics/{topic}"
                try:
                    for index, replicas in json.loads(client.get(path)[0])["partitions"].items():
                        state = json.loads(client.get(f"{path}/partitions/{index}/state")[0])
                        found[topic, int(index)] = DescribedPartition(
                            leader=None if state["leader"] < 0 else state["leader"],
                            replicas=tuple(replicas),
                            isr=tuple(state["isr"]),
                        )
                except NoNodeError as error:
                    raise NoAnswer(f"ZooKeeper has no state of a partition of {topic}") from error
        return found

    def leftovers(self) -> list[str]:
        """Znodes of topics, of operations on them, and of notifications to the controller.

        :raises NoAnswer: ZooKeeper does not answer
        """
        found = []
        try:
            with self._client() as client:
                for parent in _TOPIC_PARENTS:
                    if client.exists(parent):
                        found += [f"ZooKeeper has {parent}/{name}" for name in client.get_children(parent)]
                found += [f"ZooKeeper has {path}" for path in _IN_PROGRESS if client.exists(path)]
        except (KazooException, KazooTimeoutError) as error:
            raise NoAnswer(f"ZooKeeper does not list its znodes: {error!r}") from error
        return found

    def controller(self, admin: Admin) -> int | None:
        """The controller's broker id, from the Metadata response."""
        return admin.describe_cluster(topics=()).controller


class ControllerZnode:
    """The ephemeral znode ``/controller``: the broker that created it is the controller.

    The harness can replace it by one that names no broker. Then no broker is the controller, as if the controller hung
    and its session lived on. The znode is gone when the harness's session ends, also after ``kill -9``.
    """

    _PATH = "/controller"
    _NO_BROKER = 999_999

    def __init__(self, connect: str) -> None:
        self._client = KazooClient(connect)

    def take_over(self) -> None:
        """Replace the controller's znode in one transaction."""
        self._client.start()
        data = json.loads(self._client.get(self._PATH)[0])
        exchange = self._client.transaction()
        exchange.delete(self._PATH)
        exchange.create(self._PATH, json.dumps(data | {"brokerid": self._NO_BROKER}).encode(), ephemeral=True)
        exchange.commit()

    def is_taken_over(self) -> bool:
        """Whether the znode belongs to the harness's session."""
        stat = self._client.exists(self._PATH)
        return (
            stat is not None
            and self._client.client_id is not None
            and stat.owner_session_id == self._client.client_id[0]
        )

    def release(self) -> None:
        """End the harness's session, and so the znode; may be called twice."""
        self._client.stop()
        self._client.close()


class LogDirEvents:
    """The notification znodes ``/log_dir_event_notification/log_dir_event_N``, which exist for milliseconds.

    A watch on their parent shows that there was one. Its data comes from ZooKeeper's transaction log, because the
    controller may delete the znode before the watcher reads it (measured: one time in four).
    """

    _PARENT = "/log_dir_event_notification"
    # In a transaction: the path, the length of the data in four bytes, the data.
    _CREATED = re.compile(rb"/log_dir_event_notification/(log_dir_event_\d+).{4}(\{[^}]*\})", re.DOTALL)

    def __init__(self, client: KazooClient, data_dir: Path) -> None:
        self._client = client
        self._data_dir = data_dir
        self._before = set(self._all())
        self.changes = -1  # setting a watch calls it once
        client.ChildrenWatch(self._PARENT, self._changed)

    def _changed(self, _children: list[str]) -> None:
        self.changes += 1

    def seen(self) -> dict[str, object]:
        """The data of each new znode, by its name; empty until the watch has been called."""
        created = self._all() if self.changes > 0 else {}
        return {name: data for name, data in created.items() if name not in self._before}

    def left(self) -> list[str]:
        """The znodes that exist now."""
        return sorted(self._client.get_children(self._PARENT))

    def _all(self) -> dict[str, object]:
        logs = sorted(self._data_dir.glob("version-2/log.*"))
        found = (match for log in logs for match in self._CREATED.finditer(log.read_bytes()))
        return {match[1].decode(): json.loads(match[2]) for match in found}
