"""Who is to be hit, by role at this moment."""

from __future__ import annotations

from harness.cluster.broker import Broker
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition


def leader_of(partition: Partition) -> Broker:
    """The broker that leads the partition."""
    return partition.leader()


def follower_of(partition: Partition) -> Broker:
    """The first follower in the order of the assignment."""
    return partition.followers()[0]


def other_dir(log_dir: LogDir) -> LogDir:
    """The other of a broker's two log dirs."""
    return next(each for each in log_dir.broker.log_dirs if each != log_dir)
