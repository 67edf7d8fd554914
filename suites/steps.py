"""What several suites do in the same words: steps of a scenario that are claims in themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from faults.base import injected
from faults.broker import BrokerKilled
from faults.log_dir import LogDirFault
from harness import timeouts
from harness.broker import Broker
from harness.cluster import Cluster
from harness.errors import Inconclusive, PromiseBroken
from harness.journal import now
from harness.log_dir import LogDir
from harness.quorum.kraft import KRaftQuorum
from harness.reassign import Placement, execute, verify
from harness.tools import tool_command
from harness.topic import Topic
from harness.versions import Tool
from harness.waiting import await_until
from harness.workload import CaseWorkload
from suites.checks import check_no_remains, check_noticed
from suites.model import World


@contextmanager
def failed(world: World, *faults: LogDirFault) -> Iterator[LogDirFault]:
    """Log dirs have failed inside the block: all sources say what the model then does, and each broker that it noticed.

    Yields the first fault.
    """
    with injected(*faults):
        for fault in faults:
            world.log_dir_failed(fault.log_dir)
        world.check()
        for fault in faults:
            check_noticed(fault)
        yield faults[0]


def reassign(cluster: Cluster, world: World, *placements: Placement, timeout_s: float = timeouts.MOVE_S) -> None:
    """Replicas are moved with Kafka's own tool, which is asked until it says that all are where they should be.

    Afterwards all sources say so too, and no broker has a second copy of anything, or remains of one.

    :raises PromiseBroken: they did not come there in time; with the tool's words
    """
    execute(cluster, *placements)
    await_reassigned(cluster, world, *placements, timeout_s=timeout_s)


def await_reassigned(cluster: Cluster, world: World, *placements: Placement, timeout_s: float) -> None:
    """What was begun with :func:`harness.reassign.execute` comes to its end, as :func:`reassign` has it."""
    await_until(
        lambda: verify(cluster, *placements),
        lambda unfinished: not unfinished,
        timeout_s=timeout_s,
        what=f"kafka-reassign-partitions --verify to say that all is done: {'; '.join(map(str, placements))}",
        failure=PromiseBroken,
    )
    for placement in placements:
        partition = placement.partition
        chosen = [place if isinstance(place, LogDir) else partition.log_dir_on(place) for place in placement.on]
        world.reassigned(partition, chosen)
    world.check()
    check_no_remains(cluster, {placement.partition.topic for placement in placements})


def replace_by_empty_disk(log_dir: LogDir) -> None:
    """What an operator does with a dead disk: there is an empty one in its place afterwards. Its broker must be down.

    No fault, and never undone: the old disk is gone.
    """
    assert not log_dir.broker.is_alive
    log_dir.path.rename(log_dir.path.with_name(f"{log_dir.path.name}.old"))
    log_dir.broker.node.make_dir(log_dir.path)
    log_dir.broker.journal.write("disk.replaced", log_dir=str(log_dir))


def format_new_dirs(cluster: Cluster, broker: Broker) -> None:
    """``kafka-storage format --ignore-formatted``, which KRaft asks for after a disk was replaced.

    :raises PromiseBroken: it refuses
    """
    assert isinstance(cluster.quorum, KRaftQuorum)
    cluster_id, config = cluster.quorum.cluster_id, str(broker.node.config)
    arguments = ("format", "--ignore-formatted", "-t", cluster_id, "-c", config)
    done = broker.node.run_as_user(tool_command(cluster.distribution, Tool.STORAGE, *arguments))
    if done.returncode:
        raise PromiseBroken(f"kafka-storage format --ignore-formatted: {(done.stderr or done.stdout).strip()}")
    broker.journal.write("disk.formatted", broker=broker.id, said=done.stdout.strip()[-300:])


def write_as_a_stranger(topic: Topic, count: int) -> None:
    """Records that no producer of the run sent: whoever is handed one of them later was handed what should be gone."""
    client = Producer({"bootstrap.servers": topic.cluster.bootstrap, "acks": "all"})
    for number in range(count):
        client.produce(topic.name, f"stranger {number}".encode(), partition=number % len(topic))
    left = client.flush(timeouts.PROGRESS_S)
    if left:
        raise Inconclusive(f"{left} of {count} records could not be written to {topic}")


def check_serves_alone(cluster: Cluster, workload: CaseWorkload, world: World, broker: Broker, topic: Topic) -> None:
    """With all other brokers killed, this one leads the topic, and clients that know no other get through.

    "Now validate that the previous leader can still serve replicas on the good log directories" (KIP-112's test plan).
    The others are started again afterwards; the model goes on without them, so this is the last step before healing.
    """
    others = cluster.others(broker)
    with injected(*map(BrokerKilled, others)):
        world.broker_gone(*others)
        world.check()
        with workload.running(topic, via=broker) as pair:
            pair.await_progress(after=now())


def make_leader(cluster: Cluster, world: World, broker: Broker) -> None:
    """Let this broker lead all that it has on good log dirs: the others are killed and started again, and follow it.

    What is drained afterwards is what is on this broker's disks.
    """
    others = cluster.others(broker)
    with injected(*map(BrokerKilled, others)):
        world.broker_gone(*others)
        world.check()
    for other in others:
        world.broker_back(other)
    world.check(timeouts.RECOVERY_S)
