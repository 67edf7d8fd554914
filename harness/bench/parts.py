"""Measures the speed of the harness in parts, for ``jbod bench``.

Seconds depend on the machine, so some figures are ratios within one run: the clients to Kafka's own tools, the start of
containers to that of processes, the judge to DuckDB. For the others the table has the machine's load.
"""

from __future__ import annotations

import secrets
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.bench.figures import Figure, LoadWatch, Measured, Part, at_least, at_most
from harness.bench.holds import measure_holds
from harness.bench.judging import measure_judge
from harness.bench.start import LIMIT, Starts, compare_starts
from harness.bench.suite_speed import ALL_GOALS, PARITY, PARITY_GOALS, SpeedGoals, measure_suites
from harness.bench.throughput import Round, compare
from harness.cluster.cluster import boot
from harness.cluster.fast_starts import prepare_fast_starts
from harness.cluster.spec import ClusterSpec
from harness.host.cache import cache_dir
from harness.host.undo import workspace
from harness.journal import Journal
from harness.kafka.builds import Builds
from harness.kafka.distribution import spark_kafka_jars
from harness.spark.session import SparkHandle, end_spark
from harness.workload.spark_archive import prepare_spark_archive
from harness.workload.warm_up import warm_up

Say = Callable[[str], None]
PAIR_RATIO = 1.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure.

    :ivar parts: in this order
    :ivar rounds: how often clients, cluster starts and clusters with points are compared; 0: not at all
    :ivar pair_records: how many records the clients send in each round
    :ivar judge_records: records of each history that is judged besides a usual one
    :ivar build_arguments: the command-line options of the build; with any, a run of suites has no goals, because they
        are for the default builds in both modes
    :ivar all_suites: the selectors of :attr:`Part.ALL_SUITES`
    """

    parts: Sequence[Part]
    rounds: int
    pair_records: int
    judge_records: Sequence[int]
    build_arguments: Sequence[str] = ()
    all_suites: Sequence[str] = ()


def measure(builds: Builds, plan: Plan, say: Say) -> Measured:
    """Measure the parts of a plan.

    :param say: shows a line of progress
    """
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=workspace()))
    try:
        found = [_measure(part, builds, plan, scratch, say) for part in plan.parts]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Measured(
        figures=[figure for each in found for figure in each.figures],
        details={name: value for each in found for name, value in each.details.items()},
    )


def _measure(part: Part, builds: Builds, plan: Plan, scratch: Path, say: Say) -> Measured:
    no_goals = SpeedGoals()
    match part:
        case Part.SUITE:
            _prepare(builds, say)
            goals = no_goals if plan.build_arguments else PARITY_GOALS
            return measure_suites(part, [PARITY, *plan.build_arguments], goals, say)
        case Part.ALL_SUITES:
            _prepare(builds, say)
            goals = no_goals if plan.build_arguments else ALL_GOALS
            return measure_suites(part, [*plan.all_suites, *plan.build_arguments], goals, say)
        case Part.JUDGE:
            return measure_judge(scratch, plan.judge_records, say)
        case Part.PAIR:
            return _measure_pair(builds, scratch, plan, say) if plan.rounds else Measured()
        case Part.STARTS:
            return _measure_starts(builds, scratch, plan, say) if plan.rounds else Measured()
        case Part.HOLDS:
            mode = builds.modes()[-1]
            of_mode = builds.of(mode, say)
            records = plan.pair_records
            return measure_holds(of_mode, mode, scratch, plan.rounds, records, say) if plan.rounds else Measured()


def _prepare(builds: Builds, say: Say) -> None:
    """Make what the first run in a new environment makes once, so that it is not measured: builds, class data."""
    for mode in builds.modes():
        prepare_fast_starts(builds.of(mode, say), mode, "process", say)
    prepare_spark_archive(spark_kafka_jars(cache_dir(), say=say), say)


def _measure_pair(builds: Builds, scratch: Path, plan: Plan, say: Say) -> Measured:
    mode = builds.modes()[-1]
    watch = LoadWatch()
    spark = SparkHandle(None, jars=spark_kafka_jars(cache_dir(), say=say), then=warm_up)
    try:
        cluster = boot(
            ClusterSpec(mode=mode),
            builds.of(mode, say),
            run_id=f"bench-{secrets.token_hex(3)}",
            record_dir=scratch,
            journal=Journal(None),
        )
        try:
            rounds = []
            for number in range(plan.rounds):
                say(f"round {number + 1} of {plan.rounds}: {plan.pair_records:,} records, Kafka's clients, then ours")
                rounds.append(compare(cluster, spark, scratch, plan.pair_records, number))
        finally:
            cluster.stop()
    finally:
        end_spark()
    return pair_figures(rounds, watch)


def pair_figures(rounds: Sequence[Round], watch: LoadWatch) -> Measured:
    """Return the medians of the rounds of clients, as rows."""
    kafkas, ours = (statistics.median(speeds) for speeds in ([r.kafkas for r in rounds], [r.ours for r in rounds]))
    ratio = round(statistics.median(each.ratio for each in rounds), 3)
    figures = [
        Figure(
            part=Part.PAIR,
            name="speed against VerifiableProducer and -Consumer",
            unit="×",
            value=ratio,
            goal=at_least(PAIR_RATIO),
        ),
        Figure(part=Part.PAIR, name="records of Kafka's clients", unit="/s", value=round(kafkas)),
        Figure(part=Part.PAIR, name="records of the pair", unit="/s", value=round(ours)),
    ]
    single = [asdict(each) | {"ratio": round(each.ratio, 3)} for each in rounds]
    return Measured(figures=watch.marked(figures), details={"pair": {"rounds": single, "ratio": ratio}})


def _measure_starts(builds: Builds, scratch: Path, plan: Plan, say: Say) -> Measured:
    watch = LoadWatch()
    made = {mode: builds.of(mode, say) for mode in builds.modes()}
    return start_figures(compare_starts(made, scratch, plan.rounds, say), watch)


def start_figures(starts: Starts, watch: LoadWatch) -> Measured:
    """Return the median of each mode as a row, and one more if something could not be compared."""
    name = "time in containers against processes"
    figures = [
        Figure(part=Part.STARTS, name=f"{name}, {mode}", unit="×", value=round(ratio, 3), goal=at_most(LIMIT))
        for mode, ratio in starts.ratios.items()
    ]
    if starts.skipped:
        figures.append(Figure(part=Part.STARTS, name=name, unit="×", why=starts.skipped, skipped=True))
    single = [asdict(each) | {"ratio": round(each.ratio, 3)} for each in starts.rounds]
    details = {
        "rounds": single,
        "ratios": starts.ratios,
        "limit": LIMIT,
        "over": starts.over,
        "skipped": starts.skipped,
    }
    return Measured(figures=watch.marked(figures), details={"container_start": details})
