"""``jbod report``: the pages of a run, and of a candidate beside its baseline.

The command is an entry point (``jbod.commands``), because the harness must not import the reports.
"""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from harness.cli.shared import FOLDER
from harness.errors import EXIT_NOTHING_RAN, EXIT_VALID, HarnessError
from harness.history.run_folder import check_folder
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
# What a case's page is made from. The folders of the tables show that a part was deleted.
_SOURCES = ("*.json*", "history/*", "history/*/*.parquet", "brokers/*/*")


@click.command()
@click.argument("runs", metavar="[RUNS_DIR|RUN_DIR]…", nargs=-1, type=FOLDER)
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), help="Folder of the report (default: RUNS_DIR/report)."
)
@click.option("--baseline", metavar="RUNS_DIR", type=FOLDER, help="Compare with these runs.")
@click.option(
    "--allure/--no-allure", default=True, show_default=True, help="Also make Allure's report (needs Node.js)."
)
@click.option("--open", "open_it", is_flag=True, help="Open it in a browser.")
def report(runs: tuple[Path, ...], out: Path | None, baseline: Path | None, allure: bool, open_it: bool) -> int:
    """Make the HTML report of runs: an index with one answer, and a page for each case.

    RUNS_DIR is a folder of run folders (default: reports/runs); RUN_DIR is the folder of one case. Several make one
    report. With --baseline, a further page compares these runs, of a candidate, with those of the baseline.
    """
    run = read(runs or (DEFAULT_RUNS_DIR,))
    out = (out or run.runs_dir / OUT).absolute()
    baseline_run = None if baseline is None else read((baseline,))
    try:
        run = write_cases(run, out)
        compared = None if baseline_run is None else qualify(run, write_baseline(baseline_run, out))
        index = write_report(run, out, compared, allure=allure)
    except OSError as error:
        raise HarnessError(f"cannot write the report to {out}: {error.strerror}; see --out") from error
    for note in run.notes:
        _say(note)
    click.echo(f"{make_index(run).answer.headline}\n{index}")
    if compared is not None:
        click.echo(f"{compared.answer.headline}\n{out / QUALIFICATION}")
    if open_it:
        webbrowser.open(index.as_uri())
    return EXIT_VALID if run.rows else EXIT_NOTHING_RAN


def read(paths: Sequence[Path]) -> RunsRead:
    """Read runs folders and single run folders as one run.

    :raises UsageError: a path does not exist
    :raises HarnessError: a path is a file, or cannot be read
    :raises Damaged: a single run folder is damaged
    """
    for path in paths:
        check_folder(path, "runs folder")
    singles = [path for path in paths if is_run_folder(path)]
    for path in singles:
        read_folder(path)
    parts = [read_runs_dir(path) for path in paths if path not in singles]
    parts += [read_runs([path], path) for path in singles]
    # Each run once, also if a runs folder and one of its run folders are given.
    rows = {row.run_id or (row.id, row.kafka, row.backend, row.began): row for part in parts for row in part.rows}
    return RunsRead(
        runs_dir=paths[
            0
        ].absolute(),  # of a single run folder, so that its report does not replace that of the runs folder
        folders={name: folder for part in parts for name, folder in part.folders.items()},
        rows=tuple(sorted(rows.values(), key=lambda row: row.began)),
        notes=tuple(note for part in parts for note in part.notes),
    )


def write_baseline(run: RunsRead, out: Path) -> RunsRead:
    """Write the pages of a baseline's cases. They link back to the qualification page."""
    return write_cases(run, out / BASELINE, home=f"../../{QUALIFICATION}")


def write_cases(run: RunsRead, out: Path, *, home: str = "../index.html") -> RunsRead:
    """Write the page of each case. Returns the run with a note for each folder of which no page can be made.

    :param home: the link from a case's page back to the report
    """
    failed = {}
    for name, folder in run.folders.items():
        try:
            if not _is_current(out / "cases" / f"{name}.html", folder.path):
                write_case(replace(folder), row_of(folder), out, home)  # on a copy, so that its logs are not kept
        except OSError:
            raise
        except Exception as error:  # a damaged folder may hold anything, and must not stop the report of the others
            failed[name] = f"{folder.path} is damaged: no page can be made of it: {error!r}"
    return replace(
        run,
        rows=tuple(replace(row, run_id=None) if row.run_id in failed else row for row in run.rows),
        notes=(*run.notes, *failed.values()),
    )


def _is_current(page: Path, run_dir: Path) -> bool:
    """Whether a page is newer than its sources and this code. A night adds few run folders to perhaps a thousand."""
    here = Path(__file__).parent
    sources = [path for pattern in _SOURCES for path in run_dir.glob(pattern)]
    sources += [*here.glob("*.py"), *here.glob("assets/*"), *here.glob("templates/*")]
    return page.exists() and page.stat().st_mtime > max(path.stat().st_mtime for path in sources)


def write_report(run: RunsRead, out: Path, compared: Qualification | None, *, allure: bool) -> Path:
    """Write the pages of the whole run into a folder; returns the index page."""
    links: dict[str, str | None] = {"qualification": None, "allure": None, "no_allure": None}
    if compared is not None:
        page = write_page(out / QUALIFICATION, QUALIFICATION, q=compared)
        links["qualification"] = page.name
    if allure:
        try:
            links["allure"] = write_allure(run, out, _say).name
        except HarnessError as error:
            (out / ALLURE).unlink(missing_ok=True)  # it would be of an earlier report
            links["no_allure"] = str(error)
            _say(str(error))
    index = make_index(run)
    write_summary(out / "summary.md", index, compared)
    trends = make_trends(ledger.read(run.runs_dir))
    return write_page(out / "index.html", "index.html", index=index, trends=trends, verdicts=VERDICTS, links=links)


def _say(line: str) -> None:
    click.echo(f"jbod: {line}", err=True)


def write_case(folder: RunFolder, row: Row, out: Path, home: str) -> Path:
    """Write the page of one case."""
    return write_page(
        out / "cases" / f"{folder.name}.html",
        "case.html",
        home=home,
        folder=folder,
        row=row,
        timeline=make_timeline(folder),
        play=_play(folder),
        run_json=json.dumps(json.loads((folder.path / "run.json").read_text()), indent=2),
    )


def _play(folder: RunFolder) -> str | None:
    """The command that plays the smallest failing schedule; None without one, or if the build is unknown."""
    if not folder.smallest or not folder.run.kafka.source:
        return None
    return play_command(folder.path / "smallest.json", folder.run)
