"""Compares clusters that have the points of holds (:mod:`harness.kafka.points`) with clusters that do not.

A round starts both, one after the other, and lets Kafka's verifiable clients write and read the same number of records.
No thread is held. Figures are ratios within a round, so that the load of the machine affects both. The order alternates
from round to round.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.bench.figures import Figure, LoadWatch, Measured, Part, at_most
from harness.bench.throughput import PARTITIONS, verifiable_clients
from harness.cluster.cluster import boot
from harness.cluster.fast_starts import prepare_fast_starts
from harness.cluster.nodes.node import cpu_s
from harness.cluster.spec import ClusterSpec
from harness.errors import EnvironmentLacks
from harness.journal import Journal
from harness.kafka.distribution import Distribution
from harness.kafka.points import missing_points, with_points
from harness.kafka.versions import Mode

LIMIT = 1.1
"""A cluster with points may take this many times the time and the CPU of one without."""


@dataclass(frozen=True, kw_only=True)
class ClusterCost:
    """What one cluster took.

    :ivar start_s: seconds until three brokers see each other
    :ivar start_cpu_s: CPU seconds of all nodes until then
    :ivar records_cpu_s: CPU seconds of all nodes while the records were written and read
    """

    start_s: float
    start_cpu_s: float
    records_cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Round:
    """Both clusters of a round."""

    without: ClusterCost
    with_points: ClusterCost

    def ratio(self, field: str) -> float:
        """The figure with points divided by the one without."""
        return float(getattr(self.with_points, field) / getattr(self.without, field))


_NAMES = {
    "start_s": "start with points against without",
    "start_cpu_s": "CPU of a start, with points against without",
    "records_cpu_s": "CPU for the same records, with points against without",
}


def measure_holds(
    build: Distribution, mode: Mode, scratch: Path, rounds: int, records: int, say: Callable[[str], None]
) -> Measured:
    """Start, load and stop both clusters in turn.

    :param records: how many records each cluster gets in a round
    """
    try:
        pointed = with_points(build, mode, say)
    except EnvironmentLacks as error:
        return _unmeasured(str(error))
    if missing := missing_points(pointed):
        return _unmeasured(f"this build lacks {len(missing)} points (jbod points --check)")
    fast = [prepare_fast_starts(each, mode, "process", say) for each in (build, pointed)]
    if fast[0] != fast[1]:
        return _unmeasured("only one of the clusters has fast starts")
    watch = LoadWatch()
    found = []
    for number in range(rounds):
        order = (False, True) if number % 2 == 0 else (True, False)
        say(f"round {number + 1} of {rounds}: a cluster {'with' if order[0] else 'without'} points, then the other")
        costs = {points: _cost(build, points, mode, scratch, records) for points in order}
        found.append(Round(without=costs[False], with_points=costs[True]))
    return hold_figures(found, watch)


def _unmeasured(why: str) -> Measured:
    return Measured(figures=[_row(field, why=why) for field in _NAMES])


def hold_figures(rounds: Sequence[Round], watch: LoadWatch) -> Measured:
    """Return the medians of the rounds, as rows."""
    figures = [_row(field, statistics.median(each.ratio(field) for each in rounds)) for field in _NAMES]
    return Measured(figures=watch.marked(figures), details={"holds": {"rounds": [asdict(each) for each in rounds]}})


def _row(field: str, value: float | None = None, why: str = "") -> Figure:
    rounded = None if value is None else round(value, 3)
    return Figure(
        part=Part.HOLDS, name=_NAMES[field], unit="×", value=rounded, goal=at_most(LIMIT), why=why, skipped=bool(why)
    )


def _cost(build: Distribution, points: bool, mode: Mode, scratch: Path, records: int) -> ClusterCost:
    run = f"holds-{secrets.token_hex(3)}"
    began = time.monotonic()
    spec = ClusterSpec(mode=mode, holds=points)
    cluster = boot(spec, build, run_id=run, record_dir=scratch / run, journal=Journal(None))
    try:
        start_s, start_cpu_s = time.monotonic() - began, cpu_s(cluster.nodes)
        topic = cluster.create_topic("records", partitions=PARTITIONS, replicas=3)
        before = cpu_s(cluster.nodes)
        verifiable_clients(cluster, topic, records)
        return ClusterCost(start_s=start_s, start_cpu_s=start_cpu_s, records_cpu_s=cpu_s(cluster.nodes) - before)
    finally:
        cluster.stop()
