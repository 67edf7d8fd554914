"""Commands that show something: scenarios, the ledger, abilities of this machine, stored runs."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from harness.cli.shared import (
    AS_JSON,
    BACKEND,
    BUILD_OPTIONS,
    EVERY,
    FOLDER,
    PROBE_OPTIONS,
    RUN_DIR,
    collect,
    err,
    fixed_cases,
    out,
    seconds,
    where,
    with_options,
)
from harness.errors import EXIT_INCONCLUSIVE, EXIT_NOTHING_RAN, EXIT_VALID, UsageError
from harness.runner.subrun import arguments_of

if TYPE_CHECKING:
    from harness.history.run_folder import RunRecord
    from harness.runner import ledger
    from harness.runner.listing import ListedScenario

_NO_ROLE = "broker without a role"


@click.command(name="list")
@click.argument("selector", nargs=-1)
@with_options([*BUILD_OPTIONS, *PROBE_OPTIONS])
@AS_JSON
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Print suites/COVERAGE.md: which scenario checks what of each KIP."
)
def list_scenarios(
    selector: tuple[str, ...], probe: tuple[str, ...], as_json: bool, as_markdown: bool, **options: str | None
) -> int:
    """List every scenario: id, KIP, plan item, metadata modes, Kafka, faults, backends."""
    from harness.runner.listing import listed_scenarios

    probes = (f"--probe={file}" for file in probe)
    collected = collect(*where(selector), *arguments_of(options), *probes)
    scenarios = listed_scenarios(collected.cases, collected.run)
    if as_json:
        click.echo(json.dumps({"schema": 1, "scenarios": [each.to_json() for each in scenarios]}, indent=2))
        return EXIT_VALID
    if as_markdown:
        from harness.runner.clauses import clause_lines, read_clauses

        click.echo("\n".join([*_coverage(scenarios), "", *clause_lines(read_clauses())]))
        return EXIT_VALID
    table = Table("scenario", "KIP", "plan item", "modes", "Kafka", "faults", "cases", header_style="bold")
    for each in scenarios:
        modes, kafka, faults = map(", ".join, (each.modes, each.kafka, each.faults))
        table.add_row(each.id, str(each.kip), each.plan, modes, kafka, faults, str(len(each.cases)))
    out.print(table)
    return EXIT_VALID


_COVERAGE = """# Coverage

Which scenario checks what of each KIP, and in how many cases. `jbod list --markdown > suites/COVERAGE.md` writes this
page, and a test compares it. Another test knows the items of each KIP's plan, and fails for an item without a scenario.
A case is valid if its scenario's claim holds. Where the last column has a deviation for the build, the case accepts
exactly that. Unless the deviation need not show in every run, it is invalid on a confirmed build that does not show it.

