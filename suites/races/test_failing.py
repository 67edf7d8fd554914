"""Holds the thread that takes a log dir offline, after another thread has met the log dir's error."""

from __future__ import annotations

from contextlib import ExitStack

from faults.base import injected
from faults.held import Held
from faults.log_dir import Chmod000
from harness.cluster.cluster import Cluster
from harness.cluster.topic import Partition
from harness.errors import PromiseBroken
from harness.kafka.versions import VersionRange
from suites.checks import check_refused
from suites.leadership import await_offline, led_in_same_log_dir
from suites.scenario import scenario
from suites.steps import write_untracked_records

PARTITIONS = 12
"""With one replica each: each of three brokers leads two of them in each of its two log dirs."""


@scenario(
    "races/written-after-error",
    kip=112,
    plan="2. A log directory stops working on a broker during runtime: it is not used after its first error",
    builds=VersionRange.parse(">=3.0.0"),  # before, only the log that met the error refused records (KAFKA-12575)
    judged=False,
    holds=True,
)
def test_written_after_error(cluster: Cluster) -> None:
    """A checkpoint has met a log dir's error, and the log dir is not offline yet: a record is refused, and not written.

    Files that are open can still be written, so only the broker's own mark refuses the record.
    """
    orders = cluster.create_topic("orders", partitions=PARTITIONS, replicas=1)
    write_untracked_records(orders, 10)
    partitions = led_in_same_log_dir(orders)
    victim = partitions[0].leader()
    log_dir = partitions[0].log_dir_on(victim)
    with ExitStack() as failed:
        taken_offline = Held(
            cluster,
            victim,
            "log-dir-taken-offline",
            about=str(log_dir.path),
            by=lambda: failed.enter_context(injected(Chmod000(log_dir))),
        )
        with injected(taken_offline):
            for each in partitions:
                check_not_written(each)
        for each in partitions:
            await_offline(each, victim)


def check_not_written(partition: Partition) -> None:
    """The leader refuses a record with KAFKA_STORAGE_ERROR, and its segments stay as long as they are."""
    leader = partition.leader()
    folder = partition.log_dir_on(leader).replica_dir(partition.topic, partition.index)
    before = {path.name: path.stat().st_size for path in folder.glob("*.log")}
    check_refused(lambda: leader.admin.produce(partition.topic, partition.index, b"x"), "KAFKA_STORAGE_ERROR", "")
    after = {path.name: path.stat().st_size for path in folder.glob("*.log")}
    if after != before:
        raise PromiseBroken(f"{leader} refused a record of {partition}, and its segments grew from {before} to {after}")
