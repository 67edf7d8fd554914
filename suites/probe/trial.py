"""The cluster of one broker on which a build is tried, and the table of tries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from confluent_kafka import Producer

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.nodes.node import Node
from harness.cluster.topic import Topic
from harness.errors import HarnessError
from harness.journal import now
from harness.kafka.admin import Admin, NewTopic
from harness.kafka.connection import Connection, NoAnswer
from harness.kafka.mbeans import MBeans
from harness.waiting import await_until

ONE_REPLICA = dict.fromkeys(
    (
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    ),
    "1",
)
"""The settings of a cluster of one broker."""
SOON_S = 10.0
"""Seconds that a healthy broker's immediate actions may take on a busy machine."""
TOPIC = "probe"
PARTITIONS = 4
RECORDS = 400
"""Of 12 kB each: more than a segment in each partition (1 MiB, the least that Kafka 4 accepts)."""


class Lacking(HarnessError):
    """The build lacks a dependency: it answered, and not as needed."""


@dataclass(kw_only=True)
class Trial:
    """The cluster, and what was done on it so far.

    :ivar since: the times of actions that logs may show, by name
    :ivar future: the future replica's folders of a held move
    :ivar spoke_secured: the version of each request to a broker with TLS, logins and ACLs, by its name
    """

    cluster: Cluster
    began: datetime = field(default_factory=now)
    since: dict[str, datetime] = field(default_factory=dict)
    future: list[str] = field(default_factory=list)
    spoke_secured: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def connection(self) -> Connection:
        """A separate connection to the broker, which records the version of each request."""
        return self.broker.new_connection(SOON_S)

    @cached_property
    def admin(self) -> Admin:
        """The broker's admin client over that connection."""
        return Admin(self.connection)

    @property
    def broker(self) -> Broker:
        """The only broker."""
        return self.cluster.brokers[0]

    @property
    def controller(self) -> Node:
        """KRaft's only controller, or the broker's node."""
        return (*self.cluster.quorum_nodes, self.broker.node)[0] if self.is_kraft else self.broker.node

    @property
    def is_kraft(self) -> bool:
        """Whether the cluster is in KRaft mode."""
        return self.cluster.spec.mode == "kraft"

    @property
    def mbeans(self) -> MBeans:
        """The broker's MBeans."""
        assert self.broker.mbeans is not None
        return self.broker.mbeans

    @cached_property
    def topic(self) -> Topic:
        """A topic with some records in each partition, and with some closed segments."""
        self.since["topic"] = now()
        configs = {"segment.bytes": "20000"} if not self.is_kraft else {"segment.bytes": str(1 << 20)}
        self.admin.create_topics([NewTopic(name=TOPIC, partitions=PARTITIONS, replicas=1, configs=configs)])
        topic = Topic(self.cluster, TOPIC, PARTITIONS)
        await_until(
            lambda: [p for p in self.admin.describe_cluster([TOPIC]).partitions if p.leader is not None],
            lambda led: len(led) == PARTITIONS,
            timeout_s=SOON_S,
            what=f"all partitions of topic {TOPIC} to have a leader",
            retry_on=(NoAnswer,),
        )
        client = Producer({**self.broker.bootstrap.librdkafka, "acks": "all", "batch.size": 16384})
        for number in range(RECORDS):
            client.produce(TOPIC, f"probe {number}".ljust(12_000), partition=number % PARTITIONS)
        await_until(
            lambda: client.flush(1.0),
            lambda left: left == 0,
            timeout_s=SOON_S,
            what=f"all of {RECORDS} records to be acked, with none left",
            failure=Lacking,
        )
        return topic

    def logged(self, pattern: str, since: datetime | None = None, node: Node | None = None) -> str:
        """Wait for a line in a node's log that matches; returns it.

        :param node: default: the broker's node
        :raises AwaitTimeout: no line matches in time
        """
        log = (node or self.broker.node).log
        line = await_until(
            lambda: log.first(pattern, since=since or self.began),
            timeout_s=SOON_S,
            what=f"{(node or self.broker.node).spec.name} to log /{pattern}/",
        )
        assert line is not None
        return line.text.partition("\n")[0][:200]


Try = Callable[[Trial], str]
"""Tries one dependency, and returns what it saw; any error means that the build lacks it."""

TRIES: dict[str, Try] = {}
"""The tries by the id of the dependency; those of one module run in this order."""


def tries(id: str) -> Callable[[Try], Try]:
    """Mark a function as the try of this dependency."""

    def enter(function: Try) -> Try:
        TRIES[id] = function
        return function

    return enter