[Clauses](#clauses) goes through the KIPs' texts, section by section, and shows what is not tested yet.
"""


def _coverage(scenarios: list[ListedScenario]) -> list[str]:
    """Return the lines of suites/COVERAGE.md."""
    from harness.runner.clauses import row
    from harness.runner.suite_kinds import is_control

    lines, controls = [_COVERAGE], [each for each in scenarios if is_control(each.id)]
    kips: dict[str, list[ListedScenario]] = {}
    for scenario in scenarios:
        if not is_control(scenario.id):
            kips.setdefault(f"KIP-{scenario.kip}", []).append(scenario)
    for title, those in (*kips.items(), ("Controls: what must come out invalid, and its twin valid", controls)):
        lines += [f"## {title}", "", "| plan item, or promise | scenario, and its claim | cases | known to deviate |"]
        lines += ["|---|---|---|---|"]
        for each in sorted(those, key=lambda each: each.plan):  # the KIP's own numbers first
            modes = (f"{sum(f'[{mode}' in case for case in each.cases)} {mode}" for mode in each.modes)
            cells = (each.plan, f"`{each.id}` {each.claim}", ", ".join(modes), "; ".join(each.deviations))
            lines.append(row(*cells))
        lines += [""]
    return lines[:-1]


@click.command(name="ledger")
@click.argument("runs_dir", required=False, type=FOLDER)
@with_options(BUILD_OPTIONS)
@BACKEND
@EVERY
@click.option("--by-role", is_flag=True, help="One line for each proven fault and role of its broker.")
@AS_JSON
def show_ledger(
    runs_dir: Path | None, backend: str, every: str, by_role: bool, as_json: bool, **options: str | None
) -> int:
    """Show which cases ran, how they came out, and when last, from the ledger of RUNS_DIR (default: reports/runs).

    Exit code 2: a case is overdue (--every).
    """
    from harness.history.run_folder import check_folder
    from harness.runner import ledger

    every_s = seconds(every)
    if runs_dir is not None:
        check_folder(runs_dir, "runs folder")
    fixed = fixed_cases(options, backend)
    entries = ledger.read(runs_dir or Path("reports/runs"))
    if by_role:
        return _show_strikes(ledger.strikes({**fixed.planned, **fixed.lacking}, backend, entries), as_json)
    cells = ledger.cells(fixed.owed(entries, backend), backend, entries, timedelta(seconds=every_s))
    overdue = [cell for cell in cells if cell.is_overdue]
    if as_json:
        content = {"schema": 1, "cells": [cell.to_json() for cell in cells], "unable": fixed.unable}
        click.echo(json.dumps(content, indent=2))
    else:
        table = Table("KIP", "plan item", "case", "Kafka", "runs", "valid", "last", header_style="bold")
        for column in ("verdict", "proven faults", "acked, read meanwhile"):
            table.add_column(column)
        for cell in sorted(cells, key=lambda cell: not cell.is_overdue):
            table.add_row(*map(Text, _cell_row(cell)), style="yellow" if cell.is_overdue else None)
        out.print(table)
        out.print(f"{len(cells) - len(overdue)} of {len(cells)} cases ran within {every}; {len(overdue)} are overdue")
        for why in fixed.why_not():
            out.print(Text(why, style="yellow"))
    if not any(cell.runs for cell in cells):
        return EXIT_NOTHING_RAN
    return EXIT_INCONCLUSIVE if overdue else EXIT_VALID


def _show_strikes(strikes: list[ledger.Strike], as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"schema": 1, "strikes": [strike.to_json() for strike in strikes]}, indent=2))
    else:
        table = Table(
            *("KIP", "plan item", "mode", "Kafka", "fault", "role", "runs", "valid", "last", "acked, read meanwhile"),
            header_style="bold",
        )
        for each in sorted(strikes, key=lambda each: (each.kip, each.plan, each.mode, each.fault, each.role or "")):
            strike = (str(each.kip), each.plan, each.mode, each.kafka, each.fault, each.role or _NO_ROLE)
            load = "" if each.acked is None else f"{each.acked}, {each.read}"
            last = f"{each.last:%Y-%m-%d %H:%M}"
            table.add_row(*map(Text, (*strike, str(each.runs), str(each.valid), last, load)))
        out.print(table)
        at = Counter(each.role or _NO_ROLE for each in strikes)
        counts = ", ".join(f"{count} on a {role}" for role, count in at.most_common())
        out.print(f"{len(strikes)} rows: {counts}")
    return EXIT_VALID if strikes else EXIT_NOTHING_RAN


def _cell_row(cell: ledger.Cell) -> tuple[str, ...]:
    first = (str(cell.kip), cell.plan, cell.id, cell.kafka, str(cell.runs), str(cell.valid))
    if cell.last is None:
        return (*first, "never", "", "", "")
    struck = dict.fromkeys(
        f"{each.fault} on a {' and '.join(role or _NO_ROLE for role in each.roles())}" for each in cell.last.struck
    )
    loads = [(a, r) for each in cell.last.struck if (a := each.acked) is not None and (r := each.read) is not None]
    load = ", ".join(map(str, map(min, zip(*loads, strict=True))))
    return (*first, f"{cell.last.at:%Y-%m-%d %H:%M}", cell.last.verdict, ", ".join(struck), load)


@click.command()
@AS_JSON
def doctor(as_json: bool) -> int:
    """Show what this machine can do, and the command that fixes what it cannot."""
    from harness.host.abilities import abilities, doctor_json

    collected = collect(*where(()))
    cases = {case.id: collected.run.unable(case) for case in collected.cases}
    unable = {id: missing for id, missing in cases.items() if missing}
    if as_json:
        content = [
            {
                "id": id,
                "can_run": not missing,
                "reason": "; ".join(m.found for m in missing),
                "fix": [m.fix for m in missing],
            }
            for id, missing in cases.items()
        ]
        click.echo(json.dumps(doctor_json() | {"cases": content}, indent=2))
        return EXIT_VALID
    table = Table("", "ability", "found", "needed for", "how to get it", header_style="bold")
    for ability in abilities():
        mark = Text("yes", style="green") if ability.present else Text("no", style="yellow")
        table.add_row(mark, ability.name, ability.found, ability.needed_for, "" if ability.present else ability.fix)
    out.print(table)
    out.print(f"{len(cases) - len(unable)} of {len(cases)} cases can run here")
    for id, missing in unable.items():
        why = "; ".join(f"{m.name}: {m.found}; {m.fix}" for m in missing)
        out.print(Text(f"  {id} cannot run: {why}", style="yellow"), soft_wrap=True)
    return EXIT_VALID


@click.command()
@RUN_DIR
@click.option("--spark-master", metavar="URL", help="A Spark master other than a local one, for a large history.")
def check(run_dir: Path, spark_master: str | None) -> int:
    """Judge a stored history again, without a cluster.

    If the case itself came out differently, that verdict and its reason are printed too.
    """
    from harness.checkers.judge import judge, write_verdict
    from harness.checkers.settings import read_settings
    from harness.history import write_ahead
    from harness.history.run_folder import check_folder, read_outcome
    from harness.runner.results import VERDICT_CODES
    from harness.spark.session import check_master, end_spark, spark_session

    check_folder(run_dir)
    read_settings(run_dir)  # fails before anything is written
    check_master(spark_master)
    try:
        write_ahead.settle(run_dir)  # adds the records of producers that were killed with their driver
        with err.status(f"judging {run_dir.name}"):
            verdict = judge(lambda: spark_session(spark_master, jars=()), run_dir)
        write_verdict(run_dir, verdict)
    finally:
        end_spark()
    style = {"valid": "green", "invalid": "bold red", "unknown": "yellow"}[verdict.verdict]
    out.print(Text(verdict.verdict, style=style), Text(verdict.run_id))
    for reason in verdict.reasons:
        out.print(Text(f"  {reason}"))
    out.print(
        Text("  " + "  ".join(f"{name} {count:,}" for name, count in verdict.counts.as_json().items()), style="dim")
    )
    if (came_out := read_outcome(run_dir)) and came_out.verdict != verdict.verdict:
        out.print(
            Text(
                f"  this verdict is about the history only; the case was {came_out.verdict}: {came_out.reason}",
                "yellow",
            )
        )
    return VERDICT_CODES[verdict.verdict]


def _show_circumstances(run: RunRecord) -> None:
    """Print which jbod ran, and how crowded the machine was. Older run folders have neither."""
    for name, value in (("jbod", run.jbod), ("machine", run.crowding)):
        if value is not None:
            out.print(Text(f"{name}: {value}", style="dim"), soft_wrap=True)


@click.command()
@RUN_DIR
@click.argument("producer", required=False)
@click.argument("seq", type=int, required=False)
@AS_JSON
def explain(run_dir: Path, producer: str | None, seq: int | None, as_json: bool) -> int:
    """Explain what happened to the records that a verdict names, and where they are now.

    With PRODUCER and SEQ (p0 17), explain this record.
    """
    from harness.explain.explain import explain_record, explain_verdict
    from harness.explain.terminal import show
    from harness.history.run_folder import VERDICT_FILE, read_run_json
    from harness.kafka.builds import BuildOptions, Builds
    from harness.kafka.distribution import Distribution
    from harness.kafka.versions import Mode

    if (producer is None) != (seq is None):
        raise UsageError("a record is named by its producer and its seq: jbod explain RUN_DIR p0 17")
    run = read_run_json(run_dir)
    if seq is None and run.outcome is not None and not (run_dir / VERDICT_FILE).exists():
        if as_json:
            click.echo(json.dumps({"schema": 1, "stories": []}))
            return EXIT_VALID
        out.print(Text(f"{run.outcome.verdict}: {run.outcome.reason}"))
        _show_circumstances(run)
        out.print(Text("the case ended before the judge, so no record was judged", style="dim"))
        out.print(Text(f"the timeline shows what happened: jbod report {run_dir} --out DIR", style="dim"))
        return EXIT_VALID

    def distribution() -> Distribution:
        return Builds.choose(BuildOptions.of(run.kafka, run.mode)).of(Mode(run.mode))

    with err.status("looking through history, journal, logs and segments"):
        if producer is not None and seq is not None:
            stories = [explain_record(run_dir, (producer, seq), distribution)]
        else:
            stories = explain_verdict(run_dir, distribution)
    if as_json:
        click.echo(json.dumps({"schema": 1, "stories": [story.to_json() for story in stories]}, indent=2))
        return EXIT_VALID
    for story in stories:
        show(story, out)
    _show_circumstances(run)
    if not stories:
        out.print("the verdict names no record; jbod explain RUN_DIR PRODUCER SEQ explains any record")
    return EXIT_VALID
