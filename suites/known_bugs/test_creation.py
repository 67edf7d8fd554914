"""Shows a bug of Kafka with replicas that are created half (KIP-112): KAFKA-13468.

Builds with ZooKeeper have it, so it is a declared deviation. In KRaft the error also ends the handling of a metadata
change. But then other brokers report the log dirs of their replicas. This changes the partitions once more, and the
broker creates its replicas. KNOWN_BUGS.md has the builds.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from faults.base import injected
from faults.file_system import NoInodes
from faults.targets import other_dir
from harness.cluster.broker import Broker
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Topic
from harness.errors import Inconclusive, PromiseBroken
from harness.kafka.admin import NewTopic
from harness.kafka.answers import Refused
from harness.kafka.connection import NoAnswer
from harness.timeouts import RECOVERY_S
from harness.waiting import await_until, let_pass
from suites.checks import check_noticed, promised
from suites.deviations import CREATION_ERROR_STOPS_OTHERS
from suites.known_bugs.patience import LEAST_S
from suites.on_disk import check_no_replica_twice
from suites.scenario import scenario
from suites.state_check import StateCheck
from suites.steps import delete_by_hand, one_partition_per_log_dir

FOLLOWED = 3
"""The number of replicas that are created on the good log dir. The broker follows in their partitions: it becomes the
leader of partitions first, and a follower of others then."""


class FewInodes(NoInodes):
    """Two inodes are free: a replica gets its folder and one file, and no second file.

    A checkpoint needs an inode for a moment. Two may be written at once, and none gets an error.
    """

    name = "few_inodes"
    LEFT = 2

    def _fill(self, filler: Path) -> int:
        before = len(list(filler.iterdir()))
        excess = max(0, self._free() - self.LEFT)
        for number in range(before, before + excess):
            (filler / str(number)).touch(exist_ok=False)
        return excess

    def proof(self) -> str | None:
        """The free inodes and blocks that the file system reports, since no write should fail yet."""
        free, blocks = self._free(), os.statvfs(self.volume.path).f_bavail
        return f"{free} inodes and {blocks} blocks free" if free == self.LEFT and blocks else None

    def _free(self) -> int:
        """The inodes that are free while no checkpoint is written."""
        seen = []
        for _ in range(10):
            seen.append(os.statvfs(self.volume.path).f_favail)
            let_pass(0.02)
        return max(seen)


def request_half_created(log_dir: LogDir, topic: Topic) -> None:
    """Create a topic: the first partition is to be led from this log dir, the others to be followed in the other one.

    All these replicas are requested before they exist (KIP-113).
    """
    victim, others = log_dir.broker, [broker.id for broker in topic.cluster.others(log_dir.broker)]
    places = [log_dir, *[other_dir(log_dir)] * FOLLOWED]
    for index, place in enumerate(places):
        with contextlib.suppress(Refused):  # the broker remembers the log dir, and refuses
            victim.admin.alter_replica_log_dir(topic.name, index, str(place.path))
    assignment = {index: [*others, victim.id] if index else [victim.id, *others] for index in range(len(places))}
    topic.cluster.request_topics(NewTopic(name=topic.name, assignment=assignment))


def await_later_topic(cluster: Cluster, victim: Broker) -> Topic:
    """Create another topic, and wait until the broker has its replica: it has then handled all earlier changes."""
    later = Topic(cluster, "later", 1)
    others = [broker.id for broker in cluster.others(victim)]
    cluster.request_topics(NewTopic(name=later.name, assignment={0: [*others, victim.id]}))
    await_until(
        lambda: victim.log_dir_of(later.name, 0),
        timeout_s=RECOVERY_S,
        what=f"{victim} to create a replica of {later}",
        retry_on=(NoAnswer,),
        failure=PromiseBroken,
    )
    return later


def await_created(log_dir: LogDir, topic: Topic) -> None:
    """Wait until the broker has created the replicas of all partitions but the first in this log dir.

    :raises PromiseBroken: it has not
    """
    await_until(
        lambda: [index for index in range(1, len(topic)) if log_dir.replica_dir(topic.name, index).is_dir()],
        lambda created: len(created) == FOLLOWED,
        timeout_s=LEAST_S,
        what=f"{log_dir.broker} to create the replicas 1 to {FOLLOWED} of {topic} in {log_dir}",
        failure=PromiseBroken,
    )


@scenario(
    "known-bugs/half-created",
    kip=112,
    plan="1. Topic gets created: the log directory is full once the replica has a folder",
    issue="KAFKA-13468",
    judged=False,
    deviations=(CREATION_ERROR_STOPS_OTHERS,),
    fresh=True,  # deleted topics free inodes late
    volumes="ext4",
    needs=NoInodes.needs,
)
def test_half_created(cluster: Cluster) -> None:
    """The inodes run out while a replica is created: the broker still creates the others, on its good log dir.

    After a restart with a good disk, the broker makes a whole replica of the half-created folder, or in its place.
    """
    orders = one_partition_per_log_dir(cluster)
    victim = cluster.brokers[0]
    log_dir, good = victim.log_dirs
    new = Topic(cluster, "new", 1 + FOLLOWED)
    with injected(FewInodes(log_dir)) as fault:
        request_half_created(log_dir, new)
        later = await_later_topic(cluster, victim)
        if not log_dir.replica_dir(new.name, 0).is_dir():
            raise Inconclusive(f"{victim} has not created the folder of {new[0]} in {log_dir}")
        with promised(cluster, unless=CREATION_ERROR_STOPS_OTHERS, seen=r"last seen: \[\]$"):
            await_created(good, new)
        check_noticed(fault)  # a checkpoint meets the error at the latest
        victim.stop()
    victim.start()
    cluster.await_healthy(failure=PromiseBroken)
    StateCheck(cluster, orders, new, later).check(RECOVERY_S)
    check_no_replica_twice(new)
    for stray in log_dir.path.glob("new-0.*-stray"):  # a folder without partition.metadata is kept for the operator
        delete_by_hand(victim, stray)
