"""``jbod bench``: measures the harness itself."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from harness.bench.figures import QUICK, Figure, Part, exit_code, tally
from harness.cli.shared import BUILD_OPTIONS, JSON_FILE, collect, note, out, say, where, with_options
from harness.host import undo
from harness.runner.subrun import arguments_of
from harness.runner.suite_kinds import not_asked, suite_of

_COLORS = {"reached": "green", "missed": "bold red", "skipped": "yellow", "not shown": "yellow"}


@click.command()
@with_options(BUILD_OPTIONS)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([part.value for part in Part]),
    help="Measure this part; repeatable. Default: all but all-suites, which takes as long as a night's fixed suites.",
)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(0, 20),
    help="Rounds of clients, of starts and of clusters with points; 0: none.",
)
@click.option(
    "--pair-records",
    default=200_000,
    show_default=True,
    type=click.IntRange(1000),
    help="Records of the clients in each round.",
)
@click.option(
    "--records",
    default=(20_000_000,),
    show_default=True,
    multiple=True,
    type=click.IntRange(1),
    help="Records of a history for the judge; repeatable.",
)
@JSON_FILE
def bench(
    only: tuple[str, ...],
    rounds: int,
    pair_records: int,
    records: tuple[int, ...],
    json_file: Path | None,
    **options: str | None,
) -> int:
    """Measure the harness, and compare each figure with its goal.

    suite: kafkatest-parity, and the harness's own share of its cases. pair: the pair's throughput against Kafka's
    verifiable clients. starts: the start of containers against that of processes. holds: the start and the CPU of a
    cluster with points at which threads can be held, against one without. judge: all kinds against DuckDB with three.
    all-suites: all suites that say something about a release.

    A missed goal does not change the exit code. Exit code 2: something could not be measured.
    """
    from harness.bench.parts import Plan, measure  # loads Spark
    from harness.kafka.builds import BuildOptions, Builds
    from harness.runner.case import check_json_file

    check_json_file(json_file)
    undo.clean(note)
    builds = Builds.choose(BuildOptions(**options))
    arguments = arguments_of(options)
    parts = [part for part in Part if part in only] or QUICK
    plan = Plan(
        parts=parts,
        rounds=rounds,
        pair_records=pair_records,
        judge_records=records,
        build_arguments=arguments,
        all_suites=_release_suites(arguments) if Part.ALL_SUITES in parts else (),
    )
    found = measure(builds, plan, note)
    tell_figures(found.figures)
    say(tally(found.figures))
    code = exit_code(found.figures)
    if json_file:
        content = {
            "schema": 1,
            "exit_code": code,
            "cores": _cores(),
            "figures": [each.to_json() for each in found.figures],
        }
        json_file.write_text(json.dumps(content | dict(found.details), indent=2) + "\n")
    return code


def tell_figures(figures: Sequence[Figure]) -> None:
    """Print the table: a row for each figure."""
    table = Table(f"on {_cores()} cores", "measured", "goal", "load, 1 min", "", header_style="bold")
    for each in figures:
        table.add_row(*map(Text, each.row()), style=_COLORS.get(each.state))
    out.print(table)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _release_suites(arguments: Sequence[str]) -> list[str]:
    """Return the suites that a qualification runs, without those that these builds cannot run."""
    suites = dict.fromkeys(suite_of(case.id) for case in collect(*where(()), *arguments).cases)
    return [suite for suite in suites if suite not in not_asked("process")]
