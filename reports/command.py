"""``jbod report``: the pages of a run, and of a candidate beside its baseline.

A command of jbod's by entry point (``jbod.commands``), because nothing of the harness may import the reports.
"""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from harness.errors import EXIT_NOTHING_RAN, EXIT_VALID, HarnessError, UsageError
from harness.runner import ledger
from harness.runner.shrinking import play_command
from reports.allure import ALLURE, write_allure
from reports.folder import RunFolder, is_run_folder, read_folder
from reports.index import make_index
from reports.markdown import write_summary
from reports.pages import write_page
from reports.qualification import Qualification, qualify
from reports.rows import VERDICTS, Row, RunsRead, read_runs, read_runs_dir, row_of
from reports.timeline import make_timeline
from reports.trends import make_trends

DEFAULT_RUNS_DIR = Path("reports/runs")
OUT = "report"
QUALIFICATION = "qualification.html"
BASELINE = "baseline"
# With the folders of a history's tables: a part that has gone leaves no other trace.
_TOLD_OF = ("*.json*", "history/*", "history/*/*.parquet", "brokers/*/*")


@click.command()
@click.argument("runs", metavar="[RUNS_DIR|RUN_DIR]…", nargs=-1, type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to (default: RUNS_DIR/report).")
@click.option("--baseline", metavar="RUNS_DIR", type=click.Path(path_type=Path), help="Compare with these runs.")
@click.option("--allure/--no-allure", default=True, show_default=True, help="Allure's report too (needs Node.js).")
@click.option("--open", "open_it", is_flag=True, help="Open it in a browser.")
def report(runs: tuple[Path, ...], out: Path | None, baseline: Path | None, allure: bool, open_it: bool) -> int:
    """Make the HTML report of runs: an index with one answer, and a page for each case.

    RUNS_DIR is a folder of run folders (default: reports/runs); a RUN_DIR is one case. All given are one report. With
    --baseline they are a candidate's, and a page compares them with the baseline's.
    """
    run = read(runs or (DEFAULT_RUNS_DIR,))
    out = (out or run.runs_dir / OUT).absolute()
    theirs = None if baseline is None else read((baseline,))
    try:
        run = write_cases(run, out)
        compared = None if theirs is None else qualify(run, write_baseline(theirs, out))
        index = write_report(run, out, compared, allure=allure)
    except OSError as error:
        raise HarnessError(f"the report can't be written to {out}: {error.strerror}; see --out") from error
    for note in run.notes:
        _say(note)
    click.echo(f"{make_index(run).answer.headline}\n{index}")
    if compared is not None:
        click.echo(f"{compared.answer.headline}\n{out / QUALIFICATION}")
    if open_it:
        webbrowser.open(index.as_uri())
    return EXIT_VALID if run.rows else EXIT_NOTHING_RAN


def read(paths: Sequence[Path]) -> RunsRead:
    """Everything named, as one run.

    :raises UsageError: one of them is no folder
    :raises HarnessError: one is a single run folder, and damaged
    """
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"no such folder: {path}")
    singles = [path for path in paths if is_run_folder(path)]
    for path in singles:
        read_folder(path)
    parts = [read_runs_dir(path) for path in paths if path not in singles]
    parts += [read_runs([path], path) for path in singles]
    # Once, also where a runs folder and one of its run folders are named.
    rows = {row.run_id or (row.id, row.kafka, row.backend, row.began): row for part in parts for row in part.rows}
    return RunsRead(
        runs_dir=paths[0].absolute(),  # a single one's report is its own, and not that of all the others beside it
        folders={name: folder for part in parts for name, folder in part.folders.items()},
        rows=tuple(sorted(rows.values(), key=lambda row: row.began)),
        notes=tuple(note for part in parts for note in part.notes),
    )


def write_baseline(run: RunsRead, out: Path) -> RunsRead:
    """Write each of a baseline's cases' pages, to which the qualification leads and which leads back there."""
    return write_cases(run, out / BASELINE, home=f"../../{QUALIFICATION}")


def write_cases(run: RunsRead, out: Path, *, home: str = "../index.html") -> RunsRead:
    """Write each case's page; returns the run, which says of which folders none could be made.

    :param home: where a page's way back leads

    What is in a damaged folder can be anything, and one of two hundred must not keep the others from being told of.
    """
    failed = {}
    for name, folder in run.folders.items():
        try:
            if not _is_current(out / "cases" / f"{name}.html", folder.path):
                write_case(replace(folder), row_of(folder), out, home)  # a copy, that keeps no logs for the next
        except OSError:
            raise
        except Exception as error:
            failed[name] = f"{folder.path} is damaged: no page can be made of it: {error!r}"
    return replace(
        run,
        rows=tuple(replace(row, run_id=None) if row.run_id in failed else row for row in run.rows),
        notes=(*run.notes, *failed.values()),
    )


def _is_current(page: Path, run_dir: Path) -> bool:
    """Whether a page is newer than what it tells of and than what it is made with: a night adds few to a thousand."""
    here = Path(__file__).parent
    sources = [path for pattern in _TOLD_OF for path in run_dir.glob(pattern)]
    sources += [*here.glob("*.py"), *here.glob("assets/*"), *here.glob("templates/*")]
    return page.exists() and page.stat().st_mtime > max(path.stat().st_mtime for path in sources)


def write_report(run: RunsRead, out: Path, compared: Qualification | None, *, allure: bool) -> Path:
    """Write the pages of a run as a whole below a folder; returns the index."""
    links: dict[str, str | None] = {"qualification": None, "allure": None, "no_allure": None}
    if compared is not None:
        page = write_page(out / QUALIFICATION, QUALIFICATION, q=compared)
        links["qualification"] = page.name
    if allure:
        try:
            links["allure"] = write_allure(run, out, _say).name
        except HarnessError as error:
            (out / ALLURE).unlink(missing_ok=True)  # an earlier report's would be taken for this one's
            links["no_allure"] = str(error)
            _say(str(error))
    index = make_index(run)
    write_summary(out / "summary.md", index, compared)
    trends = make_trends(ledger.read(run.runs_dir))
    return write_page(out / "index.html", "index.html", index=index, trends=trends, verdicts=VERDICTS, links=links)


def _say(line: str) -> None:
    click.echo(f"jbod: {line}", err=True)


def _play(folder: RunFolder) -> str | None:
    """The command that plays the smallest schedule that fails; None where there is none, or nobody knows the build."""
    try:
        return play_command(folder.path / "smallest.json", folder.run) if folder.smallest else None
    except (KeyError, TypeError):
        return None


def write_case(folder: RunFolder, row: Row, out: Path, home: str) -> Path:
    """Write one case's page."""
    return write_page(
        out / "cases" / f"{folder.name}.html",
        "case.html",
        home=home,
        folder=folder,
        row=row,
        timeline=make_timeline(folder),
        play=_play(folder),
        run_json=json.dumps(folder.run, indent=2),
    )
