"""Measures the speed of the harness itself, for ``jbod bench``.

Seconds depend on the machine, so most results are ratios within one run: the clients to Kafka's own tools, and the
start of containers to that of processes. There is nothing to compare the judge with. Its figures are records a second
and the memory of all its processes.
"""

from __future__ import annotations

import json
import secrets
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from harness.bench.histories import Load, generate
from harness.bench.start import LIMIT, Starts, compare_starts
from harness.bench.throughput import Round, compare
from harness.checkers.judge import judge
from harness.cluster.cluster import boot
from harness.cluster.spec import ClusterSpec
from harness.errors import HarnessError
from harness.host.cache import cache_dir
from harness.host.undo import workspace
from harness.journal import Journal
from harness.kafka.builds import Builds
from harness.kafka.distribution import spark_kafka_jars
from harness.spark.session import SparkHandle, end_spark
from harness.workload.warm_up import warm_up

Say = Callable[[str], None]
USUAL = 100_000
"""Records in the usual history of a scenario."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The time and memory that judging one generated history took.

    :ivar records: the number of records sent in the history
    :ivar rows: the number of rows in all of its tables
    :ivar records_per_s: records sent per second of judging
    :ivar peak_mb: peak memory (PSS, in MiB) of this process and all its descendants together
    """

    records: int
    rows: int
    seconds: float
    records_per_s: float
    peak_mb: int


@dataclass(frozen=True, kw_only=True)
class Bench:
    """All results of ``jbod bench``.

    :ivar pair: the harness's clients against Kafka's
    """

    pair: tuple[Round, ...]
    starts: Starts
    judged: tuple[Judged, ...]

    def ratio(self) -> float | None:
        """The median ratio of the rounds of clients; None if there were no rounds."""
        return statistics.median(each.ratio for each in self.pair) if self.pair else None

    def to_json(self) -> str:
        """The results as ``jbod bench --json`` writes them."""
        rounds = [asdict(each) | {"ratio": round(each.ratio, 3)} for each in self.pair]
        starts = [asdict(each) | {"ratio": round(each.ratio, 3)} for each in self.starts.rounds]
        content = {
            "schema": 1,
            "pair": {"rounds": rounds, "ratio": self.ratio()},
            "container_start": {
                "rounds": starts,
                "ratios": self.starts.ratios,
                "limit": LIMIT,
                "over": self.starts.over,
                "skipped": self.starts.skipped,
            },
            "judge": [asdict(each) for each in self.judged],
        }
        return json.dumps(content, indent=2) + "\n"


def run_bench(builds: Builds, *, rounds: int, pair_records: int, judge_records: int, say: Say) -> Bench:
    """Measure everything.

    :param rounds: how often clients and cluster starts are compared; 0 leaves both out
    :param pair_records: how many records the clients send in each round
    :param judge_records: records of the larger of two histories that are judged
    :param say: shows a line of progress
    """
    spark = SparkHandle(None, jars=spark_kafka_jars(cache_dir(), say=say), then=warm_up)
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=workspace()))
    try:
        pair = _pair(builds, spark, scratch, rounds, pair_records, say) if rounds else ()
        made = {mode: builds.of(mode, say) for mode in builds.modes()} if rounds else {}
        starts = compare_starts(made, scratch, rounds, say) if rounds else Starts()
        judged = []
        for records in (USUAL, judge_records):
            say(f"generating a history of {records:,} records")
            judged.append(_judge(spark, scratch / f"history-{records}", records, say))
        return Bench(pair=pair, starts=starts, judged=tuple(judged))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        end_spark()


def _pair(builds: Builds, spark: SparkHandle, scratch: Path, rounds: int, records: int, say: Say) -> tuple[Round, ...]:
    mode = builds.modes()[-1]
    cluster = boot(
        ClusterSpec(mode=mode),
        builds.of(mode, say),
        run_id=f"bench-{secrets.token_hex(3)}",
        record_dir=scratch,
        journal=Journal(None),
    )
    try:
        found = []
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}: {records:,} records with Kafka's clients, then with ours")
            found.append(compare(cluster, spark, scratch, records, number))
        return tuple(found)
    finally:
        cluster.stop()


def _judge(spark: SparkHandle, run_dir: Path, records: int, say: Say) -> Judged:
    rows = generate(run_dir, Load(records=records))
    say(f"judging {records:,} records")
    spark.session()  # so that its start is not measured
    with _Memory() as memory:
        began = time.monotonic()
        verdict = judge(spark.session, run_dir)
        seconds = time.monotonic() - began
    if verdict.verdict != "valid":
        raise HarnessError(
            f"a generated history of {records:,} records is {verdict.verdict}: {'; '.join(verdict.reasons)}"
        )
    shutil.rmtree(run_dir)
    return Judged(
        records=records,
        rows=rows,
        seconds=round(seconds, 3),
        records_per_s=round(records / seconds),
        peak_mb=memory.peak_mb,
    )


class _Memory:
    """Samples the memory of this process and all its descendants, five times a second, and keeps the peak."""

    def __init__(self) -> None:
        self.peak_mb = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while True:
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_mb = max(self.peak_mb, total >> 20)
            if self._over.wait(0.2):
                return
