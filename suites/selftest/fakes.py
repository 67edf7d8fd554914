"""Fake clusters and parts of clusters: objects of the real classes, with only the attributes that a test sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.nodes.node import Node, NodeSpec
from harness.cluster.nodes.process import ProcessNode
from harness.cluster.spec import ClusterSpec
from harness.cluster.topic import Partition, Topic
from harness.journal import Journal, now
from harness.kafka.distribution import Distribution
from harness.kafka.metadata import ClusterState, LogDirState, PartitionState, ReplicaInDir
from harness.kafka.versions import KafkaVersion, Mode

T = TypeVar("T")


def fake(kind: type[T], **attributes: object) -> T:
    """An object of a class, made without its ``__init__``: its real methods see only these attributes.

    :param attributes: they also replace methods and properties of the class
    :raises TypeError: the class has no such attribute
    """
    known = set(dir(kind))
    for base in kind.__mro__:
        known.update(vars(base).get("__annotations__", {}))
        if code := getattr(vars(base).get("__init__"), "__code__", None):
            known.update(code.co_names)  # what __init__ assigns to self is among them
    if unknown := attributes.keys() - known:
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    members = {name: staticmethod(value) if callable(value) else value for name, value in attributes.items()}
    faked: type[T] = type(kind.__name__, (kind,), members)
    return faked.__new__(faked)


def fake_node(name: str = "broker-1", properties: Mapping[str, str] | None = None, **attributes: object) -> Node:
    """A node with these properties that has never run."""
    spec = NodeSpec(name=name, main_class="kafka.Kafka", properties=properties or {})
    return fake(ProcessNode, spec=spec, **attributes)


def fake_broker(id: int = 1, **attributes: object) -> Broker:
    """A broker of a build, with a journal in memory."""
    return fake(Broker, **{"id": id, "journal": Journal(None), "build": fake_distribution()} | attributes)


def fake_distribution(version: str = "4.3.1") -> Distribution:
    """A build without any jar."""
    return Distribution(version=KafkaVersion.parse(version), source="home", origin="", class_path=(), sha256="")


def fake_cluster(version: str = "4.3.1", mode: Mode = Mode.KRAFT, **attributes: object) -> Cluster:
    """A cluster of a build, with a journal in memory."""
    usual = {"distribution": fake_distribution(version), "spec": ClusterSpec(mode=mode), "journal": Journal(None)}
    return fake(Cluster, **usual | attributes)


def partition_of(topic: str, index: int = 0) -> Partition:
    """A partition of a cluster that answers nothing."""
    return Partition(fake_cluster(), topic, index)


def topic_of(name: str, partitions: int = 1) -> Topic:
    """A topic of a cluster that answers nothing."""
    return Topic(fake_cluster(), name, partitions)


def log_dir_at(path: Path, broker: Broker | None = None) -> LogDir:
    """A log dir with this path, of a broker that answers nothing unless one is given."""
    return LogDir(broker or fake_broker(), path)


def partition_state(topic: str, *replicas: int, index: int = 0, offline: tuple[int, ...] = ()) -> PartitionState:
    """A partition in its first leader epoch: all replicas but the offline ones are in the ISR, and the first leads."""
    isr = tuple(id for id in replicas if id not in offline)
    return PartitionState(
        topic=topic,
        partition=index,
        leader=isr[0] if isr else None,
        leader_epoch=0,
        replicas=replicas,
        isr=isr,
        offline_replicas=offline,
    )


def cluster_state(*partitions: PartitionState, brokers: tuple[int, ...] = (1, 2, 3)) -> ClusterState:
    """A cluster without racks, whose first broker is the controller."""
    return ClusterState(
        cluster_id="c", controller=1, brokers=brokers, racks=dict.fromkeys(brokers), partitions=partitions
    )


def replica_in_dir(
    topic: str, partition: int = 0, *, size: int = 0, offset_lag: int = 0, is_future: bool = False
) -> ReplicaInDir:
    """A replica, as a broker describes it."""
    return ReplicaInDir(topic=topic, partition=partition, size=size, offset_lag=offset_lag, is_future=is_future)


def log_dir_state(path: Path | str, *replicas: ReplicaInDir, error: str | None = None) -> LogDirState:
    """A log dir with these replicas, as a broker describes it."""
    return LogDirState(path=str(path), error=error, replicas=replicas)


def deviation_kinds(cluster: Cluster) -> list[str]:
    """The kinds of the cluster's events that note a deviation, oldest first."""
    return [event.kind for event in cluster.journal.events if event.kind.startswith("deviation.")]


def log_line(text: str) -> str:
    """A line of a broker's log from now, with a newline."""
    return f"[{now():%Y-%m-%d %H:%M:%S},999] ERROR {text} (kafka.log.LogManager)\n"
