"""``jbod qualify``: runs a candidate and a baseline, and compares them on one page."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from harness.cli.shared import BACKEND, JOBS, settled
from harness.errors import EXIT_USAGE
from harness.host.atomic_write import write_atomically
from harness.runner import baselines
from harness.runner.at_once import JobsOption
from harness.runner.baselines import Baselines, Reused
from harness.runner.build_lacks import lack_lines, probe_apart
from harness.runner.case import check_json_file, check_runs_dir
from harness.runner.deviation import in_words
from harness.runner.qualifying import (
    WAVERING,
    Side,
    Wanted,
    cases_of,
    check_no_mutant,
    check_same_build,
    run_sides,
    run_too_seldom,
    side,
)
from harness.runner.results import write_json
from harness.runner.suite_kinds import not_asked, suite_of
from reports.command import QUALIFICATION, read, write_baseline, write_cases, write_report
from reports.qualification import ComparedCase, Qualification
from reports.qualification import qualify as compare
from reports.rows import Row, RunsRead, count_cases


@click.command()
@click.argument("selector", nargs=-1)
@click.option(
    "--candidate",
    required=True,
    metavar="BUILD",
    callback=settled,
    help="A Kafka version, latest, an unpacked build or a tarball.",
)
@click.option(
    "--baseline",
    metavar="BUILD",
    callback=settled,
    help="The build to compare it with.",
)
@click.option("--mode", metavar="zk|kraft", help="Only this metadata mode.")
@BACKEND
@click.option(
    "--repeats", default=1, show_default=True, type=click.IntRange(1, 100), help="Least number of runs of each case."
)
@JOBS
@click.option(
    "--seed", type=int, metavar="N", help="Seed of both sides (default: that of the kept baseline, or a random one)."
)
@click.option("--fresh", is_flag=True, help="Run the baseline anew: use no runs that earlier qualifications kept.")
@click.option("--out", default="reports/qualify", show_default=True, metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write the answer as JSON.")
def qualify(
    selector: tuple[str, ...],
    candidate: str,
    baseline: str | None,
    mode: str | None,
    backend: str,
    repeats: int,
    jobs: JobsOption,
    seed: int | None,
    fresh: bool,
    out: Path,
    json_file: Path | None,
) -> int:
    """Release qualification: run every case of every KIP on the candidate and the baseline; give one answer.

    Without a SELECTOR, all suites run except controls, known bugs and random schedules. The page names what is left
    out. With the same --out, the command continues where it stopped. A case that is not valid runs three times.

    The baseline's runs are kept in baselines/ beside --out. A qualification of another candidate uses them again if
    build, backend, seed, jbod's revision and machine are the same. A line says how many runs it uses, or why none.
    """
    builds = [("candidate", candidate)] + ([("baseline", baseline)] if baseline else [])
    sides = [side(name, build, out / name, mode, backend) for name, build in builds]
    check_json_file(json_file)
    for each in sides:
        check_no_mutant(each)
        check_runs_dir(each.runs_dir)
        check_same_build(each)
    selected = {each.name: cases_of(each, selector) for each in sides}
    kept = _kept_baseline(sides[1], out, fresh) if baseline else None
    probed = {each.name: probe_apart(each.build, each.probe, click.echo) for each in sides}
    wanted = selected if selector else {name: of.without(not_asked(backend)) for name, of in selected.items()}
    if baseline:
        wanted["baseline"] = wanted["baseline"].beside(wanted["candidate"])
    lacks = {name: lack_lines(of, wanted[name].cases) for name, of in probed.items()}
    for name, lines in lacks.items():
        for line in lines:
            click.echo(f"{name}: {line}")
    if seed is None:
        known = kept.seed(wanted["baseline"].of_the_suites, max(repeats, WAVERING)) if kept else None
        seed = _kept_seed(out / "seed", known)
    reused = _reuse(kept, sides[1], wanted["baseline"], seed, repeats) if kept else Reused()
    codes = run_sides(sides, wanted, [f"--jobs={jobs}"], repeats=repeats, seed=seed, say=click.echo)
    if kept:
        kept.keep(sides[1].runs_dir, sides[1].probe, wanted["baseline"].of_the_suites, click.echo)
    if EXIT_USAGE in codes.values():  # the run has printed the reason
        return EXIT_USAGE
    ours, *others = (
        _with_missing(read(each.folders()), wanted[each.name], each.backend, lacks[each.name]) for each in sides
    )
    left_out = Counter(suite_of(case) for case in {*selected["candidate"].cases} - {*wanted["candidate"].cases})
    unnamed = [f"left out, because not selected: {suite} ({count_cases(count)})" for suite, count in left_out.items()]
    ours = replace(write_cases(ours, out / "report"), notes=(*ours.notes, *sorted(unnamed)))
    compared = compare(ours, write_baseline(_with_reused(others[0], reused), out / "report") if others else None)
    compared = _with_repeats(compared, {each.name: run_too_seldom(each, wanted[each.name], repeats) for each in sides})
    write_report(ours, out / "report", compared, allure=False)
    for note in compared.notes:
        click.echo(note)
    for why, ids in compared.missing:
        click.echo(f"not shown: {why}: {', '.join(ids)}")
    for deviation in compared.mended:
        click.echo(f"mended: {in_words(deviation.does, deviation.issue)}: {', '.join(deviation.mended)}")
    click.echo(f"{compared.answer.headline}\n{(out / 'report' / QUALIFICATION).absolute()}")
    return write_json(json_file, _to_json(compared, seed) | {"reused": len(reused.runs)}, click.echo)


def _kept_baseline(baseline: Side, out: Path, fresh: bool) -> Baselines:
    """The kept runs of the baseline; copies the kept result of its probe at once."""
    build = baseline.distribution(click.echo)
    kept = Baselines.of(out.parent / baselines.FOLDER, build, baseline.backend, fresh=fresh)
    kept.take_probe(baseline.probe)
    return kept


def _reuse(kept: Baselines, baseline: Side, wanted: Wanted, seed: int, repeats: int) -> Reused:
    """Take the kept runs that this qualification can use, and print how many, or why none."""
    seeds = range(seed, seed + max(repeats, WAVERING))
    reused = kept.take(wanted.of_the_suites, seeds, baseline.reused_dir, baseline.ran_itself())
    click.echo(f"baseline: {reused}")
    return reused


def _with_reused(run: RunsRead, reused: Reused) -> RunsRead:
    return replace(run, notes=(str(reused), *run.notes)) if reused.runs else run


def _with_repeats(compared: Qualification, seldom: Mapping[str, Sequence[str]]) -> Qualification:
    """The comparison, which does not pass if cases ran less often than ``--repeats`` asks for.

    :param seldom: these cases, by side
    """
    if not any(seldom.values()):
        return compared
    notes = [
        f"{side}: {count_cases(len(of))} ran less often than asked: {', '.join(of)}"
        for side, of in seldom.items()
        if of
    ]
    answer = compared.answer
    if answer.verdict == "valid":
        count = len({case for of in seldom.values() for case in of})
        answer = replace(
            answer, verdict="unknown", headline=f"Not shown: {count_cases(count)} ran less often than asked"
        )
    return replace(compared, answer=answer, notes=(*compared.notes, *notes))


def _kept_seed(file: Path, known: int | None) -> int:
    """The seed chosen when this qualification began. A side that runs later has the same one.

    :param known: the seed of the kept baseline; None: a random one is drawn
    """
    if not file.exists():
        seed = random.SystemRandom().randrange(2**31) if known is None else known
        write_atomically(file, f"{seed}\n")
    return int(file.read_text())


def _to_json(compared: Qualification, seed: int) -> dict[str, object]:
    wrong = [each for each in compared.cases if each.why]
    several = len({each.backend for each in compared.cases}) > 1

    def name(case: ComparedCase) -> str:
        return f"{case.id} ({case.backend})" if several else case.id

    return {
        "schema": 1,
        "exit_code": compared.exit_code,
        "seed": seed,
        "answer": compared.answer.headline,
        "totals": dict(compared.totals),
        "cases": {name(each): each.change for each in compared.cases},
        "reasons": {name(each): each.why for each in wrong},
        "rerun": {name(each): each.rerun for each in wrong},
        "deviations": [asdict(each) for each in compared.deviations],
        "missing": {why: list(ids) for why, ids in compared.missing},
        "notes": list(compared.notes),
    }


def _with_missing(run: RunsRead, wanted: Wanted, backend: str, lacks: Sequence[str] = ()) -> RunsRead:
    """The run with notes on what the build cannot run, and an error for each case that should have run and did not.

    :param lacks: one line for each thing that the build lacks
    """
    ran = {row.id for row in run.rows if row.backend == backend}
    # The row of a random schedule is named after its content.
    ran |= {each.run.case for each in run.folders.values() if each.run.backend == backend}
    never = [
        Row(
            id=case,
            kip=scenario.kip,
            plan=scenario.plan,
            issue=scenario.issue,
            mode=case.partition("[")[2].rstrip("]").partition("-")[0],
            kafka=scenario.kafka[0],
            backend=backend,
            verdict="error",
            reason="the run ended before this case began, and did not report it",
            began="",
        )
        for case, scenario in wanted.scenarios.items()
        if case not in ran
    ]
    unfit = [f"{why}: {count_cases(count)} left out" for why, count in wanted.unfit.items()]
    missing = [f"{count_cases(len(never))} never began"] if never else []
    return replace(run, rows=(*run.rows, *never), notes=(*lacks, *unfit, *missing, *run.notes))
