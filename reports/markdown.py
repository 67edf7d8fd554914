"""The summary of a run in Markdown, for the page of a pull request (GitHub's ``GITHUB_STEP_SUMMARY``).

It has the answer, the cases that are wrong and the commands to run them again, what did not run, and what each fault
cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.host.atomic_write import write_atomically
from reports.costs import COSTS
from reports.index import Cell, Index
from reports.lanes import short
from reports.pages import seconds
from reports.qualification import Qualification

_MARK = {"valid": "✅", "invalid": "❌", "unknown": "❔", "error": "💥"}
_MOST = 50


def write_summary(path: Path, index: Index, compared: Qualification | None) -> None:
    """Write the summary atomically into an existing folder."""
    write_atomically(path, "\n".join(_lines(index, compared)) + "\n")


def _lines(index: Index, compared: Qualification | None) -> Iterator[str]:
    if compared is not None:
        yield from (f"## {_MARK[compared.answer.verdict]} {compared.answer.headline}", "", compared.answer.says, "")
        yield from (f"**mended** KIP-{each.kip}, {_text(each.issue)}: {_text(each.does)}\n" for each in compared.mended)
    yield from (f"## {_MARK[index.answer.verdict]} {index.answer.headline}", "", index.answer.says)
    for row in index.wrong[:_MOST]:
        yield from ("", f"**{row.verdict}** `{row.id}` on Kafka {row.build}: {_text(row.says)}", "", f"    {row.rerun}")
    if len(index.wrong) > _MOST:
        yield from ("", f"and {len(index.wrong) - _MOST} more")
    for each in index.backend_comparisons:
        if each.differs:
            yield from ("", f"**differs** `{each.id}` on Kafka {each.kafka}: {_text(each.says)}")
    if index.not_run or index.notes:
        yield from ("", "### Did not run", "")
    for reason, ids in index.not_run:
        yield f"- {_text(reason)}: {', '.join(f'`{id}`' for id in ids)}"
    yield from (f"- {_text(note)}" for note in index.notes)
    if index.cells:
        yield from ("", "### What each fault cost, in seconds (median; “8 of 28”: measured in 8 of 28 injections)", "")
        yield (
            "| fault | broker’s role | mode | Kafka | times | "
            + " | ".join(cost.words for cost in COSTS.values())
            + " |"
        )
        yield "|---|---|---|---|--:|" + "--:|" * len(COSTS)
        for cell in index.cells:
            columns = (cell.fault, cell.role, cell.mode, cell.build, cell.times, *(_cost(cell, cost) for cost in COSTS))
            yield f"| {' | '.join(map(str, columns))} |"


def _cost(cell: Cell, name: str) -> str:
    cost, of = cell.costs[name], cell.of(name)
    return seconds(None if cost is None else cost[0]) + (f" ({of})" if of else "")


def _text(text: str) -> str:
    """The text in one line, with the special characters of Markdown and HTML escaped."""
    plain = " ".join(short(text).split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in plain)
