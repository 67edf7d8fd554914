"""Chooses the target of a fault by its current role."""

from __future__ import annotations

from harness.cluster.broker import Broker
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition


def leader_of(partition: Partition) -> Broker:
    """The broker that leads the partition."""
    return partition.leader()


def follower_of(partition: Partition) -> Broker:
    """The broker of the first follower in the order of the assignment; ``partition.followers()`` has all of them."""
    return partition.followers()[0]


def other_dir(log_dir: LogDir) -> LogDir:
    """The other log dir of a broker with two."""
    return next(each for each in log_dir.broker.log_dirs if each != log_dir)
