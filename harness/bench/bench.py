"""``jbod bench``: the harness's own speed, as ratios and rates measured in one run.

Ratios against Kafka's own tools on the same cluster, because seconds say more of the machine than of the harness; of
the judge, which has nothing beside it, records a second and the memory of all its processes.
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
from harness.spark.session import SparkHandle, end_spark, start_in_background
from harness.workload.warm_up import warm_up

Say = Callable[[str], None]
USUAL = 100_000
"""Records in a scenario's usual history."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The judge on one made-up history.

    :ivar rows: of all tables
    :ivar records_per_s: records sent, over the seconds that judging took
    :ivar peak_mb: the most memory (PSS) that this process and all below it had together
    """

    records: int
    rows: int
    seconds: float
    records_per_s: float
    peak_mb: int


@dataclass(frozen=True, kw_only=True)
class Bench:
    """All that was measured."""

    pair: tuple[Round, ...]
    starts: Starts
    judged: tuple[Judged, ...]

    def ratio(self) -> float | None:
        """The median of the pair's rounds; None where there were none."""
        return statistics.median(each.ratio for each in self.pair) if self.pair else None

    def to_json(self) -> str:
        """For ``--json``."""
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
        }
        return json.dumps(content | {"judge": [asdict(each) for each in self.judged]}, indent=2) + "\n"


def run_bench(builds: Builds, *, rounds: int, pair_records: int, judge_records: int, say: Say) -> Bench:
    """Measure everything.

    :param rounds: of the pair beside Kafka's clients, and of clusters' starts; 0 leaves them out
    :param judge_records: of the largest history that is judged, beside a usual one
    """
    spark = start_in_background(None, jars=spark_kafka_jars(cache_dir(), say=say), then=warm_up)
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=workspace()))
    try:
        pair = _pair(builds, spark, scratch, rounds, pair_records, say) if rounds else ()
        made = {mode: builds.of(mode, say) for mode in builds.modes()} if rounds else {}
        starts = compare_starts(made, scratch, rounds, say) if rounds else Starts()
        judged = []
        for records in (USUAL, judge_records):
            say(f"making up a history of {records:,} records")
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
            say(f"round {number + 1} of {rounds}: {records:,} records by Kafka's clients, then by ours")
            found.append(compare(cluster, spark, scratch, records, number))
        return tuple(found)
    finally:
        cluster.stop()


def _judge(spark: SparkHandle, run_dir: Path, records: int, say: Say) -> Judged:
    rows = generate(run_dir, Load(records=records))
    say(f"judging {records:,} records")
    session = spark.session()
    with _Memory() as memory:
        began = time.monotonic()
        verdict = judge(session, run_dir)
        seconds = time.monotonic() - began
    if verdict.verdict != "valid":
        raise HarnessError(f"a made-up history of {records:,} records was judged {verdict.verdict}: {verdict.reasons}")
    shutil.rmtree(run_dir)
    return Judged(
        records=records,
        rows=rows,
        seconds=round(seconds, 3),
        records_per_s=round(records / seconds),
        peak_mb=memory.peak_mb,
    )


class _Memory:
    """The most memory of this process and of all below it, looked at some times a second."""

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
