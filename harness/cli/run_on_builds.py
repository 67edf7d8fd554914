"""``jbod run`` on several builds: one run for each, then one table with a column for each."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.cli.shared import GivenOption, collect, out, say, text_of, where
from harness.runner.subrun import arguments_of

if TYPE_CHECKING:
    from harness.kafka.versions import Mode
    from harness.runner.at_once import JobsOption
    from harness.runner.case_result import CaseResult
    from harness.runner.deviation import NotedDeviation
    from harness.runner.scenario import DeclaredCase
    from harness.runner.several_builds import BuildRun

_DEVIATES = "*"


def run_on_each(
    selector: tuple[str, ...],
    options: Mapping[str, GivenOption],
    jobs: JobsOption,
    junit: str | None,
    allure: str | None,
) -> int:
    """Run the cases on each build of ``--kafka`` that has their mode. Returns the worst exit code of all.

    Wrong options and selectors are reported before the first build runs.

    :raises UsageError: an option or a file is wrong
    """
    from harness.cli.console import skips_line
    from harness.kafka.builds import BuildOptions, Builds
    from harness.runner import results, several_builds
    from harness.runner.case import check_json_file, check_runs_dir
    from harness.runner.published_dir import published_dir

    versions = several_builds.versions_named(text_of(options, "kafka"))
    build = {name: text_of(options, name) for name in ("kafka_home", "kafka_tarball", "mode")}
    modes = {kafka: Builds.choose(BuildOptions(kafka=kafka, **build)).modes() for kafka in versions}
    json_file = Path(name) if (name := text_of(options, "json")) else None
    check_json_file(json_file)
    runs_dir = Path(text_of(options, "runs_dir") or "reports/runs")
    check_runs_dir(runs_dir)
    seed = text_of(options, "seed") or str(random.SystemRandom().randrange(2**31))
    rest = arguments_of({**options, "seed": seed, "kafka": None, "json": None, "stop_after": None, "probe": None})
    stop_after = [f"--stop-after={seconds}"] if (seconds := text_of(options, "stop_after")) else []
    probes = options["probe"]
    assert isinstance(probes, tuple)
    named = _modes_of(selector, collect(*where(selector), *rest, *stop_after).cases)
    selectors = {kafka: [each for each in selector if named[each] & {*modes[kafka]}] for kafka in versions}
    probed = probes_of(versions, probes)
    with published_dir(Path(allure or runs_dir.parent / "allure-results")) as allure_folder:
        runs = several_builds.run_each(
            selectors,
            [*rest, f"--jobs={jobs}"],
            probes=probed,
            junit=Path(junit or runs_dir.parent / "junit.xml"),
            allure=allure_folder,
            stop_after=float(seconds) if seconds else None,
            say=lambda line: out.print(Text(line, style="bold")),
        )
    _show(runs)
    say(f"run folders in {runs_dir}, seed {seed}")
    if skips := skips_line([case for run in runs for case in run.cases], no_skips=bool(options["no_skips"])):
        out.print(skips, soft_wrap=True)
    return results.write_json(json_file, several_builds.to_json(runs, int(seed)), say)


def probes_of(versions: Sequence[str], files: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of ``--probe`` for each version.

    :raises UsageError: a file belongs to none of the versions
    """
    from harness.errors import UsageError
    from harness.runner.build_lacks import read_probe

    of = {file: read_probe(Path(file)).kafka for file in files}
    if other := [f"--probe {file} is of Kafka {kafka}" for file, kafka in of.items() if kafka not in versions]:
        raise UsageError(f"{'; '.join(other)}, which --kafka does not name")
    return {kafka: [file for file in files if of[file] == kafka] for kafka in versions}


def _modes_of(selectors: Sequence[str], cases: Sequence[DeclaredCase]) -> dict[str, set[Mode]]:
    """Return the modes of the cases that each selector selects."""
    as_pytest = {selector: where((selector,))[-1].removeprefix("--select=") for selector in selectors}
    names = [(case.mode, case.names()) for case in cases]
    return {selector: {mode for mode, its in names if name in its} for selector, name in as_pytest.items()}


def _show(runs: Sequence[BuildRun]) -> None:
    """Print the table, the deviations, and the reason for each case that is not valid."""
    from harness.runner.deviation import in_words

    print_whole(verdicts_table(runs), out)
    for run in runs:
        if not run.cases:
            out.print(Text(f"Kafka {run.kafka}: no case ran; its run ended with exit code {run.exit_code}", "yellow"))
    cases = [(run.kafka, case) for run in runs for case in run.cases]
    deviations = Counter((each.actual, each.issue, kafka) for kafka, case in cases for each in _deviations(case))
    for does, issue in dict.fromkeys((does, issue) for does, issue, _ in deviations):
        on = ", ".join(kafka for its, of, kafka in deviations if (its, of) == (does, issue))
        out.print(Text(f"{_DEVIATES} {in_words(does, issue)}: {on}", style="dim"), soft_wrap=True)
    for kafka, case in cases:
        if case.verdict not in ("valid", "skipped"):
            out.print(_why(kafka, case), soft_wrap=True)


def verdicts_table(runs: Sequence[BuildRun]) -> Table:
    """Return a table with a row for each case and a column for each build. The footer counts the verdicts."""
    from harness.cli.console import STYLES

    table = Table(title="verdicts by build", title_justify="left", header_style="bold", show_footer=True)
    table.add_column("case", overflow="fold", min_width=30, footer=f"{_DEVIATES} known deviation, – not run")
    for run in runs:
        counts = Counter[str](case.verdict for case in run.cases)
        totals = [Text(f"{counts[word]} {word}", style) for word, style in STYLES.items() if counts[word]]
        width = max(map(len, [run.kafka, *map(str, totals)]))
        table.add_column(run.kafka, no_wrap=True, min_width=width, footer=Text("\n").join(totals))
    by_build = [{case.case.id: case for case in run.cases} for run in runs]
    for id in dict.fromkeys(id for cases in by_build for id in cases):
        table.add_row(Text(id), *(_cell(cases.get(id), STYLES) for cases in by_build))
    return table


def print_whole(table: Table, console: Console) -> None:
    """Print a table with all of its columns, even if it is wider than the console."""
    width = console.width
    narrowest = Measurement.get(console, console.options.update(max_width=sys.maxsize), table).minimum
    console.width = max(width, narrowest)
    try:
        console.print(table)
    finally:
        console.width = width


def _cell(case: CaseResult | None, styles: Mapping[str, str]) -> Text:
    if case is None:
        return Text("–", style="dim")
    return Text(case.verdict + (_DEVIATES if _deviations(case) else ""), style=styles[case.verdict])


def _deviations(case: CaseResult) -> list[NotedDeviation]:
    return [each for each in case.deviations if each.state != "mended"]


def _why(kafka: str, case: CaseResult) -> Text:
    from harness.cli.console import STYLES

    style = STYLES[case.verdict]
    text = Text(f"{case.verdict:8}", style=style).append(f"{case.case.id} on Kafka {kafka}", style="default")
    text.append(f"\n        {case.reason}", style=style)
    return text.append(f"\n        again: {case.rerun}", style="dim")
