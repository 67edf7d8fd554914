"""ZooKeeper mode: one ZooKeeper server; a broker is the controller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from harness.cluster.nodes.node import SERVICE, Backend, NodeSpec
from harness.host.ports import HOST
from harness.kafka.admin import Admin
from harness.kafka.connection import NoAnswer
from harness.kafka.tool_answers import DescribedPartition, Key
from harness.kafka.versions import Mode

_SESSION_MS = 4000  # with 2 s, one start in some hundreds on 2 busy cores ended with SessionExpiredException
_TICK_MS = 500
_ZOOKEEPER = "zookeeper"
# kafka.zk.ZkData
_OF_TOPICS = (
    "/brokers/topics",
    "/config/topics",
    "/admin/delete_topics",
    "/isr_change_notification",
    "/log_dir_event_notification",
)
_UNDER_WAY = ("/admin/reassign_partitions", "/admin/preferred_replica_election")


class ZooKeeperQuorum:
    """One ZooKeeper server; see :class:`harness.cluster.quorum.quorum.Quorum`.

    :ivar connect: where the harness reaches it
    """

    mode = Mode.ZK
    registration_ttl_s = (_SESSION_MS + _TICK_MS) / 1000  # ephemeral; sessions end at a tick (NodeExists)

    def __init__(self, *, work_dir: Path, backend: Backend, main_class: str) -> None:
        """:param main_class: of the build's ZooKeeper"""
        self._main_class = main_class
        self._data_dir = work_dir / "zookeeper-data"
        self._endpoint = backend.endpoint(_ZOOKEEPER, SERVICE)
        self.connect = f"{HOST}:{self._endpoint.port}"

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """The ZooKeeper server."""
        host, _, port = self._endpoint.address.rpartition(":")
        return (
            NodeSpec(
                name=_ZOOKEEPER,
                main_class=self._main_class,
                properties={
                    "dataDir": str(self._data_dir),
                    "clientPort": port,
                    "clientPortAddress": host,
                    "admin.enableServer": "false",
                    "maxClientCnxns": "0",
                    # Sessions last 2 to 20 ticks; brokers ask for 4 s (broker_settings).
                    "tickTime": str(_TICK_MS),
                },
            ),
        )

    def dirs(self) -> tuple[Path, ...]:
        """ZooKeeper's own data dir."""
        return (self._data_dir,)

    def broker_settings(self, broker_id: int, listeners: Mapping[str, str]) -> Mapping[str, str]:
        """Id, ZooKeeper's address, and a session so short that a dead broker is missed after 4 s (default: 18 s)."""
        return {
            "broker.id": str(broker_id),
            "zookeeper.connect": self._endpoint.address,
            "zookeeper.session.timeout.ms": str(_SESSION_MS),
            "controlled.shutdown.retry.backoff.ms": "500",  # 5 s by default; a KRaft broker asks with its heartbeats
            "zookeeper.connection.timeout.ms": "60000",
            **listeners,
        }

    def broker_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """None."""
        return ()

    def format(self, broker_dirs: Mapping[int, tuple[Path, ...]]) -> None:
        """Nothing: brokers write their meta.properties themselves."""

    def format_broker(self, broker_id: int, dirs: Sequence[Path]) -> None:
        """Nothing, likewise."""

    @contextmanager
    def _client(self) -> Iterator[KazooClient]:
        client = KazooClient(self.connect)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    @contextmanager
    def log_dir_events(self) -> Iterator[LogDirEvents]:
        """Watches, inside the block, what brokers tell the controller of failed log dirs (KIP-112, "Zookeeper")."""
        with self._client() as client:
            yield LogDirEvents(client, self._data_dir)

    def controller_znode(self) -> ControllerZnode:
        """By which brokers are kept from being the controller."""
        return ControllerZnode(self.connect)

    def registrations(self) -> dict[int, dict[str, Any]]:
        """What each registered broker's znode says, ``/brokers/ids/<id>`` (``kafka.zk.BrokerIdZNode``)."""
        with self._client() as client:
            return {
                int(id): json.loads(client.get(f"/brokers/ids/{id}")[0]) for id in client.get_children("/brokers/ids")
            }

    def partitions(self) -> dict[Key, DescribedPartition]:
        """Every partition, as its topic's znode and its own have it (``TopicZNode``, ``TopicPartitionStateZNode``).

        :raises NoAnswer: one has no state yet, or not any more
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
        """Znodes of topics, of what is to be done with them, and of what brokers tell the controller.

        :raises NoAnswer: ZooKeeper doesn't say
        """
        found = []
        try:
            with self._client() as client:
                for parent in _OF_TOPICS:
                    if client.exists(parent):
                        found += [f"ZooKeeper has {parent}/{name}" for name in client.get_children(parent)]
                found += [f"ZooKeeper has {path}" for path in _UNDER_WAY if client.exists(path)]
        except (KazooException, KazooTimeoutError) as error:
            raise NoAnswer(f"ZooKeeper does not say what is left in it: {error!r}") from error
        return found

    def controller(self, admin: Admin) -> int | None:
        """The controller's broker, as Metadata has it."""
        return admin.describe_cluster(topics=()).controller


