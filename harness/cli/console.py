"""The output of ``jbod run``: progress, and then a table of verdicts.

This pytest plugin replaces pytest's terminal reporter. On a terminal, a live line shows the running case and for how
many seconds it has run. If the case runs in this process, the line also has its phase and the records acked and read.
Elsewhere (CI) each case prints a line when it begins and one when it ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.cli.shared import tell
from harness.errors import EXIT_INCONCLUSIVE, EXIT_NOTHING_RAN
from harness.measure.fault_costs import FaultCosts
from harness.runner.case_result import CaseResult
from harness.runner.deviation import State, in_words
from harness.runner.run import Run, run_of

STYLES = {"valid": "green", "invalid": "bold red", "unknown": "yellow", "error": "bold magenta", "skipped": "dim"}
SKIPPED_STYLE = "bold red"
"""The style of the line about skipped cases: as loud as a failure, because they have shown nothing."""
_CROWDED = "†"
"""Marks the times of a case on a crowded machine."""
_REFRESH_PER_S = 5


class ConsoleReporter:
    """Shows progress while cases run, and the table of verdicts at the end."""

    def __init__(self, console: Console, errors: Console) -> None:
        """:param errors: writes to standard error, also while pytest captures it"""
        self.console = console
        self.errors = errors
        self._live: Live | None = None
        self._run: Run | None = None
        self._total = 0
        self._shown = 0
        self._began: dict[str, float] = {}
        self._note = "looking for scenarios"

    # --- pytest's hooks -----------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Show messages of the run from now on."""
        self._run = run_of(session.config)
        self._run.say = self._say

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the number of cases, and start the live line."""
        self._begin(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Note the number of cases, as a worker collected them."""
        if not self._total:
            self._begin(len(ids))

    def _begin(self, total: int) -> None:
        self._total = total
        if self._total and self.console.is_terminal:
            self._live = Live(get_renderable=self._status, console=self.console, refresh_per_second=_REFRESH_PER_S)
            self._live.start()

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Note that a case begins."""
        self._began[nodeid] = time.monotonic()
        if not self.console.is_terminal:
            number = self._shown + len(self._began)
            self.console.print(f"[{number}/{self._total}] {nodeid.rpartition('::')[2]} …", markup=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a line for each case that ended, with the reason unless it is valid."""
        if self._run is None:
            return
        if report.when not in ("setup", "call"):
            self._began.pop(report.nodeid, None)
        for result in self._run.results.cases[self._shown :]:
            self._shown += 1
            self.console.print(_line(result), soft_wrap=True)  # so that a command can be copied

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Print why a suite cannot be collected."""
        if report.failed:
            self.errors.print(Text(f"{report.nodeid}: {report.longreprtext}", style="bold magenta"))

    def pytest_internalerror(self, excrepr: object) -> None:
        """Print an internal error of pytest or a plugin."""
        self.errors.print(Text(str(excrepr), style="bold magenta"))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Stop the live line. Then print, before the clean-up, that the run ends by Ctrl-C or an error."""
        if self._live:
            self._live.stop()
        if isinstance(excinfo.value, pytest.exit.Exception):
            tell(str(excinfo.value.msg), self.errors)
        else:
            self.console.print("interrupted; cleaning up", style="yellow")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Print the table of verdicts and the summary."""
        if self._live:
            self._live.stop()
        if self._run and not self._run.results.cases and session.exitstatus == EXIT_NOTHING_RAN:
            self.console.print("nothing ran: no case is selected in the modes of this run; see `jbod list`")
        elif self._run and self._run.results.cases:
            self.console.print(verdict_table(self._run.results.cases))
            for result in self._run.results.cases:  # the table's cells are too narrow for a command
                if result.verdict not in ("valid", "skipped"):
                    self.console.print(_line(result), soft_wrap=True)
            self.console.print(summary(self._run))
            if skips := skips_line(self._run.results.cases, no_skips=self._run.results.no_skips):
                self.console.print(skips, soft_wrap=True)

    # --- output -------------------------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        self._note = line
        self.console.print(Text(line, style="dim"), soft_wrap=True)

    def _status(self) -> RenderableType:
        if not self._began:
            return Text(f"[{self._shown}/{self._total}] ", style="bold").append(self._note)
        return Group(
            *(self._running(number, *each) for number, each in enumerate(self._began.items(), self._shown + 1))
        )

    def _running(self, number: int, nodeid: str, began: float) -> Text:
        text = Text(f"[{number}/{self._total}] ", style="bold")
        case = self._run.running if self._run else None
        text.append(case.id.id if case else nodeid.rpartition("::")[2], style="cyan")
        text.append(f"  {case.phase if case else ''}  {time.monotonic() - began:.0f} s", style="bold")
        if self._run and self._run.workload:
            counts = self._run.workload.counts()
            text.append("  " + "  ".join(f"{name} {count:,}" for name, count in counts.items()), style="dim")
        return text


def _line(result: CaseResult) -> RenderableType:
    text = Text(f"{result.verdict:8}", style=STYLES[result.verdict])
    text.append(f"{result.duration_s:6.1f} s  {result.case.id}", style="default")
    for deviation in result.deviations:
        if deviation.state == "undeclared":
            text.append(
                f"\n         {_STATES['undeclared']}: {in_words(deviation.actual, deviation.issue)}", style="yellow"
            )
    if result.reason:
        text.append(f"\n         {result.reason}", style=STYLES[result.verdict])
        if result.verdict != "skipped":
            text.append(f"\n         again: {result.rerun}", style="dim")
    for line in ("kept:", *result.kept) if result.kept else ():
        text.append(f"\n         {line}", style="default")
    return text


_STATES: Mapping[State, str] = {"seen": "deviates", "mended": "mended", "undeclared": "deviates, undeclared"}
MEASURES = {
    "noticed_s": "noticed",
    "other_leader_s": "new leader",
    "produce_gap_s": "no ack",
    "consume_gap_s": "no read",
}


def verdict_table(results: Sequence[CaseResult]) -> Table:
    """Return a table with a row for each case. Below it are its faults with their costs, its deviations and its
    figures.

    Costs are in seconds. Times on a crowded machine are marked.
    """
    table = Table(title="verdicts", title_justify="left", header_style="bold", caption_justify="left")
    if any(result.is_crowded for result in results):
        table.caption = f"{_CROWDED} measured on a crowded machine: longer than on an idle one"
    table.add_column("case, and its faults", overflow="fold", min_width=44)
    table.add_column("Kafka", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name in ("took", *MEASURES.values()):
        table.add_column(f"{name} s", justify="right", min_width=6)
    for result in results:
        verdict = Text(result.verdict, style=STYLES[result.verdict])
        mark = _CROWDED if result.is_crowded else ""
        table.add_row(Text(result.case.id), result.kafka, verdict, f"{result.duration_s:.1f}{mark}")
        for fault in result.faults:
            proven = "" if fault.proven else "not proven"
            costs = (_cost(fault, measure) for measure in MEASURES)
            table.add_row(Text(f"  {fault.name} on {fault.target}"), "", proven, "", *costs, style="dim")
        for deviation in result.deviations:
            style = "yellow" if deviation.state == "undeclared" else "dim"
            table.add_row(
                Text(f"  {_STATES[deviation.state]}: {in_words(deviation.actual, deviation.issue)}"), style=style
            )
        for name, figure in result.measured.items():
            table.add_row(Text(f"  {name}: {figure:.2f}"), style="dim")
    return table


def _cost(fault: FaultCosts, measure: str) -> str:
    if fault.never_came(measure):
        return "never"
    value = fault.figure(measure)
    return "–" if value is None else f"{value:.2f}"


def skips_line(results: Sequence[CaseResult], *, no_skips: bool = False) -> Text | None:
    """Return one line with the number of skipped cases for each reason; None if no case was skipped.

    :param no_skips: whether ``--no-skips`` was given, so that the line names the exit code
    """
    reasons = Counter(result.reason for result in results if result.verdict == "skipped")
    if not reasons:
        return None
    why = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
    end = f"; --no-skips: exit code {EXIT_INCONCLUSIVE}" if no_skips else ""
    return Text(f"SKIPPED {reasons.total()} of {len(results)} cases: {why}{end}", style=SKIPPED_STYLE)


def summary(run: Run) -> Text:
    """Return one line with the number of cases for each verdict, the runs folder, the seed and unusual settings."""
    text = Text()
    for verdict, style in STYLES.items():
        count = sum(result.verdict == verdict for result in run.results.cases)
        if count:
            text.append(f"{count} {verdict}  ", style=style)
    if mended := sum(any(each.state == "mended" for each in of.deviations) for of in run.results.cases):
        text.append(f"{mended} mended  ", style="green")
    if undeclared := sum(any(each.state == "undeclared" for each in of.deviations) for of in run.results.cases):
        text.append(f"{undeclared} with an undeclared deviation  ", style="yellow")
    return text.append(", ".join([f"run folders in {run.runs_dir}", f"seed {run.seed}", *run.unusual]), style="dim")
