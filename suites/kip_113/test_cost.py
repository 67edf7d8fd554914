"""Measures what a move between log dirs costs, and how fast it is (KIP-113, "Changes in Operational Procedures").

The figures decide no verdict. They are ratios, because seconds depend on the machine more than on Kafka. The pair's
throughput beside a move, and beside ``cp`` of the same bytes, is compared with its throughput alone. The speed of a
move is compared with that of ``cp``. Neither syncs. A copy takes some tenths of a second, and may take twice as long
the next time. So moves and copies take turns, and their medians are compared.
"""

from __future__ import annotations

import statistics
import time
from datetime import datetime

from faults.targets import leader_of, other_dir
from harness.cluster.cluster import Cluster
from harness.cluster.log_dir import LogDir
from harness.cluster.topic import Partition
from harness.errors import HarnessError
from harness.journal import now
from harness.measure.gaps import ClientTimes
from harness.runner.case import Case
from harness.runner.case_workload import CaseWorkload
from suites.checks import check_delivery
from suites.moves import await_moved
from suites.on_disk import check_logs_unchanged, leaders_logs
from suites.scenario import NO_FAULT, scenario
from suites.steps import write_untracked_records

RECORDS = 100_000  # of 1 kB each: a second or more of copying
ALONE = 20_000
ROUNDS = 3


@scenario(
    "kip-113/cost",
    kip=113,
    plan="load balance across log directories",
    floors=NO_FAULT,
    fresh=True,  # warm JVMs would change the figures
)
def test_cost(cluster: Cluster, workload: CaseWorkload, case: Case) -> None:
    """A large replica moves back and forth between log dirs while a pair runs at full speed: the cost is measured."""
    orders, bulk = cluster.create_topic("orders"), cluster.create_topic("bulk", replicas=1)
    write_untracked_records(bulk, RECORDS, size=1000)
    kept = leaders_logs(bulk.partitions)
    here = bulk[0].log_dir_on(leader_of(bulk[0]))
    with workload.running(orders, rate_per_s=None, record_bytes=1000) as pair:
        began = now()
        pair.await_progress(after=began, records=ALONE)
        alone_until = now()
        beside = [move(bulk[0], other_dir(here)), move(bulk[0], here)]
        moved_by = now()
        until = time.monotonic() + sum(beside)
        while time.monotonic() < until:
            copy(bulk[0], here, other_dir(here))
        copied_by = now()
    moving, copying = [], []
    for _ in range(ROUNDS):
        copying.append(copy(bulk[0], here, other_dir(here)))
        moving += [move(bulk[0], other_dir(here)), move(bulk[0], here)]
    check_logs_unchanged(kept)
    check_delivery(workload)
    cluster.journal.write("cost.measured", beside_s=beside, moving_s=moving, copying_s=copying)
    copying_s = statistics.median(copying)

    times = ClientTimes(case.run_dir)

    def acked_per_s(start: datetime, until: datetime) -> float:
        return times.passed(orders.name, start, until)[0] / (until - start).total_seconds()

    case.measure(
        "pair beside a move, to pair alone", acked_per_s(alone_until, moved_by) / acked_per_s(began, alone_until)
    )
    case.measure("pair beside cp, to pair alone", acked_per_s(moved_by, copied_by) / acked_per_s(began, alone_until))
    case.measure("move beside a pair, to cp", copying_s / statistics.median(beside))
    case.measure("move alone, to cp", copying_s / statistics.median(moving))


def move(partition: Partition, there: LogDir) -> float:
    """Move a replica; returns the seconds that this took."""
    began = time.monotonic()
    partition.move_to(there)
    await_moved(partition, there)
    return time.monotonic() - began


def copy(partition: Partition, here: LogDir, there: LogDir) -> float:
    """Copy a replica's files with ``cp`` as the broker's user, and remove the copy; returns the seconds of ``cp``."""
    node, folder = here.broker.node, there.path / "plain-copy"
    began = time.monotonic()
    done = node.run_as_user(["cp", "-r", str(here.replica_dir(partition.topic, partition.index)), str(folder)])
    took = time.monotonic() - began
    node.run_as_user(["rm", "-r", str(folder)])
    if done.returncode:
        raise HarnessError(f"{partition} could not be copied into {there}: {done.stderr.strip()}")
    return took