class ControllerZnode:
    """The ephemeral znode ``/controller``: whoever made it is the controller, and all others wait until it is gone.

    Taken by the harness it names no broker: there is no controller then, as with one that hangs and whose session lives
    on. It goes with the harness's own session, also when that is killed.
    """

    _PATH = "/controller"
    _NOBODY = 999_999

    def __init__(self, connect: str) -> None:
        self._client = KazooClient(connect)

    def take_over(self) -> None:
        """Put another znode in the place of the controller's, with nothing in between."""
        self._client.start()
        says = json.loads(self._client.get(self._PATH)[0])
        exchange = self._client.transaction()
        exchange.delete(self._PATH)
        exchange.create(self._PATH, json.dumps(says | {"brokerid": self._NOBODY}).encode(), ephemeral=True)
        exchange.commit()

    def is_taken_over(self) -> bool:
        """Whether the znode that is there is of the harness's session."""
        stat = self._client.exists(self._PATH)
        return (
            stat is not None
            and self._client.client_id is not None
            and stat.owner_session_id == self._client.client_id[0]
        )

    def release(self) -> None:
        """End the session, and so the znode; also twice."""
        self._client.stop()
        self._client.close()


class LogDirEvents:
    """The notification znodes ``/log_dir_event_notification/log_dir_event_N``, which live for milliseconds.

    That there was one is seen by a watch on their parent. What it said is read from ZooKeeper's own transaction log:
    whoever is told by the watch and then asks comes too late when the controller was quicker (measured: once in four).
    """

    _PARENT = "/log_dir_event_notification"
    # A transaction has the path, four bytes with the data's length, the data.
    _CREATED = re.compile(rb"/log_dir_event_notification/(log_dir_event_\d+).{4}(\{[^}]*\})", re.DOTALL)

    def __init__(self, client: KazooClient, data_dir: Path) -> None:
        self._client = client
        self._data_dir = data_dir
        self._before = set(self._all())
        self.changes = -1  # a watch is called once when it is set
        client.ChildrenWatch(self._PARENT, self._changed)

    def _changed(self, _children: list[str]) -> None:
        self.changes += 1

    def seen(self) -> dict[str, object]:
        """What each znode said that came since then, by its name; nothing until the watch has been called."""
        created = self._all() if self.changes > 0 else {}
        return {name: said for name, said in created.items() if name not in self._before}

    def left(self) -> list[str]:
        """The znodes that are there now."""
        return sorted(self._client.get_children(self._PARENT))

    def _all(self) -> dict[str, object]:
        logs = sorted(self._data_dir.glob("version-2/log.*"))
        found = (match for log in logs for match in self._CREATED.finditer(log.read_bytes()))
        return {match[1].decode(): json.loads(match[2]) for match in found}
