"""``jbod bench``: measures the harness itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from harness.cli.shared import BUILD_OPTIONS, JSON_FILE, note, out, with_options
from harness.errors import EXIT_VALID
from harness.host import undo

if TYPE_CHECKING:  # this import would load Spark for every command
    from harness.bench.start import Starts


@click.command()
@with_options(BUILD_OPTIONS)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(0, 20),
    help="Rounds of clients and of starts; 0: none.",
)
@click.option(
    "--pair-records",
    default=200_000,
    show_default=True,
    type=click.IntRange(1000),
    help="Records of the pair in each round.",
)
@click.option("--records", default=10_000_000, show_default=True, type=click.IntRange(1), help="Records for the judge.")
@JSON_FILE
def bench(rounds: int, pair_records: int, records: int, json_file: Path | None, **options: str | None) -> int:
    """Measure the harness: the pair's throughput against Kafka's verifiable clients, the start of containers against
    that of processes, and the judge's records a second."""
    from harness.bench.bench import run_bench
    from harness.kafka.builds import BuildOptions, Builds
    from harness.runner.case import check_json_file

    check_json_file(json_file)
    undo.clean(note)
    builds = Builds.choose(BuildOptions(**options))
    found = run_bench(builds, rounds=rounds, pair_records=pair_records, judge_records=records, say=note)
    table = Table("the pair beside VerifiableProducer and -Consumer", "Kafka's, records/s", "ours", "ratio")
    for number, each in enumerate(found.pair, 1):
        table.add_row(f"round {number}", f"{each.kafkas:,.0f}", f"{each.ours:,.0f}", f"{each.ratio:.2f}")
    if (ratio := found.ratio()) is not None:
        table.add_row("median", "", "", f"{ratio:.2f}", style="bold")
        out.print(table)
    tell_starts(found.starts)
    table = Table("the judge, all kinds on", "rows", "seconds", "records/s", "peak memory, all processes")
    for judged in found.judged:
        table.add_row(
            f"{judged.records:,} records",
            f"{judged.rows:,}",
            f"{judged.seconds:.2f}",
            f"{judged.records_per_s:,}",
            f"{judged.peak_mb:,} MB",
        )
    out.print(table)
    if json_file:
        json_file.write_text(found.to_json())
    return EXIT_VALID


def tell_starts(starts: Starts) -> None:
    """Print the cluster starts: each round, the median of each mode against the limit, or why there are none."""
    from harness.bench.start import LIMIT

    if starts.skipped:
        out.print(Text(f"three brokers ready: SKIPPED in containers: {starts.skipped}"))
    if not starts.rounds:
        return
    table = Table("three brokers ready", "processes, s", "containers, s", f"ratio, {LIMIT} at most")
    for each in starts.rounds:
        table.add_row(str(each.mode), f"{each.process_s:.2f}", f"{each.container_s:.2f}", f"{each.ratio:.2f}")
    for mode, ratio in starts.ratios.items():
        over = f", over {LIMIT}" if mode in starts.over else ""
        table.add_row(f"{mode}, median", "", "", f"{ratio:.2f}{over}", style="bold")
    out.print(table)
